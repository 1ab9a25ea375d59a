"""Groups of variables with another learning rate, without weight decay, or frozen.

They work inside any tf_keras optimizer, legacy or new, at the point where it updates one variable:

- learning_rate_scale s: if the optimizer changes a variable from x to x + d, it becomes x + s * d instead. That is the
  update under s times the learning rate, because every update is proportional to it, weight decay included.
- weight_decay false: the optimizer does not decay the variable.
- frozen: the optimizer never sees the variable, and its gradient does not count in the norm for clipping.
"""

from collections.abc import Hashable, Iterable, Sequence
import re
import threading

import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import tf_internals
from official_ext.training.optimization import optimizer_configs
from official_ext.training.optimization import variable_names

PATH = 'trainer.optimizer_config.parameter_groups'
_ORDINARY = optimizer_configs.ParameterGroupConfig()


class ParameterGroups:
  """The groups of a configuration. A variable belongs to the first group with a pattern that matches it."""

  def __init__(self, groups: Sequence[optimizer_configs.ParameterGroupConfig], model: tf.Module | None = None):
    """Initializes the groups.

    Args:
      groups: `trainer.optimizer_config.parameter_groups`, checked.
      model: if it is a container, its attributes precede the names of variables, and so do its `checkpoint_items`: see
        variable_names.py.
    """
    self._groups = tuple(groups)
    self._model = model
    self._names: dict[Hashable, str] = {}
    self._names_by_part: dict[Hashable, str] = {}
    self._known: dict[Hashable, optimizer_configs.ParameterGroupConfig] = {}

  def name_of(self, variable: tf.Variable) -> str:
    """The name in which patterns are searched for, besides the variable's own name."""
    key = variable_names.key_of(variable)
    if key not in self._names:  # Some models have no variables until their first call.
      self._names.update(variable_names.by_attribute(self._model))
    return self._names.setdefault(key, variable_names.name_of(variable))

  def _names_of(self, variable: tf.Variable) -> tuple[str, ...]:
    """All names in which patterns are searched for."""
    key, own = variable_names.key_of(variable), variable_names.name_of(variable)
    if key not in self._names_by_part:
      self._names_by_part.update(variable_names.by_part(self._model))
    return self.name_of(variable), own, self._names_by_part.setdefault(key, own)

  def _matches(self, pattern: str, variable: tf.Variable) -> bool:
    return any(re.search(pattern, name) for name in self._names_of(variable))

  def group_of(self, variable: tf.Variable) -> optimizer_configs.ParameterGroupConfig:
    """The group of a variable; a group that changes nothing if no pattern matches it."""
    key = variable_names.key_of(variable)
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
  groups: Sequence[optimizer_configs.ParameterGroupConfig],
  optimizer: tf_keras.optimizers.Optimizer,
  model: tf.Module | None = None,
) -> ParameterGroups | None:
  """Makes an optimizer follow a configuration's groups, and returns them, None if there are none."""
  if not groups:
    return None
  installed = ParameterGroups(groups, model)
  installed.install(optimizer)
  return installed


def of(optimizer: tf_keras.optimizers.Optimizer) -> ParameterGroups | None:
  """The groups that an optimizer without wrappers follows, None if it has none."""
  return getattr(optimizer, 'parameter_groups', None)
