"""Curves of any runs, and runs side by side."""

import collections
from collections.abc import Sequence
import json
import math

from starlette import requests
from starlette import responses
from starlette import routing

from official_ext.base import credentials
from official_ext.base import errors
from official_ext.base import json_types
from official_ext.operations.console import answers
from official_ext.operations.console import context as context_lib
from official_ext.operations.console import wire_names
from official_ext.operations.curves import curve_values
from official_ext.operations.curves import curves
from official_ext.operations.curves import grouped_curves
from official_ext.operations.runs import comparing
from official_ext.operations.runs import grouped_metrics
from official_ext.operations.runs import run_folder

_MAX_RUNS = 100
_MAX_CURVES = 2000


def routes(context: context_lib.Context) -> list[routing.Route]:
  """The requests that this part answers."""
  found = _Compare(context)
  return [
    routing.Route('/api/curves', answers.handler(found.curves), methods=['GET']),
    routing.Route('/api/curves/names', answers.handler(found.names), methods=['GET']),
    routing.Route('/api/curves/values', answers.handler(found.values), methods=['GET']),
    routing.Route('/api/compare', answers.handler(found.compare), methods=['GET']),
    routing.Route('/api/groups', answers.handler(found.groups), methods=['GET']),
  ]


class _Compare:
  """The handlers."""

  def __init__(self, context: context_lib.Context):
    self._context = context

  def curves(self, request: requests.Request) -> responses.Response:
    """Curves `?name=` of the runs `?run=`: x, first, last, buckets and log=1 are those of View in curves/curves.py.

    With `?group=`, a text for each run in their order, they are those of the groups, in place of `run`.
    """
    query = request.query_params
    runs, names = self._runs(request), query.getlist('name')
    if len(runs) * len(names) > _MAX_CURVES:
      raise errors.UserError(f'run, name: {len(runs)} runs with {len(names)} curves; {_MAX_CURVES} are possible')
    view = curves.View(
      query.get('x', 'step'),
      _number(request, 'first'),
      _number(request, 'last'),
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
      bands = grouped_curves.group(read, group_of, view)
      found['curves'] = [
        {'run': key[0], 'name': key[1], 'num_unplaced': unplaced[key], **band.as_dict()} for key, band in bands.items()
      ]
    # Strict JSON already: to look for NaN among a hundred thousand numbers once more takes as long as all the rest.
    content = json.dumps(found, separators=(',', ':'), allow_nan=False)
    return responses.Response(wire_names.in_json(content), media_type='application/json')

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
    """One number for the curve `?name=` of each run `?run=`, see curves/curve_values.py: `?value=` and `?count=`.

    `{"values": [{"value", "step", "count", "is_coarse"} or null, ...]}`, in the order of the runs.
    """
    query = request.query_params
    name, statistic = query.get('name', ''), query.get('value', 'last')
    count = answers.optional_integer(request, 'count') or 10
    found = []
    for run in self._runs(request):
      found.append(curve_values.read(self._context.columns, run, name, statistic, count, is_patient=False))
      self._context.columns.trim()
    return answers.json({'values': [each and each.as_dict() for each in found]})

  def compare(self, request: requests.Request) -> responses.Response:
    """Runs side by side, see operations/runs/comparing.py; with `all=1` the fields in which they do not differ too."""
    only_differences = request.query_params.get('all') != '1'
    found = comparing.compare(
      self._runs(request), lambda run: curves.evaluations(self._context.columns, run), only_differences
    )
    self._context.columns.trim()
    return answers.json(credentials.mask_values(found.as_dict()))

  def groups(self, request: requests.Request) -> responses.Response:
    """Groups of the runs by `?by=`, as in `runs table --group`; without, by all fields that differ but seeds.

    `{"fields": [name, ...], "groups": [{"label", "runs": [name, ...]}, ...]}`: the fields by which they can be grouped.
    """
    wanted = {run.name: number for number, run in enumerate(self._runs(request))}
    runs = sorted(
      (each for each in self._context.recent.summaries() if each.name in wanted), key=lambda run: wanted[run.name]
    )
    all_params = self._context.recent.params()
    fields = grouped_metrics.fields_that_differ({run.name: all_params.get(run.name, {}) for run in runs})
    by = request.query_params.getlist('by') or fields
    found = grouped_metrics.group(runs, by, (), lambda: all_params)
    groups = [{'label': _label(by, each.values), 'runs': each.names} for each in found]
    return answers.json({'fields': fields, 'groups': groups})

  def _runs(self, request: requests.Request) -> list[run_folder.Run]:
    return [answers.run_of(self._context, name) for name in self._names(request)]

  def _names(self, request: requests.Request) -> list[str]:
    names = list(dict.fromkeys(request.query_params.getlist('run')))
    if not 0 < len(names) <= _MAX_RUNS:
      raise errors.UserError(f'run: expected 1 to {_MAX_RUNS} names, got {len(names)}')
    return names


def _label(by: Sequence[str], values: Sequence[json_types.Json]) -> str:
  """`learning_rate=0.1, width=8`, with passwords masked; tags and folders without their name."""
  parts = []
  for name, value in credentials.mask_values(dict(zip(by, values))).items():
    text = '-' if value is None or value == '' else str(value)
    parts.append(text if name in ('tag', 'folder') else f'{name.rpartition(".")[2]}={text}')
  return ', '.join(parts) or 'all'


def _number(request: requests.Request, name: str) -> float | None:
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
