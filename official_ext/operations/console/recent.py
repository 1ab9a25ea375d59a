"""A recent state of the folder of runs, for requests at every key press."""

from collections.abc import Mapping, Sequence
import functools
import threading
import time
from typing import Any

from official_ext.base import credentials
from official_ext.base import json_types
from official_ext.operations.runs import index as index_lib
from official_ext.operations.runs import summaries as summaries_lib

_MAX_AGE_SECONDS = 3.0
_MAX_PARAMS_AGE_SECONDS = 60.0


class Recent:
  """The last look at the runs. Threads share one."""

  def __init__(self, index: index_lib.RunIndex):
    """Looks at nothing yet.

    Args:
      index: the runs.
    """
    self._index = index
    self._lock = threading.Lock()
    self._params_lock = threading.Lock()
    self._summaries: list[summaries_lib.RunSummary] = []
    self._read_at = -float('inf')
    self._params: dict[str, json_types.JsonObject] = {}
    self._params_of: list[Any] = []  # Of which runs, in which attempts: a run writes its configuration when it starts.
    self._params_at = -float('inf')
    self._sent: dict[str, tuple[summaries_lib.RunSummary, json_types.JsonObject]] = {}

  def look(self) -> list[summaries_lib.RunSummary]:
    """The current summaries of all runs: see RunIndex."""
    found, now = self._index.summaries(), time.monotonic()
    with self._lock:
      self._summaries, self._read_at = found, now
    return found

  def summaries(self) -> list[summaries_lib.RunSummary]:
    """Recent summaries of all runs, while somebody watches them; otherwise current ones."""
    with self._lock:
      if time.monotonic() - self._read_at < _MAX_AGE_SECONDS:
        return self._summaries
    return self.look()

  def params(self) -> Mapping[str, json_types.JsonMapping]:
    """The configurations of all runs: see RunIndex."""
    wanted = [(run.name, run.attempt, run.started) for run in self.summaries()]
    with self._params_lock:
      if wanted != self._params_of or time.monotonic() - self._params_at > _MAX_PARAMS_AGE_SECONDS:
        self._params, self._params_of, self._params_at = self._index.params(), wanted, time.monotonic()
      return self._params

  def as_sent(self, runs: Sequence[summaries_lib.RunSummary], is_all: bool = False) -> list[dict[str, object]]:
    """Summaries as a browser gets them, in JSON values: without the path, and with passwords masked.

    Of a run that has not changed it is the same object as before.

    Args:
      runs: the summaries.
      is_all: whether they are those of all runs, so that others are forgotten.
    """
    found, kept = [], {}
    for run in runs:
      before = self._sent.get(run.name)
      if before is None or before[0] is not run and before[0] != run:
        values = json_types.json_values({name: value for name, value in vars(run).items() if name != 'path'})
        values['reason'], values['note'] = _masked(run.reason), _masked(run.note)
        before = run, values
      kept[run.name] = before
      found.append(before[1])
    self._sent = kept if is_all else {**self._sent, **kept}
    return found


@functools.lru_cache(maxsize=10_000)
def _masked(text: str) -> str:
  return credentials.mask(text) if text else ''
