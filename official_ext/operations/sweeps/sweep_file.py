"""The file of a sweep: the keys of Weights & Biases' sweep.yaml, and a few additional ones.

Features of Weights & Biases that are unsupported here are refused by name: a key that is ignored would be a wrong
result.

Early ends (`early_terminate`) follow Hyperband's brackets (Li et al., 2018). An iteration of a run is one reported
value of the metric, counted from 0. At some iterations, the bands, a run has to be among the best 1 / eta of the runs
that have reached them: see https://docs.wandb.ai/models/sweeps.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import re

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.base.run_folder import metric_direction
from official_ext.operations.sweeps import distributions

_HYPERBAND_KEYS = ('type', 'min_iter', 'max_iter', 's', 'eta', 'strict')
_MAX_BANDS = 100


@dataclasses.dataclass(frozen=True)
class Hyperband:
  """When runs are ended early.

  Attributes:
    bands: the iterations at which runs are compared, ascending.
    eta: one run in `eta` continues.
    strict: whether the value at the band counts, as in the paper; otherwise it is the best of the run so far.
  """

  bands: tuple[int, ...]
  eta: float = 3.0
  strict: bool = False

  def to_end(self, histories: Mapping[int, Sequence[float]], running: Sequence[int], goal: str) -> dict[int, str]:
    """The runs that should end, with the reason for people.

    Args:
      histories: number of a point -> all values of its metric, in their order.
      running: the numbers of the points that still run.
      goal: 'minimize' or 'maximize'.
    """
    sign = -1.0 if goal == 'maximize' else 1.0
    costs = {number: [sign * value for value in history] for number, history in histories.items()}
    ended = {}
    for number in running:
      own = costs.get(number, [])
      band = max((band for band in self.bands if band < len(own)), default=None)
      if band is None:
        continue
      reached = sorted(cost[band] for cost in costs.values() if len(cost) > band)
      threshold = reached[int(len(reached) / self.eta)]
      cost = own[band] if self.strict else min(own)
      if cost > threshold:
        ended[number] = f'{sign * cost:.6g} at iteration {band}, and {sign * threshold:.6g} was needed'
    return ended


def parse_hyperband(values: json_values.Json, path: str = 'early_terminate') -> Hyperband:
  """The early end that some values of a sweep's file describe.

  Raises:
    UserError: they are wrong.
  """
  if not isinstance(values, Mapping):
    raise errors.UserError(f'{path}: expected a mapping such as {{type: hyperband, min_iter: 3}}')
  for key in values:
    if key not in _HYPERBAND_KEYS:
      near = errors.did_you_mean(key, _HYPERBAND_KEYS, before='; ')
      raise errors.UserError(f'{path}.{key}: no such key{near}; there are {", ".join(_HYPERBAND_KEYS)}')
  if values.get('type') != 'hyperband':
    raise errors.UserError(f'{path}.type: {values.get("type")!r}: there is hyperband')
  eta, strict = values.get('eta', 3), values.get('strict', False)
  if not isinstance(eta, (int, float)) or isinstance(eta, bool) or not eta > 1:
    raise errors.UserError(f'{path}.eta: expected a number above 1, got {eta!r}')
  if not isinstance(strict, bool):
    raise errors.UserError(f'{path}.strict: expected true or false, got {strict!r}')
  return Hyperband(tuple(_hyperband_bands(values, float(eta), path)), float(eta), strict)


def _hyperband_bands(values: Mapping[str, object], eta: float, path: str) -> list[int]:
  if 'max_iter' in values:
    if 'min_iter' in values:
      raise errors.UserError(f'{path}.min_iter: give min_iter, or max_iter and s')
    if 's' not in values:
      raise errors.UserError(f'{path}.s: is missing, and max_iter needs it: the number of bands')
    band, bands = float(_positive_integer(values, 'max_iter', path)), []
    for _ in range(_positive_integer(values, 's', path)):
      band /= eta
      if band < 1:
        break
      bands.append(int(band))
    if not bands:
      raise errors.UserError(f'{path}.max_iter: {values["max_iter"]}: leaves no band; it must be at least eta, {eta:g}')
    return sorted(set(bands))
  if 's' in values:
    raise errors.UserError(f'{path}.s: goes with max_iter, not with min_iter')
  if 'min_iter' not in values:
    raise errors.UserError(f'{path}: expected min_iter, or max_iter and s')
  least = _positive_integer(values, 'min_iter', path)
  return sorted({int(least * eta**power) for power in range(_MAX_BANDS) if least * eta**power < 1e9})


def _positive_integer(values: Mapping[str, object], key: str, path: str) -> int:
  return json_values.check_int(values[key], f'{path}.{key}')


METHODS = ('grid', 'random', 'bayes')
_MODES = ('train', 'train_and_eval', 'train_and_post_eval')
_KEYS = (
  *('name', 'description', 'method', 'metric', 'parameters', 'early_terminate', 'run_cap', 'program', 'command'),
  *('experiment', 'mode', 'flags', 'seed', 'gpus', 'max_restarts'),  # Ours.
)
# Keys of Weights & Biases that nothing here does.
_REFUSED = {
  'project': "belongs to their server; the folder of the runs is this sweep's project: leave it out",
  'entity': 'belongs to their server: leave it out',
  'controller': 'there is one controller, this command: leave it out',
  'scheduler': 'is not done here: leave it out, and take method grid, random or bayes',
  'metrics': 'several goals at once are not done here: name one in `metric`',
  'job': 'belongs to their Launch: name `experiment` or `program`',
  'image_uri': 'belongs to their Launch: name `experiment` or `program`',
  'apiVersion': 'belongs to their server: leave it out',
  'kind': 'belongs to their server: leave it out',
}
_REFUSED_OF_METRIC = {
  'impute': 'runs that fail have no value here, and the sampler learns that they have failed: leave it out',
  'impute_while_running': 'runs that still run have no value here: leave it out',
}
_SUMMARIES = ('last', 'best')
_MODES_OF_GOALS = {'minimize': 'min', 'maximize': 'max'}


@dataclasses.dataclass(frozen=True)
class Metric:
  """The search of a sweep.

  Attributes:
    name: of a metric of evaluations, or else of training.
    goal: 'minimize' or 'maximize'.
    target: no further point is tried when one has reached it; None for no target.
    summary: whether the value of a run is of its 'last' evaluation, or of its 'best'.
  """

  name: str
  goal: str = 'minimize'
  target: float | None = None
  summary: str = 'last'

  def is_better(self, value: float, other: float) -> bool:
    """Whether a value is nearer to the goal than another."""
    return value > other if self.goal == 'maximize' else value < other

  def has_reached_target(self, value: float) -> bool:
    """Whether a value reaches the target."""
    return self.target is not None and (value == self.target or self.is_better(value, self.target))


@dataclasses.dataclass(frozen=True)
class SweepFile:
  """A sweep as its file says.

  Attributes:
    values: the contents of the file.
    method: one of METHODS.
    parameters: in the file's order.
    metric: None if it looks for nothing.
    early_terminate: None if no run is stopped early.
    run_cap: how many points there are at most; None: no limit but a grid's.
    name: '' if the file has none.
    description: for people.
    experiment: '' if a program needs none.
    mode: the driver's.
    program: '' for train.py.
    command: of a run, with macros such as ${args}; () for the driver's flags.
    flags: further flags of the driver.
    seed: of the samples.
    gpus: how many a run gets; None: one, if there are any.
    max_restarts: how often a run is retried after it was preempted or lost; None: as the queue does.
  """

  values: json_values.JsonMapping
  method: str
  parameters: tuple[distributions.Parameter, ...]
  metric: Metric | None = None
  early_terminate: Hyperband | None = None
  run_cap: int | None = None
  name: str = ''
  description: str = ''
  experiment: str = ''
  mode: str = 'train_and_eval'
  program: str = ''
  command: tuple[str, ...] = ()
  flags: tuple[str, ...] = ()
  seed: int = 0
  gpus: int | None = None
  max_restarts: int | None = None

  @property
  def num_points(self) -> float:
    """How many points there will be, unless it is stopped; infinity for no end."""
    grids = [parameter.grid() for parameter in self.parameters] if self.method == 'grid' else []
    size = math.prod(len(grid or ()) for grid in grids) if grids else math.inf
    return min(size, math.inf if self.run_cap is None else self.run_cap)


def load(path: str) -> SweepFile:
  """Reads a sweep's file.

  Raises:
    UserErrors: it cannot be read, or one line for each mistake.
  """
  return parse(read(path))


def read(path: str) -> json_values.JsonObject:
  """The contents of a sweep's file, unchecked.

  Raises:
    UserError: it cannot be read, or is not a mapping.
  """
  try:
    values = config_text.load(paths.read(path, local_files.MAX_RECORD).decode(), path)
  except FileNotFoundError:
    raise errors.UserError(f'{path}: no such file') from None
  except (OSError, UnicodeDecodeError) as error:
    raise errors.UserError(f'{path}: cannot be read: {" ".join(str(error).split())}') from error
  if not isinstance(values, dict):
    raise errors.UserError(f'{path}: expected a mapping with `method`, `parameters` and similar')
  return values


def parse(values: json_values.JsonMapping) -> SweepFile:
  """The sweep that some values describe.

  Raises:
    UserErrors: one line for each mistake.
  """
  with errors.Mistakes() as mistakes:
    for key in values:
      mistakes.check(_check_key, key, _KEYS, _REFUSED)
    parts: json_values.JsonObject = {'metric': None, 'early_terminate': None, 'parameters': (), 'method': ''}
    for key, read in _READERS.items():
      with mistakes.noted():
        if key in values or key in ('method', 'parameters'):
          parts[key] = read(values.get(key), key)
    if not mistakes.lines:
      mistakes.check(_check_together, parts)
  return SweepFile(values=dict(values), **parts)


def differences(old: SweepFile, new: SweepFile) -> list[str]:
  """The changes of a sweep's file that are refused while there are points: `path: old -> new`.

  A higher run_cap, another description, and further values of a grid are no such change.
  """
  grows = new.run_cap is None or (old.run_cap is not None and new.run_cap >= old.run_cap)
  dropped = ['description', *(['run_cap'] if grows else [])]
  values = [{key: value for key, value in each.values.items() if key not in dropped} for each in (old, new)]
  if old.method == new.method == 'grid':
    before = {parameter.name: parameter for parameter in old.parameters}
    after = {parameter.name: parameter for parameter in new.parameters}
    if before.keys() == after.keys() and all(_contains(after[name], before[name]) for name in before):
      values = [{key: value for key, value in each.items() if key != 'parameters'} for each in values]
  return config_text.text_differences(*map(config_text.dump, values))


def _contains(new: distributions.Parameter, old: distributions.Parameter) -> bool:
  known = [repr(value) for value in new.grid() or ()]
  return all(repr(value) in known for value in old.grid() or ())


def _check_together(parts: json_values.JsonMapping) -> None:
  method, metric = parts['method'], parts['metric']
  with errors.Mistakes() as mistakes:
    for parameter in parts['parameters']:
      mistakes.check(_check_parameter, parameter, method)
    if metric is None and (method == 'bayes' or parts['early_terminate']):
      with mistakes.noted():
        raise errors.UserError(f'metric: {"method bayes" if method == "bayes" else "early_terminate"} needs one')
    if not parts.get('experiment') and not parts.get('program') and not parts.get('command'):
      with mistakes.noted():
        raise errors.UserError('experiment: name the one to run, as --experiment does, or a program')
    command = parts.get('command', ())
    if command and not any('${model_dir}' in word for word in command):
      with mistakes.noted():
        raise errors.UserError('command: must have ${model_dir}, the folder of the run, where events.jsonl is read')


def _check_parameter(parameter: distributions.Parameter, method: str) -> None:
  path = f'parameters.{parameter.name}'
  if method == 'grid' and parameter.grid() is None:
    raise errors.UserError(
      f'{path}: method grid needs values, or integers from min to max, not {parameter.distribution}'
    )
  if method != 'random' and parameter.probabilities:
    raise errors.UserError(
      f'{path}.probabilities: method {method} does not draw; leave them out, or take method random'
    )


def _read_method(value: object, path: str) -> str:
  if value not in METHODS:
    what = 'is missing' if value is None else f'{value!r} is invalid'
    raise errors.UserError(f'{path}: {what}; choose one of {", ".join(METHODS)}')
  return value


def _read_metric(values: object, path: str) -> Metric:
  if not isinstance(values, Mapping):
    raise errors.UserError(f'{path}: expected a mapping such as {{name: validation_accuracy, goal: maximize}}')
  for key in values:
    _check_key(key, ('name', 'goal', 'target', 'summary'), _REFUSED_OF_METRIC, f'{path}.')
  name, goal = values.get('name'), values.get('goal')
  if not isinstance(name, str) or not name:
    raise errors.UserError(f'{path}.name: expected the name of a metric, got {name!r}')
  if goal not in (None, 'minimize', 'maximize'):
    raise errors.UserError(f'{path}.goal: {goal!r} is invalid; choose one of minimize, maximize')
  if goal is None and metric_direction.direction(name) == 'max':
    raise errors.UserError(f'{path}.goal: is missing, which means minimize; {name} requires goal: maximize')
  if goal is not None:
    try:
      metric_direction.check_agrees(name, _MODES_OF_GOALS[goal], goal)
    except ValueError as error:
      raise errors.UserError(f'{path}.goal: {error}') from error
  target, summary = values.get('target'), values.get('summary', 'last')
  if target is not None and not json_values.is_finite(target):
    raise errors.UserError(f'{path}.target: expected a number, got {target!r}')
  if summary not in _SUMMARIES:
    raise errors.UserError(f'{path}.summary: {summary!r} is invalid; choose one of {", ".join(_SUMMARIES)}')
  return Metric(name, goal or 'minimize', target, summary)


def _read_text(value: object, path: str) -> str:
  if not isinstance(value, str):
    raise errors.UserError(f'{path}: expected a text, got {value!r}')
  return value


def _read_mode(value: object, path: str) -> str:
  if value not in _MODES:
    raise errors.UserError(f'{path}: {value!r}: a sweep trains; there are {", ".join(_MODES)}')
  return value


def _read_words(value: object, path: str) -> tuple[str, ...]:
  if not isinstance(value, list) or not all(isinstance(word, (str, int, float)) for word in value):
    raise errors.UserError(f'{path}: expected a list of words, got {value!r}')
  words = tuple(str(word) for word in value)
  if path == 'flags':
    for word in words:
      if not re.fullmatch(r'--?\w+(=.*)?', word, re.DOTALL):
        raise errors.UserError(f'{path}: {word!r} is not a flag of the driver; expected --NAME=VALUE')
      if re.match(r'--?(model_dir|experiment|mode)(=|$)', word):
        raise errors.UserError(f'{path}: {word}: the sweep gives this flag itself')
  return words


def _at_least(least: int):
  def read(value: json_values.Json, path: str) -> int:
    return json_values.check_int(value, path, least)

  return read


_READERS = {
  'method': _read_method,
  'metric': _read_metric,
  'parameters': lambda value, path: tuple(distributions.parse_all(value, path)),
  'early_terminate': parse_hyperband,
  'run_cap': _at_least(1),
  'name': _read_text,
  'description': _read_text,
  'experiment': _read_text,
  'mode': _read_mode,
  'program': _read_text,
  'command': _read_words,
  'flags': _read_words,
  'seed': _at_least(0),
  'gpus': _at_least(0),
  'max_restarts': _at_least(0),
}


def _check_key(key: json_values.Json, known: Sequence[str], refused: Mapping[str, str], prefix: str = '') -> None:
  if key in known:
    return
  if key in refused:
    raise errors.UserError(f'{prefix}{key}: {refused[key]}')
  near = errors.did_you_mean(key, known, before='; ')
  raise errors.UserError(f'{prefix}{key}: no such key{near}; there are {", ".join(known)}')
