"""The incidents of a folder's runs and of its queue's jobs, the subjects of alerts. No TensorFlow."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import os
import time
from typing import Any

from official_ext.base import receivers as receivers_lib
from official_ext.base.run_folder import heartbeat
from official_ext.base.run_folder import liveness
from official_ext.operations.queue import alert_files
from official_ext.operations.queue import alert_rules
from official_ext.operations.queue import event_watch
from official_ext.operations.queue import job_status
from official_ext.operations.runs import index
from official_ext.operations.runs import judged_status
from official_ext.operations.runs import params as params_lib
from official_ext.operations.runs import run_folder
from official_ext.operations.runs import summaries as summaries_lib

_MOST_METRICS = 12
_GRACE_SECONDS = 3.0
NOT_OVER = ('starting', 'running', 'stopping')


@dataclasses.dataclass(frozen=True)
class Incident:
  """Something that an alert may be about.

  Attributes:
    key: see alert_files.Alert.
    rule: the reason for it: one of alert_rules.KINDS, or the text of a condition.
    who: the run, the job or the queue, as messages name it.
    what: the event or status.
    lines: more about it.
    run: whose it is; None for a job, or the queue.
    is_over: whether its subject has ended.
  """

  key: str
  rule: str
  who: str
  what: str
  lines: tuple[str, ...]
  run: run_folder.Run | None = None
  is_over: bool = True

  def alert(self, receivers: Sequence[str]) -> alert_files.Alert:
    """The alert about it for some receivers."""
    message = receivers_lib.compose(self.rule, self.who, self.what, self.lines)
    return alert_files.Alert(**dataclasses.asdict(message), key=self.key, receivers=tuple(receivers))


class Incidents:
  """Finds incidents."""

  def __init__(
    self,
    rules: alert_rules.AlertRules,
    watch: event_watch.EventWatch,
    grace_seconds: float = _GRACE_SECONDS,
    silence_seconds: float = heartbeat.SILENCE_SECONDS,
  ):
    """Looks at nothing yet.

    Args:
      rules: the conditions.
      watch: reads the events.
      grace_seconds: a process that is gone counts as killed after so long without a note of how it ended.
      silence_seconds: one that cannot be seen from here, as on another host, counts as killed if its heartbeat has not
        changed for so long, by this host's monotonic clock: clocks of hosts differ, and are set anew.
    """
    self._rules = rules
    self._watch = watch
    self._grace_seconds = grace_seconds
    self._silence_seconds = silence_seconds
    self._gone: dict[str, float] = {}  # Since when a process is, by the key of its end; and at the look before.
    self._gone_before: dict[str, float] = {}
    self._has_unended = False  # Whether a run changes just now, or is not over although its job is.
    self._silent: dict[str, float] = {}  # The same of heartbeats that have stopped.
    self._silent_before: dict[str, float] = {}

  @property
  def is_waiting(self) -> bool:
    """Whether a note may still come: of a process that is gone, or of a run whose job is over."""
    return bool(self._gone) or self._has_unended

  def find(
    self,
    runs: Sequence[summaries_lib.RunSummary],
    states: Sequence[job_status.State],
    is_known: Callable[[str], bool],
  ) -> Iterator[Incident]:
    """The new incidents. Events count as read at the iterator's end.

    Args:
      runs: the runs, but for those that are archived.
      states: of all jobs, read before the runs: of a job that is over, the run has ended, or its end is being noted.
      is_known: whether a key is known already.
    """
    self._gone_before, self._gone = self._gone, {}
    self._silent_before, self._silent = self._silent, {}
    self._has_unended = False
    by_path = {os.path.realpath(summary.path): summary for summary in runs}
    for summary in runs:
      yield from self._of_run(summary, is_known)
    for state in states:
      yield from self._of_job(state, by_path, is_known)
    yield from self._of_queue(states, is_known)

  def _of_run(self, summary: summaries_lib.RunSummary, is_known: Callable[[str], bool]) -> Iterator[Incident]:
    run = run_folder.Run(summary.path, summary.name)
    kind = self._rules.kind_of(summary.status)
    key = alert_files.key_of('end', kind, summary.start)
    if kind and summary.start and not is_known(key):
      # Its process may have ended between the reading of its record and the look at the process.
      summary = index.summary_of(run, self._rules.hung_seconds)
      is_so = self._rules.kind_of(summary.status) == kind and alert_files.key_of('end', kind, summary.start) == key
      self._has_unended |= not is_so  # The next look reads it again.
      if is_so and not self._may_be_noted(run, kind, key):
        is_over = kind != 'hung' or not judged_status.of_run(run, self._rules.hung_seconds).may_be_alive
        step = '' if summary.step is None else f' at step {summary.step}'
        yield Incident(key, kind, summary.name, f'{kind}{step}', _lines(summary), run, is_over)
    if self._rules.reads_events:
      for identity, event in self._watch.new_events(run):
        for rule, what in self._rules.found_in(event):
          key = alert_files.key_of('event', rule, identity)
          if not is_known(key):
            is_over = summary.status not in NOT_OVER
            yield Incident(
              key, rule, summary.name, f'{rule} at step {event["step"]}', (what, summary.path), run, is_over
            )

  def _may_be_noted(self, run: run_folder.Run, kind: str, key: str) -> bool:
    """Whether somebody may be about to note how a process ended that is gone, or it may live where it is not seen."""
    if kind != 'killed':
      return False
    now, record = time.monotonic(), run.record() or {}
    if liveness.is_out_of_sight(record):
      beat = f'{key} {record.get("heartbeat")}'
      self._silent[beat] = self._silent_before.get(beat, now)
      return now < self._silent[beat] + self._silence_seconds
    if (run.started() or {}).get('ended'):
      return False
    since = self._gone_before.get(key, now)
    if now >= since + self._grace_seconds:
      return False
    self._gone[key] = since
    return True

  def _of_job(self, state, by_path: Mapping[str, Any], is_known: Callable[[str], bool]) -> Iterator[Incident]:
    """The end of a job, unless that of its run says it."""
    if state.status not in ('finished', 'failed') or state.status not in self._rules.kinds:
      return
    summary = by_path.get(state.job.model_dir)
    self._has_unended |= summary is not None and summary.status in NOT_OVER
    key = alert_files.key_of('job', state.number, state.attempt.token if state.attempt else '', state.job.added)
    if is_known(key) or (summary is not None and self._rules.kind_of(summary.status)):
      return
    lines = tuple(filter(None, [state.reason, state.job.note.get('command'), state.job.model_dir]))
    yield Incident(key, state.status, f'job {state.number}', state.status, lines)

  def _of_queue(self, states, is_known: Callable[[str], bool]) -> Iterator[Incident]:
    if alert_rules.QUEUE_EMPTY not in self._rules.kinds or not states:
      return
    if any(state.status in (*job_status.WAITING, *job_status.HOLDING) or state.has_slot for state in states):
      return
    last = states[-1]
    key = alert_files.key_of('queue_empty', last.number, last.job.added if last.job else '')
    if not is_known(key):
      counts = {name: sum(state.status == name for state in states) for name in job_status.OVER}
      text = ', '.join(f'{count} {name}' for name, count in counts.items() if count)
      yield Incident(key, alert_rules.QUEUE_EMPTY, 'queue', 'empty', (f'jobs: {text}',))


def told_by_itself(run: run_folder.Run, rule: str) -> tuple[str, ...]:
  """The receivers that a run itself alerts about such an event (`trainer.notifications`), by their references."""
  values = params_lib.read(run) or {}
  urls, events = (values.get(f'trainer.notifications.{name}') for name in ('urls', 'events'))
  if not isinstance(urls, (list, tuple)) or not isinstance(events, (list, tuple)) or rule not in events:
    return ()
  return tuple(map(str, urls))


def _lines(summary: summaries_lib.RunSummary) -> tuple[str, ...]:
  evaluation = {f'validation_{name.removeprefix("validation_")}': value for name, value in summary.evaluation.items()}
  metrics = {**summary.train, **evaluation}
  shown = [f'{name} {value:.4g}' for name, value in list(metrics.items())[:_MOST_METRICS]]
  return tuple(line for line in (summary.reason, *shown, summary.path) if line)
