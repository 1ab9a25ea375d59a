"""The status of a run: its record, compared with the process that the record names.

base/run_folder/run_status.py checks whether the process of a record lives.
"""

from collections.abc import Mapping
import dataclasses
import signal
import time
from typing import Any

from official_ext.base import json_values
from official_ext.base import processes as processes_lib
from official_ext.base.run_folder import run_status
from official_ext.operations.runs import run_folders

STATUSES = (
  'submitted',  # An engine such as SLURM has it, and it has not begun there.
  'starting',  # Its process lives, and has not written its record yet.
  'running',
  'stopping',  # It is saving after a stop request.
  'hung',  # It makes no progress, or is suspended; or it was ended for that reason.
  'finished',
  'preempted',
  'diverged',
  'failed',
  'dead',  # Its process is gone, and did not say why.
  'unknown',  # There is no record.
)
HUNG_SECONDS = 1800.0


@dataclasses.dataclass(frozen=True)
class RunStatus:
  """How a run stands.

  Attributes:
    status: one of STATUSES.
    reason: how that is known, or the error, in one line; '' if there is nothing to say.
    is_alive: whether a process of the run lives; None if that cannot be seen from here.
    process: the one to which a signal must go, if one lives or may live.
  """

  status: str
  reason: str = ''
  is_alive: bool | None = False
  process: processes_lib.ProcessIdentity | None = None

  @property
  def may_be_alive(self) -> bool:
    """Whether something may still write to the folder."""
    return self.is_alive is not False


def of_run(run: run_folders.Run, hung_seconds: float = HUNG_SECONDS, mode: str | None = None) -> RunStatus:
  """How a run stands now.

  Args:
    run: the run.
    hung_seconds: a run hangs if it lives, and has not reached another step or stage for this time.
    mode: whose record; None: the training's if there is one, even if it cannot be read, or else an evaluation's.
  """
  mode = mode or next(iter(run.modes()), 'train')
  return judge(run.record(mode), run.started(mode), run.stop_request(mode), hung_seconds)


def is_alive(run: run_folders.Run, mode: str | None = None) -> bool:
  """Whether a process of a run lives or may live: of a mode, or of any, such as a separate evaluation.

  A run that has noted its end may still write for a moment, and counts as alive until its process is gone.
  """
  return any(_is_alive(run.record(name), run.started(name)) for name in ([mode] if mode else run.modes()))


def _is_alive(record, started) -> bool:
  processes = [processes_lib.parse_identity(found) for found in (record, started) if found]
  if any(process is not None and run_status.is_process_alive(process) for process in processes):
    return True
  return judge(record, started).may_be_alive or judge(None, started).may_be_alive


def judge(
  record: json_values.JsonMapping | None,
  started: json_values.JsonMapping | None,
  stop_request: json_values.JsonMapping | None = None,
  hung_seconds: float = HUNG_SECONDS,
) -> RunStatus:
  """How a run stands, by its files.

  Args:
    record: run.json or the like; None if it is missing or cannot be read.
    started: started.json; likewise.
    stop_request: the process asked to stop; likewise.
    hung_seconds: see `of_run`.
  """
  if is_waiting_elsewhere(record, started):
    assert started is not None
    return RunStatus('submitted', f'{started["engine"]} has it, as {started.get("job")}')
  starter = _judge_started(record, started, stop_request)
  if starter is not None:
    return starter
  if record is None:
    return RunStatus('unknown', 'no record that can be read')
  if record['status'] != 'running':
    reason = record.get('error') or record.get('early_stopped') or ''
    if not reason and run_status.tracker_of(record):
      reason = f'imported; {record["imported"]["end"]}' if record['imported'].get('end') else ''
    return RunStatus(record['status'], reason)
  process, launcher = processes_lib.parse_identity(record), run_status.living_launcher(record)
  alive, beat = run_status.is_process_alive(process), json_values.timestamp_seconds(record.get('heartbeat'))
  silence = None if beat is None else time.time() - beat
  where = '' if alive is not None or silence is None else _seen_by_heartbeat(record, silence)
  if run_status.is_dead(record, silence):
    return RunStatus('dead', where or _cause_of_death(record, started, stop_request))
  if alive is False:
    return RunStatus('starting', 'its launcher starts it again', True, launcher)
  process = launcher or process
  if alive is None and beat is None:
    return RunStatus('unknown', f'on {record.get("host", "an unknown host")}, and has no heartbeat', None, process)
  if stop_request is not None and _was_asked(process, stop_request):
    return RunStatus('stopping', where or f'requested at {stop_request.get("requested")}', alive, process)
  if reason := _why_hung(record, alive, beat, hung_seconds):
    return RunStatus('hung', '; '.join(filter(None, [reason, where])), alive, process)
  return RunStatus('running', where, alive, process)


def is_settled(record: json_values.JsonMapping | None, started: json_values.JsonMapping | None) -> bool:
  """Whether `judge` says the same of these files at any time: no process is left that could change it by its end.

  Args:
    record: as of `judge`.
    started: likewise.
  """
  if record is None or record['status'] == 'running':
    return False
  return started is None or bool(started.get('ended')) or not is_later(started, record)


def _seen_by_heartbeat(record: Mapping[str, Any], silence: float) -> str:
  """The place of a process that cannot be seen, and since when its heartbeat is silent."""
  if silence < -run_status.SILENCE_SECONDS:
    return f'on {record.get("host")}, whose clock is {_duration(-silence)} ahead of this one'
  return f'on {record.get("host")}, judged by its heartbeat {_duration(silence)} ago'


def _why_hung(record, alive, beat, hung_seconds) -> str:
  """Why a living run makes no progress; '' if it does."""
  worker = processes_lib.parse_identity(record)
  if alive and worker is not None and processes_lib.is_suspended(worker):
    return f'suspended by a signal; `kill -CONT {worker.pid}` resumes it'
  if beat is None:
    return ''
  beats = _monotonic(record)
  if alive:  # Of this clock.
    silent = time.time() - beat if beats is None else time.monotonic() - beats['heartbeat']
    if silent > hung_seconds:
      return f'no sign of life for {_duration(silent)}, in stage {record.get("stage")}'
  updated = json_values.timestamp_seconds(record.get('updated'))
  # Both are of the run's own clock, which may not be this one's.
  idle = beat - (beat if updated is None else updated) if beats is None else beats['heartbeat'] - beats['updated']
  if idle > hung_seconds:
    return f'no step for {_duration(idle)}, in stage {record.get("stage")}'
  return ''


def _monotonic(record: Mapping[str, object]) -> dict[str, float] | None:
  """`heartbeat` and `updated` of the monotonic clock; None in records of versions without them."""
  found = record.get('monotonic')
  if not isinstance(found, dict):
    return None
  return found if all(isinstance(found.get(key), (int, float)) for key in ('heartbeat', 'updated')) else None


def is_waiting_elsewhere(record: json_values.JsonMapping | None, started: json_values.JsonMapping | None) -> bool:
  """Whether a run was submitted to an engine, and has not begun there: no attempt has followed on those before."""
  if started is None or not isinstance(started.get('engine'), str):
    return False
  attempts_before = started.get('attempts_before')
  attempts = 0 if record is None else record.get('attempt', 0)
  return isinstance(attempts_before, int) and attempts <= attempts_before


def _was_asked(process, stop_request) -> bool:
  """Whether it was this process of the stop request."""
  return stop_request is not None and process is not None and processes_lib.parse_identity(stop_request) == process


def _judge_started(record, started, stop_request) -> RunStatus | None:
  """The status of a process that was started after the record's; None if the record knows better."""
  process = processes_lib.parse_identity(started or {})
  if process is None or started is None or not is_later(started, record):
    return None
  alive = False if started.get('ended') else processes_lib.is_alive(process)
  asked = _was_asked(process, stop_request)
  if alive is not False:
    return RunStatus('stopping' if asked else 'starting', '', alive, process)
  exit_status = started.get('exit_status')
  if exit_status == 0:  # There was nothing to do, or nothing to record.
    return None if record is not None else RunStatus('finished', 'it has left no record')
  if asked and exit_status == -signal.SIGTERM:  # It did not handle the signal yet.
    return RunStatus('preempted', 'stopped before it began to train')
  if not isinstance(exit_status, int) or exit_status < 0:
    return RunStatus('dead', f'{describe_exit(exit_status) or "its process is gone"}, before it began to train')
  status = {75: 'preempted', 3: 'diverged'}.get(exit_status, 'failed')
  line = f': {started["last_line"]}' if started.get('last_line') else ''
  return RunStatus(status, f'ended with status {exit_status} before it began to train{line}')


def is_later(started: Mapping[str, object] | None, record: Mapping[str, object] | None) -> bool:
  """Whether a process that was started detached is newer than a record, and has left none itself."""
  process = processes_lib.parse_identity(started or {})
  if started is None or process is None:
    return False
  if record is None:
    return True
  of_record = processes_lib.parse_identity(record)
  if process in (of_record, run_status.recorded_launcher(record)):
    return False
  if of_record is not None and process.boot_id and process.boot_id == of_record.boot_id:
    start, start_of_record = process.pid_start or 0, of_record.pid_start or 0  # Setting a clock does not change them.
    if start and start_of_record and start != start_of_record:
      return start > start_of_record
  begun, recorded = (
    json_values.timestamp_seconds(started.get('started')),
    json_values.timestamp_seconds(record.get('started')),
  )
  return begun is not None and recorded is not None and begun >= recorded


def _cause_of_death(record, started, stop_request) -> str:
  asked = any(
    _was_asked(process, stop_request)
    for process in (processes_lib.parse_identity(record), run_status.recorded_launcher(record))
  )
  if asked and stop_request.get('at_once') is True:
    return 'was ended at once, as requested'
  if started is not None and processes_lib.parse_identity(started) == processes_lib.parse_identity(record):
    if how := describe_exit(started.get('exit_status')):
      return how
  return f'process {record.get("pid")} is gone'


def describe_exit(exit_status: object) -> str | None:
  """How a process ended: `status 2`, or `killed by SIGKILL` if it is negative; None if that is not known."""
  if not isinstance(exit_status, int):
    return None
  if exit_status >= 0:
    return f'status {exit_status}'
  try:
    return f'killed by {signal.Signals(-exit_status).name}'
  except ValueError:
    return f'killed by signal {-exit_status}'


def _duration(seconds: float) -> str:
  seconds = int(max(0.0, seconds))
  for size, unit in ((86400, 'd'), (3600, 'h'), (60, 'min')):
    if seconds >= 2 * size:
      return f'{seconds // size} {unit}'
  return f'{seconds} s'
