"""The conditions of alerts: the end of runs, runs that hang, numbers that are not finite, metrics, an empty queue."""

from collections.abc import Sequence
import dataclasses
import math
from typing import Any

from official_ext.base import errors
from official_ext.base import suggestions
from official_ext.operations.runs import judged_status
from official_ext.operations.runs import last_events
from official_ext.operations.runs import selection

_ENDS = {'finished': 'finished', 'failed': 'failed', 'dead': 'killed', 'hung': 'hung', 'diverged': 'diverged'}
NAN = 'nan'
QUEUE_EMPTY = 'queue_empty'
KINDS = (*_ENDS.values(), NAN, QUEUE_EMPTY)
_VALIDATION = 'validation_'


@dataclasses.dataclass(frozen=True)
class AlertRules:
  """The conditions of alerts.

  Attributes:
    kinds: some of KINDS.
    conditions: on metrics; each is reported once for a run.
    hung_seconds: a run hangs if it has not reached another step or stage for so long.
  """

  kinds: tuple[str, ...] = KINDS
  conditions: tuple[selection.Condition, ...] = ()
  hung_seconds: float = judged_status.HUNG_SECONDS

  @property
  def texts(self) -> tuple[str, ...]:
    """Each rule as a text."""
    return (*self.kinds, *map(text_of, self.conditions))

  @property
  def reads_events(self) -> bool:
    """Whether a rule is about metrics."""
    return bool(self.conditions) or NAN in self.kinds

  def without_events(self) -> 'AlertRules':
    """The rules that are not about metrics."""
    return AlertRules(tuple(kind for kind in self.kinds if kind != NAN), (), self.hung_seconds)

  def kind_of(self, run_status: str) -> str:
    """The kind of alert for a status of a run; '' for none."""
    kind = _ENDS.get(run_status, '')
    return kind if kind in self.kinds else ''

  def found_in(self, event: dict[str, Any]) -> list[tuple[str, str]]:
    """The alerts for an event of a run: the text of a rule, and the finding; [] for nearly all events."""
    if event['event'] not in ('train', 'eval'):
      return []
    found: list[tuple[str, str]] = []
    metrics = last_events.metrics_of(last_events.with_floats(event))
    if NAN in self.kinds:
      odd = [name for name, value in metrics.items() if not math.isfinite(value)]
      if odd:
        found.append((NAN, f'{odd[0]} is {metrics[odd[0]]:g}'))
    for condition in self.conditions:
      names = [condition.name]
      if event['event'] == 'eval':  # `validation_accuracy` is the evaluation's metric of the training's name.
        names.append(condition.name.removeprefix(_VALIDATION))
      for name in names:
        if name in metrics and condition.holds(metrics[name]):
          found.append((text_of(condition), f'{condition.name} is {metrics[name]:.6g}'))
          break
    return found


def parse(texts: Sequence[str], hung_seconds: float = judged_status.HUNG_SECONDS) -> AlertRules:
  """The rules of texts: each a kind, or a condition such as `validation_accuracy>0.9`; none: all kinds.

  Conditions alone are reported beside all kinds.

  Raises:
    UserError: one is neither.
  """
  kinds: list[str] = []
  conditions: list[selection.Condition] = []
  for text in texts:
    if text in KINDS:
      kinds.append(text)
      continue
    if not any(sign in text for sign in '<>='):
      hint = suggestions.did_you_mean(text, KINDS, before='; ')
      raise errors.UserError(
        f'--alert_on={text}: expected a condition such as validation_accuracy>0.9, or one of {", ".join(KINDS)}{hint}'
      )
    condition = selection.parse_condition(text, '--alert_on')
    if condition.sign == '~' or not isinstance(condition.value, (int, float)) or isinstance(condition.value, bool):
      raise errors.UserError(f'--alert_on={text}: metrics are numbers; expected such as validation_accuracy>0.9')
    conditions.append(condition)
  return AlertRules(tuple(dict.fromkeys(kinds)) or KINDS, tuple(dict.fromkeys(conditions)), hung_seconds)


def text_of(condition: selection.Condition) -> str:
  """A condition as a text, the same however it was written."""
  return f'{condition.name}{condition.sign}{condition.text}'
