"""The common data of the console's parts: the folder of runs, recent summaries of it, and permissions.

It holds no state of any run. `Recent` serves requests at every key press.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import secrets
import sys
import threading
import time
from typing import Any

from official_ext.base import json_values
from official_ext.base import safe_text
from official_ext.base.files import paths
from official_ext.operations.curves import column_filler
from official_ext.operations.curves import column_store
from official_ext.operations.queue import queue_folder
from official_ext.operations.runs import driver as driver_lib
from official_ext.operations.runs import remote_runs
from official_ext.operations.runs import run_index

_MAX_AGE_SECONDS = 3.0
_MAX_PARAMS_AGE_SECONDS = 60.0


class Recent:
  """The last look at the runs. Threads share one."""

  def __init__(self, index: run_index.RunIndex):
    """Looks at nothing yet.

    Args:
      index: the runs.
    """
    self._index = index
    self._lock = threading.Lock()
    self._params_lock = threading.Lock()
    self._summaries: list[run_index.RunSummary] = []
    self._read_at = -float('inf')
    self._params: dict[str, json_values.JsonObject] = {}
    self._params_of: list[Any] = []  # Of which runs, in which attempts: a run writes its configuration when it starts.
    self._params_at = -float('inf')
    self._sent: dict[str, tuple[run_index.RunSummary, json_values.JsonObject]] = {}

  def look(self) -> list[run_index.RunSummary]:
    """The current summaries of all runs: see RunIndex."""
    found, now = self._index.summaries(), time.monotonic()
    with self._lock:
      self._summaries, self._read_at = found, now
    return found

  def summaries(self) -> list[run_index.RunSummary]:
    """Recent summaries of all runs, while a browser watches them; otherwise current ones."""
    with self._lock:
      if time.monotonic() - self._read_at < _MAX_AGE_SECONDS:
        return self._summaries
    return self.look()

  def params(self) -> Mapping[str, json_values.JsonMapping]:
    """The configurations of all runs: see RunIndex."""
    wanted = [(run.name, run.attempt, run.started) for run in self.summaries()]
    with self._params_lock:
      if wanted != self._params_of or time.monotonic() - self._params_at > _MAX_PARAMS_AGE_SECONDS:
        self._params, self._params_of, self._params_at = self._index.params(), wanted, time.monotonic()
      return self._params

  def as_sent(self, runs: Sequence[run_index.RunSummary], is_all: bool = False) -> list[dict[str, object]]:
    """Summaries as a browser gets them, in JSON values: without the path, and with passwords masked.

    Of a run that has not changed it is the same object as before.

    Args:
      runs: the summaries.
      is_all: whether they are of all runs, so that others are forgotten.
    """
    found, kept = [], {}
    for run in runs:
      before = self._sent.get(run.name)
      if before is None or before[0] is not run and before[0] != run:
        values = json_values.as_strict({name: value for name, value in vars(run).items() if name != 'path'})
        values['reason'], values['note'] = _masked(run.reason), _masked(run.note)
        before = run, values
      kept[run.name] = before
      found.append(before[1])
    self._sent = kept if is_all else {**self._sent, **kept}
    return found


@functools.lru_cache(maxsize=10_000)
def _masked(text: str) -> str:
  return safe_text.mask(text) if text else ''


_REFRESH_SECONDS = 5.0  # Of the copy of a remote folder.


@dataclasses.dataclass(frozen=True)
class Context:
  """The settings of one server.

  Attributes:
    root: the absolute path of the folder with the runs (RUNS_DIR), or of a copy of it.
    index: its runs. The cache in it is only that.
    queue: its queue.
    registry: modules that register experiments, as `--registry` names them.
    token: sent by the page with each request that changes something. A new one for each server.
    host: the address that the server listens at.
    port: its port.
    password: for access to the console on an address that others can reach; None on a loopback address.
    columns: the columns read from the runs' events for their curves. It is only a cache.
    driver: the process that gives the driver's answers. The first question starts it.
    origin: the remote folder of which `root` is a copy, whose runs the console only shows; '' if it is none.
    recent: the last look at the runs.
  """

  root: str
  index: run_index.RunIndex
  queue: queue_folder.Queue
  registry: tuple[str, ...] = ()
  token: str = dataclasses.field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
  host: str = '127.0.0.1'
  port: int = 8420
  password: str | None = dataclasses.field(default=None, repr=False)
  columns: column_store.ColumnStore = dataclasses.field(
    default_factory=functools.partial(column_store.ColumnStore, fill=column_filler.run), repr=False
  )
  driver: driver_lib.Driver = dataclasses.field(default_factory=driver_lib.Driver, repr=False)
  origin: str = ''
  recent: Recent = dataclasses.field(init=False, repr=False)

  @property
  def place(self) -> str:
    """The folder with the runs, local or remote."""
    return self.origin or self.root

  def __post_init__(self) -> None:
    """Nothing was looked at yet."""
    object.__setattr__(self, 'recent', Recent(self.index))


def make(root: str, **values) -> Context:
  """The context of a folder, or of a copy of a remote one, which a thread keeps current.

  Args:
    root: the folder.
    **values: further attributes.

  Raises:
    UserError: a remote folder cannot be read.
  """
  root = paths.absolute(root)
  values.setdefault('driver', driver_lib.Driver(registry=values.get('registry', ())))
  if not paths.is_remote(root):
    return Context(root, run_index.RunIndex(root), queue_folder.Queue(root), **values)
  mirror = remote_runs.Mirror(root, has_images=True)
  mirror.refresh()
  mirror.keep_current(_REFRESH_SECONDS, lambda line: print(f'warning: {line}', file=sys.stderr, flush=True))
  values.setdefault('columns', column_store.ColumnStore(mirror.cache, fill=column_filler.run))
  index = run_index.RunIndex(mirror.path, mirror.cache, mirror.root)
  return Context(mirror.path, index, queue_folder.Queue(mirror.path), origin=mirror.root, **values)
