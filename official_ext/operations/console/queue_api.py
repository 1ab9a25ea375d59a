"""The queue for its page: the actions of `official-ext queue`."""

from collections.abc import Callable, Mapping

from starlette import requests
from starlette import responses
from starlette import routing

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import processes
from official_ext.operations.console import answers
from official_ext.operations.console import context as context_lib
from official_ext.operations.queue import queue_changes
from official_ext.operations.queue import queue_folder
from official_ext.operations.runs import commands
from official_ext.operations.runs import run_folders

_MAX_OVER = 50
_PLACES = ('first', 'last', 'before', 'after')


def routes(context: context_lib.Context) -> list[routing.Route]:
  """The requests that this part answers."""
  queue = _Queue(context)
  found = [routing.Route('/api/queue', answers.handler(queue.get), methods=['GET'])]
  for name, do in (('move', queue.move), ('pause', queue.pause), ('resume', queue.resume), ('cancel', queue.cancel)):
    found.append(routing.Route(f'/api/queue/{name}', answers.handler(queue.changing(do)), methods=['POST']))
  return [*found, routing.Route('/api/queue/start', answers.handler(queue.start), methods=['POST'])]


def topics(context: context_lib.Context) -> dict[str, Callable[[], object]]:
  """The data that live.py sends on every change."""
  return {'queue': _Queue(context).values}


class _Queue:
  """The handlers."""

  def __init__(self, context: context_lib.Context):
    self._context = context
    self._queue = context.queue

  def values(self) -> json_values.JsonObject:
    """The queue as it stands, with the command that starts a dispatcher."""
    found = queue_folder.queue_as_dict(self._queue, _MAX_OVER)
    process = processes.parse_identity(found['dispatcher'] or {})
    words = ['official-ext', *self._queue.dispatch_words()]
    return {
      **found,
      'dispatcher': None if found['dispatcher'] is None else {**found['dispatcher'], 'process': str(process or '')},
      'jobs': [self._with_run(entry) for entry in found['jobs']],
      'command': ' '.join(map(commands.quoted, words)) + ' --slots=2',
    }

  def _with_run(self, entry: json_values.JsonObject) -> json_values.JsonObject:
    """An entry with the name of its run, if that is a run below the folder already."""
    path = entry['model_dir'] or ''
    root = self._context.place
    is_below = run_folders.paths_below(root, path) and path != root
    name = path[len(root) + 1 :] if is_below else None
    return {**entry, 'name': name, 'run': name if name and run_folders.is_run(path) else None}

  def get(self, request: requests.Request) -> responses.Response:
    """The queue as it stands."""
    del request
    return answers.json(self.values())

  def changing(self, do: Callable[[json_values.JsonObject], None]) -> answers.Handler:
    """Does something, and answers with the queue as it stands then."""

    def handle(request: requests.Request) -> responses.Response:
      do(answers.body(request))
      return answers.json(self.values())

    return handle

  def move(self, body: Mapping[str, object]) -> None:
    """Moves a job: `{"job": 3, "place": "before", "neighbour": 2}`."""
    place = answers.text(body, 'place')
    if place not in _PLACES:
      raise errors.UserError(f'place: expected one of {", ".join(_PLACES)}')
    neighbour = answers.integer(body, 'neighbour') if place in ('before', 'after') else None
    queue_changes.move(self._queue, answers.integer(body, 'job'), place, neighbour)

  def pause(self, body: Mapping[str, object]) -> None:
    """Pauses a job, or all: `{"job": 3}` or `{}`."""
    queue_changes.pause(self._queue, answers.integer(body, 'job') if 'job' in body else None)

  def resume(self, body: Mapping[str, object]) -> None:
    """Takes that back."""
    queue_changes.resume(self._queue, answers.integer(body, 'job') if 'job' in body else None)

  def cancel(self, body: Mapping[str, object]) -> None:
    """Takes a job out: `{"job": 3, "kill": false}`."""
    queue_changes.cancel(self._queue, answers.integer(body, 'job'), body.get('kill') is True)

  def start(self, request: requests.Request) -> responses.Response:
    """Starts a dispatcher that outlives this server: `{"slots": 2}`."""
    body = answers.body(request)
    slots = answers.optional_integer(body, 'slots')
    self._queue.start_dispatcher(slots)
    return answers.json(self.values())
