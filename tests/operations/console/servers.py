"""A console on a real socket, in a thread of the test's process."""

import http.client
import json
import socket
import threading
import time
import urllib.parse

from official_ext.operations.console import context as context_lib
from official_ext.operations.console import server


class Console:
  """A server, and a client of it that is allowed to ask.

  Attributes:
    context: of the server.
    url: where it answers.
  """

  def __init__(self, root, listener=None, **values):
    listener = listener or socket.create_server((values.get('host', '127.0.0.1'), 0))
    self.context = context_lib.make(str(root), port=listener.getsockname()[1], **values)
    self.url = f'http://127.0.0.1:{self.context.port}'
    self._server = server.Server(self.context)
    self._thread = threading.Thread(target=self._server.run, args=([listener],), daemon=True)
    self._thread.start()

  def close(self):
    """Ends the server."""
    self._server.end()
    self._thread.join(60)
    assert not self._thread.is_alive()

  def request(self, method, target, body=None, headers=None, timeout=30):
    """A request as it is given, with nothing added but Host; returns (status, headers, content)."""
    connection = http.client.HTTPConnection('127.0.0.1', self.context.port, timeout=timeout)
    try:
      connection.request(method, target, body, headers or {})
      answer = connection.getresponse()
      assert answer.headers.get_content_type() != 'text/event-stream', 'endless: read it by stream()'
      return answer.status, answer.headers, answer.read()
    finally:
      connection.close()

  def get(self, path, **query):
    """The JSON of a GET: `get('/api/runs/filter', filter=['a=1', 'b=2'])`. The status must be 200."""
    status, values = self.try_get(path, **query)
    assert status == 200, values
    return values

  def try_get(self, path, **query):
    """The status and the JSON of a GET."""
    text = urllib.parse.urlencode(query, doseq=True)
    status, _, content = self.request('GET', f'{path}?{text}' if text else path)
    return status, json.loads(content)

  def post(self, path, **body):
    """The JSON of a POST as our page sends it. The status must be 200."""
    status, values = self.try_post(path, **body)
    assert status == 200, values
    return values

  def try_post(self, path, **body):
    """The status and the JSON of a POST as our page sends it."""
    headers = {'Content-Type': 'application/json', 'Origin': self.url, 'X-Console-Token': self.context.token}
    status, _, content = self.request('POST', path, json.dumps(body), headers)
    return status, json.loads(content)

  def stream(self, topics='runs', run=(), timeout=20, buffer=None, **query):
    """Opens `GET /api/stream`; see Stream. `buffer` is how much the connection holds that is not read, in bytes."""
    return Stream(self, {'topics': topics, 'run': run, **query}, timeout, buffer)


class Stream:
  """The messages of a stream, as a browser gets them.

  Attributes:
    last_id: of the last message.
  """

  def __init__(self, console, query, timeout, buffer):
    self._connection = http.client.HTTPConnection('127.0.0.1', console.context.port, timeout=timeout)
    self._connection.sock = socket.socket()
    self._connection.sock.settimeout(timeout)
    if buffer:
      self._connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    self._connection.sock.connect(('127.0.0.1', console.context.port))
    self._connection.request('GET', f'/api/stream?{urllib.parse.urlencode(query, doseq=True)}')
    self._timeout = timeout
    self._answer = self._connection.getresponse()
    assert self._answer.status == 200, self._answer.read()
    self.last_id = ''

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()

  def close(self):
    """Goes away, as a browser does."""
    self._answer.close()
    self._connection.close()

  def next(self, *kinds):
    """The next message, (kind, values); of some kinds, if they are given. EOFError when the stream has ended."""
    found = {}
    deadline = time.monotonic() + self._timeout
    while line := self._answer.readline():
      assert time.monotonic() < deadline, f'no message of {kinds}'
      name, _, value = line.decode().rstrip('\n').partition(': ')
      if name:
        found[name] = value
        continue
      kind, values = found.get('event'), found.get('data')
      self.last_id = found.get('id', self.last_id)
      found = {}
      if kind and (kind in kinds or (not kinds and kind != 'ping')):
        return kind, json.loads(values)
    raise EOFError
