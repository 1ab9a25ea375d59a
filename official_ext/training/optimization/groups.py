"""Groups variables that have another learning rate, no weight decay, or are frozen; and names variables for this.

Groups work inside any tf_keras optimizer, legacy or new, at the point where it updates one variable:

- learning_rate_scale s: if the optimizer changes a variable from x to x + d, it becomes x + s * d instead. That is the
  update under s times the learning rate, because every update is proportional to it, weight decay included.
- weight_decay false: the optimizer does not decay the variable.
- frozen: the optimizer never sees the variable, and its gradient does not count in the norm for clipping.

Names are 'dense/kernel', and in containers 'encoder/dense/kernel'. A container of networks, as in manual optimization,
has no `call` that calls them: variables of two networks may have the same name, so the attribute of the network
precedes it.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import re
import threading

from official.modeling.hyperparams import base_config
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import tf_internals
from official_ext.training.optimization import configs


def name_of(variable: tf.Variable) -> str:
  """A variable's own name, 'dense/kernel': the same for a variable and its copy on a replica."""
  return re.sub(r'(/replica_\d+)?(:\d+)?$', '', tf_internals.whole_variable(variable).name)


def key_of(variable: tf.Variable) -> Hashable:
  """A key that differs between variables of the same name; the same for a variable and its copy on a replica."""
  return tf_internals.unique_id(tf_internals.whole_variable(variable))


def by_attribute(model: tf.Module) -> dict[Hashable, str]:
  """The names of a model's variables, by `key_of`, preceded by the attributes of containers.

  Args:
    model: a tf_keras model whose variables exist, or any tf.Module.

  Returns:
    'encoder/dense/kernel' for a variable in a container's attribute `encoder`, `heads/0/...` for one in the first
    element of a list; a variable's own name if it contains the attribute, and in functional and sequential models.
  """
  names: dict[Hashable, str] = {key_of(variable): name_of(variable) for variable in tf_internals.variables_of(model)}

  def walk(module, path):
    for attribute, part in _parts(module) if _is_container(module) else ():
      for variable in part.variables:
        own = name_of(variable)
        if attribute.split('/')[0] not in own.split('/') and names.get(key_of(variable), own) == own:
          names[key_of(variable)] = f'{path}{attribute}/{own}'
      walk(part, f'{path}{attribute}/')

  walk(model, '')
  return names


def by_part(model: tf.Module | None) -> dict[Hashable, str]:
  """The names of the variables in a model's `checkpoint_items`, by `key_of`, preceded by the item: 'backbone/...'.

  Model Garden's models list their parts there: `backbone`, `decoder` and `head`, or `encoder`.

  Args:
    model: any model; without such items there are no names.
  """
  items = tf_internals.checkpoint_items_of(model)
  found: dict[Hashable, str] = {}
  for part, item in items.items() if isinstance(items, Mapping) else ():
    for variable in tf_internals.variables_of(item):
      found.setdefault(key_of(variable), f'{part}/{name_of(variable)}')
  return found


def _is_container(module: tf.Module) -> bool:
  """Whether a module keeps networks as attributes, and is not a network that Keras itself makes of layers."""
  if isinstance(module, tf_keras.Model):
    return not (isinstance(module, tf_keras.Sequential) or tf_internals.is_functional(module))
  return isinstance(module, tf.Module) and not isinstance(module, tf_keras.layers.Layer)


def _parts(module: tf.Module) -> Iterator[tuple[str, tf.Module]]:
  for attribute, value in vars(module).items():
    if attribute.startswith('_') or isinstance(value, tf_keras.metrics.Metric):
      continue
    if isinstance(value, tf.Module):
      yield attribute, value
    elif isinstance(value, (list, tuple, dict)):
      items = value.items() if isinstance(value, dict) else enumerate(value)
      for key, part in items:
        if isinstance(part, tf.Module):
          yield f'{attribute}/{key}', part


PATH = 'trainer.optimizer_config.parameter_groups'
_ORDINARY = configs.ParameterGroupConfig()


class ParameterGroups:
  """The groups of a configuration. A variable belongs to the first group with a pattern that matches it."""

  def __init__(self, groups: Sequence[configs.ParameterGroupConfig], model: tf.Module | None = None):
    """Initializes the groups.

    Args:
      groups: `trainer.optimizer_config.parameter_groups`, checked.
      model: if it is a container, its attributes precede the names of variables, and so do its `checkpoint_items`: see
        `by_attribute` and `by_part`.
    """
    self._groups = tuple(groups)
    self._model = model
    self._names: dict[Hashable, str] = {}
    self._names_by_part: dict[Hashable, str] = {}
    self._known: dict[Hashable, configs.ParameterGroupConfig] = {}

  def name_of(self, variable: tf.Variable) -> str:
    """The name in which patterns are searched for, besides the variable's own name."""
    key = key_of(variable)
    if key not in self._names:  # Some models have no variables until their first call.
      self._names.update(by_attribute(self._model))
    return self._names.setdefault(key, name_of(variable))

  def _names_of(self, variable: tf.Variable) -> tuple[str, ...]:
    """All names in which patterns are searched for."""
    key, own = key_of(variable), name_of(variable)
    if key not in self._names_by_part:
      self._names_by_part.update(by_part(self._model))
    return self.name_of(variable), own, self._names_by_part.setdefault(key, own)

  def _matches(self, pattern: str, variable: tf.Variable) -> bool:
    return any(re.search(pattern, name) for name in self._names_of(variable))

  def group_of(self, variable: tf.Variable) -> configs.ParameterGroupConfig:
    """The group of a variable; a group that changes nothing if no pattern matches it."""
    key = key_of(variable)
    if key not in self._known:
      matching = (
        group for group in self._groups if any(self._matches(pattern, variable) for pattern in group.patterns)
      )
      self._known[key] = next(matching, _ORDINARY)
    return self._known[key]

  def without_frozen(
    self, grads_and_vars: Iterable[tuple[tf.Tensor, tf.Variable]]
  ) -> list[tuple[tf.Tensor, tf.Variable]]:
    """The pairs whose variables are not frozen."""
    return [(gradient, variable) for gradient, variable in grads_and_vars if not self.group_of(variable).frozen]

  def check(self, variables: Sequence[tf.Variable]) -> None:
    """Checks that every pattern puts a variable into its group, and that something is left to train.

    Args:
      variables: the trainable variables of the model.

    Raises:
      UserError: it names the pattern.
    """
    names = [self.name_of(variable) for variable in variables]
    for index, group in enumerate(self._groups):
      for number, pattern in enumerate(group.patterns):
        path = f'{PATH}.{index}.patterns.{number}: {pattern!r}'
        matching = [variable for variable in variables if self._matches(pattern, variable)]
        if not matching:
          raise errors.UserError(
            f'{path} matches none of the {len(names)} trainable variables: {", ".join(names[:6])}'
            f'{", ..." if len(names) > 6 else ""}'
          )
        if all(self.group_of(variable) is not group for variable in matching):
          raise errors.UserError(f'{path} matches only variables that belong to groups before it')
    if names and all(self.group_of(variable).frozen for variable in variables):
      raise errors.UserError(f'{PATH}: all trainable variables are frozen, nothing is left to train')

  def install(self, optimizer: tf_keras.optimizers.Optimizer) -> None:
    """Makes an optimizer follow the groups. Call it once, before its first update.

    Args:
      optimizer: a tf_keras optimizer, without wrappers around it.
    """
    apply_gradients = optimizer.apply_gradients
    optimizer.apply_gradients = lambda pairs, *args, **kwargs: apply_gradients(
      self.without_frozen(pairs), *args, **kwargs
    )
    if tf_internals.is_legacy(optimizer):
      self._install_in_legacy(optimizer)
    else:
      self._install_in_new(optimizer)
    optimizer.parameter_groups = self

  def _install_in_new(self, optimizer):
    update_step = optimizer.update_step
    tf_internals.restrict_weight_decay(optimizer, lambda variable: self.group_of(variable).weight_decay)
    # tf_keras decays all variables, then updates all. Here each is decayed and updated at once, under one scale.
    decays_itself = tf_internals.decays_in_its_own_way(optimizer)
    if not decays_itself:
      tf_internals.disable_weight_decay(optimizer)

    def decay_and_update(gradient, variable):
      if not decays_itself and optimizer.weight_decay and tf_internals.uses_weight_decay(optimizer, variable):
        factors = [tf.cast(factor, variable.dtype) for factor in (optimizer.weight_decay, optimizer.learning_rate)]
        variable.assign_sub(variable * factors[0] * factors[1])
      update_step(gradient, variable)

    optimizer.update_step = lambda gradient, variable: self._scaled(
      variable, lambda: decay_and_update(gradient, variable)
    )

  def _install_in_legacy(self, optimizer):
    current = threading.local()  # The variable being updated: the optimizer asks about weight decay by name alone.

    def asking_for(use_weight_decay):
      return lambda name: self.group_of(current.variable).weight_decay and use_weight_decay(name)

    def scaled(variable, update):
      current.variable = variable
      return self._scaled(variable, update)

    tf_internals.wrap_legacy_weight_decay(optimizer, asking_for)
    tf_internals.wrap_legacy_updates(optimizer, scaled)

  def _scaled(self, variable, update):
    """Runs `update`, which changes `variable`, and multiplies the change by the scale of the variable's group."""
    scale = self.group_of(variable).learning_rate_scale
    if scale == 1:
      return update()
    before = tf.identity(variable.read_value())
    operation = update()
    with tf.control_dependencies([] if operation is None else [operation]):
      return variable.assign(before + tf.cast(scale, before.dtype) * (variable.read_value() - before))


def install(
  groups: Sequence[configs.ParameterGroupConfig],
  optimizer: tf_keras.optimizers.Optimizer,
  model: tf.Module | None = None,
) -> ParameterGroups | None:
  """Makes an optimizer follow a configuration's groups, and returns them; None for no groups."""
  if not groups:
    return None
  installed = ParameterGroups(groups, model)
  installed.install(optimizer)
  return installed


def of(optimizer: tf_keras.optimizers.Optimizer) -> ParameterGroups | None:
  """The groups that an optimizer without wrappers follows, None if it has none."""
  return getattr(optimizer, 'parameter_groups', None)


OPTIMIZER = 'trainer.optimizer_config.optimizer'
_NORMALIZATION = re.compile('norm', re.IGNORECASE)


def check_exclusions(path: str, config: base_config.Config | None, model: tf_keras.Model) -> str:
  """Checks the lists of patterns by which an optimizer includes or excludes variables, such as from weight decay.

  Args:
    path: the dotted path of the configuration.
    config: of the optimizer; None if the configuration does not choose it.
    model: its variables exist. An optimizer searches the patterns in their names.

  Returns:
    A line about the weights of normalizations that a list leaves out, if it excludes other variables from weight decay;
    '' if there is nothing to say.

  Raises:
    UserError: a list is one text, whose characters would count as patterns; or none of its patterns matches a variable.
  """
  names = [name_of(variable) for variable in model.trainable_variables]
  warning = ''
  for field in dataclasses.fields(config) if config is not None else ():
    patterns = getattr(config, field.name)
    if not patterns or not field.name.startswith(('exclude_from_', 'include_in_')):
      continue
    if isinstance(patterns, str):
      if 'List' not in str(field.type):
        continue
      raise errors.UserError(f'{path}.{field.name}: expected a list of patterns, got the text {patterns!r}')
    excluded = {name for name in names if any(re.search(pattern, name) for pattern in patterns)}
    if names and not excluded:
      raise errors.UserError(
        f'{path}.{field.name}: {", ".join(map(repr, patterns))}: no pattern matches one of the {len(names)} trainable '
        f'variables: {", ".join(names[:6])}{", ..." if len(names) > 6 else ""}'
      )
    if field.name == 'exclude_from_weight_decay':
      left = [name for name in _of_normalizations(model) if name in names and name not in excluded]
      if left:
        more = f' and {len(left) - 3} more' if len(left) > 3 else ''
        warning = f'{path}.{field.name}: the weights of normalizations decay: {", ".join(left[:3])}{more}'
  return warning


def _of_normalizations(model: tf.Module) -> list[str]:
  """The names of the weights of layers that normalize, by the names of their classes."""
  layers = [part for part in model.submodules if _NORMALIZATION.search(type(part).__name__)]
  own = [variable for layer in layers for variable in vars(layer).values() if isinstance(variable, tf.Variable)]
  return [name_of(variable) for variable in own]
