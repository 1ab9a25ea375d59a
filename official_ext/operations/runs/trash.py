"""Runs out of sight: deleted ones, which can be brought back, and archived ones, which stay in their place.

A deleted run is moved, by one rename, to `RUNS_DIR/.trash/ID/run`; `ID/trash.json` has its name. An archived run has a
mark (`archived.json`): its path stays, as others may begin with its checkpoints.
"""

from collections.abc import Iterator
import contextlib
import dataclasses
import errno
import os
import time
import uuid

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.base.run_folder import run_status
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_processes
from official_ext.operations.runs import statuses

FOLDER = '.trash'
ARCHIVED = 'archived.json'
_NOTE = 'trash.json'
_RUN = 'run'
_DOOMED = '.deleting'  # Such a place may be half empty: it is not brought back.


@dataclasses.dataclass(frozen=True)
class Deleted:
  """A run in the trash.

  Attributes:
    key: distinguishes it from others of its name. One that ends with `.deleting` was not deleted to its end.
    name: the name that it had.
    deleted: when it was deleted, as text.
    run: its folder, at present.
  """

  key: str
  name: str
  deleted: str
  run: run_folders.Run

  @property
  def place(self) -> str:
    """Its folder in the trash, with the note."""
    return os.path.dirname(self.run.path)


# Deleted ones.


def delete(root: str, run: run_folders.Run) -> Deleted:
  """Moves a run to the trash, if it does not live; `restore` undoes it.

  Args:
    root: the folder with the runs.
    run: one of them.

  Raises:
    UserError: it lives, or another in its folder does; it is `root` itself; or it cannot be moved.
    StorageError: the trash cannot be written.
  """
  if run.name == '.':
    raise errors.UserError(f'{run.path}: is the folder with the runs; name the one above it, and then the run')
  key = f'{time.strftime("%Y%m%d-%H%M%S")}-{uuid.uuid4().hex[:8]}'
  place = os.path.join(os.path.abspath(root), FOLDER, key)
  with _held(run) as lock:
    _refuse_living(run)
    _refuse_written(run, lock.descriptor)
    try:
      _make(place)
      json_values.write_file(
        os.path.join(place, _NOTE),
        {'name': run.name, 'deleted': json_values.timestamp_now(), 'time_ns': time.time_ns()},
      )
      moved = _move(run, os.path.join(place, _RUN))
    except BaseException:
      _remove_place(place)
      raise
    if statuses.is_alive(moved):  # It was started by hand, a moment ago.
      paths.rename(moved.path, run.path)
      _remove_place(place)
      _refuse_living(run)
  return Deleted(key, run.name, json_values.timestamp_now(), moved)


def deleted(root: str) -> list[Deleted]:
  """The runs in the trash of a folder, the latest first.

  Raises:
    UserError: there is no such folder, or it cannot be read.
  """
  found: list[tuple[tuple[str, int], Deleted]] = []
  for key in _names(os.path.abspath(root)):
    place = os.path.join(os.path.abspath(root), FOLDER, key)
    values = json_values.read_file(os.path.join(place, _NOTE)) or {}
    name, when = values.get('name'), values.get('deleted')
    path = os.path.join(place, _RUN)
    if isinstance(name, str) and name and os.path.lexists(path):
      when, exactly = when if isinstance(when, str) else '', values.get('time_ns')
      order = when, exactly if isinstance(exactly, int) else 0  # Several may have gone within a second.
      found.append((order, Deleted(key, name, when, run_folders.Run(path, name))))
  return [each for _, each in sorted(found, key=lambda pair: pair[0], reverse=True)]


def find_deleted(root: str, name: str) -> Deleted:
  """The run in the trash that had a name, the latest of several; or the run of a key.

  Raises:
    UserError: it is not in the trash.
  """
  for each in deleted(root):
    if name in (each.name, each.key):
      return each
  raise errors.UserError(f'{name}: is not in the trash; `official-ext runs list --trash` shows those that are')


def restore(root: str, each: Deleted, name: str | None = None) -> run_folders.Run:
  """Brings a run back from the trash.

  Args:
    root: the folder with the runs.
    each: the run.
    name: its name from now on; None: the one that it had.

  Raises:
    UserError: something else has that name now, or no run may have it; or another process has brought it back, or begun
      to delete it.
    StorageError: the folder cannot be written.
  """
  if each.key.endswith(_DOOMED):
    raise errors.UserError(f'{each.name}: was deleted in part, and cannot come back: --forever deletes the rest')
  name = each.name if name is None else name
  target = run_folders.checked_folder(root, name)
  _make(os.path.dirname(target))
  # The empty folder marks the name as taken for others, and is replaced by a rename.
  try:
    os.mkdir(target)
  except FileExistsError:
    raise errors.UserError(f'{name}: something exists there already; give it another name: --name=NAME') from None
  except OSError as error:
    raise errors.StorageError(f'{target}: cannot be made: {error.strerror}') from error
  try:
    if os.path.islink(each.run.path):
      os.rmdir(target)
    run = _move(run_folders.Run(each.run.path, name), target)
  except BaseException:
    with contextlib.suppress(OSError):
      os.rmdir(target)
    raise
  _remove_place(each.place)
  return run


def delete_forever(each: Deleted) -> None:
  """Deletes a run in the trash with all its files; of a symbolic link the link alone.

  Raises:
    StorageError: not all of them can be deleted.
  """
  doomed = each.place if each.key.endswith(_DOOMED) else each.place + _DOOMED
  try:
    os.rename(each.place, doomed)
    path = os.path.join(doomed, _RUN)
    paths.remove_folder(path)  # The note last: until then the place is known.
    paths.remove_folder(doomed)
  except FileNotFoundError:
    raise errors.UserError(f'{each.name}: is not in the trash any more') from None
  except OSError as error:
    raise errors.StorageError(f'{error.filename or doomed}: cannot be deleted: {error.strerror}') from error


def _names(root: str) -> list[str]:
  try:
    os.listdir(root)
    return paths.names(os.path.join(root, FOLDER))
  except OSError as error:
    raise errors.UserError(f'{error.filename or root}: cannot be read: {error.strerror}') from None


def _make(folder: str) -> None:
  try:
    paths.make_folder(folder)
  except OSError as error:
    raise errors.StorageError(f'{folder}: cannot be made: {error.strerror}') from error


def _move(run: run_folders.Run, target: str) -> run_folders.Run:
  """Renames a run's folder."""
  try:
    paths.rename(run.path, target)
  except FileNotFoundError:
    raise errors.UserError(f'{run.name}: is not there any more: another process has moved or deleted it') from None
  except OSError as error:
    if error.errno == errno.EXDEV:
      raise errors.UserError(f'{run.name}: is on another file system than {FOLDER}; move it by hand') from None
    raise errors.UserError(f'{run.name}: cannot be moved: {error.strerror}') from error
  return run_folders.Run(target, run.name)


def _remove_place(place: str) -> None:
  """Removes a folder of the trash, if it has no run: the move may have succeeded in spite of its error."""
  with contextlib.suppress(OSError):
    if not os.path.lexists(os.path.join(place, _RUN)):
      paths.remove(os.path.join(place, _NOTE))
      os.rmdir(place)


# Archived ones.


def archive(run: run_folders.Run) -> None:
  """Takes a run out of lists, if it does not live. Its files stay where they are.

  Raises:
    UserError: it lives.
    StorageError: its folder cannot be written.
  """
  with _held(run):
    _refuse_living(run)
    json_values.write_file(run.file(ARCHIVED), {'archived': json_values.timestamp_now()})


def unarchive(run: run_folders.Run) -> None:
  """Takes a run into lists again.

  Raises:
    StorageError: its folder cannot be written.
  """
  try:
    paths.remove(run.file(ARCHIVED))
  except OSError as error:
    raise errors.StorageError(f'{run.file(ARCHIVED)}: cannot be deleted: {error.strerror}') from error


@contextlib.contextmanager
def _held(run: run_folders.Run) -> Iterator[local_files.FileLock]:
  """A context in which no other process starts the run, or moves it.

  Raises:
    UserError: another process does; or it is missing.
    StorageError: its folder cannot be written.
  """
  with contextlib.ExitStack() as stack:
    try:
      lock = stack.enter_context(local_files.FileLock(run.file(run_processes.START_LOCK)))
    except FileNotFoundError:
      raise errors.UserError(f'{run.name}: is not there any more') from None
    except TimeoutError:
      raise errors.UserError(f'{run.name}: is being started by another process; retry later') from None
    except OSError as error:
      raise errors.StorageError(f'{run.path}: cannot be written: {error.strerror}') from error
    yield lock


def _refuse_living(run: run_folders.Run) -> None:
  """Raises a UserError if a run, or one in its folder, lives or may live."""
  for name, each in _with_inner(run):
    if statuses.is_alive(each):
      found = statuses.of_run(each)
      where = f', {found.reason}' if found.reason else ''
      raise errors.StateError(f'{name}: is {found.status}{where}; stop it first')


def _refuse_written(run: run_folders.Run, descriptor: int) -> None:
  """Raises a UserError if a run, or one in its folder, counts as dead by its heartbeat, and still writes.

  It may seem dead because its clock differs from this one's. The file system has one clock for all, which `descriptor`
  shows, a file in the run's folder.
  """
  os.utime(descriptor)
  now = os.fstat(descriptor).st_mtime
  for name, each in _with_inner(run):
    for mode in each.modes():
      record = each.record(mode)
      if record is None or not run_status.is_out_of_sight(record):
        continue
      path = run_status.path_of(each.path, mode)
      age = now - os.stat(path).st_mtime
      if age < run_status.SILENCE_SECONDS:
        raise errors.StateError(
          f'{name}: {os.path.basename(path)} was written {age:.0f} s ago: the run continues on {record.get("host")}, '
          'whose clock is wrong; stop it first'
        )


def _with_inner(run: run_folders.Run) -> list[tuple[str, run_folders.Run]]:
  """A run, and the runs in its folder, with their names."""
  inner = [found for found in run_folders.find_runs(run.path) if found.path != run.path]
  return [(run.name, run), *((f'{run.name}/{each.name}', each) for each in inner)]
