"""Finds the operation that made a number that is not finite: records eager operations one by one, and goes back."""

from collections.abc import Iterable, Iterator
import contextlib
import dataclasses
import linecache
import os
import sys
import types

import numpy as np
import tensorflow as tf
import tf_keras

from official_ext.base import tf_internals
from official_ext.training.devices import failures
from official_ext.training.step import layer_calls

# The code between that of a task and the operation.
_identity = tf_internals.tensor_id
_HIDDEN = (*tf.__path__, *tf_keras.__path__, os.path.dirname(__file__), contextlib.__file__, '<frozen')


# The functions that call operations outside of the forward pass.
_PHASES = {'imperative_grad': 'backward', 'apply_gradients': 'update', 'apply_reduced': 'update'}


@dataclasses.dataclass
class Operation:
  """One operation that ran.

  Attributes:
    number: the first is 0.
    type: its name in TensorFlow, such as 'MatMul'.
    phase: 'forward', 'backward' or 'update'.
    layer: the path of the Keras layer that it belongs to; '' outside of layers.
    source: the line of the task's code that made it, or in the backward pass, the line of the differentiated operation.
    gradient_of: in the backward pass, the type of the operation whose gradient this one computes.
    inputs: descriptions of its inputs, if an output or an input is not finite.
    outputs: descriptions of its outputs, likewise.
    bad_inputs: the identities of the inputs that are not finite.
    has_nan: whether an output is NaN.
    place: file, line and function of `source`.
    made_from: the types of the operations that made its inputs, as far as known.
  """

  number: int
  type: str
  phase: str
  layer: str
  source: str
  gradient_of: str = ''
  inputs: tuple[str, ...] = ()
  outputs: tuple[str, ...] = ()
  bad_inputs: tuple[int, ...] = ()
  has_nan: bool = False
  place: str = ''
  made_from: tuple[str, ...] = ()

  def __str__(self) -> str:
    what = f'{self.type}, of the gradient of {self.gradient_of},' if self.gradient_of else self.type
    where = f'in layer {self.layer}' if self.layer else 'in no layer'
    return f'{what} {where}, {self.phase}'


class OpTrace:
  """A record of the operations that run inside `recording`. They must run eagerly, in one thread.

  Attributes:
    operations: all of them, in order.
  """

  def __init__(self):
    self.operations: list[Operation] = []
    self._makers: dict[int, Operation] = {}  # By the identity of a tensor.
    self._takers: dict[tuple[str, int], Operation] = {}  # By type and the identity of an input.
    self._users: dict[int, str] = {}  # By the identity of a tensor, the layer that used it last, for custom gradients.
    self._writers: dict[int, Operation] = {}  # By the identity of a variable's handle.
    self._bad: set = set()
    self._differentiated: tuple[str, Operation | None] | None = None

  @contextlib.contextmanager
  def recording(self) -> Iterator[None]:
    """A context that records the operations in it; tf.functions run as Python there."""
    ran_eagerly = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    tf_internals.add_op_callback(self._record)
    tf_internals.register_gradient_function(self._gradient)
    try:
      with layer_calls.followed():
        yield
    finally:
      tf_internals.register_gradient_function(tf_internals.gradient_function)
      tf_internals.remove_op_callback(self._record)
      tf.config.run_functions_eagerly(ran_eagerly)

  def _record(self, op_type, inputs, attrs, outputs, op_name=None, graph=None):
    """Records one operation; called by TensorFlow as an op callback."""
    del attrs, op_name
    if graph is not None:
      return
    bad_inputs = tuple(_identity(tensor) for tensor in inputs if _identity(tensor) in self._bad)
    operation = self._new_operation(op_type, inputs, bad_inputs)
    self.operations.append(operation)
    bad_outputs = [tensor for tensor in outputs if not is_finite(tensor)]
    self._bad.update(map(_identity, bad_outputs))
    writes = [tensor for tensor in inputs if tensor.dtype == tf.resource] if op_type != 'ReadVariableOp' else []
    if bad_outputs or bad_inputs or writes:
      operation.inputs = tuple(map(describe, inputs))
      operation.outputs = tuple(map(describe, outputs))
      operation.has_nan = any(np.isnan(_array(tensor)).any() for tensor in bad_outputs)
    if operation.layer and not operation.gradient_of:
      concerned = inputs if operation.phase == 'forward' else outputs
      self._users.update((_identity(tensor), operation.layer) for tensor in concerned)
    for tensor in inputs:
      self._takers[op_type, _identity(tensor)] = operation
    for tensor in outputs:
      self._makers[_identity(tensor)] = operation
    if op_type == 'ReadVariableOp' and bad_outputs and _identity(inputs[0]) in self._writers:
      self._makers.update((_identity(tensor), self._writers[_identity(inputs[0])]) for tensor in bad_outputs)
    for tensor in writes:
      self._writers[_identity(tensor)] = operation

  def _new_operation(self, op_type, inputs, bad_inputs):
    layer, gradient_of = layer_calls.current_path(), ''
    source, place, phase = _source()
    if self._differentiated is not None:
      phase, (gradient_of, forward) = 'backward', self._differentiated
      if forward:
        layer, source, place = forward.layer, forward.source, forward.place
    elif phase == 'backward':  # For a custom gradient, the tensors that it uses of the forward pass identify the layer.
      layer = next((self._users[_identity(t)] for t in inputs if _identity(t) in self._users), '')
    return Operation(
      len(self.operations),
      op_type,
      phase,
      layer,
      source,
      gradient_of,
      bad_inputs=bad_inputs,
      place=place,
      made_from=tuple(self._makers[_identity(t)].type for t in inputs if _identity(t) in self._makers),
    )

  def _gradient(self, op_name, attr_tuple, num_inputs, inputs, outputs, *args):
    """Replaces TensorFlow's own function that calls an operation's gradient; it does not always get all tensors."""
    forward = next((self._makers[_identity(t)] for t in outputs or () if _identity(t) in self._makers), None)
    if forward is None:
      takers = ((op_name, _identity(tensor)) for tensor in inputs or ())
      forward = next((self._takers[taker] for taker in takers if taker in self._takers), None)
    before, self._differentiated = self._differentiated, (op_name, forward)
    try:
      return tf_internals.gradient_function(op_name, attr_tuple, num_inputs, inputs, outputs, *args)
    finally:
      self._differentiated = before

  def origins(self, tensors: Iterable[tf.Tensor]) -> list[Operation]:
    """The operations that made the first numbers that are not finite, out of finite ones, on the way to these tensors.

    Args:
      tensors: tensors that are not finite, made while recording.

    Returns:
      The operations in the order in which they ran. One counts too if such a number in its input comes from no recorded
      operation, such as a constant.
    """
    return [
      operation
      for operation in self._ancestors(tensors)
      if not any(tensor in self._makers for tensor in operation.bad_inputs)
    ]

  def first_nan(self, tensors: Iterable[tf.Tensor]) -> Operation | None:
    """The first operation with a NaN as result on the way from the origins to these tensors."""
    return next((operation for operation in self._ancestors(tensors) if operation.has_nan), None)

  def _ancestors(self, tensors):
    found: dict[int, Operation] = {}
    pending = [_identity(tensor) for tensor in tensors]
    while pending:
      operation = self._makers.get(pending.pop())
      if operation is not None and operation.number not in found:
        found[operation.number] = operation
        pending.extend(operation.bad_inputs)
    return [found[number] for number in sorted(found)]


def _array(tensor: tf.Tensor) -> np.ndarray:
  """The values of a floating or complex tensor; an empty array for anything else."""
  if not tf.is_tensor(tensor) or not (tensor.dtype.is_floating or tensor.dtype.is_complex):
    return np.zeros([0])
  array = tensor.numpy()
  return array if tensor.dtype.is_complex or array.dtype == np.float64 else np.asarray(array, np.float32)


def is_finite(tensor: tf.Tensor) -> bool:
  """Whether no number of a tensor is infinite or NaN."""
  return bool(np.isfinite(_array(tensor)).all())


def describe(tensor: tf.Tensor) -> str:
  """Type, shape and range of a tensor, and how many of its numbers are NaN, infinite or zero."""
  if not tf.is_tensor(tensor) or tensor.dtype in (tf.resource, tf.variant, tf.string):
    return getattr(getattr(tensor, 'dtype', None), 'name', type(tensor).__name__)
  text = f'{tensor.dtype.name} {list(tensor.shape)}'
  array = np.abs(tensor.numpy()) if tensor.dtype.is_complex else tensor.numpy()
  if not array.size or array.dtype == bool:
    return text
  array = array.astype(np.float64)
  finite = array[np.isfinite(array)]
  if finite.size:
    text += f', {finite.min():.6g} to {finite.max():.6g}'
  counts = {'NaN': np.isnan(array), 'inf': np.isposinf(array), '-inf': np.isneginf(array), 'zero': array == 0}
  for name, mask in counts.items():
    if mask.any():
      text += f', {mask.sum()} of {array.size} {name}'
  return text


def _source() -> tuple[str, str, str]:
  """The innermost line of code that is not hidden, as 'file:line: text' and as 'file:line (function)'; the phase."""
  frame: types.FrameType | None = sys._getframe(2)  # pylint: disable=protected-access
  line, place, phase = '', '', 'forward'
  while frame is not None:
    code = frame.f_code
    phase = _PHASES.get(code.co_name, phase)
    if not line and not code.co_filename.startswith(_HIDDEN):
      text = linecache.getline(code.co_filename, frame.f_lineno).strip()
      place = failures.at_line(code.co_filename, frame.f_lineno, code.co_qualname.rpartition('<locals>.')[2])
      line = f'{os.path.relpath(code.co_filename)}:{frame.f_lineno}: {text}'
    frame = frame.f_back
  return line, place, phase
