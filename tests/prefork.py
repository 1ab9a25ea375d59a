"""Runs scripts such as train.py, each run a separate process, without importing TensorFlow each time.

This process imports the modules of train.py, and starts no device. For every line on stdin, a JSON object {"script",
"arguments", "environment", "cwd", "stdout", "stderr"}, it forks; the child becomes `python SCRIPT ARGUMENTS`, its
output in files (or FIFOs) of these names; `stderr` null: where stdout goes. The answers on stdout are `{"pid": ...}` at
once, and when a child has ended `{"pid": ..., "status": ...}`: its exit status, or the signal with a minus.
"""

import official_ext  # noqa: F401  Before tensorflow.

# isort: split
import json
import os
import pathlib
import runpy
import select
import signal
import sys

from official.common import registry_imports as last  # noqa: F401
import tensorflow as tf  # noqa: F401

from official_ext.training.loop import train_lib  # noqa: F401
import registry_imports  # noqa: F401
from tests import shared_conversions

ROOT = pathlib.Path(__file__).resolve().parents[1]
_POLL_SECONDS = 0.01


def _become_script(request) -> None:
  os.setsid()
  signal.signal(signal.SIGHUP, signal.SIG_DFL)  # The tests may run under nohup.
  os.close(0)
  os.open(os.devnull, os.O_RDONLY)
  for number, name in ((1, 'stdout'), (2, 'stderr')):
    path = request[name]
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if path else 1
    os.dup2(output, number)
  os.environ.clear()
  os.environ.update(request['environment'])
  os.chdir(request['cwd'])
  sys.path[:1] = [str(ROOT), *filter(None, os.environ.get('PYTHONPATH', '').split(os.pathsep))]
  sys.argv = [request['script'], *request['arguments']]
  try:
    runpy.run_path(sys.argv[0], run_name='__main__')
  finally:
    sys.stdout.flush()
    sys.stderr.flush()


def _ended(children: set[int], answers) -> None:
  for pid in list(children):
    ended, status = os.waitpid(pid, os.WNOHANG)
    if ended:
      children.remove(pid)
      print(json.dumps({'pid': pid, 'status': os.waitstatus_to_exitcode(status)}), file=answers)


def main() -> None:
  """Serves until stdin ends."""
  answers = os.fdopen(os.dup(1), 'w', buffering=1)
  os.dup2(2, 1)  # Printed output must not be taken for an answer.
  children: set[int] = set()
  conversions = shared_conversions.SharedConversions()
  while True:
    _ended(children, answers)
    timeout = 0 if conversions.has_work else _POLL_SECONDS if children else None
    readable = select.select([0, conversions.reader], [], [], timeout)[0]
    if conversions.reader in readable:
      conversions.read()
    if 0 not in readable:
      if conversions.has_work:
        conversions.work()
      continue
    line = sys.stdin.readline()  # One request at a time: the client waits for its answer.
    if not line:
      return
    pid = os.fork()
    if not pid:
      os.close(answers.fileno())
      conversions.report_to_parent()
      _become_script(json.loads(line))
      os._exit(0)
    children.add(pid)
    print(json.dumps({'pid': pid}), file=answers)


if __name__ == '__main__':
  main()
