"""official-ext queue: runs that wait for a free slot, and the dispatcher that starts them."""

import argparse
from collections.abc import Callable, Sequence
import os
import signal
import sys
import time
from typing import Any

from official_ext.base import errors
from official_ext.base import hardware
from official_ext.base import json_values
from official_ext.base import notify
from official_ext.base import processes
from official_ext.base.files import paths
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import json_output
from official_ext.cli import output
from official_ext.operations.queue import dispatcher
from official_ext.operations.queue import queue_changes
from official_ext.operations.queue import queue_folder
from official_ext.operations.queue import queued_jobs
from official_ext.operations.runs import driver
from official_ext.operations.runs import run_processes

_PLACES = ('first', 'last', 'before', 'after')
_NUM_OVER = 10  # Finished jobs that are listed without --all.
_NOTIFICATIONS = 'OFFICIAL_EXT_NOTIFICATIONS'  # Of the environment, which background dispatchers inherit.
_POLL_SECONDS = 0.5
_STOP_SECONDS = 30.0
_JOB = "its number, or its run's folder"


def run(arguments: Sequence[str]) -> int:
  """Runs `official-ext queue ARGUMENTS`, and returns the exit status."""
  options = _parser().parse_args(arguments)
  return options.function(options)


def _parser() -> arguments_lib.Parser:
  parser = arguments_lib.Parser(
    'official-ext queue',
    'Jobs in files below RUNS_DIR, and the one dispatcher that starts them in turn. A JOB is named by its number or by '
    "its run's folder. docs/how_to/queue.md.\n\n"
    f'The dispatcher sends a message when a job ends, to the URLs of apprise in the environment variable '
    f'{_NOTIFICATIONS}, if it is set.',
  )
  commands = parser.add_commands()
  _add_add(commands)
  found = _command(commands, 'list', _list, 'list the jobs that are over, run and wait, in order')
  found.add_argument('--all', action='store_true', help='all jobs that are over')
  found = _command(commands, 'move', _move, 'move a job to another place')
  found.add_argument('job', metavar='JOB', help=_JOB)
  _add_places(found, required=True)
  found = _command(commands, 'pause', _pause, 'start no job, or not these; running jobs continue')
  found.add_argument('jobs', metavar='JOB', nargs='*', help=_JOB)
  found = _command(commands, 'resume', _resume, 'start jobs again after a pause')
  found.add_argument('jobs', metavar='JOB', nargs='*', help=_JOB)
  cancel = 'take jobs out; running ones save and stop (SIGTERM), and are not retried'
  found = _command(commands, 'cancel', _cancel, cancel)
  found.add_argument('jobs', metavar='JOB', nargs='+', help=_JOB)
  found.add_argument('--kill', action='store_true', help='stop at once, by SIGKILL')
  text = f'wait for jobs; status {json_output.NOT_REACHED}: not all of them have finished'
  found = _command(commands, 'wait', _wait, text)
  found.add_argument('jobs', metavar='JOB', nargs='*', help=f'{_JOB}; default: all that wait or run')
  limit = 'wait so long at most, for all together'
  found.add_argument('--timeout', type=arguments_lib.number_from(0), metavar='SECONDS', help=limit)
  _add_run(commands)
  _command(commands, 'stop', _stop, 'end the dispatcher; running jobs continue, and waiting ones wait for another')
  return parser


def _command(
  commands: Any, name: str, function: Callable[[Any], int], text: str, **kwargs: Any
) -> arguments_lib.Parser:
  found = arguments_lib.add_command(commands, name, function, text, **kwargs)
  found.add_argument('runs_dir', type=arguments_lib.folder, metavar='RUNS_DIR', help='the folder of the runs')
  if name != 'run':
    found.add_argument(json_output.FLAG, action='store_true', help='print JSON')
  return found


def _add_add(commands: Any) -> None:
  text = 'add a job: any command, or the flags of train.py alone, with --model_dir'
  found = _command(commands, 'add', _add, text, behind='COMMAND')
  model_dir = "the run's folder, if COMMAND has no --model_dir; FOLDER/run.log gets the output of the job"
  found.add_argument('--model_dir', metavar='FOLDER', help=model_dir)
  gpus = 'the number of GPUs of the job; default: one, if there are any'
  found.add_argument('--gpus', type=arguments_lib.at_least(0), metavar='N', help=gpus)
  found.add_argument(
    '--max_restarts',
    type=arguments_lib.at_least(0),
    default=queue_changes.MAX_RESTARTS,
    metavar='N',
    help='retries after the job was preempted, killed or lost; default: %(default)s',
  )
  program = 'the program of flags without a command; default: train.py of this folder, or else `official-ext train`'
  found.add_argument('--program', default=driver.DEFAULT_PROGRAM, metavar='PATH', help=program)
  no_check = 'do not check the configuration of a train.py first, which takes some seconds'
  found.add_argument('--no_check', action='store_true', help=no_check)
  start = 'start a dispatcher in the background, unless there is one'
  found.add_argument('--start', action='store_true', help=start)
  found.add_argument('--slots', type=arguments_lib.at_least(1), metavar='N', help='of that dispatcher')
  _add_places(found)


def _add_run(commands: Any) -> None:
  text = 'run the dispatcher in the foreground; jobs outlive it'
  found = _command(commands, 'run', _run, text)
  slots = 'jobs at the same time; default: the number of GPUs, or 1'
  found.add_argument('--slots', type=arguments_lib.at_least(1), metavar='N', help=slots)
  gpus = 'the GPUs to hand out; default: those of CUDA_VISIBLE_DEVICES, or all'
  found.add_argument('--gpus', metavar='0,1', help=gpus)
  until_empty = 'end when no job waits or runs; the status is 1 if one has failed'
  found.add_argument('--until_empty', action='store_true', help=until_empty)


# The commands.


def _add(options: argparse.Namespace) -> int:
  if options.slots and not options.start:
    raise errors.UserError('--slots: is for the dispatcher that --start starts; give both, or `queue run --slots=N`')
  command = _words(options.behind, options.program)
  queue = queue_folder.Queue(options.runs_dir)
  other = queue.dispatcher()
  if options.slots and other is not None and other.get('slots') != options.slots:
    raise errors.StateError(
      f'--slots={options.slots}: a dispatcher with {other.get("slots", "?")} slots runs already; leave --slots out, or '
      f'end it first: official-ext queue stop {options.runs_dir}'
    )
  place, neighbour = _place(queue, options, 'last')
  if not options.no_check:
    _check_configuration(command)
  job = queue_changes.add(
    queue,
    command,
    model_dir=options.model_dir,
    gpus=options.gpus,
    max_restarts=options.max_restarts,
    place=place,
    neighbour=neighbour,
  )
  print(f'job {job.number} is queued' + (f': {job.model_dir}' if job.model_dir else ''), flush=True)
  if options.start:
    _start_dispatcher(queue, options.slots)
  elif queue.dispatcher() is None:
    print(f'no dispatcher runs; `official-ext queue run {options.runs_dir} --slots=N` starts queued jobs')
  _print_jobs(queue, [job.number], options)
  return 0


def _check_configuration(command: Sequence[str]) -> None:
  """Asks the driver of a command, in a separate process, to check its flags; another program is not asked.

  Checkpoints and devices are not checked: an earlier job may write the checkpoint, and another machine run the job.

  Raises:
    UserErrors: its mistakes.
  """
  program, flags = driver.split_command(command)
  if not program or not queue_changes.value_of(flags, 'experiment'):
    return
  with driver.Driver(program=program) as asked:
    try:
      lines = [line['text'] for line in asked.check(flags, quick=True)['lines']]
    except driver.DriverError as error:  # The run's start will report it.
      print(f'warning: {error}', file=sys.stderr)
      return
  if lines:
    raise errors.UserErrors(lines)


def _list(options: argparse.Namespace) -> int:
  queue = queue_folder.Queue(options.runs_dir)
  if not os.path.isdir(queue.runs_dir):
    raise errors.UserError(f'{options.runs_dir}: no such folder; name that of your runs')
  found = queue_folder.queue_as_dict(queue)
  if options.json:
    json_output.print_document(found)
    return 0
  entries = found['jobs']
  over = [entry for entry in entries if entry['status'] in queued_jobs.OVER]
  left_out = 0 if options.all else max(0, len(over) - _NUM_OVER)
  for line in [*_about(queue, found['slots_in_use']), *_table(entries[left_out:], queue.runs_dir)]:
    print(line)
  if left_out:
    print(f'{left_out} more are over; --all lists them')
  return 0


def _move(options: argparse.Namespace) -> int:
  queue = queue_folder.Queue(options.runs_dir)
  number = queue.find(options.job).number
  queue_changes.move(queue, number, *_place(queue, options))
  _print_jobs(queue, [number], options)
  return 0


def _pause(options: argparse.Namespace) -> int:
  return _pause_or_resume(options, queue_changes.pause)


def _resume(options: argparse.Namespace) -> int:
  return _pause_or_resume(options, queue_changes.resume)


def _pause_or_resume(options: argparse.Namespace, change: Callable[..., None]) -> int:
  queue = queue_folder.Queue(options.runs_dir)
  numbers = [queue.find(job).number for job in options.jobs]
  for number in numbers or (None,):
    change(queue, number)
  _print_jobs(queue, numbers, options)
  return 0


def _cancel(options: argparse.Namespace) -> int:
  queue = queue_folder.Queue(options.runs_dir)
  for state in [queue.find(job) for job in options.jobs]:
    queue_changes.cancel(queue, state.number, options.kill)
    print(f'job {state.number}: ' + ('is stopping' if state.has_slot and not options.kill else 'is cancelled'))
  _print_jobs(queue, [queue.find(job).number for job in options.jobs], options)
  return 0


def _wait(options: argparse.Namespace) -> int:
  queue = queue_folder.Queue(options.runs_dir)
  named = [queue.find(job).number for job in options.jobs]
  numbers = named or [state.number for state in queue.states() if state.status not in queued_jobs.OVER]
  deadline = None if options.timeout is None else time.monotonic() + options.timeout
  while waiting := [number for number in numbers if not _is_over(queue, number)]:
    left = _POLL_SECONDS if deadline is None else deadline - time.monotonic()
    if left <= 0:
      print(f'the time is over; {len(waiting)} of {len(numbers)} jobs wait or run')
      break
    time.sleep(min(left, _POLL_SECONDS))
  _print_jobs(queue, numbers, options)
  states = [queue.state(number) for number in numbers]
  return 0 if all(state is not None and state.status == 'finished' for state in states) else json_output.NOT_REACHED


def _is_over(queue: queue_folder.Queue, number: int) -> bool:
  state = queue.state(number)
  return state is None or state.status in queued_jobs.OVER


def _print_jobs(queue: queue_folder.Queue, numbers: Sequence[int], options: argparse.Namespace) -> None:
  """Prints jobs as JSON: one for one job, else a list."""
  if options.json:
    found = {entry['job']: entry for entry in queue_folder.queue_as_dict(queue)['jobs']}
    jobs = [found[number] for number in numbers if number in found]
    json_output.print_document(jobs[0] if len(jobs) == 1 else jobs)


def _run(options: argparse.Namespace) -> int:
  gpus = hardware.visible_gpus() if options.gpus is None else hardware.parse_gpus(options.gpus)
  slots = dispatcher.Slots(
    count=options.slots or max(1, len(gpus)), gpus=tuple(gpus) if gpus or options.gpus is not None else None
  )
  queue = queue_folder.Queue(options.runs_dir)
  urls = notify.read_and_check([f'env:{_NOTIFICATIONS}'], 'queue run') if os.environ.get(_NOTIFICATIONS) else ()
  with output.outliving_readers():
    return dispatcher.Dispatcher(queue, slots, urls=urls).run(options.until_empty)


def _stop(options: argparse.Namespace) -> int:
  queue = queue_folder.Queue(options.runs_dir)
  process = processes.parse_identity(queue.dispatcher() or {})
  if process is None:
    raise errors.StateError(f'{options.runs_dir}: no dispatcher runs; there is nothing to stop')
  run_processes.send_signal(process, signal.SIGTERM, 'the dispatcher')
  deadline = time.monotonic() + _STOP_SECONDS
  while processes.is_alive(process):
    if time.monotonic() > deadline:
      raise errors.StorageError(f'{process}: still runs after {_STOP_SECONDS:g} s; {queue.log_path} has its output')
    time.sleep(0.05)
  running = [state.number for state in queue.states() if state.has_slot]
  print(f'the dispatcher, {process}, has ended; running jobs: {", ".join(map(str, running)) or "none"}')
  _print_jobs(queue, running, options)
  return 0


def _start_dispatcher(queue: queue_folder.Queue, slots: int | None) -> None:
  """Starts a dispatcher that outlives this process, unless there is one."""
  pid = queue.start_dispatcher(slots)
  if pid is not None:
    print(f'a dispatcher has started: process {pid}; it writes to {queue.log_path}')


# Arguments.


def _add_places(parser: arguments_lib.Parser, required: bool = False) -> None:
  group = parser.add_mutually_exclusive_group(required=required)
  for place in _PLACES[:2]:
    group.add_argument(f'--{place}', action='store_true', help=f'the {place} place')
  for place in _PLACES[2:]:
    group.add_argument(f'--{place}', metavar='JOB', help=f'the place {place} a job')


def _place(queue: queue_folder.Queue, options: argparse.Namespace, default: str = '') -> tuple[str, int | None]:
  """The place in the order that flags name, and the job that it is before or after."""
  for place in _PLACES:
    value = getattr(options, place)
    if value:
      return place, None if value is True else queue.find(value).number
  return default, None


def _words(words: Sequence[str], program: str) -> list[str]:
  """The command to run, unchanged; train.py, if there are only flags.

  Raises:
    UserError: there is nothing.
  """
  if not words:
    raise errors.UserError('queue add: a command, or the flags of train.py, must follow --')
  if not words[0].startswith('-'):
    return list(words)
  if not queue_changes.value_of(words, 'model_dir'):
    raise errors.UserError('queue add: --model_dir: name the folder of the run, among the flags of train.py after --')
  return [sys.executable, *driver.program_words(driver.find_program(program)), *words]


# The printed lines.


def _about(queue: queue_folder.Queue, used: int) -> list[str]:
  """The summary of the queue as a whole."""
  found = queue.dispatcher()
  lines = ['the queue is paused; `queue resume` continues'] if queue.is_paused else []
  if found is None:
    return [*lines, f'no dispatcher runs; `official-ext queue run {queue.runs_dir} --slots=N` starts queued jobs']
  who = processes.parse_identity(found) or 'a process'
  return [*lines, f'{used} of {found.get("slots", "?")} slots are in use; dispatched by {who}']


def _table(entries: Sequence[json_values.JsonMapping], runs_dir: str) -> list[str]:
  """Jobs as lines with columns."""
  rows = [('job', 'place', 'status', 'attempt', 'run', '')]
  for entry in entries:
    run_name = _below(entry['model_dir'], runs_dir) if entry['model_dir'] else entry['command'] or ''
    place = '' if entry['position'] is None else str(entry['position'])
    rows.append((str(entry['job']), place, entry['status'], str(entry['attempt']), run_name, entry['reason']))
  if len(rows) == 1:
    return ['no jobs']
  widths = [max(len(row[column]) for row in rows) for column in range(5)]
  return ['  '.join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[5]]).rstrip() for row in rows]


def _below(path: str, folder: str) -> str:
  """A path relative to a folder; unchanged if it is elsewhere."""
  if paths.is_remote(path):
    return path
  relative = os.path.relpath(path, os.path.realpath(folder))
  return path if relative.startswith(os.pardir) else relative
