"""The page of models: exports, and trying them in processes that hold models.

TensorFlow is in these processes, not in the server. Each holds one model (language/serving/model_server.py). There are
at most two, so that two can be compared. A third replaces the least recently used one, and an idle one ends after a
while. All end with the server, because their stdin does.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
import contextlib
import dataclasses
import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time

import anyio
from starlette import requests
from starlette import responses
from starlette import routing

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import safe_text
from official_ext.base.files import paths
from official_ext.operations.console import answers
from official_ext.operations.console import context as context_lib
from official_ext.operations.runs import artifacts
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_index
from official_ext.operations.runs import run_processes
from official_ext.operations.runs import statuses

_MAX_WORKERS = 2
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
    time: when it was written: a folder that was written again is another model.
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
    self._lines: queue.Queue[json_values.JsonObject | None] = queue.Queue()
    self._busy = threading.Lock()
    self._loading = threading.Lock()
    self._description: json_values.JsonObject | None = None
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
    """Whether it answers a request, or loads its model."""
    return self._busy.locked() or self._loading.locked()

  def description(self) -> json_values.JsonObject:
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

  def ask(self, request: Mapping[str, object]) -> Iterator[json_values.JsonObject]:
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
        if not is_over:  # The client has gone.
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

  def _next(self, seconds: float) -> json_values.JsonObject:
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
    reason = f': {safe_text.mask(lines[-1])[:300]}' if lines else ''
    return errors.UserError(f'the process with the model ended with status {status}{reason}')


class ModelWorkers:
  """The processes of a server."""

  def __init__(self, idle_seconds: float = _IDLE_SECONDS):
    """Starts none yet.

    Args:
      idle_seconds: a process that is not used for this time ends.
    """
    self._idle_seconds = idle_seconds
    self._workers: dict[ModelKey, ModelWorker] = {}
    self._lock = threading.Lock()
    self._watch: threading.Thread | None = None

  def get(self, key: ModelKey) -> ModelWorker:
    """The process that holds a model, which is started if necessary.

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
    while len(self._workers) >= _MAX_WORKERS:
      idle = [(worker.used, other) for other, worker in self._workers.items() if not worker.is_busy]
      if not idle:
        raise errors.UserError(f'{_MAX_WORKERS} models are loaded, and both are busy; stop one, or wait')
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


_EXPORTING = 'export'  # The mode of the process that exports, in the run's folder.
_MAX_BODY_BYTES = 12 << 20  # With images.
_LOG_LINES = 12
_NOTED_SECONDS = 1.0  # Between the end of an export and the note of its exit status.
_WHICH = ('', 'best', 'latest')
_MOST_METRICS = 4


def routes(context: context_lib.Context, workers: ModelWorkers | None = None) -> list[routing.Route]:
  """The requests that this part answers."""
  models = _Models(context, workers or ModelWorkers())
  handlers = {'export': models.export, 'open': models.open, 'close': models.close}
  handlers |= {'predict': models.predict, 'chat': models.chat}
  return [
    routing.Route('/api/models', answers.handler(models.all), methods=['GET']),
    routing.Route('/api/models/export', answers.handler(models.exporting), methods=['GET']),
    *(
      routing.Route(f'/api/models/{name}', answers.handler(function), methods=['POST'])
      for name, function in handlers.items()
    ),
  ]


class _Models:
  """The handlers."""

  def __init__(self, context: context_lib.Context, workers: ModelWorkers):
    self._context, self._workers = context, workers

  def all(self, request: requests.Request) -> responses.Response:
    del request
    loaded = {key.folder for key in self._workers.loaded()}
    found = [
      _entry(self._context, summary, loaded) for summary in self._context.index.summaries() if not summary.is_archived
    ]
    return answers.json({'runs': [entry for entry in found if entry is not None]})

  def export(self, request: requests.Request) -> responses.Response:
    values = answers.body(request)
    run = answers.run_of(self._context, answers.text(values, 'run'))
    words = _export_command(run, values)
    cwd = _cwd_of(run)
    run_processes.start_run(
      [sys.executable, '-u', '-m', 'official_ext.cli.main', *words], run.path, cwd=cwd, mode=_EXPORTING
    )
    return answers.json({'export': _export_state(run), 'command': shlex.join(['official-ext', *words])})

  def exporting(self, request: requests.Request) -> responses.Response:
    run = answers.run_of(self._context, request)
    deadline = time.monotonic() + _NOTED_SECONDS
    while (found := _export_state(run)) and not found['is_running'] and found['exit_status'] is None:
      if time.monotonic() > deadline:  # The process that would have noted it was killed.
        break
      time.sleep(0.05)
    return answers.json({'export': found})

  def open(self, request: requests.Request) -> responses.Response:
    key = _key_of(self._context, answers.body(request))
    return answers.json(self._workers.get(key).description())

  def close(self, request: requests.Request) -> responses.Response:
    self._workers.close(_key_of(self._context, answers.body(request)).folder)
    return answers.json({})

  def predict(self, request: requests.Request) -> responses.Response:
    values = answers.body(request, _MAX_BODY_BYTES)
    worker = self._workers.get(_key_of(self._context, values))
    found = list(worker.ask({'do': 'predict', 'signature': values.get('signature'), 'inputs': values.get('inputs')}))
    return answers.json(found[-1])

  def chat(self, request: requests.Request) -> responses.Response:
    values = answers.body(request)
    key = _key_of(self._context, values)
    if key.kind != 'language_model':
      raise errors.UserError(f'{os.path.basename(key.folder)}: is not a language model')
    asked = {
      name: values[name] for name in ('messages', 'system_prompt', 'prompt', 'settings') if values.get(name) is not None
    }
    stream = self._workers.get(key).ask({'do': 'generate' if 'prompt' in asked else 'chat', **asked})
    return _streamed(stream)


# The results.


def _entry(context, summary: run_index.RunSummary, loaded: set[str]) -> json_values.JsonObject | None:
  run = run_folders.Run(os.path.normpath(os.path.join(context.root, summary.name)), summary.name)
  found = artifacts.exports_of(run)
  if not found:
    return None
  return {
    'name': summary.name,
    'status': summary.status,
    'reason': summary.reason,
    'experiment': summary.experiment,
    'step': summary.step,
    'updated': summary.updated,
    'metrics': dict(list(summary.evaluation.items())[:_MOST_METRICS] or list(summary.train.items())[:_MOST_METRICS]),
    'results': [
      {
        'kind': result.kind,
        'name': result.name,
        'time': result.time,
        'has_base': bool(result.base),
        'base_kept': result.base_kept,
        'is_loaded': result.path in loaded,
        'command': _command_of(context, run, result),
      }
      for result in found.results
      if answers.is_inside(context, result.path)
    ],
    'has_best': found.has_best,
    'has_checkpoint': found.has_checkpoint,
    'is_of_language': artifacts.trains_language_model(run),
    'export': _export_state(run),
  }


def _command_of(context, run: run_folders.Run, result: artifacts.ModelExport) -> str:
  """The command for the page's action on a result."""
  folder = os.path.join(context.place, run.name, result.name)
  if result.kind == artifacts.SAVED_MODEL:
    return shlex.join(['official-ext', 'predict', folder])
  return shlex.join(['official-ext', 'chat', folder])


def _export_state(run: run_folders.Run) -> dict[str, object] | None:
  """How the last export stands that was started detached; None if there was none."""
  started = run.started(_EXPORTING)
  if started is None:
    return None
  is_alive = statuses.judge(None, started).may_be_alive
  return {
    'is_running': is_alive,
    'exit_status': started.get('exit_status'),
    'command': safe_text.mask(
      re.sub(r'^.* official_ext\.cli\.main ', 'official-ext ', str(started.get('command', '')))
    ),
    'started': started.get('started'),
    'log': [safe_text.mask(line) for line in run_processes.log_tail(run, _LOG_LINES, _EXPORTING)],
  }


# Exports.


def _export_command(run: run_folders.Run, values: Mapping[str, object]) -> list[str]:
  """The arguments of `official-ext` for a request.

  Raises:
    UserError: the request is invalid, or the result exists already.
  """
  to, source = answers.text(values, 'to'), answers.text(values, 'result', '')
  which = answers.text(values, 'which', '')
  if which not in _WHICH:
    raise errors.UserError(f'which: {which}: expected best or latest')
  if to not in (artifacts.SAVED_MODEL, artifacts.HUGGING_FACE):
    raise errors.UserError(f'to: {to}: expected {artifacts.SAVED_MODEL} or {artifacts.HUGGING_FACE}')
  flags = [f'--which={which}'] if which else []
  if to == artifacts.SAVED_MODEL:
    return ['export', run.path, *flags]
  if source:  # Adapters, which are merged into their base.
    result = artifacts.find_export(run, source)
    target = f'{result.path}_merged'
    paths.refuse_used(target)
    return ['convert', result.path, target]
  target = run.file(artifacts.HUGGING_FACE_FOLDER)
  paths.refuse_used(target)
  return ['convert', run.path, target, *flags]


def _cwd_of(run: run_folders.Run) -> str:
  """The folder in which the run was started, as its own modules are found from there; or here."""
  cwd = (run.record() or {}).get('cwd')
  return cwd if isinstance(cwd, str) and os.path.isdir(cwd) else os.getcwd()


# Trying.


def _key_of(context, values: Mapping[str, object]) -> ModelKey:
  """The model that a request names by `run` and `result`, and `base` for the base of adapters.

  `load_in_4bit` keeps the kernels in 4 bits, or not; without it they are as adapters were trained.

  Raises:
    UserError: it does not exist, or leads out of the folder.
  """
  run = answers.run_of(context, answers.text(values, 'run'))
  result = artifacts.find_export(run, answers.text(values, 'result'))
  if not answers.is_inside(context, result.path):
    raise errors.UserError(f'{run.name}: {result.name} is a link that leads out of {context.root}')
  if result.kind == artifacts.SAVED_MODEL:
    return ModelKey('saved_model', result.path, result.time)
  load_in_4bit = values.get('load_in_4bit')
  if load_in_4bit is not None and not isinstance(load_in_4bit, bool):
    raise errors.UserError(f'load_in_4bit: {load_in_4bit!r}: expected true or false')
  if not values.get('base'):
    return ModelKey('language_model', result.path, result.time, load_in_4bit)
  if not result.base:
    raise errors.UserError(f'{run.name}: the base of {result.name} is missing')
  return ModelKey('language_model', result.base, 0.0, load_in_4bit)


def _streamed(stream: Iterator[dict[str, object]]) -> responses.Response:
  """The answers of a model as lines of JSON, each as it comes. If the browser goes away, the model stops."""
  first = next(stream, None)  # A mistake is a separate answer.

  def line(values: object) -> bytes:
    return json.dumps(json_values.as_strict(values)).encode() + b'\n'

  def following() -> bytes | None:
    try:
      values = next(stream, None)
    except (errors.UserError, errors.StorageError) as error:
      return line({'errors': [safe_text.mask(text) for text in errors.lines_of(error)]})
    return None if values is None else line(values)

  async def lines() -> AsyncIterator[bytes]:
    try:
      if first is not None:
        yield line(first)
      while (found := await anyio.to_thread.run_sync(following)) is not None:
        yield found
    finally:
      with anyio.CancelScope(shield=True), contextlib.suppress(errors.UserError):
        await anyio.to_thread.run_sync(stream.close)  # type: ignore[attr-defined]

  return responses.StreamingResponse(lines(), media_type='application/x-ndjson')
