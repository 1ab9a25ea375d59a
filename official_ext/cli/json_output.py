"""Output for programs: `--json` prints one JSON document on stdout, and errors as JSON on stderr.

Everything else that a command prints goes to stderr then. docs/reference/json_output.md lists documents and codes.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
import contextlib
import io
import json
import os
import re
import sys
from typing import TextIO

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import safe_text

SCHEMA_VERSION = 1  # Another one if a field is removed or changes its meaning; new fields keep it.
FLAG = '--json'
NOT_REACHED = errors.StateError.exit_status  # The exit status of a command that waited for a state, which did not come.
# Code -> the errors that have it, the most special first, and its meaning for people.
CODES: dict[str, tuple[tuple[type[BaseException], ...], str]] = {
  'state': ((errors.StateError,), 'the state of a run, a job or a folder forbids it'),
  'mistake': ((errors.UserError,), 'the command line, a configuration or a file is wrong'),
  'preempted': ((errors.PreemptedError,), 'the run has saved, and was asked to stop'),
  'diverged': ((errors.DivergedError,), 'the training has diverged'),
  'hung': ((errors.HungError,), 'the run made no progress'),
  'worker': ((errors.WorkerError,), 'another worker was lost'),
  'storage': ((errors.StorageError, errors.CheckpointError), 'a file cannot be written or read'),
  'failed': ((BaseException,), 'another error'),
}
_WANTED = re.compile(r'--?json(=(true|t|1))?', re.IGNORECASE)
# A command before a flag is left out: `runs list: --sorted: no such flag`, argparse's `runs tag: argument --tag: ...`.
_WHERE = re.compile(r'(?:[a-z_ ]+: (?:argument )?(?=--\w))?(?P<where>.*?[^\s:]): (?P<what>.*)', re.DOTALL)

_out: list[TextIO] = []  # The stdout of the process, while `sys.stdout` masks text or is stderr.


def is_wanted(arguments: Sequence[str]) -> bool:
  """Whether the arguments of a command, before `--`, ask for JSON, also in a form that only train.py takes."""
  own = arguments[: arguments.index('--')] if '--' in arguments else arguments
  return any(_WANTED.fullmatch(word) for word in own)


def add_flag(parser: argparse._ActionsContainer, text: str = 'print JSON') -> None:
  """Adds `--json`, which becomes `options.json`."""
  parser.add_argument(FLAG, action='store_true', help=text)


@contextlib.contextmanager
def documents_to(out: TextIO) -> Iterator[None]:
  """A context in which `print_document` writes to a stream, and not to `sys.stdout`."""
  _out.append(out)
  try:
    yield
  finally:
    _out.pop()


def masked(values: object) -> json_values.Json:
  """Strict JSON without passwords: numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity".

  Each text is masked by itself: in the text of a document, the end of a password may hide the end of a string.
  """
  return safe_text.mask_values(json_values.as_strict(values))


def print_document(values: object) -> None:
  """Prints a JSON document, see `masked`."""
  print(json.dumps(masked(values), indent=2, allow_nan=False), file=_out[-1] if _out else sys.stdout, flush=True)


def code_of(error: BaseException) -> str:
  """The code of an error: a key of CODES."""
  return next(code for code, (kinds, _) in CODES.items() if isinstance(error, kinds))


def error_document(lines: Sequence[str], code: str) -> json_values.JsonObject:
  """The document of an error.

  Args:
    lines: its messages, `WHERE: WHAT; HINT`.
    code: a key of CODES.

  Returns:
    `{"error": {"code", "where", "what", "hint"}}`, of the first line; of several with `others`, a list of the same.

  Example:

    >>> error_document(['trainer.train_steps: is 0; set it'], 'mistake')
    {'error': {'code': 'mistake', 'where': 'trainer.train_steps', 'what': 'is 0', 'hint': 'set it'}}
  """
  first, *others = [parts(line, code) for line in lines]
  return {'error': {**first, **({'others': others} if others else {})}}


def print_error(lines: Sequence[str], code: str) -> None:
  """Prints the document of an error on stderr, in one line."""
  print(json.dumps(error_document([safe_text.mask(line) for line in lines], code)), file=sys.stderr, flush=True)


def print_hang(error: errors.HungError) -> None:
  """Prints the document of a run that hangs, whose process ends at once."""
  print_error([f'runtime.hang_seconds: {error}'], code_of(error))


def report(report_text: Callable[[BaseException], int], error: BaseException) -> int:
  """Reports an error as JSON.

  Args:
    report_text: prints the error on stderr, in lines that begin with `error: ` or `preempted: `.
    error: the error.

  Returns:
    The exit status, the result of `report_text`.
  """
  text = io.StringIO()
  with contextlib.redirect_stderr(text):
    status = report_text(error)
  lines = []
  for line in text.getvalue().split('\n'):
    if line.startswith(('error: ', 'preempted: ')):
      lines.append(line.partition(': ')[2])
    elif line:  # The traceback of --verbosity=0.
      print(line, file=sys.stderr)
  # Some errors of the system are reported as mistakes.
  code = 'mistake' if status == errors.UserError.exit_status else code_of(error)
  print_error(lines or [str(error)], code)
  return status


def divert() -> None:
  """Lets `print_document` alone write to the stdout of this process; the rest, also of its children, goes to stderr."""
  sys.stdout.flush()
  _out.append(os.fdopen(os.dup(1), 'w'))
  os.dup2(2, 1)


def parts(line: str, code: str) -> json_values.JsonObject:
  """`code`, `where`, `what` and `hint` of a message."""
  match = _WHERE.fullmatch(line)
  where, rest = (match['where'], match['what']) if match else ('', line)
  what, _, hint = rest.partition('; ')
  return {'code': code, 'where': where, 'what': what, 'hint': hint}
