"""Messages about jobs, sent to an HTTP receiver on this machine by real dispatchers."""

import http.server
import json
import socket
import subprocess
import sys
import threading
import time

import pytest

from official_ext.cli import main
from tests.operations.queue import queues


@pytest.fixture
def receiver():
  """A server; `.messages` are the bodies that it was sent, `.status` its answer, `.url` its address for apprise."""

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
      server.messages.append(json.loads(self.rfile.read(int(self.headers['Content-Length']))))
      time.sleep(server.delay)
      self.send_response(server.status)
      self.end_headers()

    def log_message(self, *args):
      pass

  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
  server.daemon_threads, server.messages, server.status, server.delay = True, [], 200, 0.0
  server.url = f'json://user:secret@127.0.0.1:{server.server_port}/hook'
  threading.Thread(target=server.serve_forever, daemon=True).start()
  yield server
  server.shutdown()
  server.server_close()


@pytest.fixture
def trial(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  made = queues.Trial(tmp_path / 'runs', tmp_path)
  yield made
  made.close()


def test_the_end_of_each_attempt_is_sent_once(trial, receiver):
  trial.add(model_dir=str(trial.folder / 'a'))
  trial.add('exit 2')
  trial.add('[ $starts -gt 1 ] || kill -9 $$')
  output = trial.finish(urls=(receiver.url,))
  host = socket.gethostname()
  assert [(each['title'], each['type']) for each in receiver.messages] == [
    (f'job 1 on {host}: finished', 'success'),
    (f'job 2 on {host}: failed', 'failure'),
    (f'job 3 on {host}: killed by SIGKILL; will be retried', 'info'),
    (f'job 3 on {host}: finished', 'success'),
  ]
  assert receiver.messages[0]['message'].splitlines()[-1] == str(trial.folder / 'a')
  assert receiver.messages[1]['message'].startswith('ended with status 2 (a mistake in the command')
  # The ends before a dispatcher began are not repeated.
  trial.finish(urls=(receiver.url,))
  assert len(receiver.messages) == 4
  written = [path for path in trial.folder.rglob('*') if path.is_file()]
  assert 'secret' not in output and not any(b'user:secret' in path.read_bytes() for path in written)


@pytest.mark.slow
def test_a_receiver_that_refuses_is_a_line_and_a_slow_one_delays_no_job(trial, receiver):
  receiver.status, receiver.delay = 500, 2.0
  for _ in range(3):
    trial.add()
  process = trial.dispatch(urls=(receiver.url,))
  queues.until(lambda: set(trial.statuses().values()) == {'finished'})
  assert len(receiver.messages) <= 1  # All jobs are over while the first message is under way.
  assert process.wait() == 0
  lines = [line for line in process.output().splitlines() if 'message' in line]
  host = socket.gethostname()
  assert lines == [f"queue: the message 'job {n} on {host}: finished' was not taken by NotifyJSON" for n in (1, 2, 3)]


def test_the_receivers_are_named_by_the_environment(trial, receiver, monkeypatch, capfd):
  command = ['queue', 'run', str(trial.folder), '--until_empty']
  trial.add()
  monkeypatch.setenv('OFFICIAL_EXT_NOTIFICATIONS', 'nothing://user:secret@host')
  assert main.main(command) == 2
  assert capfd.readouterr().err == (
    'error: queue run: env:OFFICIAL_EXT_NOTIFICATIONS: apprise does not know the URL in it\n'
  )
  monkeypatch.setenv('OFFICIAL_EXT_NOTIFICATIONS', receiver.url)
  assert main.main(command) == 0
  assert [each['title'].rpartition(': ')[2] for each in receiver.messages] == ['finished']


def test_nothing_of_the_queue_imports_tensorflow():
  code = 'import official_ext.cli.queue, sys; sys.exit("tensorflow" in sys.modules)'
  assert subprocess.run([sys.executable, '-c', code], check=False).returncode == 0
