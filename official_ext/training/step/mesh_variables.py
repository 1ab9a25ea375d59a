"""Lets a step that is traced for a mesh return the values that it would write, instead of writing it.

DTensor of TensorFlow 2.20 loses the order of operations on one variable where a value has to be gathered first: a read
behind an assignment may give the value from before it, and an optimizer's update is wrong by a whole step. So inside
`Written.in_use` an assignment only notes the new value, and reads that follow take it from there. The variables are
written when the step has run.
"""

from collections.abc import Callable, Iterator
import contextlib
import functools
from typing import Any

import tensorflow as tf

from official_ext.base import errors
from official_ext.base import tf_internals
from official_ext.training.step import method_patch

# Kernels that write a variable by its handle, past its methods; they would bring the lost order back.
_WRITING = ('ResourceApply', 'ResourceSparseApply', 'ResourceScatter', 'AssignVariable', 'AssignAdd', 'AssignSub')


class Written:
  """The values that variables have after a step, while it is traced.

  Attributes:
    values: the id of a variable's handle -> (the variable, its last value), in the order of the first writes.
  """

  def __init__(self):
    self.values: dict[int, tuple[Any, tf.Tensor]] = {}
    self._graph: Any = None
    self._as_read: Callable[[Any, tf.Tensor], tf.Tensor] = lambda variable, value: value

  @contextlib.contextmanager
  def in_use(self, as_read: Callable[[Any, tf.Tensor], tf.Tensor]) -> Iterator[None]:
    """A context in the graph of a step.

    Args:
      as_read: a function from a variable and its value to the result of a read of it.
    """
    self._graph = tf.compat.v1.get_default_graph()
    self._as_read = as_read
    patches = {
      'assign': self._assigning(lambda variable, value: value),
      'assign_add': self._assigning(lambda variable, value: variable.read_value() + value),
      'assign_sub': self._assigning(lambda variable, value: variable.read_value() - value),
      '_read_variable_op': self._reading,
    }
    variable = tf_internals.OrdinaryVariable
    with method_patch.all_of(method_patch.MethodPatch(variable, name, wrap) for name, wrap in patches.items()):
      yield

  def _assigning(self, value_of: Callable[[Any, tf.Tensor], tf.Tensor]) -> Callable[..., Any]:
    def wrap(original):
      @functools.wraps(original)
      def assign(variable, value, use_locking=None, name=None, read_value=True):
        if tf.executing_eagerly():  # A variable that is made in the trace.
          return original(variable, value, use_locking, name, read_value)
        if tf.compat.v1.get_default_graph() is not self._graph:
          raise errors.UserError(
            f'runtime.mesh: {variable.name} is written inside a tf.function, tf.cond or tf.while_loop of the step; a '
            'mesh carries variables that are written by the step itself'
          )
        value = value_of(variable, tf.convert_to_tensor(value, variable.dtype))
        value.set_shape(variable.shape)  # DTensor has no layout for EnsureShape.
        self.values[id(variable.handle)] = (variable, value)
        return value if read_value else value.op

      return assign

    return wrap

  def _reading(self, original: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(original)
    def read(variable, *args, **kwargs):
      if tf.executing_eagerly():
        return original(variable, *args, **kwargs)
      known = self.values.get(id(variable.handle))
      return self._as_read(variable, original(variable, *args, **kwargs) if known is None else known[1])

    return read


def check_nothing_is_written(function: Any) -> None:
  """Refuses a traced step that writes variables past their methods.

  Raises:
    UserError: it names the kernel.
  """
  definition = function.graph.as_graph_def()
  groups = [definition.node, *(part.node_def for part in definition.library.function)]
  kernels = sorted({node.op for nodes in groups for node in nodes if node.op.startswith(_WRITING)})
  if kernels:
    raise errors.UserError(
      f'runtime.mesh: the step writes variables by {", ".join(kernels)}, as the legacy optimizers of tf_keras do, and '
      'DTensor loses the order of that; take one of its new optimizers, such as adamw_experimental or sgd_experimental'
    )
