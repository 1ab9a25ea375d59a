"""The runs of the folder: their list, actions on several of them, runs side by side, and their curves."""

import collections
from collections.abc import Callable, Mapping, Sequence
import json
import math
from typing import Any

from starlette import requests
from starlette import responses
from starlette import routing

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import safe_text
from official_ext.base.run_folder import metric_direction
from official_ext.operations.console import answers
from official_ext.operations.console import context as context_lib
from official_ext.operations.console import live
from official_ext.operations.curves import curve_statistics
from official_ext.operations.curves import curves
from official_ext.operations.runs import commands
from official_ext.operations.runs import run_comparison
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_processes
from official_ext.operations.runs import selection
from official_ext.operations.runs import statuses
from official_ext.operations.runs import trash

_MAX_COMPARED = 100
_MAX_CURVES = 2000


def _comparison_routes(context: context_lib.Context) -> list[routing.Route]:
  """The requests that this part answers."""
  found = _Comparison(context)
  return [
    routing.Route('/api/curves', answers.handler(found.curves), methods=['GET']),
    routing.Route('/api/curves/names', answers.handler(found.names), methods=['GET']),
    routing.Route('/api/curves/values', answers.handler(found.values), methods=['GET']),
    routing.Route('/api/compare', answers.handler(found.compare), methods=['GET']),
    routing.Route('/api/groups', answers.handler(found.groups), methods=['GET']),
  ]


class _Comparison:
  """The handlers."""

  def __init__(self, context: context_lib.Context):
    self._context = context

  def curves(self, request: requests.Request) -> responses.Response:
    """Curves `?name=` of the runs `?run=`: x, first, last, buckets and log=1 as in View of curves/curves.py.

    With `?group=`, a text for each run in their order, curves are of the groups, in place of `run`.
    """
    query = request.query_params
    runs, names = self._runs(request), query.getlist('name')
    if len(runs) * len(names) > _MAX_CURVES:
      raise errors.UserError(f'run, name: {len(runs)} runs with {len(names)} curves; {_MAX_CURVES} are possible')
    view = curves.View(
      query.get('x', 'step'),
      _number_of(request, 'first'),
      _number_of(request, 'last'),
      answers.optional_integer(request, 'buckets') or 500,
      query.get('log') == '1',
    )
    read = curves.read(self._context.columns, runs, names, view, is_patient=False)
    found = curves.as_dict(read)
    if groups := query.getlist('group'):
      if len(groups) != len(runs):
        raise errors.UserError(f'group: {len(groups)} for {len(runs)} runs; expected one for each')
      group_of = dict(zip((run.name for run in runs), groups))
      unplaced: collections.Counter[tuple[str, str]] = collections.Counter()
      for (run, name), count in read.unplaced.items():
        unplaced[group_of[run], name] += count
      bands = curve_statistics.group_curves(read, group_of, view)
      found['curves'] = [
        {'run': key[0], 'name': key[1], 'num_unplaced': unplaced[key], **band.as_dict()} for key, band in bands.items()
      ]
    # Strict JSON already: to look for NaN among a hundred thousand numbers once more takes as long as all the rest.
    content = json.dumps(found, separators=(',', ':'), allow_nan=False)
    return responses.Response(answers.names_in_json(content), media_type='application/json')

  def names(self, request: requests.Request) -> responses.Response:
    """The names of the curves that each run has: `{"names": {RUN: [NAME, ...]}, "missing": [RUN, ...]}`."""
    found, missing = {}, []
    for name in self._names(request):
      try:
        found[name] = curves.names(self._context.columns, answers.run_of(self._context, name), is_patient=False)
      except errors.UserError:
        missing.append(name)
      self._context.columns.trim()
    return answers.json({'names': found, 'missing': missing})

  def values(self, request: requests.Request) -> responses.Response:
    """One number for the curve `?name=` of each run `?run=`, see operations/curves/curve_statistics.py: `?value=` and
    `?count=`.

    `{"values": [{"value", "step", "count", "is_coarse"} or null, ...]}`, in the order of the runs.
    """
    query = request.query_params
    name, statistic = query.get('name', ''), query.get('value', 'last')
    count = answers.optional_integer(request, 'count') or 10
    found = []
    for run in self._runs(request):
      found.append(curve_statistics.read_value(self._context.columns, run, name, statistic, count, is_patient=False))
      self._context.columns.trim()
    return answers.json({'values': [each and each.as_dict() for each in found]})

  def compare(self, request: requests.Request) -> responses.Response:
    """Runs side by side, see run_comparison.py; with `all=1` the fields in which they do not differ too."""
    only_differences = request.query_params.get('all') != '1'
    found = run_comparison.compare_runs(
      self._runs(request), lambda run: curves.evaluations(self._context.columns, run), only_differences
    )
    self._context.columns.trim()
    return answers.json(safe_text.mask_values(found.as_dict()))

  def groups(self, request: requests.Request) -> responses.Response:
    """Groups of the runs by `?by=`, as in `runs table --group`; without, by all fields that differ but seeds.

    `{"fields": [name, ...], "groups": [{"label", "runs": [name, ...]}, ...]}`: the fields by which they can be grouped.
    """
    wanted = {run.name: number for number, run in enumerate(self._runs(request))}
    runs = sorted(
      (each for each in self._context.recent.summaries() if each.name in wanted), key=lambda run: wanted[run.name]
    )
    all_params = self._context.recent.params()
    fields = run_comparison.fields_that_differ({run.name: all_params.get(run.name, {}) for run in runs})
    by = request.query_params.getlist('by') or fields
    found = run_comparison.group_runs(runs, by, (), lambda: all_params)
    groups = [{'label': _group_label(by, each.values), 'runs': each.names} for each in found]
    return answers.json({'fields': fields, 'groups': groups})

  def _runs(self, request: requests.Request) -> list[run_folders.Run]:
    return [answers.run_of(self._context, name) for name in self._names(request)]

  def _names(self, request: requests.Request) -> list[str]:
    names = list(dict.fromkeys(request.query_params.getlist('run')))
    if not 0 < len(names) <= _MAX_COMPARED:
      raise errors.UserError(f'run: expected 1 to {_MAX_COMPARED} names, got {len(names)}')
    return names


def _group_label(by: Sequence[str], values: Sequence[json_values.Json]) -> str:
  """`learning_rate=0.1, width=8`, with passwords masked; tags and folders without their name."""
  parts = []
  for name, value in safe_text.mask_values(dict(zip(by, values))).items():
    text = '-' if value is None or value == '' else str(value)
    parts.append(text if name in ('tag', 'folder') else f'{name.rpartition(".")[2]}={text}')
  return ', '.join(parts) or 'all'


def _number_of(request: requests.Request, name: str) -> float | None:
  text = request.query_params.get(name)
  if text is None:
    return None
  try:
    value = float(text)
  except ValueError:
    value = math.nan
  if not math.isfinite(value):
    raise errors.UserError(f'{name}={text}: expected a number')
  return value


_MAX_RUNS = 10_000


def routes(context: context_lib.Context) -> list[routing.Route]:
  """The requests that this part answers."""
  runs = _Runs(context)
  found = [
    *_comparison_routes(context),
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
    return answers.json({'values': safe_text.mask_values(_values(all_params, names))})

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

  def each(self, do: Callable[[run_folders.Run, json_values.JsonObject], json_values.JsonObject]) -> answers.Handler:
    """Does something with each run in `{"runs": [name, ...]}`: `{"done": [{"run", ...}], "errors": [line, ...]}`."""

    def handle(request: requests.Request) -> responses.Response:
      body = answers.body(request)
      return self._of_each(answers.texts(body, 'runs'), lambda name: do(answers.run_of(self._context, name), body))

    return handle

  def _of_each(self, names: json_values.Json, do: Callable[[str], json_values.JsonObject]) -> responses.Response:
    if not names or len(names) > _MAX_RUNS:
      raise errors.UserError(f'runs: expected 1 to {_MAX_RUNS} names')
    done: list[json_values.JsonObject] = []
    failures: list[str] = []
    for name in dict.fromkeys(names):
      try:
        done.append({'run': name, **do(name)})
      except (errors.UserError, errors.StorageError) as error:
        failures += errors.lines_of(error)
    return answers.json({'done': done, 'errors': [safe_text.mask(line) for line in failures]})

  def stop(self, run: run_folders.Run, body: Mapping[str, object]) -> json_values.JsonObject:
    """Asks a run to save and stop; at once and unsaved with `{"now": true}`."""
    found = run_processes.stop_run(run, now=body.get('now') is True)
    return {'status': found.status}

  def resume(self, run: run_folders.Run, body: Mapping[str, object]) -> json_values.JsonObject:
    """Resumes a run, detached; `{"train_steps": N}` extends it."""
    train_steps = answers.optional_integer(body, 'train_steps')
    commands.to_resume(run, train_steps).start()
    return {'status': statuses.of_run(run).status}

  def tag(self, run: run_folders.Run, body: Mapping[str, object]) -> json_values.JsonObject:
    """Changes tags and the note: `{"add": [...], "remove": [...], "note": TEXT}`."""
    note = answers.text(body, 'note') if 'note' in body else None
    found = run_folders.change_notes(run, answers.texts(body, 'add'), answers.texts(body, 'remove'), note)
    return {'tags': found.tags, 'note': found.note}

  def archive(self, run: run_folders.Run, body: Mapping[str, object]) -> dict[str, object]:
    """Takes a run out of the list."""
    del body
    trash.archive(run)
    return {}

  def unarchive(self, run: run_folders.Run, body: Mapping[str, object]) -> dict[str, object]:
    """Takes a run into the list again."""
    del body
    trash.unarchive(run)
    return {}

  def delete(self, run: run_folders.Run, body: Mapping[str, object]) -> json_values.JsonObject:
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

    def restore(key: str) -> json_values.JsonObject:
      return {'name': trash.restore(self._context.root, self._deleted(key), name).name}

    return self._of_each(keys, restore)

  def delete_forever(self, request: requests.Request) -> responses.Response:
    """Deletes runs in the trash with all their files: `{"keys": [...]}`."""

    def delete(key: str) -> json_values.JsonObject:
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
  names = {name for run in runs for name in (*run.evaluation, *run.train)}
  return {name: mode for name in names if (mode := metric_direction.direction(name))}


def _values(all_params: json_values.JsonObject, names: json_values.Json) -> dict[str, json_values.JsonObject]:
  """The values of some fields by the name of the run, and then of the field."""
  found: dict[str, json_values.JsonObject] = {}
  for run, values in all_params.items():
    for name in names:
      several = run_folders.values_of_field(name, values)
      if several:
        found.setdefault(run, {})[name] = several[0]
  return found
