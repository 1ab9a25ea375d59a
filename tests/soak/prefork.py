"""Runs train.py again and again, each run a process of its own, without importing TensorFlow each time.

This process imports what train.py imports, and starts no device. For every line on stdin, a JSON object {"arguments",
"environment", "log"}, it forks; the child becomes `python train.py ARGUMENTS`, its output in the file `log`. The
answers on stdout are `{"pid": ...}` and, when the child has ended, `{"status": ...}`: the exit status, or the signal
with a minus.
"""

import official_ext  # noqa: F401  Before tensorflow.

import json
import os
import pathlib
import runpy
import sys

import tensorflow as tf  # noqa: F401

from official_ext.core import train_lib  # noqa: F401
import registry_imports  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _become_train(request) -> None:
  os.setsid()
  log = os.open(request['log'], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
  os.dup2(log, 1)
  os.dup2(log, 2)
  os.environ.update(request['environment'])
  os.chdir(ROOT)
  sys.argv = ['train.py', *request['arguments']]
  runpy.run_path('train.py', run_name='__main__')


def main() -> None:
  """Serves until stdin ends."""
  answers = os.fdopen(os.dup(1), 'w', buffering=1)
  os.dup2(2, 1)  # Whatever prints must not be taken for an answer.
  print(json.dumps({'ready': os.getpid()}), file=answers)
  for line in sys.stdin:
    pid = os.fork()
    if not pid:
      _become_train(json.loads(line))
      os._exit(0)
    print(json.dumps({'pid': pid}), file=answers)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(json.dumps({'status': status}), file=answers)


if __name__ == '__main__':
  main()
