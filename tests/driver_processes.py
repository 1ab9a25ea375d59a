"""The process that gives the driver's answers, forked from one that has TensorFlow imported."""

import os
import tempfile
import types

from official_ext.operations.runs import driver as driver_lib
from tests import train_processes

_CODE = """
import os, sys
os.dup2(os.open(sys.argv[1], os.O_RDONLY), 0)
from official_ext.cli import driver_server
driver_server.main(sys.argv[2:])
"""


class ForkedDriver(driver_lib.Driver):
  """Differs in how its process is made."""

  def __init__(self, server: train_processes.Server, *arguments, **values):
    super().__init__(*arguments, **values)
    self._server = server
    self.launched = 0

  def _launch(self):
    self.launched += 1
    with tempfile.TemporaryDirectory() as folder:
      questions, answers, script = (os.path.join(folder, name) for name in ('questions', 'answers', 'script.py'))
      os.mkfifo(questions)
      os.mkfifo(answers)
      with open(script, 'w') as file:
        file.write(_CODE)
      reader = os.open(answers, os.O_RDONLY | os.O_NONBLOCK)
      flags = [f'--registry={name}' for name in self.registry]
      process = self._server.start(
        [questions, self.program, *flags], answers, '/dev/null', cwd=self.cwd, script=script, env={}
      )
      stdin = open(questions, 'wb', buffering=0)  # Waits until the process has opened it.
      os.set_blocking(reader, True)
      return types.SimpleNamespace(
        pid=process.pid,
        stdin=stdin,
        stdout=os.fdopen(reader, 'rb', buffering=0),
        poll=process.poll,
        kill=process.kill,
        wait=lambda: process.wait(60),
      )
