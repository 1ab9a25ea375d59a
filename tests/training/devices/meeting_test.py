"""Tests for meeting: real sockets of workers, and of strangers."""

import concurrent.futures
import contextlib
import errno
import socket
import threading
import time

import pytest

from official_ext.base import errors
from official_ext.training.devices import cluster
from tests import tiers


@pytest.fixture
def clusters(unused_ports):
  """clusters(n) -> the same cluster as each of its n workers sees it."""

  def make(count):
    addresses = tuple(f'127.0.0.1:{port}' for port in unused_ports(count))
    return [cluster.Cluster(addresses, index) for index in range(count)]

  return make


def test_workers_meet_in_any_order(clusters):
  three = clusters(3)
  with concurrent.futures.ThreadPoolExecutor() as threads:
    met = []
    for worker in (three[2], three[0], three[1]):
      met.append(threads.submit(cluster.meet, worker, 30))
      time.sleep(0.3)
    for each in met:
      each.result(30)
  with socket.create_server(('', int(three[0].addresses[0].split(':')[1]))):
    pass  # The chief's port is free again at once.


@pytest.mark.slow
def test_a_worker_that_died_while_waiting_is_waited_for_again(clusters):
  three = clusters(3)
  with concurrent.futures.ThreadPoolExecutor() as threads:
    chief = threads.submit(cluster.meet, three[0], 30)
    time.sleep(0.3)
    port = int(three[0].addresses[0].split(':')[1])
    dead = _sends(port, b'official_ext worker 1\n')
    time.sleep(0.3)
    dead.close()
    with socket.create_connection(('127.0.0.1', port)) as stranger:
      stranger.sendall(b'GET / HTTP/1.1\r\n\r\n')
    second = threads.submit(cluster.meet, three[2], 30)
    time.sleep(1)
    assert not chief.done() and not second.done()
    cluster.meet(three[1], 30)
    chief.result(30), second.result(30)


def test_who_did_not_come_is_named(clusters):
  three = clusters(3)
  with concurrent.futures.ThreadPoolExecutor() as threads:
    first = threads.submit(cluster.meet, three[0], 1.5)
    second = threads.submit(cluster.meet, three[1], 1.5)
    with pytest.raises(errors.WorkerError, match=r'^worker 2 \(127.0.0.1:\d+\) did not come within 1.5 s') as chief_s:
      first.result(30)
    assert 'worker 1' not in str(chief_s.value) and 'runtime.worker_start_timeout_seconds' in str(chief_s.value)
    with pytest.raises(errors.WorkerError, match='worker 0 .* did not come within 1.5 s'):
      second.result(30)


@contextlib.contextmanager
def chief_of(count, clusters, timeout=30, host='127.0.0.1'):
  """The clusters, the chief's port, and the future of the chief, who waits for the others already."""
  workers = clusters(count)
  with concurrent.futures.ThreadPoolExecutor() as threads:
    chief = threads.submit(cluster.meet, workers[0], timeout)
    port = int(workers[0].addresses[0].split(':')[1])
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
      with contextlib.suppress(OSError):
        socket.create_connection((host, port)).close()
        break
      time.sleep(0.02)
    yield workers, port, chief, threads


STRANGERS = {
  'says nothing': lambda port: socket.create_connection(('127.0.0.1', port)),
  'garbage': lambda port: _sends(port, b'\xff' * 5000),
  'a request': lambda port: _sends(port, b'GET / HTTP/1.1\r\n\r\n'),
  'no number': lambda port: _sends(port, b'official_ext worker one\n'),
  'a number that no worker has': lambda port: _sends(port, b'official_ext worker 2\n'),
  'half of a line': lambda port: _sends(port, b'official_ext worker 1'),
}


def _sends(port, data):
  stranger = socket.create_connection(('127.0.0.1', port))
  stranger.sendall(data)
  return stranger


@tiers.parametrize('name', STRANGERS, fast=['garbage', 'half of a line'])
def test_a_stranger_is_turned_away_and_the_workers_meet(name, clusters):
  with chief_of(2, clusters) as (workers, port, chief, _):
    strangers = [STRANGERS[name](port) for _ in range(8)]
    time.sleep(0.5)
    assert not chief.done()
    began = time.monotonic()
    cluster.meet(workers[1], 30)
    chief.result(30)
    assert time.monotonic() - began < 4
    for stranger in strangers:
      stranger.close()


def test_a_flood_of_strangers_does_not_keep_the_workers_apart(clusters):
  stop = threading.Event()

  def flood(port):
    kept = []
    while not stop.is_set():
      with contextlib.suppress(OSError):
        kept.append(socket.create_connection(('127.0.0.1', port), timeout=1))
      if len(kept) > 200:
        kept.pop(0).close()

  with chief_of(3, clusters) as (workers, port, chief, threads):
    floods = [threads.submit(flood, port) for _ in range(2)]
    time.sleep(0.5)
    met = [threads.submit(cluster.meet, worker, 30) for worker in workers[1:]]
    try:
      chief.result(30), [each.result(30) for each in met]
    finally:
      stop.set()
    [each.result(30) for each in floods]


def test_the_chief_listens_on_its_address_alone(unused_ports):
  # Before: on all, for any cluster.
  addresses = tuple(f'127.0.0.7:{port}' for port in unused_ports(2))

  def clusters(count):
    return [cluster.Cluster(addresses, index) for index in range(count)]

  with chief_of(2, clusters, host='127.0.0.7') as (both, port, chief, _):
    for other in ('127.0.0.1', socket.gethostbyname(socket.gethostname())):
      with pytest.raises(OSError) as refused:
        socket.create_connection((other, port), timeout=5)
      assert refused.value.errno == errno.ECONNREFUSED
    cluster.meet(both[1], 30)
    chief.result(30)


@pytest.mark.parametrize(
  ('addresses', 'expected'),
  [
    (['127.0.0.1:1', '127.0.0.1:2'], '127.0.0.1'),
    (['[::1]:1', '[::1]:2'], '::1'),
    (['localhost:1', 'elsewhere:2'], ''),  # A machine that calls itself so must still be reached by the other.
    (['no.such.host.invalid:1', 'elsewhere:2'], ''),
  ],
)
def test_where_the_chief_listens(addresses, expected):
  here = cluster.Cluster(tuple(addresses), 0)
  host, port = cluster.split_address(addresses[0])
  assert port == 1 and cluster._own_address(host, here)[1] == expected
