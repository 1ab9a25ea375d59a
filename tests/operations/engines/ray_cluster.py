"""A Ray of this machine alone: `ray start --head` in the foreground, from a temporary folder, with separate ports."""

from collections.abc import Iterator, Sequence
import contextlib
import os
import pathlib
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time

_BIN = os.path.dirname(sys.executable)


def missing() -> str:
  """The reason if a cluster is impossible here; '' if there can."""
  found = shutil.which('ray', path=_BIN)
  return '' if found else "not installed: pip install 'ray[default]'"


class Cluster:
  """A cluster that runs.

  Attributes:
    address: where jobs are submitted.
    environment: with which Ray's commands find it.
  """

  def __init__(self, address: str, environment: dict[str, str]):
    self.address = address
    self.environment = environment

  def outcome(self, *command: str) -> subprocess.CompletedProcess:
    """How a command of Ray's ends."""
    return subprocess.run(
      [f'{_BIN}/ray', *command], env=self.environment, capture_output=True, text=True, timeout=600, check=False
    )

  def state(self, job: str) -> str:
    """How a job stands, in Ray's words: PENDING, RUNNING, succeeded, failed or stopped; '' if it is not known."""
    output = self.outcome('job', 'status', f'--address={self.address}', job).stdout
    found = re.search(r"Status for job '.*': (\w+)|Job '.*' (?:was )?(\w+)", output)
    return (found[1] or found[2]) if found else ''

  def wait(self, job: str, seconds: float = 900.0) -> str:
    """Waits until a job is over; returns how it has ended."""
    deadline = time.monotonic() + seconds
    while (state := self.state(job)) not in ('succeeded', 'failed', 'stopped'):
      assert time.monotonic() < deadline, state
      time.sleep(1.0)
    return state

  def logs(self, job: str) -> str:
    """The report of a job's driver."""
    return self.outcome('job', 'logs', f'--address={self.address}', job).stdout[-5000:]


@contextlib.contextmanager
def running(ports: Sequence[int], num_cpus: int = 4) -> Iterator[Cluster]:
  """A context with a cluster.

  Args:
    ports: four that nobody uses.
    num_cpus: how many cores Ray takes it to have.
  """
  folder = pathlib.Path(tempfile.mkdtemp(prefix='ray-'))  # Names of sockets are short.
  environment = {
    **os.environ,
    'PATH': os.pathsep.join((_BIN, os.environ.get('PATH', ''))),
    'RAY_ADDRESS': f'http://127.0.0.1:{ports[1]}',
    'RAY_USAGE_STATS_ENABLED': '0',
    'RAY_AUTH_MODE': 'token',  # Else its head makes one in the home folder, and its commands do not look there.
    'RAY_AUTH_TOKEN': secrets.token_hex(32),
  }
  names = ('port', 'dashboard-port', 'dashboard-agent-listen-port', 'ray-client-server-port')
  words = ['start', '--head', '--block', f'--num-cpus={num_cpus}', '--num-gpus=0', f'--temp-dir={folder}']
  words += ['--object-store-memory=100000000', '--node-ip-address=127.0.0.1', '--dashboard-host=127.0.0.1']
  words += [f'--{name}={port}' for name, port in zip(names, ports)]
  with (folder / 'start.out').open('w') as output:
    process = subprocess.Popen(
      [f'{_BIN}/ray', *words],
      env={name: value for name, value in environment.items() if name != 'RAY_ADDRESS'},
      stdout=output,
      stderr=output,
      start_new_session=True,
    )
  cluster = Cluster(f'http://127.0.0.1:{ports[1]}', environment)
  try:
    deadline = time.monotonic() + 600
    while cluster.outcome('job', 'list', f'--address={cluster.address}').returncode:
      assert time.monotonic() < deadline and process.poll() is None, (folder / 'start.out').read_text()
      time.sleep(0.5)
    yield cluster
  finally:
    process.terminate()
    try:
      process.wait(60)
    except subprocess.TimeoutExpired:
      process.kill()
      process.wait()
    shutil.rmtree(folder, ignore_errors=True)
