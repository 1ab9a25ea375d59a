"""TensorBoard for a run: a real one."""

import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

from official_ext.base import processes
from official_ext.cli import main as cli
from official_ext.operations.runs import tensorboard_server
from tests.operations.runs import folders


@pytest.mark.slow
def test_one_is_started_found_again_and_ended(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  run = folders.make(tmp_path, 'run')
  assert tensorboard_server.find(run) is None
  assert cli.main(['runs', 'tensorboard', str(tmp_path), 'run']) == 0
  url = capsys.readouterr().out.strip()
  server = tensorboard_server.start(run)  # The same.
  try:
    assert server.url == url
    assert urllib.parse.urlsplit(url).hostname == '127.0.0.1'
    with urllib.request.urlopen(url) as answer:
      assert b'TensorBoard' in answer.read()
    # Who does not know the whole address, such as a page that guesses the port, gets nothing.
    try:
      urllib.request.urlopen(urllib.parse.urljoin(url, '/'))
      raise AssertionError('it answers')
    except urllib.error.HTTPError as error:
      assert error.code == 404
    assert (tmp_path / 'cache/official_ext/tensorboard').stat().st_mode & 0o777 == 0o700
  finally:
    assert cli.main(['runs', 'tensorboard', str(tmp_path), 'run', '--stop']) == 0
  deadline = time.monotonic() + 60
  while processes.is_alive(server.process):
    assert time.monotonic() < deadline
    time.sleep(0.05)
  assert tensorboard_server.find(run) is None
  assert not tensorboard_server.stop(run)
