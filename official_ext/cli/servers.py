"""official-ext console and serve: the page of a folder of runs, and a model with TensorFlow Serving's interface."""

from collections.abc import Callable
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
from official_ext.base import package_imports
from official_ext.base.files import paths
from official_ext.cli import arguments as arguments_lib

OTHER_PROGRAM = 'another program listens there; choose another port, or 0 for any that is free'


def listen(host: str, port: int, who_listens: Callable[[], str] = lambda: OTHER_PROGRAM) -> socket.socket:
  """A socket that listens at an address.

  Args:
    host: the address.
    port: 0 for any that is free.
    who_listens: the program that has the port already, for the message.

  Raises:
    UserError: the address is not of this machine, or the port is taken.
  """
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
      raise errors.UserError(f'--port={port}: {who_listens()}') from None
    raise errors.UserError(f'--host={host} --port={port}: cannot be listened at: {error.strerror}') from None
  return listener


def check_port(port: int) -> None:
  """Refuses an invalid port."""
  if not 0 <= port <= 65535:
    raise errors.UserError(f'--port={port}: must be 1 to 65535, or 0 for any that is free')


def is_any_address(host: str) -> bool:
  """Whether an address means all interfaces."""
  try:
    return ipaddress.ip_address(host).is_unspecified
  except ValueError:
    return False


def address_in_url(host: str) -> str:
  """An address as it stands in a URL."""
  return f'[{host}]' if ':' in host else host


_CONSOLE_PORT = 8420


def run_console(arguments: list[str]) -> int:
  """Runs `official-ext console ARGUMENTS`, until SIGTERM or SIGINT.

  Returns:
    The exit status.
  """
  options = _parse_console(arguments)
  root = paths.absolute(paths.expanded(options.root))
  is_local = not paths.is_remote(root)
  if is_local and not os.path.isdir(root):
    raise errors.UserError(
      f'{options.root}: no such folder; name the one that has your runs, or make it: mkdir -p {root}'
    )
  if is_local and not os.access(root, os.R_OK | os.X_OK):
    raise errors.UserError(f'{options.root}: cannot be read; name a folder that you may read')
  app, context_lib, security, server = map(_console_module, ('app', 'context', 'security', 'server'))
  password = _console_password(options.host, security)
  listener = listen(options.host, options.port, lambda: _who_listens(options.host, options.port, root, app))
  port = listener.getsockname()[1]
  context = context_lib.make(root, registry=tuple(options.registry), host=options.host, port=port, password=password)
  url = f'http://{address_in_url(socket.gethostname() if is_any_address(options.host) else options.host)}:{port}'
  note = f', with the token in {security.PASSWORD}' if password else ''
  print(f'The runs in {root}: {url}{note} (Ctrl-C ends it; runs continue)', flush=True)
  if options.open:
    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
  return server.serve(context, listener)


def _add_address(parser: arguments_lib.Parser, port: int, others: str) -> None:
  """Adds --port and --host; `others` ends the help text with other addresses than this machine's."""
  parser.add_argument('--port', type=int, default=port, metavar='N', help=f'default: {port}; 0: any that is free')
  own = 'default: 127.0.0.1, this machine alone'
  parser.add_argument('--host', default='127.0.0.1', metavar='ADDRESS', help=own + others)


def _parse_console(arguments: list[str]) -> Any:
  parser = arguments_lib.Parser(
    'official-ext console',
    'Serves a web page of the runs below RUNS_DIR at http://127.0.0.1:8420, until Ctrl-C. Runs do not depend on it and '
    'continue when it ends. docs/how_to/console.md. It requires starlette and uvicorn: '
    "pip install 'official-ext[console]'.",
  )
  parser.add_argument('root', metavar='RUNS_DIR', type=arguments_lib.folder, help='the folder of the runs')
  _add_address(
    parser,
    _CONSOLE_PORT,
    '. Another address requires a token of 16 letters or more in the '
    'environment variable OFFICIAL_EXT_CONSOLE_TOKEN, which the page requests',
  )
  arguments_lib.add_registry(parser)
  parser.add_argument('--open', action='store_true', help='open the page in the browser')
  options = parser.parse_args(arguments)
  check_port(options.port)
  return options


def _console_module(name: str) -> Any:
  """A module of the console, which needs additional packages."""
  try:
    return importlib.import_module(f'official_ext.operations.console.{name}')
  except ModuleNotFoundError as error:
    if (error.name or '').partition('.')[0] not in ('starlette', 'uvicorn', 'anyio', 'h11', 'click'):
      raise
    raise errors.UserError("console: needs starlette and uvicorn: pip install 'official-ext[console]'") from None


def _console_password(host: str, security: Any) -> str | None:
  """The token that an address requires if others can reach it; None on a loopback address without one."""
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
  here = host if not is_any_address(host) else '127.0.0.1'
  try:
    connection = http.client.HTTPConnection(here, port, timeout=2)
    connection.request('GET', '/api/about', headers={'Host': f'{address_in_url(here)}:{port}'})
    answer = json.loads(connection.getresponse().read(10_000))
    if answer['console'] == 'official-ext':
      if answer['folder'] == app.folder_key(root):
        return f'a console of this folder is already running: http://{address_in_url(here)}:{port}'
      return 'a console of another folder uses this port; choose another port, or 0 for any that is free'
  except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
    pass
  return OTHER_PROGRAM


_SERVE_PORT = 8501  # TensorFlow Serving's.


def _serve_parser() -> arguments_lib.Parser:
  found = arguments_lib.Parser(
    'official-ext serve',
    'Answers predictions over HTTP as TensorFlow Serving does: POST /v1/models/NAME:predict. Requests that arrive '
    'together are computed in one batch. SIGTERM ends it after the open requests. docs/how_to/serve.md. It requires '
    "starlette, uvicorn and prometheus_client: pip install 'official-ext[serve]'.",
  )
  kind = arguments_lib.tensorflow_folder
  found.add_argument(
    'folder', metavar='RUN_OR_EXPORT', type=kind, help='the folder of a run, or of an export of any format'
  )
  found.add_argument('--name', metavar='NAME', help="the model's name in addresses; default: that of the run's folder")
  _add_address(found, _SERVE_PORT, '; 0.0.0.0: all interfaces. Requests are not authenticated')
  batch = 'examples that are computed at once, at most; default: 32'
  found.add_argument('--max_batch_size', type=arguments_lib.at_least(1), default=32, metavar='N', help=batch)
  latency = 'how long a request waits for others to join its batch; default: 5'
  found.add_argument('--max_latency_ms', type=float, default=5.0, metavar='MS', help=latency)
  body = 'the largest body of a request, in MB; default: 32'
  found.add_argument('--max_body_mb', type=arguments_lib.at_least(1), default=32, metavar='MB', help=body)
  arguments_lib.add_run_arguments(found)
  return found


def run_serve(arguments: list[str]) -> None:
  """Runs `official-ext serve ARGUMENTS`, until SIGTERM or SIGINT, which end the process."""
  known = _serve_parser().parse_args(arguments)
  check_port(known.port)
  if not 0 <= known.max_latency_ms <= 60_000:
    raise errors.UserError(f'--max_latency_ms={known.max_latency_ms:g}: expected 0 to 60000')
  for package in ('starlette', 'uvicorn', 'prometheus_client'):
    package_imports.require(package, 'serve', 'serve')
  from official_ext.deployment.server import app  # pylint: disable=g-import-not-at-top  # The extra `serve`.
  from official_ext.deployment.server import served_model  # pylint: disable=g-import-not-at-top

  listener = listen(known.host, known.port)
  ema = known.ema == 'true'
  model = served_model.load(known.folder, known.name, known.which, ema, known.experiment, tuple(known.registry))
  settings = app.Settings(known.max_batch_size, known.max_latency_ms, known.max_body_mb * 10**6)
  port = listener.getsockname()[1]
  print(
    f'{model.name}, version {model.version}: http://{address_in_url(known.host)}:{port}/v1/models/{model.name}:predict'
  )
  if model.apart:
    print(f'  each request is computed by itself: {model.apart}')
  print(f'  {model.runtime}; Ctrl-C or SIGTERM ends it', flush=True)
  app.serve(model, settings, listener)


def run_mcp(arguments: list[str]) -> None:
  """Runs `official-ext mcp ARGUMENTS`, until its stdin ends."""
  parser = arguments_lib.Parser(
    'official-ext mcp',
    'Serves the runs below RUNS_DIR to a coding agent, by the Model Context Protocol on stdin and stdout. Its tools '
    'list and show runs, and read configurations, curves and logs. docs/how_to/automation.md. It requires mcp: '
    "pip install 'official-ext[mcp]'.",
  )
  parser.add_argument('root', metavar='RUNS_DIR', type=arguments_lib.folder, help='the folder of the runs')
  text = 'add tools that start, stop, resume and clone runs; none deletes'
  parser.add_argument('--allow_changes', action='store_true', help=text)
  options = parser.parse_args(arguments)
  from official_ext.operations.runs import run_folders  # pylint: disable=g-import-not-at-top  # Not for `serve`.

  root = paths.expanded(options.root)
  run_folders.check_root(root)
  package_imports.require('mcp', 'mcp', 'mcp')
  from official_ext.operations import mcp_server  # pylint: disable=g-import-not-at-top  # The extra `mcp`.

  mcp_server.make_server(root, options.allow_changes).run('stdio')
