"""The outputs of a computation that have a row for each example, read from its graph.

The sizes that an output happens to have are no evidence: three names of classes are no answers to three requests. The
shapes of the graph are derived for several batch sizes. An output has a row for each example if its first dimension is
the batch for each of them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
import dataclasses
import functools
from typing import Any

from google.protobuf import message
import tensorflow as tf

from official_ext.base import tf_internals

# The large one exceeds limits, such as the first 100 rows. A batch of 1 may lose its dimension.
_BATCHES = (3, 1009, 1)
# In place of the other dimensions that a signature leaves open: the first with which the graph fits together.
_OPEN_SIZES = (64, 256, 8, 1)
_MOST_ROUNDS = 8  # Of a loop whose shapes change from turn to turn, and of loops after loops.
_BRANCHES = {'If': ('then_branch', 'else_branch'), 'Case': ('branches',)}
_SIZES = ('Shape', 'ShapeN', 'Size', 'Rank')
_WRITES = ('Assign', 'ResourceScatter', 'LookupTableInsert')


@dataclasses.dataclass(frozen=True)
class Output:
  """The relation of an output to the batch.

  Attributes:
    has_batch: whether its first dimension is the batch; None: the graph does not show it.
    is_joinable: whether requests that share a computation get the output that each would get alone, as far as its
      shape shows: its rows have one shape, or it does not depend on the inputs.
  """

  has_batch: bool | None
  is_joinable: bool


def of_outputs(function: Any) -> dict[str, Output]:
  """The relation of each output to the batch, by name.

  Args:
    function: a concrete function of a signature. If all of its inputs have one example, outputs with one row belong to
      this example.
  """
  positional, named = function.structured_input_signature
  inputs = [*positional, *named.values()]
  outputs: Mapping[str, Any] = function.structured_outputs
  if not isinstance(outputs, Mapping):
    return {}
  tensors = {name: each.name for name, each in zip(tf.nest.flatten({name: name for name in outputs}), function.outputs)}
  try:
    graph_def = tf_internals.inlined(function)
  except (ValueError, tf.errors.OpError, message.EncodeError):  # Such as a graph of more than 2 GB.
    return {name: Output(None, False) for name in outputs}
  _declare_variables(graph_def, function, len(inputs))
  names = [_node(tensor.name) for tensor in function.inputs[: len(inputs)]]
  dependent = _dependent(graph_def, names)
  is_pure = not any(node.op.startswith(_WRITES) for node in graph_def.node) and not _branches(graph_def, names)
  sizes = {spec.shape[0] if spec.shape.rank else 0 for spec in inputs}
  derived = _derived(graph_def, dict(zip(names, inputs)), list(tensors.values())) if sizes == {None} else []
  found = {}
  for name, spec in outputs.items():
    if _node(tensors[name]) not in dependent:
      found[name] = Output(False, is_pure)
    elif sizes == {None}:
      found[name] = _of_shapes(spec.shape, [shapes[tensors[name]] for shapes in derived], is_pure)
    else:
      is_row = sizes == {1} and bool(spec.shape.rank) and spec.shape[0] == 1
      found[name] = Output(is_row or (False if spec.shape.rank == 0 else None), is_row and is_pure)
  return found


def _of_shapes(declared: tf.TensorShape, derived: Sequence[tf.TensorShape], is_pure: bool) -> Output:
  """The relation of an output that depends on the inputs, by its shape for each of `_BATCHES`."""
  if declared.rank == 0 or (declared.rank and declared[0] is not None):
    return Output(False, False)
  shapes = [declared.merge_with(each) if declared.is_compatible_with(each) else each for each in derived]
  if not shapes or not all(shape.rank for shape in shapes) or None in [shape[0] for shape in shapes[:-1]]:
    return Output(None, False)
  sizes = [shape[0] for shape in shapes]
  if not all(size in (batch, None) for size, batch in zip(sizes, _BATCHES)):
    return Output(False if len(set(sizes)) == 1 else None, False)
  rows = {tuple(shape[1:].as_list()) for shape in shapes[:-1]}
  has_one_shape = len(rows) == 1 and None not in next(iter(rows)) and shapes[0][1:].is_compatible_with(shapes[-1][1:])
  return Output(True, is_pure and has_one_shape)


def _node(tensor: str) -> str:
  """The name of the node that computes a tensor, or that an input of a node names."""
  return tensor.removeprefix('^').partition(':')[0]


def _declare_variables(graph_def: Any, function: Any, num_inputs: int) -> None:
  """Makes operations of the placeholders of variables: their shapes are known."""
  nodes = {node.name: node for node in graph_def.node}
  for tensor, captured in zip(function.inputs[num_inputs:], function.captured_inputs):
    variable = tf_internals.variable_at(captured) if captured.dtype == tf.resource else None
    node = nodes.get(_node(tensor.name))
    if variable is None or node is None:
      continue
    node.op = 'VarHandleOp'
    node.attr.clear()
    node.attr['shape'].shape.CopyFrom(variable[0])
    node.attr['dtype'].type = variable[1]


def _branches(graph_def: Any, sources: Sequence[str]) -> bool:
  """Whether the values of some nodes select a branch: then one example selects it for the others too."""
  dependent = _dependent(graph_def, sources, leaves_out=_SIZES)
  return any(
    node.op.removeprefix('Stateless') in _BRANCHES and _node(node.input[0]) in dependent for node in graph_def.node
  )


def _dependent(graph_def: Any, sources: Sequence[str], leaves_out: Collection[str] = ()) -> set[str]:
  """The nodes that are computed from some nodes, and these. An order of execution is no computation."""
  readers: dict[str, list[str]] = {}
  for node in graph_def.node:
    for each in node.input if node.op not in leaves_out else ():
      if not each.startswith('^'):
        readers.setdefault(_node(each), []).append(node.name)
  found, waiting = set(sources), list(sources)
  while waiting:
    for reader in readers.get(waiting.pop(), ()):
      if reader not in found:
        found.add(reader)
        waiting.append(reader)
  return found


def _derived(
  graph_def: Any, inputs: Mapping[str, tf.TensorSpec], outputs: Sequence[str]
) -> list[dict[str, tf.TensorShape]]:
  """The shapes of the outputs for each of `_BATCHES`; [] if they cannot be derived."""
  has_open = any(None in (spec.shape[1:] if spec.shape.rank else ()) for spec in inputs.values())
  functions = _Functions(graph_def.library)
  for size in _OPEN_SIZES if has_open else _OPEN_SIZES[:1]:
    try:
      found = []
      for batch in _BATCHES:
        shapes = {name: [batch, *(each or size for each in spec.shape[1:])] for name, spec in inputs.items()}
        found.append(dict(zip(outputs, _shapes(graph_def, shapes, outputs, functions))))
      return found
    except (ValueError, tf.errors.OpError):
      continue
  return []


def _shapes(
  graph_def: Any, inputs: Mapping[str, Any], outputs: Sequence[str], functions: '_Functions'
) -> list[tf.TensorShape]:
  """The shapes of tensors.

  TensorFlow derives them when it reads a graph, but not through loops and branches, whose shapes are written down, and
  not through lists of tensors. These are written down again until nothing changes.

  Args:
    graph_def: a graph without calls of functions.
    inputs: the shapes of placeholders by name.
    outputs: the names of the tensors.
    functions: the bodies of its loops and branches.

  Raises:
    ValueError: the shapes contradict the graph.
  """
  written = _Written(graph_def, functions)
  for node in written.graph_def.node:
    node.attr.pop('_output_shapes', None)
    if node.name in inputs:
      node.attr['shape'].shape.CopyFrom(tf.TensorShape(inputs[node.name]).as_proto())
  for _ in range(_MOST_ROUNDS):
    with tf.Graph().as_default() as graph:
      tf.graph_util.import_graph_def(written.graph_def, name='')
      found = _of(map(graph.get_tensor_by_name, outputs))
      if all(shape.is_fully_defined() for shape in found):
        break
      are_new = [written.add(op) for op in graph.get_operations()]
      if not any(are_new):
        break
  return found


class _Functions:
  """The functions of loops and branches. Shapes that were derived once are kept: functions may be nested deeply."""

  def __init__(self, library: Any):
    self._functions = {each.signature.name: each for each in library.function}
    self._bodies: dict[str, tuple[Any, list[str]]] = {}
    self._derived: dict[tuple[str, ...], list[tf.TensorShape]] = {}

  def arguments(self, name: str) -> list[str]:
    """The names of a function's arguments."""
    return [each.name for each in self._functions[name].signature.input_arg]

  def body(self, name: str) -> tuple[Any, list[str]]:
    """(the graph of a function, the names of its outputs)."""
    if name not in self._bodies:
      graph_def, outputs = tf_internals.body_of(self._functions[name])
      graph_def.library.function.extend(self.needed(graph_def.node))
      self._bodies[name] = graph_def, outputs
    return self._bodies[name]

  def needed(self, nodes: Iterable[Any]) -> list[Any]:
    """The functions that nodes name, and the functions that these name."""
    found: dict[str, Any] = {}
    waiting = list(nodes)
    while waiting:
      node = waiting.pop()
      named = [each.func.name for each in node.attr.values()]
      named += [each.name for attribute in node.attr.values() for each in attribute.list.func]
      for name in (node.op, *named):
        if name in self._functions and name not in found:
          found[name] = self._functions[name]
          waiting += self._functions[name].node_def
    return list(found.values())

  def shapes(
    self, name: str, inputs: Sequence[tf.TensorShape], tensors: Sequence[str] | None = None
  ) -> list[tf.TensorShape]:
    """The shapes of tensors of a function; by default of its outputs."""
    graph_def, outputs = self.body(name)
    tensors = outputs if tensors is None else tensors
    key = (name, *map(str, inputs), *tensors)
    if key not in self._derived:
      self._derived[key] = _shapes(graph_def, dict(zip(self.arguments(name), inputs)), tensors, self)
    return self._derived[key]

  def shapes_of_loop(self, name: str, inputs: Sequence[tf.TensorShape]) -> list[tf.TensorShape]:
    """The shapes that a loop's variables have after any number of turns."""
    shapes = list(inputs)
    for _ in range(_MOST_ROUNDS):
      after = [one.most_specific_compatible_shape(other) for one, other in zip(shapes, self.shapes(name, shapes))]
      if after == shapes:
        return shapes
      shapes = after
    return [tf.TensorShape(None)] * len(shapes)


class _Written:
  """A graph in which shapes are written down."""

  def __init__(self, graph_def: Any, functions: _Functions):
    self.graph_def = tf.compat.v1.GraphDef(versions=graph_def.versions, node=graph_def.node)
    self.graph_def.library.function.extend(functions.needed(graph_def.node))
    self._nodes = {node.name: node for node in self.graph_def.node}
    self._functions = functions

  def add(self, op: tf.Operation) -> bool:
    """Writes down the shapes of an operation that TensorFlow does not derive; returns whether they are new."""
    if all(tensor.shape.is_fully_defined() for tensor in op.outputs):
      return False
    if op.type == 'TensorListStack':
      return self._add_stack(op)
    attributes = self._nodes[op.name].attr if op.name in self._nodes else {}
    kind = op.type.removeprefix('Stateless')
    if kind == 'While':
      shapes = self._functions.shapes_of_loop(attributes['body'].func.name, _of(op.inputs))
    elif kind in _BRANCHES:
      names = [each.name for key in _BRANCHES[kind] for each in attributes[key].list.func or [attributes[key].func]]
      branches = [self._functions.shapes(name, _of(op.inputs[1:])) for name in names]
      shapes = [functools.reduce(tf.TensorShape.most_specific_compatible_shape, each) for each in zip(*branches)]
    else:
      return False
    if shapes == _of(op.outputs):
      return False
    attributes['output_shapes'].list.ClearField('shape')
    attributes['output_shapes'].list.shape.extend(shape.as_proto() for shape in shapes)
    return True

  def _add_stack(self, op: tf.Operation) -> bool:
    known = op.outputs[0].shape
    found = self._of_list(op.inputs[0])
    if found is None or known.rank is None or not known.is_compatible_with(found) or known.merge_with(found) == known:
      return False
    size, *item = known.merge_with(found).as_list()
    node, name = self._nodes[op.name], f'{op.name}/shape_of_items'
    node.attr['num_elements'].i = -1 if size is None else size
    del node.input[1:]
    node.input.append(name)
    constant = self._nodes.get(name) or self.graph_def.node.add(name=name, op='Const')
    self._nodes[name] = constant
    constant.attr['dtype'].type = tf.int32.as_datatype_enum
    shape = tf.make_tensor_proto([-1 if each is None else each for each in item], tf.int32)
    constant.attr['value'].tensor.CopyFrom(shape)
    return True

  def _of_list(self, tensor: tf.Tensor) -> tf.TensorShape | None:
    """The shape of a list of tensors, stacked; None if the graph does not show it."""
    op = tensor.op
    if op.type not in ('While', 'StatelessWhile'):
      return None
    loop, index = op.get_attr('body').name, tensor.value_index
    graph_def, outputs = self._functions.body(loop)
    nodes = {node.name: node for node in graph_def.node}
    node, items = nodes[_node(outputs[index])], []
    while node.op in ('Identity', 'TensorListSetItem') and not node.attr['resize_if_index_out_of_bounds'].b:
      items += node.input[2:]
      node = nodes[_node(node.input[0])]
    made = op.inputs[index].op
    if node.name != self._functions.arguments(loop)[index] or made.type != 'TensorListReserve' or len(items) != 1:
      return None
    (item,) = self._functions.shapes(loop, _of(op.inputs), items)
    # tf.get_static_value does not evaluate the shape that the number comes from; the shape of a tensor of it is.
    return tf.fill([made.inputs[1]], 0).shape.concatenate(item)


def _of(tensors: Iterable[tf.Tensor]) -> list[tf.TensorShape]:
  return [tensor.shape for tensor in tensors]
