"""The process that runs a job's command: starts it at most once, waits for its end, and notes that.

    python -m official_ext.operations.queue.job_runner JOB_FOLDER ATTEMPT TOKEN

The dispatcher may be killed at any moment, and another one may start a second runner for the same attempt. So a runner
first takes the attempt's lock, and checks whether the attempt has started or ended: of all runners one starts the
command. The process that becomes the command notes itself in attempt-N.started.json: see child_process.py. The runner
holds the lock until then, and both hold it afterwards.

The command runs in the runner's session, in a separate process group. The job has its slot until all processes that it
leaves there are gone. There is a runner for each run, so the module has few imports.
"""

from collections.abc import Sequence
import contextlib
import errno
import os
import sys
import time

from official_ext.base import json_values
from official_ext.base import processes
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.operations.queue import queued_jobs
from official_ext.operations.runs import child_process

_LOCK_SECONDS = 10.0
_AGAIN_SECONDS = 1.0
# Errors that may pass, such as a full disk.
_PASSING = (
  *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENFILE, errno.EMFILE),
  *(errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.EBUSY),
)


def run(folder: str, number: int, token: str) -> int:
  """Runs the command of one attempt of a job, unless another runner does.

  Args:
    folder: of the job.
    number: of the attempt.
    token: of the attempt: it may be one of another job by now, whose number is reused.

  Returns:
    0; or the number of an operating system's error that kept the command from being started, and may pass.
  """
  attempt, job = queued_jobs.read_attempt(folder, number), queued_jobs.read_job(folder)
  if attempt is None or job is None or attempt.token != token:
    return 0
  try:
    with local_files.FileLock(attempt.lock_path, _LOCK_SECONDS) as lock:
      return 0 if queued_jobs.attempt_has_begun(attempt.path) else _run(job, attempt, lock)
  except TimeoutError:
    return 0  # Another runner has it.


def _run(job: queued_jobs.Job, attempt: queued_jobs.Attempt, lock: local_files.FileLock) -> int:
  cancelled = os.path.join(job.folder, queued_jobs.CANCELLED)
  try:
    if os.path.exists(cancelled):
      queued_jobs.end_attempt(attempt.path, queued_jobs.NOT_STARTED)
      return 0
    request_before = child_process.stop_request(job.run_files)
    os.set_inheritable(lock.descriptor, True)  # The command holds it too.
    child = _start(job, attempt)
  except OSError as error:
    if error.errno in _PASSING:
      return error.errno
    _end(job, attempt, queued_jobs.REFUSED, error=f'{error.filename or job.folder}: {error.strerror}')
    return 0
  status = child.wait(cancelled)
  child.end_strays(cancelled)
  if not os.path.exists(f'{attempt.path}.started.json'):
    return status if status > 0 else errno.EAGAIN  # Nothing was run.
  stopped = child_process.stop_request(job.run_files) not in ({}, request_before)
  line = child_process.last_line(job.log, status)
  _end(job, attempt, queued_jobs.EXITED, status=status, **({'stopped': True} if stopped else {}), **line)
  if job.run_files:
    child_process.note_end(job.run_files, child.process, status, _LOCK_SECONDS, line)
  return 0


def _start(job: queued_jobs.Job, attempt: queued_jobs.Attempt) -> child_process.Child:
  environment, runner = dict(os.environ), processes.own_identity()
  if attempt.gpus is not None:
    environment['CUDA_VISIBLE_DEVICES'] = ','.join(attempt.gpus)

  def note(process: processes.ProcessIdentity) -> None:
    if job.run_files:
      child_process.note_start(job.run_files, job.note, process)
    values = {'process': process.as_dict(), 'runner': runner.as_dict(), 'time': json_values.timestamp_now()}
    queued_jobs.write_json(f'{attempt.path}.started.json', values)

  paths.make_folder(os.path.dirname(job.log))
  with contextlib.ExitStack() as stack:
    if job.run_files:  # The child holds it too, until it is noted.
      stack.enter_context(local_files.FileLock(job.run_files['started_lock'], _LOCK_SECONDS))
      if child_process.is_taken(job.run_files):
        raise OSError(errno.EBUSY, 'another run lives in this folder', job.model_dir)
    return child_process.Child(job.command, job.cwd, job.log, note, environment)


def _end(job: queued_jobs.Job, attempt: queued_jobs.Attempt, outcome: str, **values) -> None:
  """Writes how the attempt ended, as soon as that can be written."""
  while True:
    try:
      queued_jobs.end_attempt(attempt.path, outcome, **values)
      return
    except OSError:
      if not os.path.isdir(job.folder):  # The queue was deleted.
        return
      time.sleep(_AGAIN_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs one attempt: see the module. The arguments are a job's folder, the attempt's number and its token."""
  folder, number, token = sys.argv[1:] if arguments is None else arguments
  try:
    return run(folder, int(number), token)
  except OSError as error:
    return error.errno or errno.EIO
  except queued_jobs.DamagedFileError:  # The dispatcher reads the same files, and reports it.
    return errno.EINVAL


if __name__ == '__main__':
  sys.exit(main())
