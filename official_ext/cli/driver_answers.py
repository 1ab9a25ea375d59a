"""The driver's answer to a command line, and the fields of a form for it.

Each function is meant for a separate process (driver_server.py): flags, gin and devices are states of the process.
Nothing is written.
"""

from collections.abc import Iterator, Mapping, Sequence
import hashlib
import inspect
import json
import os
import re
import types
from typing import Any

from absl import flags
from official.modeling.hyperparams import base_config

from official_ext.base import credentials
from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base import value_text
from official_ext.base.files import storage
from official_ext.base.processes import visible_gpus
from official_ext.cli import configuring
from official_ext.cli import describe
from official_ext.cli import exit_status
from official_ext.cli import flags as ext_flags
from official_ext.training.config import checks
from official_ext.training.config import definitions
from official_ext.training.config import epochs
from official_ext.training.config import overrides
from official_ext.training.config import parser
from official_ext.training.config import registries
from official_ext.training.config import short_names
from official_ext.training.devices import failures
from official_ext.training.loop import experiment_run
from official_ext.training.loop import run_checks
from official_ext.training.loop import run_record

_PART = re.compile(r'(Command|Hardware and time|Time|Result|Reference): *(.*)')
_SET = re.compile(r'--set=([^=:\s]+)')
# Strategies that are made without waiting for another process or machine.
_LOCAL_STRATEGIES = ('auto', 'mirrored', 'one_device', 'off')


def answer(request: json_types.JsonMapping) -> Iterator[json_types.JsonObject]:
  """Answers a request: yields answers, of which a later one says more; the last is whole.

  Args:
    request: `do`: 'list' or 'check'; for both `arguments`, flags of the driver. For 'check', true or false: `fields`,
      `params`, and `quick`, without the checks that need devices and the task; `cwd`, if the command is given in
      another folder than this process.
  """
  arguments = list(request['arguments'])
  if request['do'] == 'list':
    yield _list(arguments)
  else:
    yield from _check(arguments, request)


def lines_of(error: BaseException) -> list[str]:
  """The driver's message for an error that ends it, without `error: ` and the place of a traceback."""
  if hasattr(error, 'exit_status'):
    lines = exit_status.messages_of(error)
  elif isinstance(error, SystemExit):
    lines = [failures.describe_exit(error)]
  else:
    foreseen = storage.explain(error) or failures.refusal_in(error)
    lines = [str(foreseen) if foreseen else failures.describe(error)]
  return [credentials.mask(line) for line in lines]


# The list.


def _list(arguments: Sequence[str]) -> json_types.JsonObject:
  """The experiments, with the errors of those that cannot be loaded."""
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
      lines += lines_of(error)
  return {'experiments': [_experiment(name) for name in parser.experiment_names()], 'lines': lines}


def _experiment(name: str) -> dict[str, object]:
  doc = inspect.getdoc(parser.factory_of(name)) or ''
  return {'name': name, 'summary': doc.partition('\n')[0], 'doc': doc, 'parts': _parts(doc)}


def _parts(doc: str) -> dict[str, str]:
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


def _check(arguments: Sequence[str], wishes: json_types.JsonMapping) -> Iterator[json_types.JsonObject]:
  params, lines = None, []
  try:
    if wishes.get('cwd'):
      os.chdir(wishes['cwd'])
    try:
      ext_flags.parse_for_driver(['train.py', *arguments])
    except errors.UserError as error:  # Printed unchanged.
      raise errors.UserErrors([str(error)]) from error
    params = configuring.configuration()
    run_record.check_writable(flags.FLAGS.model_dir)
  except BaseException as error:  # pylint: disable=broad-except  # Anything may be in a registry.
    lines = lines_of(error)
  form = _Form(params or _params_of(_flags()))
  found = {**form.answer(bool(wishes.get('fields'))), 'lines': form.assigned(lines), 'complete': bool(lines)}
  yield found
  if params is None or lines or wishes.get('quick'):
    return
  try:
    params = _check_run(params)
  except BaseException as error:  # pylint: disable=broad-except  # Anything may be in a task.
    found['lines'] = form.assigned(lines_of(error))
  yield {**found, 'complete': True, **({'params': params.masked_yaml()} if wishes.get('params') else {})}


def _check_run(params: definitions.ExperimentConfig) -> definitions.ExperimentConfig:
  """The driver's checks that need the devices and the task. Returns the params with all that depends on the data.

  Without them, if that would take the memory of a GPU from a run, or wait for another process.
  """
  waits = params.runtime.distribution_strategy.lower() not in _LOCAL_STRATEGIES or flags.FLAGS.tpu
  if visible_gpus.names() or 'TF_CONFIG' in os.environ or waits or flags.FLAGS.mode == 'export':
    return params
  strategy, task = configuring.strategy_and_task(params, flags.FLAGS.model_dir)
  options = experiment_run.RunOptions(checkpoint=flags.FLAGS.checkpoint, branch=flags.FLAGS.branch)
  experiment = experiment_run.Experiment(
    strategy, task, flags.FLAGS.mode, params, flags.FLAGS.model_dir, options=options
  )
  run_checks.check_run(experiment)
  return params.replace(trainer=epochs.in_steps(params.trainer, params.task, task))


# The form.


def _flags(*without: str) -> object:
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


class _Form:
  """The fields of a configuration."""

  def __init__(self, params: definitions.ExperimentConfig | None):
    self._params = params
    self._fields = [] if params is None else list(overrides.read_leaves(params))
    self._names = {} if params is None else short_names.vocabulary(params, flags.FLAGS.experiment)
    self._unread = {} if params is None else checks.unread_now(params)
    self._entries = [] if params is None else checks.unset_entries(params)

  def answer(self, with_fields: bool) -> json_types.JsonObject:
    """The contents of a form.

    `values`: path -> text for --set, `strings`: the string that this means where it is quoted, `shape`: changes when
    other fields are to be shown, and, if requested, `fields` and `about` the experiment. Of a field: its
    `path`; `key`, the best name for --set; `names`, all that set it first; `also`, the other values that `key` sets;
    `kind`, the input that suits it; `default`, its text without any --set; and the text of `official-ext describe`.
    """
    shape = [(field.path, overrides.type_name(field.hint), self._unread.get(field.path)) for field in self._fields]
    values = {field.path: _text(field.value) for field in self._fields}
    shown = {field.path: _shown(field.value) for field in self._fields if isinstance(field.value, str)}
    found: json_types.JsonObject = {
      'values': values,
      'strings': {path: value for path, value in shown.items() if value != values[path]},
      'shape': hashlib.sha256(json.dumps([*shape, *self._entries]).encode()).hexdigest()[:16],
    }
    if with_fields:
      base = _params_of(_flags('set'))
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
      'choices': [_text(choice) for choice in each.choices],
      'range': each.interval.describe() if each.interval else '',
      'meaning': each.meaning,
      'unread': self._unread.get(path, ''),
      'default': _text(defaults[path]) if path in defaults else None,
      'default_string': _shown(defaults[path]) if isinstance(defaults.get(path), str) else None,
      'is_secret': each.is_secret or credentials.is_masked(_shown({path.rpartition('.')[2]: 'x'}).popitem()[1]),
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


def _entry(path: str) -> json_types.JsonObject:
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


def _shown(value: object) -> Any:
  """A value without secrets."""
  return credentials.mask_values(value.as_dict() if isinstance(value, base_config.Config) else value)


def _text(value: object) -> str:
  """A value as --set takes it, without secrets."""
  try:
    return value_text.of_value(_shown(value))
  except (TypeError, errors.UserError):
    return str(value)
