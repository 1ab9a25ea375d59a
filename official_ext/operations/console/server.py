"""The server of a console: it begins with a socket, and ends within a second of a signal, even with open connections.

A client may open connections and send nothing, or a byte a minute. Each such connection counts towards the server's
limit, and would keep others out. `Protocol` closes a connection that sends no whole request in time, and limits the
connections of a client.
"""

import asyncio
import os
import signal
import socket
import sys
import threading
import time
import types
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http import h11_impl

from official_ext.operations.console import app as app_lib
from official_ext.operations.console import context as context_lib

REQUEST_SECONDS = 10.0  # For the head of a request, and for each part of its body.
PART_BYTES = 64 << 10  # Of a body.
MAX_WAITING = 64  # Connections of one client that have sent no whole request. A browser opens six.
MAX_ALL_WAITING = 512  # Connections of all clients.
_TOO_SLOW = b'HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n'


class Protocol(h11_impl.H11Protocol):
  """uvicorn's protocol with a deadline for requests, and a limit of waiting connections. The oldest one goes first."""

  def __init__(self, *args: Any, **kwargs: Any):
    """Takes uvicorn's arguments."""
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
    self._deadline = self.loop.call_later(REQUEST_SECONDS, self._expire)

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


_END_SECONDS = 0.9


class Server(uvicorn.Server):
  """A server on the loop of asyncio, without a log of requests."""

  def __init__(self, context: context_lib.Context):
    """Makes a server that does not listen yet: see `run`.

    Args:
      context: its settings.
    """
    app, self._live = app_lib.make(context)
    super().__init__(
      uvicorn.Config(
        app,
        http=Protocol,
        ws='none',
        lifespan='off',
        log_level='critical',
        log_config=None,  # It would close the handlers of others, such as TensorFlow's, with their streams.
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=1000,
      )
    )

  def end(self) -> None:
    """Lets it end: streams are closed, and open requests get a moment."""
    self.should_exit = True
    self._live.is_closed = True

  def handle_exit(self, sig: int, frame: types.FrameType | None) -> None:
    """Overrides the base class, which would raise the signal again."""
    del sig, frame
    self.end()
    last = threading.Timer(_END_SECONDS, os._exit, (0,))  # A disk that hangs must not hold it.
    last.daemon = True
    last.start()

  async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
    """Ends the streams, then shuts down as the base class does."""
    await self._live.close()
    await super().shutdown(sockets)


def serve(context: context_lib.Context, listener: socket.socket) -> int:
  """Serves until SIGTERM or SIGINT; returns the exit status, if it returns at all."""
  signal.signal(signal.SIGPIPE, signal.SIG_IGN)
  Server(context).run([listener])
  sys.stdout.flush()
  os._exit(0)  # A thread that still waits for a disk would hold it. All changes are renames.
