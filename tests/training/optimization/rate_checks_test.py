"""Learning rates that cannot train are found before training; others pass."""

import official_ext  # noqa: F401

# isort: split
from official.modeling import optimization
import pytest

from official_ext.training.optimization import configs

COSINE = ('cosine', {'initial_learning_rate': 0.5, 'decay_steps': 10})


def optimizer(learning_rate, warmup=None, kind='sgd'):
  config = {'optimizer': {'type': kind}}
  for name, choice in (('learning_rate', learning_rate), ('warmup', warmup)):
    if choice:
      config[name] = {'type': choice[0], choice[0]: choice[1]}
  factory = optimization.OptimizerFactory(configs.OptimizationConfig(config))
  return factory.build_optimizer(factory.build_learning_rate())


@pytest.mark.parametrize('kind', ['sgd', 'adamw', 'adamw_experimental', 'muon'])
@pytest.mark.parametrize(
  'learning_rate, warmup, first, end',
  [
    (COSINE, ('linear', {'warmup_steps': 10}), 0, 30),
    (COSINE, ('polynomial', {'warmup_steps': 11}), 0, 10),
    (COSINE, ('linear', {'warmup_steps': 2}), 0, 1),
    (COSINE, None, 10, 12),
    (('warmup_stable_decay', {'initial_learning_rate': 1.0, 'total_decay_steps': 9}), None, 9, 10_000),
    (('cosine', {'initial_learning_rate': 0.0, 'decay_steps': 10}), None, 0, 10),
    (('constant', {'learning_rate': 0.5}), ('linear', {'warmup_steps': 2}), 0, 1),
  ],
)
def test_a_rate_of_0_at_every_step_is_found(learning_rate, warmup, first, end, kind):
  message = configs.rate_problem(optimizer(learning_rate, warmup, kind), first, end)
  assert message.startswith(f'the learning rate is 0 at each of the steps {first} to {end - 1}')


@pytest.mark.parametrize(
  'learning_rate, warmup, first, end',
  [
    (COSINE, None, 0, 10),
    (COSINE, None, 9, 12),
    (COSINE, ('linear', {'warmup_steps': 9}), 0, 2),
    (COSINE, ('linear', {'warmup_steps': 10}), 7, 7),
    (('constant', {'learning_rate': 0.5}), ('linear', {'warmup_steps': 2}), 0, 2),
    (('stepwise', {'boundaries': [7999], 'values': [0.0, 1.0]}), None, 0, 8001),
    (('constant', {'learning_rate': 0.0}), None, 0, 10),
    (('constant', {'learning_rate': 0.0}), ('linear', {'warmup_steps': 2}), 0, 10),
    (('constant', {'learning_rate': 0.0}), ('polynomial', {'warmup_steps': 2}), 0, 10),
  ],
)
def test_others_pass(learning_rate, warmup, first, end):
  assert configs.rate_problem(optimizer(learning_rate, warmup), first, end) == ''


def test_a_schedule_that_has_no_number_at_the_end_is_found():
  schedule = ('step_cosine_with_offset', {'boundaries': [0, 4], 'values': [0.5, 0.2]})
  assert configs.rate_problem(optimizer(schedule), 0, 4) == ''
  assert configs.rate_problem(optimizer(schedule), 0, 5) == 'the learning rate is nan at step 4'
