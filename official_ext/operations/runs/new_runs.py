"""A new run: its command, its first files, and the equivalent lines of a shell."""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import os
import shutil
import sys
import tempfile

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.operations.runs import commands
from official_ext.operations.runs import driver as driver_lib
from official_ext.operations.runs import run_folders

UNNAMED = 'unnamed'  # Replaces a missing or used name, if only the other mistakes are looked for.
PREVIEW = 'preview.png'  # The picture of a preview, in the folder of a rehearsal.
_END_OF_FILE = 'END_OF_FILE'


@dataclasses.dataclass(frozen=True)
class NewRun:
  """A run that does not exist yet.

  Attributes:
    root: the folder with the runs.
    name: the run's, in it.
    experiment: its name; of a clone, the original's counts.
    mode: likewise.
    sets: `NAME=VALUE`, as --set takes them.
    registry: modules, as --registry names them.
    config_files: YAML files with changes.
    base: YAML text with changes, before `sets`; '' for none.
    original: the run whose configuration it begins with; None if it is not a clone.
  """

  root: str
  name: str
  experiment: str = ''
  mode: str = 'train'
  sets: tuple[str, ...] = ()
  registry: tuple[str, ...] = ()
  config_files: tuple[str, ...] = ()
  base: str = ''
  original: run_folders.Run | None = None

  @property
  def folder(self) -> str:
    """Its folder.

    Raises:
      UserError: the name leads out of `root`.
    """
    return commands.checked_folder(self.root, self.name)

  def check_name(self) -> None:
    """Makes sure that the name can be had.

    Raises:
      UserError: it is taken, or leads out of `root`.
    """
    if commands.is_taken(self.folder):
      raise errors.UserError(f'--name={self.name}: {self.folder} exists already; choose another name')

  def command(self, driver: driver_lib.Driver) -> commands.Command:
    """The command that begins it, once `make` or `shell_lines` has made its files.

    Raises:
      UserError: the name leads out of `root`, or the original's command is not known.
    """
    base = os.path.join(self.folder, commands.BASE_PARAMS)
    if self.original is not None:
      return commands.to_clone(self.original, self.folder, self.sets, base)
    files = [*self.config_files, *([base] if self.base else [])]
    words = (sys.executable, *driver_lib.program_words(driver.program), *self._flags(self.folder, files))
    return commands.Command(words, driver.cwd, self.folder, self.mode)

  def _flags(self, folder: str, config_files: Sequence[str]) -> list[str]:
    return [
      f'--experiment={self.experiment}',
      f'--mode={self.mode}',
      f'--model_dir={folder}',
      *(f'--registry={module}' for module in self.registry),
      *(f'--config_file={path}' for path in config_files),
      *(f'--set={text}' for text in self.sets),
    ]

  def shell_lines(self, driver: driver_lib.Driver) -> str:
    """The commands of a shell to make the same run in the same way."""
    command = self.command(driver)
    target = commands.quoted(os.path.join(self.folder, commands.BASE_PARAMS))
    before = ''
    if self.original is not None:
      source = commands.quoted(self.original.file(run_folders.PARAMS))
      before = f'mkdir -p {commands.quoted(self.folder)} && cp {source} {target} &&\n'
    elif self.base:
      end = _END_OF_FILE
      while end in self.base:
        end += '_'
      before = f"mkdir -p {commands.quoted(self.folder)}\ncat > {target} <<'{end}'\n{_whole(self.base)}{end}\n"
    return before + command.in_shell()

  def check(self, driver: driver_lib.Driver, **more: bool) -> json_values.JsonObject:
    """The driver's answer to it, before any of its files exists: see `driver.Driver.check`.

    Raises:
      UserError: the original's command is not known.
      DriverError: the driver cannot be asked.
    """
    try:
      folder = self.folder
    except errors.UserError:  # `check_name` reports the name; the rest is to be reported too.
      folder = os.path.join(self.root, UNNAMED)
    target = os.path.join(folder, commands.BASE_PARAMS)
    with self._base_file() as base:
      flags, cwd = self._checked_flags(folder, base)
      found = driver.check(flags, cwd=cwd, **more)
    for line in found['lines']:
      line['text'] = line['text'].replace(base or target, target)
    return found

  def _checked_flags(self, folder: str, base: str) -> tuple[list[str], str]:
    """The flags that the driver gets, and in which folder, '' for its own.

    Args:
      folder: the run's.
      base: a file with its present initial configuration; '' for none.
    """
    if self.original is None:
      return self._flags(folder, [*self.config_files, *([base] if base else [])]), ''
    command = commands.to_clone(self.original, folder, self.sets, base or None)
    return list(command.words[len(_program(command)) :]), command.cwd

  def program(self) -> tuple[str, str]:
    """Returns the original's program, see driver.py, and the folder in which it finds modules first.

    Both are '' if there is no original, or its program is not known.
    """
    if self.original is None:
      return '', ''
    command = commands.to_clone(self.original, os.path.join(self.root, UNNAMED))
    words = _program(command)
    if driver_lib.INSTALLED_PROGRAM in words or words[-1] == 'train':  # `official-ext train`.
      return driver_lib.INSTALLED_PROGRAM, command.cwd
    files = [os.path.join(command.cwd, word) for word in words if word.endswith('.py')]
    path = os.path.realpath(files[-1]) if files and os.path.isfile(files[-1]) else ''
    return path, os.path.dirname(path)

  @contextlib.contextmanager
  def _base_file(self):
    """The path of a file with the run's initial configuration; '' without one."""
    if self.original is not None:
      yield self.original.file(run_folders.PARAMS)
    elif self.base:
      with tempfile.NamedTemporaryFile('w', encoding='utf-8', suffix='.yaml') as file:
        file.write(_whole(self.base))
        file.flush()
        yield file.name
    else:
      yield ''

  def make(self, driver: driver_lib.Driver) -> commands.Command:
    """Makes its folder, with the files of the command, and returns the command.

    Raises:
      UserError: the name is taken, or leads out of `root`.
      StorageError: it cannot be written.
    """
    if self.original is not None:
      return commands.make_clone(self.original, self.root, self.name, self.sets)
    command = self.command(driver)
    try:
      commands.make_folder(self.root, self.name)
    except FileExistsError:
      self.check_name()
    if self.base:
      self.write_base()
    return command

  def rehearsal(self, driver: driver_lib.Driver, folder: str, name: str = 'check') -> commands.Command:
    """The command `official-ext check` or `official-ext preview` for it, which trains no run.

    Args:
      driver: the driver.
      folder: for its initial configuration, if there is one, and for the picture PREVIEW of images; it is made if
        needed.
      name: 'check' or 'preview'.

    Raises:
      StorageError: that cannot be written.
    """
    base = ''
    if self.base and self.original is None:
      os.makedirs(folder, exist_ok=True)
      base = commands.write_base(folder, _whole(self.base).encode())
    flags, cwd = self._checked_flags(folder, base)
    experiment = next(flag for flag in flags if flag.startswith('--experiment=')).partition('=')[2]
    others = [flag for flag in flags if not flag.startswith(('--experiment=', '--mode=', '--model_dir='))]
    if name == 'preview':
      output = f'--output={os.path.join(folder, os.path.splitext(PREVIEW)[0])}'  # With the ending of images or texts.
      others = [output, '--rows=3', '--columns=5', '--tile=160', *others]  # As large as the page's dialog.
    words = (sys.executable, '-u', '-m', 'official_ext.cli.main', name, experiment, *others)
    return commands.Command(words, cwd or driver.cwd, folder)

  @property
  def has_base(self) -> bool:
    """Whether it begins with a configuration that `write_base` writes."""
    return bool(self.base) or self.original is not None

  def write_base(self) -> str:
    """Writes its initial configuration into its folder, which exists, and returns the path of the file.

    Raises:
      StorageError: it cannot be written, or the configuration of the original cannot be read.
    """
    if self.original is not None:
      return commands.write_base_of(self.original, self.folder)
    return commands.write_base(self.folder, _whole(self.base).encode())

  def shared_flags(self) -> tuple[str, str, list[str]]:
    """Returns the experiment, the mode, and the other flags except the folder, which similar runs share.

    Raises:
      UserError: the name leads out of `root`, or the original's command is not known.
    """
    base = os.path.join(self.folder, commands.BASE_PARAMS) if self.has_base else ''
    flags, _ = self._checked_flags(self.folder, base)
    values = {name: text for name, _, text in (flag.lstrip('-').partition('=') for flag in flags)}
    own = ('--experiment=', '--mode=', '--model_dir=')
    return values['experiment'], values['mode'], [flag for flag in flags if not flag.startswith(own)]

  def discard(self) -> None:
    """Reverts `make`, for a run that could not be started; leaves a folder with anything else."""
    try:
      if set(os.listdir(self.folder)) <= {commands.BASE_PARAMS, 'started.lock'}:
        shutil.rmtree(self.folder)
    except OSError:
      pass


def set_text(edit: Mapping[str, object]) -> str:
  """`NAME=VALUE` of an edit in a form: `key` with `text`, as --set takes it, or with `string`, any string.

  Raises:
    UserError: it is neither.
  """
  key, text, string = edit.get('key'), edit.get('text'), edit.get('string')
  if not isinstance(key, str) or not isinstance(text if string is None else string, str):
    raise errors.UserError('edits: each has a key, and a text or a string')
  value = text if string is None else config_text.argument_of(string)
  return f'{key}={value}'


def proposed_name(root: str, experiment: str) -> str:
  """A free name for a run of an experiment."""
  name = experiment.replace('/', '-').strip('.') or 'run'
  return name if not os.path.lexists(os.path.join(root, name)) else commands.free_name(root, name)


def _program(command: commands.Command) -> tuple[str, ...]:
  """The words of a clone's command before its flags."""
  place = next(place for place, word in enumerate(command.words) if word.startswith('--experiment='))
  return command.words[:place]


def _whole(text: str) -> str:
  """A text that ends with the end of a line."""
  return text if text.endswith('\n') else text + '\n'
