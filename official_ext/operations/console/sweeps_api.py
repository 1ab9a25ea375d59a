"""Sweeps for their pages: the actions of `official-ext sweep`, and the start of a sweep from the form of a new run.

The contents of a request for a new sweep are the form's, see new_run_api.py, with the sweep's `name`, and
`{method, count, metric, goal, min_iter, slots, parameters}`; a parameter is `{name, kind, values, low, high, count}`,
see sweeps/form_sweep.py.
"""

from collections.abc import Callable, Mapping
import json
import subprocess
import sys
import threading

from starlette import requests
from starlette import responses
from starlette import routing

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import safe_text
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.operations.console import answers
from official_ext.operations.console import context as context_lib
from official_ext.operations.console import new_run_api
from official_ext.operations.runs import commands
from official_ext.operations.runs import new_runs
from official_ext.operations.sweeps import form_sweep
from official_ext.operations.sweeps import sweep_changes
from official_ext.operations.sweeps import sweep_folder
from official_ext.operations.sweeps import sweep_points


def _form_routes(context: context_lib.Context) -> list[routing.Route]:
  """The requests that this part answers."""
  page = _SweepForm(context)
  return [
    routing.Route('/api/new/sweep/check', answers.handler(page.check), methods=['POST']),
    routing.Route('/api/new/sweep/start', answers.handler(page.start), methods=['POST']),
  ]


class _SweepForm:
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
    found: json_values.JsonObject = {'name': name, 'lines': [], 'points': None, 'file': '', 'command': ''}
    try:
      wanted = self._sweep({**body, 'name': name})
      values, points = wanted.check()
      wanted.run.check_name()
    except errors.UserError as error:
      return answers.json({**found, 'lines': [safe_text.mask(line) for line in errors.lines_of(error)]})
    words = ['official-ext', 'sweep', f'{name}.yaml', self._context.root]
    words += [f'--slots={wanted.slots}'] if wanted.slots else []
    file = safe_text.mask(config_text.dump(values))
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


_IMPORTANCE_SECONDS = 120.0


def routes(context: context_lib.Context) -> list[routing.Route]:
  """The requests that this part answers."""
  sweeps = _Sweeps(context)
  found = [
    *_form_routes(context),
    routing.Route('/api/sweeps', answers.handler(sweeps.all), methods=['GET']),
    routing.Route('/api/sweep', answers.handler(sweeps.one), methods=['GET']),
    routing.Route('/api/sweep/importances', answers.handler(sweeps.importances), methods=['GET']),
  ]
  actions = {
    'stop': sweeps.stop,
    'go_on': sweeps.start_controller,
    'retry': sweeps.retry,
    'resume': sweeps.resume,
    'delete': sweeps.delete,
  }
  for name, do in actions.items():
    found.append(routing.Route(f'/api/sweep/{name}', answers.handler(sweeps.changing(do)), methods=['POST']))
  return found


def topics(context: context_lib.Context) -> dict[str, Callable[[], object]]:
  """The data that live.py sends on every change."""
  return {'sweeps': _Sweeps(context).values}


class _Sweeps:
  """The handlers. The kept data is only a cache."""

  def __init__(self, context: context_lib.Context):
    self._context = context
    self._readers: dict[str, tuple[sweep_folder.SweepFolder, sweep_points.PointReader]] = {}
    self._importances: dict[str, tuple[object, object]] = {}
    self._lock = threading.Lock()  # Of the readers.
    self._computing = threading.Lock()

  # Looking.

  def values(self) -> list[json_values.JsonObject]:
    """All sweeps, a line each."""
    with self._lock:
      folders = [folder for folder in sweep_folder.find_sweeps(self._context.root) if self._is_inside(folder)]
      return [sweep_points.describe_sweep(*self._reader(folder)) for folder in folders]

  def all(self, request: requests.Request) -> responses.Response:
    """All sweeps: `{"sweeps": [...]}`."""
    del request
    return answers.json({'sweeps': self.values()})

  def one(self, request: requests.Request) -> responses.Response:
    """A sweep with its points: `?sweep=NAME`."""
    return answers.json(self._values(self._named(request.query_params.get('sweep', ''))))

  def importances(self, request: requests.Request) -> responses.Response:
    """The importance of its parameters: `{"importances": {name: share}}`, a text with the reason for none, or null.

    Optuna and scikit-learn take 100 MB and two seconds: a separate process computes it, once for each state. It is
    null until that has ended.
    """
    folder = self._named(request.query_params.get('sweep', ''))
    values = self._values(folder)
    key = [(point['point'], point['value']) for point in values['points'] if point['status'] == 'finished']
    known = self._importances.get(folder.name)
    if (known is None or known[0] != key) and self._computing.acquire(blocking=False):
      threading.Thread(target=self._compute, args=(folder, key), daemon=True).start()
    return answers.json({'importances': known[1] if known and known[0] == key else None})

  def _compute(self, folder: sweep_folder.SweepFolder, key: object) -> None:
    """Computes the importances for a state of the points, one sweep at a time."""
    try:
      self._importances[folder.name] = key, self._ask(folder)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
      self._importances[folder.name] = key, f'it could not be computed: {error}'
    finally:
      self._computing.release()

  def _ask(self, folder: sweep_folder.SweepFolder) -> object:
    process = subprocess.run(
      [sys.executable, '-m', 'official_ext.cli.main', 'sweep', 'show', folder.path, '--json', '--importances'],
      stdin=subprocess.DEVNULL,
      capture_output=True,
      timeout=_IMPORTANCE_SECONDS,
      check=False,
    )
    if process.returncode:
      return (process.stderr.decode(errors='replace').strip().splitlines() or ['it could not be computed'])[-1]
    return json.loads(process.stdout)['importances']

  def _values(self, folder: sweep_folder.SweepFolder) -> json_values.JsonObject:
    sweep = folder.load()
    with self._lock:
      _, reader = self._reader(folder)
      found = reader.read(sweep)
    values = sweep_points.sweep_as_dict(folder, sweep, found)
    words = ['official-ext', *folder.control_words()]
    text = paths.read(folder.file(sweep_folder.FILE), local_files.MAX_RECORD).decode(errors='replace')
    return {
      **values,
      'order': [point.number for point in sweep_points.best_first(found, sweep)],
      'file': safe_text.mask(text),
      'command': ' '.join(map(commands.quoted, words)),
      'slots': folder.settings().get('slots'),
    }

  def _named(self, name: str) -> sweep_folder.SweepFolder:
    """The sweep of a name.

    Raises:
      UserError: it does not exist, or leads out of the folder.
    """
    name = answers.name_of_wire(name)
    answers.check_name(name)
    folder = sweep_folder.SweepFolder(self._context.root, name)
    if not folder.exists():
      raise errors.UserError(f'{name}: no such sweep in {self._context.root}')
    if not self._is_inside(folder):
      raise errors.UserError(f'{name}: is a link that leads out of {self._context.root}')
    return folder

  def _is_inside(self, folder: sweep_folder.SweepFolder) -> bool:
    files = (folder.path, folder.file(sweep_folder.FILE), folder.file(sweep_folder.SETTINGS))
    return all(answers.is_inside(self._context, path) for path in files)

  def _reader(self, folder: sweep_folder.SweepFolder) -> tuple[sweep_folder.SweepFolder, sweep_points.PointReader]:
    if folder.name not in self._readers:
      self._readers[folder.name] = folder, sweep_points.PointReader(folder)
    return self._readers[folder.name]

  # Doing.

  def changing(
    self, do: Callable[[sweep_folder.SweepFolder, json_values.JsonObject], json_values.JsonObject | None]
  ) -> answers.Handler:
    """Does something with the sweep in `{"sweep": NAME, ...}`, and answers with its message and the new state."""

    def handle(request: requests.Request) -> responses.Response:
      body = answers.body(request)
      folder = self._named(answers.text(body, 'sweep'))
      done = do(folder, body)
      return answers.json({'done': done or {}, 'sweep': self._values(folder)})

    return handle

  def stop(self, folder: sweep_folder.SweepFolder, body: Mapping[str, object]) -> json_values.JsonObject:
    """Stops it."""
    del body
    return {'points': sweep_changes.stop(folder)}

  def start_controller(self, folder: sweep_folder.SweepFolder, body: Mapping[str, object]) -> json_values.JsonObject:
    """Starts a controller that outlives this server: `{"slots": 2}`."""
    slots = answers.optional_integer(body, 'slots')
    return {'pid': folder.start_controller(slots)}

  def retry(self, folder: sweep_folder.SweepFolder, body: Mapping[str, object]) -> json_values.JsonObject:
    """Retries points: `{"points": [3]}`, or all that have failed."""
    return {'points': sweep_changes.retry(folder, _numbers(body))}

  def resume(self, folder: sweep_folder.SweepFolder, body: Mapping[str, object]) -> None:
    """Resumes points."""
    for number in _numbers(body):
      sweep_changes.resume(folder, number)

  def delete(self, folder: sweep_folder.SweepFolder, body: Mapping[str, object]) -> None:
    """Moves the runs of points to the trash."""
    for number in _numbers(body):
      sweep_changes.delete(folder, number)


def _numbers(body: Mapping[str, object]) -> list[int]:
  numbers = body.get('points', [])
  if not isinstance(numbers, list):
    raise errors.UserError('points: expected a list of numbers of points')
  return [json_values.check_int(each, 'points', most=answers.MAX_INTEGER) for each in numbers]
