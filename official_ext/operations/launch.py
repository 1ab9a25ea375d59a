"""Starts the workers of a run on this machine, watches them, and restarts them if one is lost.

They may run in a private network, a Linux network namespace with only a loopback device.
"""

from collections.abc import Sequence
import ctypes
import dataclasses
import fcntl
import json
import os
import pathlib
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import IO, TextIO

from official_ext.base import errors
from official_ext.base import hardware
from official_ext.base import launcher
from official_ext.base import processes

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


def enter_private_network(flag: str) -> None:
  """Moves this process, and all that it starts from now on, into a private network.

  They can reach each other at 127.0.0.1, but nothing else, and cannot be reached from outside. The process must have
  only one thread.

  Args:
    flag: the flag that requires it, for the error message.

  Raises:
    UserError: this system does not allow it.
  """
  user, group = os.geteuid(), os.getegid()
  try:
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(_CLONE_NEWNET):  # This works for root. Other users need a user namespace.
      if library.unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
      process = pathlib.Path('/proc/self')
      (process / 'setgroups').write_text('deny')
      (process / 'uid_map').write_text(f'{user} {user} 1')
      (process / 'gid_map').write_text(f'{group} {group} 1')
    _start_loopback()
  except (OSError, AttributeError) as error:
    raise errors.UserError(
      f'{flag}: this system gives no network namespace ({errors.reason_of(error)}); it needs '
      'Linux that allows unprivileged user namespaces'
    ) from error


def _start_loopback() -> None:
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    request = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack('16sh14x', b'lo', 0))
    flags = struct.unpack('16sh14x', request)[1] | _IFF_UP
    fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack('16sh14x', b'lo', flags))


_NOT_TRIED_AGAIN = tuple(each.exit_status for each in (errors.UserError, errors.StateError, errors.DivergedError))
_PREEMPTED = errors.PreemptedError.exit_status
_POLL_SECONDS = 0.2
_LEAST_SILENCE_SECONDS = 10.0  # Workers may wait this long for a processor.
_STACKS_SECONDS = 2.0
_STRAYS_SECONDS = 10.0  # From SIGTERM to SIGKILL, for the remaining processes of a worker.
_PIPES_SECONDS = 1.0


@dataclasses.dataclass
class _Worker:
  """The process of a worker, and the part of its last line that it has printed.

  Attributes:
    index: its number.
    process: the process.
    listener: for its signs of life.
    hung: whether it was killed because it hung after others had ended.
    ended: when its end was noticed, by the monotonic clock; None while it runs.
    unfinished: pipe -> bytes that do not end a line yet.
  """

  index: int
  process: subprocess.Popen
  listener: launcher.Listener
  hung: bool = False
  ended: float | None = None
  unfinished: dict[IO[bytes], bytes] = dataclasses.field(default_factory=dict)


class Launcher:
  """Runs workers until they have finished, or no restarts are left."""

  def __init__(self, command: Sequence[str], num_workers: int, max_restarts: int, grace: float):
    """Initializes the launcher.

    Args:
      command: the program of one worker, and its arguments.
      num_workers: the number of workers.
      max_restarts: how often all may be started again.
      grace: how many seconds the other workers have to end by themselves after one was lost.
    """
    self._command = list(command)
    self._num_workers = num_workers
    self._max_restarts = max_restarts
    self._grace = grace
    self._signal: int | None = None
    self._workers: list[_Worker] = []
    self._selector = selectors.DefaultSelector()

  def run(self) -> int:
    """Runs the workers, and returns the exit status of the run."""
    before = {number: signal.signal(number, self._handle) for number in processes.stop_signals()}
    try:
      restarts = 0
      while True:
        status = self._attempt()
        if status == 0 or status in _NOT_TRIED_AGAIN or self._signal is not None:
          _print_line(f'the run has ended with status {status}')
          return status
        if restarts >= self._max_restarts:
          _print_line(f'the run has ended with status {status}, after {restarts} restarts (--max_restarts)')
          return status
        restarts += 1
        _print_line(f'restart {restarts} of {self._max_restarts}')
    finally:
      self._end_all(signal.SIGKILL)
      for number, handler in before.items():
        signal.signal(number, handler)

  def _handle(self, number, frame):
    del frame
    self._signal = number
    for worker in self._workers:
      if worker.process.poll() is None:
        # A program other than train.py may not save upon SIGHUP; one that is suspended hears nothing until it resumes.
        worker.process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)
        worker.process.send_signal(signal.SIGCONT)

  def _attempt(self) -> int:
    """Starts all workers, waits until all have ended, and returns the exit status of the launch."""
    self._start()
    first: _Worker | None = None
    deadline = None
    first_end: float | None = None
    before = time.monotonic()
    was_killed = False
    while self._running() or self._end_strays():
      self._pass_output_on(_POLL_SECONDS)
      self._end_strays()
      now = time.monotonic()
      for worker in self._workers:  # More has passed if this process was stopped, or its output was not read.
        worker.listener.listen(min(now - before, 2 * _POLL_SECONDS))
      before = now
      if first_end is None and len(self._running()) < self._num_workers:
        first_end = time.monotonic()
      if first_end is not None and time.monotonic() > first_end + self._grace:
        self._kill_hung()
      ended = [worker for worker in self._workers if not worker.hung]
      lost = [worker for worker in ended if worker.process.poll() not in (None, 0, _PREEMPTED)]
      if lost and first is None:
        first = lost[0]
        deadline = time.monotonic() + self._grace
        if self._running():
          _print_line(f'worker {first.index} {_outcome(first)}; waiting for the others to stop')
      if deadline is not None and time.monotonic() > deadline and self._running() and not was_killed:
        was_killed = True
        _print_line(f'still running after {self._grace:g} s, and killed: workers {self._running()}')
        self._end_all(signal.SIGKILL)
    for worker in self._workers:
      worker.listener.close()
      _print_line(f'worker {worker.index} {_outcome(worker)}')
    return self._status(first)

  def _end_strays(self) -> bool:
    """Ends the remaining processes of workers that have ended, and reads no more from the holders of their pipes.

    Returns:
      Whether anything is left, for which the next start must wait: it may hold GPUs and ports.
    """
    now, is_any_left = time.monotonic(), False
    for worker in self._workers:
      if worker.process.poll() is None:
        continue
      if worker.ended is None:
        worker.ended = now
        processes.signal_group(worker.process.pid, signal.SIGTERM)
      seconds = now - worker.ended
      if seconds > _STRAYS_SECONDS:
        processes.signal_group(worker.process.pid, signal.SIGKILL)
      # A process that is not reaped stays in a group, as in containers without an init.
      is_left = processes.signal_group(worker.process.pid, 0) and seconds < _STRAYS_SECONDS + _PIPES_SECONDS
      pipes = [key.data for key in self._selector.get_map().values() if key.data[0] is worker]
      if not is_left and seconds > _PIPES_SECONDS:  # A process outside of the group, which may live on, has them.
        while pipes:
          self._close(*pipes.pop())
      is_any_left = is_any_left or is_left or bool(pipes)
    return is_any_left

  def _status(self, first: _Worker | None) -> int:
    """The exit status: a user error or divergence if any worker has one, else the status of the first lost worker.

    A launch that was asked to stop has not failed if a worker did not end by itself, as it heard the signal before it
    could save, or was killed: the same command resumes.
    """
    codes = [worker.process.returncode for worker in self._workers]
    if self._signal is not None and any(codes):
      return next((status for status in _NOT_TRIED_AGAIN if status in codes), _PREEMPTED)
    for status in (*_NOT_TRIED_AGAIN, _PREEMPTED):  # The reason of an end says more than its loss.
      if status in codes and (status != _PREEMPTED or first is None):
        return status
    if first is None:
      return _PREEMPTED if any(worker.hung for worker in self._workers) else 0
    code = first.process.returncode
    return code if code > 0 else 128 - code  # As a shell reports a signal.

  def _kill_hung(self) -> None:
    """Kills workers that neither save nor notice that the others have ended.

    A signal has suspended them; or a native function keeps Python's lock, and they owe signs of life.
    """
    for worker in self._workers:
      if worker.process.poll() is not None or worker.hung:
        continue
      if processes.is_suspended_child(worker.process.pid):
        self._kill(worker, f'is suspended, {self._grace:g} s after another has ended, and killed')
      elif worker.listener.silent_seconds > max(self._grace, _LEAST_SILENCE_SECONDS):
        seconds = worker.listener.silent_seconds
        _print_line(f'worker {worker.index} sends no heartbeat; its threads:')
        worker.process.send_signal(launcher.STACKS_SIGNAL)
        end = time.monotonic() + _STACKS_SECONDS
        while worker.process.poll() is None and time.monotonic() < end:
          self._pass_output_on(_POLL_SECONDS)
        what = f'has given no sign of life for {seconds:.0f} s'
        self._kill(worker, f"{what}, as when a native function keeps Python's lock, and is killed")

  def _kill(self, worker: _Worker, why: str) -> None:
    _print_line(f'worker {worker.index} {why}')
    worker.hung = True
    processes.signal_group(worker.process.pid, signal.SIGKILL)

  def _running(self) -> list[int]:
    return [worker.index for worker in self._workers if worker.process.poll() is None]

  def _start(self) -> None:
    addresses = [f'127.0.0.1:{port}' for port in _free_ports(self._num_workers)]
    shares = gpu_shares(self._num_workers)
    self._workers = []
    _print_line(f'starting {self._num_workers} workers on {", ".join(addresses)}: {" ".join(self._command)}')
    for index in range(self._num_workers):
      config = {'cluster': {'worker': addresses}, 'task': {'type': 'worker', 'index': index}}
      listener = launcher.Listener()
      variables = launcher.worker_environment(listener.signs)
      environment = {**os.environ, 'TF_CONFIG': json.dumps(config), **variables}
      if shares:
        environment[hardware.CUDA_VARIABLE] = shares[index]
      process = subprocess.Popen(  # pylint: disable=subprocess-popen-preexec-fn
        self._command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,  # Ctrl-C in a terminal reaches workers through the launcher, and so only once.
        preexec_fn=processes.end_with_parent,
        pass_fds=(listener.signs,),
      )
      os.close(listener.signs)
      worker = _Worker(index, process, listener)
      self._workers.append(worker)
      for pipe, stream in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
        assert pipe is not None
        worker.unfinished[pipe] = b''
        self._selector.register(pipe, selectors.EVENT_READ, (worker, pipe, stream))
    _print_line('processes ' + ', '.join(f'[{worker.index}] {worker.process.pid}' for worker in self._workers))
    if self._signal is not None:  # A signal came while they were being started.
      self._handle(self._signal, None)

  def _pass_output_on(self, timeout: float) -> None:
    if not self._selector.get_map():
      time.sleep(timeout)
    for key, _ in self._selector.select(timeout):
      worker, pipe, stream = key.data
      data = os.read(key.fd, 1 << 16)
      *lines, rest = (worker.unfinished[pipe] + data).replace(b'\r\n', b'\n').split(b'\n')
      worker.unfinished[pipe] = rest
      for line in lines:
        _pass_on(worker, line, stream)
      if not data:
        self._close(worker, pipe, stream)

  def _close(self, worker: _Worker, pipe: IO[bytes], stream: TextIO) -> None:
    """Reads no more from a pipe; the received part of its last line counts as a line."""
    self._selector.unregister(pipe)
    pipe.close()
    if rest := worker.unfinished.pop(pipe):
      _pass_on(worker, rest, stream)

  def _end_all(self, number: int) -> None:
    for worker in self._workers:
      if worker.process.poll() is None:
        processes.signal_group(worker.process.pid, number)


def gpu_shares(num_workers: int) -> list[str] | None:
  """The CUDA_VISIBLE_DEVICES of each worker; None if there are no GPUs.

  Raises:
    UserError: there are fewer GPUs than workers.
  """
  gpus = hardware.visible_gpus()
  if not gpus:
    return None
  if len(gpus) < num_workers:
    raise errors.UserError(
      f'--num_workers={num_workers}: there are {len(gpus)} GPUs, and each worker needs one; CUDA_VISIBLE_DEVICES= '
      'trains on the CPU'
    )
  each = len(gpus) // num_workers
  return [','.join(gpus[index * each : (index + 1) * each]) for index in range(num_workers)]


def _free_ports(count: int) -> list[int]:
  sockets = []
  try:
    for _ in range(count):
      sockets.append(socket.socket())
      sockets[-1].bind(('127.0.0.1', 0))
    return [each.getsockname()[1] for each in sockets]
  finally:
    for each in sockets:
      each.close()


def _outcome(worker: _Worker) -> str:
  code = worker.process.returncode
  return f'was killed by {processes.signal_name(-code)}' if code < 0 else f'stopped with status {code}'


def _print_line(text: str) -> None:
  _write(sys.stderr, f'launch: {text}\n')


def _pass_on(worker: _Worker, line: bytes, stream: TextIO) -> None:
  _write(stream, f'[{worker.index}] {line.decode(errors="replace")}\n')


def _write(stream: TextIO, text: str) -> None:
  stream.write(text)
  stream.flush()
