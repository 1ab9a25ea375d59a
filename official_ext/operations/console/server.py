"""The server of a console: it begins with a socket, and ends within a second of a signal, whoever still listens."""

import os
import signal
import socket
import sys
import threading
import types

import uvicorn

from official_ext.operations.console import app as app_lib
from official_ext.operations.console import connections
from official_ext.operations.console import context as context_lib

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
        http=connections.Protocol,
        ws='none',
        lifespan='off',
        log_level='critical',
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
    """See base class, which would raise the signal again."""
    del sig, frame
    self.end()
    last = threading.Timer(_END_SECONDS, os._exit, (0,))  # A disk that hangs must not hold it.
    last.daemon = True
    last.start()

  async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
    """See base class."""
    await self._live.close()
    await super().shutdown(sockets)


def serve(context: context_lib.Context, listener: socket.socket) -> int:
  """Serves until SIGTERM or SIGINT; returns the exit status, if it returns at all."""
  signal.signal(signal.SIGPIPE, signal.SIG_IGN)
  Server(context).run([listener])
  sys.stdout.flush()
  os._exit(0)  # A thread that still waits for a disk would hold it. All changes are renames.
