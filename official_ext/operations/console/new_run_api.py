"""The requests of the page of a new run: experiments, fields, the driver's mistakes; starts, queues or checks the run.

The contents of a form are `{experiment, mode, name, edits, config_files, base, clone}`; an edit is `{key, text}`, as
--set takes it, or `{key, string}`, any string.
"""

from collections.abc import Mapping
import dataclasses
import os
import re
import secrets
import shutil
import time
from typing import Any

from starlette import requests
from starlette import responses
from starlette import routing

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths
from official_ext.operations.console import answers
from official_ext.operations.console import context as context_lib
from official_ext.operations.queue import queue_changes
from official_ext.operations.runs import commands
from official_ext.operations.runs import driver as driver_lib
from official_ext.operations.runs import new_runs
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_processes
from official_ext.operations.runs import statuses

MODES = ('train', 'train_and_eval', 'train_and_post_eval', 'eval', 'continuous_eval')
_REHEARSALS = '.checks'  # Below the folder of runs; a name that begins with a dot is not a run's.
_KEPT_REHEARSALS = 10
_REHEARSAL = re.compile(r'[0-9TZ.-]+-[A-Za-z0-9_-]{4,}')
_LOG_LINES = 400
_MAX_PICTURE = 64 << 20
_STATUS_SECONDS = 2.0  # The exit status is noted a moment after the end of a process.


def routes(context: context_lib.Context) -> list[routing.Route]:
  """The requests that this part answers."""
  page = _Page(context)
  handlers = (
    ('GET', 'experiments', page.experiments),
    ('GET', 'stages', page.stages),
    ('GET', 'clone', page.clone),
    ('POST', 'form', page.form),
    ('POST', 'start', page.start),
    ('POST', 'queue', page.queue),
    ('POST', 'check', page.start_rehearsal),
    ('POST', 'preview', page.start_preview),
    ('GET', 'check', page.rehearsal),
    ('GET', 'picture', page.picture),
    ('POST', 'stop_check', page.stop_rehearsal),
  )
  return [routing.Route(f'/api/new/{name}', _asking(function), methods=[method]) for method, name, function in handlers]


def _asking(function: Any) -> Any:
  """A handler that may ask the driver."""

  def answer(request: requests.Request) -> responses.Response:
    try:
      return function(request)
    except driver_lib.DriverError as error:
      return answers.errors_json([error], 500)

  return answers.handler(answer)


def new_run_of(context: context_lib.Context, body: Mapping[str, object]) -> new_runs.NewRun:
  """The run of a form.

  Raises:
    UserError: its contents are invalid.
  """
  edits = body.get('edits', [])
  if not isinstance(edits, list) or not all(isinstance(edit, dict) for edit in edits):
    raise errors.UserError('edits: expected a list of objects')
  clone = answers.text(body, 'clone', '')
  return new_runs.NewRun(
    root=context.root,
    name=answers.text(body, 'name', ''),
    experiment=answers.text(body, 'experiment', ''),
    mode=answers.text(body, 'mode', 'train'),
    sets=tuple(map(new_runs.set_text, edits)),
    registry=context.registry,
    config_files=tuple(answers.texts(body, 'config_files')),
    base=answers.text(body, 'base', ''),
    original=answers.run_of(context, clone) if clone else None,
  )


class _Page:
  """The requests of the page."""

  def __init__(self, context: context_lib.Context):
    self._context = context
    self._other: driver_lib.Driver | None = None  # The driver of another project, from which a run is cloned.

  def _driver(self, wanted: new_runs.NewRun) -> driver_lib.Driver:
    """The driver that a run is for: ours, unless its original has another one."""
    program, folder = wanted.program()
    if not program or self._context.driver.serves(program, folder):
      return self._context.driver
    if self._other is None or not self._other.serves(program, folder):
      if self._other is not None:
        self._other.close()
      self._other = driver_lib.Driver(folder, self._context.registry, program)
    return self._other

  def experiments(self, request: requests.Request) -> responses.Response:
    """All experiments, with their descriptions; `lines`: why others are missing. Waits for TensorFlow."""
    del request
    found = self._context.driver.experiments()
    return answers.json(found)

  def stages(self, request: requests.Request) -> responses.Response:
    """The steps of the driver's start that is under way, each with its `name` and `seconds`; it does not wait."""
    del request
    drivers = [self._context.driver, *([self._other] if self._other is not None else [])]
    found = next((stages for driver in drivers if (stages := driver.stages)), [])
    return answers.json({'stages': [dataclasses.asdict(each) for each in found]})

  def clone(self, request: requests.Request) -> responses.Response:
    """The initial contents of a form for a run like `?run=NAME`.

    `{"experiment", "mode", "name"}`; for a run without a configuration, which ended by a mistake, the address of a form
    with its command: `{"form": [[name, value], ...]}`.
    """
    run = answers.run_of(self._context, request)
    name = run.name if run.name != '.' else os.path.basename(run.path)
    proposed = commands.free_name(self._context.root, name)
    if not os.path.isfile(run.file(run_folders.PARAMS)) and run.started() is not None:
      return answers.json({'form': [*commands.form_of(run), ('name', proposed), ('from', run.name)]})
    command = commands.to_clone(run, os.path.join(self._context.root, new_runs.UNNAMED))
    experiment = queue_changes.value_of(command.words, 'experiment')
    return answers.json({'experiment': experiment, 'mode': command.mode, 'name': proposed})

  def form(self, request: requests.Request) -> responses.Response:
    """The driver's answer to a form, and the command; `fields` if requested. Writes nothing.

    `quick`: without the driver's checks of devices and task.
    """
    body = answers.body(request)
    wanted = new_run_of(self._context, body)
    if not body.get('name') and wanted.original is None:
      wanted = new_run_of(
        self._context, {**body, 'name': new_runs.proposed_name(self._context.root, wanted.experiment)}
      )
    found = wanted.check(self._driver(wanted), **{name: bool(body.get(name)) for name in ('fields', 'quick')})
    names: list[str] = []
    command = ''
    try:
      wanted.check_name()
      command = wanted.shell_lines(self._context.driver)
    except errors.UserError as error:
      names = list(errors.lines_of(error))
    return answers.json({**found, 'name': wanted.name, 'name_errors': names, 'command': command, 'modes': MODES})

  def start(self, request: requests.Request) -> responses.Response:
    """Starts a run, detached. Nothing is made of one with a mistake."""
    wanted, command = self._make(answers.body(request))
    try:
      command.start()
    except (errors.UserError, errors.StorageError):
      wanted.discard()
      raise
    return answers.json({'run': wanted.name})

  def queue(self, request: requests.Request) -> responses.Response:
    """Queues a run; `gpus`: how many it needs, null for the queue's default."""
    body = answers.body(request)
    gpus = body.get('gpus')
    if not (gpus is None or (isinstance(gpus, int) and not isinstance(gpus, bool) and gpus >= 0)):
      raise errors.UserError('gpus: expected a number, 0 or more')
    wanted, command = self._make(body)
    try:
      job = queue_changes.add(self._context.queue, command.whole_words(), command.cwd, command.model_dir, gpus)
    except (errors.UserError, errors.StorageError):
      wanted.discard()
      raise
    has_dispatcher = self._context.queue.dispatcher() is not None
    return answers.json({'run': wanted.name, 'job': job.number, 'has_dispatcher': has_dispatcher})

  def _make(self, body: Mapping[str, object]) -> tuple[new_runs.NewRun, commands.Command]:
    """Makes the first files of a run, after the driver has accepted it."""
    wanted = new_run_of(self._context, body)
    wanted.check_name()
    lines = [line['text'] for line in wanted.check(self._driver(wanted))['lines']]
    if lines:
      raise errors.UserErrors(lines)
    return wanted, wanted.make(self._context.driver)

  # The rehearsals: `official-ext check` and `official-ext preview`.

  def start_rehearsal(self, request: requests.Request) -> responses.Response:
    """Starts `official-ext check` of a form, detached, in a folder that is not a run's. Returns its `id`."""
    return self._start_rehearsal(request, 'check')

  def start_preview(self, request: requests.Request) -> responses.Response:
    """Starts `official-ext preview` of a form likewise."""
    return self._start_rehearsal(request, 'preview')

  def _start_rehearsal(self, request: requests.Request, what: str) -> responses.Response:
    wanted = new_run_of(self._context, {**answers.body(request), 'name': new_runs.UNNAMED})
    self._tidy()
    name = f'{json_values.timestamp_now().replace(":", "").replace("+", "")}-{secrets.token_hex(4)}'
    folder = os.path.join(self._context.root, _REHEARSALS, name)
    command = wanted.rehearsal(self._context.driver, folder, what)
    command.start()
    return answers.json({'id': name, 'command': str(command)})

  def rehearsal(self, request: requests.Request) -> responses.Response:
    """The output of `?id=ID` so far, whether it `lives`, its `exit_status`, null if that is not known, and whether it
    `has_picture`.
    """
    run = self._rehearsal(request.query_params.get('id', ''))
    lives = statuses.is_alive(run)  # Before its output is read, which is whole when it does not.
    exit_status = (run.started() or {}).get('exit_status')
    deadline = time.monotonic() + _STATUS_SECONDS
    while not lives and exit_status is None and time.monotonic() < deadline:
      time.sleep(0.05)
      exit_status = (run.started() or {}).get('exit_status')
    lines, has_picture = run_processes.log_tail(run, _LOG_LINES), os.path.isfile(run.file(new_runs.PREVIEW))
    return answers.json({'lines': lines, 'lives': lives, 'exit_status': exit_status, 'has_picture': has_picture})

  def picture(self, request: requests.Request) -> responses.Response:
    """The picture of the preview `?id=ID`, PNG."""
    path = self._rehearsal(request.query_params.get('id', '')).file(new_runs.PREVIEW)
    try:
      content = paths.read(path, _MAX_PICTURE)
    except OSError as error:
      raise errors.UserError(f'{new_runs.PREVIEW}: {error.strerror or error}') from None
    return responses.Response(content, media_type='image/png')

  def stop_rehearsal(self, request: requests.Request) -> responses.Response:
    """Ends one."""
    run_processes.stop_run(self._rehearsal(answers.text(answers.body(request), 'id')), True)
    return answers.json({})

  def _rehearsal(self, name: str) -> run_folders.Run:
    path = os.path.join(self._context.root, _REHEARSALS, name)
    if not _REHEARSAL.fullmatch(name) or not os.path.isdir(path):
      raise errors.UserError('id: there is no such check')
    return run_folders.Run(path, name)

  def _tidy(self) -> None:
    """Deletes the folders of checks that are over, but for the newest."""
    folder = os.path.join(self._context.root, _REHEARSALS)
    names = sorted(name for name in os.listdir(folder) if _REHEARSAL.fullmatch(name)) if os.path.isdir(folder) else []
    for name in names[:-_KEPT_REHEARSALS]:
      if not statuses.is_alive(run_folders.Run(os.path.join(folder, name), name)):
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
