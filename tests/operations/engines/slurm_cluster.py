"""A SLURM on this machine: munged, slurmctld and slurmd, in the foreground, from a temporary folder.

One node is the machine itself. Of several, each is a machine for SLURM and TensorFlow: it has a name,
an /etc/hosts and a separate network (namespaces of Linux), which a bridge joins with that of slurmctld. The network
of the machine is not touched, and nothing is left when the processes are gone.
"""

from collections.abc import Iterator, Sequence
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

PROGRAMS = ('munged', 'slurmctld', 'slurmd', 'sbatch', 'srun', 'scontrol')
_NETWORK_PROGRAMS = ('unshare', 'nsenter', 'ip', 'mount', 'hostname')
_NETWORK = '10.213.7'  # Inside the namespaces alone.
_LOST_SECONDS = 30  # After how long without an answer SLURM takes one of several nodes for lost.
_PATH = os.pathsep.join((os.environ.get('PATH', ''), '/usr/sbin', '/sbin'))
_CONFIGURATION = """
ClusterName=test
SlurmctldHost={controller}
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=30
SlurmdTimeout={lost_seconds}
SchedulerParameters=sched_interval=1,batch_sched_delay=1
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_NODE = 'NodeName={name} NodeAddr={address} CPUs=8 Sockets=8 CoresPerSocket=1 ThreadsPerCore=1 State=UNKNOWN'
# A machine, as long as this process lives: $1 is its name, $2 its /etc/hosts.
_MACHINE = 'hostname "$1" && mount --bind "$2" /etc/hosts && ip link set lo up && echo up && exec sleep infinity'


def missing(num_nodes: int = 1) -> str:
  """The reason if a cluster of so many nodes is impossible here; '' if there can."""
  names = PROGRAMS + (_NETWORK_PROGRAMS if num_nodes > 1 else ())
  absent = [name for name in names if shutil.which(name, path=_PATH) is None]
  if absent:
    return f'not installed: {", ".join(absent)} (Debian: slurmctld slurmd slurm-client munge iproute2)'
  if os.geteuid() != 0:
    return 'slurmd has to run as root'
  if num_nodes > 1:
    done = subprocess.run(
      ['unshare', '--net', '--uts', '--mount', 'ip', 'link', 'add', 'bridge', 'type', 'bridge'],
      env={**os.environ, 'PATH': _PATH},
      capture_output=True,
      text=True,
      check=False,
    )
    return f'no separate networks for nodes: {done.stderr.strip()}' if done.returncode else ''
  return ''


class Cluster:
  """A cluster that runs.

  Attributes:
    environment: with which SLURM's commands find it.
    inside: the words before a command that is to run where slurmctld does.
  """

  def __init__(self, folder: pathlib.Path, environment: dict[str, str], machines: Sequence[Sequence[str]]):
    self.folder = folder
    self.environment = environment
    self.inside = tuple(machines[0])
    self._machines = machines

  def run(self, *command: str) -> str:
    """The output of one of SLURM's commands."""
    done = self.outcome(*command)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout

  def outcome(self, *command: str) -> subprocess.CompletedProcess:
    """How a command ends."""
    words = [*self.inside, *command]
    return subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=60, check=False)

  def state(self, job: str) -> str:
    """How a job stands, in SLURM's words; '' if it is not known."""
    words = self.run('scontrol', 'show', 'job', '-o', job).split()
    return next((word.partition('=')[2] for word in words if word.startswith('JobState=')), '')

  def wait(self, job: str, states: Sequence[str], seconds: float = 900.0) -> str:
    """Waits until a job is in one of some states."""
    deadline = time.monotonic() + seconds
    while (state := self.state(job)) not in states:
      assert time.monotonic() < deadline, (state, self.logs())
      time.sleep(0.25)
    return state

  def lose(self, number: int) -> None:
    """Takes the nth of several nodes away, as when its power fails: all its processes, and its answers."""
    self.run('ip', 'link', 'set', f'to{number}', 'down')
    target = self._machines[number][1].partition('=')[2]
    network = os.readlink(f'/proc/{target}/ns/net')
    assert network != os.readlink('/proc/self/ns/net')
    for path in pathlib.Path('/proc').glob('[0-9]*/ns/net'):
      try:
        if os.readlink(path) == network:
          os.kill(int(path.parts[2]), signal.SIGKILL)
      except OSError:
        pass  # It is gone.

  def logs(self) -> str:
    """The end of the daemons' logs."""
    return '\n'.join(path.read_text(errors='replace')[-3000:] for path in sorted(self.folder.glob('*.log')))


@contextlib.contextmanager
def running(folder: pathlib.Path, ports: Sequence[int], num_nodes: int = 1) -> Iterator[Cluster]:
  """A context with a cluster.

  Args:
    folder: an empty one, for its files.
    ports: two that nobody uses.
    num_nodes: how many nodes it has: node1, node2, ..., or one that is called as this machine.
  """
  environment = {**os.environ, 'SLURM_CONF': str(folder / 'slurm.conf'), 'PATH': _PATH}
  with contextlib.ExitStack() as stack:
    if num_nodes == 1:
      host = socket.gethostname().partition('.')[0]
      names, addresses, machines = [host], ['127.0.0.1'], [[], []]
      controller = host
    else:
      names = [f'node{number}' for number in range(1, num_nodes + 1)]
      addresses = [f'{_NETWORK}.{number}' for number in range(2, num_nodes + 2)]
      machines = stack.enter_context(_machines(folder, ['control', *names], [f'{_NETWORK}.1', *addresses]))
      controller = f'control({_NETWORK}.1)'
    nodes = '\n'.join(_NODE.format(name=name, address=address) for name, address in zip(names, addresses))
    text = _CONFIGURATION.format(
      controller=controller,
      nodes=nodes,
      folder=folder,
      controller_port=ports[0],
      node_port=ports[1],
      lost_seconds=_LOST_SECONDS if num_nodes > 1 else 300,
    )
    (folder / 'slurm.conf').write_text(text)
    (folder / 'state').mkdir()
    (folder / 'munge.key').write_bytes(os.urandom(128))
    (folder / 'munge.key').chmod(0o400)
    cluster = Cluster(folder, environment, machines)
    files = [
      f'--{name}={folder}/munge.{name.split("-")[0]}' for name in ('key-file', 'pid-file', 'log-file', 'seed-file')
    ]
    munge = ['munged', '--foreground', '--force', f'--socket={folder}/munge.socket', '--num-threads=2', *files]
    stack.enter_context(_process(munge, folder / 'munged.out', environment))
    _wait_for(lambda: (folder / 'munge.socket').exists(), cluster)
    words = [*cluster.inside, 'slurmctld', '-D', '-i', '-f', f'{folder}/slurm.conf']
    stack.enter_context(_process(words, folder / 'slurmctld.out', environment))
    for name, where in zip(names, machines[1:]):
      (folder / f'spool-{name}').mkdir()
      words = [*where, *(['--mount'] if where else []), 'slurmd', '-D', '-f', f'{folder}/slurm.conf', '-N', name]
      stack.enter_context(_process(words, folder / f'slurmd-{name}.out', environment))
    _wait_for(lambda: cluster.outcome('scontrol', 'show', 'nodes').stdout.count('State=IDLE') == num_nodes, cluster)
    try:
      yield cluster
    finally:
      cluster.outcome('scancel', '--signal=KILL', '--full', '--partition=all')


@contextlib.contextmanager
def _process(words: Sequence[str], output: pathlib.Path, environment: dict[str, str]) -> Iterator[subprocess.Popen]:
  """A context with a process that ends with it."""
  with output.open('w') as file:
    process = subprocess.Popen(words, env=environment, stdout=file, stderr=file, start_new_session=True)
  try:
    yield process
  finally:
    process.terminate()
    try:
      process.wait(10)
    except subprocess.TimeoutExpired:
      process.kill()
      process.wait()


@contextlib.contextmanager
def _machines(folder: pathlib.Path, names: Sequence[str], addresses: Sequence[str]) -> Iterator[list[list[str]]]:
  """A context with machines that reach each other: for each the words before a command that is to run there."""
  environment = {**os.environ, 'PATH': _PATH}
  hosts = folder / 'hosts'
  hosts.write_text('127.0.0.1 localhost\n' + ''.join(f'{address} {name}\n' for name, address in zip(names, addresses)))
  with contextlib.ExitStack() as stack:
    inside = []
    for name in names:
      output = folder / f'machine-{name}.out'
      words = ['unshare', '--net', '--uts', '--mount', 'sh', '-c', _MACHINE, 'sh', name, str(hosts)]
      process = stack.enter_context(_process(words, output, environment))
      deadline = time.monotonic() + 120
      while output.read_text() != 'up\n':
        assert time.monotonic() < deadline and process.poll() is None, output.read_text()
        time.sleep(0.05)
      inside.append(['nsenter', f'--target={process.pid}', '--net', '--uts'])

    def ip(place, *words):
      subprocess.run([*inside[place], 'ip', *words], env=environment, check=True, timeout=60)

    ip(0, 'link', 'add', 'bridge', 'type', 'bridge')
    ip(0, 'address', 'add', f'{addresses[0]}/24', 'dev', 'bridge')
    ip(0, 'link', 'set', 'bridge', 'up')
    for place in range(1, len(names)):
      target = inside[place][1].partition('=')[2]
      ip(0, 'link', 'add', f'to{place}', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', target)
      ip(0, 'link', 'set', f'to{place}', 'master', 'bridge', 'up')
      ip(place, 'address', 'add', f'{addresses[place]}/24', 'dev', 'eth0')
      ip(place, 'link', 'set', 'eth0', 'up')
    yield inside


def _wait_for(condition, cluster: Cluster) -> None:
  deadline = time.monotonic() + 120
  while not condition():
    assert time.monotonic() < deadline, cluster.logs()
    time.sleep(0.1)
