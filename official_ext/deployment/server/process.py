"""The process of a server: it listens, and ends after its open requests."""

import os
import socket
import sys
import types

import uvicorn

from official_ext.deployment.server import app
from official_ext.deployment.server import served_model

_GRACE_SECONDS = 10


class _Server(uvicorn.Server):
  """A server that a signal ends with exit status 0."""

  def handle_exit(self, sig: int, frame: types.FrameType | None) -> None:
    """Overrides the base class, which raises the signal again. A second signal does not wait for open requests."""
    del sig, frame
    self.force_exit, self.should_exit = self.should_exit, True


def serve(model: served_model.ServedModel, settings: app.Settings, listener: socket.socket) -> None:
  """Serves until SIGTERM or SIGINT, and ends the process."""
  config = uvicorn.Config(
    app.make(model, settings),
    log_level='error',
    access_log=False,
    server_header=False,
    timeout_graceful_shutdown=_GRACE_SECONDS,
  )
  _Server(config).run([listener])
  sys.stdout.flush()
  os._exit(0)  # Some runtimes crash when Python unloads them.
