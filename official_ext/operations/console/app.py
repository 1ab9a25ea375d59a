"""The console as an ASGI application: its pages, its files, and the requests of all its parts."""

import hashlib
import importlib.resources
import mimetypes
import os
from typing import Any

from starlette import applications
from starlette import requests
from starlette import responses
from starlette import routing

import official_ext
from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.operations.console import answers
from official_ext.operations.console import context as context_lib
from official_ext.operations.console import live as live_lib
from official_ext.operations.console import models_api
from official_ext.operations.console import new_run_api
from official_ext.operations.console import queue_api
from official_ext.operations.console import run_api
from official_ext.operations.console import runs_api
from official_ext.operations.console import security
from official_ext.operations.console import sweeps_api

# Each gives `routes(context)`, and some `topics(context)`: the data that live.py sends on every change.
PARTS = (runs_api, run_api, new_run_api, queue_api, sweeps_api, models_api)
# The browser's router (static/app.js) knows which module shows which.
PAGES = ('/', '/runs', '/run', '/compare', '/new', '/queue', '/sweeps', '/sweep', '/models')
_TYPES = {'.js': 'text/javascript', '.css': 'text/css', '.html': 'text/html', '.svg': 'image/svg+xml'}


def make(context: context_lib.Context) -> tuple[Any, live_lib.Live]:
  """The application for a context, and its live updates, which must be closed when the server ends."""
  files = static_files()
  topics = {name: read for part in PARTS if hasattr(part, 'topics') for name, read in part.topics(context).items()}
  live = live_lib.Live(context, topics)
  routes = [
    *(routing.Route(path, _file(files['/static/index.html']), methods=['GET']) for path in PAGES),
    *(routing.Route(path, _file(file), methods=['GET']) for path, file in files.items()),
    *_routes(context),
    routing.Route('/api/stream', live.handle, methods=['GET']),
    *(route for part in PARTS for route in part.routes(context)),
  ]
  missing = _not_found(files['/static/index.html'])
  app = applications.Starlette(routes=routes, exception_handlers={404: missing, 405: missing, Exception: _failed})
  app.router.redirect_slashes = False
  return security.Guard(app, context, PAGES), live


def static_files() -> dict[str, tuple[bytes, str]]:
  """The content and the type of each file that a browser gets, by its path: there is no other way to a file."""
  found: dict[str, tuple[bytes, str]] = {}
  pending = [(importlib.resources.files(__package__) / 'static', '/static')]
  while pending:
    folder, path = pending.pop()
    for entry in folder.iterdir():
      name = f'{path}/{entry.name}'
      if entry.is_dir():
        pending.append((entry, name))
      elif not entry.name.startswith('.'):
        kind = _TYPES.get(os.path.splitext(name)[1]) or mimetypes.guess_type(name)[0] or 'application/octet-stream'
        found[name] = entry.read_bytes(), kind
  return found


def folder_key(root: str) -> str:
  """An identity of a console's folder that does not name it."""
  return hashlib.sha256(paths.real(root).encode('utf-8', 'surrogateescape')).hexdigest()


def _file(file: tuple[bytes, str]) -> Any:
  content, kind = file
  return lambda request: responses.Response(content, media_type=kind)


def _routes(context: context_lib.Context) -> list[routing.Route]:
  """The requests of the page's frame."""

  @answers.handler
  def about(request: requests.Request) -> responses.Response:
    del request
    return answers.json({'console': 'official-ext', 'folder': folder_key(context.place)})

  @answers.handler
  def session(request: requests.Request) -> responses.Response:
    del request
    return answers.json(
      {
        'token': context.token,
        'root': context.place,
        'version': official_ext.__version__,
        'has_password': context.password is not None,
      }
    )

  @answers.handler
  def login(request: requests.Request) -> responses.Response:
    given = answers.text(answers.body(request), 'token')
    if context.password is None:
      raise errors.UserError('this console requires no token')
    if not security.is_password(context, given):
      return answers.errors_json([f'that is not the token in {security.PASSWORD}'], 401)
    name, value = security.cookie_of(context.password, context.port)
    answer = answers.json({})
    answer.set_cookie(name, value, httponly=True, samesite='strict', path='/')
    return answer

  @answers.handler
  def logout(request: requests.Request) -> responses.Response:
    del request
    answer = answers.json({})
    answer.delete_cookie(security.cookie_of('', context.port)[0], httponly=True, samesite='strict', path='/')
    return answer

  return [
    routing.Route('/api/about', about, methods=['GET']),
    routing.Route('/api/session', session, methods=['GET']),
    routing.Route('/api/login', login, methods=['POST']),
    routing.Route('/api/logout', logout, methods=['POST']),
  ]


def _not_found(page: tuple[bytes, str]) -> Any:
  """The answer to an unknown address: to a person `page`, which shows that it is unknown; to a program a line."""
  content, kind = page

  def answer(request: requests.Request, error: Any) -> responses.Response:
    path = request.url.path
    is_page = request.method == 'GET' and not path.startswith(('/api', '/static'))
    if error.status_code == 404 and is_page and 'text/html' in request.headers.get('accept', ''):
      return responses.Response(content, 404, media_type=kind)
    line = 'no such page' if error.status_code == 404 else 'request: not by this method'
    return answers.errors_json([line], error.status_code)

  return answer


def _failed(request: requests.Request, error: Exception) -> responses.Response:
  del request
  return answers.of_error(error)
