"""official-ext list, describe, new, check, preview, data_service: they parse their arguments, then import TensorFlow.

`ExperimentCache` keeps the results of `list` and `describe`: importing all experiments takes seconds. It is valid as
long as its sources are unchanged: the files of all imported modules, other files that were opened and folders that were
listed meanwhile, the modules in the search path, installed packages, Python, the current directory, the arguments. An
environment variable that a registry reads is not among them.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
import hashlib
import importlib
import importlib.metadata
import json
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import package_imports
from official_ext.base import safe_text
from official_ext.base.files import cache
from official_ext.base.files import paths
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import json_output
from official_ext.cli import new_settings

if TYPE_CHECKING:
  from official_ext.training.config import definitions

_SUFFIXES = ('.py', '.so', '.pth', '.egg-link', '.dist-info', '.egg-info')


class ExperimentCache:
  """The lines of a command with some arguments, in this environment and directory."""

  def __init__(self, command: str, arguments: Sequence[str]):
    """Records the files opened and the folders listed from now on. Make it before anything is imported.

    Args:
      command: its name.
      arguments: of the command. They may name no files: TensorFlow would open them without this function's knowledge.
    """
    # If a registry is in memory already, reading it is cheap, and it may have more than a new process finds.
    self._is_fresh = 'official' not in sys.modules
    key = [2, sys.version, sys.prefix, os.getcwd(), sys.path, list(arguments), os.path.dirname(__file__)]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    self._path = os.path.join(cache.root(), f'{command}-{name}.json')
    self._folders: set[str] = {os.path.abspath(folder) for folder in sys.path}
    self._files: set[str] = set()
    # Computed now: inside the hook, this would open files itself.
    temporary = os.path.join(tempfile.gettempdir(), 'tmp')
    self._left_out = (sys.prefix, sys.base_prefix, '/proc/', '/sys/', '/dev/', temporary)

  def read(self) -> list[str] | None:
    """Returns the lines; None if none were kept, or if something has changed since."""
    if not self._is_fresh:
      return None
    try:
      content = json_values.load_file(self._path)
      holds = all(_state_of_file(path) == state for path, state in content['states'].items())
      return [str(line) for line in content['lines']] if holds else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
      return None

  def watch(self) -> None:
    """Starts to note which files are opened and which folders are listed."""
    if self._is_fresh:
      sys.addaudithook(self._hear)

  def write(self, lines: Sequence[str], entry_points: str) -> None:
    """Keeps the lines, if a new process would find the same. It is not an error if they cannot be kept.

    Args:
      lines: the lines that were read.
      entry_points: the group of entry points that register experiments.
    """
    modules = {point.value.partition(':')[0] for point in importlib.metadata.entry_points(group=entry_points)}
    if not self._is_fresh or not modules <= sys.modules.keys():  # One has failed, which must be reported again.
      return
    files = set(self._files)
    for module in list(sys.modules.values()):
      path = package_imports.file_of_module(module)
      if isinstance(path, str):
        files.add(path)
        if not path.startswith((sys.prefix, sys.base_prefix)):
          self._folders.add(os.path.dirname(path))
    states = {path: _state_of_file(path) for path in [*files, *self._folders]}
    try:
      os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
      paths.write_atomically(self._path, json.dumps({'states': states, 'lines': list(lines)}).encode(), sync=False)
    except OSError:
      pass

  def _hear(self, event, arguments):
    if event not in ('open', 'os.listdir', 'os.scandir') or not isinstance(arguments[0], (str, bytes, os.PathLike)):
      return
    path = os.path.abspath(os.fsdecode(arguments[0]))
    if path.startswith(self._left_out):
      return
    if event != 'open':
      self._folders.add(path)
    elif not path.endswith('.pyc') and not _is_written(arguments):
      self._files.add(path)


def _is_written(arguments) -> bool:
  mode, flags = arguments[1], arguments[2]
  return bool(isinstance(mode, str) and set(mode) & set('wax+')) or bool(flags & (os.O_WRONLY | os.O_RDWR))


def _state_of_file(path: str) -> object:
  """JSON values that change if a file or folder changes; None if it does not exist."""
  try:
    stat = os.stat(path)
    if not os.path.isdir(path):
      return [stat.st_mtime_ns, stat.st_size]
    entries: dict[str, int] = {}
    with os.scandir(path) as found:
      for entry in found:
        if entry.name.endswith('-info'):  # Another installation makes another file.
          entries[entry.name] = entry.stat().st_mtime_ns
        elif entry.name.endswith(_SUFFIXES) or (entry.is_dir() and not entry.name.startswith(('.', '__'))):
          entries[entry.name] = 0
    return hashlib.sha256(json.dumps(sorted(entries.items())).encode()).hexdigest()
  except OSError:
    return None


def run_list(arguments: list[str]) -> None:
  """Runs `official-ext list ARGUMENTS`."""
  parser = arguments_lib.Parser(
    'official-ext list',
    'Prints the name of each registered experiment, and the first line of its docstring: those of registry_imports.py, '
    'of installed packages with an entry point official_ext.experiments, of --registry, of this library and of Model '
    'Garden. The list is cached until a '
    'file that was read changes or a package is installed.',
    takes_flags=True,
  )
  parser.add_argument(json_output.FLAG, action='store_true', help='print JSON')
  arguments_lib.add_experiment_flags(parser, ['registry'])
  options, flags = _flags_of(parser, arguments)
  module = 'official_ext.cli.describe'
  if options.json:
    make = lambda: [json.dumps(json_output.masked(importlib.import_module(module).experiment_documents()))]
  else:
    make = lambda: importlib.import_module(module).experiment_lines()
  _print_cached('list', [*flags, *[json_output.FLAG] * options.json], flags, make, options.json)


def run_describe(arguments: list[str]) -> None:
  """Runs `official-ext describe ARGUMENTS`."""
  parser = _parser('describe', "Prints every field of an experiment's configuration.")
  forms = parser.add_mutually_exclusive_group()
  forms.add_argument('--yaml', action='store_true', help='print the values as YAML, which --config_file reads')
  forms.add_argument(json_output.FLAG, action='store_true', help='print JSON')
  arguments_lib.add_experiment_flags(parser)
  options, flags = _flags_of(parser, arguments)
  flags_with_name = _with_experiment(options, flags)

  def lines() -> Iterable[str]:
    params, absl_flags = _params()
    if options.yaml:
      return importlib.import_module('official_ext.base.config_text').dump(params.as_dict()).splitlines()
    describe = importlib.import_module('official_ext.cli.describe')
    if options.json:
      return [json.dumps(json_output.masked(describe.field_documents(params, absl_flags.experiment)))]
    return describe.field_lines(params, absl_flags.experiment)

  # Other flags name files, or have values that are not worth a file in the cache.
  if all(flag.startswith('--registry=') for flag in flags):
    form = [*['--yaml'] * options.yaml, *[json_output.FLAG] * options.json]
    _print_cached('describe', [options.name, *flags, *form], flags_with_name, lines, options.json)
    return
  _parse(flags_with_name)
  _print_lines(lines(), options.json)


def run_new(arguments: list[str]) -> None:
  """Runs `official-ext new ARGUMENTS`."""
  parser = arguments_lib.Parser(
    'official-ext new',
    'Writes a new experiment that trains: a folder of experiments/ with configs.py, task.py, ..., its test in '
    'tests/experiments, and a line in registry_imports.py.',
    takes_flags=True,
  )
  parser.add_argument('names', metavar='NAME', nargs='*', help='the name of the experiment')
  parser.add_argument(
    '--like',
    metavar='OTHER',
    default='',
    help='copy another experiment; --like=script writes NAME.py into this folder, which the experiment `script` runs; '
    f'--like={"|".join(new_settings.KINDS)} writes NAME.yaml for small data of `official-ext prepare`',
  )
  parser.add_argument(
    '--package', action='store_true', help='write a package into this folder, which registers by its entry point'
  )
  data = 'of these: the folder of `official-ext prepare --for`'
  parser.add_argument('--data', metavar='FOLDER', type=arguments_lib.folder, help=data)
  checkpoint = 'of these: a checkpoint with trained weights, or a folder with one: docs/how_to/checkpoints.md'
  parser.add_argument('--init_checkpoint', metavar='PATH', type=arguments_lib.folder, help=checkpoint)
  json_output.add_flag(parser)
  options, unknown = parser.parse_known_args(arguments)
  if unknown or len(options.names) != 1:
    named = f'{unknown[0]}: no such flag;' if unknown else f'{" ".join(options.names) or "new"}:'
    raise errors.UserError(f'{named} expected official-ext new NAME [--like=EXPERIMENT] [--package]')
  if options.like in new_settings.KINDS:
    if options.package:
      raise errors.UserError(f'--package: has no meaning for --like={options.like}, which writes a file of settings')
    written = new_settings.run(options.names[0], options.like, options.data or '', options.init_checkpoint or '')
    if options.json:
      json_output.print_document(written)
    return
  for name in ('data', 'init_checkpoint'):
    if getattr(options, name):
      raise errors.UserError(f'--{name}: requires --like={"|".join(new_settings.KINDS)}')
  _parse([])
  written = importlib.import_module('official_ext.cli.new').run(options.names[0], options.like, options.package)
  if options.json:
    json_output.print_document(written)


def run_check(arguments: list[str]) -> None:
  """Runs `official-ext check ARGUMENTS`."""
  parser = _parser(
    'check',
    'Looks for mistakes in a task, and runs its whole life once, small, in a temporary folder: one step, one '
    'evaluation, save, restore, compare. The result of a fine-tuning is saved, loaded, and compared by its logits. '
    'docs/how_to/check.md lists the mistakes.',
  )
  json_output.add_flag(parser)
  arguments_lib.add_experiment_flags(parser)
  options, flags = _flags_of(parser, arguments)
  _parse([*_with_experiment(options, flags), '--dry_run'])
  check(_params()[0], options.name, options.json)


def check(params: 'definitions.ExperimentConfig', experiment: str, as_json: bool) -> None:
  """Looks for mistakes in an experiment, and rehearses it: see dry_run.py.

  Args:
    params: the experiment.
    experiment: its name.
    as_json: whether to print a document with the mistakes.

  Raises:
    UserError: there are mistakes.
  """
  dry_run = importlib.import_module('official_ext.training.diagnosis.dry_run')
  if not as_json:
    dry_run.run(params)
    return
  found = dry_run.rehearse(params)
  lines = {'error': found.mistakes, 'warning': [str(finding) for finding in found.warnings]}
  document = {name: [json_output.parts(line, name) for line in each] for name, each in lines.items()}
  json_output.print_document({'experiment': experiment, **{f'{name}s': each for name, each in document.items()}})
  if found.mistakes:
    raise errors.UserErrors(found.mistakes)


def run_preview(arguments: list[str]) -> None:
  """Runs `official-ext preview ARGUMENTS`."""
  parser = _parser(
    'preview',
    "Shows examples as an experiment's own input pipeline yields them: draws images, augmented, with boxes, masks and "
    'labels; prints texts with their special tokens, and marks the tokens that are learned. docs/how_to/preview.md.',
  )
  positive = arguments_lib.at_least(1)
  rows = 'of the grid of images; default: 4; or number of texts; default: 5'
  parser.add_argument('--rows', type=positive, metavar='N', help=rows)
  parser.add_argument('--columns', type=positive, default=4, metavar='N', help='of the grid of images; default: 4')
  tile = 'pixels of an image; default: 256'
  parser.add_argument('--tile', type=arguments_lib.at_least(16), default=256, metavar='N', help=tile)
  output = 'of images: the picture, .png or .html; default: preview.png; of texts: a copy, .txt or .html'
  parser.add_argument('--output', default='', metavar='FILE', help=output)
  split = 'show training or validation examples; default: train'
  parser.add_argument('--split', choices=('train', 'validation'), default='train', help=split)
  json_output.add_flag(parser)
  arguments_lib.add_experiment_flags(parser)
  options, flags = _flags_of(parser, arguments)
  named = [flag for flag in flags if flag.startswith('--experiment=')]
  _parse(flags if named and not options.name else _with_experiment(options, flags))
  params, absl_flags = _params()
  texts = importlib.import_module('official_ext.language.preview.previewing')
  if texts.is_for(params):
    terminal = sys.stdout.isatty() and not os.environ.get('NO_COLOR')
    shown = texts.Options(options.rows or texts.Options.rows, options.split, options.output, terminal)
    found = texts.run(params, absl_flags.experiment, shown)
    if options.json:
      json_output.print_document(found)
    return
  images = importlib.import_module('official_ext.vision.preview.previewing')
  output = options.output or images.Options.output
  drawn = images.Options(options.rows or images.Options.rows, options.columns, options.split, output, options.tile)
  found = images.run(params, absl_flags.experiment, drawn)
  if options.json:
    json_output.print_document(found)


def run_data_service(arguments: list[str]) -> None:
  """Runs `official-ext data_service ARGUMENTS`."""
  parser = _parser(
    'data_service',
    'Starts the dispatcher of a tf.data service and a worker that makes the batches of an experiment, and prints the '
    'flags for the run. Failures of the service do not change the results of a run: docs/how_to/data_service.md.',
  )
  parser.add_argument('--port', type=_port, default=5050, metavar='N', help="the dispatcher's; default: 5050; 0: any")
  parser.add_argument('--worker_port', type=_port, default=0, metavar='N', help="the worker's; default: 0, any")
  parser.add_argument(
    '--dispatcher_address',
    default='',
    metavar='HOST:PORT',
    help='start a worker for the dispatcher that another of these commands has started',
  )
  parser.add_argument('--host', default='', metavar='NAME', help='how other machines find this one; default: its name')
  arguments_lib.add_experiment_flags(parser)
  options, flags = _flags_of(parser, arguments)
  data_service = importlib.import_module('official_ext.cli.data_service')
  data_service.check(options)
  _parse(_with_experiment(options, flags))
  params, absl_flags = _params()
  data_service.run(options, params, absl_flags.experiment)


def _parser(command: str, description: str) -> arguments_lib.Parser:
  found = arguments_lib.Parser(f'official-ext {command}', description, takes_flags=True)
  found.add_argument('name', metavar='NAME', nargs='?', help='the experiment')
  return found


def _flags_of(parser: arguments_lib.Parser, arguments: Sequence[str]) -> tuple[Any, list[str]]:
  """The options of a command, and the flags for absl, which refuses unknown ones."""
  options, unknown = parser.parse_known_args(arguments)
  return options, [*options.flags, *unknown]


def _with_experiment(options: Any, flags: Sequence[str]) -> list[str]:
  if not options.name:
    raise errors.UserError('the name of an experiment must follow the command; `official-ext list` shows them')
  return [f'--experiment={options.name}', *flags]


def _port(text: str) -> int:
  if not text.isdecimal() or int(text) >= 2**16:
    raise argparse.ArgumentTypeError(f'expected 0 to 65535, got {text!r}')
  return int(text)


def _print_cached(
  command: str, key: list[str], flags: list[str], make: Callable[[], Iterable[str]], is_json: bool
) -> None:
  """Prints the lines of a command, from an earlier process if nothing has changed since.

  Args:
    command: its name.
    key: the arguments that the lines depend on.
    flags: the arguments for absl.
    make: the lines, once all experiments are registered.
    is_json: whether they are a JSON document, which is masked.
  """
  cache = ExperimentCache(command, key)
  lines = cache.read()
  if lines is None:
    cache.watch()
    _parse(flags)
    lines = [line if is_json else safe_text.mask(line) for line in make()]
    cache.write(lines, importlib.import_module('official_ext.training.config.registries').ENTRY_POINTS)
  _print_lines(lines, is_json)


def _print_lines(lines: Iterable[str], is_json: bool) -> None:
  if is_json:
    json_output.print_document(json.loads('\n'.join(lines)))
    return
  for line in lines:
    print(line)


def _params() -> Any:
  """The configuration that the flags define, and the flags."""
  flags = importlib.import_module('absl.flags').FLAGS
  return importlib.import_module('official_ext.training.config.parser').parse_configuration(
    flags, print_return=False
  ), flags


def _parse(arguments: Sequence[str]) -> None:
  """Parses flags and imports the modules that register experiments, registry_imports of the current directory first."""
  ext_flags = importlib.import_module('official_ext.cli.flags')
  ext_flags.define_for_command()
  ext_flags.parse(['official-ext', *arguments])
  flags = importlib.import_module('absl.flags').FLAGS
  importlib.import_module('official_ext.training.config.registries').import_experiments(
    flags.registry, flags.experiment
  )
