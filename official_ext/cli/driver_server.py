"""A process that holds TensorFlow and the experiments, and returns the driver's answers; driver_process.py runs it.

    python -m official_ext.cli.driver_process PROGRAM [--registry=MODULE]... [--without=MODULE]...

PROGRAM is the driver: train.py, beside which modules are found first, or the module of the installed driver. Requests
are JSON objects, one a line, on stdin; the answers come on stdout, in their order: see driver_answers.py, with `id` as
in the request. Before the first one it says what it does, `{"stage": TEXT}` for each step, and then `{"ready": true}`.

Each request is answered in a fork, so that it leaves no state: see base/processes/forked_answers.py. When a file
changes that a module was read from, the answer is `{"stale": true}`, and the process ends: another one reads the
modules anew. It ends with its stdin, at any time.
"""

import official_ext  # noqa: F401  # Before tensorflow.
from official_ext.base import json_types
from official_ext.training.config import registries

# isort: split
from collections.abc import Iterator, Mapping
import functools
import gc
import json
import os
import select
import signal
import sys
import threading

from official_ext.base import errors
from official_ext.base import model_garden_internals
from official_ext.base.processes import forked_answers
from official_ext.cli import describe
from official_ext.cli import driver_answers
from official_ext.cli import flags as ext_flags
from official_ext.operations.runs import programs

_SECONDS = 20.0  # For an answer. The checks that need devices and the task get the remaining time.
_NAME = 'official_ext.cli.driver_process'


class _Modules:
  """The modules of experiments, imported once, and the files that they were read from.

  Attributes:
    failed: the import that failed and may have had side effects: this process is unusable.
  """

  def __init__(self, names: list[str], without: list[str]):
    """Imports modules.

    Args:
      names: those that --registry names.
      without: those that are left to each request, since they cannot be imported.
    """
    self.failed = ''
    if registries.REGISTRY_IMPORTS not in without:
      try:
        registries.import_own()
        registries.import_last()
      except errors.UserError:
        self.failed = registries.REGISTRY_IMPORTS
        return
    registries.import_registries()
    for name in names:  # The user's: tried in a fork, which is cheaper than to begin anew.
      if forked_answers.last(functools.partial(_answers, {'do': 'try', 'arguments': [name]}), _SECONDS).get('imported'):
        registries.import_registry(name, 'import')
    self._states = {path: _state(path) for path in _files()}

  def are_stale(self) -> bool:
    """Whether a file has changed since."""
    return any(_state(path) != state for path, state in self._states.items())


def _files() -> set[str]:
  """The files of all modules that are not part of Python or an installed package."""
  installed = tuple({sys.prefix, sys.base_prefix, os.path.realpath(sys.prefix)})
  found = (getattr(module, '__file__', None) for module in list(sys.modules.values()))
  return {path for path in found if isinstance(path, str) and not path.startswith(installed)}


def _state(path: str) -> object:
  try:
    stat = os.stat(path)
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
  except OSError:
    return None


def _end_with_stdin() -> None:
  """Ends this process when nobody can ask it any more, as when the server was killed."""
  poll = select.poll()
  poll.register(0, 0)  # Only that the other end is closed.
  poll.poll()
  os.killpg(0, signal.SIGKILL)  # With the process that answers.


def _answers(request: json_types.JsonMapping) -> Iterator[Mapping[str, object]]:
  """Yields the answers to a request, each more complete than the one before. Called in a fork."""
  try:
    if request['do'] == 'try':
      registries.import_registry(request['arguments'][0], 'import')
      yield {'imported': True}
    else:
      yield from driver_answers.answer(request)
  except BaseException as error:  # pylint: disable=broad-except  # Anything may be in a registry.
    yield {'failure': '; '.join(driver_answers.lines_of(error))}


def main(arguments: list[str]) -> None:
  """Serves until stdin ends."""
  program, *flags = arguments
  names, without = (
    [flag.removeprefix(prefix) for flag in flags if flag.startswith(prefix)] for prefix in ('--registry=', '--without=')
  )
  if os.getpgrp() != os.getpid():
    os.setpgid(0, 0)  # The answering process ends with it.
  answers = os.fdopen(os.dup(1), 'w', buffering=1)
  os.dup2(2, 1)  # Printed output must not be taken for an answer.
  threading.Thread(target=_end_with_stdin, daemon=True).start()
  if program != programs.INSTALLED:  # That one finds modules in the current folder, as this process does.
    sys.path[0] = os.path.dirname(os.path.abspath(program))
  ext_flags.define_flags()
  print(json.dumps({'stage': 'importing experiments'}), file=answers)
  modules = _Modules(names, without)
  if modules.failed:  # The side effects of a failed import must not reach a request: start a new process.
    os.dup2(answers.fileno(), 1)
    os.execv(sys.executable, [sys.executable, '-m', _NAME, *arguments, f'--without={modules.failed}'])
  print(json.dumps({'stage': 'reading their fields'}), file=answers)
  model_garden_internals.remember_annotations()
  describe.read_classes()
  gc.collect()
  gc.freeze()
  print(json.dumps({'ready': True}), file=answers)
  for line in sys.stdin:
    request = json.loads(line)
    is_stale, found = modules.are_stale(), {'stale': True}
    if not is_stale:
      found = forked_answers.last(functools.partial(_answers, request), request.get('seconds', _SECONDS))
    print(json.dumps({'id': request['id'], **found}), file=answers)
    if is_stale:
      return
