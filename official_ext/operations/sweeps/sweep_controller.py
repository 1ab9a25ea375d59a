"""The controller of a sweep: proposes points, and ends runs early.

It owns nothing. Its points are folders, and their runs are jobs of the queue, which a dispatcher starts. It may be
killed at any moment, and the next one continues. Each of its steps holds the sweep's lock, and leaves the input of the
next one: a point's folder before its job, the reason of an early end before the signal.
"""

from collections.abc import Callable, Sequence
import contextlib
import json
import os
import signal

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import processes
from official_ext.base import safe_text
from official_ext.operations.queue import queued_jobs
from official_ext.operations.sweeps import samplers
from official_ext.operations.sweeps import sweep_changes
from official_ext.operations.sweeps import sweep_folder
from official_ext.operations.sweeps import sweep_points

POLL_SECONDS = 1.0
_PATIENCE_SECONDS = 2.0  # A controller that was killed a moment ago may still hold its lock.
# The points that may fail one after the other, before one has succeeded, and after that: others would fail too.
_MAX_FIRST_FAILURES = 5
_MAX_FAILURES = 20
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# A dispatcher that was killed, or a power cut, leaves jobs that were ordered and not started: they wait for one too.
_FOR_A_DISPATCHER = ('queued', 'starting', 'stopping')


class Controller:
  """Runs a sweep."""

  def __init__(
    self,
    folder: sweep_folder.SweepFolder,
    slots: int,
    start_dispatcher: Callable[[int], object],
    poll_seconds: float = POLL_SECONDS,
  ):
    """Starts nothing yet.

    Args:
      folder: the sweep, whose file exists.
      slots: how many points are tried at once.
      start_dispatcher: starts a dispatcher of a number of slots, which outlives this process, if none runs.
      poll_seconds: how often it looks for changes.
    """
    self._folder = folder
    self._sweep = folder.load()
    self._slots = slots
    self._start_dispatcher = start_dispatcher
    self._poll_seconds = poll_seconds
    self._reader = sweep_points.PointReader(folder)
    self._reported: dict[int, tuple[str, str]] = {}
    self._printed: set[str] = set()

  def run(self) -> int:
    """Works until there is nothing more to try, or a signal comes; running points continue without it.

    Returns:
      The exit status: 0; 1 if no point has a value.

    Raises:
      UserError: another controller works on this sweep, or its points cannot have a value.
      StorageError: its folder cannot be read or written.
    """
    with queued_jobs.explaining(self._folder.path), contextlib.ExitStack() as stack:
      busy = lambda: f'{self._folder.name}: {self._folder.controller()} controls it already'
      lock = stack.enter_context(queued_jobs.locked(self._folder.lock_path, _PATIENCE_SECONDS, busy))
      with contextlib.suppress(OSError):  # A full disk: it is for people.
        os.ftruncate(lock.descriptor, 0)
        values = {**processes.own_identity().as_dict(), 'slots': self._slots, 'since': json_values.timestamp_now()}
        os.pwrite(lock.descriptor, json.dumps(values).encode(), 0)
      ending = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
      before = signal.pthread_sigmask(signal.SIG_BLOCK, ending)
      stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
      self._folder.queue.make()
      stack.enter_context(self._folder.queue.expecting_more(self._folder.path))
      with self._folder.changing():
        again = sweep_changes.resume_stopped(self._folder, self._sweep)
      if again:
        self._print_line(f'points {", ".join(map(str, again))} resume')
      return self._loop(ending)

  def _loop(self, ending: Sequence[int]) -> int:
    while True:
      with self._folder.changing():
        if self._folder.stopped() is not None:
          self._print_line('it was stopped; the same command resumes it')
          return 0
        found = self._step()
      if all(point.is_over for point in found):
        return self._end(found)
      if any(point.status in _FOR_A_DISPATCHER for point in found):
        self._see_to_a_dispatcher()
      received = signal.sigtimedwait(ending, self._poll_seconds)
      if received is not None:
        self._print_line(
          f'{signal.Signals(received.si_signo).name}: tries no more points; running points continue, and the '
          'same command resumes this sweep'
        )
        return 0

  def _step(self) -> list[sweep_points.Point]:
    """Takes all actions that are due. Returns all points as they stand after it."""
    found = self._reader.read(self._sweep)
    for point in found:
      self._report(point)
    self._check(found)
    self._prune(found)
    for point in found:
      if point.status == sweep_points.NEW:  # A process was killed before it had a job.
        sweep_changes.add_job(self._folder, self._sweep, point.record)
    while len([point for point in found if not point.is_over]) < self._num_slots() and not self._is_enough(found):
      record = self._propose(found)
      if record is None:
        break
      sweep_changes.add_job(self._folder, self._sweep, record)
      found.append(sweep_points.Point(record, 'queued'))
      found.sort(key=lambda point: point.number)
      self._report(found[[point.record for point in found].index(record)])
    return found

  def _propose(self, found: Sequence[sweep_points.Point]) -> sweep_folder.PointRecord | None:
    """Makes the next point."""
    known = {point.number: point.record.proposal for point in found}
    number = next(number for number in range(1, len(found) + 2) if number not in known)
    outcomes = tuple(point.as_outcome() for point in found) if self._sweep.method == 'bayes' else ()
    proposal = samplers.propose(self._sweep, number, known, outcomes)
    return None if proposal is None else self._folder.make_point(number, proposal, outcomes)

  def _prune(self, found: Sequence[sweep_points.Point]) -> None:
    """Ends runs early that are not good enough, and runs whose early end was noted before."""
    early = self._sweep.early_terminate
    if early is None or self._sweep.metric is None:
      return
    # Not runs that were restarted by hand: their jobs are over.
    is_ours = lambda point: point.job is not None and point.job.status in sweep_points.UNDER_WAY
    running = [point for point in found if is_ours(point) and not point.was_resumed]
    histories = {point.number: point.history.finite() for point in found}
    reasons = early.to_end(histories, [point.number for point in running], self._sweep.metric.goal)
    for point in running:
      pruned = self._folder.pruned(point.record)
      if (pruned or point.number in reasons) and point.status != 'stopping':
        reason = str(pruned.get('reason', '')) if pruned else reasons[point.number]
        self._print_line(f'point {point.number} is ended early: {reason}')
        sweep_changes.prune(self._folder, point, reason)

  def _is_enough(self, found: Sequence[sweep_points.Point]) -> bool:
    """Whether all points exist."""
    metric = self._sweep.metric
    if metric is not None:
      for point in found:
        if point.value is not None and metric.has_reached_target(point.value):
          self._print_once(f'point {point.number} has reached the target: {metric.name} {point.value:g}')
          return True
    return len(found) >= self._sweep.num_points

  def _check(self, found: Sequence[sweep_points.Point]) -> None:
    """Raises if the points tried show that the rest will fail."""
    metric = self._sweep.metric
    finished = [point for point in found if point.status == 'finished']
    if metric is not None and finished and not any(point.history.values for point in found):
      latest = finished[-1]
      raise errors.UserError(
        f'metric.name: {sweep_points.why_no_value(metric, latest.history)} (point {latest.number} has finished)'
      )
    ended = [point for point in found if point.status in sweep_points.OVER]
    is_first = all(point.status == 'failed' for point in ended)
    last = ended[-(_MAX_FIRST_FAILURES if is_first else _MAX_FAILURES) :]
    if len(last) >= _MAX_FIRST_FAILURES and (is_first or len(last) == _MAX_FAILURES):
      self._refuse_failures(last)

  def _refuse_failures(self, last: Sequence[sweep_points.Point]) -> None:
    if all(point.status == 'failed' for point in last):
      raise errors.UserError(
        f'{self._folder.name}: {len(last)} points have failed one after the other, the last with: {last[-1].reason}; '
        f'{os.path.join(last[-1].record.folder, "run.log")} has details. Mend it, then `official-ext sweep retry`'
      )

  # Slots.

  def _num_slots(self) -> int:
    other = self._folder.queue.dispatcher()
    slots = (other or {}).get('slots')
    if isinstance(slots, int) and slots < self._slots:
      self._print_once(
        f'the dispatcher that works on {self._folder.runs_dir} has {slots} slots, and this sweep no more'
      )
      return slots
    return self._slots

  def _see_to_a_dispatcher(self) -> None:
    if self._folder.queue.is_paused:
      self._print_once(f'the queue is paused; `official-ext queue resume {self._folder.runs_dir}` continues')
    elif self._folder.queue.dispatcher() is None:
      self._start_dispatcher(self._slots)

  # The reports.

  def _report(self, point: sweep_points.Point) -> None:
    """Prints how a point stands, when that has changed."""
    now = (point.status, point.reason)
    before = self._reported.get(point.number)
    self._reported[point.number] = now
    if before == now or (before is None and point.is_over):  # Over before this controller began.
      return
    shown = f' {self._sweep.metric.name} {point.value:.6g}' if self._sweep.metric and point.value is not None else ''
    name = f' ({point.record.name})' if before is None else ''
    self._print_line(
      f'point {point.number}{name}: {point.status}{shown}' + (f': {point.reason}' if point.reason else '')
    )

  def _end(self, found: Sequence[sweep_points.Point]) -> int:
    counts = {status: sum(point.status == status for point in found) for status in sweep_points.STATUSES}
    self._print_line(
      f'{len(found)} points: ' + ', '.join(f'{count} {status}' for status, count in counts.items() if count)
    )
    best = sweep_points.best_point(found, self._sweep)
    if best is not None and self._sweep.metric is not None:
      self._print_line(
        f'the best is point {best.number} ({best.record.name}): {self._sweep.metric.name} {best.value:.6g}'
      )
    return 0 if best is not None or (self._sweep.metric is None and counts['finished']) else 1

  def _print_once(self, text: str) -> None:
    if text not in self._printed:
      self._printed.add(text)
      self._print_line(text)

  def _print_line(self, text: str) -> None:
    safe_text.print_masked(f'sweep {self._folder.name}: {text}')
