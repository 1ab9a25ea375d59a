"""The commands of runs: to resume a run, to clone it, to evaluate it; and the fields that they set.

A run's record has the command that has started it, and the folder in which it was given. Passwords in it are masked; a
command that has lost one cannot be given again.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import errno
import os
import re
import shlex
import string

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import launcher as launcher_lib
from official_ext.base import processes
from official_ext.base import safe_text
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.base.run_folder import run_status
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_processes
from official_ext.operations.runs import statuses

BASE_PARAMS = 'base_params.yaml'  # The source of a clone: the original may be deleted.

_LENGTH = 'trainer.train_steps'
_COMMA = re.compile(r""",(?![^\[]*\])(?=\s*[\w.]+=)""")  # Between two fields, not within a list.
_PATHS = ('model_dir', 'checkpoint', 'config_file')  # Flags that may name something in the run's own folder.
# The flags that a clone has in other words: its params are resolved; it is another run, from its beginning.
_REPLACED = frozenset(
  'experiment mode model_dir config_file params_override set branch dry_run json debug debug_step profile_steps'.split()
)


@dataclasses.dataclass(frozen=True)
class Command:
  """A command of a run.

  Attributes:
    words: the program and its arguments.
    cwd: the folder in which it is given.
    model_dir: the run's folder, absolute.
    mode: such as train_and_eval.
    environment: the relevant part of its earlier environment; None: that is not known.
  """

  words: tuple[str, ...]
  cwd: str
  model_dir: str
  mode: str = 'train'
  environment: Mapping[str, str] | None = None

  def __str__(self) -> str:
    """As a shell takes it, in its folder and environment."""
    return ' '.join(map(quoted, self.words))

  def start(self) -> processes.ProcessIdentity:
    """Starts it, detached: see run_processes.py."""
    return run_processes.start_run(self.words, self.model_dir, self._env(), self.cwd, self.mode)

  def in_shell(self) -> str:
    """All that it takes to give it in any shell: its folder, the differences of the environment, and the command."""
    return f'cd {quoted(self.cwd)} && {" ".join(map(quoted, self.whole_words()))}'

  def whole_words(self) -> tuple[str, ...]:
    """The command, prefixed with `env NAME=VALUE` for variables that differ from this process's."""
    changes, env = [], self._env()
    for name in sorted({*env, *os.environ}):
      if name not in env:
        changes += ['-u', name]
    changes += [f'{name}={value}' for name, value in sorted(env.items()) if os.environ.get(name) != value]
    return ('env', *changes, *self.words) if changes else self.words

  def _env(self) -> dict[str, str]:
    return (
      dict(os.environ) if self.environment is None else launcher_lib.restored_environment(self.environment, os.environ)
    )


def to_resume(run: run_folders.Run, train_steps: int | None = None) -> Command:
  """The command that resumes a run from its newest checkpoint: the one that has started it.

  If the run's folder was moved or copied, the command names the present folder, and the files in it.

  Args:
    run: the run.
    train_steps: the step at which training will end, which extends a run that has finished; None: unchanged.

  Raises:
    UserError: the run lives or has finished, or its command is not known, not whole, or of one of several workers; or
      it has done that many steps.
  """
  _refuse_imported(run, 'resumed')
  found = statuses.of_run(run)
  if statuses.is_alive(run, 'train'):
    raise errors.StateError(f'{run.name}: is {found.status}; wait for it, or stop it first')
  if found.status == 'submitted':
    raise errors.StateError(f'{run.name}: was submitted ({found.reason}), and waits there; end it there first')
  if found.status == 'finished' and train_steps is None:
    raise errors.StateError(f'{run.name}: has finished; `official-ext runs resume --train_steps=N` extends it')
  values, words = _recorded(run)
  environment = _environment_of(values)
  if (num_tasks := launcher_lib.num_tasks(environment or {})) > 1:
    raise errors.UserError(
      f'{run.name}: was one of {num_tasks} processes, which no launcher has started: start each of them again'
    )
  split, model_dir = _split(words), None
  flags = split.flags if train_steps is None else _extended(run, split.flags, train_steps)
  for name, value in split.flags:
    model_dir = value if name == 'model_dir' else model_dir
  cwd = _cwd_of(values)
  before = _absolute(model_dir, cwd) if model_dir is not None else run.place
  if paths.real(before) != paths.real(run.place):
    flags = tuple((name, _in_folder(name, value, cwd, before, run.place)) for name, value in flags)
  if flags != split.flags:
    words = [*split.program, *map(_written, flags)]
  return Command(tuple(words), cwd, run.place, values.get('mode') or 'train', environment)


def _extended(
  run: run_folders.Run, flags: tuple[tuple[str, str | None], ...], train_steps: int
) -> tuple[tuple[str, str | None], ...]:
  """The flags of a command with another length, under the name by which they have set it.

  Raises:
    UserError: the run has done that many steps, or its length is counted in epochs.
  """
  record = run.record() or {}
  step = record.get('step')
  short_names: json_values.JsonObject = record.get('short_names') or {}
  if json_values.is_int(step) and train_steps <= step:
    raise errors.UserError(f'--train_steps={train_steps}: {run.name} has done {step} steps; name a larger number')
  if (run_folders.read_params(run) or {}).get('trainer.train_epochs'):
    raise errors.UserError(
      f'--train_steps={train_steps}: the length of {run.name} is set by trainer.train_epochs; give its command again '
      'with more epochs'
    )
  same = {_LENGTH, *(name for name, path in short_names.items() if path == _LENGTH)}
  name, kept = _LENGTH, []
  for flag, value in flags:
    given = (value or '').partition('=')[0].strip()
    if flag == 'set' and given in same:
      name = given
    else:
      kept.append((flag, value))
  return (*kept, ('set', f'{name}={train_steps}'))


def to_clone(
  run: run_folders.Run, model_dir: str, changes: Sequence[str] = (), config_file: str | None = None
) -> Command:
  """The command of a new run with the configuration of another, but for some changes.

  Args:
    run: the original.
    model_dir: the new run's folder.
    changes: `NAME=VALUE`, as --set takes them; the driver checks them.
    config_file: the file that will have the original's configuration; None: its params.yaml.

  Raises:
    UserError: the original's command or configuration is not known.
  """
  _refuse_imported(run, 'cloned')
  if not os.path.isfile(run.file(run_folders.PARAMS)) and not paths.is_file(config_file or ''):
    raise errors.UserError(f'{run.name}: has no {run_folders.PARAMS}, so that nothing can be made like it')
  for change in changes:
    if '=' not in change:
      raise errors.UserError(f'--set={change}: expected NAME=VALUE')
  values, words = _recorded(run)
  split = _split(words)
  given = dict(split.flags)
  experiment = values.get('experiment') or given.get('experiment')
  mode = values.get('mode') or given.get('mode')
  if not experiment or not mode:
    raise errors.UserError(f'{run.name}: neither its record nor its command names its experiment and its mode')
  flags = [
    ('experiment', experiment),
    ('mode', mode),
    ('model_dir', paths.absolute(model_dir)),
    *((name, value) for name, value in split.flags if name.removeprefix('no') not in _REPLACED),
    ('config_file', config_file or os.path.join(run.place, run_folders.PARAMS)),
    *(('set', change) for change in changes),
  ]
  words, environment = [*split.program, *map(_written, flags)], _environment_of(values)
  return Command(tuple(words), _cwd_of(values), paths.absolute(model_dir), mode, environment)


def to_evaluate(run: run_folders.Run, checkpoint: str) -> Command:
  """The command that evaluates a checkpoint of a run with the run's configuration, also during its training.

  An evaluation has separate files (`run.eval.json`, `events.eval.jsonl`, `run.eval.log`), and leaves the best
  checkpoints to the training.

  Args:
    run: the run.
    checkpoint: the path of the checkpoint.

  Raises:
    UserError: the run's command or configuration is not known.
  """
  _refuse_imported(run, 'evaluated')
  if not os.path.isfile(run.file(run_folders.PARAMS)):
    raise errors.UserError(f'{run.name}: has no {run_folders.PARAMS}, so that nothing can be evaluated')
  values, words = _recorded(run)
  split = _split(words)
  experiment = values.get('experiment') or dict(split.flags).get('experiment')
  if not experiment:
    raise errors.UserError(f'{run.name}: neither its record nor its command names its experiment')
  kept = [pair for pair in split.flags if pair[0].removeprefix('no') not in {*_REPLACED, 'checkpoint'}]
  flags = [
    ('experiment', experiment),
    ('mode', 'eval'),
    ('model_dir', run.place),
    *kept,
    ('config_file', os.path.join(run.place, run_folders.PARAMS)),
    ('checkpoint', checkpoint),
  ]
  words = [*split.program, *map(_written, flags)]
  return Command(tuple(words), _cwd_of(values), run.place, 'eval', _environment_of(values))


def given_flags(run: run_folders.Run) -> tuple[list[tuple[str, str | None]], str]:
  """(name, value) of each flag of the command that has started a run, and the folder in which it was given.

  Raises:
    UserError: the command is not known.
  """
  values, words = _recorded(run, whole=False)
  return list(_split(words).flags), _cwd_of(values)


def form_of(run: run_folders.Run) -> list[tuple[str, str]]:
  """The contents of a form with the command of a run that ended before it wrote its configuration.

  Returns:
    (name, value) of each part: `experiment`, `mode`, `config` for each file, `set` for each change; no other flags.

  Raises:
    UserError: the command is not known, or names no experiment.
  """
  flags, cwd = given_flags(run)
  found = [(name, value) for name, value in flags if value is not None]
  if not dict(found).get('experiment'):
    raise errors.UserError(f'{run.name}: its command names no experiment; give it again')
  overrides = [
    part for name, value in found if name == 'params_override' for part in _COMMA.split(value) if '=' in part
  ]
  return [
    ('experiment', dict(found)['experiment']),
    ('mode', dict(found).get('mode', 'train')),
    *(('config', _absolute(value, cwd)) for name, value in found if name == 'config_file'),
    *(('set', part.strip()) for part in overrides),
    *(('set', value) for name, value in found if name == 'set' and '=' in value),
  ]


def quoted(word: str) -> str:
  r"""A word as a shell takes it, in one line that is harmless for a terminal: `$'a\nb'` if it has control characters.

  That form is one of bash, zsh and ksh; it has any bytes, as names of files may.
  """
  if word.isprintable():
    return shlex.quote(word)
  plain = set(string.printable) - set(string.whitespace) - set("\\'") | {' '}
  escaped = (
    letter if letter in plain else ''.join(f'\\x{byte:02x}' for byte in os.fsencode(letter)) for letter in word
  )
  return f"$'{''.join(escaped)}'"


checked_folder = run_folders.checked_folder


def free_name(root: str, name: str) -> str:
  """A name like another that nothing in a folder has: run-2 for run, run-3 for run-2."""
  stem, number = re.fullmatch(r'(.*?)(?:-(\d{1,9}))?', name, re.DOTALL).groups()  # type: ignore[union-attr]
  number = int(number or 1) + 1
  while is_taken(os.path.join(root, f'{stem}-{number}')):
    number += 1
  return f'{stem}-{number}'


def is_taken(path: str) -> bool:
  """Whether something has the path of a new run."""
  return paths.exists(path) if paths.is_remote(path) else os.path.lexists(path)


def make_clone(run: run_folders.Run, root: str, name: str | None, changes: Sequence[str] = ()) -> Command:
  """Makes the folder of a new run like another, with its initial files, and returns the command that begins it.

  Args:
    run: the original.
    root: the folder with the runs.
    name: the new run's, in it; None: one that is free.
    changes: see `to_clone`.

  Raises:
    UserError: the name is taken, or leads out of `root`; or see `to_clone`.
  """
  to_clone(run, root, changes)  # Before anything is written.
  while True:
    chosen = name or free_name(root, run.name if run.name != '.' else os.path.basename(run.path))
    try:
      folder = make_folder(root, chosen)
      break
    except FileExistsError:  # Of several at once one gets it.
      if name:
        raise errors.UserError(
          f'--name={name}: {checked_folder(root, name)} exists already; choose another name'
        ) from None
  return to_clone(run, folder, changes, write_base_of(run, folder))


def make_folder(root: str, name: str) -> str:
  """Makes the folder of a new run, and returns its path.

  Raises:
    FileExistsError: there is one.
    UserError: the name leads out of `root`, or no folder can be made there.
  """
  folder = checked_folder(root, name)
  try:
    if paths.is_remote(folder):  # It knows no folders, and no moment at which one is made.
      if paths.exists(folder):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), folder)
      paths.make_folder(folder)
      return folder
    paths.make_folder(os.path.dirname(folder))
    os.mkdir(folder)
    paths.sync_to_disk(os.path.dirname(folder))
  except OSError as error:
    if isinstance(error, FileExistsError) and is_taken(folder):
      raise
    raise errors.UserError(f'--name={name}: {folder}: cannot be made: {error.strerror}') from error
  return folder


def write_base_of(run: run_folders.Run, folder: str) -> str:
  """Writes the configuration of a run as the initial one of another: see `write_base`.

  Raises:
    StorageError: it cannot be read or written.
  """
  path = run.file(run_folders.PARAMS)
  try:
    content = paths.read(path, local_files.MAX_RECORD)
  except OSError as error:
    raise errors.StorageError(f'{path}: cannot be read: {error.strerror}') from error
  return write_base(folder, content)


def write_base(folder: str, content: bytes) -> str:
  """Writes the initial configuration of a run into its folder, and returns the path of the file.

  Raises:
    StorageError: it cannot be written.
  """
  path = os.path.join(folder, BASE_PARAMS)
  try:
    paths.write_atomically(path, content)
  except OSError as error:
    raise errors.StorageError(f'{folder}: cannot be written: {error.strerror}') from error
  return path


def _refuse_imported(run: run_folders.Run, verb: str) -> None:
  """Refuses a run of another tracker, which has neither a command nor checkpoints."""
  if tracker := run_status.tracker_of(run.record()):
    raise errors.UserError(
      f'{run.name}: was imported from {tracker}, and cannot be {verb}; train a new run in another folder'
    )


def _recorded(run: run_folders.Run, whole: bool = True) -> tuple[json_values.JsonMapping, list[str]]:
  """The record of a run's last start, and its command; which must be `whole` to be given again."""
  record, started = run.record(), run.started()
  values = record if record is not None and not statuses.is_later(started, record) else started
  if values is None:
    raise errors.UserError(f'{run.name}: there is no record of how it was started; give its command again')
  launcher = values.get('launcher')
  text = launcher.get('command') if isinstance(launcher, dict) else values.get('command')
  try:
    words = shlex.split(text) if isinstance(text, str) else []
  except ValueError:
    words = []
  if len(words) < 2:
    raise errors.UserError(f'{run.name}: its record does not contain its command; give it again')
  for word in words:
    if whole and safe_text.MASK in word:
      raise errors.UserError(
        f'{run.name}: its command had a password or the like, which is not kept: {word}; give the whole command again'
      )
  return values, words


def _cwd_of(values: Mapping[str, object]) -> str:
  cwd = values.get('cwd')
  return cwd if isinstance(cwd, str) and os.path.isabs(cwd) else os.getcwd()  # Older records have none.


def _environment_of(values: Mapping[str, object]) -> dict[str, str] | None:
  """The relevant part of a command's environment; None if that is not known."""
  launcher = values.get('launcher')
  found = (launcher if isinstance(launcher, dict) else values).get('environment')
  if not isinstance(found, dict):
    return None
  return {name: value for name, value in found.items() if isinstance(value, str) and '=' not in name and name}


@dataclasses.dataclass(frozen=True)
class _Split:
  """A command in its parts.

  Attributes:
    program: up to the first flag of the driver.
    flags: (name, value) of each flag; None for one without a value.
  """

  program: tuple[str, ...]
  flags: tuple[tuple[str, str | None], ...]


def _split(words: Sequence[str]) -> _Split:
  if '--' in words:  # A launcher's own flags come before.
    first = words.index('--') + 1
  else:
    start = _end_of_program(words)
    first = next((place for place in range(start, len(words)) if words[place].startswith('-')), len(words))
  return _Split(tuple(words[:first]), tuple(_flags(words[first:])))


def _end_of_program(words: Sequence[str]) -> int:
  """How many words Python takes for itself, up to the script or the module."""
  place = 1
  while place < len(words) and words[place].startswith('-'):
    if words[place] in ('-m', '-c'):
      return place + 2
    place += 2 if words[place] in ('-X', '-W') else 1
  return place + 1


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
  place = 0
  while place < len(words):
    name, equals, value = words[place].lstrip('-').partition('=')
    place += 1
    if not equals and place < len(words) and not words[place].startswith('-'):  # The driver takes nothing but flags.
      value, equals = words[place], '='
      place += 1
    yield name, value if equals else None


def _written(flag: tuple[str, str | None]) -> str:
  name, value = flag
  return f'--{name}' if value is None else f'--{name}={value}'


def _in_folder(name: str, value: str | None, cwd: str, before: str, now: str) -> str | None:
  """A flag's value, in which a path in the earlier folder of a run becomes the path in the present one."""
  if name not in _PATHS or value is None:
    return value
  path, folder = (paths.real(_absolute(each, cwd)) for each in (value, before))
  if paths.is_remote(path) != paths.is_remote(folder):
    return value
  below = os.path.relpath(path, folder)
  return value if below.split(os.sep)[0] == os.pardir else now if below == os.curdir else os.path.join(now, below)


def _absolute(path: str, cwd: str) -> str:
  path = paths.expanded(path)
  return path if paths.is_remote(path) else os.path.join(cwd, path)


_MAX_FILE_BYTES = 1 << 20


def given_fields(run: run_folders.Run, values: Mapping[str, object]) -> list[str]:
  """The dotted paths of the fields that --set, --params_override and --config_file have given, ordered as in `values`.

  The values that a clone takes over from its original are not among them.

  Args:
    run: the run.
    values: its configuration, flat.
  """
  try:
    flags, cwd = given_flags(run)
  except errors.UserError:
    return []
  short_names = (run.record() or {}).get('short_names')
  short_names = short_names if isinstance(short_names, dict) else {}
  found: set[str] = set()
  for name, value in flags:
    if name == 'set':
      field = (value or '').partition('=')[0]
      found.add(str(short_names.get(field, field)))
    elif name == 'params_override':
      found.update(_fields_in(value or '', cwd))
    elif name == 'config_file' and os.path.basename(value or '') != BASE_PARAMS:
      found.update(_fields_in(value or '', cwd))
  return [path for path in values if any(path == each or path.startswith(f'{each}.') for each in found)]


def _fields_in(source: str, cwd: str) -> list[str]:
  """The dotted paths in YAML text, or in a file."""
  try:
    path = paths.expanded(source)
    path = path if paths.is_remote(path) else os.path.join(cwd, path)
    text = paths.read(path, _MAX_FILE_BYTES).decode() if len(source) < 1000 and paths.is_file(path) else source
    values = config_text.load(text, 'params')
  except (OSError, ValueError, errors.UserError, RecursionError):
    return [part.partition('=')[0].strip() for part in source.split(',') if '=' in part]
  if not isinstance(values, dict):
    return [part.partition('=')[0].strip() for part in source.split(',') if '=' in part]
  return list(config_text.flatten(values))
