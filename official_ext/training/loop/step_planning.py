"""Chooses how a training step is run, from the configuration and the trainer: see step_plan.py."""

import tensorflow as tf

from official_ext.base import errors
from official_ext.training.config import definitions
from official_ext.training.config import mesh_config
from official_ext.training.devices import device_types
from official_ext.training.devices import processor
from official_ext.training.step import step_plan


def choose_plan(
  traits: step_plan.StepTraits,
  config: definitions.TrainerConfig,
  runtime: definitions.RuntimeConfig,
  strategy: tf.distribute.Strategy,
  task_name: str,
  batch_size: int,
  *,
  single_trace: bool,
  owns_loop: bool,
  inputs_by: str,
) -> step_plan.StepPlan:
  """Chooses how a step is run.

  Args:
    traits: the results of tracing it once.
    config: of the trainer.
    runtime: of the devices.
    strategy: the strategy.
    task_name: the class of the task, for messages.
    batch_size: the `global_batch_size` of the training data; 0 if there is none.
    single_trace: see `StepParts.single_trace`.
    owns_loop: whether the loop may run several steps as one program.
    inputs_by: see `step_plan.choose_plan`.

  Raises:
    UserError: the configuration needs something that a task that owns its updates cannot have.
  """
  if runtime.mesh.sizes():
    return _mesh_plan(traits, runtime, task_name, batch_size, owns_loop)
  if traits.owns_updates:
    _check_task_that_owns_its_updates(traits, config, task_name)
  return step_plan.choose_plan(
    traits,
    enable_xla=runtime.enable_xla,
    device_type=device_types.device_type(strategy),
    single_trace=single_trace,
    steps_per_execution=config.steps_per_execution if owns_loop else 1,
    inputs_by=inputs_by,
    steps_per_loop=config.steps_per_loop,
    gradient_accumulation_steps=config.gradient_accumulation_steps,
    run_eagerly=not config.train_tf_function,
    fast_products=processor.fast_products(),
  )


def may_have_clusters(model: tf.Module, runtime: definitions.RuntimeConfig, strategy: tf.distribute.Strategy) -> bool:
  """Whether a step of the model is likely to be planned with clusters, before its trace: see step_plan.py."""
  return not runtime.mesh.sizes() and step_plan.may_have_clusters(
    step_plan.num_weights(model),
    enable_xla=runtime.enable_xla,
    device_type=device_types.device_type(strategy),
    fast_products=processor.fast_products(),
  )


def _mesh_plan(
  traits: step_plan.StepTraits, runtime: definitions.RuntimeConfig, task_name: str, batch_size: int, owns_loop: bool
) -> step_plan.StepPlan:
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
  return step_plan.mesh_plan(mesh_config.describe(mesh.sizes()))


def _check_task_that_owns_its_updates(
  traits: step_plan.StepTraits, trainer: definitions.TrainerConfig, task_name: str
) -> None:
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
