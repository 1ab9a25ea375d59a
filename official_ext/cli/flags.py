"""The flags of train.py and official-ext, and the configuration, the strategy and the task that they describe.

Some flags are Model Garden's, the others this library's. The driver makes the configuration and the task before a run
starts.
"""

from collections.abc import Sequence
import os
import re
import sys

from absl import flags
from absl import logging
from official.common import flags as tfm_flags
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import protocols
from official_ext.base.files import paths
from official_ext.cli import json_output
from official_ext.cli import train_flags
from official_ext.training.config import checks
from official_ext.training.config import definitions
from official_ext.training.config import parser
from official_ext.training.config import registries
from official_ext.training.config import short_names
from official_ext.training.devices import distribute
from official_ext.training.devices import workers
from official_ext.training.tasks import model_garden

MODES = (*checks.MODES, 'export')

# Model Garden defines these for programs that are not part of it.
_UNREAD = ('tpu_platform', 'tfhub_handle', 'tflex_output_uri')
_PATHS = ('model_dir', 'checkpoint', 'config_file', 'gin_file')
_NAMES = (
  'experiment',
  'mode',
  'model_dir',
  'config_file',
  'params_override',
  'set',
  'gin_file',
  'gin_params',
  'registry',
  'checkpoint',
  'branch',
  'dry_run',
  'json',
  'debug',
  'debug_step',
  'profile_steps',
  'tpu',
  'tf_data_service',
  *_UNREAD,
)


def define_flags() -> None:
  """Defines the flags once in a process; they are read from `absl.flags.FLAGS`."""
  if 'dry_run' in flags.FLAGS:
    return
  if 'experiment' not in flags.FLAGS:
    tfm_flags.define_flags()
  texts = {name: meaning for group in train_flags.GROUPS.values() for name, (_, meaning) in group.items()}
  flags.DEFINE_enum('mode', None, MODES, texts['mode'], allow_override=True)
  for name in ('set', 'registry'):
    flags.DEFINE_multi_string(name, None, texts[name])
  for name in ('checkpoint', 'profile_steps'):
    flags.DEFINE_string(name, None, texts[name])
  for name in ('branch', 'dry_run', 'json', 'debug'):
    flags.DEFINE_bool(name, False, texts[name])
  flags.DEFINE_integer('debug_step', None, texts['debug_step'])
  for name, meaning in texts.items():
    flags.FLAGS[name].help = meaning  # Of Model Garden's flags too.
  for name in _UNREAD:
    flags.FLAGS[name].help = 'nothing reads this flag'
  for name in _NAMES:
    # Refuses a second value of a flag that takes one; flags that take several are unaffected.
    flags.FLAGS[name].allow_overwrite = isinstance(flags.FLAGS[name], flags.MultiFlag)
    # The flags in --help.
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])


def define_for_command() -> None:
  """Defines the flags for a command, whose imports find modules of the current directory first, as train.py's do."""
  define_flags()
  if sys.path[0] != os.getcwd():
    sys.path.insert(0, os.getcwd())


def parse_flags(argv: Sequence[str]) -> list[str]:
  """Parses the command line of train.py: the `flags_parser` of `absl.app.run`.

  A mistake is printed as one line, `error: ...`, on stderr, and ends the process with status 2.

  Args:
    argv: the program's name and its arguments.

  Returns:
    The positional argument: the program's name.
  """
  try:
    return parse_for_driver(argv)
  except errors.UserError as error:
    if json_output.is_wanted(argv):
      json_output.print_error(list(errors.lines_of(error)), json_output.code_of(error))
    else:
      print(f'error: {error}', file=sys.stderr)
    sys.exit(errors.UserError.exit_status)


def parse_for_driver(argv: Sequence[str]) -> list[str]:
  """Parses the command line of train.py, and refuses one that is not whole: see `parse`.

  Raises:
    UserError: see `parse`; or a flag is missing, or one that nothing reads is given.
  """
  remaining = parse(argv)
  runs_once = flags.FLAGS.dry_run or flags.FLAGS.debug
  require(('experiment',) if runs_once else ('experiment', 'mode', 'model_dir'))
  _check_read(runs_once)
  for name in ('model_dir', 'checkpoint'):
    paths.check_utf8(flags.FLAGS[name].value or '', f'--{name}')
  return remaining


def parse(argv: Sequence[str]) -> list[str]:
  """Parses flags into `absl.flags.FLAGS`.

  Args:
    argv: the program's name and its arguments.

  Returns:
    The program's name.

  Raises:
    UserError: a flag is unknown, is given twice or does not take its value, or an argument is not a flag.
  """
  for name in _NAMES:
    # A second command line in one process must start afresh.
    flags.FLAGS[name].unparse()
  try:
    remaining = flags.FLAGS(list(argv))
  except flags.UnrecognizedFlagError as error:
    hint = errors.did_you_mean(
      error.flagname, _NAMES, '; --help lists the flags', before='; ', show=lambda flag: f'--{flag}'
    )
    if error.flagname in short_names.STANDARD or '.' in error.flagname:
      hint = f'; fields are set by --set={error.flagname}=VALUE'
    raise errors.UserError(f'--{error.flagname}: no such flag{hint}') from error
  except flags.Error as error:
    message = _one_line(str(error))
    if match := re.fullmatch(r'--\w+=(.*): value should be one of <(.*)>', message):
      message += errors.did_you_mean(match[1], match[2].split('|'), before='; ')
    raise errors.UserError(message) from error
  if len(remaining) > 1:
    raise errors.UserError(f'{remaining[1]}: not a flag; flags are written --NAME=VALUE')
  for name in _PATHS:
    flags.FLAGS[name].value = _without_tilde(flags.FLAGS[name].value, f'--{name}')
  for name in _UNREAD:
    if flags.FLAGS[name].value is not None:
      raise errors.UserError(f'--{name}: nothing reads this flag')
  return remaining


def _without_tilde(value: str | list[str] | None, source: str) -> str | list[str] | None:
  if isinstance(value, list):
    return [paths.expand_home(path, source) for path in value]
  return paths.expand_home(value, source) if value else value


def require(names: Sequence[str]) -> None:
  """Raises a UserError that names the first of the flags that is not given."""
  for name in names:
    if not flags.FLAGS[name].value:
      choices = f': one of {", ".join(MODES)}' if name == 'mode' else ''
      raise errors.UserError(f'--{name}: must be given{choices}')


def _check_read(runs_once: bool) -> None:
  """Refuses flags that nothing reads."""
  if flags.FLAGS.dry_run and flags.FLAGS.debug:
    raise errors.UserError('--debug: not together with --dry_run')
  if flags.FLAGS.debug and flags.FLAGS.json:
    raise errors.UserError('--json: not together with --debug')
  if flags.FLAGS.debug_step is not None and not flags.FLAGS.debug:
    raise errors.UserError('--debug_step: only --debug reads it')
  if flags.FLAGS.branch and (runs_once or 'train' not in flags.FLAGS.mode or not flags.FLAGS.checkpoint):
    raise errors.UserError('--branch: needs --checkpoint and a --mode that trains')
  if profile_steps() and (runs_once or 'train' not in flags.FLAGS.mode):
    raise errors.UserError('--profile_steps: needs a --mode that trains')


def profile_steps() -> tuple[int, int] | None:
  """The value of --profile_steps, None if it is not given. Raises a UserError if it is not a range of steps."""
  text = flags.FLAGS.profile_steps
  if text is None:
    return None
  numbers = re.fullmatch(r'(\d+),(\d+)', text.replace(' ', ''))
  first, last = map(int, numbers.groups()) if numbers else (0, 0)
  if not 1 <= first <= last:
    raise errors.UserError(f'--profile_steps={text}: expected the first and the last step, such as 20,29')
  return first, last


def origin(params: definitions.ExperimentConfig, experiment: str, registry: Sequence[str]) -> json_values.JsonObject:
  """The origin of the experiment, for run.json.

  Args:
    params: the configuration.
    experiment: its name.
    registry: the values of --registry.

  Returns:
    experiment, its name; registry, the modules that --registry has imported; short_names, each with its dotted path.
  """
  names = short_names.vocabulary(params, experiment)
  return {
    'experiment': experiment,
    'registry': list(registry),
    'short_names': {name: paths[0] for name, paths in names.items()},
  }


def set_verbosity() -> None:
  """Logs warnings and errors; with --verbosity=0, also TensorFlow's and Model Garden's informational messages."""
  if 'verbosity' not in flags.FLAGS or not flags.FLAGS['verbosity'].present:  # A notebook parses no flags.
    logging.set_verbosity(logging.WARNING)


def _one_line(message: str) -> str:
  """Absl's messages, as `--mode=test: value should be one of ...`."""
  message = ' '.join(message.split())
  message = re.sub(r'^flag (--\w+)=(.*): already defined as (.*)$', r'\1=\2: given twice, \3 before', message)
  return re.sub(r'^flag (--\S+)', r'\1', message)


def configuration() -> definitions.ExperimentConfig:
  """Imports the modules that register experiments, and returns the checked, locked configuration that the flags
  describe.

  Raises:
    UserError: naming all mistakes that can be found without a model.
  """
  set_verbosity()
  registries.import_experiments(flags.FLAGS.registry, flags.FLAGS.experiment)
  parser.parse_gin(flags.FLAGS.gin_file, flags.FLAGS.gin_params)
  return parser.parse_configuration(flags.FLAGS)


def strategy_and_task(
  params: definitions.ExperimentConfig, model_dir: str
) -> tuple[tf.distribute.Strategy, protocols.Task]:
  """Sets up the devices, and makes the strategy and, inside its scope, the task.

  Raises:
    UserError: the requested devices are missing, or the task refuses its configuration.
  """
  distribute.configure(params.runtime)
  strategy = distribute.get_strategy(params.runtime)
  print(f'Devices: {distribute.describe(strategy, params.runtime)}', flush=True)
  hint = distribute.float32_hint(params.runtime)
  if hint:
    print(hint, flush=True)
  with strategy.scope():
    return strategy, model_garden.make_task(params.task, logging_dir=workers.own_folder(strategy, model_dir))
