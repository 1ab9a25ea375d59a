"""Reads the output of strace: the calls that processes have made, in the order in which they took effect."""

from collections.abc import Iterator, Sequence
import dataclasses
import re

# Calls that change names or contents of files, or say where the next one writes. See `strace.OPTIONS` for their form.
CALLS = (
  'open,openat,creat,close,close_range,dup,dup2,dup3,fcntl,lseek,write,pwrite64,writev,pwritev,pwritev2,'
  'ftruncate,truncate,fallocate,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,rmdir,mkdir,'
  'mkdirat,fsync,fdatasync,sync,syncfs,sendfile,copy_file_range,splice,mmap,clone,clone3,fork,vfork'
)
# -y: the path of each descriptor. -xx: every string in hexadecimal, so that no character of a name has a meaning.
OPTIONS = ('-f', '-y', '-xx', '-s', str(1 << 24), '-e', 'signal=none', '-e', f'trace={CALLS}', '--quiet=all')
_LINE = re.compile(r'(\d+) +(.*)')
_RESUMED = re.compile(r'<\.\.\. \w+ resumed>')
_UNFINISHED = ' <unfinished ...>'
_CALL = re.compile(r'(\w+)\((.*)\) += (-?\d+|\?)(?:<([^>]*)>)?(.*)', re.DOTALL)
# Calls that count from where they begin. The child of a fork may be seen before the fork has returned; another thread
# may be given the number of a closed file before the close has returned.
_FROM_BEGIN = ('clone', 'clone3', 'fork', 'vfork', 'close', 'close_range')
_DESCRIPTOR = re.compile(r'(-?\d+|AT_FDCWD)(?:<([^>]*)>)?')
_OPENING, _CLOSING = '([{', ')]}'


class RecordingError(Exception):
  """The log holds something from which the files cannot be computed."""


@dataclasses.dataclass(frozen=True)
class Call:
  """One call that has succeeded.

  Attributes:
    thread: its number.
    name: of the call.
    arguments: as strace writes them.
    result: the returned value.
    result_path: of the descriptor that it has returned; '' if there is none.
  """

  thread: int
  name: str
  arguments: Sequence[str]
  result: int
  result_path: str = ''

  def text(self, index: int) -> bytes:
    """An argument that is a string."""
    return unquoted(self.arguments[index])

  def descriptor(self, index: int) -> int:
    """An argument that is a descriptor; AT_FDCWD is -100, as in the kernel."""
    match = _DESCRIPTOR.match(self.arguments[index])
    if match is None:
      raise RecordingError(f'{self.name}: no descriptor: {self.arguments[index]}')
    return -100 if match[1] == 'AT_FDCWD' else int(match[1])

  def descriptor_path(self, index: int) -> str:
    """The path that strace has found for a descriptor."""
    match = _DESCRIPTOR.match(self.arguments[index])
    return decoded(match[2] or '') if match else ''


def decoded(text: str) -> str:
  r"""A path that is written as `\x2f\x74`."""
  return _bytes(text).decode('utf-8', 'surrogateescape')


def unquoted(argument: str) -> bytes:
  """The bytes of a string, or of the strings of an array of buffers, one after the other."""
  if argument.endswith('...') or '"...' in argument:
    raise RecordingError('a string is cut off')
  return b''.join(_bytes(part) for part in re.findall(r'"([^"]*)"', argument))


def _bytes(text: str) -> bytes:
  if text.startswith('\\x'):
    return bytes.fromhex(text.replace('\\x', ''))
  if text:
    raise RecordingError(f'a string that is not hexadecimal: {text[:40]}')
  return b''


def read(text: str) -> Iterator[Call]:
  """The calls that have succeeded.

  A call takes effect when it returns, or when it begins: see `_FROM_BEGIN`.

  Args:
    text: the log.
  """
  found: list[tuple[int, Call]] = []
  unfinished: dict[int, tuple[int, str]] = {}
  for number, line in enumerate(text.splitlines()):
    match = _LINE.fullmatch(line)
    if match is None or match[2].startswith(('+++', '---')):
      continue
    thread, rest = int(match[1]), match[2]
    begin = number
    if rest.endswith(_UNFINISHED):
      unfinished[thread] = number, rest.removesuffix(_UNFINISHED)
      continue
    resumed = _RESUMED.match(rest)
    if resumed:
      if thread not in unfinished:
        continue  # It began before this part of the log.
      begin, first = unfinished.pop(thread)
      rest = first + rest[resumed.end() :]
    call = _parsed(thread, rest)
    if call is not None:
      found.append((begin if call.name in _FROM_BEGIN else number, call))
  found.sort(key=lambda each: each[0])
  return (call for _, call in found)


def _parsed(thread: int, text: str) -> Call | None:
  """The call of a whole line; None if it has failed."""
  match = _CALL.fullmatch(text)
  if match is None:
    raise RecordingError(f'not a call: {text[:200]}')
  name, arguments, result, path, _ = match.groups()
  if result == '?' or int(result) < 0:
    return None
  return Call(thread, name, tuple(_split(arguments)), int(result), decoded(path or ''))


def _split(arguments: str) -> Iterator[str]:
  """Arguments, divided at commas outside brackets. In strings there are neither: they are hexadecimal."""
  depth, begin = 0, 0
  for match in re.finditer(r'[][(){},]', arguments):
    letter = match[0]
    if letter in _OPENING:
      depth += 1
    elif letter in _CLOSING:
      depth -= 1
    elif not depth:
      yield arguments[begin : match.start()].strip()
      begin = match.end()
  if arguments.strip():
    yield arguments[begin:].strip()
