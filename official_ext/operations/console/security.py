"""Permissions for requests to the console. Every request passes here first, and is refused unless a rule allows it.

A foreign page in the user's browser must neither read nor change anything:

- by a name that it makes lead to this machine: the Host is checked, with its port;
- by a request across sites: Origin, Sec-Fetch-Site, and a token that only the console's page can read;
- in a frame, or by text that becomes code: the content security policy.

On an address that others reach, requests need the password as well. After a few wrong attempts a client has to wait
before each further one.
"""

import asyncio
import collections
from collections.abc import Callable, Iterable
import dataclasses
import hashlib
import hmac
import http.cookies
import ipaddress
import json
import socket
import time
from typing import Any

from starlette import types

from official_ext.operations.console import answers
from official_ext.operations.console import context as context_lib

FREE_ATTEMPTS = 3  # Attempts without a wait.
ATTEMPT_SECONDS = 0.5  # Between further ones.
MAX_WAIT_SECONDS = 5.0
_MAX_CLIENTS = 10_000


@dataclasses.dataclass
class _ClientAttempts:
  """The attempts of a client since its last right one.

  Attributes:
    count: how many there were.
    next: when the next one is judged, by the monotonic clock.
  """

  count: int = 0
  next: float = 0.0


class TokenAttempts:
  """The attempts of all clients. One loop of asyncio uses it."""

  def __init__(self) -> None:
    self._clients: collections.OrderedDict[str, _ClientAttempts] = collections.OrderedDict()

  async def has_turn(self, host: str) -> bool:
    """Waits until an attempt of a client may be judged; False if too many others of it wait already."""
    client = self._clients.setdefault(host, _ClientAttempts())
    self._clients.move_to_end(host)
    if len(self._clients) > _MAX_CLIENTS:
      self._clients.popitem(last=False)
    client.count += 1  # Before it is judged: many may come at once.
    now = time.monotonic()
    turn = max(now, client.next) if client.count > FREE_ATTEMPTS else now
    if turn - now > MAX_WAIT_SECONDS:
      return False
    client.next = turn + ATTEMPT_SECONDS
    if turn > now:  # A right one is judged without a pause, and forgotten: others at once count as its first.
      await asyncio.sleep(turn - now)
    return True

  def forget(self, host: str) -> None:
    """Takes note of a right attempt."""
    self._clients.pop(host, None)


PASSWORD = 'OFFICIAL_EXT_CONSOLE_TOKEN'  # Of the environment.
MIN_PASSWORD = 16
TOKEN_HEADER = 'x-console-token'
MAX_BODY_BYTES = 16 << 20
_MAX_TARGET = 32 << 10  # A link holds the view; a list of runs in it may be long.

# Anything that a page needs comes from here. A style or a script in the text of a page is refused.
_POLICY = '; '.join(
  (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data: blob:",
    "connect-src 'self'",
    "font-src 'self'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
  )
)
HEADERS = {
  'content-security-policy': _POLICY,
  'x-frame-options': 'DENY',
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'no-referrer',
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
  'permissions-policy': 'camera=(), geolocation=(), microphone=()',
  'cache-control': 'no-store',
}
# The paths that need no password: they reveal no run.
_LOGIN = '/api/login'
_OPEN = frozenset(('/api/about', _LOGIN))
_OF_SESSIONS = frozenset((_LOGIN, '/api/logout'))


def is_loopback(host: str) -> bool:
  """Whether only this machine reaches an address."""
  if host == 'localhost':
    return True
  try:
    return ipaddress.ip_address(host).is_loopback
  except ValueError:
    return False


def cookie_of(password: str, port: int) -> tuple[str, str]:
  """The name and the value of the cookie that a browser gets for the password, which is not in it."""
  value = hmac.new(password.encode(), b'official-ext console: a browser that was let in', hashlib.sha256).hexdigest()
  return f'official_ext_console_{port}', value  # Cookies of a host go to all of its ports.


def is_password(context: context_lib.Context, text: str) -> bool:
  """Whether a text is the password, in a time that does not depend on the correct part."""
  return context.password is not None and hmac.compare_digest(_digest(text), _digest(context.password))


def _digest(text: str) -> bytes:
  return hashlib.sha256(text.encode('utf-8', 'surrogatepass')).digest()


class Guard:
  """An ASGI application around another one, which sees only requests that are allowed, and the body of each whole."""

  def __init__(self, app: types.ASGIApp, context: context_lib.Context, pages: Iterable[str]):
    """Makes the guard of one server.

    Args:
      app: the application inside.
      context: of the server.
      pages: the paths of pages, to which a link on another site may lead: they are the same for everybody.
    """
    self._app = app
    self._context = context
    self._pages = frozenset(pages)
    self._names = frozenset(_own_names(context.host))
    self._attempts = TokenAttempts()

  async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
    """Answers a request; see ASGI."""
    if scope['type'] != 'http':
      return  # No websockets.
    headers = _Headers(scope['headers'])
    host = (scope.get('client') or ('',))[0]
    is_attempt = self._context.password is not None and self._is_attempt(scope, headers)
    if is_attempt and not await self._attempts.has_turn(host):
      refusal: tuple[int, str] | None = (429, 'too many wrong tokens; wait a few seconds')
    else:
      refusal = self._refuse(scope, headers)
    if is_attempt and self._has_authorization(headers):
      self._attempts.forget(host)
    if refusal is None and scope['method'] == 'POST':
      refusal, scope[answers.BODY] = await _read(receive, headers)
    if refusal is not None:
      status, line = refusal
      await answers.errors_json([line], status)(scope, receive, _with_headers(send, {'connection': 'close'}))
      return
    right = (lambda: self._attempts.forget(host)) if scope['path'] == _LOGIN else None
    await self._app(scope, receive, _with_headers(send, {}, right))

  def _is_attempt(self, scope: types.Scope, headers: '_Headers') -> bool:
    """Whether a request gives the token, right or wrong."""
    return headers.get('authorization') is not None or (scope['method'] == 'POST' and scope['path'] == _LOGIN)

  def _refuse(self, scope: types.Scope, headers: '_Headers') -> tuple[int, str] | None:
    """Why a request is refused, as a status and a line; else None. The line repeats no part of the request."""
    method, path = scope['method'], scope['path']
    if len(scope.get('raw_path') or b'') + len(scope['query_string']) > _MAX_TARGET:
      return 414, 'request: its address is too long'
    if headers.is_repeated('host', 'origin', 'content-length', 'content-type', TOKEN_HEADER, 'authorization'):
      return 400, 'request: a header is given twice'
    if not self._is_our_host(headers.get('host')):
      return 421, f'Host: this console answers at http://{_as_host(self._context.host, self._context.port)} only'
    if method not in ('GET', 'HEAD', 'POST'):
      return 405, 'request: only GET and POST are supported'
    origin = headers.get('origin')
    if origin is not None and origin != f'http://{headers.get("host")}':
      return 403, 'Origin: the request comes from another site'
    site = headers.get('sec-fetch-site')
    if site not in (None, 'same-origin') and not self._is_visit(method, path, site, headers):
      return 403, 'Sec-Fetch-Site: the request comes from another site'
    by_password = self._has_authorization(headers)
    if path.startswith('/api/') and path not in _OPEN and not by_password and not self._has_cookie(headers):
      return 401, f'the console requires its token, which is in {PASSWORD} where it was started'
    return self._refuse_change(path, headers, origin, by_password) if method == 'POST' else None

  def _refuse_change(self, path, headers, origin, by_password) -> tuple[int, str] | None:
    if headers.get('content-type', '').partition(';')[0].strip().lower() != 'application/json':
      return 415, 'Content-Type: expected application/json'
    if headers.get('content-encoding') is not None:
      return 415, 'Content-Encoding: is not possible'
    refusal = None
    if self._context.origin and path not in _OF_SESSIONS:
      refusal = 403, f'{self._context.origin}: is remote, and its console only shows runs; use `official-ext runs`'
    if by_password:  # No browser sends that by itself.
      return refusal
    if origin is None:
      return 403, 'Origin: is missing; a script sends that of the console'
    if path == _LOGIN:
      return None
    if not hmac.compare_digest(_digest(headers.get(TOKEN_HEADER, '')), _digest(self._context.token)):
      return 403, 'X-Console-Token: is not that of this console, which GET /api/session returns; reload the page'
    return refusal

  def _is_our_host(self, text: str | None) -> bool:
    """Whether the Host of a request is a name of this server, with its port."""
    if text is None:
      return False
    name, port = _split_host(text)
    if port != self._context.port:
      return False
    if name in self._names:
      return True
    if is_loopback(self._context.host):
      return False
    try:  # No site can make an address lead here: only names can be made to.
      ipaddress.ip_address(name)
    except ValueError:
      return False
    return True

  def _is_visit(self, method, path, site, headers) -> bool:
    """Whether a request opens one of the pages: by hand, or by a link on another site."""
    if method == 'POST':
      return False
    if site == 'none':
      return True
    is_page = headers.get('sec-fetch-mode') == 'navigate' and headers.get('sec-fetch-dest') == 'document'
    return is_page and path in self._pages

  def _has_authorization(self, headers) -> bool:
    kind, _, given = headers.get('authorization', '').partition(' ')
    return kind.lower() == 'bearer' and is_password(self._context, given.strip())

  def _has_cookie(self, headers) -> bool:
    """Whether a browser was let in, or needs no password."""
    if self._context.password is None:
      return True
    name, value = cookie_of(self._context.password, self._context.port)
    try:
      cookies = http.cookies.SimpleCookie(headers.get('cookie', ''))
    except http.cookies.CookieError:
      return False
    return name in cookies and hmac.compare_digest(_digest(cookies[name].value), _digest(value))


class _Headers:
  """The headers of a request."""

  def __init__(self, pairs: Iterable[tuple[bytes, bytes]]):
    self._values: dict[str, list[str]] = {}
    for name, value in pairs:
      self._values.setdefault(name.decode('latin-1').lower(), []).append(value.decode('latin-1'))

  def get(self, name: str, default: Any = None) -> Any:
    """The value of a header."""
    return self._values.get(name, [default])[0]

  def is_repeated(self, *names: str) -> bool:
    """Whether one of some headers occurs more than once."""
    return any(len(self._values.get(name, ())) > 1 for name in names)


async def _read(receive: types.Receive, headers: _Headers) -> tuple[tuple[int, str] | None, bytes]:
  """The body of a request; or why it is refused."""
  too_large = 413, f'request: its body is larger than {MAX_BODY_BYTES} bytes'
  length = headers.get('content-length')
  if length is not None and length.isdigit() and int(length) > MAX_BODY_BYTES:
    return too_large, b''
  parts, size = [], 0
  while True:
    message = await receive()
    if message['type'] == 'http.disconnect':
      return (400, 'request: it ended too early'), b''
    parts.append(message.get('body', b''))
    size += len(parts[-1])
    if size > MAX_BODY_BYTES:
      return too_large, b''
    if not message.get('more_body'):
      return None, b''.join(parts)


def _with_headers(send: types.Send, more: dict[str, str], on_success: Callable[[], None] | None = None) -> Any:
  """Sends the headers that each answer has, which replace its own; calls `on_success` for status 200."""
  wanted = {**HEADERS, **more}
  added = [(name.encode(), value.encode()) for name, value in wanted.items()]

  async def sender(message: types.Message) -> None:
    if message['type'] == 'http.response.start':
      if on_success is not None and message['status'] == 200:
        on_success()
      own = [pair for pair in message.get('headers', []) if pair[0].decode('latin-1').lower() not in wanted]
      message = {**message, 'headers': own + added}
    await send(message)

  return sender


def _own_names(host: str) -> set[str]:
  """The names that a server at an address has in a Host header."""
  names = {host.lower()}
  if is_loopback(host):
    return names | {'localhost', '127.0.0.1', '::1'}
  return names | {socket.gethostname().lower(), socket.getfqdn().lower(), 'localhost'}


def _split_host(text: str) -> tuple[str, int | None]:
  """The name and the port in a Host header; None for an invalid port."""
  text = text.lower()
  if text.startswith('['):
    name, bracket, rest = text[1:].partition(']')
    if not bracket or (rest and not rest.startswith(':')):
      return '', None
    port = rest[1:] if rest else '80'
  else:
    name, colon, port = text.partition(':')
    port = port if colon else '80'
  return name, int(port) if port.isascii() and port.isdigit() and len(port) < 6 else None


def _as_host(host: str, port: int) -> str:
  return json.dumps(f'[{host}]:{port}' if ':' in host else f'{host}:{port}')[1:-1]
