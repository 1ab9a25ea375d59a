"""Runs steps on a mesh of devices, which `trainer.sharding` splits parameters, slots, batches and activations over.

A step is traced as for one device, with the ordinary variables. The traced function is then called on the mesh, with a
twin in the place of every variable: DTensor splits each operation and adds the communication. So a step computes the
same as on one device, for any task, except rounding. A loop of steps begins by copying the variables into the twins,
and ends by copying them back: between loops, checkpoints, evaluations and actions read the ordinary variables.

The parts of this module: `axes_of` to `slot_axes`, pure functions from patterns, names and shapes to axes; replacements
of operations that DTensor cannot split; `Written`, the values that a step writes; `MeshExecution`.

TensorFlow 2.20's DTensor fails on these operations, takes the process with it, or does not promise the same numbers
(docs/reference/mesh_operations.md has the messages):

| operation | as of | instead |
|---|---|---|
| StridedSlice with a new axis | x[:, tf.newaxis] | the slice without it, and ExpandDims |
| StridedSlice that takes an axis away | x[0] | a slice of length 1, and Squeeze |
| SelectV2 with a scalar condition | tf.where(ok, x, y) | the condition broadcast to the shape of the result |
| FusedBatchNormV3 | batch and layer normalisation of Keras | means and variances, and their effect on the tensor |
| TopKV2, of which a gradient is asked | tf.math.top_k(x, 2) | its indices, and a sum over what they choose |
| a loop over stacked layers | scan_layers | the layers one by one: DTensor has no layout for TensorLists |
| Sort | experts of many tokens | all experts compute all tokens |
| random numbers that are split | dropout, `tf.random.*` | all of them on every device, of which each takes its part |

It also loses the order of operations on one variable if a value has to be gathered first: a read after an assignment
may give the earlier value, and an optimizer's update is wrong by a whole step. So inside `Written.in_use` an assignment
only notes the new value, and later reads take it from there. The variables are written when the step has run.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import math
import re
import sys
from typing import Any

import tensorflow as tf

from official_ext.base import errors
from official_ext.base import tf_internals
from official_ext.data import keyed_random
from official_ext.training.config import mesh_config
from official_ext.training.devices import mesh as mesh_lib
from official_ext.training.model_parts import grouped
from official_ext.training.model_parts import stacked
from official_ext.training.optimization import groups
from official_ext.training.step import observers
from official_ext.training.step import task_step
from official_ext.training.step import updates

PARAMETERS = 'trainer.sharding.parameters'
ACTIVATIONS = 'trainer.sharding.activations'

Rules = Sequence[mesh_config.ShardingRuleConfig]
Axes = tuple[str, ...]  # Of each dimension, '' for one that is not split.

do_not_convert = tf.autograph.experimental.do_not_convert


def index_of_rule(rules: Rules, name: str) -> int | None:
  """Which rule is the first whose pattern matches a name; None if none does."""
  return next((index for index, rule in enumerate(rules) if re.search(rule.pattern, name)), None)


def axes_of(
  rule: mesh_config.ShardingRuleConfig, shape: Sequence[int | None], sizes: Mapping[str, int], where: str
) -> Axes:
  """The axes of all dimensions of a tensor.

  Args:
    rule: the rule that holds for it.
    shape: its shape; None for a size that is not known, which no axis may split.
    sizes: of the axes of the mesh.
    where: the beginning of a message: the dotted path of the rule, and the name of the tensor.

  Raises:
    UserError: the rule does not fit the shape.
  """
  if len(rule.axes) > len(shape):
    raise errors.UserError(
      f'{where} has the shape {_shown(shape)}, and axes for {len(rule.axes)} dimensions are given: {_shown(rule.axes)}'
    )
  named = (*rule.axes, *[''] * (len(shape) - len(rule.axes)))
  axes = tuple(mesh_config.axis_in(sizes, axis) for axis in named)
  for number, (axis, size) in enumerate(zip(axes, shape)):
    if axis and (size is None or size % sizes[axis]):
      raise errors.UserError(
        f'{where} has the shape {_shown(shape)}: dimension {number} cannot be split evenly over {axis}={sizes[axis]}'
      )
  return axes


def parameter_axes(rules: Rules, shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int]) -> dict[str, Axes]:
  """The axes of all parameters that a rule holds for.

  Args:
    rules: `trainer.sharding.parameters`.
    shapes: of all parameters, by name.
    sizes: of the axes of the mesh.

  Raises:
    UserError: a pattern matches no parameter that earlier ones leave, or a rule does not fit a shape.
  """
  indices = {name: index_of_rule(rules, name) for name in shapes}
  check_matches(rules, shapes, {index for index in indices.values() if index is not None}, PARAMETERS)
  return {
    name: axes_of(rules[index], shapes[name], sizes, f'{PARAMETERS}.{index}: {name}')
    for name, index in indices.items()
    if index is not None
  }


def check_matches(rules: Rules, names: Iterable[str], used: Iterable[int], path: str) -> None:
  """Checks that every rule is the first one that matches some name.

  Args:
    rules: of parameters or of activations.
    names: all that there are.
    used: the indices of the rules that hold for one of them.
    path: `PARAMETERS` or `ACTIVATIONS`.

  Raises:
    UserError: it names a pattern, and names that are near to it.
  """
  names, used = sorted(names), set(used)
  for index, rule in enumerate(rules):
    if index in used:
      continue
    where = f'{path}.{index}.pattern: {rule.pattern!r}'
    if any(re.search(rule.pattern, name) for name in names):
      raise errors.UserError(f'{where} matches only names that patterns before it match')
    kind = 'parameter' if path == PARAMETERS else 'layer'
    near = nearest_names(rule.pattern, names)
    hint = f'near are {", ".join(near)}' if near else f'there are {", ".join(names[:6])}{", ..." * (len(names) > 6)}'
    raise errors.UserError(f'{where} matches no {kind}; {hint}')


def nearest_names(pattern: str, names: Sequence[str], count: int = 3) -> list[str]:
  """The names whose parts are most similar to a pattern, such as '.../q_proj/kernel' for 'q_prj/kernel$'."""
  text = re.sub(r'\\.|[\^$*+?(){}|\[\]]', '', pattern).replace('.', '').strip('/')
  length = text.count('/') + 1
  parts: dict[str, str] = {}  # Part of a name -> the first name that has it.
  for name in names:
    words = name.split('/')
    for start in range(max(1, len(words) - length + 1)):
      parts.setdefault('/'.join(words[start : start + length]), name)
  found = [parts[part] for part in errors.nearest_names(text, parts, count)]
  return list(dict.fromkeys(found))


def slot_axes(name: str, shape: Sequence[int], parameters: Mapping[str, tuple[Sequence[int], Axes]]) -> Axes:
  """The axes of a variable that is not a parameter: as of the parameter that it belongs to.

  An optimizer names its slots after the parameter: 'Adam/m/dense/kernel' or 'dense/kernel/m'.

  Args:
    name: the variable's.
    shape: its shape.
    parameters: name -> (shape, axes) of all parameters that are split.

  Returns:
    The axes; all '' if no parameter of this shape is in the name.
  """
  inside = f'/{name}/'
  owners = [
    owner for owner, (of_owner, _) in parameters.items() if f'/{owner}/' in inside and tuple(of_owner) == tuple(shape)
  ]
  return parameters[max(owners, key=len)][1] if owners else ('',) * len(shape)


def _shown(values: Sequence[object]) -> str:
  return f'[{", ".join("" if value is None else str(value) or repr("") for value in values)}]'


def _strided_slice(original: Callable[..., object]) -> Callable[..., Any]:
  @functools.wraps(original)
  def strided_slice(
    input,  # As TensorFlow names it.
    begin,
    end,
    strides,
    begin_mask=0,
    end_mask=0,
    ellipsis_mask=0,
    new_axis_mask=0,
    shrink_axis_mask=0,
    name=None,
  ):
    x = tf.convert_to_tensor(input)
    bounds = [tf.get_static_value(bound) for bound in (begin, end, strides)]
    masks = [begin_mask, end_mask, ellipsis_mask, shrink_axis_mask]
    is_plain = not (new_axis_mask or shrink_axis_mask)
    if is_plain or x.shape.rank is None or any(bound is None for bound in bounds):
      return original(
        x, begin, end, strides, begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask, name
      )
    kept, new_axes = _without_new_axes(x.shape.rank, len(bounds[0]), new_axis_mask, ellipsis_mask, shrink_axis_mask)
    if kept:
      parts = [[int(bound[i]) for i in kept] for bound in bounds]
      begins, ends, ellipses, shrinks = (sum((mask >> i & 1) << j for j, i in enumerate(kept)) for mask in masks)
      single = [j for j in range(len(kept)) if shrinks >> j & 1 and not ellipses >> j & 1]
      for j in single:  # A slice of length 1.
        parts[1][j], parts[2][j] = parts[0][j] + 1, 1
        begins, ends = begins & ~(1 << j), ends & ~(1 << j) | (parts[0][j] == -1) << j
      wholes = begins & ends | ellipses
      is_whole = all(wholes >> j & 1 and (parts[2][j] == 1 or ellipses >> j & 1) for j in range(len(kept)))
      rank = x.shape.rank
      x = x if is_whole else original(x, *parts, begins, ends, ellipses, 0, 0)
      behind = [bool(ellipses & (1 << j) - 1) for j in single]  # The ellipsis, whose length is not known.
      x = tf.squeeze(x, [rank - len(kept) + j if last else j for j, last in zip(single, behind)]) if single else x
    for axis in new_axes:
      x = tf.expand_dims(x, axis)
    return x

  return strided_slice


def _without_new_axes(
  rank: int, num_entries: int, new_axis_mask: int, ellipsis_mask: int, shrink_axis_mask: int
) -> tuple[list[int], list[int]]:
  """Takes a slice apart: (its entries that are not new axes, the new axes as dimensions of the result)."""
  is_new = [bool(new_axis_mask >> i & 1 and not ellipsis_mask >> i & 1) for i in range(num_entries)]
  num_taken = sum(not (is_new[i] or ellipsis_mask >> i & 1) for i in range(num_entries))
  kept: list[int] = []
  new_axes: list[int] = []
  dimension = 0
  for i in range(num_entries):
    if is_new[i]:
      new_axes.append(dimension)
    else:
      kept.append(i)
    if ellipsis_mask >> i & 1:
      dimension += rank - num_taken
    elif is_new[i] or not shrink_axis_mask >> i & 1:
      dimension += 1
  return kept, new_axes


def _select(original: Callable[..., object]) -> Callable[..., Any]:
  @functools.wraps(original)
  def select(condition, t, e, name=None):
    condition = tf.convert_to_tensor(condition)
    dtype = next((value.dtype for value in (t, e) if hasattr(value, 'dtype')), None)  # A number takes the other's.
    t, e = tf.convert_to_tensor(t, dtype), tf.convert_to_tensor(e, dtype)
    shape = tf.broadcast_static_shape(t.shape, e.shape)
    if condition.shape.rank == 0 and shape.rank and shape.is_fully_defined():
      condition = tf.broadcast_to(condition, shape)
    return original(condition, t, e, name)

  return select


def _top_k(original: Callable[..., Any]) -> Callable[..., Any]:
  @functools.wraps(original)
  def top_kv2(input, *args, **kwargs):  # As TensorFlow names it.
    x = tf.convert_to_tensor(input)
    found = original(tf.stop_gradient(x), *args, **kwargs)
    is_chosen = tf.one_hot(found.indices, x.shape[-1], on_value=True, off_value=False, dtype=tf.bool)
    candidates = tf.broadcast_to(tf.expand_dims(x, -2), is_chosen.shape)
    values = tf.reduce_sum(tf.where(is_chosen, candidates, tf.zeros_like(candidates)), axis=-1)
    return type(found)(values, found.indices)

  return top_kv2


def _fused_batch_norm(original: Callable[..., object]) -> Callable[..., Any]:
  @functools.wraps(original)
  def fused_batch_norm_v3(
    x,
    scale,
    offset,
    mean,
    variance,
    epsilon=0.0001,
    exponential_avg_factor=1.0,
    data_format='NHWC',
    is_training=True,
    name=None,
  ):
    axis = data_format.index('C')
    axes = [other for other in range(4) if other != axis]
    sizes = [x.shape[other] for other in axes]
    if None in sizes:
      return original(x, scale, offset, mean, variance, epsilon, exponential_avg_factor, data_format, is_training, name)
    dtype, x = x.dtype, tf.cast(x, scale.dtype)
    aligned = lambda vector: tf.reshape(vector, [-1 if other == axis else 1 for other in range(4)])
    found_mean, found_variance = mean, variance
    if is_training:
      found_mean = tf.reduce_mean(x, axes)
      found_variance = tf.reduce_mean(tf.square(x - aligned(found_mean)), axes)
    factor = tf.math.rsqrt(found_variance + epsilon)
    result = (x - aligned(found_mean)) * aligned(factor) * aligned(scale) + aligned(offset)
    if is_training:
      count = math.prod(sizes)
      spread = found_variance * (count / max(1, count - 1))  # Moving averages use the unbiased one.
      if exponential_avg_factor == 1.0:
        mean, variance = found_mean, spread
      else:
        keep = 1.0 - exponential_avg_factor
        mean = mean * keep + found_mean * exponential_avg_factor
        variance = variance * keep + spread * exponential_avg_factor
    return tf.cast(result, dtype), mean, variance, found_mean, found_variance, found_variance

  return fused_batch_norm_v3


def _drawn_whole(replicated: Callable[[tf.Tensor], tf.Tensor]) -> Callable[..., Any]:
  def wrap(original):
    return functools.wraps(original)(lambda *args, **kwargs: replicated(original(*args, **kwargs)))

  return wrap


# (module, name) of the functions that draw random numbers, which tf.random.stateless_* calls.
_DRAWS: Sequence[tuple[Any, str]] = (
  (keyed_random, 'random_bits'),
  (tf_internals.stateless_random_ops, 'stateless_multinomial'),
  (tf_internals.stateless_random_ops, 'stateless_parameterized_truncated_normal'),
  (tf_internals.stateless_random_ops, 'stateless_random_binomial'),
  (tf_internals.stateless_random_ops, 'stateless_random_poisson'),
  (tf_internals.stateless_random_ops_v2, 'stateless_random_gamma_v3'),
  (tf_internals.stateless_random_ops_v2, 'stateless_random_normal_v2'),
  (tf_internals.stateless_random_ops_v2, 'stateless_random_uniform_full_int_v2'),
  (tf_internals.stateless_random_ops_v2, 'stateless_random_uniform_int_v2'),
  (tf_internals.stateless_random_ops_v2, 'stateless_random_uniform_v2'),
  (tf_internals.stateless_random_ops_v2, 'stateless_shuffle'),
  (tf_internals.stateless_random_ops_v2, 'stateless_truncated_normal_v2'),
)
_PATCHES: Sequence[observers.MethodPatch] = (
  observers.MethodPatch(tf_internals.array_ops, 'strided_slice', _strided_slice),
  observers.MethodPatch(tf_internals.math_ops, 'select_v2', _select),
  observers.MethodPatch(tf_internals.nn_ops, 'top_kv2', _top_k),
  observers.MethodPatch(tf_internals.nn_ops, 'fused_batch_norm_v3', _fused_batch_norm),
  observers.MethodPatch(stacked, 'scan', lambda original: stacked.unrolled),
  observers.MethodPatch(grouped, 'rows_of_block', lambda original: lambda *arguments: 0),
)


@contextlib.contextmanager
def in_use(replicated: Callable[[tf.Tensor], tf.Tensor]) -> Iterator[None]:
  """A context in which a step is traced for a mesh.

  Args:
    replicated: gives a tensor the layout that is whole on every device.
  """
  draws = [observers.MethodPatch(module, name, _drawn_whole(replicated)) for module, name in _DRAWS]
  with observers.all_of((*_PATCHES, *draws)):
    yield


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
    with observers.all_of(observers.MethodPatch(variable, name, wrap) for name, wrap in patches.items()):
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


_GROUP_BYTES = 2**26  # Of variables that are copied by one call, which holds them once more.


@dataclasses.dataclass
class _Twin:
  """A variable, and the one on the mesh that is written instead."""

  of: tf.Variable
  on_mesh: tf.Variable
  axes: Axes


class _Group:
  """Twins that are read and written by one call: each call of DTensor takes milliseconds, however small the variable.

  Attributes:
    twins: the twins, in the order of values.
  """

  def __init__(self, twins: list[_Twin], of_all: Callable[[tf.Tensor], tf.Tensor] | None = None):
    """Makes the functions; they are traced when they are first called.

    Args:
      twins: see the class.
      of_all: applied on the mesh to each value that is read; None for nothing.
    """
    self.twins = twins
    of_all = of_all or tf.identity
    self.read = tf.function(lambda: [of_all(twin.on_mesh.read_value()) for twin in twins], autograph=False)
    self.write = tf.function(self._write, autograph=False)

  def _write(self, values):
    for twin, value in zip(self.twins, values):
      twin.on_mesh.assign(value)


@dataclasses.dataclass
class _Program:
  """A traced step.

  Attributes:
    function: the concrete function.
    captures: of the mesh, one for each that the function has.
    written: the twins whose new values the function returns.
  """

  function: Any
  captures: list[tf.Tensor]
  written: _Group


class MeshExecution:
  """Runs one step after the other, from Python. See `updates.Execution`."""

  def __init__(
    self,
    update: updates.GuardedUpdate,
    parts: task_step.StepParts,
    config: mesh_config.ShardingConfig,
    mesh: mesh_lib.Mesh,
    batch_axis: str,
  ):
    """Makes it, after the step has been probed; nothing is traced yet.

    Args:
      update: of a step.
      parts: the step's.
      config: `trainer.sharding`.
      mesh: runs the steps.
      batch_axis: the axis over which batches are split; '' for none.

    Raises:
      UserError: the patterns for parameters do not fit the model.
    """
    self._update = update
    self._parts = parts
    self._mesh = mesh
    self._batch_axis = batch_axis
    self._activations = _Activations(config.activations, mesh)
    names = groups.by_attribute(parts.model)
    shapes = {names[groups.key_of(v)]: tuple(v.shape) for v in parts.model.variables}
    self._axes = parameter_axes(config.parameters, shapes, mesh.sizes)
    self._shapes = shapes
    self._names = names
    self._twins: dict[int, _Twin] = {}  # By the id of the handle of the ordinary variable, which lives as long.
    self._made_groups: list[_Group] = []
    self._programs: dict[Any, _Program] = {}
    _warn_of_whole_parameters(config, shapes, self._axes, parts.model)

  @contextlib.contextmanager
  def running(self) -> Iterator[None]:
    """A context for steps. Variables that others write before it count in it, and the writes of steps, after it."""
    for group in self._groups():
      group.write([self._mesh.split(twin.of, twin.axes) for twin in group.twins])
    try:
      yield
    except BaseException:
      if not self._mesh.is_shared:  # Other processes are not here, and would be waited for.
        self._copy_back()
      raise
    self._copy_back()

  def _copy_back(self):
    for group in self._groups():
      for twin, value in zip(group.twins, group.read()):
        twin.of.assign(self._mesh.whole(value))

  def _groups(self) -> list[_Group]:
    """All twins, in groups that are copied by one call each, and whose whole values fit into memory with them."""
    if sum(len(group.twins) for group in self._made_groups) != len(self._twins):  # A further program has others.
      twins: list[list[_Twin]] = []
      num_bytes = _GROUP_BYTES
      for twin in self._twins.values():
        size = twin.of.shape.num_elements() * twin.of.dtype.size
        num_bytes += size
        if num_bytes > _GROUP_BYTES:
          twins, num_bytes = [*twins, []], size
        twins[-1].append(twin)
      self._made_groups = [_Group(group, self._replicated if self._mesh.is_shared else None) for group in twins]
    return self._made_groups

  @do_not_convert
  def run(self, batches: Sequence[Sequence[object]]) -> None:
    """See `updates.Execution`. Inside `running`, outside of a graph."""
    for micro_batches in batches:
      program = self._program(list(micro_batches))
      program.written.write(self._call(program, micro_batches))
      self._parts.global_step.assign_add(1)  # The input reads it; the twin has counted by itself.

  @do_not_convert
  def try_step(self, specs: object, num_micro_batches: int, batch_size: int) -> None:
    """Runs a step on zeros and forgets it. The steps that follow run the same program.

    Args:
      specs: the type specs of a batch.
      num_micro_batches: how many batches a step takes.
      batch_size: the number of examples if the specs do not know it.

    Raises:
      UserError: DTensor cannot split the step, or a pattern matches no layer.
    """
    for spec in tf.nest.flatten(specs):
      _check_input(spec, tf.TensorSpec)
    shapes = [_shape_for(spec, batch_size) for spec in tf.nest.flatten(specs)]
    if not all(shape.is_fully_defined() for shape in shapes):
      return
    zeros = [tf.zeros(shape, spec.dtype) for shape, spec in zip(shapes, tf.nest.flatten(specs))]
    micro_batches = [tf.nest.pack_sequence_as(specs, zeros)] * num_micro_batches
    program = self._program(micro_batches)
    try:
      self._call(program, micro_batches)
    except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError):
      pass  # Zeros may be invalid examples: a division by them means nothing.

  def _call(self, program, micro_batches):
    """The values of `program.written` after a step."""
    inputs = [self._mesh.split(tensor, self._axes_of_input(tensor)) for tensor in tf.nest.flatten(micro_batches)]
    with _explained():
      return tf_internals.call_with_captures(program.function, inputs, program.captures)

  def _program(self, micro_batches) -> _Program:
    """The step, traced for batches of these shapes."""
    tensors = tf.nest.flatten(micro_batches)
    for tensor in tensors:
      _check_input(tensor, tf.Tensor)
    key = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
    if key not in self._programs:
      self._programs[key] = self._trace(micro_batches)
    return self._programs[key]

  def _trace(self, micro_batches):
    written = Written()

    def step(batches):
      with (
        in_use(self._replicated),
        observers.changed(self._activations.with_layout),
        written.in_use(self._as_read),
      ):
        self._parts.strategy.run(self._update.run_in_xla, args=(batches,))
      return [self._in_own_layout(variable, value) for variable, value in written.values.values()]

    function = tf.function(step, autograph=False).get_concrete_function(micro_batches)
    self._activations.check()
    check_nothing_is_written(function)
    # The graph does not list variables that are only handed to a kernel, such as slots.
    known = [*function.graph.variables, *self._update.guarded_variables]
    variables = {id(variable.handle): variable for variable in known}
    captures = []
    for tensor in function.captured_inputs:
      if tensor.dtype != tf.resource:
        captures.append(self._mesh.split(tensor, [''] * tensor.shape.rank))
      elif id(tensor) in variables:
        captures.append(self._twin_of(variables[id(tensor)]).on_mesh.handle)
      else:
        raise errors.UserError(
          f'runtime.mesh: the step of {type(self._parts.task).__name__} reads a resource that is not a variable of '
          'the model, the optimizer or a metric: DTensor has no place for it'
        )
    return _Program(function, captures, _Group([self._twin_of(variable) for variable, _ in written.values.values()]))

  def _replicated(self, tensor):
    return tf_internals.with_layout(tensor, self._mesh.layout([''] * tensor.shape.rank))

  def _as_read(self, variable, value):
    """The inputs of a layer are whole along the axis of batches, of which each device has other examples."""
    if not self._batch_axis or not observers.current_path():
      return value
    axes = self._axes_of_variable(variable)
    others = ['' if axis == self._batch_axis else axis for axis in axes]
    return value if self._batch_axis not in axes else tf_internals.with_layout(value, self._mesh.layout(others))

  def _in_own_layout(self, variable, value):
    return tf_internals.with_layout(value, self._mesh.layout(self._axes_of_variable(variable)))

  def _twin_of(self, variable) -> _Twin:
    key = id(variable.handle)
    if key not in self._twins:
      axes = self._axes_of_variable(variable)
      name = groups.name_of(variable)
      self._twins[key] = _Twin(variable, self._mesh.variable(variable, axes, name), axes)
    return self._twins[key]

  def _axes_of_variable(self, variable) -> Axes:
    name = self._names.get(groups.key_of(variable))
    if name is not None:
      return self._axes.get(name, ('',) * variable.shape.rank)
    # An optimizer names its slots after the parameter's own name.
    split = {}
    for parameter in self._parts.model.variables:
      axes = self._axes.get(self._names[groups.key_of(parameter)])
      if axes is not None:
        split[groups.name_of(parameter)] = (tuple(parameter.shape), axes)
    return slot_axes(groups.name_of(variable), tuple(variable.shape), split)

  def _axes_of_input(self, tensor) -> Axes:
    """Examples are split; the rest is whole on every device."""
    axes = [''] * tensor.shape.rank
    if axes and self._batch_axis and tensor.shape[0] % self._mesh.sizes[self._batch_axis] == 0:
      axes[0] = self._batch_axis
    return tuple(axes)

  def axes_by_name(self) -> dict[str, Axes]:
    """How variables that steps use are split, by name; complete after the first step."""
    return {groups.name_of(twin.of): twin.axes for twin in self._twins.values()}


class _Activations:
  """Gives the outputs of layers the layouts of `trainer.sharding.activations`."""

  def __init__(self, rules: Rules, mesh: mesh_lib.Mesh):
    self._rules = rules
    self._mesh = mesh
    self._paths: set[str] = set()
    self._used: set[int] = set()

  def with_layout(self, path: str, outputs: object) -> Any:
    """The output of a layer, in its layout: see `observers.changed`. Only the first tensor is an activation."""
    self._paths.add(path)
    index = index_of_rule(self._rules, path)
    tensors = tf.nest.flatten(outputs)
    if index is None or not tensors or not tf.is_tensor(tensors[0]):
      return outputs
    self._used.add(index)
    where = f'{ACTIVATIONS}.{index}: {path}'
    axes = axes_of(self._rules[index], tensors[0].shape, self._mesh.sizes, where)
    tensors[0] = tf_internals.with_layout(tensors[0], self._mesh.layout(axes))
    return tf.nest.pack_sequence_as(outputs, tensors)

  def check(self) -> None:
    """Checks, after a trace, that every pattern has matched a layer."""
    check_matches(self._rules, self._paths, self._used, ACTIVATIONS)


def _check_input(value: Any, kind: Any) -> None:
  """Refuses inputs without a DTensor layout: anything in a batch but a `kind` (tensors, or their specs) of numbers."""
  if not isinstance(value, kind) or value.dtype in (tf.string, tf.variant, tf.resource):
    name = value.dtype.name if isinstance(value, kind) else type(value).__name__
    raise errors.UserError(f'runtime.mesh: a batch holds a {name}, which DTensor cannot split; leave it out')


def _shape_for(spec: tf.TensorSpec, batch_size: int) -> tf.TensorShape:
  """The shape of a tensor in a batch of `batch_size` examples; not fully defined if a spec leaves more open."""
  shape = spec.shape
  if shape.rank and shape[0] is None and batch_size:
    shape = tf.TensorShape([batch_size, *shape[1:]])
  return shape


def _warn_of_whole_parameters(config, shapes, axes, model) -> None:
  """Names the trained parameters that no pattern matches, if there are patterns."""
  names = groups.by_attribute(model)
  trained = [names[groups.key_of(variable)] for variable in model.trainable_variables]
  whole = [name for name in trained if name in shapes and name not in axes]
  if config.parameters and whole:
    print(
      f'warning: {PARAMETERS}: {len(whole)} of {len(trained)} trained parameters match no pattern and are '
      f'whole on every device: {", ".join(whole[:6])}{", ..." if len(whole) > 6 else ""}',
      file=sys.stderr,
      flush=True,
    )


@contextlib.contextmanager
def _explained() -> Iterator[None]:
  """Turns the failure of DTensor to split a step into a UserError."""
  try:
    yield
  except (tf.errors.UnknownError, tf.errors.UnimplementedError) as error:
    lines = [line for line in str(error).splitlines() if 'error:' in line] or [str(error)]
    reason = lines[0].partition('error:')[2].strip() or lines[0]
    raise errors.UserError(
      f'runtime.mesh: DTensor of TensorFlow {tf.__version__} cannot split this step: {" ".join(reason.split())[:300]}'
    ) from error
