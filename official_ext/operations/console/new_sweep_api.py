"""A sweep from the form of a new run: the number of its points, its file, and its start.

The contents of a request are those of the form, see new_run_api.py, of which `name` is the sweep's, and `{method,
count, metric, goal, min_iter, slots, parameters}`; a parameter is `{name, kind, values, low, high, count}`, see
sweeps/form_sweep.py.
"""

from collections.abc import Mapping

from starlette import requests
from starlette import responses
from starlette import routing

from official_ext.base import credentials
from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base import yaml_text
from official_ext.operations.console import answers
from official_ext.operations.console import context as context_lib
from official_ext.operations.console import new_run_api
from official_ext.operations.runs import commands
from official_ext.operations.runs import new_runs
from official_ext.operations.sweeps import form_sweep


def routes(context: context_lib.Context) -> list[routing.Route]:
  """The requests that this part answers."""
  page = _Page(context)
  return [
    routing.Route('/api/new/sweep/check', answers.handler(page.check), methods=['POST']),
    routing.Route('/api/new/sweep/start', answers.handler(page.start), methods=['POST']),
  ]


class _Page:
  """The requests."""

  def __init__(self, context: context_lib.Context):
    self._context = context

  def check(self, request: requests.Request) -> responses.Response:
    """`{"name", "lines", "points", "file", "command"}`: mistakes that are seen without the driver, and the number of
    points, null with mistakes. Writes nothing.
    """
    body = answers.body(request)
    name = answers.text(body, 'name', '')
    if not name:
      name = new_runs.proposed_name(self._context.root, f'{answers.text(body, "experiment", "")}-sweep')
    found: json_types.JsonObject = {'name': name, 'lines': [], 'points': None, 'file': '', 'command': ''}
    try:
      wanted = self._sweep({**body, 'name': name})
      values, points = wanted.check()
      wanted.run.check_name()
    except errors.UserError as error:
      return answers.json({**found, 'lines': [credentials.mask(line) for line in errors.lines_of(error)]})
    words = ['official-ext', 'sweep', f'{name}.yaml', self._context.root]
    words += [f'--slots={wanted.slots}'] if wanted.slots else []
    file = credentials.mask(yaml_text.dump(values))
    command = ' '.join(map(commands.quoted, words))
    return answers.json({**found, 'points': points, 'file': file, 'command': command})

  def start(self, request: requests.Request) -> responses.Response:
    """Starts it: `{"sweep": NAME}`. Waits for the driver's check of the points, in a process with TensorFlow."""
    wanted = self._sweep(answers.body(request))
    wanted.start(self._context.driver)
    return answers.json({'sweep': wanted.run.name})

  def _sweep(self, body: Mapping[str, object]) -> form_sweep.FormSweep:
    return form_sweep.FormSweep(
      run=new_run_api.new_run_of(self._context, body),
      ranges=form_sweep.ranges_of(body.get('parameters')),
      method=answers.text(body, 'method', 'grid'),
      count=answers.optional_integer(body, 'count') or 10,
      metric=answers.text(body, 'metric', '').strip(),
      goal=answers.text(body, 'goal', ''),
      min_iter=answers.optional_integer(body, 'min_iter'),
      slots=answers.optional_integer(body, 'slots'),
    )
