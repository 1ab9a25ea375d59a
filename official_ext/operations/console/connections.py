"""Connections to the console: one that sends no whole request in time is closed, and nobody holds all of them.

A client may open connections and send nothing, or a byte a minute. Each such connection counts towards the server's
limit, and would keep others out for as long as it lasts.
"""

import asyncio
import time
from typing import Any

import h11
from uvicorn.protocols.http import h11_impl

SECONDS = 10.0  # For the head of a request, and for each part of its body.
PART_BYTES = 64 << 10  # Of a body.
MAX_WAITING = 64  # Connections of one client that have sent no whole request. A browser opens six.
MAX_ALL_WAITING = 512  # Those of all clients.
_TOO_SLOW = b'HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n'


class Protocol(h11_impl.H11Protocol):
  """uvicorn's protocol with a deadline for requests, and a limit of waiting connections. The oldest one goes first."""

  def __init__(self, *args: Any, **kwargs: Any):
    """See base class."""
    super().__init__(*args, **kwargs)
    self.waits_since = time.monotonic()
    self._deadline: asyncio.TimerHandle | None = None
    self._num_bytes = 0  # Received since the deadline was set.

  @property
  def is_waiting(self) -> bool:
    """Whether the client has to send something: a request, or the rest of one."""
    return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

  def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
    """Sets the deadline of the first request."""
    super().connection_made(transport)
    self._set_deadline()
    self._make_room()

  def connection_lost(self, exc: Exception | None) -> None:
    """Forgets the deadline."""
    self._end_deadline()
    super().connection_lost(exc)

  def data_received(self, data: bytes) -> None:
    """Ends the deadline when a request is whole; each large part of a body gets a new one."""
    super().data_received(data)
    self._num_bytes += len(data)
    if not self.is_waiting:
      self._end_deadline()
    elif self._deadline is None or (self.conn.their_state is h11.SEND_BODY and self._num_bytes >= PART_BYTES):
      self._set_deadline()

  def on_response_complete(self) -> None:
    """Notes the time. The connection may stay open for uvicorn's `timeout_keep_alive`."""
    self.waits_since = time.monotonic()
    super().on_response_complete()

  def _set_deadline(self) -> None:
    self._end_deadline()
    self._num_bytes = 0
    self._deadline = self.loop.call_later(SECONDS, self._expire)

  def _end_deadline(self) -> None:
    if self._deadline is not None:
      self._deadline.cancel()
      self._deadline = None

  def _expire(self) -> None:
    self._deadline = None
    if self.transport.is_closing():
      return
    if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
      self.transport.write(_TOO_SLOW)
    self.transport.close()

  def _make_room(self) -> None:
    """Closes the connection that has waited longest, if its client or all clients have too many."""
    # One that is closed already is in the list until the loop turns: after a burst, all of them.
    waiting = [
      each
      for each in self.connections
      if isinstance(each, Protocol) and each.is_waiting and not each.transport.is_closing()
    ]
    own = [each for each in waiting if each.host == self.host]
    for group, limit in ((own, MAX_WAITING), (waiting, MAX_ALL_WAITING)):
      if len(group) > limit:
        min(group, key=lambda each: each.waits_since).transport.abort()
        return

  @property
  def host(self) -> str:
    """The address of the client."""
    return self.client[0] if self.client else ''
