"""A run in the form for trackers, read from its files: events that stand, configuration, notes, end. No TensorFlow."""

from collections.abc import Mapping
import dataclasses
import os
from typing import Any

from official_ext.base import credentials
from official_ext.base import errors
from official_ext.base.files import regular_files
from official_ext.base.run_folder import standing_events
from official_ext.operations.runs import index
from official_ext.operations.runs import last_events
from official_ext.operations.runs import params as params_lib
from official_ext.operations.runs import run_folder
from official_ext.operations.runs import run_identity

ARTIFACTS = ('params.yaml', 'run.json', 'events.jsonl', 'run.log')


@dataclasses.dataclass(frozen=True)
class TrackedRun:
  """A run for a tracker. Passwords in it are masked.

  Attributes:
    run: the run.
    name: in trackers: its path below the folder of the runs.
    identity: see identity.py.
    status: see judged_status.py.
    reason: likewise.
    events: those that no restore or rollback has superseded, in order; numbers that are not finite are floats.
    params: its configuration, nested.
    tags: see notes.py.
    note: likewise.
    facts: of its record: `experiment`, `git_commit`, `command`, ..., as texts.
    started: when it first began, in seconds since 1970.
    ended: when its last event was.
  """

  run: run_folder.Run
  name: str
  identity: str
  status: str
  reason: str
  events: list[dict[str, Any]]
  params: Mapping[str, Any]
  tags: tuple[str, ...]
  note: str
  facts: Mapping[str, str]
  started: float
  ended: float

  @property
  def is_over(self) -> bool:
    """Whether no process of it lives."""
    return self.status not in ('submitted', 'starting', 'running', 'stopping', 'unknown')

  def time_and_values(self, event: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
    """When an event was, and its values."""
    values = {name: value for name, value in event.items() if name not in ('time', 'event', 'step')}
    return float(event.get('time', self.started)), values

  def setting(self, path: str) -> str:
    """A text of the configuration by its dotted path; '' if there is none, or a password in it was masked."""
    value: Any = self.params
    for part in path.split('.'):
      value = value.get(part) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) and not credentials.is_masked(value) else ''

  def artifacts(self) -> list[str]:
    """The paths of the files that describe the run."""
    return [path for path in map(self.run.file, ARTIFACTS) if os.path.isfile(path)]


def read(run: run_folder.Run) -> TrackedRun:
  """Reads a run.

  Raises:
    UserError: it has no events yet.
  """
  summary = index.summary_of(run)
  events = _events(run)
  identity = run_identity.of_run(run)
  if not events or not identity:
    raise errors.UserError(f'{run.name}: has no events yet; nothing can be exported')
  record = run.record() or {}
  keys = ('experiment', 'git_commit', 'command', 'host', 'devices', 'seed', 'attempt', 'early_stopped')
  facts = {key: str(record[key]) for key in keys if record.get(key) not in (None, '', False)}
  facts |= {f'version.{name}': str(version) for name, version in (record.get('versions') or {}).items() if version}
  times = [event['time'] for event in events if isinstance(event.get('time'), (int, float))]
  return TrackedRun(
    run=run,
    name=os.path.basename(run.path) if run.name == '.' else run.name,
    identity=identity,
    status=summary.status,
    reason=credentials.mask(summary.reason),
    events=events,
    params=credentials.mask_values(params_lib.read_nested(run) or {}),
    tags=summary.tags,
    note=summary.note,
    facts=credentials.mask_values(facts),
    started=min(times, default=0.0),
    ended=max(times, default=0.0),
  )


def _events(run: run_folder.Run) -> list[dict[str, Any]]:
  try:
    with regular_files.open_to_read(run.file(run_folder.EVENTS)) as file:
      lines = regular_files.lines(file, standing_events.MAX_LINE)
      parsed = [event for line in lines if (event := standing_events.parse(line)) is not None]
  except OSError:
    return []
  return [last_events.with_floats(event) for event in standing_events.standing(parsed)]
