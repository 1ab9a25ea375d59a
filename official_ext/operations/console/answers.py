"""The common part of the console's handlers: JSON in and out, and the run that a request names.

A handler is a plain function, which Starlette runs in a thread; `handler` turns errors of a request, or of a disk, into
lines, as the command line prints them.

Names of files may not be UTF-8. Python reads the byte 0xE9 of such a name as the lone surrogate U+DCE9, which no
address can contain. On the wire it is U+10FFE9, a character for private use, which a browser can hold and return.
"""

from collections.abc import Callable, Mapping
import functools
import json as json_lib
import os
import re
import stat
import sys
import traceback
from typing import Any

from starlette import requests
from starlette import responses

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import safe_text
from official_ext.operations.console import context as context_lib
from official_ext.operations.runs import run_folders

_ESCAPED_BYTES = re.compile(r'\\\\|\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|\\udc([89a-f][0-9a-f])')
_PRIVATE_LETTERS = {0x10FF00 + byte: 0xDC00 + byte for byte in range(0x80, 0x100)}


def names_in_json(text: str) -> str:
  """JSON in ASCII with a private character for each byte that is not UTF-8."""
  if '\\udc' not in text:
    return text
  return _ESCAPED_BYTES.sub(lambda match: match[0] if match[1] is None else rf'\udbff\udf{match[1]}', text)


def name_of_wire(text: str) -> str:
  """A text of a request, as Python names the file."""
  return text.translate(_PRIVATE_LETTERS)


BODY = 'official_ext.body'  # The place where security.py leaves the body of a request.
MAX_BODY_BYTES = 1 << 20
MAX_INTEGER = (1 << 53) - 1  # The greatest that a browser reads without loss.
_READ_AS_TEXT = ('.json', '.jsonl', '.yaml', '.log', '.txt', '.csv', '.tsv')

Handler = Callable[[requests.Request], responses.Response]


def json(values: object, status: int = 200) -> responses.Response:
  """An answer in JSON; numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity"."""
  return plain_json(json_values.as_strict(values), status)


def plain_json(values: object, status: int = 200) -> responses.Response:
  """The same of values that are of JSON already, with such strings."""
  content = json_lib.dumps(values, separators=(',', ':'), allow_nan=False)
  return responses.Response(names_in_json(content), status, media_type='application/json')


def errors_json(lines: Any, status: int) -> responses.Response:
  """The answer to a request that cannot be done: `{"errors": [line, ...]}`, with passwords masked."""
  return json({'errors': [safe_text.mask(str(line)) for line in lines]}, status)


def handler(function: Handler) -> Handler:
  """Makes the errors of a handler answers: 400 for a user's mistake, 500 for a disk's or our own."""

  @functools.wraps(function)
  def answer(request: requests.Request) -> responses.Response:
    try:
      return function(request)
    except Exception as error:  # pylint: disable=broad-except  # The server continues after any error.
      return of_error(error)

  return answer


def of_error(error: Exception) -> responses.Response:
  """The answer that an error is."""
  if isinstance(error, errors.UserError):
    return errors_json(errors.lines_of(error), 400)
  if isinstance(error, (errors.StorageError, errors.CheckpointError)):
    return errors_json(errors.lines_of(error), 500)
  print(safe_text.mask(''.join(traceback.format_exception(error))), end='', file=sys.stderr, flush=True)
  place = traceback.extract_tb(error.__traceback__)[-1]
  where = f'{os.path.basename(place.filename)}:{place.lineno}'
  return errors_json(
    [f'{type(error).__name__} at {where}: a mistake in the console; its output has the traceback'], 500
  )


def body(request: requests.Request, max_bytes: int = MAX_BODY_BYTES) -> json_values.JsonObject:
  """The JSON object in the body of a request.

  Raises:
    UserError: it is missing, or too large.
  """
  content = request.scope.get(BODY, b'')
  if len(content) > max_bytes:
    raise errors.UserError(f'request: its body has {len(content)} bytes; {max_bytes} are possible')
  try:
    values = json_lib.loads(content)
  except (ValueError, RecursionError):
    raise errors.UserError('request: its body is not JSON') from None
  if not isinstance(values, dict):
    raise errors.UserError('request: its body is not a JSON object')
  return values


def text(values: Mapping[str, object], name: str, default: str | None = None) -> str:
  """A text in the body of a request.

  Raises:
    UserError: it is missing, and has no default, or is something else.
  """
  value = values.get(name, default)
  if not isinstance(value, str):
    raise errors.UserError(f'{name}: expected a text' + ('' if name in values else ', and there is none'))
  return name_of_wire(value)


def texts(values: Mapping[str, object], name: str) -> list[str]:
  """A list of texts in the body of a request; [] if it is missing.

  Raises:
    UserError: it is something else.
  """
  value = values.get(name, [])
  if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
    raise errors.UserError(f'{name}: expected a list of texts')
  return [name_of_wire(one) for one in value]


def integer(source: requests.Request | Mapping[str, object], name: str, least: int = 1) -> int:
  """An integer that a request must have.

  Args:
    source: the request, for digits in its address, `?name=3`; or its body, for a number of JSON.
    name: of the number.
    least: the least possible one.

  Raises:
    UserError: it is missing, is something else, or is less than `least` or more than MAX_INTEGER.
  """
  return json_values.check_int(_given_number(source, name), name, least, MAX_INTEGER)


def optional_integer(source: requests.Request | Mapping[str, object], name: str, least: int = 1) -> int | None:
  """The same for a number that may be missing, or null in a body: None."""
  value = _given_number(source, name)
  return None if value is None else json_values.check_int(value, name, least, MAX_INTEGER)


def _given_number(source: requests.Request | Mapping[str, object], name: str) -> object:
  if not isinstance(source, requests.Request):
    return source.get(name)
  text = source.query_params.get(name)
  return None if text is None else json_values.int_from_text(text)


def run_of(context: context_lib.Context, source: requests.Request | str) -> run_folders.Run:
  """The run that a request names by `?run=NAME`, or that has a name.

  Args:
    context: of the server.
    source: the request; or the name, as a list of runs has it.

  Raises:
    UserError: there is no such run in the folder, or it leads out of it.
  """
  if isinstance(source, str):
    name = source
  else:
    names = source.query_params.getlist('run')
    if len(names) != 1:
      raise errors.UserError(f'run: expected one name, ?run=NAME; got {len(names)}')
    name = names[0]
  name = name_of_wire(name)
  check_name(name)
  path = context.root if name == '.' else os.path.join(context.root, name)
  if not run_folders.is_run(path):
    raise errors.UserError(f'{_shown(name)}: no run of that name in {context.place}')
  if not is_inside(context, path):
    raise errors.UserError(
      f'{_shown(name)}: is a link that leads out of {context.root}; start a console on that folder'
    )
  for outside in links_out(context, path):
    raise errors.UserError(f'{_shown(name)}: its {_shown(outside)} is a link that leads out of {context.root}')
  return run_folders.Run(path, name, context.origin and context.origin + path[len(context.root) :])


def check_name(name: str) -> None:
  """Refuses an invalid name of a run, whether the run exists or not.

  Raises:
    UserError: it is empty, absolute, has an empty part, one that begins with a dot, or a NUL.
  """
  if name == '.':
    return
  parts = name.split('/')
  if '\0' in name or any(not part or part.startswith('.') for part in parts) or os.path.isabs(name):
    raise errors.UserError(f'{_shown(name)}: is not the name of a run')


def is_inside(context: context_lib.Context, path: str) -> bool:
  """Whether a path, with all links followed, is in the folder of the runs, and not in one that hides there."""
  real, root = os.path.realpath(path), os.path.realpath(context.root)
  if not run_folders.paths_below(root, real):
    return False
  return not any(part.startswith('.') for part in os.path.relpath(real, root).split(os.sep) if part != '.')


def links_out(context: context_lib.Context, folder: str) -> list[str]:
  """The names in a run's folder of files that the console would read, and that are links out of the folder of runs."""
  found = []
  try:
    with os.scandir(folder) as entries:
      for entry in entries:
        if entry.is_symlink() and entry.name.endswith(_READ_AS_TEXT) and not is_inside(context, entry.path):
          found.append(entry.name)
  except OSError:
    pass
  return sorted(found)


def file_of(context: context_lib.Context, run: run_folders.Run, name: str) -> str:
  """The path of an ordinary file in a run's folder, by its path there.

  Raises:
    UserError: it is missing, is something else, or leads out of the run's folder.
  """
  parts = name.split('/')
  path = os.path.join(run.path, name)
  if '\0' in name or any(part in ('', '.', '..') for part in parts) or not is_inside(context, path):
    raise errors.UserError(f'{run.name}: {_shown(name)} is not the name of a file of the run')
  if not run_folders.paths_below(os.path.realpath(run.path), os.path.realpath(path)):
    raise errors.UserError(f'{run.name}: {_shown(name)} leads out of the folder of the run')
  try:
    mode = os.stat(path).st_mode
  except OSError as error:
    raise errors.UserError(f'{run.name}: {_shown(name)}: {error.strerror}') from None
  if not stat.S_ISREG(mode):
    raise errors.UserError(f'{run.name}: {_shown(name)}: is not a file')
  return path


def _shown(name: str) -> str:
  return name if name.isprintable() and len(name) < 300 else repr(name)[:300]
