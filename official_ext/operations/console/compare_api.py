"""Curves of any runs, and runs side by side."""

import json
import math

from starlette import requests
from starlette import responses
from starlette import routing

from official_ext.base import credentials
from official_ext.base import errors
from official_ext.operations.console import answers
from official_ext.operations.console import context as context_lib
from official_ext.operations.console import wire_names
from official_ext.operations.curves import curves
from official_ext.operations.runs import comparing
from official_ext.operations.runs import run_folder

_MAX_RUNS = 100
_MAX_CURVES = 2000


def routes(context: context_lib.Context) -> list[routing.Route]:
  """The requests that this part answers."""
  found = _Compare(context)
  return [
    routing.Route('/api/curves', answers.handler(found.curves), methods=['GET']),
    routing.Route('/api/curves/names', answers.handler(found.names), methods=['GET']),
    routing.Route('/api/compare', answers.handler(found.compare), methods=['GET']),
  ]


class _Compare:
  """The handlers."""

  def __init__(self, context: context_lib.Context):
    self._context = context

  def curves(self, request: requests.Request) -> responses.Response:
    """Curves `?name=` of the runs `?run=`: x, first, last, buckets and log=1 are those of View in runs/curves.py."""
    query = request.query_params
    runs, names = self._runs(request), query.getlist('name')
    if len(runs) * len(names) > _MAX_CURVES:
      raise errors.UserError(f'run, name: {len(runs)} runs with {len(names)} curves; {_MAX_CURVES} are possible')
    view = curves.View(
      query.get('x', 'step'),
      _number(request, 'first'),
      _number(request, 'last'),
      int(_number(request, 'buckets') or 500),
      query.get('log') == '1',
    )
    found = curves.as_dict(curves.read(self._context.columns, runs, names, view, is_patient=False))
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

  def compare(self, request: requests.Request) -> responses.Response:
    """Runs side by side, see operations/runs/comparing.py; with `all=1` the fields in which they do not differ too."""
    only_differences = request.query_params.get('all') != '1'
    found = comparing.compare(
      self._runs(request), lambda run: curves.evaluations(self._context.columns, run), only_differences
    )
    self._context.columns.trim()
    return answers.json(credentials.mask_values(found.as_dict()))

  def _runs(self, request: requests.Request) -> list[run_folder.Run]:
    return [answers.run_of(self._context, name) for name in self._names(request)]

  def _names(self, request: requests.Request) -> list[str]:
    names = list(dict.fromkeys(request.query_params.getlist('run')))
    if not 0 < len(names) <= _MAX_RUNS:
      raise errors.UserError(f'run: expected 1 to {_MAX_RUNS} names, got {len(names)}')
    return names


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
