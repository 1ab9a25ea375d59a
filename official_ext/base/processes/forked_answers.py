"""Answers in forks of a process: each leaves no state, and has limits of time and memory."""

from collections.abc import Callable, Iterable, Mapping
import contextlib
import gc
import json
import os
import resource
import select
import signal
import time
from typing import NoReturn

from official_ext.base import json_types
from official_ext.base.processes import stopping

_MORE_BYTES = 8 << 30  # Of address space, for an answer.

Answers = Callable[[], Iterable[Mapping[str, object]]]


def last(answers: Answers, seconds: float) -> json_types.JsonObject:
  """Calls `answers` in a fork, and returns the last of its JSON objects that came in time.

  The fork ends with this process. It reads and prints nothing.

  Args:
    answers: yields objects, each more complete than the one before. It handles its exceptions.
    seconds: the limit of time.

  Returns:
    The answer; `failure`, with the cause, if there is none.
  """
  reader, writer = os.pipe()
  pid = os.fork()
  if not pid:
    os.close(reader)
    _answer(answers, writer)
  os.close(writer)
  try:
    content = _read(reader, time.monotonic() + seconds)
  finally:
    os.close(reader)
    with contextlib.suppress(ProcessLookupError):
      os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
  lines = content.split(b'\n')[:-1]
  if lines:
    return json.loads(lines[-1])
  reason = f'no answer in {seconds:g} s' if os.WTERMSIG(status) == signal.SIGKILL else f'signal {os.WTERMSIG(status)}'
  return {'failure': f'the process that asks the driver has failed: {reason}'}


def _read(reader: int, deadline: float) -> bytes:
  """The bytes received until the other end is closed, or the time is over."""
  parts = []
  while select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
    part = os.read(reader, 1 << 16)
    if not part:
      break
    parts.append(part)
  return b''.join(parts)


def _answer(answers: Answers, writer: int) -> NoReturn:
  """Answers, in the child."""
  try:
    stopping.end_with_parent(signal.SIGKILL)
    gc.disable()  # It would write to every page that is shared.
    size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + _MORE_BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
      os.dup2(null, number)
    for found in answers():
      content = memoryview(json.dumps(found).encode() + b'\n')
      while content:
        content = content[os.write(writer, content) :]
  finally:
    os._exit(0)
