"""Runs steps on a mesh of devices: parameters, slots, batches and activations are split as `trainer.sharding` says.

The step is traced as for one device, with the ordinary variables of model and optimizer. Then the traced function is
called on the mesh, with a twin in the place of every variable: DTensor splits each of its operations, and adds the
communication of the devices. So a step computes the same as on one device, for any task, except rounding.

The twins live as long as the execution. A loop of steps begins by copying the ordinary variables into them, and ends by
copying them back: between loops, checkpoints, evaluations and actions find everything where it always is.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import sys
from typing import Any

import tensorflow as tf

from official_ext.base import errors
from official_ext.base import tf_internals
from official_ext.training.config import mesh_config
from official_ext.training.devices import mesh as mesh_lib
from official_ext.training.optimization import variable_names
from official_ext.training.step import layer_calls
from official_ext.training.step import mesh_ops
from official_ext.training.step import mesh_variables
from official_ext.training.step import sharding
from official_ext.training.step import step_parts
from official_ext.training.step import updates

_GROUP_BYTES = 2**26  # Of variables that are copied by one call, which holds them once more.

do_not_convert = tf.autograph.experimental.do_not_convert


@dataclasses.dataclass
class _Twin:
  """A variable, and the one on the mesh that is written instead."""

  of: tf.Variable
  on_mesh: tf.Variable
  axes: sharding.Axes


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
  """Runs one step after the other, from Python. See `executions.Execution`."""

  def __init__(
    self,
    update: updates.GuardedUpdate,
    parts: step_parts.StepParts,
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
    names = variable_names.by_attribute(parts.model)
    shapes = {names[variable_names.key_of(v)]: tuple(v.shape) for v in parts.model.variables}
    self._axes = sharding.parameter_axes(config.parameters, shapes, mesh.sizes)
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
    """All twins, in groups that are copied by one call each, and whose whole values fit beside them."""
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
    """See `executions.Execution`. Inside `running`, outside of a graph."""
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
    """The values of `program.written` behind a step."""
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
    written = mesh_variables.Written()

    def step(batches):
      with (
        mesh_ops.in_use(self._replicated),
        layer_calls.changed(self._activations.with_layout),
        written.in_use(self._as_read),
      ):
        self._parts.strategy.run(self._update.run_in_xla, args=(batches,))
      return [self._in_own_layout(variable, value) for variable, value in written.values.values()]

    function = tf.function(step, autograph=False).get_concrete_function(micro_batches)
    self._activations.check()
    mesh_variables.check_nothing_is_written(function)
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
    if not self._batch_axis or not layer_calls.current_path():
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
      name = variable_names.name_of(variable)
      self._twins[key] = _Twin(variable, self._mesh.variable(variable, axes, name), axes)
    return self._twins[key]

  def _axes_of_variable(self, variable) -> sharding.Axes:
    name = self._names.get(variable_names.key_of(variable))
    if name is not None:
      return self._axes.get(name, ('',) * variable.shape.rank)
    # An optimizer names its slots after the parameter's own name.
    split = {}
    for parameter in self._parts.model.variables:
      axes = self._axes.get(self._names[variable_names.key_of(parameter)])
      if axes is not None:
        split[variable_names.name_of(parameter)] = (tuple(parameter.shape), axes)
    return sharding.slot_axes(variable_names.name_of(variable), tuple(variable.shape), split)

  def _axes_of_input(self, tensor) -> sharding.Axes:
    """Examples are split; the rest is whole on every device."""
    axes = [''] * tensor.shape.rank
    if axes and self._batch_axis and tensor.shape[0] % self._mesh.sizes[self._batch_axis] == 0:
      axes[0] = self._batch_axis
    return tuple(axes)

  def axes_by_name(self) -> dict[str, sharding.Axes]:
    """How variables that steps use are split, by name; complete after the first step."""
    return {variable_names.name_of(twin.of): twin.axes for twin in self._twins.values()}


class _Activations:
  """Gives the outputs of layers the layouts of `trainer.sharding.activations`."""

  def __init__(self, rules: sharding.Rules, mesh: mesh_lib.Mesh):
    self._rules = rules
    self._mesh = mesh
    self._paths: set[str] = set()
    self._used: set[int] = set()

  def with_layout(self, path: str, outputs: object) -> Any:
    """The output of a layer, in its layout: see `layer_calls.changed`. Only the first tensor is an activation."""
    self._paths.add(path)
    index = sharding.index_of_rule(self._rules, path)
    tensors = tf.nest.flatten(outputs)
    if index is None or not tensors or not tf.is_tensor(tensors[0]):
      return outputs
    self._used.add(index)
    where = f'{sharding.ACTIVATIONS}.{index}: {path}'
    axes = sharding.axes_of(self._rules[index], tensors[0].shape, self._mesh.sizes, where)
    tensors[0] = tf_internals.with_layout(tensors[0], self._mesh.layout(axes))
    return tf.nest.pack_sequence_as(outputs, tensors)

  def check(self) -> None:
    """Checks, after a trace, that every pattern has matched a layer."""
    sharding.check_matches(self._rules, self._paths, self._used, sharding.ACTIVATIONS)


def _check_input(value: Any, kind: Any) -> None:
  """Refuses inputs without a DTensor layout: anything in a batch but a `kind` (tensors, or their specs) of numbers."""
  if not isinstance(value, kind) or value.dtype in (tf.string, tf.variant, tf.resource):
    name = value.dtype.name if isinstance(value, kind) else type(value).__name__
    raise errors.UserError(f'runtime.mesh: a batch holds a {name}, which DTensor cannot split; leave it out')


def _shape_for(spec: tf.TensorSpec, batch_size: int) -> tf.TensorShape:
  """The shape of a tensor in a batch of so many examples; not fully defined if a spec leaves more open."""
  shape = spec.shape
  if shape.rank and shape[0] is None and batch_size:
    shape = tf.TensorShape([batch_size, *shape[1:]])
  return shape


def _warn_of_whole_parameters(config, shapes, axes, model) -> None:
  """Names the trained parameters that no pattern matches, if there are patterns."""
  names = variable_names.by_attribute(model)
  trained = [names[variable_names.key_of(variable)] for variable in model.trainable_variables]
  whole = [name for name in trained if name in shapes and name not in axes]
  if config.parameters and whole:
    print(
      f'warning: {sharding.PARAMETERS}: {len(whole)} of {len(trained)} trained parameters match no pattern and are '
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
