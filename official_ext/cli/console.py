"""official-ext console: the web page of a folder of runs. No TensorFlow."""

import http.client
import importlib
import json
import os
import socket
import threading
from typing import Any
import webbrowser

from official_ext.base import errors
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import listening

_PORT = 8420


def run(arguments: list[str]) -> int:
  """Runs `official-ext console ARGUMENTS`, until SIGTERM or SIGINT.

  Returns:
    The exit status.
  """
  options = _parse(arguments)
  root = os.path.abspath(os.path.expanduser(options.root))
  if not os.path.isdir(root):
    raise errors.UserError(
      f'{options.root}: no such folder; name the one that has your runs, or make it: mkdir -p {root}'
    )
  if not os.access(root, os.R_OK | os.X_OK):
    raise errors.UserError(f'{options.root}: cannot be read; name a folder that you may read')
  app, context_lib, security, server = map(_console, ('app', 'context', 'security', 'server'))
  password = _password(options.host, security)
  listener = listening.listen(options.host, options.port, lambda: _who_listens(options.host, options.port, root, app))
  port = listener.getsockname()[1]
  context = context_lib.make(root, registry=tuple(options.registry), host=options.host, port=port, password=password)
  url = f'http://{listening.in_url(socket.gethostname() if listening.is_any(options.host) else options.host)}:{port}'
  note = f', with the token in {security.PASSWORD}' if password else ''
  print(f'The runs in {root}: {url}{note} (Ctrl-C ends it; runs continue)', flush=True)
  if options.open:
    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
  return server.serve(context, listener)


def _parse(arguments: list[str]) -> Any:
  parser = arguments_lib.Parser(
    'official-ext console',
    'Serves a web page of the runs below RUNS_DIR at http://127.0.0.1:8420, until Ctrl-C. Runs do not depend on it and '
    'continue when it ends. docs/how_to/console.md. It requires starlette and uvicorn: '
    "pip install 'official-ext[console]'.",
  )
  parser.add_argument('root', metavar='RUNS_DIR', type=arguments_lib.folder, help='the folder of the runs')
  parser.add_argument('--port', type=int, default=_PORT, metavar='N', help=f'default: {_PORT}; 0: any that is free')
  parser.add_argument(
    '--host',
    default='127.0.0.1',
    metavar='ADDRESS',
    help='default: 127.0.0.1, this machine alone. Another address requires a token of 16 letters or more in the '
    'environment variable OFFICIAL_EXT_CONSOLE_TOKEN, which the page requests',
  )
  arguments_lib.add_registry(parser)
  parser.add_argument('--open', action='store_true', help='open the page in the browser')
  options = parser.parse_args(arguments)
  listening.check_port(options.port)
  return options


def _console(name: str) -> Any:
  """A module of the console, which needs additional packages."""
  try:
    return importlib.import_module(f'official_ext.operations.console.{name}')
  except ModuleNotFoundError as error:
    if (error.name or '').partition('.')[0] not in ('starlette', 'uvicorn', 'anyio', 'h11', 'click'):
      raise
    raise errors.UserError("console: needs starlette and uvicorn: pip install 'official-ext[console]'") from None


def _password(host: str, security: Any) -> str | None:
  """The token that an address requires if others can reach; None on a loopback address without one."""
  found = os.environ.pop(security.PASSWORD, '')  # Processes started from here do not need it.
  if not found and security.is_loopback(host):
    return None
  how = f'python -c "import secrets; print(secrets.token_urlsafe(32))" makes one for {security.PASSWORD}'
  if not found:
    raise errors.UserError(f'--host={host}: others can reach it, so that the console needs a token; {how}')
  if len(found) < security.MIN_PASSWORD or not found.isascii() or not found.isprintable() or ' ' in found:
    raise errors.UserError(
      f'{security.PASSWORD}: must have {security.MIN_PASSWORD} letters, digits or signs of ASCII at least; {how}'
    )
  return found


def _who_listens(host: str, port: int, root: str, app: Any) -> str:
  """Who has a port already."""
  here = host if not listening.is_any(host) else '127.0.0.1'
  try:
    connection = http.client.HTTPConnection(here, port, timeout=2)
    connection.request('GET', '/api/about', headers={'Host': f'{listening.in_url(here)}:{port}'})
    answer = json.loads(connection.getresponse().read(10_000))
    if answer['console'] == 'official-ext':
      if answer['folder'] == app.folder_key(root):
        return f'a console of this folder is already running: http://{listening.in_url(here)}:{port}'
      return 'a console of another folder uses this port; choose another port, or 0 for any that is free'
  except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
    pass
  return listening.OTHER_PROGRAM
