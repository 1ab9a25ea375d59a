"""An exception in one line, with the line of the user's code that it comes from; its traceback in a file.

TensorFlow and Keras wrap the exceptions of a task: AutoGraph runs copies of the user's files, a compiled step fails far
from the line that made the operation, Python on the host fails inside of TensorFlow. The user's lines are somewhere in
the traceback or in the message.
"""

from collections.abc import Iterator
import contextlib
import functools
from importlib import metadata
import inspect
import linecache
import os
import re
import shlex
import sys
import sysconfig
import tempfile
import traceback
import types
from typing import Any, NamedTuple

import tensorflow as tf

from official_ext.base import errors
from official_ext.base import safe_text
from official_ext.base.files import paths

_INSTALLED = re.compile(r'/(?:site|dist)-packages/(\w+)')  # Of any environment.
_STDLIB = os.path.realpath(sysconfig.get_path('stdlib'))
_OWN = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
_SHIPPED = os.path.join(_OWN, 'experiments') + os.sep  # Their code is a user's, who may copy it.
_DRIVER = os.path.join(os.path.dirname(_OWN), 'train.py')
_LIBRARIES = ('official', 'official_ext', 'orbit')  # Their lines help if none of the user's is known.

_FRAME = re.compile(r'^[ \t]*File "([^"]+)", line (\d+), in (\S+)[^\n]*$', re.MULTILINE)
_TYPED = re.compile(r'^[A-Za-z_][\w.]*: ')
_STAND_INS = ('UnknownError', 'StagingError')  # TensorFlow's types for errors of Python code that it called.
_PLACED = re.compile(r'\S+\.py:\d+')
_NODE = re.compile(r"'\{\{node (\S+?)\}\} = [^']*'")
_GIN = re.compile(r'\n\s*In call to configurable .*', re.DOTALL)
_WRAPPED = (
  re.compile(r'Call arguments received by layer.*', re.DOTALL),
  re.compile(r'Exception encountered when calling (?:layer )?.*? \(type \w+\)\.'),
  re.compile(r'Graph execution error:|in user code:'),
  re.compile(r'Detected at node .*?\(most recent call last\):(?:\s*<stack traces unavailable>)?', re.DOTALL),
  re.compile(r'Error in user-defined function passed to \S+ transformation with iterator: \S+: '),
  re.compile(r'\[\[.*?\]\]|\{\{(?:function_)?node .*?\}\}|\[Op:.*', re.DOTALL),
)
_MAX_LENGTH = 300


class Place(NamedTuple):
  """A line of code."""

  file: str
  line: int
  function: str

  def __str__(self) -> str:
    return at_line(self.file, self.line)


@functools.cache
def is_users(filename: str) -> bool:
  """Whether a file is the user's code: not Python's, this library's, or another installed package's."""
  if filename.startswith('<') or '__autograph_generated_file' in filename:
    return False
  path = os.path.realpath(filename)
  if path.startswith(_SHIPPED):
    return True
  installed = _INSTALLED.search(path)
  if installed:
    return installed.group(1) in _packages_with_experiments()
  return path.endswith('.py') and path != _DRIVER and not path.startswith((_STDLIB + os.sep, _OWN + os.sep))


@functools.cache
def _packages_with_experiments() -> tuple[str, ...]:
  """The installed packages that register experiments: their code is a user's."""
  points = metadata.entry_points(group='official_ext.experiments')
  return tuple(point.value.split(':')[0].split('.')[0] for point in points)


def at_line(filename: str, line: int, function: str = '') -> str:
  """A line of a file, whose path is relative to the current folder if it is below that."""
  with contextlib.suppress(OSError):  # The current folder may be gone.
    relative = os.path.relpath(filename)
    filename = filename if relative.startswith(os.pardir) else relative
  return f'{filename}:{line}' + (f' ({function})' if function else '')


def place_of(error: BaseException) -> Place | None:
  """The innermost line of the user's code that an exception comes from; None without such a line."""
  for each in _chain(error):
    places = [place for place in _frames(each) if is_users(place.file)]
    if places:
      return places[-1]
  return None


def text_of(error: BaseException) -> str:
  """The message of an exception, in one line, without the additions of gin, TensorFlow and Keras."""
  text = _WRAPPED[0].sub('', _GIN.sub('', _str(error)))
  frames = list(_FRAME.finditer(text))
  if frames:
    text = _without_code(text[frames[-1].end() :])
  text = _NODE.sub(r'\1', text)
  for pattern in _WRAPPED[1:]:
    text = pattern.sub(' ', text)
  text = ' '.join(text.split())
  return text.removeprefix(f'{type(error).__name__}:').strip() if frames else text


def _str(error: BaseException) -> str:
  """The message of an exception, even if its own code for that fails."""
  try:
    return str(error)
  except Exception as failure:  # pylint: disable=broad-except
    return f'its message cannot be read ({type(failure).__name__})'


def refusal_in(error: BaseException) -> errors.UserError | None:
  """The UserError that AutoGraph wrapped in another error while it traced a step; None without one."""
  text = text_of(error)
  is_one = type(error).__name__ in _STAND_INS and text.startswith('UserError: ')
  return errors.UserError(text.removeprefix('UserError: ')) if is_one else None


def message_of(error: BaseException) -> str:
  """The message of an exception, as `Type: message` in one line of some hundred characters."""
  text = text_of(error).rstrip('.')
  if len(text) > _MAX_LENGTH:
    text = f'{text[:_MAX_LENGTH]} ...'
  if type(error).__name__ in _STAND_INS and _TYPED.match(text):
    return text
  return f'{type(error).__name__}: {text}' if text else type(error).__name__


def describe(error: BaseException) -> str:
  """An exception as `file:line: Type: message`, in one line.

  The line is the innermost one of the user's code; without such a line, of Model Garden's or this library's.
  """
  place = place_of(error)
  message = message_of(error)
  if getattr(error, 'has_place', False) or _PLACED.match(message.partition(': ')[2]):
    # Who has raised it knows better whose code is meant.
    return message.partition(': ')[2]
  if place is None:
    library = [frame for frame in _frames(error) if _package(frame.file) in _LIBRARIES] or _frames(error)
    return f'{library[-1]}: {message}' if library else message
  if ': ' not in message:  # A bare assert: its line says more.
    message = ': '.join(filter(None, (message, linecache.getline(place.file, place.line).strip())))
  return f'{place}: {message}'


def describe_exit(error: SystemExit) -> str:
  """One line about code other than a driver that called sys.exit; it begins with the place of the call."""
  return f'{place_of(error) or errors.origin(error)}: ended the run by sys.exit({error.code!r})'


def of_function(function: Any, with_name: bool = True) -> str:
  """The place of a function or method, as `file:line (name)`, or `file:line`."""
  function, code = _plain_function(function)
  if code is None:
    return getattr(function, '__qualname__', repr(function))
  name = function.__qualname__.rpartition('<locals>.')[2]
  return at_line(code.co_filename, code.co_firstlineno, name if with_name else '')


def is_users_function(function: Any) -> bool:
  """Whether a function or method is the user's code: see `is_users`."""
  _, code = _plain_function(function)
  return code is not None and is_users(code.co_filename)


def _plain_function(function: Any) -> tuple[Any, types.CodeType | None]:
  """(the function below a method and decorators, its code); no code for what is not written in Python."""
  function = inspect.unwrap(getattr(function, '__func__', function))
  return function, getattr(function, '__code__', None)


def save_traceback(error: BaseException, folder: str = '', name: str = 'traceback.txt') -> str:
  """Writes the whole traceback to a file.

  Args:
    error: the exception.
    folder: where to write, if it exists; else to a temporary file.
    name: of the file in `folder`.

  Returns:
    The path of the file; '' if none could be written, and the traceback went to stderr instead.
  """
  lines = [
    f'{shlex.join([sys.executable, *sys.argv])}\n',
    describe(error),
    '\n\n',
    *traceback.format_exception(error),
    '\nWith --verbosity=0 this is printed on stderr too; --pdb_post_mortem starts the debugger there.\n',
  ]
  text = safe_text.mask(''.join(lines))
  with contextlib.suppress(OSError, ValueError, tf.errors.OpError):  # TensorFlow may be unable to open a path.
    if folder and paths.is_folder(folder):
      path = os.path.join(folder, name)
      with tf.io.gfile.GFile(path, 'w') as f:
        f.write(text)
      return path
  try:
    with tempfile.NamedTemporaryFile('w', prefix='traceback-', suffix='.txt', delete=False) as f:
      f.write(text)
    return f.name
  except OSError:
    print(text, file=sys.stderr, flush=True)
    return ''


def _chain(error: BaseException) -> Iterator[BaseException]:
  """An exception and its causes, itself first."""
  seen: list[BaseException] = []
  each: BaseException | None = error
  while each is not None and each not in seen:
    seen.append(each)
    yield each
    each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _frames(error: BaseException) -> list[Place]:
  """The frames of an exception's traceback, the innermost last, without the frames of the library's caller."""
  frames = [Place(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
  converted: tf.Tensor = getattr(error, 'ag_error_metadata', None)
  texts = [Place(name, int(line), function) for name, line, function in _FRAME.findall(_str(error))]
  return [
    *_from_library_on(frames),
    *(
      Place(frame.filename, frame.lineno, frame.function_name)
      for frame in reversed(getattr(converted, 'translated_stack', ()))
    ),
    *_from_library_on(texts),
  ]


def _from_library_on(frames: list[Place]) -> list[Place]:
  """Drops the frames before this library's: the user's script that calls it is not the cause."""
  own = [number for number, frame in enumerate(frames) if os.path.realpath(frame.file).startswith(_OWN + os.sep)]
  return frames[own[0] :] if own else frames


def _without_code(text: str) -> str:
  """The rest of a message after a frame, without the frame's line of code and the marks below it."""
  lines = text.split('\n')[1:]
  if lines and lines[0].strip():
    lines = lines[1:]
    if lines and lines[0].strip() and not lines[0].strip(' ^~'):
      lines = lines[1:]
  return '\n'.join(lines)


def _package(filename: str) -> str:
  path = os.path.realpath(filename)
  if path.startswith(_OWN + os.sep):
    return 'official_ext'
  installed = _INSTALLED.search(path)
  return installed.group(1) if installed else ''


_FORESEEN = (
  errors.UserError,
  errors.CheckpointError,
  errors.StorageError,
  errors.WorkerError,
  errors.DivergedError,
  errors.PreemptedError,
)


def shorten_uncaught() -> None:
  """Lets a script that an error of this library ends print its line and exit with its status, without a traceback.

  For drivers other than this library's: `run_experiment` and `ext.train` call it. Other errors are printed as before.
  An interactive interpreter is unchanged; a notebook has its own display.
  """
  before = sys.excepthook
  if getattr(before, 'is_of_official_ext', False):
    return

  def show(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    if not isinstance(error, _FORESEEN) or hasattr(sys, 'ps1') or sys.flags.interactive:
      before(kind, error, trace)
      return
    lines = errors.lines_of(error) if isinstance(error, errors.UserErrors) else [text_of(error)]
    label = 'preempted' if isinstance(error, errors.PreemptedError) else 'error'
    sys.stdout.flush()
    for line in lines:
      print(f'{label}: {safe_text.mask(line)}', file=sys.stderr)
    raise SystemExit(error.exit_status)  # The interpreter exits with it, and prints nothing more.

  show.is_of_official_ext = True  # type: ignore[attr-defined]
  sys.excepthook = show
