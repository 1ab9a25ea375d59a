"""Whether a run that says `running` is dead. A run that was killed writes nothing, so its process is looked at.

The number of the process, its start and the boot of its kernel must be those of the record. A process that is out of
sight, on another host or in another container, is judged by its heartbeat.
"""

from collections.abc import Mapping
from typing import Any

from official_ext.base.processes import process_identity
from official_ext.base.run_folder import heartbeat


def of_process(process: process_identity.ProcessIdentity | None) -> bool | None:
  """Whether a process lives; None if it is out of sight, or if nothing but its number is known."""
  alive = None if process is None else process_identity.is_alive(process)
  return None if alive and process is not None and process.pid_start is None else alive


def of_record(record: Mapping[str, Any]) -> bool | None:
  """The same of the process that has written a record."""
  return of_process(process_identity.parse(record))


def is_out_of_sight(record: Mapping[str, Any]) -> bool:
  """Whether a record says that its run is in progress, in a process that is out of sight."""
  return record.get('status') == 'running' and of_record(record) is None


def is_dead(
  record: Mapping[str, Any], silence: float | None, silence_seconds: float = heartbeat.SILENCE_SECONDS
) -> bool:
  """Whether the run of a record that says `running` is dead.

  Args:
    record: run.json or the like.
    silence: the seconds since its last heartbeat; None if it has none.
    silence_seconds: a process that is out of sight is dead after more silence.

  Returns:
    Whether its process is gone and no launcher restarts it, or is out of sight and silent.
  """
  alive = of_record(record)
  if alive is None:
    return silence is not None and silence > silence_seconds
  return not alive and launcher_of(record) is None


def recorded_launcher(record: Mapping[str, Any]) -> process_identity.ProcessIdentity | None:
  """The process that has started the run's workers; None for a run without one."""
  launcher = record.get('launcher')
  return process_identity.parse(launcher) if isinstance(launcher, dict) else None


def launcher_of(record: Mapping[str, Any]) -> process_identity.ProcessIdentity | None:
  """The living process that restarts the run's workers, and must be the one to stop them; None if there is none."""
  process = recorded_launcher(record)
  return process if process is not None and process_identity.is_alive(process) else None
