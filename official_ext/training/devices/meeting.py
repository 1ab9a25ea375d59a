"""Lets the workers of a run meet before TensorFlow connects them, and keeps strangers out.

Each worker connects to the chief. Both prove, by the challenges of Python's multiprocessing.connection (HMAC), that
they know the run's secret, which is in the environment variable OFFICIAL_EXT_SECRET: `official-ext launch` makes one
for its workers; whoever starts workers on several machines gives all of them the same. The chief reads nothing but a
worker's number from a connection, and a stranger delays nobody: docs/concepts/security.md.
"""

import collections
from collections.abc import Iterator
import contextlib
import errno
import ipaddress
import multiprocessing
from multiprocessing import connection as connections
import os
import queue
import socket
import threading
import time

from absl import logging

from official_ext.base import errors
from official_ext.base.processes import launcher
from official_ext.training.devices import cluster as cluster_lib

_GO = b'go'
_PAUSE_SECONDS = 0.2
_REPLY_SECONDS = 5.0
_PORT_SECONDS = 60.0
_MAX_PENDING = 64  # Connections that have not proved anything yet: of more, the oldest is dropped.
_MAX_MESSAGE = 32
# The errors of a connection to a stranger; the challenges are asserted in Python 3.11.
_FAILURES = (OSError, EOFError, ValueError, AssertionError, multiprocessing.AuthenticationError)


def meet(cluster: cluster_lib.Cluster, timeout: float) -> None:
  """Waits for all workers, on the chief's port, before TensorFlow uses it.

  TensorFlow's own wait for them cannot be interrupted and, on the chief, has no time limit.

  Args:
    cluster: the workers.
    timeout: seconds.

  Raises:
    WorkerError: not all of them came.
  """
  deadline = time.monotonic() + timeout
  secret = os.environ.get(launcher.SECRET, '').encode()
  if cluster.is_chief:
    if not secret:
      logging.warning(
        'The environment variable %s is not set: whoever reaches %s can take the place of a worker while '
        'the run starts. See docs/concepts/security.md.',
        launcher.SECRET,
        cluster.addresses[0],
      )
    _receive(cluster, secret, deadline, timeout)
  else:
    _join(cluster, secret, deadline, timeout)


# The chief.


def _receive(cluster: cluster_lib.Cluster, secret: bytes, deadline: float, timeout: float) -> None:
  here: dict[int, connections.Connection] = {}
  others = range(1, len(cluster.addresses))
  with _listen(cluster, deadline) as server, contextlib.closing(_Door(secret, others)) as door:
    server.settimeout(_PAUSE_SECONDS)
    try:
      while len(here) < len(others):
        if time.monotonic() > deadline:
          missing = ', '.join(cluster.name(index) for index in others if index not in here)
          raise errors.WorkerError(
            f'{missing} did not come within {timeout:g} s (runtime.worker_start_timeout_seconds); every worker has '
            f'to be started, with the same command (under SLURM by srun){door.turned_away()}'
          )
        door.open_to(server)
        for index, connection in door.arrivals():
          if index in here:
            here[index].close()
          here[index] = connection
        for index in [index for index, connection in here.items() if connection.poll(0)]:  # It has gone.
          here.pop(index).close()
      for connection in here.values():
        connection.send_bytes(_GO)
      for connection in here.values():  # They close first: the chief's port is then free at once.
        connection.poll(_REPLY_SECONDS)
    except OSError as error:
      logging.warning('A worker went away while all were meeting: %s', error)
    finally:
      for connection in here.values():
        connection.close()
    if door.num_strangers:
      logging.warning('The workers have met%s.', door.turned_away())


def _listen(cluster: cluster_lib.Cluster, deadline: float) -> socket.socket:
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


def _own_address(host: str, cluster: cluster_lib.Cluster) -> tuple[socket.AddressFamily, str]:
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


class _Door:
  """Answers all connections, each in a separate thread, and keeps those that prove to be workers'."""

  def __init__(self, secret: bytes, others: range):
    """Answers nobody yet.

    Args:
      secret: shared by all workers.
      others: the numbers that workers may give.
    """
    self._secret = secret
    self._others = others
    self._arrivals: queue.SimpleQueue[tuple[int, connections.Connection]] = queue.SimpleQueue()
    self._pending: collections.deque[socket.socket] = collections.deque()
    self._lock = threading.Lock()
    self.num_strangers = 0

  def open_to(self, server: socket.socket) -> None:
    """Accepts the next connection; returns after a moment if there is none."""
    try:
      guest, _ = server.accept()
    except TimeoutError:
      return
    except OSError:  # It has gone again, or there are too many open files for a moment.
      time.sleep(_PAUSE_SECONDS)
      return
    guest.setblocking(True)
    with self._lock:
      self._pending.append(guest)
      dropped = self._pending.popleft() if len(self._pending) > _MAX_PENDING else None
    if dropped is not None:
      _shut(dropped)
    threading.Thread(target=self._greet, args=(guest,), daemon=True).start()

  def arrivals(self) -> Iterator[tuple[int, connections.Connection]]:
    """Yields the workers who have come since the last call: number, connection."""
    while not self._arrivals.empty():
      yield self._arrivals.get()

  def turned_away(self) -> str:
    """How many strangers there were, in words; '' if there were none."""
    number = self.num_strangers
    return (
      f'; {number} connections came from elsewhere, or with another {launcher.SECRET}, and were refused'
      if number
      else ''
    )

  def close(self) -> None:
    """Drops all connections that have not proved to be workers', and those that came too late."""
    with self._lock:
      pending = list(self._pending)
    for guest in pending:
      _shut(guest)
    for _, connection in self.arrivals():
      connection.close()

  def _greet(self, guest: socket.socket) -> None:
    connection: connections.Connection | None = None
    try:
      connection = connections.Connection(os.dup(guest.fileno()))  # Fails if too many files are open.
      with _time_limit(guest):
        connections.deliver_challenge(connection, self._secret)
        connections.answer_challenge(connection, self._secret)
        index = int(connection.recv_bytes(_MAX_MESSAGE))
        if index not in self._others:
          raise ValueError(index)
      self._arrivals.put((index, connection))
    except _FAILURES:
      if connection is not None:
        connection.close()
      self.num_strangers += 1
    finally:
      with self._lock, contextlib.suppress(ValueError):
        self._pending.remove(guest)
      guest.close()


@contextlib.contextmanager
def _time_limit(guest: socket.socket) -> Iterator[None]:
  """Ends all reading from and writing to a socket when its time is up, however slowly the other end proceeds."""
  timer = threading.Timer(_REPLY_SECONDS, _shut, (guest,))
  timer.daemon = True
  timer.start()
  try:
    yield
  finally:
    timer.cancel()


def _shut(guest: socket.socket) -> None:
  with contextlib.suppress(OSError):
    guest.shutdown(socket.SHUT_RDWR)


# The others.


def _join(cluster: cluster_lib.Cluster, secret: bytes, deadline: float, timeout: float) -> None:
  address = split_address(cluster.addresses[0])
  reason = ''
  while time.monotonic() < deadline:
    try:
      if _ask(address, cluster.index, secret, deadline):
        return
    except multiprocessing.AuthenticationError:
      reason = f'; whoever answers there has another {launcher.SECRET}'
    except _FAILURES:
      pass  # Not there yet, or left over from an earlier attempt.
    time.sleep(_PAUSE_SECONDS)
  raise errors.WorkerError(
    f'{cluster.name(0)}, the chief, did not come within {timeout:g} s (runtime.worker_start_timeout_seconds), or '
    f'another worker did not; every worker has to be started, with the same command (under SLURM by srun){reason}'
  )


def _ask(address: tuple[str, int], index: int, secret: bytes, deadline: float) -> bool:
  """Whether the chief says that all workers have come."""
  with socket.create_connection(address, timeout=_REPLY_SECONDS) as chief:
    chief.setblocking(True)
    connection: connections.Connection | None = None
    try:
      connection = connections.Connection(os.dup(chief.fileno()))
      with _time_limit(chief):
        connections.answer_challenge(connection, secret)
        connections.deliver_challenge(connection, secret)
        connection.send_bytes(str(index).encode())
      while time.monotonic() < deadline:
        if connection.poll(1.0):
          return connection.recv_bytes(_MAX_MESSAGE) == _GO
      return False
    finally:
      if connection is not None:
        connection.close()
