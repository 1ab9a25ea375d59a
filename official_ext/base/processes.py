"""Processes: their identity, whether they live, the signals that stop them, and answers in forks.

A process's number is reused after its end, and means another process in another container or on another host. Therefore
a process is identified by its host, number, start time, the boot of its kernel and its PID namespace.

`last_answer` computes an answer in a fork: it leaves no state, and has limits of time and memory.
"""

from collections.abc import Callable, Iterable, Mapping
import contextlib
import ctypes
import dataclasses
import gc
import json
import os
import resource
import select
import signal
import socket
import time
from typing import Any, NoReturn

from official_ext.base import json_values

# The inode of the first PID namespace of any Linux kernel (PROC_PID_INIT_INO): a process in it is in no container.
_INITIAL_NAMESPACE = 'pid:[4026531836]'


@dataclasses.dataclass(frozen=True)
class ProcessIdentity:
  """A process.

  Attributes:
    host: the name of its host.
    pid: its number.
    pid_start: when it was started, in clock ticks since the boot of its kernel. This and the following: None if the
      system does not report it.
    boot_id: the boot of its kernel: it changes with every start of the machine, and is the same in all of its
      containers.
    pid_namespace: the namespace of its number.
    machine_id: the installation of its host's system.
  """

  host: str
  pid: int
  pid_start: int | None = None
  boot_id: str | None = None
  pid_namespace: str | None = None
  machine_id: str | None = None

  def as_dict(self) -> json_values.JsonObject:
    """JSON values, which `parse_identity` reads."""
    return dataclasses.asdict(self)

  def __str__(self) -> str:
    return f'process {self.pid} on {self.host}'


def own_identity() -> ProcessIdentity:
  """This process."""
  return identity_of(os.getpid())


def identity_of(pid: int) -> ProcessIdentity:
  """A process that is seen from here, such as a child of this one, by its number."""
  return ProcessIdentity(
    host=socket.gethostname(),
    pid=pid,
    pid_start=start_of(pid),
    boot_id=_read('/proc/sys/kernel/random/boot_id'),
    pid_namespace=_link('/proc/self/ns/pid'),
    machine_id=_read('/etc/machine-id'),
  )


def start_of(pid: int) -> int | None:
  """When a process that is seen from here was started: see `pid_start`."""
  return _state_and_start(pid)[1]


def parse_identity(values: json_values.JsonMapping) -> ProcessIdentity | None:
  """The process that a JSON object names among other things; None if it names none.

  Entries that are missing, as in older files, or of a wrong type count as unknown.
  """

  def of_type(name: str, kind: type) -> Any:
    value = values.get(name)
    return value if isinstance(value, kind) and not isinstance(value, bool) else None

  host, pid = of_type('host', str), of_type('pid', int)
  if host is None or pid is None or pid <= 0:
    return None
  return ProcessIdentity(
    host,
    pid,
    of_type('pid_start', int),
    of_type('boot_id', str),
    of_type('pid_namespace', str),
    of_type('machine_id', str),
  )


def is_alive(process: ProcessIdentity) -> bool | None:
  """Whether a process runs.

  Returns:
    None if that cannot be seen from here, because it is on another host or in another container: ask its heartbeat.
  """
  here = own_identity()
  if process.boot_id and here.boot_id:
    if process.boot_id != here.boot_id:
      return False if _is_earlier_boot(process, here) else None
  elif process.host != here.host:
    return None
  if process.pid_namespace and here.pid_namespace and process.pid_namespace != here.pid_namespace:
    return None
  return _runs(process.pid, process.pid_start)


def descendants(pid: int) -> list[ProcessIdentity]:
  """The living descendants of a process that have stayed in its session, parents first.

  A process that starts a session is meant to outlive it. [] without /proc.
  """
  try:
    names, session = os.listdir('/proc'), os.getsid(pid)
  except OSError:
    return []
  children: dict[int, list[tuple[int, int]]] = {}
  for name in names:
    if not (name.isascii() and name.isdigit()):
      continue
    stat = _read(f'/proc/{name}/stat')
    fields = stat.rpartition(')')[2].split() if stat is not None else []
    if fields and fields[0] not in ('Z', 'X') and int(fields[3]) == session:
      children.setdefault(int(fields[1]), []).append((int(name), int(fields[19])))
  here, found = own_identity(), list(children.get(pid, ()))
  for child, _ in found:
    found += children.get(child, ())
  return [dataclasses.replace(here, pid=child, pid_start=start) for child, start in found]


def send_signal(process: ProcessIdentity, number: int) -> None:
  """Sends a signal to a process that is seen from here, and to no other that has its number by now.

  Raises:
    ProcessLookupError: it has ended, or its identity is ambiguous.
    OSError: it belongs to another user, or cannot be opened.
  """
  descriptor = os.pidfd_open(process.pid)
  try:
    # Even if the number is reused from here on, the descriptor stays with the process that is compared now.
    if is_alive(process) is not True or process.pid_start is None:
      raise ProcessLookupError(f'{process} has ended')
    signal.pidfd_send_signal(descriptor, number)
  finally:
    os.close(descriptor)


def is_suspended(process: ProcessIdentity) -> bool:
  """Whether a living process that is seen from here was stopped by a signal, as by Ctrl-Z, and waits for SIGCONT."""
  return _state_and_start(process.pid) == ('T', process.pid_start)


def is_suspended_child(pid: int) -> bool:
  """The same of a child of this process that has not been waited for, whose number is thus no other process's."""
  return _state_and_start(pid)[0] == 'T'


def _is_earlier_boot(process: ProcessIdentity, here: ProcessIdentity) -> bool:
  """Whether this machine has been restarted since. Containers on two machines may share name and image."""
  in_no_container = process.pid_namespace == here.pid_namespace == _INITIAL_NAMESPACE
  return in_no_container and (process.host, process.machine_id) == (here.host, here.machine_id)


def _runs(pid: int, start: int | None) -> bool:
  try:
    os.kill(pid, 0)
  except (ProcessLookupError, OverflowError):
    return False
  except PermissionError:
    pass
  state, start_now = _state_and_start(pid)
  if state in ('Z', 'X'):  # Dead, but its parent has not read its exit status, as happens in containers.
    return False
  return start is None or start_now is None or start == start_now


def _state_and_start(pid: int) -> tuple[str | None, int | None]:
  """A process's state and its start in clock ticks since boot; None for both without /proc."""
  stat = _read(f'/proc/{pid}/stat')
  if stat is None:
    return None, None
  fields = stat.rpartition(')')[2].split()  # The program's name may hold anything. The fields after it are 3 to 52.
  return fields[0], int(fields[19])


def _read(path: str) -> str | None:
  try:
    with open(path, encoding='utf-8', errors='replace') as f:
      return f.read().strip() or None
  except OSError:
    return None


def _link(path: str) -> str | None:
  try:
    return os.readlink(path)
  except OSError:
    return None


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _libc() -> ctypes.CDLL | None:
  with contextlib.suppress(OSError):
    return ctypes.CDLL(None)
  return None


_LIBC = _libc()  # Loaded before a fork: a child must not load libraries until its exec.


def stop_signals() -> tuple[signal.Signals, ...]:
  """The signals that ask a process to stop: SIGTERM, SIGINT, and SIGHUP unless it is ignored, as under nohup."""
  is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
  return (signal.SIGTERM, signal.SIGINT, *(() if is_ignored else (signal.SIGHUP,)))


def signal_name(number: int) -> str:
  """The name of a signal, such as SIGTERM; `signal 77` if it has none."""
  try:
    return signal.Signals(number).name
  except ValueError:
    return f'signal {number}'


def signal_group(group: int, number: int) -> bool:
  """Sends a signal, or none by 0, to a process group; returns whether any process of this user is in it."""
  try:
    os.killpg(group, number)
  except (ProcessLookupError, PermissionError):  # Ended, or another user's by now.
    return False
  return True


def end_with_parent(number: int = signal.SIGTERM) -> None:
  """Makes the kernel send a signal to this process when its parent has ended. Call it between fork and exec.

  Does nothing on other systems than Linux.
  """
  _prctl(_PR_SET_PDEATHSIG, number)


def adopt_descendants() -> None:
  """Makes this process the parent of descendants whose parents have ended. Does nothing on other systems than Linux."""
  _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
  if _LIBC is not None and hasattr(_LIBC, 'prctl'):
    _LIBC.prctl(option, int(value), 0, 0, 0)


_MORE_BYTES = 8 << 30  # Of address space, for an answer.

Answers = Callable[[], Iterable[Mapping[str, object]]]


def last_answer(answers: Answers, seconds: float) -> json_values.JsonObject:
  """Calls `answers` in a fork, and returns the last of its JSON objects that came in time.

  The fork ends with this process. It reads and prints nothing.

  Args:
    answers: yields objects, each more complete than the one before. It handles its exceptions.
    seconds: the limit of time.

  Returns:
    The answer; without one `failure`, with the cause.
  """
  reader, writer = os.pipe()
  pid = os.fork()
  if not pid:
    os.close(reader)
    _answer_in_fork(answers, writer)
  os.close(writer)
  try:
    content = _read_pipe(reader, time.monotonic() + seconds)
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


def _read_pipe(reader: int, deadline: float) -> bytes:
  """The bytes received until the other end is closed, or the time is over."""
  parts = []
  while select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
    part = os.read(reader, 1 << 16)
    if not part:
      break
    parts.append(part)
  return b''.join(parts)


def _answer_in_fork(answers: Answers, writer: int) -> NoReturn:
  """Answers, in the child."""
  try:
    end_with_parent(signal.SIGKILL)
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
