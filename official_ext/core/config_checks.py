"""What an experiment's values must satisfy beyond their types."""

import re
from typing import Any, Iterator, List, Mapping, Optional, Tuple

from official.modeling.hyperparams import base_config
from official.modeling.hyperparams import params_dict
from official_ext.core import config_definitions
from official_ext.core import config_overrides
from official_ext.core import early_stopping
from official_ext.core import epochs
from official_ext.core import errors
from official_ext.core import reduce_lr_on_plateau
from official_ext.core import step_state
from official_ext.optimization import checks as optimization_checks
from official_ext.monitoring import named_writers
from official_ext.monitoring import notifications
from official_ext.monitoring import wandb_writer

TRAIN_MODES = ('train', 'train_and_eval', 'train_and_post_eval')
EVAL_MODES = ('eval', 'train_and_eval', 'continuous_eval', 'train_and_post_eval')

_AT_LEAST_ONE = (
    'trainer.steps_per_loop', 'trainer.summary_interval', 'trainer.checkpoint_interval', 'trainer.max_to_keep',
    'trainer.gradient_accumulation_steps', 'runtime.num_packs', 'runtime.worker_start_timeout_seconds',
    'runtime.worker_timeout_seconds', 'trainer.early_stopping.patience',
)
_AT_LEAST_ZERO = (
    'trainer.steps_per_execution', 'trainer.train_steps', 'trainer.train_epochs', 'trainer.validation_interval',
    'trainer.nonfinite.max_skips', 'trainer.nonfinite.max_rollbacks', 'trainer.recovery_begin_steps',
    'trainer.inspect.every',
    'trainer.continuous_eval_timeout', 'trainer.early_stopping.min_delta', 'trainer.notifications.timeout_seconds',
    'runtime.num_gpus', 'runtime.num_virtual_cpus', 'runtime.seed',
    *(f'trainer.{name}' for name in epochs.INTERVALS),
)
_CHOICES = {
    'trainer.nonfinite.then': ('stop', 'rollback'),
    'trainer.best_checkpoint_metric_comp': ('higher', 'lower'),
    'trainer.early_stopping.mode': ('auto', 'max', 'min'),
    'trainer.reduce_lr_on_plateau.mode': ('auto', 'max', 'min'),
    'trainer.wandb.mode': ('offline', 'online'),
    'runtime.distribution_strategy': (
        'auto', 'tpu', 'mirrored', 'one_device', 'multi_worker_mirrored', 'parameter_server', 'off'
    ),
    'runtime.mixed_precision_dtype': (None, 'float32', 'float16', 'bfloat16'),
    'runtime.enable_xla': (True, False, 'auto'),
}
_SEED_LIMIT = 1 << 32
_NEEDED_BY_SCHEDULES = (
    'learning_rate', 'initial_learning_rate', 'decay_steps', 'total_decay_steps', 'decay_rate', 'boundaries', 'values',
    'warmup_steps', 'maximal_learning_rate', 'step_size', 'first_decay_steps',
)


def check(params: config_definitions.ExperimentConfig, mode: Optional[str]) -> None:
  """Checks ranges, choices and what belongs together.

  Args:
    params: an upgraded experiment.
    mode: what it is to be used for, None for anything: what only matters to one mode is left out.

  Raises:
    UserError: naming the first field that is wrong.
  """
  for path in _AT_LEAST_ONE:
    _at_least(params, path, 1)
  for path in _AT_LEAST_ZERO:
    _at_least(params, path, 0)
  for path, choices in _CHOICES.items():
    value = value_at(params, path)
    if value not in choices or (isinstance(value, int) and not isinstance(value, bool)):
      raise errors.UserError(
          f'{path}: {value!r} is ' + config_overrides.not_one_of(str(value), [_as_yaml(choice) for choice in choices])
      )
  if params.runtime.seed >= _SEED_LIMIT:
    raise errors.UserError(f'runtime.seed: expected less than 2**32, got {params.runtime.seed}')
  _check_loss_spike(params.trainer.loss_spike)
  _check_loss_scale(params.runtime)
  _check_best_checkpoint(params.trainer)
  early_stopping.check(params.trainer.early_stopping)
  reduce_lr_on_plateau.check(params.trainer.reduce_lr_on_plateau)
  _check_lengths(params.trainer, mode)
  _check_data(params, mode)
  if mode is not None:
    check_complete(params, trains=mode in TRAIN_MODES)
    notifications.check(params.trainer.notifications)
    if mode in TRAIN_MODES and 'wandb' in params.trainer.writers and params.trainer.wandb.mode == 'online':
      wandb_writer.check_credentials()


def check_complete(params: config_definitions.ExperimentConfig, trains: bool = True) -> None:
  """Checks what only has to be right once the experiment is to run.

  Args:
    params: an upgraded experiment.
    trains: whether it is to train: some writers do nothing else.

  Raises:
    UserError: naming the first field that is wrong.
  """
  named_writers.check([name for name in params.trainer.writers if trains or name not in named_writers.OF_TRAINING])
  if trains and params.trainer.inspect.every and 'tensorboard' not in params.trainer.writers:
    raise errors.UserError('trainer.inspect.every: its values go to TensorBoard alone; add tensorboard to '
                           'trainer.writers, or set it to 0')
  _check_schedules(params.trainer.optimizer_config)
  optimization_checks.check(params.trainer.optimizer_config)
  check_restrictions(params)


def check_restrictions(params: base_config.Config) -> None:
  """Checks the experiment's own restrictions, such as 'task.vocab_file != None'.

  Raises:
    UserError: naming the first restriction that does not hold.
  """
  for restriction in params._restrictions:  # pylint: disable=protected-access
    try:
      params_dict.ParamsDict(params.as_dict(), [restriction]).validate()
    except KeyError as error:
      field = re.split('[=!<>]', restriction)[0].strip()
      raise errors.UserError(f'{field}: this experiment requires {restriction}') from error


def value_at(params: base_config.Config, path: str) -> Any:
  """The value at a dotted path of field names."""
  value: Any = params
  for name in path.split('.'):
    value = vars(value)[name]
  return value


def data_configs(params: base_config.Config) -> Iterator[Tuple[str, base_config.Config]]:
  """Yields the dotted path and the configuration of each training and validation data set of the task or tasks."""
  tasks = [('task', params.task)]
  for index, routine in enumerate(getattr(params.task, 'task_routines', None) or ()):
    tasks.append((f'task.task_routines.{index}.task_config', routine.task_config))
  for path, task in tasks:
    for name in ('train_data', 'validation_data'):
      data = getattr(task, name, None)
      if isinstance(data, base_config.Config):
        yield f'{path}.{name}', data


def _at_least(params: base_config.Config, path: str, least: int) -> None:
  value = value_at(params, path)
  if value is not None and not value >= least:
    raise errors.UserError(f'{path}: expected at least {least}, got {value}')


def _as_yaml(value: Any) -> str:
  return {None: 'null', True: 'true', False: 'false'}.get(value, value)


def _check_loss_scale(runtime: config_definitions.RuntimeConfig) -> None:
  scale = runtime.loss_scale
  if not (scale in (None, 'dynamic') or (isinstance(scale, float) and scale > 0)):
    raise errors.UserError(f"runtime.loss_scale: expected null, 'dynamic' or a number above 0, got {scale!r}")


def _check_loss_spike(loss_spike: config_definitions.LossSpikeConfig) -> None:
  if loss_spike.factor and loss_spike.factor <= 1:
    raise errors.UserError(
        f'trainer.loss_spike.factor: expected more than 1, or 0 for no rule, got {loss_spike.factor}')
  if not 1 <= loss_spike.window <= step_state.NUM_REMEMBERED_LOSSES:
    raise errors.UserError(
        f'trainer.loss_spike.window: expected 1 to {step_state.NUM_REMEMBERED_LOSSES}, got {loss_spike.window}')


def _check_best_checkpoint(trainer: config_definitions.TrainerConfig) -> None:
  subdir, metric = 'best_checkpoint_export_subdir', 'best_checkpoint_eval_metric'
  for given, needed in ((subdir, metric), (metric, subdir)):
    if getattr(trainer, given) and not getattr(trainer, needed):
      raise errors.UserError(f'trainer.{needed}: must be set too, as trainer.{given} is')


def _check_lengths(trainer: config_definitions.TrainerConfig, mode: Optional[str]) -> None:
  if trainer.validation_steps == 0 or trainer.validation_steps < -1:
    raise errors.UserError(
        f'trainer.validation_steps: expected a number above 0, or -1 for all, got {trainer.validation_steps}'
    )
  if trainer.train_steps and trainer.train_epochs:
    raise errors.UserError(
        f'trainer.train_epochs: set either trainer.train_steps ({trainer.train_steps}) or trainer.train_epochs '
        f'({trainer.train_epochs}), not both'
    )
  if mode in TRAIN_MODES and not (trainer.train_steps or trainer.train_epochs):
    raise errors.UserError(f'trainer.train_steps: is 0, and mode {mode} trains; set it, or trainer.train_epochs')
  if mode == 'train_and_eval' and trainer.validation_interval < 1 and not trainer.validation_interval_epochs:
    raise errors.UserError(f'trainer.validation_interval: expected at least 1, got {trainer.validation_interval}')


def _check_data(params: base_config.Config, mode: Optional[str]) -> None:
  """Batch sizes are above 0 where the mode reads the data. A zero beside no data at all is left to the task."""
  for path, data in data_configs(params):
    if isinstance(data, config_definitions.DataConfig) and data.on_bad_example not in ('error', 'skip'):
      raise errors.UserError(f'{path}.on_bad_example: expected error or skip, got {data.on_bad_example!r}')
    size = vars(data).get('global_batch_size')
    used = mode in (TRAIN_MODES if path.endswith('train_data') else EVAL_MODES)
    has_source = vars(data).get('input_path') or vars(data).get('tfds_name')
    has_source = has_source or isinstance(data, config_definitions.DataConfig)
    if size is not None and (size < 0 or (size == 0 and used and has_source)):
      raise errors.UserError(f'{path}.global_batch_size: expected at least 1, got {size}')


def _selected_schedules(optimizer_config: base_config.Config) -> Iterator[Tuple[str, str, Mapping[str, Any]]]:
  """Yields the dotted path, the type and the fields of the learning rate's schedule and of its warm-up."""
  for name in ('learning_rate', 'warmup'):
    choice: Any = vars(optimizer_config).get(name)
    if choice is not None and choice.type is not None:
      yield f'trainer.optimizer_config.{name}.{choice.type}', choice.type, choice.get().as_dict()


def _check_schedules(optimizer_config: base_config.Config) -> None:
  """Model Garden has no default for these, and fails later, in its own arithmetic."""
  for path, _, schedule in _selected_schedules(optimizer_config):
    for name in _NEEDED_BY_SCHEDULES:
      if name in schedule and schedule[name] is None:
        raise errors.UserError(f'{path}.{name}: must be set')


def schedule_warnings(params: config_definitions.ExperimentConfig) -> List[str]:
  """Tells where the schedule of the learning rate was made for another length of training.

  Model Garden's schedules do not follow `train_steps`: a shorter run ends in the middle of the decay, a longer one goes
  on where the learning rate no longer changes, which often is 0.

  Args:
    params: an experiment whose `train_epochs`, if any, is resolved.

  Returns:
    One line for each field that does not fit.
  """
  train_steps = params.trainer.train_steps
  lines = []
  for path, kind, schedule in _selected_schedules(params.trainer.optimizer_config):
    for name, value in schedule.items():
      consequence = _misfit(kind, name, value, schedule, train_steps)
      if consequence:
        lines.append(f'{path}.{name} is {value}, trainer.train_steps {train_steps}: {consequence}')
  return lines


def _misfit(kind: str, field: str, value: Any, schedule: Mapping[str, Any], train_steps: int) -> str:
  """What follows from a schedule's field that does not fit the length of training; empty where it fits."""
  if not value:
    return ''
  offset = schedule.get('offset') or 0
  if field == 'warmup_steps' and value >= train_steps:
    return 'training ends before the warm-up does'
  if field == 'boundaries' and value[-1] + offset >= train_steps:
    return 'training ends before the last of them'
  if field not in ('decay_steps', 'total_decay_steps') or kind == 'exponential':  # There decay_steps is no length.
    return ''
  if value + offset > train_steps:
    return 'training ends before the learning rate has decayed'
  if value + offset < train_steps and not schedule.get('cycle'):
    return f'the learning rate stays as it is from step {value + offset} on'
  return ''
