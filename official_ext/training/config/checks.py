"""Checks an experiment's values beyond their types, and the files and folders that they name.

A configuration class states its own conditions, at any depth:

  RANGES                            field -> the interval of its numbers: see ranges.py
  CHOICES                           field -> the values that it takes
  check_values(path)                combinations of fields
  check_run(path, params, mode)     requirements of a run: other parts, the environment, installed packages
  check_given(path, params, given)  which fields may be set at all: `given` are the dotted paths on the command line
  unread_now(path, params)          fields that this configuration does not read: dotted path -> reason; for forms
  unset_entries(path, params)       dotted paths of the entries that its mappings may have and lack; for forms

The methods raise a UserError that begins with a field's dotted path; `path` is the configuration's. `check_run` is
called before `params` are used in a mode; None is a rehearsal, which trains and sends no messages.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
import os
import re
import socket
import threading
from typing import Any

from official.modeling.hyperparams import base_config
from official.modeling.hyperparams import params_dict
import tensorflow as tf

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import model_garden_internals
from official_ext.base import protocols
from official_ext.base import safe_text
from official_ext.base.files import paths
from official_ext.base.run_folder import metric_direction
from official_ext.data import config_fields
from official_ext.data import input_files
from official_ext.training.config import definitions
from official_ext.training.config import overrides
from official_ext.training.config import ranges
from official_ext.training.optimization import configs as configs_lib
from official_ext.training.writers import builtin

_MAX_NAME = 255  # Bytes, on common file systems.
_MAX_PATH = 4000  # Of 4096 on Linux: files of a run add to the path.
_SCHEME = re.compile(r'([A-Za-z][\w+.-]*)://')
_CONNECT_SECONDS = 5.0
_GCS = ('storage.googleapis.com', 443)
_PROXIES = ('https_proxy', 'HTTPS_PROXY', 'all_proxy', 'ALL_PROXY')
_OF_DOWNLOADS = ('http', 'https', 'ftp', 'hf')
_SYNTHETIC = 'dummy'  # Model Garden's value for generated data.

# Fields of tasks and of their data that hold the name of a file to read.
_FILES = ('vocab_file', 'vocab_file_path', 'sentencepiece_model_path', 'annotation_file', 'chat_template_path')
_FILES_OF_EVALUATION = ('annotation_file',)
# The files that a run itself writes into its folder.
_TAKEN = re.compile(
  r'train|wandb|mlruns|mlflow\.db|mlartifacts|ema_checkpoints|checkpoint|plugins|'
  r'(ckpt-|params\.|run\.|events\.|operative_config\.|started\.|stop\.|notes\.).*'
)


def check_path(path: str, field: str) -> None:
  """Makes sure that a path can name a file or folder, and that its file system is reachable.

  Args:
    path: a path to read or write.
    field: the flag or dotted path whose value it is.

  Raises:
    UserError: no file system would accept it, or TensorFlow does not know or cannot reach its file system.
  """
  if '\0' in path:
    raise errors.UserError(f'{field}: {config_text.shortened(path)} has a character of code 0, which no path has')
  for name in path.split('/'):
    if len(os.fsencode(name)) > _MAX_NAME:
      raise errors.UserError(
        f'{field}: {config_text.shortened(name)} has {len(os.fsencode(name))} letters, and names of '
        f'files have {_MAX_NAME} at most'
      )
  if len(os.fsencode(path)) > _MAX_PATH:
    raise errors.UserError(
      f'{field}: {config_text.shortened(path)} has {len(os.fsencode(path))} letters; {_MAX_PATH} are possible'
    )
  _check_file_system(path, field)


def _check_file_system(path: str, field: str) -> None:
  match = _SCHEME.match(path)
  if match is None or match.group(1) == 'file':
    return
  scheme = match.group(1)
  if scheme not in tf.io.gfile.get_registered_schemes():
    if scheme.lower() in _OF_DOWNLOADS:
      raise errors.UserError(
        f'{field}: {path}: files are read from local paths and gs://, and not from {scheme}://; download it first'
      )
    raise errors.UserError(
      f'{field}: {path}: TensorFlow has no file system for {scheme}:// here; one is added by a package such as '
      'tensorflow-io, imported by --registry=tensorflow_io'
    )
  if scheme == 'gs' and not any(map(os.environ.get, _PROXIES)) and not _can_connect(_GCS):
    raise errors.UserError(f'{field}: {path}: {_GCS[0]} cannot be reached from here')


def _can_connect(address: tuple[str, int]) -> bool:
  """Whether a server answers at the address. TensorFlow would try for 20 seconds and more."""
  connected: list[bool] = []

  def connect():
    try:
      socket.create_connection(address, _CONNECT_SECONDS).close()
      connected.append(True)
    except OSError:
      pass

  thread = threading.Thread(target=connect, daemon=True)  # Looking up a name has no time limit.
  thread.start()
  thread.join(_CONNECT_SECONDS)
  return bool(connected)


def check_subdirs(trainer: definitions.TrainerConfig) -> None:
  """Makes sure that the folders named in a configuration are inside the run's folder, and apart from each other.

  Raises:
    UserError: one is outside the run's folder, is not a plain name, or is used for something else.
  """
  names = ('validation_summary_subdir', 'best_checkpoint_export_subdir')
  with errors.Mistakes() as mistakes:
    for name in names:
      with mistakes.noted():
        if getattr(trainer, name) or name == 'validation_summary_subdir':  # The best checkpoints may be turned off.
          _check_subdir(getattr(trainer, name), f'trainer.{name}')
    with mistakes.noted():
      validation, best = (os.path.normpath(getattr(trainer, name) or f'no {name}') for name in names)
      if f'{validation}/'.startswith(f'{best}/') or f'{best}/'.startswith(f'{validation}/'):
        raise errors.UserError(f'trainer.{names[1]}: {best} and trainer.{names[0]}, {validation}, share a folder')


def _check_subdir(subdir: str, field: str) -> None:
  if not subdir:
    raise errors.UserError(f"{field}: is empty; expected the name of a folder inside of the run's")
  check_path(subdir, field)
  parts = subdir.split('/')
  if {'', '.', '..'} & set(parts[:-1] if subdir.endswith('/') and subdir != '/' else parts) or subdir.startswith('~'):
    raise errors.UserError(
      f"{field}: {config_text.shortened(subdir)} is not a plain name of a folder inside of the run's"
    )
  if not subdir.isprintable() or '\\' in subdir:
    raise errors.UserError(f'{field}: {config_text.shortened(subdir)} has characters that no name of a folder should')
  if _TAKEN.fullmatch(parts[0]):
    raise errors.UserError(f'{field}: {subdir}: {parts[0]} in the folder of a run belongs to something else')


def check_inputs(
  params: definitions.ExperimentConfig,
  data: Iterable[tuple[str, base_config.Config]],
  evaluates: bool,
  checkpoint: str | None = None,
) -> None:
  """Makes sure that the files that a run reads exist.

  Args:
    params: an upgraded experiment.
    data: the dotted paths and configurations of the data sets that are read.
    evaluates: whether the run evaluates.
    checkpoint: --checkpoint.

  Raises:
    UserError: naming all that are missing.
  """
  with errors.Mistakes() as mistakes:
    for path, config in data:
      if 'input_path' not in overrides.unread_fields(type(config)):
        for pattern in input_files.input_patterns(vars(config).get('input_path')):
          mistakes.check(_check_pattern, pattern, f'{path}.input_path')
    for path, value in _files(params, [path for path, _ in data], evaluates):
      with mistakes.noted():
        check_path(value, path)
        if not _exists(value, path):
          raise errors.UserError(f'{path}: {value}: No such file or directory')
    for field, given in (('task.init_checkpoint', params.task.init_checkpoint), ('--checkpoint', checkpoint)):
      if isinstance(given, str):
        mistakes.check(check_path, given, field)


def _check_pattern(pattern: str, field: str) -> None:
  if pattern == _SYNTHETIC:
    return
  check_path(pattern, field)
  if not _SCHEME.match(pattern) or pattern.startswith(('gs://', 'file://')):
    if not (_exists(pattern, field) or re.search(r'[*?\[{]', pattern) and _matches(pattern, field)):
      is_pattern = re.search(r'[*?\[{]', pattern)
      raise errors.UserError(
        f'{field}: {pattern}: ' + ('no file matches this pattern' if is_pattern else 'No such file or directory')
      )


def _exists(path: str, field: str) -> bool:
  try:
    return tf.io.gfile.exists(path)
  except tf.errors.OpError as error:
    raise _unreadable(path, field, error) from error


def _matches(pattern: str, field: str) -> bool:
  try:
    return bool(input_files.matching_files(pattern))
  except tf.errors.OpError as error:
    raise _unreadable(pattern, field, error) from error
  except errors.UserError as error:
    raise errors.UserError(f'{field}: {error}') from error


def _unreadable(path: str, field: str, error: tf.errors.OpError) -> errors.UserError:
  return errors.UserError(f'{field}: {path}: cannot be read: {" ".join(str(error.message).split())}')


def _files(params: definitions.ExperimentConfig, data_paths: list[str], evaluates: bool) -> Iterator[tuple[str, str]]:
  """The dotted path and the value of each field of the task that names a file to be read."""
  for field in overrides.leaves(params.task, 'task'):
    owner, _, name = field.path.rpartition('.')
    is_data = owner.rpartition('.')[2] in ('train_data', 'validation_data')
    is_read = owner in data_paths if is_data else evaluates or name not in _FILES_OF_EVALUATION
    if name in _FILES and is_read and isinstance(field.value, str) and field.value:
      yield field.path, field.value


TRAIN_MODES = ('train', 'train_and_eval', 'train_and_post_eval')
MODES = ('train', 'eval', 'train_and_eval', 'continuous_eval', 'train_and_post_eval')
EVAL_MODES = ('eval', 'train_and_eval', 'continuous_eval', 'train_and_post_eval')

_NEEDED_BY_SCHEDULES = (
  'learning_rate',
  'initial_learning_rate',
  'decay_steps',
  'total_decay_steps',
  'decay_rate',
  'boundaries',
  'values',
  'warmup_steps',
  'maximal_learning_rate',
  'step_size',
  'first_decay_steps',
)
# How many more values than boundaries these schedules take. In others, they may mean something else.
_VALUES_BEYOND_BOUNDARIES = {'stepwise': 1, 'step_cosine_with_offset': 0}


def check(params: definitions.ExperimentConfig, mode: str | None) -> None:
  """Checks ranges, choices and combinations, see the module's docstring, and rules across classes.

  Args:
    params: an upgraded experiment.
    mode: of its use. None: only the rules of all modes are checked, and no `check_run`.

  Raises:
    UserError: naming all fields that are wrong.
  """
  with errors.Mistakes() as mistakes:
    mistakes.check(check_values, params)
    mistakes.check(check_subdirs, params.trainer)
    mistakes.check(_check_lengths, params.trainer, mode)
    mistakes.check(_check_batch_sizes, params, mode)
    mistakes.check(_check_evaluation_ends, params, mode)
    mistakes.check(_check_unmasked, params, mode)
    mistakes.check(_check_utf8, params)
    if mode is not None:
      mistakes.check(check_complete, params, mode)


def _stated(config: base_config.Config, name: str) -> list[Callable[..., Any]]:
  """The method in which a configuration states a rule, in a list; [] if its class has none, as Model Garden's."""
  return [getattr(config, name)] if hasattr(config, name) else []


def check_values(config: base_config.Config, path: str = '') -> None:
  """Checks the rules of classes in RANGES, CHOICES and `check_values`, at all depths of a configuration.

  Args:
    config: the configuration.
    path: its dotted path.

  Raises:
    UserError: naming all fields that are wrong.
  """
  with errors.Mistakes() as mistakes:
    mistakes.check(ranges.check, config, path)
    for part_path, part in configs(config, path):
      mistakes.check(_check_choices, part_path, part)
      mistakes.check(configs_lib.check_clipping, part_path, part)
      for check in _stated(part, 'check_values'):
        mistakes.check(check, part_path)


def unread_now(params: base_config.Config) -> dict[str, str]:
  """The classes' `unread_now`: dotted paths of fields that are not read with these `params`, and the reasons."""
  found: dict[str, str] = {}
  for path, part in configs(params):
    for state in _stated(part, 'unread_now'):
      found.update(state(path, params))
  return found


def unset_entries(params: base_config.Config) -> list[str]:
  """The results of the classes' `unset_entries`: the dotted paths of entries that mappings may have, and have not."""
  found: list[str] = []
  for path, part in configs(params):
    for state in _stated(part, 'unset_entries'):
      found += state(path, params)
  return found


def check_given(params: base_config.Config, given: Collection[str]) -> None:
  """Checks that the fields that the command line sets may be set, as classes state it in `check_given`.

  Args:
    params: an upgraded experiment, with all that was set.
    given: the dotted paths of the fields that --set and --params_override name.

  Raises:
    UserError: naming all fields that may not.
  """
  with errors.Mistakes() as mistakes:
    for path, part in configs(params):
      for check in _stated(part, 'check_given'):
        mistakes.check(check, path, params, given)


def _check_unmasked(params: definitions.ExperimentConfig, mode: str | None) -> None:
  """Refuses the mask of a password: params.yaml holds no passwords, so they must be given again before a run."""
  for field in overrides.leaves(params) if mode in TRAIN_MODES else ():
    if isinstance(field.value, str) and safe_text.is_masked(field.value):
      raise errors.UserError(
        f'{field.path}: {field.value}: the value behind {safe_text.MASK} is left out of '
        'params.yaml; give it again, by --set'
      )


def _check_utf8(params: definitions.ExperimentConfig) -> None:
  """Refuses text with bytes of the command line that are not UTF-8: neither YAML nor TensorFlow's files can hold it."""
  for field in overrides.leaves(params):
    if isinstance(field.value, str):
      paths.check_utf8(field.value, field.path)


def configs(config: base_config.Config, path: str = '') -> Iterator[tuple[str, base_config.Config]]:
  """Yields the dotted paths and configurations of all that are inside one, at any depth, itself first.

  Skips the alternatives that a OneOfConfig does not select.
  """
  if path:
    yield path, config
  for field in overrides.walk(config, path):
    yield from field.parts()


def choices_of(config_class: type[base_config.Config]) -> Mapping[str, tuple[object, ...]]:
  """The choices of a configuration class's fields, including its bases, as for ranges."""
  found: dict[str, tuple[object, ...]] = {}
  for cls in reversed(config_class.__mro__):
    found.update(vars(cls).get('CHOICES', {}))
  return found


def _check_choices(path: str, config: base_config.Config) -> None:
  with errors.Mistakes() as mistakes:
    for name, choices in choices_of(type(config)).items():
      value = vars(config)[name]
      with mistakes.noted():
        if value not in choices or json_values.is_int(value):
          hint = overrides.not_one_of(str(value), [_as_yaml(choice) for choice in choices])
          raise errors.UserError(f'{path}.{name}: {value!r} is {hint}')


def check_files(
  params: definitions.ExperimentConfig,
  mode: str | None,
  model_dir: str | None = None,
  checkpoint: str | None = None,
) -> None:
  """Checks that the files and folders of a run exist, or can be made.

  Args:
    params: an upgraded experiment.
    mode: of its use, None for everything.
    model_dir: --model_dir.
    checkpoint: --checkpoint.

  Raises:
    UserError: naming all that do not exist and cannot be made.
  """
  used = [(path, data) for path, data in data_configs(params.task) if mode is None or _is_used(path, mode)]
  with errors.Mistakes() as mistakes:
    if model_dir:
      mistakes.check(check_path, model_dir, '--model_dir')
    mistakes.check(check_inputs, params, used, mode is None or mode in EVAL_MODES, checkpoint)


def check_replicas(task_config: base_config.Config, mode: str, num_replicas: int, task: protocols.Task) -> None:
  """Checks that replicas can share the batches of Model Garden's tasks; others may share them in their own way.

  Args:
    task_config: the configuration of the task.
    mode: of its use.
    num_replicas: of the strategy.
    task: the experiment's task.

  Raises:
    UserError: naming all batch sizes that they cannot share.
  """
  if not type(task).__module__.startswith('official.'):
    return
  with errors.Mistakes() as mistakes:
    for path, data in data_configs(task_config):
      size = vars(data).get('global_batch_size')
      if _is_used(path, mode) and size and size % num_replicas:
        with mistakes.noted():
          raise batch_that_cannot_be_shared(path, size, num_replicas)


def batch_that_cannot_be_shared(path: str, size: int, num_replicas: int) -> errors.UserError:
  """The error about a data set whose batch size is not a multiple of the number of replicas."""
  near = [
    str(multiple)
    for multiple in (size // num_replicas * num_replicas, -(-size // num_replicas) * num_replicas)
    if multiple
  ]
  return errors.UserError(
    f'{path}.global_batch_size: {size} examples cannot be shared by {num_replicas} replicas; {" or ".join(near)} can'
  )


def _is_used(path: str, mode: str | None) -> bool:
  """Whether a mode reads a data set."""
  return mode in (TRAIN_MODES if path.endswith('train_data') else EVAL_MODES)


def check_complete(params: definitions.ExperimentConfig, mode: str | None = None) -> None:
  """Checks the rules for running an experiment.

  Args:
    params: an upgraded experiment.
    mode: of its use. None: a rehearsal, which trains.

  Raises:
    UserError: naming all fields that are wrong.
  """
  trains = mode is None or mode in TRAIN_MODES
  with errors.Mistakes() as mistakes:
    mistakes.check(
      builtin.check, [name for name in params.trainer.writers if trains or name not in builtin.OF_TRAINING]
    )
    for path, config in configs(params):
      for check in _stated(config, 'check_run'):
        mistakes.check(check, path, params, mode)
    mistakes.check(_check_schedules, params.trainer.optimizer_config)
    mistakes.check(check_restrictions, params)


def check_restrictions(params: base_config.Config) -> None:
  """Checks the experiment's own restrictions, such as 'task.vocab_file != None'.

  Raises:
    UserError: naming all restrictions that do not hold.
  """
  with errors.Mistakes() as mistakes:
    for restriction in model_garden_internals.restrictions_of(params):
      with mistakes.noted():
        try:
          params_dict.ParamsDict(params.as_dict(), [restriction]).validate()
        except KeyError as error:
          field = re.split('[=!<>]', restriction)[0].strip()
          raise errors.UserError(f'{field}: this experiment requires {restriction}') from error


def data_configs(task_config: base_config.Config) -> Iterator[tuple[str, base_config.Config]]:
  """Yields the dotted path and the configuration of each training and validation data set of the task or tasks."""
  tasks = [('task', task_config)]
  for index, routine in enumerate(vars(task_config).get('task_routines') or ()):
    tasks.append((f'task.task_routines.{index}.task_config', routine.task_config))
  for path, task in tasks:
    for name in ('train_data', 'validation_data'):
      data = config_fields.data_of(task, name)
      if isinstance(data, base_config.Config):
        yield f'{path}.{name}', data


def check_data_service(params: base_config.Config) -> None:
  """Checks that some data are taken from a tf.data service, whose address the command line gives.

  Raises:
    UserError: none are. Data that never could be have refused the address themselves.
  """
  name = 'enable_tf_data_service'
  data = dict(data_configs(params.task))
  able = {path: each for path, each in data.items() if name in vars(each)}
  if not able:
    raise errors.UserError('--tf_data_service: this experiment has no data that could come from there; leave it out')
  unread = {path for path, each in able.items() if name in overrides.unread_fields(type(each))}
  if not unread and not any(getattr(each, name) for each in able.values()):
    flag = f'--set={next(iter(able))}.{name}=true'
    raise errors.UserError(f'--tf_data_service: nothing is read from there; give {flag} as well, or leave it out')


def _as_yaml(value: Any) -> str:
  return {None: 'null', True: 'true', False: 'false'}.get(value, value)


def _check_lengths(trainer: definitions.TrainerConfig, mode: str | None) -> None:
  if mode in TRAIN_MODES and not (trainer.train_steps or trainer.train_epochs):
    raise errors.UserError(f'trainer.train_steps: is 0, and mode {mode} trains; set it, or trainer.train_epochs')
  if mode == 'train_and_eval' and trainer.validation_interval < 1 and not trainer.validation_interval_epochs:
    raise errors.UserError(f'trainer.validation_interval: expected at least 1, got {trainer.validation_interval}')


def _check_evaluation_ends(params: definitions.ExperimentConfig, mode: str | None) -> None:
  """Refuses to evaluate all of data that are read as for training, where they repeat for ever."""
  data = config_fields.of_data(config_fields.of_task(params.task).validation_data)
  if mode in EVAL_MODES and params.trainer.validation_steps == -1 and data.is_training:
    raise errors.UserError(
      'task.validation_data.is_training: is true, so that the data repeat, and trainer.validation_steps=-1 evaluates '
      'all of them; set it to false, or set trainer.validation_steps'
    )


def _check_batch_sizes(params: base_config.Config, mode: str | None) -> None:
  """Checks that batch sizes are above 0, if the mode reads the data. A zero without any data source is left to the
  task."""
  with errors.Mistakes() as mistakes:
    for path, data in data_configs(params.task):
      mistakes.check(_check_batch_size, path, data, mode)


def _check_batch_size(path: str, data: base_config.Config, mode: str | None) -> None:
  size = vars(data).get('global_batch_size')
  has_source = vars(data).get('input_path') or vars(data).get('tfds_name')
  has_source = has_source or isinstance(data, definitions.DataConfig)
  if size is not None and (size < 0 or (size == 0 and _is_used(path, mode) and has_source)):
    raise errors.UserError(f'{path}.global_batch_size: expected at least 1, got {size}')


def _selected_schedules(optimizer_config: base_config.Config) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
  """Yields the dotted path, the type and the fields of the learning rate's schedule and of its warm-up."""
  for name in ('learning_rate', 'warmup'):
    choice: Any = vars(optimizer_config).get(name)
    if choice is not None and choice.type is not None:
      yield f'trainer.optimizer_config.{name}.{choice.type}', choice.type, choice.get().as_dict()


def _check_schedules(optimizer_config: base_config.Config) -> None:
  """Model Garden's schedules: it has no default for some fields, and fails later, in its own arithmetic."""
  with errors.Mistakes() as mistakes:
    for path, kind, schedule in _selected_schedules(optimizer_config):
      for name in _NEEDED_BY_SCHEDULES:
        with mistakes.noted():
          if name in schedule and schedule[name] is None:
            raise errors.UserError(f'{path}.{name}: must be set')
      with mistakes.noted():
        if kind in _VALUES_BEYOND_BOUNDARIES:
          _check_pieces(schedule['boundaries'], schedule['values'], _VALUES_BEYOND_BOUNDARIES[kind], path)


def _check_pieces(boundaries: Sequence[int] | None, values: Sequence[float] | None, num_beyond: int, path: str) -> None:
  if boundaries is None or values is None:  # _NEEDED_BY_SCHEDULES reports them if they must be set.
    return
  if any(first >= second for first, second in zip(boundaries, boundaries[1:])):
    raise errors.UserError(f'{path}.boundaries: expected steps that increase, got {list(boundaries)}')
  expected = len(boundaries) + num_beyond
  if len(values) != expected:
    raise errors.UserError(
      f'{path}.values: expected {expected} of them for {len(boundaries)} boundaries, got {len(values)}'
    )


def direction_warnings(config: definitions.TrainerConfig) -> list[str]:
  """Reports what is assumed of the best checkpoint's metric if its name does not imply which values are better."""
  metric, field = config.best_checkpoint_eval_metric, 'trainer.best_checkpoint_metric_comp'
  if not (metric and config.best_checkpoint_export_subdir) or config.best_checkpoint_metric_comp != 'auto':
    return []
  if metric_direction.direction(metric) is not None:
    return []
  assumed = metric_direction.comparison(metric, 'auto')
  return [
    f'{field}: the name {metric} does not imply whether higher or lower is better, and {assumed} is assumed; set it to '
    'higher or lower'
  ]


def schedule_warnings(config: definitions.TrainerConfig) -> list[str]:
  """Reports which fields of the schedule were made for another length of training, and of a constant rate of 0.

  Model Garden's schedules do not follow `train_steps`: a shorter run ends in the middle of the decay, a longer one goes
  on at a learning rate that no longer changes, which often is 0.

  Args:
    config: of a trainer whose `train_epochs`, if any, is resolved.

  Returns:
    One line for each field that does not fit.
  """
  train_steps = config.train_steps
  lines = []
  for path, kind, schedule in _selected_schedules(config.optimizer_config):
    for name, value in schedule.items():
      consequence = _misfit(kind, name, value, schedule, train_steps)
      if consequence:
        lines.append(f'{path}.{name} is {value}, trainer.train_steps {train_steps}: {consequence}')
  return lines


def _misfit(kind: str, field: str, value: Any, schedule: Mapping[str, Any], train_steps: int) -> str:
  """The effect of a schedule's field that does not fit the length of training; empty if it fits."""
  if (kind, field, value) == ('constant', 'learning_rate', 0):
    return 'no weight will change'
  if not value:
    return ''
  offset = schedule.get('offset') or 0
  if field == 'warmup_steps' and value >= train_steps:
    return 'training ends before the warm-up does'
  if field == 'boundaries' and value[-1] + offset >= train_steps:
    return 'training ends before the last of them'
  if field not in ('decay_steps', 'total_decay_steps') or kind == 'exponential':  # There decay_steps is not a length.
    return ''
  if value + offset > train_steps:
    return 'training ends before the learning rate has decayed'
  if value + offset < train_steps and not schedule.get('cycle'):
    return f'the learning rate is constant from step {value + offset} on'
  return ''
