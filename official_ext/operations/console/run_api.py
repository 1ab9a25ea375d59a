"""One run for its page: status, log, configuration, checkpoints, events, images, and processes to start."""

import dataclasses
import os
from typing import Any

from starlette import requests
from starlette import responses
from starlette import routing

from official_ext.base import errors
from official_ext.base import safe_text
from official_ext.operations.console import answers
from official_ext.operations.console import context as context_lib
from official_ext.operations.curves import curves
from official_ext.operations.curves import timing
from official_ext.operations.imports import tensorboard_files
from official_ext.operations.runs import artifacts
from official_ext.operations.runs import commands
from official_ext.operations.runs import driver as driver_lib
from official_ext.operations.runs import event_log
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_index
from official_ext.operations.runs import run_processes
from official_ext.operations.runs import statuses
from official_ext.operations.runs import tensorboard_server

_MAX_LINES = 5000


def routes(context: context_lib.Context) -> list[routing.Route]:
  """The requests that this part answers."""
  run = _Run(context)
  looks = {
    '': run.about,
    '/log': run.log,
    '/config': run.config,
    '/checkpoints': run.checkpoints,
    '/timeline': run.timeline,
    '/goodput': run.goodput,
    '/completions': run.completions,
    '/images': run.images,
    '/media': run.media,
    '/image': run.image,
  }
  starts = {
    '/evaluate': run.evaluate,
    '/stop': run.stop,
    '/tensorboard': run.tensorboard,
    '/tensorboard/stop': run.stop_tensorboard,
  }
  return [
    *(routing.Route(f'/api/run{path}', answers.handler(each), methods=['GET']) for path, each in looks.items()),
    *(routing.Route(f'/api/run{path}', answers.handler(each), methods=['POST']) for path, each in starts.items()),
  ]


class _Run:
  """The handlers, which call the functions of `official-ext runs`."""

  def __init__(self, context: context_lib.Context):
    self._context = context
    self._images = tensorboard_files.ImageIndex()

  # Looking.

  def about(self, request: requests.Request) -> responses.Response:
    """The summary, the record, the processes of each mode, the profile, and TensorBoard's address if it runs.

    `parts`: which of the log, the configuration, checkpoints and events exist.
    """
    run = answers.run_of(self._context, request)
    summary = run_index.summary_of(run).as_dict()
    record = run.first_record() or run.started() or {}
    server = tensorboard_server.find(run)
    values = {
      'summary': summary,
      'record': record,
      'modes': [self._mode(run, mode) for mode in run.modes()],
      'profile': timing.read_profile(run),
      'can_resume': _line_of(lambda: commands.to_resume(run)),
      'tensorboard': server.url if server else None,
      'parts': _parts_of(run),
    }
    del summary['path']
    masked = safe_text.mask_values({**values, 'tensorboard': None})
    return answers.json({**masked, 'tensorboard': values['tensorboard']})

  def _mode(self, run: run_folders.Run, mode: str) -> dict[str, object]:
    found = statuses.of_run(run, mode=mode)
    record = run.record(mode) or run.started(mode) or {}
    return {
      'mode': mode,
      'status': found.status,
      'reason': found.reason,
      'started': record.get('started'),
      'command': record.get('command'),
    }

  def log(self, request: requests.Request) -> responses.Response:
    """The output of `?mode=` since the place `?from=`, in bytes: see operations/runs/run_processes.py."""
    run = answers.run_of(self._context, request)
    mode = request.query_params.get('mode', 'train')
    if mode not in (*run.modes(), 'train'):
      raise errors.UserError(f'mode={mode}: {run.name} has {", ".join(run.modes()) or "none"}')
    place = answers.optional_integer(request, 'from', least=0)
    lines, end, follows = run_processes.lines_since(run.log_path(mode), place, _MAX_LINES)
    masked = [safe_text.mask(line) for line in lines]
    return answers.json({'lines': masked, 'place': end, 'follows': follows})

  def config(self, request: requests.Request) -> responses.Response:
    """The configuration, flat; short names; and the fields that its command has set.

    With `defaults=1` also the experiment's own values of changed fields: that asks a process with TensorFlow.
    """
    run = answers.run_of(self._context, request)
    values = run_folders.read_params(run) or {}
    short_names = (run.record() or {}).get('short_names')
    given = commands.given_fields(run, values)
    found = {'values': safe_text.mask_values(values), 'short_names': short_names or {}, 'given': given}
    if request.query_params.get('defaults') == '1':
      try:
        found['defaults'] = safe_text.mask_values(driver_lib.changed_fields(run, values, self._context.driver))
      except driver_lib.DriverError as error:
        return answers.errors_json([error], 500)
    return answers.json(found)

  def checkpoints(self, request: requests.Request) -> responses.Response:
    """The checkpoints with the metrics at their steps, see operations/runs/artifacts.py."""
    run = answers.run_of(self._context, request)
    evaluations = curves.evaluations(self._context.columns, run)
    self._context.columns.trim()
    found = artifacts.with_evaluations(artifacts.find_checkpoints(run), evaluations)
    return answers.json({'checkpoints': [vars(each) for each in found]})

  def timeline(self, request: requests.Request) -> responses.Response:
    """The events except training, see operations/curves/timing.py."""
    run = answers.run_of(self._context, request)
    found = timing.read_timeline(self._context.columns, run)
    events = [safe_text.mask_values(each.as_dict()) for each in found.events]
    return answers.json({'events': events, 'num_left_out': found.num_left_out})

  def goodput(self, request: requests.Request) -> responses.Response:
    """The wall time by purpose, see operations/curves/timing.py; null if none has passed."""
    found = timing.read_goodput(self._context.columns, answers.run_of(self._context, request))
    self._context.columns.trim()
    return answers.json({'goodput': found and dataclasses.asdict(found)})

  def completions(self, request: requests.Request) -> responses.Response:
    """The logs of completions, see operations/runs/event_log.py."""
    run = answers.run_of(self._context, request)
    return answers.json(safe_text.mask_values({'logs': event_log.read_completions(run)}))

  def images(self, request: requests.Request) -> responses.Response:
    """The images that the task has logged, see operations/imports/tensorboard_files.py."""
    run = answers.run_of(self._context, request)
    return answers.json({'images': [vars(each) for each in self._images.find(run)]})

  def media(self, request: requests.Request) -> responses.Response:
    """Whether the run has completions and images: `{"completions", "images"}`. Reads its files, which may be long."""
    run = answers.run_of(self._context, request)
    completions, images = event_log.read_completions(run, limit=1), self._images.find(run)
    return answers.json({'completions': bool(completions), 'images': bool(images)})

  def image(self, request: requests.Request) -> responses.Response:
    """One of them as PNG."""
    run = answers.run_of(self._context, request)
    offset, number = (answers.optional_integer(request, name, least=0) or 0 for name in ('offset', 'number'))
    file = request.query_params.get('file', '')
    answers.file_of(self._context, run, file)
    return responses.Response(tensorboard_files.read_image(run, file, offset, number), media_type='image/png')

  # Starting.

  def evaluate(self, request: requests.Request) -> responses.Response:
    """Evaluates `{"run", "checkpoint"}`, detached."""
    body = answers.body(request)
    run = answers.run_of(self._context, answers.text(body, 'run'))
    checkpoint = artifacts.checkpoint_path(run, answers.text(body, 'checkpoint'))
    commands.to_evaluate(run, checkpoint).start()
    return answers.json({'mode': 'eval'})

  def stop(self, request: requests.Request) -> responses.Response:
    """Stops the process of one mode, `{"run", "mode"}`, as an evaluation during the training; `now`: at once."""
    body = answers.body(request)
    run = answers.run_of(self._context, answers.text(body, 'run'))
    mode = answers.text(body, 'mode')
    if mode not in run.modes():
      raise errors.UserError(f'mode: {run.name} has {", ".join(run.modes()) or "none"}')
    return answers.json({'status': run_processes.stop_run(run, body.get('now') is True, mode).status})

  def tensorboard(self, request: requests.Request) -> responses.Response:
    """Starts TensorBoard for `{"run"}`, or finds the one that runs: `{"url"}`."""
    run = answers.run_of(self._context, answers.text(answers.body(request), 'run'))
    return answers.json({'url': tensorboard_server.start(run).url})

  def stop_tensorboard(self, request: requests.Request) -> responses.Response:
    """Ends the TensorBoard of `{"run"}`."""
    run = answers.run_of(self._context, answers.text(answers.body(request), 'run'))
    return answers.json({'stopped': tensorboard_server.stop(run)})


def _parts_of(run: run_folders.Run) -> list[str]:
  """The parts of a run's page that have contents."""
  modes = {'train', *run.modes()}
  exist = {
    'log': any(_has_bytes(run.log_path(mode)) for mode in modes),
    'config': _has_bytes(run.file(run_folders.PARAMS)),
    'checkpoints': bool(artifacts.find_checkpoints(run)),
    'events': any(_has_bytes(run.file_of_mode('events', 'jsonl', mode)) for mode in modes),
  }
  return [name for name, exists in exist.items() if exists]


def _has_bytes(path: str) -> bool:
  try:
    return os.path.getsize(path) > 0
  except OSError:
    return False


def _line_of(function: Any) -> str:
  """Why something cannot be done, '' if it can."""
  try:
    function()
  except (errors.UserError, errors.StorageError) as error:
    return errors.lines_of(error)[0]
  return ''
