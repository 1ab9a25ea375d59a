"""The common data of the console's parts: the folder of runs, and permissions. It holds no state of any run."""

import dataclasses
import functools
import os
import secrets

from official_ext.operations.console import recent as recent_lib
from official_ext.operations.curves import column_filler
from official_ext.operations.curves import column_store
from official_ext.operations.queue import queue_folder
from official_ext.operations.runs import driver as driver_lib
from official_ext.operations.runs import index as index_lib


@dataclasses.dataclass(frozen=True)
class Context:
  """The settings of one server.

  Attributes:
    root: the absolute path of the folder with the runs (RUNS_DIR).
    index: its runs. The cache in it is only that.
    queue: its queue.
    registry: modules that register experiments, as `--registry` names them.
    token: sent by the page with each request that changes something. A new one for each server.
    host: the address that the server listens at.
    port: its port.
    password: for access to the console on an address that others can reach; None on a loopback address.
    columns: the columns read from the runs' events for their curves. It is only a cache.
    driver: the process that gives the driver's answers. It is started by the first who asks.
    recent: the last look at the runs.
  """

  root: str
  index: index_lib.RunIndex
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
  recent: recent_lib.Recent = dataclasses.field(init=False, repr=False)

  def __post_init__(self) -> None:
    """Nothing was looked at yet."""
    object.__setattr__(self, 'recent', recent_lib.Recent(self.index))


def make(root: str, **values) -> Context:
  """The context of a folder; `values` are further attributes."""
  root = os.path.abspath(root)
  values.setdefault('driver', driver_lib.Driver(registry=values.get('registry', ())))
  return Context(root, index_lib.RunIndex(root), queue_folder.Queue(root), **values)
