"""The schedules, against the papers' formulas in float64, alone and after Model Garden's warm-up."""

import dataclasses
import math

import numpy as np
from official.modeling import optimization
import pytest
import tensorflow as tf

from official_ext.training.optimization import configs
from official_ext.training.optimization import schedules

STEPS = 40


def triangle(base, top, size, mode, gamma=1.0):
  """Smith 2017, section 3.1, with his names."""

  def formula(step):
    cycle = math.floor(1 + step / (2 * size))
    x = abs(step / size - 2 * cycle + 1)
    scale = {'triangular': 1.0, 'triangular2': 1 / 2 ** (cycle - 1), 'exp_range': gamma**step}[mode]
    return base + (top - base) * max(0.0, 1 - x) * scale

  return formula


def one_cycle(peak, total, pct_start, div_factor, final_div_factor, anneal):
  def between(start, end, part):
    return (
      end + (start - end) / 2 * (1 + math.cos(math.pi * part)) if anneal == 'cosine' else start + (end - start) * part
    )

  def formula(step):
    first, rise = peak / div_factor, pct_start * total
    if step < rise:
      return between(first, peak, step / rise)
    return between(peak, first / final_div_factor, (min(step, total) - rise) / (total - rise))

  return formula


def stable(level, total, warmup, decay, shape, alpha):
  def formula(step):
    if step < warmup:
      return level * step / warmup
    x = min(max(0, step - (total - decay)), decay) / decay
    left = {'linear': 1 - x, 'cosine': (1 + math.cos(math.pi * x)) / 2, 'sqrt': 1 - math.sqrt(x)}[shape]
    return level * (alpha + (1 - alpha) * left)

  return formula


def restarts(top, first, t_mul, m_mul, alpha):
  def formula(step):
    length, height = first, 1.0
    while step >= length:
      step, length, height = step - length, length * t_mul, height * m_mul
    return top * (alpha + (1 - alpha) * height * (1 + math.cos(math.pi * step / length)) / 2)

  return formula


CASES = {
  'triangular': (
    'cyclical',
    dict(initial_learning_rate=0.1, maximal_learning_rate=0.7, step_size=4),
    triangle(0.1, 0.7, 4, 'triangular'),
  ),
  'triangular2': (
    'cyclical',
    dict(initial_learning_rate=0.1, maximal_learning_rate=0.7, step_size=5, mode='triangular2'),
    triangle(0.1, 0.7, 5, 'triangular2'),
  ),
  'exp_range': (
    'cyclical',
    dict(initial_learning_rate=0.1, maximal_learning_rate=0.7, step_size=5, mode='exp_range', gamma=0.97),
    triangle(0.1, 0.7, 5, 'exp_range', 0.97),
  ),
  'one_cycle': (
    'one_cycle',
    dict(maximal_learning_rate=0.5, total_decay_steps=30),
    one_cycle(0.5, 30, 0.3, 25.0, 1e4, 'cosine'),
  ),
  'one_cycle, linear': (
    'one_cycle',
    dict(
      maximal_learning_rate=0.5,
      total_decay_steps=30,
      pct_start=0.45,
      div_factor=10.0,
      final_div_factor=100.0,
      anneal_strategy='linear',
    ),
    one_cycle(0.5, 30, 0.45, 10.0, 100.0, 'linear'),
  ),
  'warmup_stable_decay': (
    'warmup_stable_decay',
    dict(initial_learning_rate=0.5, total_decay_steps=35, warmup_steps=6, decay_fraction=0.2),
    stable(0.5, 35, 6, 7, 'linear', 0.0),
  ),
  'stable_decay, cosine': (
    'warmup_stable_decay',
    dict(initial_learning_rate=0.5, total_decay_steps=35, decay_fraction=0.4, decay_shape='cosine', alpha=0.1),
    stable(0.5, 35, 0, 14, 'cosine', 0.1),
  ),
  'stable_decay, sqrt': (
    'warmup_stable_decay',
    dict(initial_learning_rate=0.5, total_decay_steps=35, warmup_steps=3, decay_fraction=0.4, decay_shape='sqrt'),
    stable(0.5, 35, 3, 14, 'sqrt', 0.0),
  ),
  'cosine_restarts': (
    'cosine_restarts',
    dict(initial_learning_rate=0.5, first_decay_steps=5, alpha=0.1),
    restarts(0.5, 5, 2.0, 1.0, 0.1),
  ),
  'cosine_restarts, lower': (
    'cosine_restarts',
    dict(initial_learning_rate=0.5, first_decay_steps=7, t_mul=1.0, m_mul=0.5, alpha=0.02),
    restarts(0.5, 7, 1.0, 0.5, 0.02),
  ),
}
each_case = pytest.mark.parametrize('name', CASES)


def build(kind, fields, warmup=None):
  """The schedule of Model Garden's factory."""
  config = configs.OptimizationConfig(
    {
      'optimizer': {'type': 'sgd'},
      'learning_rate': {'type': kind, kind: fields},
      'warmup': {'type': 'linear', 'linear': warmup} if warmup else {'type': None},
    }
  )
  return optimization.OptimizerFactory(config).build_learning_rate()


def values(schedule, steps=range(STEPS)):
  return [float(schedule(tf.constant(step, tf.int64))) for step in steps]


@each_case
def test_a_schedule_follows_its_formula(name):
  kind, fields, formula = CASES[name]
  np.testing.assert_allclose(values(build(kind, fields)), [formula(s) for s in range(STEPS)], rtol=3e-6, atol=1e-7)


@each_case
def test_offset_shifts_a_schedule(name):
  kind, fields, formula = CASES[name]
  expected = [formula(max(0, s - 4)) for s in range(STEPS)]
  np.testing.assert_allclose(values(build(kind, {**fields, 'offset': 4})), expected, rtol=3e-6, atol=1e-7)


@each_case
def test_a_warm_up_stands_in_place_of_the_first_steps(name):
  kind, fields, formula = CASES[name]
  warmup = dict(warmup_steps=8, warmup_learning_rate=0.01)
  expected = [0.01 + s / 8 * (formula(8) - 0.01) if s < 8 else formula(s) for s in range(STEPS)]
  np.testing.assert_allclose(values(build(kind, fields, warmup)), expected, rtol=3e-6, atol=1e-7)


def test_a_schedule_is_the_same_inside_xla():
  built = [build(kind, fields) for kind, fields, _ in CASES.values()]
  at_all = tf.function(lambda step: [schedule(step) for schedule in built], jit_compile=True)
  for step in (0, 3, 11, 33):
    expected = [formula(step) for _, _, formula in CASES.values()]
    np.testing.assert_allclose(at_all(tf.constant(step, tf.int64)), expected, rtol=1e-5, atol=1e-6)


def test_a_triangle_is_exact_after_twenty_million_steps():
  # float32 knows even numbers only from 2^24 on.
  schedule = build(*CASES['triangular'][:2])
  steps = range(20_000_000, 20_000_009)
  np.testing.assert_allclose(values(schedule, steps), [CASES['triangular'][2](s) for s in steps], rtol=3e-6)


def test_a_schedule_has_the_configuration_it_was_made_from():
  for kind, fields, _ in CASES.values():
    schedule = build(kind, {**fields, 'offset': 3})
    again = schedules.__dict__[type(schedule).__name__](**schedule.get_config())
    assert values(again, range(12)) == values(schedule, range(12))


# All that `learning_rate.type` can name, 10 steps long where they have a length: (fields, formula).
def cosine(step):
  return 0.3 + 0.2 * (1 + math.cos(math.pi * min(step, 10) / 10))


ALL = {
  'constant': (dict(learning_rate=0.5), lambda s: 0.5),
  'stepwise': (dict(boundaries=[3, 6], values=[0.5, 0.2, 0.1]), lambda s: 0.5 if s <= 3 else 0.2 if s <= 6 else 0.1),
  'exponential': (dict(initial_learning_rate=0.5, decay_steps=10, decay_rate=0.7), lambda s: 0.5 * 0.7 ** (s / 10)),
  'polynomial': (
    dict(initial_learning_rate=0.5, decay_steps=10, end_learning_rate=0.1),
    lambda s: 0.1 + 0.4 * (1 - min(s, 10) / 10),
  ),
  'cosine': (dict(initial_learning_rate=0.7, decay_steps=10, alpha=3 / 7), cosine),
  'power': (dict(initial_learning_rate=0.5, power=-0.5), lambda s: 0.5 * max(s, 1) ** -0.5),
  'power_linear': (
    dict(initial_learning_rate=0.5, total_decay_steps=10, power=-0.5, linear_decay_fraction=0.4),
    lambda s: 0.5 * max(s, 1) ** -0.5 * min(1, max(0, (10 - s) / 4)),
  ),
  'power_with_offset': (
    dict(initial_learning_rate=0.5, power=-0.5, offset=2, pre_offset_learning_rate=0.4),
    lambda s: min(0.4, 0.5 * max(s - 2, 1) ** -0.5) if s > 2 else 0.4,
  ),
  # Has no values from its last boundary on: see rate_checks_test.py.
  'step_cosine_with_offset': (
    dict(boundaries=[0, 4, 1000], values=[0.5, 0.2, 0.1]),
    lambda s: 0.35 + 0.15 * math.cos(math.pi * s / 4) if s < 4 else 0.15 + 0.05 * math.cos(math.pi * (s - 4) / 996),
  ),
  'cyclical': CASES['triangular'][1:],
  'one_cycle': (
    dict(maximal_learning_rate=0.5, total_decay_steps=10),
    one_cycle(0.5, 10, 0.3, 25.0, 1e4, 'cosine'),
  ),
  'warmup_stable_decay': (
    dict(initial_learning_rate=0.5, total_decay_steps=10, warmup_steps=2, decay_fraction=0.3),
    stable(0.5, 10, 2, 3, 'linear', 0.0),
  ),
  'cosine_restarts': (
    dict(initial_learning_rate=0.5, first_decay_steps=5, alpha=0.1),
    restarts(0.5, 5, 2.0, 1.0, 0.1),
  ),
}
WARM_UPS = {
  'none': (None, lambda s, after: after(s)),
  'linear': (dict(warmup_steps=3), lambda s, after: s / 3 * after(3) if s < 3 else after(s)),
  'polynomial': (dict(warmup_steps=3, power=2.0), lambda s, a: (max(s, 1) / 3) ** 2 * a(3) if s < 3 else a(s)),
  # Longer than the schedule: it rises to its last value.
  'linear, long': (dict(warmup_steps=20), lambda s, after: s / 20 * after(20) if s < 20 else after(s)),
}


def test_these_are_all_schedules():
  known = {field.name for field in dataclasses.fields(configs.LrConfig)} - {'type'}
  assert known == ALL.keys()


@pytest.mark.parametrize('warmup', WARM_UPS)
@pytest.mark.parametrize('kind', ALL)
def test_first_last_and_later_steps(kind, warmup):
  (fields, formula), (warmup_fields, warmed_up) = ALL[kind], WARM_UPS[warmup]
  choice = warmup.partition(',')[0]
  config = {'optimizer': {'type': 'sgd'}, 'learning_rate': {'type': kind, kind: fields}}
  if warmup_fields:
    config['warmup'] = {'type': choice, choice: warmup_fields}
  rate = optimization.OptimizerFactory(configs.OptimizationConfig(config)).build_learning_rate()
  steps = (0, 1, 2, 3, 9, 10, 11, 19, 20, 21, 500)  # 9 is the last one of 10.
  found = values(rate, steps) if callable(rate) else [rate] * len(steps)
  np.testing.assert_allclose(found, [warmed_up(step, formula) for step in steps], rtol=3e-5, atol=1e-6)
