"""This machine: the queue of the folder with the runs, and the launcher for several workers."""

import argparse
import os
import shlex
import sys
from typing import Any

from official_ext.base import hardware
from official_ext.base.files import paths
from official_ext.operations.engines import jobs
from official_ext.operations.queue import queue_changes
from official_ext.operations.queue import queue_folder
from official_ext.operations.queue import queued_jobs
from official_ext.operations.runs import driver

SUMMARY = 'the queue of the folder with the runs, and `launch` for several workers'
OPTIONS: dict[str, dict[str, Any]] = {
  'nodes': jobs.nodes_option('processes'),
  'gpus': {'least': 0, 'metavar': 'N', 'help': 'GPUs of a process'},
  'slots': {'least': 1, 'metavar': 'N', 'help': 'runs of a queue or of --array at the same time'},
}
NEEDS_ABSOLUTE = False
HAS_ARRAYS = False


def render(job: jobs.Job, options: argparse.Namespace) -> str:
  """The command as a shell takes it; see jobs.py."""
  command = shlex.join(_words(job, options))
  env = shlex.join([f'{name}={value}' for name, value in job.env.items()])
  return f'cd {shlex.quote(job.cwd)} && {f"env {env} " if env else ""}{command}\n'


def submit(job: jobs.Job, options: argparse.Namespace, text: str) -> str:
  """Adds it to the queue, and starts a dispatcher in the background if necessary; see jobs.py."""
  del text
  queue = queue_folder.Queue(runs_dir(job, options))
  env = ['env', *(f'{name}={value}' for name, value in job.env.items())] if job.env else []
  gpus = None if options.gpus is None else options.gpus * options.nodes
  if gpus is None and options.nodes > 1 and hardware.visible_gpus():
    gpus = options.nodes
  added = queue_changes.add(
    queue,
    [*env, *_words(job, options)],
    cwd=job.cwd,
    model_dir=job.folder,
    gpus=gpus,
    max_restarts=_max_restarts(job),
  )
  queue.start_dispatcher(options.slots)
  return str(added.number)


def is_active(name: str, options: argparse.Namespace) -> bool | None:
  """Whether a job of the queue is not over; see jobs.py."""
  state = queue_folder.Queue(options.runs_dir).state(int(name)) if options.runs_dir and name.isdigit() else None
  return None if state is None else state.status not in queued_jobs.OVER


def runs_dir(job: jobs.Job, options: argparse.Namespace) -> str:
  """The folder whose queue takes the job: --runs_dir, or the one that the run's folder is in."""
  if options.runs_dir:
    return paths.expand_home(options.runs_dir, '--runs_dir')
  return 'runs' if paths.is_remote(job.folder) else os.path.dirname(job.folder)


def _max_restarts(job: jobs.Job) -> int:
  return queue_changes.MAX_RESTARTS if job.max_restarts is None else job.max_restarts


def _words(job: jobs.Job, options: argparse.Namespace) -> list[str]:
  if options.nodes == 1:
    return [sys.executable, *driver.program_words(job.program), *job.flags]
  # The launcher distinguishes a killed worker from a failed run, which to the queue are one status.
  restarts = f'--max_restarts={_max_restarts(job)}'
  words = ['launch', f'--num_workers={options.nodes}', restarts, f'--program={job.program}']
  return [sys.executable, '-m', 'official_ext.cli.main', *words, '--', *job.flags]
