"""A SLURM of one node on this machine: munged, slurmctld and slurmd, in the foreground, from a temporary folder."""

from collections.abc import Iterator, Sequence
import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import time

PROGRAMS = ('munged', 'slurmctld', 'slurmd', 'sbatch', 'srun', 'scontrol')
_PATH = os.pathsep.join((os.environ.get('PATH', ''), '/usr/sbin', '/sbin'))
_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
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
SchedulerParameters=sched_interval=1,batch_sched_delay=1
NodeName={host} NodeAddr=127.0.0.1 NodeHostname={host} CPUs=8 Sockets=8 CoresPerSocket=1 ThreadsPerCore=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
  """Why there can be no cluster here; '' if there can."""
  absent = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
  if absent:
    return f'not installed: {", ".join(absent)} (Debian: slurmctld slurmd slurm-client munge)'
  return '' if os.geteuid() == 0 else 'slurmd has to run as root'


class Cluster:
  """A cluster that runs.

  Attributes:
    environment: with which SLURM's commands find it.
  """

  def __init__(self, folder: pathlib.Path, environment: dict[str, str]):
    self.folder = folder
    self.environment = environment

  def run(self, *command: str) -> str:
    """The output of one of SLURM's commands."""
    done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout

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

  def logs(self) -> str:
    """The end of what the daemons say."""
    return '\n'.join(path.read_text(errors='replace')[-3000:] for path in sorted(self.folder.glob('*.log')))


@contextlib.contextmanager
def running(folder: pathlib.Path, ports: Sequence[int]) -> Iterator[Cluster]:
  """A context with a cluster.

  Args:
    folder: an empty one, for its files.
    ports: two that nobody uses.
  """
  host = socket.gethostname().partition('.')[0]
  (folder / 'state').mkdir()
  (folder / 'spool').mkdir()
  (folder / 'munge.key').write_bytes(os.urandom(128))
  (folder / 'munge.key').chmod(0o400)
  text = _CONFIGURATION.format(host=host, folder=folder, controller_port=ports[0], node_port=ports[1])
  (folder / 'slurm.conf').write_text(text)
  environment = {**os.environ, 'SLURM_CONF': str(folder / 'slurm.conf'), 'PATH': _PATH}
  cluster = Cluster(folder, environment)
  files = [
    f'--{name}={folder}/munge.{name.split("-")[0]}' for name in ('key-file', 'pid-file', 'log-file', 'seed-file')
  ]
  daemons = (
    ['munged', '--foreground', '--force', f'--socket={folder}/munge.socket', '--num-threads=2', *files],
    ['slurmctld', '-D', '-i', '-f', f'{folder}/slurm.conf'],
    ['slurmd', '-D', '-f', f'{folder}/slurm.conf', '-N', host],
  )
  processes = []
  try:
    for words in daemons:
      output = (folder / f'{words[0]}.out').open('w')
      processes.append(subprocess.Popen(words, env=environment, stdout=output, stderr=output, start_new_session=True))
      output.close()
      if words[0] == 'munged':
        _wait_for(lambda: (folder / 'munge.socket').exists(), cluster)
    _wait_for(lambda: 'IDLE' in _outcome(['scontrol', 'show', 'nodes'], environment), cluster)
    yield cluster
  finally:
    _outcome(['scancel', '--signal=KILL', '--full', '--partition=all'], environment)
    for process in reversed(processes):
      process.terminate()
      try:
        process.wait(10)
      except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _outcome(command: Sequence[str], environment: dict[str, str]) -> str:
  done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
  return done.stdout + done.stderr


def _wait_for(condition, cluster: Cluster) -> None:
  deadline = time.monotonic() + 30
  while not condition():
    assert time.monotonic() < deadline, cluster.logs()
    time.sleep(0.1)
