"""Runs on remote file systems, such as gs://bucket/runs: local copies of their small files.

Operations read runs as local files: by their ends, their times and their inodes. A copy lies in a temporary folder,
which the end of this process deletes. base/files/paths.py reads the remote file system, by TensorFlow. Changes that
people make, such as tags, are made in the copy, and `push` writes them back.
"""

import atexit
from collections.abc import Callable, Iterator
import contextlib
import os
import re
import shutil
import tempfile
import threading
import time
from typing import BinaryIO

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.operations.runs import run_folders

# Files with their content. Of others, such as checkpoints, the copy has the name and the size.
_TEXTS = ('.json', '.jsonl', '.yaml', '.log', '.txt', '.csv', '.tsv', '.gin')
_IMAGES = re.compile(r'events\.out\.tfevents\..*|.*\.(png|jpe?g|gif|svg|html)')
_EVENTS = '.jsonl'  # Files that only grow, until a new attempt.
_TAIL = 1 << 22  # Bytes. The part of a file of events that a list of runs needs: see event_log.py.
_OVERLAP = 1 << 12  # Bytes that show that a file has only grown.
_BLOCK = 1 << 20  # Bytes that are copied at a time.
_OF_SUMMARY = re.compile(
  r'(run|started|stop)(\.[a-z_]+)?\.json|events(\.[a-z_]+)?\.jsonl|params\.yaml|notes\.json|archived\.json'
)


class Mirror:
  """A local copy of a remote folder with runs, or of a run. One thread refreshes it, and any may read.

  Attributes:
    root: the remote folder.
    path: its copy.
    cache: a local folder for caches of what is read from the copy.
  """

  def __init__(self, root: str, only_summaries: bool = False, has_images: bool = False):
    """Copies nothing yet.

    Args:
      root: the remote folder.
      only_summaries: whether to copy only what a list of runs shows.
      has_images: whether to copy images and TensorBoard's files too.
    """
    self.root = paths.real(root)
    place = tempfile.mkdtemp(prefix='official_ext-')
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    self.path = os.path.join(place, os.path.basename(self.root) or 'runs')
    self.cache = os.path.join(place, '.cache')
    self._only_summaries = only_summaries
    self._has_images = has_images
    self._known: dict[str, tuple[int, float]] = {}  # Size and time of each remote file whose copy is current.

  def refresh(self) -> None:
    """Brings the copy up to date.

    Raises:
      UserError: there is no such folder, or it cannot be read.
    """
    with _explained(self.root, 'no such folder; name the one that has your runs'):
      _check_listed(self.root, paths.is_folder(self.root))
      found: set[str] = set()
      self._copy_folder('', found)
      for name in list(paths.files_below(self.path)):
        if name not in found:
          os.remove(os.path.join(self.path, name))
          self._known.pop(name, None)

  def keep_current(self, seconds: float, report: Callable[[str], None]) -> None:
    """Refreshes the copy in a thread, until the process ends. A failure leaves the copy unchanged until it succeeds.

    Args:
      seconds: between two refreshes.
      report: called with the first of several failures in a row.
    """

    def refresh() -> None:
      has_failed = False
      while True:
        time.sleep(seconds)
        try:
          self.refresh()
          has_failed = False
        except (errors.UserError, OSError) as error:
          if not has_failed:
            report(f'{error}; the shown runs are those of before')
          has_failed = True

    threading.Thread(target=refresh, daemon=True).start()

  def _copy_folder(self, below: str, found: set[str]) -> None:
    """Copies a folder, and those in it, and notes the copied files.

    Args:
      below: its path below the root.
      found: the paths of files that exist, to be extended.
    """
    entries = paths.entries(os.path.join(self.root, below))
    names = [name for name, is_folder in entries if not is_folder]
    inside = run_folders.is_run_of(names)
    os.makedirs(os.path.join(self.path, below), exist_ok=True)
    for name in names:
      if not self._only_summaries or _OF_SUMMARY.fullmatch(name):
        path = os.path.join(below, name)
        found.add(path)
        with contextlib.suppress(FileNotFoundError):  # Deleted a moment ago.
          self._copy_file(path)
    for name, is_folder in entries:
      is_searched = run_folders.may_have_runs(name, inside) if self._only_summaries else not name.startswith('.')
      if is_folder and is_searched:
        self._copy_folder(os.path.join(below, name), found)

  def _copy_file(self, name: str) -> None:
    remote, copy = os.path.join(self.root, name), os.path.join(self.path, name)
    size, seconds = paths.size_and_time(remote)
    # ram:// knows no times: a file of the same size may have changed.
    if self._known.get(name) == (size, seconds) and (seconds or not name.endswith(_TEXTS)):
      return
    if name.endswith(_EVENTS):
      _copy_events(remote, copy, size, self._only_summaries)
    elif name.endswith(_TEXTS) or (self._has_images and _IMAGES.fullmatch(os.path.basename(name))):
      content = paths.read(remote)
      if _content_of(copy) != content:
        paths.write_atomically(copy, content, sync=False)
    else:
      with open(copy, 'wb') as file:
        file.truncate(size)
    if seconds:
      os.utime(copy, (seconds, seconds))
    self._known[name] = size, seconds


def copied(folder: str, name: str = '') -> run_folders.Run:
  """Copies a remote run.

  Args:
    folder: its path, such as gs://bucket/run.
    name: of the run; '' for the name of the folder.

  Returns:
    The copy.

  Raises:
    UserError: the folder has no run, or cannot be read.
  """
  mirror = Mirror(folder)
  with _explained(mirror.root, 'no run; name the folder that has its run.json'):
    _check_listed(mirror.root, run_folders.is_run(mirror.root))
  mirror.refresh()
  return run_folders.Run(mirror.path, name or os.path.basename(mirror.root), mirror.root)


def push(run: run_folders.Run, name: str) -> None:
  """Writes a file of a copy back to the remote folder, or deletes it there; nothing for a local run.

  Of several processes that change it at once the last one counts: remote storage has no locks.

  Args:
    run: the run.
    name: of the file.

  Raises:
    StorageError: it cannot be written.
  """
  if not run.origin:
    return
  content, remote = _content_of(run.file(name)), os.path.join(run.origin, name)
  with paths.storing(remote):
    if content is None:
      paths.remove(remote)
    else:
      paths.write_atomically(remote, content)


def _content_of(path: str) -> bytes | None:
  try:
    return paths.read(path)
  except OSError:
    return None


def _copy_events(remote: str, copy: str, size: int, only_end: bool) -> None:
  """Copies a file that may have grown since it was copied: then its end is added to the copy.

  Args:
    remote: its path.
    copy: the path of the copy.
    size: the size to copy, in bytes: a run may add to the file meanwhile.
    only_end: whether the copy may have zeros in place of all but the end.
  """
  before = paths.size(copy)
  with paths.open_to_read(remote) as file:
    grows = 0 < before <= size and _ends_alike(file, copy, before)
    start = before if grows else max(0, size - _TAIL) if only_end else 0
    written = copy if grows else f'{copy}.tmp'  # A new file has another inode, by which readers know that it is one.
    with open(written, 'ab' if grows else 'wb') as target:
      target.truncate(start)
      target.seek(start)
      file.seek(start)
      while start < size and (block := file.read(min(size - start, _BLOCK))):
        start += target.write(block)
  if not grows:
    os.replace(written, copy)


def _ends_alike(file: BinaryIO, copy: str, end: int) -> bool:
  """Whether a file and its copy have the same bytes before a place."""
  with open(copy, 'rb') as copied:
    for each in (copied, file):
      each.seek(max(0, end - _OVERLAP))
    return copied.read() == file.read(min(end, _OVERLAP))


def _check_listed(folder: str, has_found: bool) -> None:
  """Raises the error of a file system that lists nothing, as one does that cannot be reached; FileNotFoundError."""
  if not has_found:
    paths.read(os.path.join(folder, 'run.json'))


@contextlib.contextmanager
def _explained(folder: str, missing: str) -> Iterator[None]:
  """A context in which the errors of a remote folder are a line each; `missing` describes one that is missing."""
  try:
    yield
  except FileNotFoundError:
    raise errors.UserError(f'{folder}: {missing}') from None
  except OSError as error:
    raise errors.UserError(f'{folder}: cannot be read: {error.strerror or error}') from error
