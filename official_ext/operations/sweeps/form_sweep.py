"""A sweep around a new run: the fields of a form, and for some of them several values.

It makes the file that `official-ext sweep` reads, and starts that command.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import subprocess
import sys
import tempfile

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.run_folder import metric_direction
from official_ext.operations.runs import commands
from official_ext.operations.runs import driver as driver_lib
from official_ext.operations.runs import new_runs
from official_ext.operations.sweeps import samplers
from official_ext.operations.sweeps import sweep_file
from official_ext.operations.sweeps import sweep_folder

MAX_POINTS = 1000  # Of one form: more are a mistake more often than a wish.
KINDS = ('values', 'linear', 'log')
_MAX_VALUES = 1000  # Of one range.
_START_SECONDS = 600.0  # For the check of the points, which imports TensorFlow, and the start of the controller.
_ERROR = 'error: '


@dataclasses.dataclass(frozen=True)
class Range:
  """The values of a field.

  Attributes:
    name: of the field, as --set takes it.
    kind: one of KINDS: a list of values, or a range, of which a grid takes values at equal distances or ratios.
    values: of the list: `V1, V2`, as `official-ext sweep --set` takes them.
    low: the lower end of a range, as text.
    high: its upper end.
    count: how many values of a range a grid takes.
  """

  name: str
  kind: str = 'values'
  values: str = ''
  low: str = ''
  high: str = ''
  count: int = 3

  def of_file(self, method: str) -> json_values.JsonObject:
    """The parameter in the file of a sweep.

    Raises:
      UserError: something is missing or invalid.
    """
    if self.kind not in KINDS:
      raise errors.UserError(f'{self.name}: {self.kind}: expected one of {", ".join(KINDS)}')
    if self.kind == 'values':
      found = config_text.load(f'[{self.values}]', self.name)
      if not found:
        raise errors.UserError(f'{self.name}: expected values such as 1, 2')
      return {'values': found} if len(found) > 1 else {'value': found[0]}
    low, high = self._end(self.low, 'from'), self._end(self.high, 'to')
    if low >= high:
      raise errors.UserError(f'{self.name}: {low} is not below {high}')
    if self.kind == 'log' and low <= 0:
      raise errors.UserError(f'{self.name}: {low}: a logarithmic range must begin above 0')
    if method == 'grid':
      return {'values': self._spread(low, high)}
    if self.kind == 'linear':
      return {'min': low, 'max': high}
    return {'distribution': 'log_uniform_values', 'min': low, 'max': high, **self._whole(low, high)}

  def _end(self, text: str, name: str) -> float | int:
    value = config_text.load(text, self.name) if text.strip() else None
    if not json_values.is_finite(value):
      raise errors.UserError(f'{self.name}: {name}: expected a number, got {text!r}')
    return value

  def _whole(self, low: float, high: float) -> json_values.JsonObject:
    """The step of a range between integers, in which only integers are drawn."""
    is_whole = json_values.is_int(low) and json_values.is_int(high)
    return {'distribution': 'q_log_uniform_values', 'q': 1} if is_whole else {}

  def _spread(self, low: float, high: float) -> list[float | int]:
    """Values of the range, both ends among them; integers between integers."""
    if not 2 <= self.count <= _MAX_VALUES:
      raise errors.UserError(f'{self.name}: {self.count} values of a range: must be from 2 to {_MAX_VALUES}')
    parts = [number / (self.count - 1) for number in range(self.count)]
    if self.kind == 'log':
      inside = [math.exp(math.log(low) + part * (math.log(high) - math.log(low))) for part in parts]
    else:
      inside = [low + part * (high - low) for part in parts]
    found = [low, *(float(f'{value:.6g}') for value in inside[1:-1]), high]
    if json_values.is_int(low) and json_values.is_int(high):
      found = [round(value) for value in found]
    return list(dict.fromkeys(found))


@dataclasses.dataclass(frozen=True)
class FormSweep:
  """A sweep that does not exist yet.

  Attributes:
    run: the fields that all points share; its name is the sweep's.
    ranges: the fields that differ.
    method: one of sweep_file.METHODS.
    count: the number of points that 'random' draws and 'bayes' proposes.
    metric: the metric to optimize; '' for none.
    goal: 'minimize' or 'maximize'; '' for minimize, if the metric's name implies it.
    min_iter: how many values of the metric a run has before Hyperband compares it, and may end it; None for no early
      termination.
    slots: how many points train at the same time; None for the default.
  """

  run: new_runs.NewRun
  ranges: tuple[Range, ...]
  method: str = 'grid'
  count: int = 10
  metric: str = ''
  goal: str = ''
  min_iter: int | None = None
  slots: int | None = None

  def values(self) -> json_values.JsonObject:
    """The contents of the sweep's file.

    Raises:
      UserErrors: one line for each mistake.
    """
    parameters: json_values.JsonObject = {}
    with errors.Mistakes() as mistakes:
      for each in self.ranges:
        with mistakes.noted():
          if not each.name:
            raise errors.UserError('a field of the sweep has no name; choose one, or remove it')
          if each.name in parameters:
            raise errors.UserError(f'{each.name}: is given twice; remove one')
          parameters[each.name] = each.of_file(self.method)
    swept = tuple(f'{name}=' for name in parameters)
    shared = dataclasses.replace(self.run, sets=tuple(text for text in self.run.sets if not text.startswith(swept)))
    experiment, mode, flags = shared.shared_flags()
    found: json_values.JsonObject = {
      'name': self.run.name,
      'experiment': experiment,
      'mode': mode,
      'method': self.method,
    }
    program, _ = self.run.program()
    if program and program != driver_lib.INSTALLED_PROGRAM:
      found['program'] = program
    if self.metric:
      if not self.goal and metric_direction.direction(self.metric) is None:
        raise errors.UserError(
          f'metric.goal: the name {self.metric} does not imply whether higher or lower is better; choose the goal'
        )
      found['metric'] = {'name': self.metric, **({'goal': self.goal} if self.goal else {})}
    if self.min_iter is not None:
      found['early_terminate'] = {'type': 'hyperband', 'min_iter': self.min_iter}
    if self.method != 'grid':
      found['run_cap'] = self.count
    return {**found, 'parameters': parameters, **({'flags': flags} if flags else {})}

  def check(self) -> tuple[json_values.JsonObject, int]:
    """The contents of the sweep's file, and the number of points.

    Raises:
      UserErrors: one line for each mistake that can be seen without the driver.
    """
    values = self.values()
    if self.method == 'bayes':
      samplers.check_optuna()
    points = int(sweep_file.parse(values).num_points)
    if points > MAX_POINTS:
      raise errors.UserError(
        f'{points:,} points: the form starts {MAX_POINTS:,} at most; take fewer values, or use `official-ext sweep`'
      )
    return values, points

  def start(self, driver: driver_lib.Driver) -> None:
    """Runs `official-ext sweep FILE --start`, which lets the driver check the points; takes seconds.

    Args:
      driver: gives the folder of the command; a clone's is its original's.

    Raises:
      UserErrors: that command's mistakes. Nothing is left of the sweep.
      StorageError: it has failed, or takes too long.
    """
    values, _ = self.check()
    self.run.check_name()
    _, cwd = self.run.program()
    if self.run.has_base:
      commands.make_folder(self.run.root, self.run.name)
    try:
      if self.run.has_base:
        self.run.write_base()
      with tempfile.NamedTemporaryFile('w', encoding='utf-8', suffix='.yaml') as file:
        file.write(config_text.dump(values))
        file.flush()
        _run(
          [file.name, self.run.root, '--start', *([f'--slots={self.slots}'] if self.slots else [])], cwd or driver.cwd
        )
    except BaseException:
      if not sweep_folder.SweepFolder(self.run.root, self.run.name).exists():
        self.run.discard()
      raise


def _run(arguments: Sequence[str], cwd: str) -> None:
  """Runs `official-ext sweep`.

  Raises:
    UserErrors: its lines, if it refuses.
    StorageError: it has failed otherwise.
  """
  try:
    done = subprocess.run(
      [sys.executable, '-m', 'official_ext.cli.main', 'sweep', *arguments],
      stdin=subprocess.DEVNULL,
      capture_output=True,
      cwd=cwd,
      timeout=_START_SECONDS,
      check=False,
    )
  except subprocess.TimeoutExpired:
    raise errors.StorageError(f'official-ext sweep: has not started in {_START_SECONDS:.0f} s') from None
  lines = done.stderr.decode(errors='replace').splitlines()
  mistakes = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
  if done.returncode == errors.UserError.exit_status and mistakes:
    raise errors.UserErrors(mistakes)
  if done.returncode:
    raise errors.StorageError(f'official-ext sweep: {[*lines, *mistakes, f"status {done.returncode}"][-1]}')


def ranges_of(rows: object) -> tuple[Range, ...]:
  """The ranges in a request: a list of objects with the attributes of `Range`.

  Raises:
    UserError: it is something else.
  """
  texts = ('name', 'kind', 'values', 'low', 'high')
  if not isinstance(rows, list) or not rows:
    raise errors.UserError('parameters: choose a field, and several values of it')
  found = []
  for row in rows:
    if not isinstance(row, Mapping) or not all(isinstance(row.get(name, ''), str) for name in texts):
      raise errors.UserError('parameters: expected a list of objects with texts')
    count = json_values.check_int(row.get('count', 3), f'{row.get("name")}: number of values')
    found.append(Range(**{name: row[name].strip() for name in texts if name in row}, count=count))
  return tuple(found)
