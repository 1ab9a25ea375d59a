"""AutoGraph's conversions, shared by processes that are forked from one.

Every process converts about forty functions for its first steps, half of the time of a short run. A child reports to
its parent which; the parent converts them too, so that later children find them done, as they would have done them: a
conversion depends on the function's code and on the names of its module alone.
"""

import contextlib
import fcntl
import gc
import json
import os
import sys
import types
from typing import Any

from tensorflow.python.autograph.core import converter
from tensorflow.python.autograph.impl import api
from tensorflow.python.autograph.pyct import loader
from tensorflow.python.autograph.pyct import transpiler

_HIGH_DESCRIPTOR = 200  # Out of the way of those that a test looks at.
_LINE_BYTES = 512  # A pipe takes a line of PIPE_BUF bytes or fewer whole, whoever else writes.


def _options_as_json(options: converter.ConversionOptions) -> list[Any]:
  features = sorted(feature.name for feature in options.optional_features)
  return [options.recursive, options.user_requested, options.internal_convert_user_code, features]


def _options(recursive: bool, user_requested: bool, internal: bool, features: list[str]) -> converter.ConversionOptions:
  return converter.ConversionOptions(
    recursive, user_requested, internal, [converter.Feature[name] for name in features]
  )


def _nested(code: types.CodeType):
  yield code
  for constant in code.co_consts:
    if isinstance(constant, types.CodeType):
      yield from _nested(constant)


class SharedConversions:
  """Made in the parent before it forks.

  Attributes:
    reader: The pipes that are readable when a child has converted something.
  """

  def __init__(self):
    self.reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    self._writer = fcntl.fcntl(writer, fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
    os.close(writer)
    self._rest = b''
    self._reported: set[bytes] = set()
    self._pending: list[bytes] = []
    self._functions: dict[str, dict[tuple[int, str], types.FunctionType]] = {}

  def report_to_parent(self) -> None:
    """Has this process, a child, report all that it converts from now on, and leave the parent's files alone."""
    os.close(self.reader)
    convert, remove = transpiler.GenericTranspiler.transform_function, loader._remove_file
    inherited = {getattr(module, '__file__', None) for module in list(sys.modules.values())}

    def convert_and_report(transpiler_, function, context):
      converted = convert(transpiler_, function, context)
      code, options = function.__code__, context.options
      place = [code.co_filename, code.co_firstlineno, code.co_qualname]
      line = json.dumps([*place, *_options_as_json(options)]).encode() + b'\n'
      if len(line) <= _LINE_BYTES:
        with contextlib.suppress(OSError):  # Nobody reads, or the pipe is full: the next child converts it again.
          os.write(self._writer, line)
      return converted

    transpiler.GenericTranspiler.transform_function = convert_and_report
    loader._remove_file = lambda name: None if name in inherited else remove(name)

  @property
  def has_work(self) -> bool:
    return bool(self._pending)

  def read(self) -> None:
    """Takes the reports of children."""
    with contextlib.suppress(BlockingIOError):
      self._rest += os.read(self.reader, 1 << 16)
    *lines, self._rest = self._rest.split(b'\n')
    new = [line for line in dict.fromkeys(lines) if line not in self._reported]
    self._reported.update(new)
    self._pending += new

  def work(self) -> None:
    """Converts the next reported function, if this process has it too."""
    with contextlib.suppress(Exception):  # The child reports failed conversions.
      self._convert(*json.loads(self._pending.pop(0)))

  def _convert(self, path: str, line: int, name: str, *options: Any) -> None:
    if path not in self._functions:
      self._functions[path] = {
        (code.co_firstlineno, code.co_qualname): types.FunctionType(
          code, found.__globals__, closure=tuple(types.CellType(None) for _ in code.co_freevars)
        )
        for found in gc.get_objects()
        if isinstance(found, types.FunctionType) and found.__code__.co_filename == path
        for code in _nested(found.__code__)
      }
    function = self._functions[path].get((line, name))
    if function is not None:
      api._TRANSPILER.transform(function, converter.ProgramContext(_options(*options)))
