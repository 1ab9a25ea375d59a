"""Chooses and orders the runs of a list: by status, tags, fields of the configuration, metrics."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import math
import operator
import re
from typing import Any

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.run_folder import metric_direction
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_index
from official_ext.operations.runs import statuses as statuses_lib

_CONDITION = re.compile(r'\s*([^\s=<>!~]+)\s*(<=|>=|!=|=|<|>|~)\s*(.*?)\s*', re.DOTALL)
_NUMBER = re.compile(r'[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?', re.ASCII)
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
  '<': operator.lt,
  '<=': operator.le,
  '>': operator.gt,
  '>=': operator.ge,
}
# The sort keys of a list besides metrics and fields: the summary's own.
_OWN = frozenset(
  'name status experiment mode step train_steps percent eta_seconds steps_per_second attempt started updated'.split()
)
_LATEST_FIRST = ('started', 'updated')

# The configurations of runs by name, which are read when they are first needed.
Params = Callable[[], Mapping[str, json_values.JsonMapping]]


@dataclasses.dataclass(frozen=True)
class Condition:
  """`NAME OPERATOR VALUE`, such as `learning_rate=1e-3`, `validation_accuracy>0.9` or `name~resnet`.

  Attributes:
    name: of a metric, a field of the configuration, or an own field of the summary.
    sign: one of = != < <= > >= and ~, which looks for a part of a text.
    value: number, bool, null or text.
    text: the value as it was written.
  """

  name: str
  sign: str
  value: json_values.Json
  text: str

  def holds(self, found: object) -> bool:
    """Whether it is true of a value."""
    if self.sign == '~':
      return self.text.lower() in _as_text(found).lower()
    if self.sign in _COMPARISONS:
      numbers = _as_number(found), _as_number(self.value)
      return None not in numbers and _COMPARISONS[self.sign](*numbers)
    return self._equals(found) == (self.sign == '=')

  def _equals(self, found: object) -> bool:
    numbers = _as_number(found), _as_number(self.value)
    if None not in numbers:
      return numbers[0] == numbers[1] or all(map(math.isnan, numbers))  # type: ignore[arg-type]
    return found == self.value or _as_text(found) == self.text


def parse_condition(text: str, flag: str = '--filter') -> Condition:
  """The condition of a text, the value of a flag.

  Raises:
    UserError: it is invalid.
  """
  match = _CONDITION.fullmatch(text)
  if match is None:
    raise errors.UserError(f'{flag}={text}: expected NAME=VALUE, or one of != < <= > >= ~ in place of =')
  value = config_text.load_value(match[3], f'{flag}={text}')
  value = value.value if isinstance(value, config_text.Literal) else value
  if match[2] in _COMPARISONS and _as_number(value) is None:
    raise errors.UserError(f'{flag}={text}: {match[2]} compares numbers, and {match[3]!r} is none; = compares texts')
  return Condition(match[1], match[2], value, match[3])


@dataclasses.dataclass(frozen=True)
class Selection:
  """Which runs are meant: the ones that meet all given conditions.

  Attributes:
    statuses: any of them.
    experiments: any of them.
    tags: all of them.
    filters: texts of conditions; all of them.
  """

  statuses: Sequence[str] = ()
  experiments: Sequence[str] = ()
  tags: Sequence[str] = ()
  filters: Sequence[str] = ()

  def choose(self, runs: Sequence[run_index.RunSummary], params: Params) -> list[run_index.RunSummary]:
    """The runs that are meant, of some.

    Raises:
      UserError: there is no such status, a filter is invalid, or no run has its field.
    """
    for wrong in (name for name in self.statuses if name not in statuses_lib.STATUSES):
      raise errors.UserError(f'--status={wrong}: no such status; there are {", ".join(statuses_lib.STATUSES)}')
    chosen = [run for run in runs if self._fits(run)]
    for condition in map(parse_condition, self.filters):
      values = values_of(condition.name, runs, params, f'--filter={condition.name}')
      chosen = [run for run in chosen if any(condition.holds(value) for value in values[run.name])]
    return chosen

  def _fits(self, run: run_index.RunSummary) -> bool:
    return (
      (not self.statuses or run.status in self.statuses)
      and (not self.experiments or run.experiment in self.experiments)
      and set(self.tags) <= set(run.tags)
    )


def in_order(runs: Sequence[run_index.RunSummary], sort: str, params: Params) -> list[run_index.RunSummary]:
  """Runs sorted by an own field of the summary, a metric, or a field of the configuration; runs without it come last.

  The best metrics come first, if the name implies which are better, and the latest times; other values in their order.
  A metric that is not finite is never the best.

  Args:
    runs: the runs.
    sort: the name; the order is the other way round after a '-'.
    params: the configurations.

  Raises:
    UserError: no run has it.
  """
  name = sort.removeprefix('-')
  found = values_of(name, runs, params, f'--sort={sort}')
  is_metric = any(run.metric(name) is not None for run in runs)
  is_known = _may_be_best if is_metric else _is_known
  keys = {run: _sort_key(value) for run, values in found.items() for value in values[:1] if is_known(value)}
  backwards = (metric_direction.direction(name) == 'max' if is_metric else name in _LATEST_FIRST) != sort.startswith(
    '-'
  )
  known = sorted((run for run in runs if run.name in keys), key=lambda run: keys[run.name], reverse=backwards)
  return known + [run for run in runs if run.name not in keys]


def values_of(
  name: str, runs: Sequence[run_index.RunSummary], params: Params, where: str
) -> dict[str, list[json_values.Json]]:
  """The value of a name in each run, by the run's name.

  It is the first of these that any run has: an own field, a metric of evaluations, a field of the configuration by its
  path or short name, a metric of training (which logs its `learning_rate` too), the end of paths of fields.

  Raises:
    UserError: no run has it.
  """
  if name in _OWN:
    return {run.name: [getattr(run, name)] for run in runs}
  if any(run.evaluation_metric(name) is not None for run in runs):
    return {run.name: [run.evaluation_metric(name)] for run in runs}
  all_params = params()
  if not any(name in values for values in all_params.values()) and any(name in run.train for run in runs):
    return {run.name: [run.metric(name)] for run in runs}
  found = {run.name: run_folders.values_of_field(name, all_params.get(run.name, {})) for run in runs}
  if runs and not any(found.values()):
    raise errors.UserError(f'{where}: no run has a metric or a field of that name; `official-ext runs show` lists them')
  return found


def _is_known(value: object) -> bool:
  return value is not None and not (isinstance(value, float) and math.isnan(value))


def _may_be_best(value: object) -> bool:
  number = _as_number(value)
  return value is not None and (number is None or math.isfinite(number))


def _sort_key(value: object) -> tuple:
  number = _as_number(value)
  return (0, number, '') if number is not None else (1, 0.0, _as_text(value))


def _as_number(value: Any) -> float | None:
  """A number, also of a text that is one: trackers and quoted YAML keep numbers as texts."""
  if isinstance(value, str):
    return float(value) if value in json_values.NOT_FINITE or _NUMBER.fullmatch(value) else None
  return float(value) if json_values.is_number(value) else None


def _as_text(value: json_values.Json) -> str:
  return {None: 'null', True: 'true', False: 'false'}[value] if value is None or isinstance(value, bool) else str(value)
