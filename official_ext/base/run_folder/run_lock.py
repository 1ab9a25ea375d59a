"""One training per folder: a lock that ends with its process, and a lease for file systems without locks.

`training.lock` exists while a training runs. Its process holds an advisory lock (flock) on it, which the kernel
releases however the process ends. The file's content, the lease, identifies the process, and changes with every
heartbeat. It counts on file systems that have no locks, such as `gs://`, or keep them to one host.
"""

from collections.abc import Callable, Mapping
import contextlib
import json
import os
import threading
import time
import uuid
import weakref

from absl import logging

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import processes
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.base.run_folder import run_status

NAME = 'training.lock'

_LEASE_BYTES = 1024  # Written in place, at once: a change of its length would show half of it.
_PATIENCE_SECONDS = 2.0  # A process that was killed a moment ago may still be giving its memory back.
_SETTLE_SECONDS = 2.0  # Between writing a lease without a lock and believing it: two may have written.
_POLL_SECONDS = 0.2


class RunLock:
  """The right of this process to train in a folder."""

  def __init__(
    self,
    model_dir: str,
    mode: str = 'train',
    beat_seconds: float = run_status.HEARTBEAT_SECONDS,
    silence_seconds: float = run_status.SILENCE_SECONDS,
  ):
    """Takes no lock yet.

    Args:
      model_dir: the run's folder.
      mode: the driver's --mode, for messages.
      beat_seconds: the interval of the heartbeat.
      silence_seconds: how long a holder that cannot be seen from here may give no heartbeat before it counts as dead.
    """
    self._model_dir = model_dir
    self._path = os.path.join(model_dir, NAME)
    self._beat_seconds = beat_seconds
    self._silence_seconds = silence_seconds
    self._lease: dict[str, object] = {'mode': mode}
    self._file = -1
    self._heartbeat: run_status.Heartbeat | None = None
    self._is_released = False
    self._writing = threading.Lock()  # Between a heartbeat, which may hang with its file system, and the release.
    self._taken_by: str | None = None
    self._ours_at = (0.0, 0.0)  # When the lease was last seen to be this process's.

  def acquire(self, stop_requested: Callable[[], str | None] = lambda: None) -> None:
    """Takes the folder, and makes it if it does not exist.

    If it cannot be seen from here whether the last holder has ended, as after the crash of another host, this waits for
    a sign of life, and takes the folder if none comes.

    Args:
      stop_requested: returns the name of a signal that ends the wait, or None.

    Raises:
      UserError: another training holds it; nothing was written.
      PreemptedError: `stop_requested` returned true.
    """
    self._lease = {
      **processes.own_identity().as_dict(),
      'mode': self._lease['mode'],
      'since': json_values.timestamp_now(),
      'token': uuid.uuid4().hex,
    }
    try:
      paths.make_folder(self._model_dir)
      locked = self._open()
      self._outlast(_read_lease(self._path), locked, stop_requested)
      self._write()
      if not locked:
        self._settle()
    except OSError as error:
      self._abandon()
      kind = errors.StorageError if error.errno in paths.FULL_OR_FAILING else errors.UserError
      raise kind(f'{self._path}: cannot be written: {error.strerror or error}') from error
    except BaseException:
      self._close()
      raise
    self._ours_at = _clocks()
    self._is_released = False
    self._heartbeat = run_status.Heartbeat(self._beat, self._beat_seconds)

  def release(self) -> None:
    """Releases the folder, if it is held, and deletes the file."""
    if self._heartbeat is None:
      return
    self._heartbeat.close()
    self._heartbeat = None
    with self._writing:
      self._is_released = True
    try:
      if self._taken_by is None and self._is_ours(_read_lease(self._path)):
        paths.remove(self._path)
    except OSError as error:
      logging.warning('%s cannot be deleted: %s', self._path, error)
    self._close()

  @property
  def is_lost(self) -> bool:
    """Whether another process has taken the folder."""
    if self._heartbeat is not None and self._was_silent():  # The machine woke up, and this came before the heartbeat.
      with contextlib.suppress(OSError):
        self._look()
    return self._taken_by is not None

  def check(self) -> None:
    """Makes sure that the folder is still this process's.

    Raises:
      LockLostError: this process gave no sign of life for so long that another took the folder.
    """
    if self.is_lost:
      raise errors.LockLostError(
        f'{self._model_dir}: {self._taken_by} trains in it now, for this process gave no sign of life for more than '
        f'{self._silence_seconds:g} s. It stops without saving'
      )

  # The file.

  def _open(self) -> bool:
    """Opens the file, and locks it. Returns whether there is a lock.

    Raises:
      UserError: another process has it.
    """
    if paths.is_remote(self._path):
      return False
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
      self._close()
      self._file = local_files.open_descriptor(self._path, os.O_RDWR | os.O_CREAT)
      _OPEN.add(self)
      locked = local_files.try_lock(self._file)
      if locked is None and time.monotonic() > deadline:
        raise _refusal(self._model_dir, _read_lease(self._path))
      if locked is None:
        time.sleep(_POLL_SECONDS)
      elif local_files.is_lock_at(self._file, self._path):  # Unless its holder has deleted it meanwhile.
        return locked

  def _close(self) -> None:
    if self._file >= 0:
      os.close(self._file)
      self._file = -1

  def _leave(self) -> None:
    """In a forked child: the folder is the parent's."""
    self._heartbeat = None
    self._close()

  def _abandon(self) -> None:
    """Closes the file, and deletes it if it is empty, as on a full disk."""
    with contextlib.suppress(OSError):
      if self._file >= 0 and local_files.try_lock(self._file) and _read_lease(self._path) is None:
        os.remove(self._path)
    self._close()

  def _write(self) -> None:
    self._lease['heartbeat'] = json_values.timestamp_now()
    if self._file < 0:
      paths.write_atomically(self._path, json.dumps(self._lease).encode(), sync=False)
      return
    status = os.fstat(self._file)
    self._lease['file'] = [status.st_dev, status.st_ino]
    os.pwrite(self._file, json.dumps(self._lease).encode().ljust(_LEASE_BYTES - 1) + b'\n', 0)
    paths.sync_descriptor(self._file)  # Other hosts see only data that has reached the server.

  # The holder.

  def _outlast(self, lease, locked, stop_requested):
    """Waits until the holder that a lease names is dead.

    Raises:
      UserError: it lives.
      PreemptedError: see `acquire`.
    """
    alive = _is_held(lease, self._file if locked else -1)
    if alive:
      raise _refusal(self._model_dir, lease)
    if alive is False:
      return
    logging.warning(
      '%s: %s trained here, and its end cannot be seen from this process: waiting for a sign of life, up to %g s.',
      self._model_dir,
      processes.parse_identity(lease or {}) or 'an unknown process',
      self._silence_seconds,
    )
    deadline = time.monotonic() + self._silence_seconds
    while time.monotonic() < deadline:
      if name := stop_requested():
        raise errors.PreemptedError(f'{name}: stopped before the training began. The same command starts it')
      time.sleep(min(_POLL_SECONDS, self._silence_seconds))
      now = _read_lease(self._path)
      if now is None:  # It has finished.
        return
      if now != lease:
        raise _refusal(self._model_dir, now)

  def _settle(self) -> None:
    """Makes sure that this process was the last to write the lease, which decides if there is no lock.

    Raises:
      UserError: that is another process.
    """
    time.sleep(min(_SETTLE_SECONDS, self._silence_seconds))
    lease = _read_lease(self._path)
    if lease is not None and not self._is_ours(lease):
      raise _refusal(self._model_dir, lease)

  def _is_ours(self, lease: Mapping[str, object] | None) -> bool:
    return bool(lease) and lease.get('token') == self._lease['token']  # type: ignore[union-attr]

  def _was_silent(self) -> bool:
    """Whether others may have taken this process for dead. Of its two clocks one stops in sleep, one may be changed."""
    return any(now - then > self._silence_seconds / 2 for now, then in zip(_clocks(), self._ours_at))

  def _look(self) -> json_values.JsonMapping | None:
    """Reads the lease, and notes its owner."""
    lease = _read_lease(self._path)
    if lease and not self._is_ours(lease):
      self._taken_by = _describe(lease)
    elif lease:
      self._ours_at = _clocks()
    return lease

  def _beat(self) -> None:
    lease = self._look()
    with self._writing:
      if self._taken_by is not None or self._is_released:
        return
      if lease is None and self._file >= 0 and os.path.isdir(self._model_dir):  # It was deleted.
        self._open()
      self._write()


def check_free(model_dir: str) -> None:
  """Refuses a folder in which another training certainly runs, before this process builds anything. Writes nothing.

  Raises:
    UserError: naming that training.
  """
  path = os.path.join(model_dir, NAME)
  deadline = time.monotonic() + _PATIENCE_SECONDS
  with contextlib.suppress(OSError):  # `acquire` reports it.
    while (lease := _read_lease(path)) is not None and _is_certainly_held(path, lease):
      if time.monotonic() > deadline:
        raise _refusal(model_dir, lease)
      time.sleep(_POLL_SECONDS)


def _is_certainly_held(path: str, lease: Mapping[str, object]) -> bool:
  if paths.is_remote(path):
    return bool(_is_held(lease, -1))
  file = local_files.open_descriptor(path, os.O_RDONLY)
  try:
    locked = local_files.try_lock(file, shared=True)
    return locked is None or bool(_is_held(lease, file if locked else -1))
  finally:
    os.close(file)


def _is_held(lease: Mapping[str, object] | None, file: int) -> bool | None:
  """Whether the process that a lease names is alive; None if only its heartbeat can show it.

  Args:
    lease: None without a lease.
    file: the descriptor of a file that this process has locked, or -1.
  """
  if lease is None:
    return False
  process = processes.parse_identity(lease)
  if process is None:
    return False if file >= 0 else None
  here = processes.own_identity()
  if file >= 0 and process.boot_id and process.boot_id == here.boot_id:
    status = os.fstat(file)
    if lease.get('file') == [status.st_dev, status.st_ino]:
      return False  # On the same kernel and file system its lock would block ours.
  return processes.is_alive(process)


def _read_lease(path: str) -> dict[str, object] | None:
  """The lease in a file; None if the file does not exist or is empty, {} if it holds something else."""
  try:
    content = paths.read(path, local_files.MAX_RECORD)
  except FileNotFoundError:
    return None
  if not content.strip():
    return None
  try:
    return json_values.parse_object(content)
  except ValueError:
    return {}


def _refusal(model_dir: str, lease: Mapping[str, object] | None) -> errors.StateError:
  return errors.StateError(
    f'--model_dir={model_dir}: {_describe(lease)} trains in this folder; wait for it or stop it, or choose another '
    'folder'
  )


def _describe(lease: Mapping[str, object] | None) -> str:
  process = processes.parse_identity(lease or {})
  if not lease or process is None:
    return 'another process'
  return f'{process} (--mode={lease.get("mode")}, since {lease.get("since")})'


def _clocks() -> tuple[float, float]:
  return time.monotonic(), time.time()


_OPEN: 'weakref.WeakSet[RunLock]' = weakref.WeakSet()


def _after_fork() -> None:
  """Closes the file in a forked child, which would otherwise keep the lock after its parent's death."""
  for lock in list(_OPEN):
    lock._leave()  # pylint: disable=protected-access
  _OPEN.clear()


if hasattr(os, 'register_at_fork'):
  os.register_at_fork(after_in_child=_after_fork)
