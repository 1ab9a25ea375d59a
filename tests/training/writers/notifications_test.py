"""Messages about runs, sent to an HTTP receiver on this machine."""

import http.server
import json
import socket
import sys
import threading
import time

import pytest

from official_ext.base import errors
from official_ext.training.writers import notifications
from tests.training.loop import small_run


@pytest.fixture
def receiver():
  """A server; `.messages` are the bodies that it was sent, `.url` is its address for apprise."""

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
      body = self.rfile.read(int(self.headers['Content-Length']))
      time.sleep(server.delay)
      server.messages.append(json.loads(body))
      self.send_response(200)
      self.end_headers()

    def log_message(self, *args):
      pass

  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
  server.daemon_threads, server.messages, server.delay = True, [], 0.0
  server.url = f'json://user:secret@127.0.0.1:{server.server_port}/hook'
  thread = threading.Thread(target=server.serve_forever)
  thread.start()
  yield server
  server.shutdown()
  thread.join()
  server.server_close()


@pytest.fixture
def trainer_config(receiver, monkeypatch):
  monkeypatch.setenv('RECEIVER', receiver.url)
  return {'train_steps': 2, 'notifications': {'urls': ('env:RECEIVER',)}}


class FailingTask(small_run.SmallTask):
  def forward(self, inputs, model, training):
    raise ArithmeticError('the flux capacitor is empty')


def test_start_and_finish(receiver, trainer_config, tmp_path, capfd):
  small_run.run(tmp_path / 'my_run', 'train', trainer=trainer_config)
  assert [(message['title'], message['type']) for message in receiver.messages] == [
    (f'my_run on {socket.gethostname()}: start at step 0', 'info'),
    (f'my_run on {socket.gethostname()}: finished at step 2', 'success'),
  ]
  (line,) = small_run.events(tmp_path / 'my_run', 'train')
  assert f'training_loss {line["training_loss"]:.4g}' in receiver.messages[1]['message'].splitlines()
  # The secret is nowhere.
  written = b''.join(path.read_bytes() for path in (tmp_path / 'my_run').rglob('*') if path.is_file())
  assert b'training_loss' in written
  assert b'secret' not in written and 'secret' not in ''.join(capfd.readouterr())


def test_failure(receiver, trainer_config, tmp_path):
  with pytest.raises(Exception, match='the flux capacitor'):  # AutoGraph's own, with the ArithmeticError in it.
    small_run.run(tmp_path, 'train', FailingTask, trainer=trainer_config)
  assert [message['type'] for message in receiver.messages] == ['info', 'failure']
  assert 'the flux capacitor is empty' in receiver.messages[1]['message']


def _send(url, events, timeout_seconds=10.0):
  """Seconds that `write` and `close` take, for a message for each of `events`."""
  writer = notifications.NotificationWriter([url], ('start', 'finished'), 'my_run', timeout_seconds)
  times = [time.monotonic()]
  for event in events:
    writer.write(event, 1, {})
  times.append(time.monotonic())
  writer.close()
  return times[1] - times[0], time.monotonic() - times[1]


def test_a_receiver_that_is_slow(receiver, caplog):
  receiver.delay = 3.0
  writing, closing = _send(receiver.url, ['start', 'train', 'finished'], timeout_seconds=0.3)
  assert writing < 0.2 and 0.25 < closing < 2.0
  assert [record.getMessage() for record in caplog.records] == [
    '_Sender did not finish within 0.3 s: some events are lost.'
  ]


def test_a_receiver_that_is_down(unused_ports, caplog, capfd):
  (port,) = unused_ports(1)
  _send(f'json://user:secret@127.0.0.1:{port}', ['start', 'finished'])
  assert [record.getMessage() for record in caplog.records] == [
    "_Sender failed to write; training continues: RuntimeError: the message 'start' was not taken by NotifyJSON"
  ]
  assert 'secret' not in caplog.text + ''.join(capfd.readouterr())


def _check(monkeypatch, *urls, **fields):
  monkeypatch.setenv('GOOD', 'json://localhost')
  monkeypatch.setenv('BAD', 'json://localhost no-such-thing://token')
  config = notifications.NotificationsConfig(urls=urls, **fields)
  config.check_values('trainer.notifications')
  config.check_run('trainer.notifications', None, 'train')


def test_mistakes(monkeypatch):
  _check(monkeypatch, 'env:GOOD')
  for urls, message in [
    (['json://token@host'], 'expected env:NAME, the name of an environment variable'),
    (['env:GOOD', 'env:NOT_SET'], 'env:NOT_SET: the environment variable NOT_SET is not set'),
    (['env:BAD'], 'env:BAD: apprise does not know the URL in it'),
  ]:
    with pytest.raises(errors.UserError, match=f'^trainer.notifications.urls: {message}') as caught:
      _check(monkeypatch, *urls)
    assert 'token' not in str(caught.value)
  with pytest.raises(errors.UserError, match='^trainer.notifications.events: finish: there is no such event'):
    _check(monkeypatch, events=('finish',))


def test_without_the_extra(monkeypatch):
  monkeypatch.setitem(sys.modules, 'apprise', None)
  _check(monkeypatch)
  with pytest.raises(errors.UserError) as caught:
    _check(monkeypatch, 'env:GOOD')
  assert str(caught.value) == (
    "trainer.notifications: needs the package apprise: pip install 'official-ext[notifications]'"
  )
