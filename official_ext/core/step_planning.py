"""Chooses how a training step is run, from the configuration and the trainer: see step_plan.py."""

import tensorflow as tf

from official_ext import errors
from official_ext.config import definitions
from official_ext.runtime import distribute
from official_ext.runtime import processor
from official_ext.step import step_plan


def choose_plan(
  traits: step_plan.StepTraits,
  params: definitions.ExperimentConfig,
  strategy: tf.distribute.Strategy,
  task_name: str,
  *,
  single_trace: bool,
  owns_loop: bool,
  inputs_by: str,
) -> step_plan.StepPlan:
  """Chooses how a step is run.

  Args:
    traits: the results of tracing it once.
    params: the experiment.
    strategy: the strategy.
    task_name: the class of the task, for messages.
    single_trace: see `StepParts.single_trace`.
    owns_loop: whether the loop may run several steps as one program.
    inputs_by: see `step_plan.choose_plan`.

  Raises:
    UserError: the configuration needs something that a task that owns its updates cannot have.
  """
  runtime, trainer = params.runtime, params.trainer
  if traits.owns_updates:
    _check_task_that_owns_its_updates(traits, trainer, task_name)
  return step_plan.choose_plan(
    traits,
    enable_xla=runtime.enable_xla,
    device_type=distribute.device_type(strategy),
    single_trace=single_trace,
    steps_per_execution=trainer.steps_per_execution if owns_loop else 1,
    inputs_by=inputs_by,
    steps_per_loop=trainer.steps_per_loop,
    gradient_accumulation_steps=trainer.gradient_accumulation_steps,
    run_eagerly=not trainer.train_tf_function,
    fast_products=processor.fast_products(),
  )


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
