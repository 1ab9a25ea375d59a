"""Runs one block for every row of stacked weights: the program does not grow with the depth.

    rows = listed_rows(stacks)
    ... in the loop: values, rows = read_row(rows, i, stacks)
    y = closed_rows(y, rows, stacks)          # after the loop

TensorFlow's own gradient of an array that a loop reads starts with zeros, and adds an array for every read. Here the
array of gradients passes backwards through the reads, each of which sets its row: the gradient of a stack costs one
copy more than the gradients of separate weights. The rows share the memory of their stack.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
from typing import Any

import tensorflow as tf

from official_ext.training.model_parts import clusters
from official_ext.training.model_parts import remat


def listed_rows(stacks: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """A TensorList (variant scalar) of the rows of each stack [rows, ...] of known shape."""
  return [tf.raw_ops.TensorListFromTensor(tensor=stack, element_shape=_row_shape(stack)) for stack in stacks]


def read_row(
  lists: Sequence[tf.Tensor], i: tf.Tensor, stacks: Sequence[tf.Tensor]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
  """(row i of each stack, the lists for the next read), for lists of `listed_rows`; each row is read once."""
  read_lists = [_read(rows, i, stack) for rows, stack in zip(lists, stacks)]
  return [row for row, _ in read_lists], [rows for _, rows in read_lists]


def closed_rows(y: tf.Tensor, lists: Sequence[tf.Tensor], stacks: Sequence[tf.Tensor]) -> tf.Tensor:
  """y, whose gradient begins the gradients of the lists, which the last read has returned: rows without values."""

  @tf.custom_gradient
  def joined(y, *lists):
    del lists

    def gradient(dy):
      return dy, *(
        tf.raw_ops.TensorListReserve(
          element_shape=_row_shape(stack), num_elements=stack.shape[0], element_dtype=stack.dtype
        )
        for stack in stacks
      )

    return tf.identity(y), gradient

  return joined(y, *lists)


def _read(rows, i, stack):
  @tf.custom_gradient
  def once(rows):
    row = tf.raw_ops.TensorListGetItem(
      input_handle=rows, index=i, element_shape=_row_shape(stack), element_dtype=stack.dtype
    )
    row.set_shape(stack.shape[1:])

    def gradient(of_row, of_rows):
      return tf.raw_ops.TensorListSetItem(input_handle=of_rows, index=i, item=of_row)

    return (row, tf.identity(rows)), gradient

  return once(rows)


def _row_shape(stack):
  return tf.constant(stack.shape[1:].as_list(), tf.int32)


Block = Callable[[tf.Tensor, tf.Tensor, Mapping[str, tf.Tensor]], tf.Tensor]


def scan(
  block: Block,
  x: tf.Tensor,
  part: object,
  num_layers: int,
  extras: Mapping[str, tf.Tensor],
  reports: Sequence[tf.TensorSpec] = (),
  keeps_activations: bool = False,
) -> tf.Tensor:
  """Takes x = block(x, i, extras) for each layer i, with row i of every variable of `part` in its place.

  The backward pass is a loop too. Of every block it is given the input, and computes the rest once more; or it is given
  everything.

  Args:
    block: calls `part`, and nothing else that a gradient is asked of; i is an int32 scalar. The result has x's shape
      and dtype. It is called more than once, and must compute the same for the same i.
    x: floating, of any shape.
    part: a `layers.Part` with stacked weights. Its frozen weights get no gradient.
    num_layers: how many rows.
    extras: tensors by name, the same for all layers; floating ones have gradients.
    reports: of each layer, see remat.py, if requested. The layers' reports of one name become one tensor, with a row
      for each.
    keeps_activations: whether the activations of all blocks are kept, if clusters are compiled (see clusters.py). XLA
      cannot compile such a loop inside of a loop of steps: TensorListReserve of a size that it does not know.
  """
  trained, others = remat.split_weights([part])
  stacks = [remat.value_of(variable) for variable in trained]
  fixed = [remat.value_of(variable) for variable in others]
  names = remat.differentiable(extras)
  shape = x.shape
  specs = list(reports) if remat.is_wanted() else []

  def run(x, i, shared, rows, fixed_rows=None):
    fixed_rows = [value[i] for value in fixed] if fixed_rows is None else fixed_rows
    with (
      remat.handed_in([*trained, *others], [*rows, *fixed_rows]),
      remat.collected(bool(specs)) as found,
    ):
      y = block(x, i, {**extras, **dict(zip(names, shared))})
    assert len(found) == len(specs), (found, specs)
    y.set_shape(shape)
    return y, *found

  shared = [extras[name] for name in names]
  if keeps_activations and clusters.are_compiled():
    y, *found = _keeping_loop(run, x, shared, stacks, fixed, num_layers, specs)
  else:
    y, *found = _recomputing_loop(run, x, shared, stacks, num_layers, specs)
  for value in found:
    remat.report(value)
  return y


def unrolled(
  block: Block,
  x: tf.Tensor,
  part: Any,
  num_layers: int,
  extras: Mapping[str, tf.Tensor],
  reports: Sequence[tf.TensorSpec] = (),
  keeps_activations: bool = False,
) -> tf.Tensor:
  """`scan` without a loop, for a graph that has no place for one: i is an integer, and each layer reports by itself."""
  del reports, keeps_activations
  variables = part.variables
  rows = [tf.unstack(remat.value_of(variable)) for variable in variables]
  for i in range(num_layers):
    with remat.handed_in(variables, [of_layers[i] for of_layers in rows]):
      x = remat.remat(functools.partial(_run_row, block, i), x, [part], extras)
  return x


def _run_row(block, i, x, extras):
  return block(x, i, extras)


def _recomputing_loop(run, x, shared, stacks, num_layers, specs):
  """(the last block's output, the reports of all blocks [num_layers, ...]); backwards blocks are computed again."""
  num_shared = len(shared)

  @tf.custom_gradient
  def forward(x, *tensors):
    shared, stacks = tensors[:num_shared], tensors[num_shared:]
    y, inputs, found = _forward_loop(run, x, shared, stacks, num_layers, specs)

    def gradient(dy, *of_reports):
      dx, shared_gradients, stack_gradients = _backward_loop(run, inputs, dy, of_reports, shared, stacks, num_layers)
      return dx, *shared_gradients, *stack_gradients

    return (y, *found), gradient

  return forward(x, *shared, *stacks)


def _forward_loop(run, x, shared, stacks, num_layers, specs):
  """(the last block's output, the inputs of all blocks [num_layers, ...], their reports [num_layers, ...])."""

  def body(i, x, inputs, reports):
    y, *found = run(x, i, shared, [stack[i] for stack in stacks])
    return i + 1, y, inputs.write(i, x), [array.write(i, value) for array, value in zip(reports, found)]

  inputs = tf.TensorArray(x.dtype, num_layers, element_shape=x.shape)
  reports = [tf.TensorArray(spec.dtype, num_layers, element_shape=spec.shape) for spec in specs]
  _, y, inputs, reports = tf.while_loop(
    lambda i, *_: i < num_layers, body, (tf.constant(0), x, inputs, reports), maximum_iterations=num_layers
  )
  return y, inputs.stack(), [array.stack() for array in reports]


def _keeping_loop(run, x, shared, stacks, fixed, num_layers, specs):
  """(the last block's output, the reports of all blocks [num_layers, ...]), differentiated by TensorFlow."""
  array_of = lambda dtype, shape: tf.TensorArray(dtype, num_layers, element_shape=shape)
  # A gradient of what the tape does not know is not computed. Rows of arrays share the memory of their stack.
  fixed_rows = [array_of(value.dtype, value.shape[1:]).unstack(tf.stop_gradient(value)) for value in fixed]

  def body(i, x, lists, reports):
    rows, lists = read_row(lists, i, stacks)
    y, *found = run(x, i, shared, rows, [array.read(i) for array in fixed_rows])
    return i + 1, y, lists, [array.write(i, value) for array, value in zip(reports, found)]

  _, y, lists, reports = tf.while_loop(
    lambda i, *_: i < num_layers,
    body,
    (tf.constant(0), x, listed_rows(stacks), [array_of(spec.dtype, spec.shape) for spec in specs]),
    maximum_iterations=num_layers,
    parallel_iterations=1,
  )
  return closed_rows(y, lists, stacks), *(array.stack() for array in reports)


def _backward_loop(run, inputs, dy, of_reports, shared, stacks, num_layers):
  """Gradients of the input, of the shared values and of the stacks, from the last block to the first."""

  def body(number, dy, shared_gradients, stack_gradients):
    i = num_layers - 1 - number
    x, rows = inputs[i], [stack[i] for stack in stacks]
    with tf.GradientTape() as tape:
      tape.watch([x, shared, rows])
      outputs = run(x, i, shared, rows)
    dx, of_shared, of_rows = tape.gradient(
      outputs,
      (x, shared, rows),
      output_gradients=(dy, *(value[i] for value in of_reports)),
      unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    dx.set_shape(inputs.shape[1:])
    return (
      number + 1,
      dx,
      tuple(total + part for total, part in zip(shared_gradients, of_shared)),
      tuple(total.write(i, part) for total, part in zip(stack_gradients, of_rows)),
    )

  start = (
    tf.constant(0),
    dy,
    tuple(tf.zeros_like(value) for value in shared),
    tuple(tf.TensorArray(stack.dtype, num_layers, element_shape=stack.shape[1:]) for stack in stacks),
  )
  # It counts up: of a loop that counts down, XLA does not know the length, and waits for the device in each round.
  # The inputs of all layers are known: without XLA each further iteration would keep another layer's values.
  _, dx, shared_gradients, stack_gradients = tf.while_loop(
    lambda number, *_: number < num_layers, body, start, maximum_iterations=num_layers, parallel_iterations=1
  )
  return dx, shared_gradients, [total.stack() for total in stack_gradients]


def loop(step: Callable[..., Any], x: tf.Tensor, state: Any, part: Any, num_layers: int) -> Any:
  """Takes (x, state) = step(x, i, state) for each layer, with row i of every variable of `part`; without a gradient.

  Args:
    step: as `block` of `scan`, with a state besides.
    x: of any shape.
    state: any structure of tensors, such as a cache of all layers.
    part: a `layers.Part` with stacked weights.
    num_layers: how many rows.

  Returns:
    The last x and state.
  """
  variables = part.variables
  stacks = [remat.value_of(variable) for variable in variables]

  def body(i, x, state):
    with remat.handed_in(variables, [stack[i] for stack in stacks]):
      return i + 1, *step(x, i, state)

  _, x, state = tf.while_loop(
    lambda i, *_: i < num_layers, body, (tf.constant(0), x, state), maximum_iterations=num_layers
  )
  return x, state
