"""A process that holds TensorFlow and the experiments, and answers as the driver would; driver_process.py runs it.

    python -m official_ext.cli.driver_process PROGRAM [--registry=MODULE]... [--without=MODULE]...

PROGRAM is the driver: train.py, whose folder is searched for modules first, or the module of the installed driver.
Requests are JSON objects, one a line, on stdin: see `answer_request`. The answers come on stdout, in order, with the
`id` of the request. Before the first one it prints `{"stage": TEXT}` for each step of its start, and then
`{"ready": true}`.

Each request is answered in a fork, because flags, gin and devices are states of the process: see base/processes.py.
Nothing is written. If a file of an imported module has changed, the answer is `{"stale": true}`, and the process ends:
another one imports the modules again. It also ends with its stdin, at any time.

The order of the file: the list of experiments, the check of a command line, the fields of a form, the process.
"""

from collections.abc import Iterator, Mapping, Sequence
import functools
import gc
import hashlib
import inspect
import json
import os
import re
import select
import signal
import sys
import threading
import types
from typing import Any

from absl import flags
from official.modeling.hyperparams import base_config

import official_ext  # noqa: F401  # Before tensorflow.
from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import hardware
from official_ext.base import json_values
from official_ext.base import model_garden_internals
from official_ext.base import package_imports
from official_ext.base import processes
from official_ext.base import safe_text
from official_ext.base import tracebacks
from official_ext.base.files import storage
from official_ext.base.run_folder import metric_direction
from official_ext.cli import describe
from official_ext.cli import exit_status
from official_ext.cli import flags as ext_flags
from official_ext.operations.runs import driver
from official_ext.training.config import checks
from official_ext.training.config import definitions
from official_ext.training.config import epochs
from official_ext.training.config import overrides
from official_ext.training.config import parser
from official_ext.training.config import registries
from official_ext.training.config import short_names
from official_ext.training.devices import distribute
from official_ext.training.loop import run_checks
from official_ext.training.loop import run_options
from official_ext.training.record import run_record

_PART = re.compile(r'(Command|Hardware and time|Time|Result|Reference): *(.*)')
_SET = re.compile(r'--set=([^=:\s]+)')
# Strategies that are made without waiting for another process or machine.
_LOCAL_STRATEGIES = ('auto', 'mirrored', 'one_device', 'off')


def answer_request(request: json_values.JsonMapping) -> Iterator[json_values.JsonObject]:
  """Answers a request: yields answers, each more complete than the one before; the last is whole.

  Args:
    request: `do`: 'list' or 'check'; for both `arguments`, flags of the driver. For 'check', true or false: `fields`,
      `params`, and `quick`, without the checks that need devices and the task; `cwd`, if the command is given in
      another folder than this process.
  """
  arguments = list(request['arguments'])
  if request['do'] == 'list':
    yield _list_experiments(arguments)
  else:
    yield from _check_flags(arguments, request)


def error_lines(error: BaseException) -> list[str]:
  """The driver's message for an error that ends it, without `error: ` and the place of a traceback."""
  if hasattr(error, 'exit_status'):
    lines = exit_status.messages_of(error)
  elif isinstance(error, SystemExit):
    lines = [tracebacks.describe_exit(error)]
  else:
    foreseen = storage.explain(error) or tracebacks.refusal_in(error)
    lines = [str(foreseen) if foreseen else tracebacks.describe(error)]
  return [safe_text.mask(line) for line in lines]


# The list.


def _list_experiments(arguments: Sequence[str]) -> json_values.JsonObject:
  """The experiments, with the errors of experiments that cannot be loaded."""
  lines = []
  ext_flags.parse(['train.py', *arguments])
  for do in (
    registries.import_own,
    registries.import_last,
    lambda: registries.import_registries(flags.FLAGS.registry),
    registries.import_shipped,
  ):
    try:
      do()
    except errors.UserError as error:
      lines += error_lines(error)
  return {'experiments': [_experiment(name) for name in parser.experiment_names()], 'lines': lines}


def _experiment(name: str) -> dict[str, object]:
  doc = inspect.getdoc(parser.factory_of(name)) or ''
  return {'name': name, 'summary': doc.partition('\n')[0], 'doc': doc, 'parts': _answer_parts(doc)}


def _answer_parts(doc: str) -> dict[str, str]:
  """The parts of a docstring that begin with a word and a colon: the command, the time, the expected result."""
  found: dict[str, str] = {}
  name = ''
  for line in doc.splitlines():
    match = _PART.fullmatch(line.strip())
    if match:
      name = match[1]
      found[name] = match[2]
    elif not line.strip():
      name = ''
    elif name:
      found[name] += ' ' + line.strip()
  return found


# The check.


def _check_flags(arguments: Sequence[str], wishes: json_values.JsonMapping) -> Iterator[json_values.JsonObject]:
  params, lines = None, []
  try:
    if wishes.get('cwd'):
      os.chdir(wishes['cwd'])
    try:
      ext_flags.parse_for_driver(['train.py', *arguments])
    except errors.UserError as error:  # Printed unchanged.
      raise errors.UserErrors([str(error)]) from error
    params = ext_flags.configuration()
    run_record.check_writable(flags.FLAGS.model_dir)
  except BaseException as error:  # pylint: disable=broad-except  # Anything may be in a registry.
    lines = error_lines(error)
  form = _FieldsOfForm(params or _params_of(_parsed_flags()))
  found = {**form.answer(bool(wishes.get('fields'))), 'lines': form.assigned(lines), 'complete': bool(lines)}
  yield found
  if params is None or lines or wishes.get('quick'):
    return
  try:
    params = _check_run(params)
  except BaseException as error:  # pylint: disable=broad-except  # Anything may be in a task.
    found['lines'] = form.assigned(error_lines(error))
  yield {**found, 'complete': True, **({'params': params.masked_yaml()} if wishes.get('params') else {})}


def _check_run(params: definitions.ExperimentConfig) -> definitions.ExperimentConfig:
  """The driver's checks that need the devices and the task. Returns the params with all that depends on the data.

  Without them, if that would take the memory of a GPU from a run, or wait for another process.
  """
  waits = params.runtime.distribution_strategy.lower() not in _LOCAL_STRATEGIES or flags.FLAGS.tpu
  if hardware.visible_gpus() or 'TF_CONFIG' in os.environ or waits or flags.FLAGS.mode == 'export':
    return params
  params = distribute.with_precision(params, flags.FLAGS.model_dir)
  strategy, task = ext_flags.strategy_and_task(params, flags.FLAGS.model_dir)
  options = run_options.RunOptions(checkpoint=flags.FLAGS.checkpoint, branch=flags.FLAGS.branch)
  experiment = run_options.Experiment(strategy, task, flags.FLAGS.mode, params, flags.FLAGS.model_dir, options=options)
  run_checks.check_run(experiment)
  return params.replace(trainer=epochs.in_steps(params.trainer, params.task, task))


# The form.


def _parsed_flags(*without: str) -> object:
  """The flags that make a configuration, some of them left out."""
  names = ('experiment', 'mode', 'config_file', 'params_override', 'set', 'tpu', 'tf_data_service')
  return types.SimpleNamespace(**{name: flags.FLAGS[name].value for name in names if name not in without})


def _params_of(flags_obj: flags.FlagValues) -> definitions.ExperimentConfig | None:
  """The configuration as far as it can be made: invalid values are left out. None if there is no such experiment."""
  configuration = parser.ExperimentParser(flags_obj)
  try:
    params = configuration.base_experiment()
  except Exception:  # pylint: disable=broad-except  # The factory's own; it was reported above.
    return None
  try:
    with errors.Mistakes() as mistakes:
      configuration.override(params, mistakes)
  except errors.UserError:
    pass
  return params


class _FieldsOfForm:
  """The fields of a configuration."""

  def __init__(self, params: definitions.ExperimentConfig | None):
    self._params = params
    self._fields = [] if params is None else list(overrides.read_leaves(params))
    self._names = {} if params is None else short_names.vocabulary(params, flags.FLAGS.experiment)
    self._unread = {} if params is None else checks.unread_now(params)
    self._entries = [] if params is None else checks.unset_entries(params)

  def answer(self, with_fields: bool) -> json_values.JsonObject:
    """The contents of a form.

    `values`: path -> text for --set, `strings`: the string that this means where it is quoted, `shape`: changes when
    other fields are to be shown, `goal` of a sweep by the best checkpoint's metric ('' if unknown), and, if requested,
    `fields` and `about` the experiment. Of a field: its `path`; `key`, the best name for --set; `names`, all that set
    it first; `also`, the other values that `key` sets; `kind`, the input that suits it; `default`, its text without any
    --set; and the text of `official-ext describe`.
    """
    shape = [(field.path, overrides.type_name(field.hint), self._unread.get(field.path)) for field in self._fields]
    values = {field.path: _text_of_value(field.value) for field in self._fields}
    shown = {field.path: _shown_value(field.value) for field in self._fields if isinstance(field.value, str)}
    found: json_values.JsonObject = {
      'values': values,
      'strings': {path: value for path, value in shown.items() if value != values[path]},
      'shape': hashlib.sha256(json.dumps([*shape, *self._entries]).encode()).hexdigest()[:16],
      'goal': '' if self._params is None else _goal(self._params.trainer),
    }
    if with_fields:
      base = _params_of(_parsed_flags('set'))
      defaults = {} if base is None else {field.path: field.value for field in overrides.read_leaves(base)}
      descriptions = [] if self._params is None else describe.descriptions(self._params, flags.FLAGS.experiment)
      found['about'] = None if self._params is None else _experiment(flags.FLAGS.experiment)
      found['fields'] = [self._described(each, defaults) for each in descriptions]
      found['fields'] += map(_entry, self._entries)
    return found

  def _described(self, each: describe.Description, defaults: Mapping[str, object]) -> dict[str, object]:
    path, hint = each.field.path, each.field.hint
    key = next((name for name in each.short_names if self._names[name][0] == path), path)
    allowed = overrides.members(hint)
    return {
      'path': path,
      'key': key,
      'also': list(self._names.get(key, ())[1:]),
      'short_names': list(each.short_names),
      'names': [path, *(name for name in each.short_names if self._names[name][0] == path)],
      'type': overrides.type_name(hint),
      'kind': 'choice' if each.choices else _kind(allowed),
      'nullable': type(None) in allowed,
      'choices': [_text_of_value(choice) for choice in each.choices],
      'range': each.interval.describe() if each.interval else '',
      'meaning': each.meaning,
      'unread': self._unread.get(path, ''),
      'default': _text_of_value(defaults[path]) if path in defaults else None,
      'default_string': _shown_value(defaults[path]) if isinstance(defaults.get(path), str) else None,
      'is_secret': each.is_secret or safe_text.is_masked(_shown_value({path.rpartition('.')[2]: 'x'}).popitem()[1]),
    }

  def assigned(self, lines: Sequence[str]) -> list[dict[str, object]]:
    """Lines of the driver, each with its subject."""
    return [{'text': line, 'field': self._field_of(line)} for line in lines]

  def _field_of(self, line: str) -> str | None:
    """A dotted path, the name of a --set that has no field, a flag such as `--mode`; None if nothing in a form."""
    subject = line.partition(': ')[0].partition(', ')[0].partition(' ')[0]
    is_set = _SET.match(line)
    if is_set:
      subject = is_set[1]
    elif subject.startswith('--'):
      return subject.partition('=')[0].rstrip(':')
    given = [text.partition('=')[0].strip() for text in flags.FLAGS['set'].value or ()]
    known = {*(field.path for field in self._fields), *self._entries}
    if subject in known:
      return subject
    if subject in self._names:
      return self._names[subject][0]
    if subject in given:
      return subject
    inside = [path for path in known if subject.startswith(f'{path}.')]  # An element of a list, or of a mapping.
    outside = [name for name in given if name.startswith(f'{subject}.')]  # Something in an alternative.
    return max(inside, key=len) if inside else next(iter(outside), None)


def _goal(trainer: definitions.TrainerConfig) -> str:
  """The goal of a sweep over the best checkpoint's metric: 'maximize' or 'minimize'; '' if it is unknown."""
  mode = metric_direction.COMPARISONS.get(trainer.best_checkpoint_metric_comp) or metric_direction.direction(
    trainer.best_checkpoint_eval_metric
  )
  return {'max': 'maximize', 'min': 'minimize'}.get(mode or '', '')


def _entry(path: str) -> json_values.JsonObject:
  """A field that a mapping may have, and has not."""
  texts = {'range': '', 'meaning': 'Read, and not set.', 'unread': '', 'type': 'anything', 'kind': 'yaml'}
  lists: dict[str, list[str]] = {'also': [], 'short_names': [], 'names': [path], 'choices': []}
  return {
    'path': path,
    'key': path,
    **texts,
    **lists,
    'nullable': True,
    'default': None,
    'default_string': None,
    'is_entry': True,
    'is_secret': False,
  }


def _kind(allowed: Sequence[Any]) -> str:
  """Which input suits a type: 'bool', 'int', 'float', 'string', or 'yaml' for all others."""
  kinds = set(allowed) - {type(None)}
  if kinds == {int, float}:
    return 'float'
  names = {bool: 'bool', int: 'int', float: 'float', str: 'string'}
  return names.get(kinds.pop(), 'yaml') if len(kinds) == 1 else 'yaml'


def _shown_value(value: object) -> Any:
  """A value without secrets."""
  return safe_text.mask_values(value.as_dict() if isinstance(value, base_config.Config) else value)


def _text_of_value(value: object) -> str:
  """A value as --set takes it, without secrets."""
  try:
    return config_text.argument_of(_shown_value(value))
  except (TypeError, errors.UserError):
    return str(value)


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
      names: the modules that --registry names.
      without: the modules that each request imports, since they cannot be imported here.
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
    for name in names:  # The user's: tried in a fork, which is cheaper than a new process.
      if processes.last_answer(functools.partial(_answers, {'do': 'try', 'arguments': [name]}), _SECONDS).get(
        'imported'
      ):
        registries.import_registry(name, 'import')
    self._states = {path: _state_of_file(path) for path in _module_files()}

  def are_stale(self) -> bool:
    """Whether a file has changed since."""
    return any(_state_of_file(path) != state for path, state in self._states.items())


def _module_files() -> set[str]:
  """The files of all modules that are not part of Python or an installed package."""
  installed = tuple({sys.prefix, sys.base_prefix, os.path.realpath(sys.prefix)})
  found = map(package_imports.file_of_module, list(sys.modules.values()))
  return {path for path in found if isinstance(path, str) and not path.startswith(installed)}


def _state_of_file(path: str) -> object:
  try:
    stat = os.stat(path)
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
  except OSError:
    return None


def _end_with_stdin() -> None:
  """Ends this process when its stdin is closed, as when the server was killed."""
  poll = select.poll()
  poll.register(0, 0)  # Only that the other end is closed.
  poll.poll()
  os.killpg(0, signal.SIGKILL)  # With the process that answers.


def _answers(request: json_values.JsonMapping) -> Iterator[Mapping[str, object]]:
  """Yields the answers to a request, each more complete than the one before. Called in a fork."""
  try:
    if request['do'] == 'try':
      registries.import_registry(request['arguments'][0], 'import')
      yield {'imported': True}
    else:
      yield from answer_request(request)
  except BaseException as error:  # pylint: disable=broad-except  # Anything may be in a registry.
    yield {'failure': '; '.join(error_lines(error))}


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
  if program != driver.INSTALLED_PROGRAM:  # That one finds modules in the current folder, as this process does.
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
      found = processes.last_answer(functools.partial(_answers, request), request.get('seconds', _SECONDS))
    print(json.dumps({'id': request['id'], **found}), file=answers)
    if is_stale:
      return
