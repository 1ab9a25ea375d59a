"""Ray: a Ray job whose driver, the program below, starts train.py on the cluster. No process of Ray imports TensorFlow.

The driver holds a placement group with a bundle for each worker of a run, and in each bundle an actor, which starts
train.py as a process and waits for it. The driver gives them TF_CONFIG. If a worker is lost, or ends with status 75,
the others are ended, and save; lost actors are replaced, and all workers start again. The trials of a sweep run at the
same time, as many as the cluster has room for. Ray is needed for the submission and on the cluster:
pip install 'official-ext[ray]'.

    python -m official_ext.operations.engines.ray_jobs < job.json  # `ray job submit` gives the JSON as an argument
"""

import argparse
import base64
from collections.abc import Mapping, Sequence
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import processes
from official_ext.operations.engines import jobs
from official_ext.operations.runs import driver

SUMMARY = 'a Ray job'
OPTIONS: dict[str, dict[str, Any]] = {
  'address': {'metavar': 'URL', 'help': 'of the cluster'},
  'nodes': jobs.nodes_option('bundles, each a worker'),
  'gpus': {'least': 0, 'default': 0, 'metavar': 'N', 'help': 'GPUs of a worker'},
  'cpus': {'least': 1, 'default': 1, 'metavar': 'N', 'help': 'cores of a worker; default: 1'},
  'slots': {'least': 1, 'metavar': 'N', 'help': 'runs of a queue or of --array at the same time'},
}
NEEDS_ABSOLUTE = False
HAS_ARRAYS = True
MAX_RESTARTS = 3

_PREEMPTED = errors.PreemptedError.exit_status
_NOT_TRIED_AGAIN = tuple(each.exit_status for each in (errors.UserError, errors.StateError, errors.DivergedError))
_GRACE_SECONDS = 120.0
_POLL_SECONDS = 1.0


def render(job: jobs.Job, options: argparse.Namespace) -> str:
  """The input of the driver below, as JSON; see jobs.py."""
  spec = {
    'runs': [[sys.executable, *driver.program_words(job.program), *trial.flags] for trial in job.trials],
    'logs': [jobs.log_path(trial.model_dir) for trial in job.trials] if job.is_array else [],
    'cwd': job.cwd,
    'env': dict(job.env),
    'num_workers': options.nodes,
    'cpus': options.cpus,
    'gpus': options.gpus,
    'at_once': options.slots,
    'max_restarts': MAX_RESTARTS if job.max_restarts is None else job.max_restarts,
  }
  return json.dumps(spec, indent=2) + '\n'


def submit(job: jobs.Job, options: argparse.Namespace, text: str) -> str:
  """Submits by `ray job submit`; see jobs.py."""
  jobs.refuse_several(options.engine_arg, ('address', 'submission-id', 'no-wait'))
  # Ray joins the words of its entry point, and a shell splits them again: letters that mean nothing to a shell.
  encoded = base64.urlsafe_b64encode(text.encode()).decode()
  words = ['ray', 'job', 'submit', *_address(options), f'--submission-id={job.name}', '--no-wait', *options.engine_arg]
  jobs.call(
    [*words, '--', sys.executable, '-m', 'official_ext.operations.engines.ray_jobs', encoded], 'ray', cwd=job.cwd
  )
  return job.name


def is_active(name: str, options: argparse.Namespace) -> bool | None:
  """Whether a Ray job waits or runs; see jobs.py."""
  status, output = jobs.output_of(['ray', 'job', 'status', *_address(options), name])
  if status:
    return None
  if re.search(r"Status for job '.*': (PENDING|RUNNING)", output):
    return True
  return False if re.search(r"Job '.*' (succeeded|failed|was stopped)", output) else None


def trial_name(name: str, number: int) -> str:
  """All trials are one Ray job."""
  del number
  return name


def _address(options: argparse.Namespace) -> list[str]:
  return [f'--address={options.address}'] if options.address else []


# On the cluster.


class _Worker:
  """The work of an actor: one process of train.py, on the machine where Ray has put it."""

  def __init__(self) -> None:
    self._process: subprocess.Popen | None = None

  def address(self) -> str:
    """This machine's address in the cluster, and a port that is free."""
    host = importlib.import_module('ray').util.get_node_ip_address()
    with socket.socket() as probe:
      probe.bind(('', 0))
      return f'{host}:{probe.getsockname()[1]}'

  def start(self, words: Sequence[str], cwd: str, env: Mapping[str, str], log: str) -> None:
    """Starts the process; its output goes to a file, or to the actor's output."""
    output = open(log, 'ab') if log else None
    try:
      self._process = subprocess.Popen(
        words,
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        preexec_fn=processes.end_with_parent,  # The actor, which may be killed.
      )
    finally:
      if output is not None:
        output.close()

  def poll(self) -> int | None:
    """Its exit status; None while it runs."""
    return None if self._process is None else self._process.poll()

  def end(self, number: int) -> None:
    """Sends it a signal."""
    if self._process is not None and self._process.poll() is None:
      self._process.send_signal(number)


class _Run:
  """A run on the cluster."""

  def __init__(self, ray: Any, words: Sequence[str], log: str, spec: json_values.JsonMapping):
    self.exit_status: int | None = None
    self._ray, self._words, self._log, self._spec = ray, words, log, spec
    bundle = {'CPU': spec['cpus'], **({'GPU': spec['gpus']} if spec['gpus'] else {})}
    self._group = ray.util.placement_group([bundle] * spec['num_workers'], strategy='PACK')
    self._actors: list[Any] = [None] * spec['num_workers']
    self._restarts = 0
    self._deadline: float | None = None  # The deadline of processes that were asked to end.
    self._statuses: list[int | None] = []

  def is_placed(self) -> bool:
    """Whether the cluster has had room for it."""
    return self._group.wait(0.1)

  def step(self) -> None:
    """Starts waiting processes, and notes ended ones."""
    if not self._statuses:
      self._start()
      return
    for index, actor in enumerate(self._actors):
      if self._statuses[index] is None:
        try:
          self._statuses[index] = self._ray.get(actor.poll.remote(), timeout=60)
        except self._ray.exceptions.RayError:  # It is gone, or its machine is.
          self._statuses[index], self._actors[index] = -signal.SIGKILL, None
    ended = [status for status in self._statuses if status is not None]
    if len(ended) == len(self._statuses):
      self._conclude(ended)
    elif any(ended) and self._deadline is None:
      self._deadline = time.monotonic() + _GRACE_SECONDS
      self._end(signal.SIGTERM)
    elif self._deadline is not None and time.monotonic() > self._deadline:
      self._end(signal.SIGKILL)

  def stop(self) -> None:
    """Lets it save and stop, for good."""
    if not self._statuses:
      self.exit_status = _PREEMPTED
      return
    self._restarts = self._spec['max_restarts']
    if self._deadline is None:
      self._deadline = time.monotonic() + _GRACE_SECONDS
      self._end(signal.SIGTERM)

  def _start(self) -> None:
    spec, ray = self._spec, self._ray
    make = ray.remote(num_cpus=spec['cpus'], num_gpus=spec['gpus'])(_Worker)
    placed = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
    for index, actor in enumerate(self._actors):
      if actor is None:
        strategy = placed(placement_group=self._group, placement_group_bundle_index=index)
        self._actors[index] = make.options(scheduling_strategy=strategy).remote()
    try:
      addresses = ray.get([actor.address.remote() for actor in self._actors])
      started = []
      for index, actor in enumerate(self._actors):
        env = dict(spec['env'])
        if len(addresses) > 1:
          config = {'cluster': {'worker': addresses}, 'task': {'type': 'worker', 'index': index}}
          env |= {'TF_CONFIG': json.dumps(config)}
        started.append(actor.start.remote(self._words, spec['cwd'], env, self._log))
      ray.get(started)
    except ray.exceptions.RayActorError:
      pass  # The next look finds it gone.
    self._statuses, self._deadline = [None] * len(self._actors), None

  def _end(self, number: int) -> None:
    for actor, status in zip(self._actors, self._statuses):
      if actor is not None and status is None:
        actor.end.remote(int(number))

  def _conclude(self, statuses: Sequence[int]) -> None:
    final = [status for status in statuses if status in _NOT_TRIED_AGAIN]
    if not any(statuses) or final or self._restarts >= self._spec['max_restarts']:
      self.exit_status = final[0] if final else next((status for status in statuses if status), 0)
      self._ray.util.remove_placement_group(self._group)
      return
    self._restarts += 1
    print(f'ray: statuses {list(statuses)}: start {self._restarts + 1}', file=sys.stderr, flush=True)
    self._statuses = []


def main(arguments: Sequence[str] | None = None) -> int:
  """The driver: runs the job to its end; the status is the first that is not 0."""
  try:
    ray = importlib.import_module('ray')
    importlib.import_module('ray.util.scheduling_strategies')
  except ImportError:
    print("error: Ray is not installed here: pip install 'official-ext[ray]'", file=sys.stderr)
    return errors.UserError.exit_status
  words = sys.argv[1:] if arguments is None else arguments
  spec = json.loads(base64.urlsafe_b64decode(words[0]) if words else sys.stdin.read())
  stopped: list[int] = []
  ray.init(log_to_driver=True)
  for ending in (signal.SIGTERM, signal.SIGINT):  # After Ray has put in its own, which end the driver.
    signal.signal(ending, lambda received, _: stopped.append(received))
  waiting = list(enumerate(spec['runs']))
  running: list[_Run] = []
  statuses: list[int] = []
  while (waiting and not stopped) or running:
    while waiting and not stopped and len(running) < (spec['at_once'] or len(spec['runs'])):
      number, words = waiting.pop(0)
      running.append(_Run(ray, words, spec['logs'][number] if spec['logs'] else '', spec))
    for run in list(running):
      if stopped:
        run.stop()
      if run.exit_status is None and run.is_placed():
        run.step()
      if run.exit_status is not None:
        running.remove(run)
        statuses.append(run.exit_status)
    time.sleep(_POLL_SECONDS)
  status = next((each for each in statuses if each), _PREEMPTED if stopped else 0)
  return status if status >= 0 else 128 - status  # As a shell says that a signal has ended it.


if __name__ == '__main__':
  sys.exit(main())
