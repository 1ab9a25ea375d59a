"""Chooses how a training step is executed: from its trace, the configuration, the devices.

`choose_plan` is a pure function of these; `plan_step` collects its arguments. Nothing is timed: a resumed run has the
same execution as the run that it continues.
"""

from collections.abc import Collection
import dataclasses
from typing import Any

import tensorflow as tf

from official_ext.base import errors
from official_ext.base import tf_internals
from official_ext.training.config import definitions
from official_ext.training.config import mesh_config
from official_ext.training.devices import device_types

# XLA on CPU runs a convolution in a compiled loop on a naive path, tens of times slower than TensorFlow's own kernel,
# and one outside of a loop still about twice slower.
_CONVOLUTIONS = frozenset(
  f'{name}{suffix}'
  for name in ('Conv2D', 'Conv3D', 'DepthwiseConv2dNative')
  for suffix in ('', 'BackpropInput', 'BackpropInputV2', 'BackpropFilter', 'BackpropFilterV2')
)
_PRODUCTS = frozenset(('MatMul', 'BatchMatMul', 'BatchMatMulV2', 'BatchMatMulV3', 'Einsum'))
_MAX_STEPS_PER_EXECUTION = 64
_MAX_STACKED_BYTES = 64 * 2**20
# Each costs a compilation, of up to a minute for a large model, and the memory of its program.
MAX_SHAPES = 16
# An unknown dimension, when XLA is asked about a step: convolutions halve it without a rest.
_STAND_IN = 64
# A step that is not one program costs some milliseconds more, which small products do not win back.
_MANY_WEIGHTS = 2**20


@dataclasses.dataclass(frozen=True)
class StepTraits:
  """The traits of a task's step, from tracing it once.

  Attributes:
    num_updates: how often the step called `apply_gradients` of the trainer's optimizer.
    num_other_updates: how often it called `apply_gradients` of other optimizers.
    convolutions: whether the step contains convolutions.
    bfloat16_products: whether most of its products of matrices take bfloat16.
    clusters: whether layers mark parts between products: see training/model_parts/clusters.py.
    num_weights: the numbers in all weights of the model.
    merge_calls: whether replicas meet inside the forward pass (synchronised batch normalisation).
    static_shapes: whether every input is a dense tensor of known shape.
    sparse_gradients: whether gradients are IndexedSlices, for which not every optimizer has an XLA kernel.
    input_bytes: bytes of one replica's batch; 0 if shapes are not static.
    in_memory: whether a program can gather its batches by itself.
    xla_error: why XLA cannot compile the step; empty if it can, or was not asked: only if it would compile it.
  """

  num_updates: int = 1
  num_other_updates: int = 0
  convolutions: bool = False
  bfloat16_products: bool = False
  clusters: bool = False
  num_weights: int = 0
  merge_calls: bool = False
  static_shapes: bool = True
  sparse_gradients: bool = False
  input_bytes: int = 0
  in_memory: bool = False
  xla_error: str = ''

  @property
  def owns_updates(self) -> bool:
    """Whether the task owns the updates: it makes others than exactly one with the trainer's optimizer."""
    return self.num_updates != 1 or self.num_other_updates > 0


@dataclasses.dataclass(frozen=True)
class StepPlan:
  """How a step is compiled.

  Attributes:
    execution: 'fused' (the whole step, `steps_per_execution` at a time, in one XLA program), 'split' (XLA forward and
      backward on each replica, all-reduce outside, XLA update), 'plain' (TensorFlow graph; on TPU the strategy's own
      compilation) or 'mesh' (a TensorFlow graph, each of whose operations DTensor splits over a mesh of devices).
    jit_compile: whether XLA compiles the step's forward and backward.
    steps_per_execution: steps in one program; an upper bound if `gathers`.
    unroll: whether these steps are unrolled instead of looped over.
    gathers: whether a program gathers its batches by itself, and so runs any number of steps.
    manual_optimization: whether the task owns its updates.
    reason: the reason, for people.
    eager: whether Python runs the task's step every time.
    clusters: whether XLA compiles parts of an uncompiled step by themselves: see training/model_parts/clusters.py.
    max_shapes: for how many shapes of its inputs XLA compiles the step, the first ones; steps of others run without
      XLA. 0: all.
    compiles_update: whether XLA compiles the update of each of several replicas: see `updates.SplitExecution`.
  """

  execution: str
  jit_compile: bool
  steps_per_execution: int
  unroll: bool
  manual_optimization: bool
  reason: str
  eager: bool = False
  gathers: bool = False
  clusters: bool = False
  max_shapes: int = 0
  compiles_update: bool = False

  def __str__(self) -> str:
    steps = f', {self.steps_per_execution} steps a program' if self.execution == 'fused' else ''
    manual = ', manual optimization' if self.manual_optimization else ''
    xla = 'XLA' if self.jit_compile else 'XLA between products' if self.clusters else 'no XLA'
    xla = 'XLA in the update' if self.compiles_update and not self.jit_compile else xla
    return f'{self.execution} ({xla}{steps}{manual}): {self.reason}'


def choose_plan(
  traits: StepTraits,
  *,
  enable_xla: bool | str,
  device_type: str,
  single_trace: bool,
  steps_per_execution: int,
  steps_per_loop: int,
  num_replicas: int = 1,
  gradient_accumulation_steps: int = 1,
  run_eagerly: bool = False,
  inputs_by: str = '',
  fast_products: Collection[str] = (),
) -> StepPlan:
  """Chooses the execution of a step.

  Args:
    traits: see `StepTraits`.
    enable_xla: `runtime.enable_xla`: True and False are obeyed, 'auto' applies the rule.
    device_type: 'CPU', 'GPU' or 'TPU'.
    single_trace: whether the strategy traces one function for its (only) replica.
    steps_per_execution: `trainer.steps_per_execution`; 0 applies the rule.
    steps_per_loop: `trainer.steps_per_loop`.
    num_replicas: of the strategy; a MirroredStrategy of one device is no `single_trace`.
    gradient_accumulation_steps: `trainer.gradient_accumulation_steps`.
    run_eagerly: whether `trainer.train_tf_function` is false.
    inputs_by: the class that overrides `next_train_inputs`, which may read the step and the model; '' if none does.
    fast_products: see `device_types.fast_products`; used for CPUs alone.

  Returns:
    The plan.
  """
  manual = traits.owns_updates

  def plain(reason: str, eager: bool = False) -> StepPlan:
    # A GPU would be started for each of the update's many operations, and wait for its condition.
    compiles_update = device_type == 'GPU' and enable_xla == 'auto' and not (single_trace or manual or eager)
    return StepPlan('plain', False, 1, False, manual, reason, eager, compiles_update=compiles_update)

  if device_type == 'TPU':
    return plain('the TPU strategy compiles the step itself')
  if run_eagerly and enable_xla is not True:
    return plain('trainer.train_tf_function=false, Python runs every step', eager=True)
  if not single_trace and manual:
    return plain('the task owns its updates, and replicas meet in them')
  if traits.merge_calls:
    return plain('replicas meet inside the forward pass (synchronised batch normalisation)')
  xla, reason = _use_xla(traits, enable_xla, device_type, single_trace, num_replicas, fast_products)
  if not xla:
    clusters = enable_xla == 'auto' and _is_mixed(traits, device_type, fast_products)
    return dataclasses.replace(plain(reason), clusters=clusters)
  if single_trace:
    step_bytes = traits.input_bytes * gradient_accumulation_steps
    steps = 1 if run_eagerly else steps_per_execution
    plan = _fused_plan(traits, reason, device_type == 'CPU', inputs_by, steps, steps_per_loop, step_bytes)
  else:
    plan = StepPlan('split', True, 1, False, manual, reason, compiles_update=True)
  if traits.static_shapes or enable_xla != 'auto':
    return plan
  reason = f'{plan.reason}; a program for each of the first {MAX_SHAPES} shapes of its batches'
  return dataclasses.replace(plan, max_shapes=MAX_SHAPES, reason=reason)


def _fused_plan(
  traits: StepTraits, reason: str, on_cpu: bool, inputs_by: str, steps: int, steps_per_loop: int, step_bytes: int
) -> StepPlan:
  """The plan of a step that XLA compiles as a whole. If `steps` is 0, it chooses how many a program runs."""
  on_cpu_with_convolutions = on_cpu and traits.convolutions
  gathers = traits.in_memory and on_cpu and not on_cpu_with_convolutions and not inputs_by
  if not traits.static_shapes:
    steps, reason = 1, f'{reason}; batches of changing shape are not stacked'
  elif not steps and on_cpu_with_convolutions:
    steps = 1
  elif not steps and inputs_by:  # All inputs of a program are taken before its first step.
    steps, reason = (
      1,
      (
        f'{reason}; {inputs_by} overrides next_train_inputs, which may read the step or the model: one '
        'step a program unless trainer.steps_per_execution says more'
      ),
    )
  elif not steps and gathers:
    steps = _balanced(steps_per_loop, _MAX_STEPS_PER_EXECUTION)
  elif not steps:
    # At least two programs in a loop: the first of a run compiles, and another one shows how fast it is.
    at_most = min(steps_per_loop // 2, _stackable_steps(step_bytes))
    steps = _without_much_rest(steps_per_loop, max(1, at_most))
  manual = traits.owns_updates
  return StepPlan('fused', True, steps, on_cpu_with_convolutions, manual, reason, gathers=gathers and steps > 1)


def mesh_plan(mesh: str) -> StepPlan:
  """The plan of a step on a mesh of devices, reported as `mesh`: 'data 2 x tensor 2'."""
  return StepPlan('mesh', False, 1, False, False, f'runtime.mesh: {mesh}')


def without_compiled_update(plan: StepPlan, xla_error: str) -> StepPlan:
  """`plan` with the update outside of XLA's programs, which cannot contain it."""
  reason = f'{plan.reason}; XLA cannot compile the update: {xla_error}'
  execution = 'plain' if plan.execution == 'plain' else 'split'
  return dataclasses.replace(
    plan,
    execution=execution,
    steps_per_execution=1,
    unroll=False,
    gathers=False,
    compiles_update=False,
    reason=reason,
  )


def _use_xla(
  traits: StepTraits,
  enable_xla: bool | str,
  device_type: str,
  single_trace: bool,
  num_replicas: int,
  fast_products: Collection[str],
) -> tuple[bool, str]:
  if enable_xla != 'auto':
    reason = f'runtime.enable_xla={"true" if enable_xla else "false"}'
    if enable_xla and device_type == 'CPU' and traits.convolutions:
      reason += ", although convolutions are faster in TensorFlow's own kernels on CPU"
    return bool(enable_xla), reason
  if device_type == 'CPU' and traits.convolutions:
    return False, "convolutions are faster in TensorFlow's own kernels on CPU"
  if _is_mixed(traits, device_type, fast_products):
    if traits.bfloat16_products:
      return False, "products in bfloat16 are faster in TensorFlow's own kernels than in XLA on this CPU"
    return False, "products in float32 are as fast in TensorFlow's own kernels on this CPU, in less memory"
  if device_type == 'CPU' and not traits.static_shapes:
    return False, 'the shapes of the input are not fixed, XLA would compile for each'
  if traits.xla_error:
    return False, f'XLA cannot compile the step: {traits.xla_error}'
  if device_type == 'CPU' and not single_trace:
    strategy = 'several replicas on CPUs' if num_replicas > 1 else 'a strategy for several replicas, with one CPU'
    remedy = '' if num_replicas > 1 else '; runtime.distribution_strategy=one_device has one program'
    return False, f'{strategy}: two programs for each step cost more than they save{remedy}'
  return True, f'the step compiles for {device_type} and has no convolutions' if device_type == 'CPU' else (
    f'the step compiles for {device_type}'
  )


def _is_mixed(traits: StepTraits, device_type: str, fast_products: Collection[str]) -> bool:
  """Whether products are TensorFlow's, and XLA compiles the parts between them."""
  if device_type != 'CPU' or traits.num_weights < _MANY_WEIGHTS or not traits.static_shapes or traits.convolutions:
    return False
  # In float32 these products gain a little, a shorter start and memory; many small operations would lose all of it.
  return 'bfloat16' in fast_products if traits.bfloat16_products else traits.clusters and 'float32' in fast_products


def may_have_clusters(
  num_weights: int, *, enable_xla: bool | str, device_type: str, fast_products: Collection[str]
) -> bool:
  """Whether the plan of a step is likely to compile clusters, before its trace. The arguments: see `choose_plan`."""
  return enable_xla == 'auto' and device_type == 'CPU' and num_weights >= _MANY_WEIGHTS and bool(fast_products)


def _stackable_steps(input_bytes: int) -> int:
  """The number of batches of this size that are worth stacking."""
  return max(1, min(_MAX_STEPS_PER_EXECUTION, _MAX_STACKED_BYTES // max(input_bytes, 1)))


def _balanced(steps_per_loop: int, at_most: int) -> int:
  """The steps of a program, if any number can be run: all programs of a loop are nearly of one length."""
  num_programs = -(-steps_per_loop // at_most)
  return -(-steps_per_loop // num_programs)


def _without_much_rest(steps_per_loop: int, at_most: int) -> int:
  """The steps of a program, if the rest of a loop must be run step by step, by a separate program."""
  divisor = max(divisor for divisor in range(1, at_most + 1) if steps_per_loop % divisor == 0)
  if 2 * divisor >= at_most:
    return divisor
  num_programs = -(-steps_per_loop // at_most)
  return steps_per_loop // num_programs  # Fewer steps are left than there are programs.


def has_convolutions(graph: tf.Graph) -> bool:
  """Whether a graph, or a function that it calls, holds a convolution."""
  return any(node.op in _CONVOLUTIONS for node in _nodes(graph))


def has_bfloat16_products(graph: tf.Graph) -> bool:
  """Whether most products of matrices in a graph, and in functions that it calls, take bfloat16."""
  types = [
    node.attr[name].type
    for node in _nodes(graph)
    if node.op in _PRODUCTS
    for name in ('T', 'Ta')
    if (name in node.attr)
  ]
  return 2 * types.count(tf.bfloat16.as_datatype_enum) > len(types)


def _nodes(graph):
  """The nodes of a graph, and of all functions in its library."""
  definition = graph.as_graph_def()
  groups = [definition.node, *(function.node_def for function in definition.library.function)]
  return [node for group in groups for node in group]


def num_weights(model: object) -> int:
  """The numbers in all weights of a model that exist already."""
  return sum(variable.shape.num_elements() or 0 for variable in tf_internals.variables_of(model))


def is_number(value: Any) -> bool:
  """Whether a value is a scalar tensor of floating or integer type."""
  return tf.is_tensor(value) and value.shape.rank == 0 and (value.dtype.is_floating or value.dtype.is_integer)


def dtype_of_log(value: tf.Tensor) -> tf.DType:
  """The type in which a number that a step logs is summed: float64 for types that float32 does not hold exactly."""
  return tf.float64 if value.dtype.is_integer or value.dtype == tf.float64 else tf.float32


def input_traits(specs: object) -> tuple[bool, int]:
  """(static_shapes, input_bytes) of a structure of type specs."""
  total = 0
  for spec in tf.nest.flatten(specs):
    if not isinstance(spec, tf.TensorSpec) or not spec.shape.is_fully_defined():
      return False, 0
    if spec.dtype.is_numpy_compatible and spec.dtype != tf.string:
      total += spec.shape.num_elements() * spec.dtype.size
  return True, total


def static_specs(specs: Any) -> Any:
  """`specs` with a number for each unknown dimension, so that XLA can be asked about the step.

  Args:
    specs: a structure of type specs.

  Returns:
    The same structure; None if an input is ragged, sparse, or of unknown rank.
  """
  flat = tf.nest.flatten(specs)
  if not all(isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None for spec in flat):
    return None
  shapes = [[_STAND_IN if size is None else size for size in spec.shape] for spec in flat]
  return tf.nest.pack_sequence_as(specs, [tf.TensorSpec(shape, spec.dtype) for shape, spec in zip(shapes, flat)])


def plan_step(
  traits: StepTraits,
  config: definitions.TrainerConfig,
  runtime: definitions.RuntimeConfig,
  strategy: tf.distribute.Strategy,
  task_name: str,
  batch_size: int,
  *,
  single_trace: bool,
  owns_loop: bool,
  inputs_by: str,
) -> StepPlan:
  """Chooses how a step is run.

  Args:
    traits: the results of tracing it once.
    config: of the trainer.
    runtime: of the devices.
    strategy: the strategy.
    task_name: the class of the task, for messages.
    batch_size: the `global_batch_size` of the training data; 0 for none.
    single_trace: see `StepParts.single_trace`.
    owns_loop: whether the loop may run several steps as one program.
    inputs_by: see `choose_plan`.

  Raises:
    UserError: the configuration needs something that a task that owns its updates cannot have.
  """
  if runtime.mesh.sizes():
    return _mesh_plan(traits, runtime, task_name, batch_size, owns_loop)
  if traits.owns_updates:
    _check_task_that_owns_its_updates(traits, config, task_name)
  return choose_plan(
    traits,
    enable_xla=runtime.enable_xla,
    device_type=device_types.device_type(strategy),
    single_trace=single_trace,
    num_replicas=strategy.num_replicas_in_sync,
    steps_per_execution=config.steps_per_execution if owns_loop else 1,
    inputs_by=inputs_by,
    steps_per_loop=config.steps_per_loop,
    gradient_accumulation_steps=config.gradient_accumulation_steps,
    run_eagerly=not config.train_tf_function,
    fast_products=device_types.fast_products(),
  )


def step_may_have_clusters(
  model: tf.Module, runtime: definitions.RuntimeConfig, strategy: tf.distribute.Strategy
) -> bool:
  """Whether a step of the model is likely to be planned with clusters, before its trace: see `may_have_clusters`."""
  return not runtime.mesh.sizes() and may_have_clusters(
    num_weights(model),
    enable_xla=runtime.enable_xla,
    device_type=device_types.device_type(strategy),
    fast_products=device_types.fast_products(),
  )


def _mesh_plan(
  traits: StepTraits, runtime: definitions.RuntimeConfig, task_name: str, batch_size: int, owns_loop: bool
) -> StepPlan:
  """The plan for a mesh; refuses settings that no mesh supports."""
  if traits.owns_updates:
    raise errors.UserError(
      f'runtime.mesh: {task_name} calls optimizer.apply_gradients {traits.num_updates} times a step on the '
      f"trainer's optimizer and {traits.num_other_updates} times on others; a mesh carries tasks that call it once"
    )
  if not owns_loop:
    raise errors.UserError(f'runtime.mesh: the trainer of {task_name} overrides train_step, and no mesh carries that')
  mesh, axis = runtime.mesh, runtime.mesh.batch_axis()
  if axis and batch_size % mesh.sizes()[axis]:
    raise errors.UserError(
      f'task.train_data.global_batch_size: {batch_size} examples cannot be split evenly over '
      f'{axis}={mesh.sizes()[axis]} of runtime.mesh'
    )
  return mesh_plan(mesh_config.describe(mesh.sizes()))


def _check_task_that_owns_its_updates(traits: StepTraits, trainer: definitions.TrainerConfig, task_name: str) -> None:
  others = f', {traits.num_other_updates} times on others,' if traits.num_other_updates else ''
  if trainer.gradient_accumulation_steps > 1:
    raise errors.UserError(
      f'trainer.gradient_accumulation_steps: {trainer.gradient_accumulation_steps} needs a task that calls '
      f'optimizer.apply_gradients once a step; {task_name} calls it {traits.num_updates} times on '
      f"the trainer's optimizer{others} and owns its updates. Set it to 1, and accumulate in the task"
    )
  if trainer.loss_spike.factor:
    raise errors.UserError(
      f'trainer.loss_spike.factor: {task_name} calls optimizer.apply_gradients {traits.num_updates} '
      f'times a step{others} and owns its updates, which cannot be skipped. Set it to 0'
    )
