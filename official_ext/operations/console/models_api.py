"""The results for the page of models: exports, and trying them."""

from collections.abc import AsyncIterator, Iterator, Mapping
import contextlib
import json
import os
import re
import shlex
import sys
import time

import anyio
from starlette import requests
from starlette import responses
from starlette import routing

from official_ext.base import credentials
from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.files import paths
from official_ext.operations.console import answers
from official_ext.operations.console import context as context_lib
from official_ext.operations.console import model_worker
from official_ext.operations.runs import judged_status
from official_ext.operations.runs import run_folder
from official_ext.operations.runs import run_log
from official_ext.operations.runs import run_outputs
from official_ext.operations.runs import starting
from official_ext.operations.runs import summaries

_EXPORTING = 'export'  # The mode of the process that exports, in the run's folder.
_MAX_BODY_BYTES = 12 << 20  # With images.
_LOG_LINES = 12
_NOTED_SECONDS = 1.0  # Between the end of an export and the note of its exit status.
_WHICH = ('', 'best', 'latest')
_MOST_METRICS = 4


def routes(context: context_lib.Context, workers: model_worker.ModelWorkers | None = None) -> list[routing.Route]:
  """The requests that this part answers."""
  models = _Models(context, workers or model_worker.ModelWorkers())
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

  def __init__(self, context: context_lib.Context, workers: model_worker.ModelWorkers):
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
    starting.start([sys.executable, '-u', '-m', 'official_ext.cli.main', *words], run.path, cwd=cwd, mode=_EXPORTING)
    return answers.json({'export': _export_state(run), 'command': shlex.join(['official-ext', *words])})

  def exporting(self, request: requests.Request) -> responses.Response:
    run = answers.run_of(self._context, request)
    deadline = time.monotonic() + _NOTED_SECONDS
    while (found := _export_state(run)) and not found['is_running'] and found['exit_status'] is None:
      if time.monotonic() > deadline:  # Whoever would have noted it was killed.
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


def _entry(context, summary: summaries.RunSummary, loaded: set[str]) -> json_types.JsonObject | None:
  run = run_folder.Run(summary.path, summary.name)
  found = run_outputs.of_run(run)
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
    'is_of_language': run_outputs.is_of_language(run),
    'export': _export_state(run),
  }


def _command_of(context, run: run_folder.Run, result: run_outputs.Result) -> str:
  """The command for the page's action on a result."""
  folder = os.path.join(context.root, run.name, result.name)
  if result.kind == run_outputs.SAVED_MODEL:
    return shlex.join(['official-ext', 'predict', folder])
  return shlex.join(['official-ext', 'chat', folder])


def _export_state(run: run_folder.Run) -> dict[str, object] | None:
  """How the last export stands that was started detached; None if there was none."""
  started = run.started(_EXPORTING)
  if started is None:
    return None
  is_alive = judged_status.judge(None, started).may_be_alive
  return {
    'is_running': is_alive,
    'exit_status': started.get('exit_status'),
    'command': credentials.mask(
      re.sub(r'^.* official_ext\.cli\.main ', 'official-ext ', str(started.get('command', '')))
    ),
    'started': started.get('started'),
    'log': [credentials.mask(line) for line in run_log.tail(run, _LOG_LINES, _EXPORTING)],
  }


# Exports.


def _export_command(run: run_folder.Run, values: Mapping[str, object]) -> list[str]:
  """The arguments of `official-ext` for a request.

  Raises:
    UserError: the request is invalid, or the result exists already.
  """
  to, source = answers.text(values, 'to'), answers.text(values, 'result', '')
  which = answers.text(values, 'which', '')
  if which not in _WHICH:
    raise errors.UserError(f'which: {which}: expected best or latest')
  if to not in (run_outputs.SAVED_MODEL, run_outputs.HUGGING_FACE):
    raise errors.UserError(f'to: {to}: expected {run_outputs.SAVED_MODEL} or {run_outputs.HUGGING_FACE}')
  flags = [f'--which={which}'] if which else []
  if to == run_outputs.SAVED_MODEL:
    return ['export', run.path, *flags]
  if source:  # Adapters, which are merged into their base.
    result = run_outputs.find(run, source)
    target = f'{result.path}_merged'
    paths.refuse_used(target)
    return ['convert', result.path, target]
  target = run.file(run_outputs.HUGGING_FACE_FOLDER)
  paths.refuse_used(target)
  return ['convert', run.path, target, *flags]


def _cwd_of(run: run_folder.Run) -> str:
  """The folder in which the run was started, as its own modules are found from there; or here."""
  cwd = (run.record() or {}).get('cwd')
  return cwd if isinstance(cwd, str) and os.path.isdir(cwd) else os.getcwd()


# Trying.


def _key_of(context, values: Mapping[str, object]) -> model_worker.ModelKey:
  """The model that a request names by `run` and `result`, and `base` for the base of adapters.

  `load_in_4bit` keeps the kernels in 4 bits, or not; without it they are as adapters were trained.

  Raises:
    UserError: there is none, or it leads out of the folder.
  """
  run = answers.run_of(context, answers.text(values, 'run'))
  result = run_outputs.find(run, answers.text(values, 'result'))
  if not answers.is_inside(context, result.path):
    raise errors.UserError(f'{run.name}: {result.name} is a link that leads out of {context.root}')
  if result.kind == run_outputs.SAVED_MODEL:
    return model_worker.ModelKey('saved_model', result.path, result.time)
  load_in_4bit = values.get('load_in_4bit')
  if load_in_4bit is not None and not isinstance(load_in_4bit, bool):
    raise errors.UserError(f'load_in_4bit: {load_in_4bit!r}: expected true or false')
  if not values.get('base'):
    return model_worker.ModelKey('language_model', result.path, result.time, load_in_4bit)
  if not result.base:
    raise errors.UserError(f'{run.name}: the base of {result.name} is missing')
  return model_worker.ModelKey('language_model', result.base, 0.0, load_in_4bit)


def _streamed(stream: Iterator[dict[str, object]]) -> responses.Response:
  """The answers of a model as lines of JSON, each as it comes. If the browser goes away, the model stops."""
  first = next(stream, None)  # A mistake is a separate answer.

  def line(values: object) -> bytes:
    return json.dumps(json_types.json_values(values)).encode() + b'\n'

  def following() -> bytes | None:
    try:
      values = next(stream, None)
    except (errors.UserError, errors.StorageError) as error:
      return line({'errors': [credentials.mask(text) for text in errors.lines_of(error)]})
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
