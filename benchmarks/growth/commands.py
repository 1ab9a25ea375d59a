"""Seconds of commands, from the shell to their end: with nothing in the cache, and again."""

from collections.abc import Sequence
import os
import subprocess
import sys
import tempfile
import time

from benchmarks.growth import curves
from benchmarks.peers import process

_COMMANDS = {
  'list': ['list'],
  'describe digits': ['describe', 'digits'],
  'describe sft --yaml': ['describe', 'sft', '--yaml'],
  'runs list (none)': ['runs', 'list', '{empty}'],
  '--help': ['--help'],
}


def seconds(arguments: Sequence[str], cache: str) -> float:
  """Of one call of official-ext.

  Args:
    arguments: of it.
    cache: the folder that it keeps things in.
  """
  environment = {**os.environ, 'XDG_CACHE_HOME': cache, 'PYTHONPATH': str(process.ROOT), 'TF_CPP_MIN_LOG_LEVEL': '3'}
  command = [sys.executable, '-m', 'official_ext.cli.main', *arguments]
  start = time.perf_counter()
  subprocess.run(command, cwd=process.ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)
  return time.perf_counter() - start


def measure_commands(quick: bool) -> curves.Panels:
  """The first call, and the fastest of those that follow."""
  first, again = [], []
  with tempfile.TemporaryDirectory(prefix='official_ext-commands-') as folder:
    empty, cache = os.path.join(folder, 'runs'), os.path.join(folder, 'cache')
    os.mkdir(empty)
    for name, words in _COMMANDS.items():
      if quick and name != '--help':
        continue
      arguments = [word.format(empty=empty) for word in words]
      first.append((name, seconds(arguments, cache)))
      again.append((name, min(seconds(arguments, cache) for _ in range(1 if quick else 5))))
  return {'seconds': {'the first time': first, 'again': again}}
