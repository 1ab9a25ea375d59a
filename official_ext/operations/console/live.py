"""Live updates: one look at the folder for all browsers, and only while one listens.

`GET /api/stream?topics=runs,queue&run=NAME&from=OFFSET` is a stream of server-sent events:

    runs     {"now", "all": [summary, ...]} at first, then {"now", "changed": [...], "removed": [name, ...]}; `seen` of
             a summary is when it was read, by the clock of `now`
    TOPIC    the data of another topic, whole, at first and after every change
    events   {"run", "events": [...], "offset", "restarted"}: whole lines that were added to the events.jsonl of a
             watched run, up to a place in bytes; `restarted` if the file was replaced, so that earlier messages do not
             count
    problem  {"errors": [...]} while the folder cannot be read
    ping     every few seconds, so that a browser notices a lost connection

The `id` of each message holds the place in each watched file: a browser that reconnects with it (Last-Event-ID, or
`&last=`) gets later messages, and nothing twice. No message is kept for a browser: each has the number of its last
change, and places in files. A browser that is slow or gone costs nothing; one that lags far gets the whole data again.
"""

import asyncio
import collections
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
import contextlib
import dataclasses
import json
import os
import time
from typing import Any, BinaryIO
import zlib

from starlette import requests
from starlette import responses

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import safe_text
from official_ext.base.files import local_files
from official_ext.operations.console import answers
from official_ext.operations.console import context as context_lib
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_index

_POLL_SECONDS = 0.5
_MAX_SHARE = 0.05  # Of a core, about, for looking at the folder: at all runs of a large one less often.
_MAX_PAUSE_SECONDS = 5.0
_LIVING = frozenset(('starting', 'running', 'stopping', 'hung'))
_PING_SECONDS = 5.0
_MAX_CHANGES = 100  # Changes that are kept for browsers that lag.
_MAX_STREAMS = 200
_MAX_RUNS = 100
_CHUNK = 1 << 18
_MAX_LINE = 1 << 22
_MARKED = 4096

Topics = Mapping[str, Callable[[], Any]]


@dataclasses.dataclass(frozen=True)
class _Change:
  """A change of a topic: for 'runs' the difference, for others all of it."""

  topic: str
  text: str


class Live:
  """The live updates of a server. All methods but `_look` run in its loop."""

  def __init__(self, context: context_lib.Context, topics: Topics):
    """Looks at nothing yet.

    Args:
      context: of the server.
      topics: functions that read the state of a topic, as JSON values; 'runs' is ours.
    """
    self._context = context
    self._topics = topics
    self._listeners: collections.Counter[str] = collections.Counter()
    self._watched: collections.Counter[str] = collections.Counter()
    self._state = _State()
    self._number = 0  # Of the last change.
    self._changes: collections.deque[_Change] = collections.deque(maxlen=_MAX_CHANGES)
    self._polled: dict[str, tuple[int, ...]] = {}  # The stamp of each watched file.
    self._news = asyncio.Condition()
    self._poller: asyncio.Task[None] | None = None
    self._num_streams = 0
    self.is_closed = False

  async def handle(self, request: requests.Request) -> responses.Response:
    """Answers `GET /api/stream`."""
    try:
      topics, places = self._parse(request)
    except errors.UserError as error:
      return answers.of_error(error)
    if self._num_streams >= _MAX_STREAMS or self.is_closed:
      return answers.errors_json([f'{_MAX_STREAMS} pages listen already; close some'], 503)
    return responses.StreamingResponse(self._messages(topics, places), media_type='text/event-stream')

  async def close(self) -> None:
    """Ends all streams."""
    self.is_closed = True
    async with self._news:
      self._news.notify_all()
    if self._poller is not None:
      self._poller.cancel()

  def _parse(self, request: requests.Request) -> tuple[list[str], list['_Place']]:
    """The topics that a request names, and the place in each file that it watches."""
    query = request.query_params
    topics = [word for word in query.get('topics', '').split(',') if word]
    for wrong in (word for word in topics if word != 'runs' and word not in self._topics):
      raise errors.UserError(f'topics={wrong}: there are {", ".join(["runs", *self._topics])}')
    names = query.getlist('run')
    if len(names) > _MAX_RUNS:
      raise errors.UserError(f'run: {len(names)} runs; {_MAX_RUNS} can be watched')
    given = query.getlist('from')
    places = [_Place(self._run_to_watch(name)) for name in names]
    known = _parse_id(request.headers.get('last-event-id') or query.get('last', ''))
    for number, place in enumerate(places):
      if len(known) == len(places):
        place.offset, place.mark = known[number]
      elif number < len(given):
        place.offset = json_values.check_int(
          json_values.int_from_text(given[number]), 'from', least=0, most=answers.MAX_INTEGER
        )
    return topics, places

  def _run_to_watch(self, name: str) -> run_folders.Run:
    """A run whose events a page follows. It may be gone: its page connects again, and must learn that it is."""
    decoded = answers.name_of_wire(name)
    answers.check_name(decoded)
    path = os.path.join(self._context.root, decoded)
    return answers.run_of(self._context, name) if os.path.lexists(path) else run_folders.Run(path, decoded)

  async def _messages(self, topics: Sequence[str], places: list['_Place']) -> AsyncIterator[str]:
    """The messages of one stream, until its browser goes or the server ends."""
    self._num_streams += 1
    self._listeners.update(topics)
    self._watched.update(place.path for place in places)
    if self._poller is None or self._poller.done():
      self._poller = asyncio.create_task(self._poll())
    try:
      yield 'retry: 1000\n\n'
      wanted, number = set(topics), -1
      while not self.is_closed:
        spoke = time.monotonic()
        news, number = self._since(number, topics, wanted), self._number  # More may come while these are sent.
        for topic, text in news:
          yield _message(topic, text, places)
        for place in places:
          if place.polled == (polled := self._polled.get(place.path)) is not None:
            continue
          place.polled = polled
          while (found := await asyncio.to_thread(place.read)) is not None:
            yield _message('events', found, places)
        await self._wait(number, places, spoke + _PING_SECONDS)
        if time.monotonic() - spoke >= _PING_SECONDS:
          yield _message('ping', '{}', places)
    finally:
      self._num_streams -= 1
      self._listeners.subtract(topics)
      self._watched.subtract(place.path for place in places)

  def _since(self, number: int, topics: Sequence[str], wanted: set[str]) -> list[tuple[str, str]]:
    """The messages for a stream that knows the changes up to a number.

    Args:
      number: that; -1 for none.
      topics: all of the stream.
      wanted: the topics that it has not received yet at all; modified.
    """
    if self._number - number > len(self._changes):
      wanted |= set(topics)
      number = -1
    found = [(topic, self._state.whole(topic)) for topic in topics if topic in wanted and self._state.has(topic)]
    if number < 0:
      found += [('problem', self._state.problem)] if self._state.problem else []
    else:
      new = list(self._changes)[len(self._changes) - (self._number - number) :]
      others = {'problem', *topics} - wanted
      found += [(each.topic, each.text) for each in new if each.topic in others]
    wanted -= {topic for topic, _ in found}
    return found

  async def _wait(self, number: int, places: Sequence['_Place'], deadline: float) -> None:
    """Waits for news for a stream."""

    def has_news() -> bool:
      grown = any(self._polled.get(place.path) != place.polled for place in places)
      return self.is_closed or self._number != number or grown

    with contextlib.suppress(TimeoutError):
      async with asyncio.timeout(max(0.0, deadline - time.monotonic())), self._news:
        await self._news.wait_for(has_news)

  # The look at the folder.

  async def _poll(self) -> None:
    """Looks at the folder as long as a browser listens."""
    next_look = next_living = 0.0
    while self._num_streams and not self.is_closed:
      started = time.monotonic()
      paths = [path for path, count in self._watched.items() if count > 0]
      topics = [topic for topic, count in self._listeners.items() if count > 0]
      polled = await asyncio.to_thread(_polled, paths)
      changes: list[_Change] = []
      if topics and (started >= next_look or any(not self._state.has(topic) for topic in topics)):
        changes, seconds = await asyncio.to_thread(self._look, topics)
        next_look = started + min(_MAX_PAUSE_SECONDS, seconds / _MAX_SHARE)
      elif 'runs' in topics and started >= next_living:
        changes, seconds = await asyncio.to_thread(self._look_at_living)
        next_living = started + min(_MAX_PAUSE_SECONDS, seconds / _MAX_SHARE)
      grown, self._polled = polled != self._polled, polled
      if changes or grown:
        for change in changes:
          self._changes.append(change)
          self._number += 1
        async with self._news:
          self._news.notify_all()
      await asyncio.sleep(_POLL_SECONDS)
    self._state = _State()

  def _look(self, topics: Sequence[str]) -> tuple[list[_Change], float]:
    """The changes of some topics, and the processor time to find them. It runs in a thread."""
    started = time.thread_time()
    changes = self._look_without_errors(lambda: [self._state.update(topic, self._read(topic)) for topic in topics])
    return changes, time.thread_time() - started

  def _look_at_living(self) -> tuple[list[_Change], float]:
    """The changes of live runs, in a folder too large to read all. It runs in a thread."""
    if self._state.problem or not self._state.living:
      return [], 0.0
    started, context = time.thread_time(), self._context
    found = context.index.summaries_of(self._state.living)
    changes = self._look_without_errors(lambda: [self._state.update_some(context.recent.as_sent(found))])
    return changes, time.thread_time() - started

  def _look_without_errors(self, look: Callable[[], list[_Change | None]]) -> list[_Change]:
    try:
      changes = [change for change in look() if change is not None]
      if self._state.problem:
        self._state.problem = ''
        changes.append(_Change('problem', '{"errors":[]}'))
      return changes
    except Exception as error:  # pylint: disable=broad-except  # The folder may be away for a while.
      known = isinstance(error, (errors.UserError, errors.StorageError))
      lines = errors.lines_of(error) if known else [f'{type(error).__name__}: {error}']
      text = _dump({'errors': [safe_text.mask(line) for line in lines]})
      if text == self._state.problem:
        return []
      self._state.problem = text
      return [_Change('problem', text)]

  def _read(self, topic: str) -> Any:
    return list_runs(self._context) if topic == 'runs' else self._topics[topic]()


class _State:
  """The last message of each topic."""

  def __init__(self) -> None:
    self._runs: dict[str, str] | None = None
    self.living: list[str] = []  # The names of runs that live.
    self._stable: dict[str, dict[str, object]] = {}  # The last state of the runs.
    self._others: dict[str, str] = {}
    self.problem = ''

  def has(self, topic: str) -> bool:
    """Whether a topic was read."""
    return self._runs is not None if topic == 'runs' else topic in self._others

  def whole(self, topic: str) -> str:
    """All of a topic."""
    if topic != 'runs':
      return self._others[topic]
    return f'{{"now":{time.time():.1f},"all":[{",".join((self._runs or {}).values())}]}}'

  def update(self, topic: str, values: Any) -> _Change | None:
    """Takes the present data of a topic; returns the change, if there is one and it was known before."""
    if topic != 'runs':
      text, before = _dump(values), self._others.get(topic)
      self._others[topic] = text
      return _Change(topic, text) if text != before else None
    first, known = self._runs is None, self._runs or {}
    names = {run['name'] for run in values}
    removed = [name for name in known if name not in names]
    for name in removed:
      del known[name], self._stable[name]
    self._runs = known
    self.living = [run['name'] for run in values if run['status'] in _LIVING]
    changed = self._changed(values)
    return _change_of_runs(changed, removed) if changed or removed or first else None

  def update_some(self, values: object) -> _Change | None:
    """Takes the present data of some runs, without the others; returns the change, if there is one."""
    changed = self._changed(values)
    return _change_of_runs(changed, []) if changed else None

  def _changed(self, values: Any) -> list[str]:
    """The runs that have changed, of some."""
    assert self._runs is not None
    changed, now = [], round(time.time(), 1)
    for run in values:
      name = run['name']
      before, self._stable[name] = self._stable.get(name), run
      if before is run:
        continue
      # The time that is left passes by itself, and a browser can count.
      if before is None or {**before, 'eta_seconds': None} != {**run, 'eta_seconds': None}:
        self._runs[name] = _dump({**run, 'seen': now})
        changed.append(self._runs[name])
    return changed


def _change_of_runs(changed: Sequence[str], removed: Sequence[str]) -> _Change:
  return _Change('runs', f'{{"now":{time.time():.1f},"changed":[{",".join(changed)}],"removed":{_dump(removed)}}}')


class _Place:
  """A place in the events.jsonl of a run that one browser watches."""

  def __init__(self, run: run_folders.Run):
    self._name = run.name
    self.path = run.file_of_mode('events', 'jsonl')
    self.offset: int | None = None  # None: at the end, wherever that is.
    self.mark: int | None = None  # Of the file's first line: another file has another.
    self.polled: tuple[int, ...] | None = None  # The poller's result at the last reading.

  def read(self) -> str | None:
    """The message with the next lines; None without new lines. It runs in a thread."""
    try:
      with local_files.open_to_read(self.path, buffering=0) as file:
        size, is_first = os.fstat(file.fileno()).st_size, self.offset is None
        mark = _mark(file)
        if self.offset is None:
          self.offset = _end_of_lines(file, size)
        restarted = self.mark not in (None, mark) or not _is_line_end(file, self.offset, size)
        if restarted:
          self.offset = 0
        self.mark = mark if self.offset or mark else None
        lines = self._lines(file, size)
    except OSError:
      self.offset = self.offset or 0  # Everything written there from now on is new.
      return None
    if not lines and not restarted and not is_first:
      return None
    values = {'run': self._name, 'offset': self.offset, 'restarted': restarted}
    return f'{_dump(values)[:-1]},"events":[{",".join(lines)}]}}'

  def _lines(self, file: BinaryIO, size: int) -> list[str]:
    """The next whole lines that are JSON objects, and the place after them."""
    assert self.offset is not None
    length = _CHUNK
    while self.offset < size:
      file.seek(self.offset)
      block = file.read(min(length, size - self.offset))
      end = block.rfind(b'\n') + 1
      if end:
        self.offset += end
        return [text for line in block[:end].split(b'\n') if (text := _checked(line))]
      if len(block) < length or length >= _MAX_LINE:
        if length >= _MAX_LINE and len(block) == length:  # Not an event.
          self.offset += len(block)
          continue
        break
      length *= 4
    return []


def list_runs(context: context_lib.Context) -> list[dict[str, object]]:
  """The summaries of all runs that are in the folder, archived ones too. Links that lead out of it are left out."""
  return context.recent.as_sent([each for each in context.recent.look() if is_shown(context, each)], is_all=True)


def is_shown(context: context_lib.Context, run: run_index.RunSummary) -> bool:
  """Whether a run is in the folder: not a link out of it."""
  return not os.path.islink(run.path) or answers.is_inside(context, run.path)


def _polled(paths: Sequence[str]) -> dict[str, tuple[int, ...]]:
  """The stamps of some files; () for a missing one."""
  found: dict[str, tuple[int, ...]] = {}
  for path in paths:
    try:
      entry = os.stat(path)
      found[path] = entry.st_size, entry.st_mtime_ns, entry.st_ino
    except OSError:
      found[path] = ()
  return found


def _mark(file: BinaryIO) -> int | None:
  """The identity of a file of events: a sum of its first line. None if that is not whole yet."""
  file.seek(0)
  line, end, _ = file.read(_MARKED).partition(b'\n')
  return zlib.crc32(line) if end or len(line) == _MARKED else None


def _is_line_end(file: BinaryIO, offset: int, size: int) -> bool:
  """Whether a file has a line that ends at a place."""
  if offset > size:
    return False
  file.seek(max(0, offset - 1))
  return offset == 0 or file.read(1) == b'\n'


def _end_of_lines(file: BinaryIO, size: int) -> int:
  """The place after the last whole line of a file."""
  place = size
  while place > 0:
    start = max(0, place - _CHUNK)
    file.seek(start)
    end = file.read(place - start).rfind(b'\n')
    if end >= 0:
      return start + end + 1
    place = start
  return 0


def _checked(line: bytes) -> str:
  """A line, if it is a JSON object that a browser can read; or else ''."""
  try:
    values = json.loads(line)
    return _dump(json_values.as_strict(values)) if isinstance(values, dict) else ''
  except (ValueError, RecursionError):
    return ''


def _dump(values: object) -> str:
  return answers.names_in_json(json.dumps(values, separators=(',', ':')))


def _message(topic: str, text: str, places: Sequence[_Place]) -> str:
  return f'event: {topic}\nid: {_id(places)}\ndata: {text}\n\n'


def _id(places: Sequence[_Place]) -> str:
  return '_'.join(f'{-1 if place.offset is None else place.offset}.{place.mark or 0}' for place in places) or '-'


def _parse_id(text: str) -> list[tuple[int | None, int | None]]:
  """The places in an id; [] if it is invalid."""
  found: list[tuple[int | None, int | None]] = []
  for part in text.split('_') if text else []:
    offset, _, mark = part.partition('.')
    try:
      found.append((int(offset) if int(offset) >= 0 else None, int(mark) or None))
    except ValueError:
      return []
  return found
