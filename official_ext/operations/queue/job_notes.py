"""The notes of a job in its run's folder, so that it can be seen and stopped there like any run: `started.json`. No
TensorFlow.

starting.py writes the same for a run that is started by hand, under the same lock: two of them cannot both begin.
"""

from collections.abc import Mapping
from typing import Any

from official_ext.base.files import moments
from official_ext.base.processes import process_identity
from official_ext.operations.queue import job_files


def is_taken(run_files: Mapping[str, str]) -> bool:
  """Whether a process that lives is in a run's folder already; asked with `started_lock` held."""
  started, record = _read(run_files['started']), _read(run_files['record'])
  if record.get('status') != 'running':
    record = {}
  processes = [process_identity.parse(values) for values in (record, {} if started.get('ended') else started)]
  return any(process is not None and process_identity.is_alive(process) for process in processes)


def note_start(job: job_files.Job, process: process_identity.ProcessIdentity) -> None:
  """Notes the process of a run that is about to begin; asked with `started_lock` held.

  Raises:
    OSError: it cannot be written.
  """
  values = {**job.note, 'started': moments.now(), **process.as_dict(), 'ended': None, 'exit_status': None}
  job_files.write(job.run_files['started'], values)


def note_end(job: job_files.Job, process: process_identity.ProcessIdentity, exit_status: int) -> None:
  """Notes how a run has ended, unless another has begun there meanwhile.

  Raises:
    OSError: it cannot be written.
  """
  values = _read(job.run_files['started'])
  if process_identity.parse(values) == process and not values.get('ended'):
    job_files.write(job.run_files['started'], {**values, 'ended': moments.now(), 'exit_status': exit_status})


def stop_request(job: job_files.Job) -> Mapping[str, Any]:
  """The last request to stop that was made of the job's run itself (`official-ext runs stop`); {} if there is none."""
  return _read(job.run_files['stop']) if job.run_files else {}


def _read(path: str) -> dict[str, Any]:
  try:
    return job_files.read(path) or {}
  except (OSError, job_files.DamagedFileError):
    return {}
