"""From flags to one checked, locked configuration: factory, files, flags, overrides, checks."""

from collections.abc import Iterator, Mapping, Sequence
import re
from typing import Any

from absl import flags
from absl import logging
import gin
from official.core import train_utils
from official.modeling.hyperparams import base_config

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import model_garden_internals
from official_ext.base.files import paths
from official_ext.training.config import checks
from official_ext.training.config import definitions
from official_ext.training.config import epochs
from official_ext.training.config import overrides
from official_ext.training.config import short_names


def experiment_names() -> list[str]:
  """The names of all registered experiments, sorted."""

  def names(collection: Mapping[str, object], prefix: str) -> Iterator[str]:
    for name, entry in collection.items():
      if isinstance(entry, dict):
        yield from names(entry, f'{prefix}{name}/')
      else:
        yield prefix + name

  return sorted(names(model_garden_internals.registered_configs(), ''))


def factory_of(experiment: str) -> Any:
  """The function that makes an experiment's configuration.

  Raises:
    UserError: no experiment has this name.
  """
  if experiment not in experiment_names():
    raise no_such_experiment(experiment, '--registry=MODULE imports experiments that registry_imports.py does not')
  entry: Any = model_garden_internals.registered_configs()
  for part in experiment.split('/'):
    entry = entry[part]
  return entry


def no_such_experiment(experiment: str, reason: str) -> errors.UserError:
  """The error about an unregistered experiment, with near names and a reason, which begins with a flag."""
  known = experiment_names()
  near = errors.nearest_names(experiment, known, count=3) or [name for name in known if experiment in name][:3]
  hint = f'did you mean {" or ".join(near)}? ' if near else ''
  return errors.UserError(
    f'--experiment={experiment}: no such experiment; {hint}{reason}; `official-ext list` shows all'
  )


class ExperimentParser(train_utils.ExperimentParser):
  """Builds a configuration from flags, in the order of the methods that `parse` calls; a later value wins.

  The flags are an absl FlagValues or any object with some of the attributes experiment, mode, config_file,
  params_override, set, tpu, tf_data_service.
  """

  def __init__(self, flags_obj: flags.FlagValues):
    super().__init__(flags_obj)
    self._given: set[str] = set()  # The dotted paths of the fields that the command line names.

  def parse(self) -> definitions.ExperimentConfig:
    """See base class. The result is not checked for ranges, and not locked."""
    params = self.base_experiment()
    with errors.Mistakes() as mistakes:
      self.override(params, mistakes)
    return params

  def override(self, params: definitions.ExperimentConfig, mistakes: errors.Mistakes) -> None:
    """Applies all flags to an experiment, in place, and notes the errors."""
    for source in (
      self.parse_config_file,
      self.parse_runtime,
      self.parse_data_service,
      self.parse_params_override,
      self.parse_set,
      self.check_data_service,
      _expand_homes,
      self.fill_seeds,
      self.check_given,
    ):
      mistakes.check(source, params)

  def base_experiment(self) -> definitions.ExperimentConfig:
    """The registered experiment, with the fields of this library."""
    if not self.flag('experiment'):
      raise errors.UserError('--experiment: must be given; `official-ext list` lists all')
    return definitions.upgrade(factory_of(self.flag('experiment'))())

  def parse_config_file(self, params):
    """See base class."""
    with errors.Mistakes() as mistakes:
      for path in self.flag('config_file') or ():
        with mistakes.noted():
          values = config_text.load_file(path, '--config_file')
          with mistakes.noted(f' (in {path})'):
            _override(params, values)
    return params

  def parse_runtime(self, params):
    """See base class. Without a flag, the files' value stays."""
    if self.flag('tpu'):
      _override(params, {'runtime': {'tpu': self.flag('tpu')}})
    return params

  def parse_data_service(self, params):
    """See base class."""
    address = self.flag('tf_data_service')
    for path, data in checks.data_configs(params.task) if address else ():
      overrides.override(data, {'tf_data_service_address': address}, path)
    return params

  def check_data_service(self, params):
    """Refuses the address of a tf.data service that is not used."""
    if self.flag('tf_data_service'):
      checks.check_data_service(params)
    return params

  def parse_params_override(self, params):
    """See base class."""
    if self.flag('params_override'):
      values = config_text.load_overrides(self.flag('params_override'), '--params_override')
      self._given.update(_paths(values))
      _override(params, values)
    return params

  def parse_set(self, params):
    """Applies every --set: choices among alternatives with the dotted paths, then the other short names."""
    with errors.Mistakes() as mistakes:
      self._parse_set(params, mistakes)
    return params

  def _parse_set(self, params, mistakes):
    by_path: json_values.JsonObject = {}
    by_short_name: json_values.JsonObject = {}
    for text in self.flag('set') or ():
      with mistakes.noted():
        name, equals, value = text.partition('=')
        name = name.strip()
        if not (name and equals):
          raise errors.UserError(f'--set={text}: expected --set=NAME=VALUE')
        group = by_path if '.' in name or name in overrides.names(params) else by_short_name
        if name in group:
          raise errors.UserError(f'{name}: given twice in --set')
        group[name] = config_text.load_value(value, f'--set={name}')
    experiment = self.flag('experiment')

    followers: json_values.JsonObject = {}
    shares: list[str] = []

    def use_short_name(name):
      path, *following = short_names.resolve(name, params, experiment)
      followers.update(dict.fromkeys(following, by_short_name[name]))
      shares.extend(short_names.shares(name, params, experiment))
      if path in by_path:
        raise errors.UserError(f'{path}: given twice in --set, once by the short name {name}')
      by_path[path] = by_short_name[name]
      return {path: by_short_name[name]}

    choosing = [name for name in by_short_name if short_names.chooses(name, experiment)]
    for name in choosing:
      mistakes.check(use_short_name, name)
    mistakes.check(overrides.override, params, _nest(by_path))
    for name in by_short_name:
      if name not in choosing:
        with mistakes.noted():
          overrides.override(params, _nest(use_short_name(name)))
    mistakes.check(overrides.override, params, _nest(self._unset(followers, shares, by_path, params)))
    self._given.update(by_path)
    _settle_length(params, _nest(by_path))

  def check_given(self, params):
    """Refuses fields that may not be set in an experiment: see `checks.check_given`."""
    checks.check_given(params, self._given)
    return params

  def _unset(self, followers, shares, by_path, params):
    """The values of fields that follow another one, or keep their share of the length: if no --set, and no file, has
    set them.
    """
    if not (followers or shares):
      return {}
    values_of = lambda config: {leaf.path: leaf.value for leaf in overrides.leaves(config, selected=False)}
    registered, present = values_of(self.base_experiment()), values_of(params)
    lengths = present['trainer.train_steps'], registered['trainer.train_steps']
    shared = {path: short_names.share_of(present[path], *lengths) for path in shares if present[path]}
    is_set = lambda path: path in by_path or present.get(path) != registered.get(path)
    return {path: value for path, value in {**followers, **shared}.items() if not is_set(path)}

  def fill_seeds(self, params):
    """Makes the order of training data a function of `runtime.seed`, unless the data's own fields are set."""
    for path, data in checks.data_configs(params.task):
      if path.endswith('train_data'):
        for name, value in (('seed', params.runtime.seed), ('deterministic', True)):
          if name in vars(data) and vars(data)[name] is None:
            data.__dict__[name] = value
    return params

  def flag(self, name: str) -> Any:
    """The value of a flag; None if the flags lack it: a driver need not define all."""
    return getattr(self._flags_obj, name, None)


def _expand_homes(params: base_config.Config) -> None:
  """Expands `~/` at the start of values, as shells do only at the start of a word, and leaves out `file://`."""
  for field in overrides.walk(params, enters=lambda *_: True):
    value = field.value
    if isinstance(value, str):
      vars(field.owner)[field.name] = _expand_home(value, field.path)
    elif isinstance(value, (list, tuple)) and any(isinstance(item, str) for item in value):
      items = (_expand_home(item, field.path) if isinstance(item, str) else item for item in value)
      vars(field.owner)[field.name] = type(value)(items)


def _expand_home(value: str, where: str) -> str:
  """A path, or, of `input_path`, patterns joined by commas. `~` without a slash may mean anything."""
  before = r'(^|,\s*)' if where.endswith('input_path') else '(^)'
  if not where.endswith('uri'):  # Of MLflow, which reads file:// itself.
    value = re.sub(before + r'file://(?:localhost)?(?=/)', r'\1', value)
  return re.sub(before + r'(~[\w.-]*)(?=/)', lambda m: m.group(1) + paths.expand_home(m.group(2), where), value)


def _paths(values: object, path: str = '') -> Iterator[str]:
  """The dotted paths of nested mappings."""
  if isinstance(values, Mapping) and values:
    for name, value in values.items():
      yield from _paths(value, f'{path}.{name}' if path else str(name))
  else:
    yield path


def _nest(values: Mapping[str, object]) -> dict[str, object]:
  return config_text.nest(((path.split('.'), value) for path, value in values.items()), '--set')


def _override(params: definitions.ExperimentConfig, values: Mapping[str, object]) -> None:
  """Applies the values of one source."""
  with errors.Mistakes() as mistakes:
    mistakes.check(overrides.override, params, values)
    _settle_length(params, values)


def _settle_length(params: definitions.ExperimentConfig, values: Mapping[str, object]) -> None:
  """Lets a source that sets one of train_steps and train_epochs override the other too; `check` refuses both.

  An interval in steps overrides the one in epochs; one in epochs takes precedence anyway.
  """
  given = values.get('trainer')
  lengths = ('train_steps', 'train_epochs')
  chosen = [name for name in lengths if isinstance(given, Mapping) and name in given and vars(params.trainer)[name]]
  if len(chosen) == 1:
    for name in lengths:
      if name not in chosen:
        params.trainer.__dict__[name] = type(vars(params.trainer)[name])(0)
  for in_epochs, in_steps in epochs.INTERVALS.items():
    if isinstance(given, Mapping) and in_steps in given:
      if in_epochs in given and vars(params.trainer)[in_epochs]:
        raise errors.UserError(f'trainer.{in_epochs}: set either trainer.{in_steps} or trainer.{in_epochs}, not both')
      params.trainer.__dict__[in_epochs] = 0.0


def parse_configuration(
  flags_obj: flags.FlagValues, lock_return: bool = True, print_return: bool = True
) -> definitions.ExperimentConfig:
  """Parses the configuration of a run.

  Args:
    flags_obj: see `ExperimentParser`. Without a mode, checks that concern one mode are skipped.
    lock_return: whether to make the result immutable, at every depth.
    print_return: whether to log the result.

  Returns:
    The checked configuration.

  Raises:
    UserError: all mistakes that can be found without a model, each in one line that names the field, file or flag.

  Example:

    >>> import types
    >>> from experiments import digits_mlp  # Registers it.
    >>> flags = types.SimpleNamespace(experiment='digits_mlp', set=['train_steps=100', 'runtime.seed=3'])
    >>> params = ext.parse_configuration(flags)
    >>> params.trainer.train_steps, params.task.train_data.seed
    (100, 3)
    >>> flags.set = ['train_step=100']
    >>> ext.parse_configuration(flags)
    Traceback (most recent call last):
      ...
    official_ext.base.errors.UserError: train_step: no such field or short name; did you mean train_steps?
  """
  parser = ExperimentParser(flags_obj)
  params = parser.base_experiment()
  mode = parser.flag('mode')
  debugs = parser.flag('debug')
  runs_once = parser.flag('dry_run') or debugs
  with errors.Mistakes() as mistakes:
    parser.override(params, mistakes)
    with mistakes.noted():
      # A field may seem to be missing because its source could not be read.
      checks.check(params, None if mistakes.lines else mode)
    if runs_once and not mistakes.lines:
      mistakes.check(checks.check_complete, params)
    model_dir = parser.flag('model_dir')
    if runs_once or (mode and model_dir):
      with mistakes.noted():
        used_for = 'train' if debugs else None if runs_once else mode
        checks.check_files(params, used_for, model_dir, parser.flag('checkpoint'))
  if lock_return:
    definitions.lock(params)
  if print_return and logging.vlog_is_on(logging.INFO):
    logging.info('Final experiment parameters:\n%s', config_text.dump(params.as_dict()))
  return params


def parse_gin(files: Sequence[str] | None, bindings: Sequence[str] | None) -> None:
  """Reads gin configuration files and bindings, as gin.parse_config_files_and_bindings does.

  Args:
    files: values of --gin_file.
    bindings: values of --gin_params, such as 'official_ext.Trainer.max_silent_recompilations = 10'.

  Raises:
    UserError: a file cannot be read; a binding names nothing, or several things.
  """
  try:
    gin.parse_config_files_and_bindings(files, bindings)
  except SystemExit as error:
    raise errors.UserError(
      f'--gin_file, --gin_params: {errors.origin(error)} calls sys.exit({error.code!r})'
    ) from error
  except Exception as error:  # An import of a gin file runs a module: anything may be in there.
    reason = ' '.join(str(error).split())
    raise errors.UserError(f'--gin_file, --gin_params: {reason}') from error
