"""Connections that send no whole request: they are closed in time, and keep nobody out."""

import concurrent.futures
import http.client
import resource
import socket
import time

import pytest

from official_ext.operations.console import security
from official_ext.operations.console import server
from tests.operations.console import servers
from tests.operations.runs import folders

_PASSWORD = 'correct-horse-battery-staple'
_SECONDS = 0.4


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  root = tmp_path_factory.mktemp('connections') / 'runs'
  folders.make(root, 'one', [], identity=folders.ended_process(), status='finished')
  return root


@pytest.fixture(scope='module')
def console(root, start_console):
  return start_console(root)


@pytest.fixture
def impatient(monkeypatch):
  monkeypatch.setattr(server, 'REQUEST_SECONDS', _SECONDS)


@pytest.fixture
def connect(console):
  """`connect(bytes)` opens a connection and sends something; all are closed at the end."""
  opened = []

  def make(content=b''):
    opened.append(socket.create_connection(('127.0.0.1', console.context.port), timeout=10))
    opened[-1].sendall(content)
    return opened[-1]

  yield make
  for each in opened:
    each.close()


def _head(console, length):
  return (
    f'POST /api/runs/tag HTTP/1.1\r\nHost: 127.0.0.1:{console.context.port}\r\nContent-Type: application/json\r\n'
    f'Origin: {console.url}\r\nX-Console-Token: {console.context.token}\r\nContent-Length: {length}\r\n\r\n'
  ).encode()


def test_a_thousand_half_open_connections_keep_nobody_out(console, connect):
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
  try:
    for number in range(1000):
      connect(b'GET /api/runs HTTP/1.1\r\nHo' if number % 2 else b'')
    begun = time.monotonic()
    assert [run['name'] for run in console.get('/api/runs')['runs']] == ['one']
    assert time.monotonic() - begun < server.REQUEST_SECONDS / 2  # Not by their deadline.
  finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_that_come_at_once_keep_nobody_out(root):
  """They wait for a server that is busy, and are accepted in one turn of its loop."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
  listener = socket.create_server(('127.0.0.1', 0), backlog=2000)
  opened = [socket.create_connection(listener.getsockname(), timeout=10) for _ in range(1200)]
  console = servers.Console(root, listener=listener)
  try:
    assert [run['name'] for run in console.get('/api/runs')['runs']] == ['one']
  finally:
    for each in opened:
      each.close()
    console.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize('part', ['nothing', 'head', 'body'])
def test_a_request_that_does_not_end_is_closed_in_time(console, connect, impatient, part):
  content = {'nothing': b'', 'head': b'GET /api/runs HTTP/1.1\r\nHost: ', 'body': _head(console, 100) + b'{"runs"'}
  begun = time.monotonic()
  opened = connect(content[part])
  received = b''.join(iter(lambda: opened.recv(4096), b''))
  assert received.startswith(b'HTTP/1.1 408 ') and received.endswith(b'\r\n\r\n')
  assert _SECONDS * 0.9 < time.monotonic() - begun < _SECONDS + 5


@pytest.mark.parametrize('content', [b'GET /api/runs HTTP/1.1\r\nX: ', 'a body'], ids=['head', 'body'])
def test_a_byte_now_and_then_does_not_move_the_deadline(console, connect, impatient, content):
  opened = connect(_head(console, 10_000) if isinstance(content, str) else content)
  begun = time.monotonic()
  with pytest.raises(OSError):
    while time.monotonic() - begun < 10:
      opened.sendall(b'a')
      time.sleep(_SECONDS / 8)
  assert time.monotonic() - begun < 5


def test_a_large_body_on_a_slow_line_arrives(console, connect, impatient):
  """Each part is in time, and all of it takes longer."""
  body = b'{"runs": ["one"], "note": "%s"}' % (b'a' * 6 * server.PART_BYTES)
  opened, begun = connect(_head(console, len(body))), time.monotonic()
  for start in range(0, len(body), server.PART_BYTES):
    opened.sendall(body[start : start + server.PART_BYTES])
    time.sleep(_SECONDS / 3)
  assert time.monotonic() - begun > _SECONDS
  assert opened.recv(4096).startswith((b'HTTP/1.1 200 ', b'HTTP/1.1 400 '))  # It was judged as a whole.


@pytest.mark.slow
def test_a_stream_outlives_the_deadline(console, impatient):
  with console.stream(topics='runs') as stream:
    assert stream.next('runs')[1]['all'][0]['name'] == 'one'
    time.sleep(2 * _SECONDS)
    assert stream.next('ping') == ('ping', {})


def test_a_connection_serves_several_requests(console, impatient):
  connection = http.client.HTTPConnection('127.0.0.1', console.context.port, timeout=10)
  connection.connect()
  first = connection.sock
  for _ in range(4):
    connection.request('GET', '/api/about')
    answer = connection.getresponse()
    assert answer.status == 200 and answer.read() and connection.sock is first
    time.sleep(_SECONDS / 2)
  connection.close()


# Wrong tokens.


@pytest.fixture
def guarded(root, start_console):
  return start_console(root, host='0.0.0.0', password=_PASSWORD)


def _try(console, token):
  headers = {'Authorization': f'Bearer {token}'}
  return console.request('GET', '/api/runs', headers=headers)[0]


def test_wrong_tokens_are_judged_at_a_slow_pace_and_right_ones_at_once(guarded):
  begun = time.monotonic()
  assert [_try(guarded, 'wrong') for _ in range(security.FREE_ATTEMPTS)] == [401] * security.FREE_ATTEMPTS
  assert time.monotonic() - begun < security.FREE_ATTEMPTS * security.ATTEMPT_SECONDS / 2  # Far from a wait for each.
  assert [_try(guarded, 'wrong') for _ in range(3)] == [401] * 3
  assert time.monotonic() - begun > 2 * security.ATTEMPT_SECONDS
  assert _try(guarded, _PASSWORD) == 200  # In its turn; from here on all is forgotten.
  begun = time.monotonic()
  assert [_try(guarded, _PASSWORD) for _ in range(20)] == [200] * 20
  assert time.monotonic() - begun < 20 * security.ATTEMPT_SECONDS


def test_many_attempts_at_once_are_refused(guarded, monkeypatch):
  monkeypatch.setattr(security, 'MAX_WAIT_SECONDS', 1.0)
  with concurrent.futures.ThreadPoolExecutor(20) as pool:
    found = list(pool.map(lambda _: _try(guarded, 'wrong'), range(20)))
  judged = security.FREE_ATTEMPTS + 1 + 1.0 / security.ATTEMPT_SECONDS + 1
  assert set(found) == {401, 429} and found.count(401) <= judged
