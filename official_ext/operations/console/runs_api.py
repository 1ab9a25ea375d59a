"""The runs of the folder: their list, and actions on several of them."""

from collections.abc import Callable, Mapping
import contextlib
from typing import Any

from starlette import requests
from starlette import responses
from starlette import routing

from official_ext.base import credentials
from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.run_folder import better
from official_ext.operations.console import answers
from official_ext.operations.console import context as context_lib
from official_ext.operations.console import live
from official_ext.operations.runs import commands
from official_ext.operations.runs import judged_status
from official_ext.operations.runs import notes
from official_ext.operations.runs import params as params_lib
from official_ext.operations.runs import run_folder
from official_ext.operations.runs import selection
from official_ext.operations.runs import signals
from official_ext.operations.runs import trash

_MAX_RUNS = 10_000


def routes(context: context_lib.Context) -> list[routing.Route]:
  """The requests that this part answers."""
  runs = _Runs(context)
  found = [
    routing.Route('/api/runs', answers.handler(runs.all), methods=['GET']),
    routing.Route('/api/runs/filter', answers.handler(runs.filter), methods=['GET']),
    routing.Route('/api/runs/fields', answers.handler(runs.fields), methods=['GET']),
    routing.Route('/api/runs/trash', answers.handler(runs.deleted), methods=['GET']),
  ]
  actions = {
    'stop': runs.stop,
    'resume': runs.resume,
    'tag': runs.tag,
    'archive': runs.archive,
    'unarchive': runs.unarchive,
    'delete': runs.delete,
  }
  for name, action in actions.items():
    found.append(routing.Route(f'/api/runs/{name}', answers.handler(runs.each(action)), methods=['POST']))
  for name, function in (('restore', runs.restore), ('delete_forever', runs.delete_forever)):
    found.append(routing.Route(f'/api/runs/{name}', answers.handler(function), methods=['POST']))
  return found


class _Runs:
  """The handlers, which call the functions of `official-ext runs`."""

  def __init__(self, context: context_lib.Context):
    self._context = context
    self._shown: tuple[list[Any], list[Any]] = [], []

  # Looking.

  def all(self, request: requests.Request) -> responses.Response:
    """All runs, archived ones too: `{"runs": [summary, ...]}`."""
    del request
    return answers.plain_json({'runs': live.list_runs(self._context)})

  def filter(self, request: requests.Request) -> responses.Response:
    """The names of the runs for which all conditions `?filter=` hold, in the order of `&sort=`, as in `runs list`."""
    filters, sort = request.query_params.getlist('filter'), request.query_params.get('sort', 'name')
    found = self._summaries()
    params = self._context.recent.params
    chosen = selection.Selection(filters=filters).choose(found, params)
    chosen = chosen if sort == 'name' else selection.in_order(chosen, sort, params)
    return answers.json({'names': [each.name for each in chosen]})

  def fields(self, request: requests.Request) -> responses.Response:
    """The values of fields of configurations, `?name=`, in each run that has them; without: the names there are."""
    names = request.query_params.getlist('name')
    shown = {each.name for each in self._summaries()}
    all_params = {name: values for name, values in self._context.recent.params().items() if name in shown}
    if not names:
      found = sorted({name for values in all_params.values() for name in values})
      return answers.json({'names': found, 'best': _best(self._summaries())})
    return answers.json({'values': credentials.mask_values(_values(all_params, names))})

  def deleted(self, request: requests.Request) -> responses.Response:
    """The runs in the trash: `{"deleted": [{"key", "name", "deleted"}, ...]}`, the latest first."""
    del request
    found = trash.deleted(self._context.root)
    return answers.json({'deleted': [{'key': each.key, 'name': each.name, 'deleted': each.deleted} for each in found]})

  def _summaries(self) -> list[Any]:
    """The recent state of the runs, without links out of the folder."""
    seen, shown = self._shown
    found = self._context.recent.summaries()
    if found is not seen:
      shown = [each for each in found if live.is_shown(self._context, each)]
      self._shown = found, shown
    return shown

  # Doing. Each reports the result for one run.

  def each(self, do: Callable[[run_folder.Run, json_types.JsonObject], json_types.JsonObject]) -> answers.Handler:
    """Does something with each run in `{"runs": [name, ...]}`: `{"done": [{"run", ...}], "errors": [line, ...]}`."""

    def handle(request: requests.Request) -> responses.Response:
      body = answers.body(request)
      return self._of_each(answers.texts(body, 'runs'), lambda name: do(answers.run_of(self._context, name), body))

    return handle

  def _of_each(self, names: json_types.Json, do: Callable[[str], json_types.JsonObject]) -> responses.Response:
    if not names or len(names) > _MAX_RUNS:
      raise errors.UserError(f'runs: expected 1 to {_MAX_RUNS} names')
    done: list[json_types.JsonObject] = []
    failures: list[str] = []
    for name in dict.fromkeys(names):
      try:
        done.append({'run': name, **do(name)})
      except (errors.UserError, errors.StorageError) as error:
        failures += errors.lines_of(error)
    return answers.json({'done': done, 'errors': [credentials.mask(line) for line in failures]})

  def stop(self, run: run_folder.Run, body: Mapping[str, object]) -> json_types.JsonObject:
    """Asks a run to save and stop; at once and unsaved with `{"now": true}`."""
    found = signals.stop(run, now=body.get('now') is True)
    return {'status': found.status}

  def resume(self, run: run_folder.Run, body: Mapping[str, object]) -> json_types.JsonObject:
    """Resumes a run, detached; `{"train_steps": N}` extends it."""
    train_steps = answers.optional_integer(body, 'train_steps')
    commands.to_resume(run, train_steps).start()
    return {'status': judged_status.of_run(run).status}

  def tag(self, run: run_folder.Run, body: Mapping[str, object]) -> json_types.JsonObject:
    """Changes tags and the note: `{"add": [...], "remove": [...], "note": TEXT}`."""
    note = answers.text(body, 'note') if 'note' in body else None
    found = notes.change(run, answers.texts(body, 'add'), answers.texts(body, 'remove'), note)
    return {'tags': found.tags, 'note': found.note}

  def archive(self, run: run_folder.Run, body: Mapping[str, object]) -> dict[str, object]:
    """Takes a run out of the list."""
    del body
    trash.archive(run)
    return {}

  def unarchive(self, run: run_folder.Run, body: Mapping[str, object]) -> dict[str, object]:
    """Takes a run into the list again."""
    del body
    trash.unarchive(run)
    return {}

  def delete(self, run: run_folder.Run, body: Mapping[str, object]) -> json_types.JsonObject:
    """Moves a run to the trash."""
    del body
    return {'key': trash.delete(self._context.root, run).key}

  def restore(self, request: requests.Request) -> responses.Response:
    """Brings runs back from the trash: `{"keys": [...]}`, and `{"name": NEW}` for one."""
    body = answers.body(request)
    keys = answers.texts(body, 'keys')
    name = answers.text(body, 'name') if 'name' in body and len(keys) == 1 else None
    if name is not None:
      answers.check_name(name)

    def restore(key: str) -> json_types.JsonObject:
      return {'name': trash.restore(self._context.root, self._deleted(key), name).name}

    return self._of_each(keys, restore)

  def delete_forever(self, request: requests.Request) -> responses.Response:
    """Deletes runs in the trash with all their files: `{"keys": [...]}`."""

    def delete(key: str) -> json_types.JsonObject:
      trash.delete_forever(self._deleted(key))
      return {}

    return self._of_each(answers.texts(answers.body(request), 'keys'), delete)

  def _deleted(self, key: str) -> trash.Deleted:
    """The run of a key in the trash, and of no name: several may have had that."""
    for found in trash.deleted(self._context.root):
      if found.key == key:
        answers.check_name(found.name)
        return found
    raise errors.UserError(f'{key}: is not in the trash any more')


def _best(runs: list[Any]) -> dict[str, str]:
  """Which values of a metric are the best, `max` or `min`, by its name, if that implies it."""
  found = {}
  for name in {name for run in runs for name in (*run.evaluation, *run.train)}:
    with contextlib.suppress(ValueError):
      found[name] = better.mode_of(name)
  return found


def _values(all_params: json_types.JsonObject, names: json_types.Json) -> dict[str, json_types.JsonObject]:
  """The values of some fields by the name of the run, and then of the field."""
  found: dict[str, json_types.JsonObject] = {}
  for run, values in all_params.items():
    for name in names:
      several = params_lib.value_of(name, values)
      if several:
        found.setdefault(run, {})[name] = several[0]
  return found
