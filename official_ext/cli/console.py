"""official-ext console: the web page of a folder of runs. No TensorFlow."""

import errno
import http.client
import importlib
import ipaddress
import json
import os
import socket
import threading
from typing import Any
import webbrowser

from official_ext.base import errors
from official_ext.cli import arguments as arguments_lib

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
  listener = _listen(options.host, options.port, root, app)
  port = listener.getsockname()[1]
  context = context_lib.make(root, registry=tuple(options.registry), host=options.host, port=port, password=password)
  url = f'http://{_in_url(socket.gethostname() if _is_any(options.host) else options.host)}:{port}'
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
  if not 0 <= options.port <= 65535:
    raise errors.UserError(f'--port={options.port}: must be 1 to 65535, or 0 for any that is free')
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


def _listen(host: str, port: int, root: str, app: object) -> socket.socket:
  """A socket that listens at an address."""
  try:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
  except (OSError, UnicodeError) as error:
    raise errors.UserError(f'--host={host}: is not an address of this machine: {error}') from None
  listener = socket.socket(family, socket.SOCK_STREAM)
  try:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(128)
  except OSError as error:
    listener.close()
    if error.errno == errno.EADDRINUSE:
      raise errors.UserError(f'--port={port}: {_who_listens(host, port, root, app)}') from None
    raise errors.UserError(f'--host={host} --port={port}: cannot be listened at: {error.strerror}') from None
  return listener


def _who_listens(host: str, port: int, root: str, app: Any) -> str:
  """Who has a port already."""
  here = host if not _is_any(host) else '127.0.0.1'
  try:
    connection = http.client.HTTPConnection(here, port, timeout=2)
    connection.request('GET', '/api/about', headers={'Host': f'{_in_url(here)}:{port}'})
    answer = json.loads(connection.getresponse().read(10_000))
    if answer['console'] == 'official-ext':
      if answer['folder'] == app.folder_key(root):
        return f'a console of this folder is already running: http://{_in_url(here)}:{port}'
      return 'a console of another folder uses this port; choose another port, or 0 for any that is free'
  except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
    pass
  return 'another program listens there; choose another port, or 0 for any that is free'


def _is_any(host: str) -> bool:
  try:
    return ipaddress.ip_address(host).is_unspecified
  except ValueError:
    return False


def _in_url(host: str) -> str:
  return f'[{host}]' if ':' in host else host
