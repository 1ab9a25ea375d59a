"""Registers writers by name; builtin.py lists this library's.

`BackgroundWriter` runs a writer that talks to other programs in a separate thread: training does not wait for it.
"""

from collections.abc import Callable, Mapping
import dataclasses
import queue
import threading
import time
from typing import Any

from absl import logging
import numpy as np

from official_ext.base import registry
from official_ext.base import safe_text
from official_ext.training.writers import writers

_END = None


class BackgroundWriter(writers.Writer):
  """Hands events to another writer in a thread, so that a slow or hanging writer delays nothing.

  It hands on numbers and strings, nested ones under names joined by '/', but no arrays. Events that do not fit into the
  queue are dropped, and their number is logged at the end. A failure is logged once. The thread ends with the process:
  the end of the run waits for it for a limited time.
  """

  def __init__(self, writer: writers.Writer, max_pending: int = 1000, close_seconds: float = 10.0):
    """Initializes the writer; no thread is started yet.

    Args:
      writer: does the work. One thread calls all its methods.
      max_pending: how many events may wait in the queue.
      close_seconds: how long `close` waits for them.
    """
    self._writer = writer
    self._name = type(writer).__name__
    self._queue: queue.Queue = queue.Queue(max_pending)
    self._close_seconds = close_seconds
    self._num_dropped = 0
    self._failed = False
    self._is_closed = False
    self._thread: threading.Thread | None = None

  def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """See base class. Returns at once. After `close` it does nothing."""
    if self._is_closed:
      return
    if self._thread is None:
      self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
      self._thread.start()
    flat = {name: value for name, value in writers.flatten(values).items() if not isinstance(value, np.ndarray)}
    try:
      self._queue.put_nowait((event, int(step), flat))
    except queue.Full:
      self._num_dropped += 1

  def close(self) -> None:
    """Waits until everything is written, or the time is up. The thread then ends after the events that wait."""
    if self._is_closed or self._thread is None:
      self._is_closed = True
      return
    self._is_closed = True
    deadline = time.monotonic() + self._close_seconds
    try:
      self._queue.put(_END, timeout=self._close_seconds)
      self._thread.join(max(0.0, deadline - time.monotonic()))
    except queue.Full:
      pass
    if self._thread.is_alive():
      logging.warning('%s did not finish within %g s: some events are lost.', self._name, self._close_seconds)
    if self._num_dropped:
      logging.warning('%s was too slow: %d events were dropped.', self._name, self._num_dropped)

  def _work(self) -> None:
    # `close` finds no room for the end in a full queue, in which case this thread does not wait for events.
    while not (self._is_closed and self._queue.empty()) and (item := self._queue.get()) is not _END:
      self._try(self._writer.write, *item)
    self._try(self._writer.close)

  def _try(self, method, *arguments) -> None:
    try:
      method(*arguments)
    except Exception as error:  # Any exception: a run must not end because of a writer.
      if not self._failed:
        logging.warning(
          '%s failed to write; training continues: %s: %s',
          self._name,
          type(error).__name__,
          safe_text.mask(str(error)),
        )
      self._failed = True


@dataclasses.dataclass(frozen=True)
class RunInfo:
  """The facts about a run that a writer may use.

  Attributes:
    model_dir: the run's folder.
    mode: the driver's mode.
    params: the resolved configuration.
    class_names: the names of the task's classes, for images; () if it has none.
  """

  model_dir: str
  mode: str
  params: Any
  class_names: tuple[str, ...] = ()

  @property
  def trains(self) -> bool:
    """Whether the run trains. A run that does not may be active at the same time, in the same folder."""
    return 'train' in self.mode


Factory = Callable[[RunInfo], writers.Writer]


@dataclasses.dataclass(frozen=True)
class Registration:
  """A registered writer.

  Attributes:
    make: its factory.
    needs: the packages that it needs -> the extras of this project that install them.
  """

  make: Factory
  needs: Mapping[str, str]


WRITERS: registry.Registry[Registration] = registry.Registry('writer')


def register(name: str, needs: Mapping[str, str] | None = None) -> Callable[[Factory], Factory]:
  """Registers a factory of a writer: a function of a `RunInfo`, or a class whose constructor takes one.

  Args:
    name: its name in `trainer.writers`.
    needs: packages that must be installed -> the extra of this project that installs them.

  Returns:
    A decorator.

  Raises:
    UserError: the name is taken.

  Example:

    >>> @ext.register_writer('printer')
    ... class Printer(ext.Writer):
    ...   def __init__(self, run):
    ...     self._mode = run.mode
    ...
    ...   def write(self, event, step, values):
    ...     print(self._mode, event, step)
  """
  return WRITERS.register(name, lambda factory: Registration(factory, needs or {}))
