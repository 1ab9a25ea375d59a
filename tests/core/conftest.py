"""Python code as processes of their own."""

import pathlib
import subprocess
import textwrap

import pytest


class Script:
  """A process that runs code, forked from one that has TensorFlow imported."""

  def __init__(self, server, folder: pathlib.Path, code, arguments=(), env=None):
    self._folder, self._arguments = folder, arguments
    script = folder / 'script.py'
    script.write_text(textwrap.dedent(code))
    self._process = server.start(arguments, folder / 'stdout', folder / 'stderr', env, script=script)

  def finish(self, timeout=120) -> subprocess.CompletedProcess:
    """Waits for its end: its status, stdout and stderr."""
    status = self._process.wait(timeout)
    output = ((self._folder / name).read_text() for name in ('stdout', 'stderr'))
    return subprocess.CompletedProcess(self._arguments, status, *output)

  def kill(self) -> None:
    self._process.kill()


@pytest.fixture
def start_script(train_server, tmp_path_factory):
  """start_script(code, arguments=(), env=None) -> Script. What still runs at the end is killed."""
  started = []

  def start(code, arguments=(), env=None) -> Script:
    started.append(Script(train_server(), tmp_path_factory.mktemp('script'), code, arguments, env))
    return started[-1]

  yield start
  for script in started:
    script.kill()
