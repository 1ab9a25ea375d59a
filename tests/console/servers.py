"""A console on a real socket, in a thread of the test's process."""

import http.client
import json
import socket
import threading
import urllib.parse

from official_ext.console import context as context_lib
from official_ext.console import server


class Console:
  """A server, and a client of it that is allowed to ask.

  Attributes:
    context: of the server.
    url: where it answers.
  """

  def __init__(self, root, **values):
    listener = socket.create_server((values.get('host', '127.0.0.1'), 0))
    self.context = context_lib.make(str(root), port=listener.getsockname()[1], **values)
    self.url = f'http://127.0.0.1:{self.context.port}'
    self._server = server.Server(self.context)
    self._thread = threading.Thread(target=self._server.run, args=([listener],), daemon=True)
    self._thread.start()

  def close(self):
    """Ends the server."""
    self._server.end()
    self._thread.join(10)
    assert not self._thread.is_alive()

  def request(self, method, target, body=None, headers=None, timeout=30):
    """A request as it is given, with nothing added but Host; returns (status, headers, content)."""
    connection = http.client.HTTPConnection('127.0.0.1', self.context.port, timeout=timeout)
    try:
      connection.request(method, target, body, headers or {})
      answer = connection.getresponse()
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
