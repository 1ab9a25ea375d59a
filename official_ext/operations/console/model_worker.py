"""Processes that hold models to be tried: TensorFlow is in them, not in the server, and ends with them.

Each holds one model (language/serving/model_server.py). There are two at most, so that two can be compared; a third
takes the place of the one that was used least lately, and one that nobody uses for a while ends. All end with the
server, whose end is that of their stdin.
"""

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time

from official_ext.base import credentials
from official_ext.base import errors
from official_ext.base import json_types

_MOST = 2
_IDLE_SECONDS = 600.0
_LOAD_SECONDS = 600.0
_ANSWER_SECONDS = 600.0  # Without a sign of life.
_BUSY_SECONDS = 5.0
_END_SECONDS = 2.0


@dataclasses.dataclass(frozen=True)
class ModelKey:
  """Which model a process holds.

  Attributes:
    kind: saved_model or language_model.
    folder: its absolute path.
    time: when that was written: one that was written anew is another model.
    load_in_4bit: of a language model, whether its kernels are kept in 4 bits; None: as its adapters were trained.
  """

  kind: str
  folder: str
  time: float
  load_in_4bit: bool | None = None


class ModelWorker:
  """A process that holds a model. Its methods may be called in several threads; it answers one at a time."""

  def __init__(self, key: ModelKey):
    """Starts the process; `description` waits until the model is loaded."""
    self.used = time.monotonic()
    self._key = key
    self._log = tempfile.TemporaryFile()
    self._lines: queue.Queue[json_types.JsonObject | None] = queue.Queue()
    self._busy = threading.Lock()
    self._loading = threading.Lock()
    self._description: json_types.JsonObject | None = None
    self._has_failed = False
    self._number = 0
    kept = [] if key.load_in_4bit is None else [str(key.load_in_4bit).lower()]
    self._process = subprocess.Popen(
      [sys.executable, '-u', '-m', 'official_ext.language.serving.model_server', key.kind, key.folder, *kept],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=self._log,
      # A run may have the rest of a GPU.
      env={'TF_FORCE_GPU_ALLOW_GROWTH': 'true', 'TF_CPP_MIN_LOG_LEVEL': '2', **os.environ},
      start_new_session=True,
    )
    threading.Thread(target=self._read, daemon=True).start()

  @property
  def is_alive(self) -> bool:
    """Whether the process runs, and has a model."""
    return self._process.poll() is None and not self._has_failed

  @property
  def is_busy(self) -> bool:
    """Whether it answers somebody, or loads its model."""
    return self._busy.locked() or self._loading.locked()

  def description(self) -> json_types.JsonObject:
    """The model's inputs, as soon as it is loaded.

    Raises:
      UserError: it cannot be loaded.
    """
    with self._loading:
      if self._description is None:
        values = self._next(_LOAD_SECONDS)
        if 'errors' in values:
          self._has_failed = True
          raise errors.UserErrors(values['errors'])
        self._description = values
      self.used = time.monotonic()
      return self._description

  def ask(self, request: Mapping[str, object]) -> Iterator[json_types.JsonObject]:
    """Yields the model's answer in pieces; closing the iterator stops it.

    Raises:
      UserError: the model refuses the request, answers another one, or its process has ended.
    """
    self.description()
    if not self._busy.acquire(timeout=_BUSY_SECONDS):  # One that was stopped needs a moment.
      raise errors.UserError('this model is answering already; stop that, or wait')
    try:
      self._number += 1
      number, is_over = self._number, False
      self._send({**request, 'id': number})
      try:
        while not is_over:
          values = self._next(_ANSWER_SECONDS)
          if values.get('id') != number:
            continue
          is_over = 'errors' in values or 'done' in values
          if 'errors' in values:
            raise errors.UserErrors(values['errors'])
          yield values
      finally:
        if not is_over:  # Nobody listens any more.
          with contextlib.suppress(errors.UserError):
            self._send({'id': number, 'do': 'stop'})
            while not is_over:
              values = self._next(_ANSWER_SECONDS)
              is_over = values.get('id') == number and ('errors' in values or 'done' in values)
        self.used = time.monotonic()
    finally:
      self._busy.release()

  def close(self) -> None:
    """Ends the process."""
    with contextlib.suppress(OSError):
      self._process.stdin.close()  # type: ignore[union-attr]
    try:
      self._process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()

  def _send(self, values: Mapping[str, object]) -> None:
    try:
      self._process.stdin.write(json.dumps(values).encode() + b'\n')  # type: ignore[union-attr]
      self._process.stdin.flush()  # type: ignore[union-attr]
    except OSError:
      raise self._ended() from None

  def _read(self) -> None:
    for line in self._process.stdout:  # type: ignore[union-attr]
      with contextlib.suppress(ValueError):
        self._lines.put(json.loads(line))
    self._lines.put(None)

  def _next(self, seconds: float) -> json_types.JsonObject:
    try:
      values = self._lines.get(timeout=seconds)
    except queue.Empty:
      self._process.kill()
      raise errors.UserError(f'the process with the model has not answered for {seconds:g} s, and was ended') from None
    if values is None:
      self._lines.put(None)
      raise self._ended()
    return values

  def _ended(self) -> errors.UserError:
    try:
      status = self._process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
      status = 0
    if status < 0:
      memory = ', as when memory is short' if status == -signal.SIGKILL else ''
      return errors.UserError(f'the process with the model was killed by {signal.Signals(-status).name}{memory}')
    self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 4096))
    lines = self._log.read().decode('utf-8', 'replace').strip().splitlines()
    reason = f': {credentials.mask(lines[-1])[:300]}' if lines else ''
    return errors.UserError(f'the process with the model ended with status {status}{reason}')


class ModelWorkers:
  """The processes of a server."""

  def __init__(self, idle_seconds: float = _IDLE_SECONDS):
    """Starts none yet.

    Args:
      idle_seconds: a process that nobody uses for so long ends.
    """
    self._idle_seconds = idle_seconds
    self._workers: dict[ModelKey, ModelWorker] = {}
    self._lock = threading.Lock()
    self._watch: threading.Thread | None = None

  def get(self, key: ModelKey) -> ModelWorker:
    """The process that holds a model, which is started if there is none.

    Raises:
      UserError: there is no room: all others are answering.
    """
    with self._lock:
      self._drop_dead()
      worker = self._workers.get(key)
      if worker is None:
        self._make_room(key)
        worker = self._workers[key] = ModelWorker(key)
        if self._watch is None:
          self._watch = threading.Thread(target=self._end_idle, daemon=True)
          self._watch.start()
      worker.used = time.monotonic()
      return worker

  def loaded(self) -> list[ModelKey]:
    """Which models are held."""
    with self._lock:
      self._drop_dead()
      return list(self._workers)

  def close(self, folder: str | None = None) -> None:
    """Ends the processes of a folder's model, or all."""
    with self._lock:
      chosen = [key for key in self._workers if folder in (None, key.folder)]
      workers = [self._workers.pop(key) for key in chosen]
    for worker in workers:
      worker.close()

  def _drop_dead(self) -> None:
    for key, worker in list(self._workers.items()):
      if not worker.is_alive:
        del self._workers[key]
        worker.close()

  def _make_room(self, key: ModelKey) -> None:
    for old in [other for other in self._workers if dataclasses.replace(other, time=key.time) == key]:
      self._workers.pop(old).close()
    while len(self._workers) >= _MOST:
      idle = [(worker.used, other) for other, worker in self._workers.items() if not worker.is_busy]
      if not idle:
        raise errors.UserError(f'{_MOST} models are loaded, and both are busy; stop one, or wait')
      self._workers.pop(min(idle, key=lambda pair: pair[0])[1]).close()

  def _end_idle(self) -> None:
    """The watching thread: it ends when no process is left."""
    while True:
      time.sleep(min(5.0, self._idle_seconds / 4))
      with self._lock:
        if not self._workers:
          self._watch = None  # The next model begins another.
          return
        late = time.monotonic() - self._idle_seconds
        idle = [key for key, worker in self._workers.items() if worker.used < late and not worker.is_busy]
        workers = [self._workers.pop(key) for key in idle]
      for worker in workers:
        worker.close()
