"""Finds the workers of a run, and lets them meet, with a deadline, before TensorFlow connects them.

TF_CONFIG names the workers' addresses, and this process among them. In a SLURM job step of several tasks it is derived
from the step's variables, so that `srun python train.py ...` is enough. The first worker, or the one called chief, is
the chief: it writes, and decides for all.

To meet, each worker connects to the chief's port, sends its number, and waits for the answer that all have come. The
chief reads only that line; other connections delay no worker. There are no credentials, as in TensorFlow's connections
afterwards: docs/concepts/security.md.
"""

from collections.abc import Mapping, MutableMapping
import contextlib
import dataclasses
import errno
import ipaddress
import json
import os
import re
import selectors
import socket
import time

from absl import logging

from official_ext.base import errors

# SLURM hands out no ports. Below the range that the kernel takes for outgoing connections.
_SLURM_PORTS = range(15000, 31000)
_SLURM_PORTS_PER_JOB = 16
_JOBS = ('chief', 'worker', 'ps')  # Those that TensorFlow's strategies take.


@dataclasses.dataclass(frozen=True)
class Cluster:
  """The workers that train together.

  Attributes:
    addresses: host:port of each, the chief's first.
    index: which of them this process is.
  """

  addresses: tuple[str, ...]
  index: int

  @property
  def is_chief(self) -> bool:
    return self.index == 0

  def name(self, index: int) -> str:
    """The name of a worker in messages."""
    return f'worker {index} ({self.addresses[index]})'


def find(environment: MutableMapping[str, str] | None = None) -> Cluster | None:
  """The cluster that this process belongs to; under SLURM, TF_CONFIG is set in the environment.

  Args:
    environment: the environment variables, the process's by default.

  Returns:
    None if this process trains, or evaluates, by itself.

  Raises:
    UserError: the variables make no sense.

  Example:

    >>> workers = ['host-a:2222', 'host-b:2222']
    >>> config = {'cluster': {'worker': workers}, 'task': {'type': 'worker', 'index': 1}}
    >>> find({'TF_CONFIG': json.dumps(config)}).name(0)
    'worker 0 (host-a:2222)'
  """
  environment = os.environ if environment is None else environment
  if not environment.get('TF_CONFIG'):
    config = _slurm_config(environment)
    if config is None:
      return None
    environment['TF_CONFIG'] = json.dumps(config)
  jobs, (kind, index) = read_tf_config(environment)
  addresses = [*jobs.get('chief', []), *jobs.get('worker', [])]
  if jobs.get('ps') or len(addresses) < 2:
    return None
  for address in addresses:
    if not re.fullmatch(r'\S+:\d+', str(address)):
      raise errors.UserError(f'TF_CONFIG: {address!r} is not an address, which is host:port')
  return Cluster(tuple(addresses), index + (len(jobs.get('chief', [])) if kind == 'worker' else 0))


def check_mode(mode: str, environment: Mapping[str, str] | None = None) -> None:
  """Refuses to train in an evaluator of TF_CONFIG.

  Args:
    mode: of the run.
    environment: the environment variables, the process's by default.

  Raises:
    UserError: it trains there, or TF_CONFIG cannot be read.
  """
  if 'train' in mode and read_tf_config(environment)[1][0] == 'evaluator':
    raise errors.UserError(
      f'--mode={mode}: this process is the evaluator of TF_CONFIG; start it with --mode=continuous_eval'
    )


def read_tf_config(environment: Mapping[str, str] | None = None) -> tuple[dict[str, list[str]], tuple[str, int]]:
  """The parts of TF_CONFIG, as TensorFlow's resolver takes them: an index may be a text.

  An evaluator is in no cluster, and its index does not matter.

  Args:
    environment: the environment variables, the process's by default.

  Returns:
    (job name -> addresses, (type, index) of this process's task). An evaluator has no jobs. ({}, ('', 0)) if it is
    unset.

  Raises:
    UserError: it cannot be read, or this process's task is not in the cluster.
  """
  environment = os.environ if environment is None else environment
  try:
    config = json.loads(environment.get('TF_CONFIG') or '{}')
    jobs, task = config.get('cluster', {}), config.get('task', {})
    jobs, task = {name: list(addresses) for name, addresses in jobs.items()}, dict(task)
  except (json.JSONDecodeError, AttributeError, TypeError, ValueError):
    raise errors.UserError('TF_CONFIG: the environment variable holds no JSON object as TensorFlow has it') from None
  kind = str(task.get('type', ''))
  try:
    index = int(task['index'])
  except (KeyError, TypeError, ValueError):
    index = -1
  if kind == 'evaluator' or not any(jobs.values()):
    return {}, (kind, 0 if kind == 'evaluator' else max(0, index))
  if kind not in _JOBS or not 0 <= index < len(jobs.get(kind, [])):
    sizes = ', '.join(f'{name} {len(addresses)}' for name, addresses in jobs.items())
    raise errors.UserError(
      f'TF_CONFIG: task {json.dumps(task)} is not in the cluster ({sizes}): its type is one of {", ".join(_JOBS)} or '
      'evaluator, its index counts from 0'
    )
  return jobs, (kind, index)


# SLURM.


def _slurm_config(environment: Mapping[str, str]) -> dict[str, object] | None:
  """TF_CONFIG for a task of a SLURM job step; None if there is but one task, or no SLURM."""
  num_tasks = environment.get('SLURM_STEP_NUM_TASKS') or environment.get('SLURM_NTASKS') or '1'
  if 'SLURM_PROCID' not in environment or num_tasks == '1':
    return None
  try:
    hosts = expand_hosts(_first(environment, 'SLURM_STEP_NODELIST', 'SLURM_JOB_NODELIST', 'SLURM_NODELIST'))
    counts = _tasks_per_node(environment, len(hosts), int(num_tasks))
    rank = int(environment['SLURM_PROCID'])
    number = int(environment.get('SLURM_JOB_ID', 0)) + int(environment.get('SLURM_STEP_ID', 0))
  except (KeyError, ValueError) as error:
    raise errors.UserError(f'SLURM: the variables of this job step cannot be read: {error}') from None
  first_port = _SLURM_PORTS[number * _SLURM_PORTS_PER_JOB % len(_SLURM_PORTS)]
  places = [(node, local) for node, count in enumerate(counts) for local in range(count)]
  if len(places) != int(num_tasks) or not 0 <= rank < len(places):
    raise errors.UserError(f'SLURM: task {rank} of {num_tasks}, and the nodes have room for {len(places)} tasks')
  here = (environment.get('SLURM_NODEID', str(places[rank][0])), environment.get('SLURM_LOCALID', str(places[rank][1])))
  if here != tuple(map(str, places[rank])):
    raise errors.UserError('SLURM: tasks are not numbered node by node: start them with srun --distribution=block')
  workers = [f'{hosts[node]}:{first_port + local}' for node, local in places]
  return {'cluster': {'worker': workers}, 'task': {'type': 'worker', 'index': rank}}


def _first(environment: Mapping[str, str], *names: str) -> str:
  for name in names:
    if environment.get(name):
      return environment[name]
  raise KeyError(names[0])


def _tasks_per_node(environment: Mapping[str, str], num_nodes: int, num_tasks: int) -> list[int]:
  """How many tasks each node has, from `2(x3),1`; spread evenly if SLURM does not report it."""
  text = environment.get('SLURM_STEP_TASKS_PER_NODE') or environment.get('SLURM_TASKS_PER_NODE')
  if not text:
    return [num_tasks // num_nodes + (node < num_tasks % num_nodes) for node in range(num_nodes)]
  counts: list[int] = []
  for part in text.split(','):
    match = re.fullmatch(r'(\d+)(?:\(x(\d+)\))?', part)
    if match is None:
      raise ValueError(f'tasks per node: {text}')
    counts += [int(match.group(1))] * int(match.group(2) or 1)
  return counts


def expand_hosts(text: str) -> list[str]:
  """The hosts of a SLURM node list, in its order: `n[08-10],m1` is n08, n09, n10, m1.

  Raises:
    ValueError: it is not such a list.
  """
  if not re.fullmatch(r'([^\[\]]|\[[^\[\]]+\])+', text):
    raise ValueError(f'node list: {text!r}')
  hosts: list[str] = []
  for part in re.findall(r'(?:[^,\[\]]|\[[^\]]*\])+', text):
    expanded = ['']
    for literal, ranges in re.findall(r'([^\[\]]+)|\[([^\]]*)\]', part):
      tails = [literal] if literal else [tail for item in ranges.split(',') for tail in _expand_range(item)]
      expanded = [head + tail for head in expanded for tail in tails]
    hosts += expanded
  return hosts


def _expand_range(text: str) -> list[str]:
  first, _, last = text.partition('-')
  return [str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)]


_GO = b'go\n'
_HELLO = re.compile(rb'official_ext worker ([0-9]{1,6})\n')
_MAX_HELLO = 32
_PAUSE_SECONDS = 0.2
_REPLY_SECONDS = 5.0
_PORT_SECONDS = 60.0
_MAX_PENDING = 64  # Connections that have given no number yet: of more, the oldest is dropped.


def meet(cluster: Cluster, timeout: float) -> None:
  """Waits for all workers, on the chief's port, before TensorFlow uses it.

  TensorFlow's own wait for them cannot be interrupted and, on the chief, has no time limit.

  Args:
    cluster: the workers.
    timeout: seconds.

  Raises:
    WorkerError: not all of them came.
  """
  deadline = time.monotonic() + timeout
  if cluster.is_chief:
    _receive(cluster, deadline, timeout)
  else:
    _join(cluster, deadline, timeout)


# The chief.


def _receive(cluster: Cluster, deadline: float, timeout: float) -> None:
  others = range(1, len(cluster.addresses))
  with _listen(cluster, deadline) as server, contextlib.closing(_Guests(server, others)) as guests:
    while len(guests.workers) < len(others):
      if time.monotonic() > deadline:
        missing = ', '.join(cluster.name(index) for index in others if index not in guests.workers)
        raise errors.WorkerError(
          f'{missing} did not come within {timeout:g} s (runtime.worker_start_timeout_seconds); every worker has to be '
          f'started, with the same command (under SLURM by srun){guests.turned_away()}'
        )
      guests.look()
    for worker in guests.workers.values():
      with contextlib.suppress(OSError):  # It has gone meanwhile: TensorFlow will miss it.
        worker.sendall(_GO)
    for worker in guests.workers.values():  # They close first: the chief's port is then free at once.
      with contextlib.suppress(OSError):
        worker.settimeout(_REPLY_SECONDS)
        worker.recv(1)
    if guests.num_strangers:
      logging.warning('The workers have met%s.', guests.turned_away())


def _listen(cluster: Cluster, deadline: float) -> socket.socket:
  """Opens this worker's port; waits while another process has it, such as the worker of an earlier attempt."""
  host, port = split_address(cluster.addresses[cluster.index])
  deadline = min(deadline, time.monotonic() + _PORT_SECONDS)
  family, address = _own_address(host, cluster)
  while True:
    try:
      return socket.create_server((address, port), family=family, backlog=128)
    except OSError as error:
      if error.errno == errno.EADDRNOTAVAIL and address:  # A name for this machine that only others use.
        family, address = socket.AF_INET, ''
        continue
      if time.monotonic() > deadline:
        raise errors.WorkerError(f'{cluster.name(cluster.index)}: the port cannot be had: {error.strerror}') from None
    time.sleep(_PAUSE_SECONDS)


def _own_address(host: str, cluster: Cluster) -> tuple[socket.AddressFamily, str]:
  """The address to listen on: the one that the cluster names; '' for all addresses if the name is of no use here.

  Many machines know themselves as 127.0.1.1, which no other machine can reach.
  """
  try:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
  except OSError:
    return socket.AF_INET, ''
  family, address = found[0][0], str(found[0][4][0])
  is_alone = len({split_address(each)[0] for each in cluster.addresses}) == 1
  if ipaddress.ip_address(address.partition('%')[0]).is_loopback and not is_alone:
    return socket.AF_INET, ''
  return family, address


def split_address(address: str) -> tuple[str, int]:
  """`host:port` or `[::1]:port` as (host, port)."""
  host, _, port = address.rpartition(':')
  return host.strip('[]'), int(port)


class _Guests:
  """The connections to the chief: the workers' by number, and others that have sent no number yet.

  Attributes:
    workers: by their numbers.
    num_strangers: how many connections were closed because they gave no number of a worker.
  """

  def __init__(self, server: socket.socket, others: range):
    """Accepts no connection yet.

    Args:
      server: the chief's port.
      others: the numbers of the workers that are expected.
    """
    self.workers: dict[int, socket.socket] = {}
    self.num_strangers = 0
    self._others = others
    self._server = server
    self._heard: dict[socket.socket, bytes] = {}
    self._selector = selectors.DefaultSelector()
    server.setblocking(False)
    self._selector.register(server, selectors.EVENT_READ)

  def look(self) -> None:
    """Accepts and reads what is there; waits a moment if there is nothing."""
    for key, _ in self._selector.select(_PAUSE_SECONDS):
      guest = key.fileobj
      assert isinstance(guest, socket.socket)
      if guest is self._server:
        self._accept()
      elif guest.fileno() >= 0:  # Else it was dropped meanwhile.
        self._read(guest)

  def turned_away(self) -> str:
    """How many strangers there were, in words; '' if there were none."""
    return f'; {self.num_strangers} other connections were closed' if self.num_strangers else ''

  def close(self) -> None:
    """Closes all connections."""
    for guest in [*self._heard, *self.workers.values()]:
      guest.close()
    self._selector.close()

  def _accept(self):
    try:
      guest, _ = self._server.accept()
    except OSError:  # It has gone again, or there are too many open files for a moment.
      time.sleep(_PAUSE_SECONDS)
      return
    guest.setblocking(False)
    self._heard[guest] = b''
    self._selector.register(guest, selectors.EVENT_READ)
    if len(self._heard) > _MAX_PENDING:
      self._drop(next(iter(self._heard)))

  def _read(self, guest):
    try:
      part = guest.recv(_MAX_HELLO)
    except BlockingIOError:
      return
    except OSError:
      part = b''
    index = next((number for number, worker in self.workers.items() if worker is guest), None)
    if index is not None:  # It has gone: a worker says nothing more.
      del self.workers[index]
      self._forget(guest)
      return
    text = self._heard[guest] = self._heard[guest] + part
    match = _HELLO.fullmatch(text)
    if match and int(match[1]) in self._others:
      del self._heard[guest]
      earlier = self.workers.pop(int(match[1]), None)
      if earlier is not None:
        self._forget(earlier)
      self.workers[int(match[1])] = guest
    elif not part or b'\n' in text or len(text) >= _MAX_HELLO:
      self._drop(guest)

  def _drop(self, guest):
    del self._heard[guest]
    self.num_strangers += 1
    self._forget(guest)

  def _forget(self, guest):
    self._selector.unregister(guest)
    guest.close()


# The others.


def _join(cluster: Cluster, deadline: float, timeout: float) -> None:
  address = split_address(cluster.addresses[0])
  while time.monotonic() < deadline:
    with contextlib.suppress(OSError):  # Not there yet, or left over from an earlier attempt.
      if _ask(address, cluster.index, deadline):
        return
    time.sleep(_PAUSE_SECONDS)
  raise errors.WorkerError(
    f'{cluster.name(0)}, the chief, did not come within {timeout:g} s (runtime.worker_start_timeout_seconds), or '
    'another worker did not; every worker has to be started, with the same command (under SLURM by srun)'
  )


def _ask(address: tuple[str, int], index: int, deadline: float) -> bool:
  """Whether the chief says that all workers have come."""
  with socket.create_connection(address, timeout=_REPLY_SECONDS) as chief:
    chief.sendall(b'official_ext worker %d\n' % index)
    # Somewhat longer: the chief, whose time is up too, does not take this worker for one that went away.
    chief.settimeout(max(deadline - time.monotonic(), 0) + 1.0)
    return chief.recv(len(_GO)) == _GO
