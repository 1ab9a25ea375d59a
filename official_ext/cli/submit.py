"""official-ext submit: submits a run to SLURM, Ray, Kubernetes or the queue of this machine."""

import argparse
from collections.abc import Sequence
import importlib
import os
import shutil
import sys
import types
from typing import Any, NoReturn

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import safe_text
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import json_output
from official_ext.cli import sweep as sweep_lib
from official_ext.operations.engines import jobs
from official_ext.operations.engines import submission
from official_ext.operations.queue import queue_changes
from official_ext.operations.runs import driver
from official_ext.operations.sweeps import sweep_file
from official_ext.operations.sweeps import sweep_folder

# The name of an engine -> its module in operations/engines.
_ENGINES = {
  'local': 'local',
  'slurm': 'slurm',
  'ray': 'ray_jobs',
  'jobset': 'jobset',
}


# Names that engines, `launch` and earlier versions have for flags.
_OTHER_NAMES = {
  **dict.fromkeys(('num_workers', 'num_nodes', 'workers', 'replicas', 'machines', 'N'), 'nodes'),
  **dict.fromkeys(('gpus_per_task', 'gpus-per-task', 'num_gpus', 'gpus_per_node', 'gres', 'G'), 'gpus'),
  **dict.fromkeys(('cpus_per_task', 'cpus-per-task', 'num_cpus', 'c'), 'cpus'),
  **dict.fromkeys(('mem', 'ram'), 'memory'),
  **dict.fromkeys(('ntasks-per-node', 'ntasks_per_node'), 'tasks_per_node'),
  **dict.fromkeys(('timeout', 'time_limit', 't'), 'time'),
  **dict.fromkeys(('image_id', 'image_uri', 'container'), 'image'),
}


def run(arguments: Sequence[str]) -> int:
  """Runs `official-ext submit`.

  Args:
    arguments: after `submit`: flags, and after `--` the flags of train.py.

  Returns:
    The exit status.
  """
  options, engine_flags = _parser().parse_known_args(arguments)
  engine = options.engine
  if engine is None:
    raise errors.UserError(f'submit: --engine: name one of {", ".join(_ENGINES)}')
  module = _module(engine)
  options, unknown = _engine_parser(engine).parse_known_args(engine_flags, options)
  if unknown:
    _refuse_unknown(unknown[0], engine)
  flags = tuple(options.behind)
  job = _array(options, flags, module, make=False) if options.array else _single(options, flags, module)
  if engine == 'local' and not options.runs_dir:
    options.runs_dir = module.runs_dir(job, options)
  _refuse_other_letters(job, engine)
  text = module.render(job, options)  # Before anything is made: it may be refused.
  if options.array and not options.render:
    return _submit_array(engine, module, flags, options)
  if not (options.render or options.output):
    job = submission.without_living(job, engine, module, options)
  if options.output:
    _write(options.output, text)
  if (options.render or options.output) and options.json:
    json_output.print_document({'engine': engine, 'output': options.output or '', 'text': text})
  if options.render:
    print(text, end='')
    if safe_text.mask(text) != text and not options.output:
      print('values masked above (***) are written in full to the file of --output=FILE', file=sys.stderr)
    return 0
  return 0 if options.output else _submit(engine, module, job, options, text)


def _submit_array(engine: str, module: types.ModuleType, flags: tuple[str, ...], options: argparse.Namespace) -> int:
  """Makes the sweep of --array with its points, and submits them; one that is refused leaves no new sweep."""
  folder = _sweep_of(options, flags)[1]
  is_new = not folder.exists()
  try:
    job = _array(options, flags, module, make=True)
    if not options.output:
      job = submission.without_living(job, engine, module, options)
    text = module.render(job, options)
    if options.output:
      _write(options.output, text)
      return 0
    return _submit(engine, module, job, options, text)
  except errors.UserError:
    if is_new and folder.exists() and not submission.is_noted(folder.path):
      shutil.rmtree(folder.path, ignore_errors=True)
    raise


def _refuse_unknown(word: str, engine: str) -> NoReturn:
  """Refuses an unknown flag, with the name that this command has for it.

  Raises:
    UserError: always.
  """
  flag = word.partition('=')[0]
  name = flag.lstrip('-')
  common = [text for action in _parser()._actions for text in action.option_strings]
  known = [*(f'--{option}' for option in _module(engine).OPTIONS), *common]
  owners = [each for each in _ENGINES if name in _module(each).OPTIONS]
  if f'--{_OTHER_NAMES.get(name)}' in known:
    hint = f'; it is --{_OTHER_NAMES[name]} here'
  elif owners:
    hint = f'; --engine={", ".join(owners)} has it'
  else:
    hint = errors.did_you_mean(flag, known, before='; ')
  raise errors.UserError(f'{flag}: --engine={engine} has no such flag{hint}; `official-ext submit --help` lists all')


def _refuse_other_letters(job: jobs.Job, engine: str) -> None:
  """Refuses names that are not UTF-8: scripts and manifests are texts.

  Raises:
    UserError: see above.
  """
  words = [job.cwd, job.program, *job.env.values(), *(word for trial in job.trials for word in trial.flags)]
  for word in words:
    try:
      word.encode()
    except UnicodeEncodeError:
      shown = word.encode(errors='backslashreplace').decode()
      raise errors.UserError(f'{shown}: is not UTF-8, as --engine={engine} requires; choose another name') from None


def _submit(engine: str, module: types.ModuleType, job: jobs.Job, options: argparse.Namespace, text: str) -> int:
  if options.follow and (job.is_array or paths.is_remote(job.folder)):
    raise errors.UserError('--follow: follows one run, in a folder that is seen from here')
  if engine != 'local':
    submission.make_folders(job)
  name = module.submit(job, options, text)
  if engine != 'local':  # Whose queue keeps its own notes.
    submission.note(job, engine, module, name)
  count = f'{len(job.trials)} run{"s" if len(job.trials) > 1 else ""}'
  runs = f'{count} in {job.folder}' if job.is_array else job.folder
  print(f'{engine} has it, as {name}: {runs}', flush=True)
  if options.json:
    values = {'engine': engine, 'name': str(name), 'folder': job.folder, 'runs': len(job.trials)}
    json_output.print_document(values)
  if paths.is_remote(job.folder):
    print(f'its folder is remote; `official-ext runs list {job.folder.rpartition("/")[0]}` reads it')
  return submission.follow(job, module, name, options) if options.follow else 0


def _module(engine: str) -> Any:
  return importlib.import_module(f'official_ext.operations.engines.{_ENGINES[engine]}')


def _parser() -> arguments_lib.Parser:
  parser = _Parser(
    'official-ext submit',
    'Renders a job for an engine, and submits it by the command of the engine. Preempted runs resume. '
    'docs/how_to/cluster.md.',
    behind='FLAGS OF train.py',
    takes_flags=True,
  )
  parser.add_argument('--engine', choices=list(_ENGINES), help='see below')
  parser.add_argument('--render', action='store_true', help='print the script or manifest, and submit nothing')
  output = 'write it to a file that only you can read, and submit nothing'
  parser.add_argument('--output', metavar='FILE', help=output)
  parser.add_argument('--follow', action='store_true', help='print the status of the run until it is over')
  parser.add_argument('--name', metavar='NAME', help="the job's; default: like the folder's")
  parser.add_argument('--program', metavar='PATH', help='default: train.py, or else `official-ext train`')
  parser.add_argument('--max_restarts', type=arguments_lib.at_least(0), metavar='N', help='the number of retries')
  env = f'a variable; {arguments_lib.REPEATED}'
  parser.add_argument('--env', action='append', default=[], metavar='NAME=VALUE', help=env)
  engine_arg = f'other options: of slurm and ray such as --qos=high; of manifests PATH=VALUE; {arguments_lib.REPEATED}'
  parser.add_argument('--engine_arg', action='append', default=[], metavar='TEXT', help=engine_arg)
  array = 'submit the trials of a sweep.yaml, --slots=N at the same time (slurm, ray)'
  parser.add_argument('--array', metavar='FILE', help=array)
  parser.add_argument('--runs_dir', metavar='DIR', help='the folder of the queue (local) or of the trials (--array)')
  json_output.add_flag(parser)
  parser.add_argument('--again', action='store_true', help='submit even if the engine may still have the run')
  return parser


class _Parser(arguments_lib.Parser):
  """Shows the flags of each engine in its help."""

  def format_help(self) -> str:
    """Overrides the base class: adds the flags of the engines."""
    return super().format_help() + ''.join(_engine_parser(engine).format_help() for engine in _ENGINES)


def _engine_parser(engine: str) -> arguments_lib.Parser:
  """The parser of an engine's flags."""
  module = _module(engine)
  parser = arguments_lib.Parser('official-ext submit', takes_flags=True)
  parser.usage = argparse.SUPPRESS
  group = parser.add_argument_group(f'--engine={engine}: {module.SUMMARY}')
  for name, keywords in module.OPTIONS.items():
    keywords = dict(keywords)
    if 'least' in keywords:
      keywords['type'] = arguments_lib.at_least(keywords.pop('least'))
    group.add_argument(f'--{name}', **keywords)
  return parser


# The submitted command.


def _single(options: argparse.Namespace, flags: tuple[str, ...], module: types.ModuleType) -> jobs.Job:
  if not flags:
    raise errors.UserError('submit: the flags of train.py must follow --')
  model_dir = queue_changes.value_of(flags, 'model_dir')
  model_dir = paths.expand_home(model_dir, '--model_dir')
  if not model_dir:
    raise errors.UserError('submit: --model_dir: name the folder of the run, among the flags of train.py after --')
  if module.NEEDS_ABSOLUTE and not (paths.is_remote(model_dir) or os.path.isabs(model_dir)):
    raise errors.UserError(
      f'--model_dir={model_dir}: the job runs in a container, whose folders are others: name a folder that it and you '
      'can reach, by a whole path or as gs://...'
    )
  if not paths.is_remote(model_dir):
    model_dir = os.path.realpath(model_dir)
  mode = queue_changes.value_of(flags, 'mode')
  return jobs.Job(
    name=_name(options, model_dir.rstrip('/').rpartition('/')[2]),
    program=_program(options.program, module),
    cwd=os.getcwd(),
    trials=(jobs.Trial(model_dir, flags),),
    folder=model_dir,
    max_restarts=options.max_restarts,
    env=_env(options.env),
    mode=mode if mode and 'train' not in mode else 'train',
  )


def _array(options: argparse.Namespace, flags: tuple[str, ...], module: types.ModuleType, make: bool) -> jobs.Job:
  if not module.HAS_ARRAYS:
    raise errors.UserError(f'--array: --engine={options.engine} has none; `official-ext sweep` runs a sweep itself')
  sweep, folder, text = _sweep_of(options, flags)
  sweep_lib.program_of(sweep)  # It may be refused; also before the sweep is only shown.
  if make:
    sweep_lib.write(folder, sweep, text, options.slots)
  trials = submission.sweep_trials(folder, sweep, make)
  if not trials:
    raise errors.UserError(f'--array={options.array}: no point is left; `official-ext sweep show` prints their state')
  return jobs.Job(
    name=_name(options, folder.name),
    program=_program(options.program or sweep.program, module),
    cwd=os.getcwd(),
    trials=trials,
    folder=folder.path,
    is_array=True,
    max_restarts=options.max_restarts if sweep.max_restarts is None else sweep.max_restarts,
    env=_env(options.env),
  )


def _sweep_of(
  options: argparse.Namespace, flags: tuple[str, ...]
) -> tuple[sweep_file.SweepFile, sweep_folder.SweepFolder, str]:
  """The sweep of --array: its values, its folder, which need not exist, and the text of its file."""
  values = sweep_file.read(options.array)
  text = paths.read(options.array, local_files.MAX_RECORD).decode()
  if flags:
    values['flags'] = [*values.get('flags', []), *flags]
    text = config_text.dump(values)
  sweep = sweep_file.parse(values)
  submission.refuse_sweep(sweep)
  name = sweep.name or os.path.splitext(os.path.basename(options.array))[0]
  return sweep, sweep_folder.SweepFolder(options.runs_dir or 'runs', name), text


def _name(options: argparse.Namespace, text: str) -> str:
  if options.name is not None and options.name != jobs.name_of(options.name):
    raise errors.UserError(
      f'--name={options.name}: engines take small letters, digits and dashes; such as {jobs.name_of(options.name)}'
    )
  return options.name or jobs.name_of(text)


def _program(name: str | None, module: types.ModuleType) -> str:
  if module.NEEDS_ABSOLUTE:  # It is the container's.
    return name or (driver.DEFAULT_PROGRAM if os.path.isfile(driver.DEFAULT_PROGRAM) else driver.INSTALLED_PROGRAM)
  return driver.find_program(name or driver.DEFAULT_PROGRAM)


def _env(texts: Sequence[str]) -> dict[str, str]:
  found = {}
  for text in texts:
    name, equals, value = text.partition('=')
    if not equals or not name.isidentifier() or not name.isascii():
      raise errors.UserError(f'--env={safe_text.mask(text)}: expected NAME=VALUE')
    if jobs.is_reserved(name):
      raise errors.UserError(f'--env={name}: is set by an engine or its script; leave it out, or choose another name')
    if safe_text.mask_values({name: value})[name] != value:
      raise errors.UserError(
        f'--env={name}: would be written where others can read it; docs/how_to/cluster.md lists safe ways'
      )
    found[name] = value
  return found


def _write(path: str, text: str) -> None:
  """Writes a script or manifest that only its owner can read: flags may hold passwords."""
  path = paths.expand_home(path, '--output')
  try:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), 'w', encoding='utf-8') as file:
      os.fchmod(file.fileno(), 0o600)  # Before the text is in it: the file may have been there, for others to read.
      file.truncate(0)
      file.write(text)
  except OSError as error:
    raise errors.StorageError(f'--output={path}: cannot be written: {error.strerror}') from error
