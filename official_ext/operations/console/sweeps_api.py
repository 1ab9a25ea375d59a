"""Sweeps for their pages: the actions of `official-ext sweep`. new_sweep_api.py starts one."""

from collections.abc import Callable, Mapping
import json
import subprocess
import sys
import threading

from starlette import requests
from starlette import responses
from starlette import routing

from official_ext.base import credentials
from official_ext.base import errors
from official_ext.base import integers
from official_ext.base import json_types
from official_ext.base.files import paths
from official_ext.base.files import regular_files
from official_ext.operations.console import answers
from official_ext.operations.console import context as context_lib
from official_ext.operations.console import wire_names
from official_ext.operations.runs import commands
from official_ext.operations.sweeps import controller_start
from official_ext.operations.sweeps import points as points_lib
from official_ext.operations.sweeps import sweep_changes
from official_ext.operations.sweeps import sweep_folder
from official_ext.operations.sweeps import sweep_results

_IMPORTANCE_SECONDS = 120.0


def routes(context: context_lib.Context) -> list[routing.Route]:
  """The requests that this part answers."""
  sweeps = _Sweeps(context)
  found = [
    routing.Route('/api/sweeps', answers.handler(sweeps.all), methods=['GET']),
    routing.Route('/api/sweep', answers.handler(sweeps.one), methods=['GET']),
    routing.Route('/api/sweep/importances', answers.handler(sweeps.importances), methods=['GET']),
  ]
  actions = {
    'stop': sweeps.stop,
    'go_on': sweeps.go_on,
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
    self._readers: dict[str, tuple[sweep_folder.SweepFolder, points_lib.PointReader]] = {}
    self._importances: dict[str, tuple[object, object]] = {}
    self._lock = threading.Lock()  # Of the readers.
    self._computing = threading.Lock()

  # Looking.

  def values(self) -> list[json_types.JsonObject]:
    """All sweeps, a line each."""
    with self._lock:
      folders = [folder for folder in sweep_folder.find(self._context.root) if self._is_inside(folder)]
      return [sweep_results.describe(*self._reader(folder)) for folder in folders]

  def all(self, request: requests.Request) -> responses.Response:
    """All sweeps: `{"sweeps": [...]}`."""
    del request
    return answers.json({'sweeps': self.values()})

  def one(self, request: requests.Request) -> responses.Response:
    """A sweep with its points: `?sweep=NAME`."""
    return answers.json(self._values(self._named(request.query_params.get('sweep', ''))))

  def importances(self, request: requests.Request) -> responses.Response:
    """The importance of its parameters: `{"importances": {name: share}}`, why there is none, as a text, or null.

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

  def _values(self, folder: sweep_folder.SweepFolder) -> json_types.JsonObject:
    sweep = folder.load()
    with self._lock:
      _, reader = self._reader(folder)
      found = reader.read(sweep)
    values = sweep_results.as_dict(folder, sweep, found)
    words = ['official-ext', *controller_start.command(folder)]
    text = paths.read(folder.file(sweep_folder.FILE), regular_files.MAX_RECORD).decode(errors='replace')
    return {
      **values,
      'order': [point.number for point in sweep_results.in_order(found, sweep)],
      'file': credentials.mask(text),
      'command': ' '.join(map(commands.quoted, words)),
      'slots': folder.settings().get('slots'),
    }

  def _named(self, name: str) -> sweep_folder.SweepFolder:
    """The sweep of a name.

    Raises:
      UserError: there is none, or it leads out of the folder.
    """
    name = wire_names.read(name)
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

  def _reader(self, folder: sweep_folder.SweepFolder) -> tuple[sweep_folder.SweepFolder, points_lib.PointReader]:
    if folder.name not in self._readers:
      self._readers[folder.name] = folder, points_lib.PointReader(folder)
    return self._readers[folder.name]

  # Doing.

  def changing(
    self, do: Callable[[sweep_folder.SweepFolder, json_types.JsonObject], json_types.JsonObject | None]
  ) -> answers.Handler:
    """Does something with the sweep in `{"sweep": NAME, ...}`, and answers with its message and the new state."""

    def handle(request: requests.Request) -> responses.Response:
      body = answers.body(request)
      folder = self._named(answers.text(body, 'sweep'))
      done = do(folder, body)
      return answers.json({'done': done or {}, 'sweep': self._values(folder)})

    return handle

  def stop(self, folder: sweep_folder.SweepFolder, body: Mapping[str, object]) -> json_types.JsonObject:
    """Stops it."""
    del body
    return {'points': sweep_changes.stop(folder)}

  def go_on(self, folder: sweep_folder.SweepFolder, body: Mapping[str, object]) -> json_types.JsonObject:
    """Starts a controller that outlives this server: `{"slots": 2}`."""
    slots = answers.optional_integer(body, 'slots')
    return {'pid': controller_start.start(folder, slots)}

  def retry(self, folder: sweep_folder.SweepFolder, body: Mapping[str, object]) -> json_types.JsonObject:
    """Tries points again: `{"points": [3]}`, or all that have failed."""
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
  return [integers.check(each, 'points', most=answers.MAX_INTEGER) for each in numbers]
