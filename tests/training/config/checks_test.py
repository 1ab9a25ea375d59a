"""Rules of classes for their fields are checked at any depth. Schedules: required fields, unfit values."""

from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar

import official_ext  # noqa: F401

# isort: split
from official.modeling import optimization
from official.modeling.multitask import configs as multitask
import pytest

from official_ext.base import errors
from official_ext.training.config import checks
from official_ext.training.config import definitions

START = 'trainer.optimizer_config.'


def make_params(learning_rate=None, warmup=None, train_steps=100):
  """An experiment; `learning_rate` and `warmup` are (type, fields)."""
  config = {'optimizer': {'type': 'sgd'}}
  for name, choice in (('learning_rate', learning_rate or ('constant', {})), ('warmup', warmup)):
    if choice:
      config[name] = {'type': choice[0], choice[0]: choice[1]}
  return definitions.ExperimentConfig(
    trainer=definitions.TrainerConfig(train_steps=train_steps, optimizer_config=definitions.OptimizationConfig(config))
  )


def decay(kind, steps, **more):
  return (kind, {'initial_learning_rate': 1.0, 'decay_steps': steps, **more})


@pytest.mark.parametrize(
  'learning_rate, warmup',
  [
    (None, None),
    (decay('cosine', 100), ('linear', {'warmup_steps': 99})),
    (decay('polynomial', 80, offset=20), ('polynomial', {'warmup_steps': 20})),
    (decay('polynomial', 10, cycle=True), None),
    (decay('exponential', 10, decay_rate=0.5), None),
    (('stepwise', {'boundaries': [50, 99], 'values': [1.0, 0.5, 0.1]}), None),
    (('power', {'initial_learning_rate': 1.0}), None),
    (decay('polynomial', None), ('polynomial', {'warmup_steps': None})),  # Refused before.
  ],
)
def test_a_schedule_that_fits_is_passed_over(learning_rate, warmup):
  assert checks.schedule_warnings(make_params(learning_rate, warmup).trainer) == []


@pytest.mark.parametrize('kind', ['cosine', 'polynomial'])
@pytest.mark.parametrize('steps, offset', [(300, 0), (90, 20), (40, 0), (40, 5)])
def test_a_decay_of_another_length_is_reported(kind, steps, offset):
  params = make_params(decay(kind, steps, offset=offset))
  (line,) = checks.schedule_warnings(params.trainer)
  assert line.startswith(f'{START}learning_rate.{kind}.decay_steps is {steps}, trainer.train_steps 100: ')
  rate = optimization.OptimizerFactory(params.trainer.optimizer_config).build_learning_rate()
  if steps + offset > 100:
    assert line.endswith('training ends before the learning rate has decayed')
    assert float(rate(100)) > float(rate(10_000)) + 1e-3
  else:
    end = steps + offset
    assert line.endswith(f'the learning rate is constant from step {end} on')
    assert float(rate(end - 1)) > float(rate(end)) == float(rate(100))


@pytest.mark.parametrize(
  'learning_rate, warmup, line',
  [
    (
      ('stepwise', {'boundaries': [50, 100], 'values': [1.0, 0.5, 0.1]}),
      None,
      'learning_rate.stepwise.boundaries is [50, 100], trainer.train_steps 100: training ends before the last of them',
    ),
    (
      ('power_linear', {'total_decay_steps': 200}),
      None,
      'learning_rate.power_linear.total_decay_steps is 200, trainer.'
      'train_steps 100: training ends before the learning rate has decayed',
    ),
    (
      None,
      ('linear', {'warmup_steps': 100}),
      'warmup.linear.warmup_steps is 100, trainer.train_steps 100: training ends before the warm-up does',
    ),
  ],
)
def test_other_lengths_are_reported(learning_rate, warmup, line):
  assert checks.schedule_warnings(make_params(learning_rate, warmup).trainer) == [START + line]


@pytest.mark.parametrize(
  'learning_rate, warmup, field',
  [
    (decay('polynomial', None), None, 'learning_rate.polynomial.decay_steps'),
    (('cosine', {'decay_steps': 5}), None, 'learning_rate.cosine.initial_learning_rate'),
    (('stepwise', {'values': [1.0]}), None, 'learning_rate.stepwise.boundaries'),
    (None, ('linear', {}), 'warmup.linear.warmup_steps'),
  ],
)
def test_what_a_schedule_cannot_do_without_must_be_set(learning_rate, warmup, field):
  params = make_params(learning_rate, warmup)
  with pytest.raises(errors.UserError, match=f'^{START}{field}: must be set$'):
    checks.check(params, 'train')
  checks.check(params, None)  # As `describe` shows it.


@pytest.mark.parametrize('kind, num_beyond', [('stepwise', 1), ('step_cosine_with_offset', 0)])
def test_a_schedule_of_pieces_has_as_many_values_as_its_boundaries_take(kind, num_beyond):
  boundaries = [10, 20]
  for num_values in (1, 2, 3):
    params = make_params((kind, {'boundaries': boundaries, 'values': [1.0, 0.5, 0.1][:num_values]}))
    if num_values == len(boundaries) + num_beyond:  # Before: those of step_cosine_with_offset were refused.
      checks.check(params, 'train')
      optimization.OptimizerFactory(params.trainer.optimizer_config).build_learning_rate()
    else:
      with pytest.raises(errors.UserError, match=f'^{START}learning_rate.{kind}.values: expected .* got {num_values}$'):
        checks.check(params, 'train')


def test_a_configuration_in_a_list_is_checked_like_one_in_a_field():
  data = definitions.DataConfig(global_batch_size=4, on_bad_example='ignore')
  routines = (multitask.TaskRoutine(task_config=definitions.TaskConfig(train_data=data)),)
  params = definitions.ExperimentConfig(task=multitask.MultiTaskConfig(task_routines=routines))
  field = 'task.task_routines.0.task_config.train_data.on_bad_example'
  with pytest.raises(errors.UserError, match=f"^{field}: 'ignore' is not one of error, skip$"):
    checks.check(params, None)
  params.task.task_routines[0].task_config.train_data.on_bad_example = 'skip'
  checks.check(params, None)


def test_the_choices_of_a_class_are_added_to_those_of_its_bases():
  # Before: they took their place, so that nothing checked on_bad_example here.
  @dataclasses.dataclass
  class Data(definitions.DataConfig):
    CHOICES: ClassVar[Mapping[str, tuple[Any, ...]]] = {'crop': ('random', 'center')}
    crop: str = 'random'

  checks.check_values(Data(crop='center', on_bad_example='skip'), 'path')
  with pytest.raises(errors.UserErrors) as info:
    checks.check_values(Data(crop='left', on_bad_example='ignore'), 'path')
  assert list(errors.lines_of(info.value)) == [
    "path.on_bad_example: 'ignore' is not one of error, skip",
    "path.crop: 'left' is not one of random, center",
  ]


def test_an_alternative_that_is_not_selected_is_not_checked():
  config = definitions.OptimizationConfig({'optimizer': {'type': 'sgd', 'stable_adamw': {'slot_dtype': 'float16'}}})
  checks.check_values(config, 'path')
  config.optimizer.type = 'stable_adamw'
  with pytest.raises(errors.UserError, match="^path.optimizer.stable_adamw.slot_dtype: 'float16' is not one of"):
    checks.check_values(config, 'path')
