"""The summary of a run in a list: status, step, last metrics."""

from collections.abc import Mapping
import dataclasses
import math
import time

from official_ext.base import json_types
from official_ext.base.files import moments
from official_ext.base.processes import process_identity
from official_ext.operations.runs import judged_status
from official_ext.operations.runs import last_events
from official_ext.operations.runs import notes as notes_lib

# Of a run's record: the fields for a summary, and for the judgement of its status.
RECORD_KEYS = (
  'status',
  'stage',
  'step',
  'error',
  'mode',
  'host',
  'pid',
  'pid_start',
  'boot_id',
  'pid_namespace',
  'machine_id',
  'launcher',
  'train_steps',
  'attempt',
  'started',
  'updated',
  'heartbeat',
  'finished',
  'experiment',
  'early_stopped',
  'imported',
)


@dataclasses.dataclass(frozen=True)
class RunSummary:
  """A run in a line.

  Attributes:
    name: see run_folder.py.
    path: likewise.
    status: see judged_status.py.
    reason: likewise.
    experiment: the name of its experiment; '' if it is not known.
    mode: the mode of its last start.
    step: the last step that it has reached; None if it has not begun.
    train_steps: the step at which its training ends.
    percent: how much of that is done, 0 to 100.
    eta_seconds: how long the training still takes, of a run that trains.
    steps_per_second: how fast it trained last.
    train: its last training metrics.
    evaluation: its last validation metrics.
    evaluation_step: the step of them; None if there are none.
    attempt: how often it was started.
    started: when it was last started, in seconds since 1970.
    updated: when it last reached another step or stage, or its end.
    tags: see notes.py.
    note: likewise.
    is_archived: whether it is kept out of lists: see trash.py.
    start: tells its last start from every other of any run; '' if it is not known.
  """

  name: str
  path: str
  status: str
  reason: str
  experiment: str = ''
  mode: str = ''
  step: int | None = None
  train_steps: int | None = None
  percent: float | None = None
  eta_seconds: float | None = None
  steps_per_second: float | None = None
  train: Mapping[str, float] = dataclasses.field(default_factory=dict)
  evaluation: Mapping[str, float] = dataclasses.field(default_factory=dict)
  evaluation_step: int | None = None
  attempt: int | None = None
  started: float | None = None
  updated: float | None = None
  tags: tuple[str, ...] = ()
  note: str = ''
  is_archived: bool = False
  start: str = ''

  def metric(self, name: str) -> float | None:
    """A metric by its name: of the last evaluation, or else of the last training loop; None if there is none."""
    value = self.evaluation_metric(name)
    return self.train.get(name) if value is None else value

  def evaluation_metric(self, name: str) -> float | None:
    """A metric of the last evaluation; `validation_accuracy` is the evaluation's metric of the training's name."""
    return self.evaluation.get(name, self.evaluation.get(name.removeprefix('validation_')))

  def as_dict(self) -> json_types.JsonObject:
    """JSON values; a number that is not finite is a string, as in events.jsonl."""
    return json_types.json_values(dataclasses.asdict(self))


def summarise(
  name: str,
  path: str,
  files: json_types.JsonMapping,
  hung_seconds: float = judged_status.HUNG_SECONDS,
) -> RunSummary:
  """Summarises a run as it stands now.

  Args:
    name: see RunSummary.
    path: likewise.
    files: the contents of its files: record, started, stop_request, notes, archived (None if there is none), and
      events, a LastEvents.
    hung_seconds: see judged_status.py.
  """
  record, events = files['record'] or {}, files['events']
  found = judged_status.judge(files['record'], files['started'], files['stop_request'], hung_seconds)
  last, train = events.last or {}, events.train or {}
  step = last.get('step', record.get('step'))
  train_steps = record.get('train_steps') or None
  noted = notes_lib.parse(files['notes'])
  return RunSummary(
    name=name,
    path=path,
    status=found.status,
    reason=found.reason,
    experiment=_text(record.get('experiment')),
    mode=_text(record.get('mode')),
    step=step,
    train_steps=train_steps,
    percent=_percent(step, train_steps),
    eta_seconds=_time_left(train) if found.status in ('running', 'stopping') else None,
    steps_per_second=_number(train.get('steps_per_second')),
    train=last_events.metrics_of(train),
    evaluation=last_events.metrics_of(events.evaluation),
    evaluation_step=(events.evaluation or {}).get('step'),
    attempt=record.get('attempt'),
    started=moments.seconds(record.get('started')) or moments.seconds((files['started'] or {}).get('started')),
    updated=moments.seconds(record.get('updated')) or _number(last.get('time')),
    tags=noted.tags,
    note=noted.note,
    is_archived=files['archived'] is not None,
    start=_start(files['record'], files['started']),
  )


def _start(record: json_types.JsonMapping | None, started: json_types.JsonMapping | None) -> str:
  newest = started if judged_status.is_later(started, record) else record
  process = process_identity.parse(newest or {})
  if newest is None or process is None:
    return ''
  return f'{process.boot_id or process.host}/{process.pid}/{process.pid_start or newest.get("started")}'


def _time_left(train: Mapping[str, object]) -> float | None:
  """The present rest of the time that was left at a training event."""
  left, then = _number(train.get('eta_seconds')), _number(train.get('time'))
  if left is None or then is None or not math.isfinite(left):
    return None
  return max(0.0, left - max(0.0, time.time() - then))


def _percent(step: int | None, train_steps: int | None) -> float | None:
  """How much of a training is done, 0 to 100; None if that is not known."""
  if step is None or not train_steps or train_steps < 0:
    return None
  return max(0.0, min(100.0, 100.0 * step / train_steps))


def _number(value: object) -> float | None:
  return value if json_types.is_number(value) else None


def _text(value: object) -> str:
  return value if isinstance(value, str) else ''
