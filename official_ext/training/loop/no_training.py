"""The training of a trainer that only evaluates, which does nothing: the base of those that do more."""

from typing import Any

import orbit
import tensorflow as tf

from official_ext.training.loop import step_inputs
from official_ext.training.loop import training_speed
from official_ext.training.step import step_plan
from official_ext.training.step import step_random
from official_ext.training.step import step_state
from official_ext.training.step import training_step


class NoTraining:
  """The training of a trainer that has none.

  A trainer holds one of three for its whole life: this one, `synchronous.SynchronousTraining`, or, on parameter
  servers, `parameter_server.ParameterServerTraining`.

  Attributes:
    sees_batches: whether this process runs every batch of an evaluation.
    restarts_input: whether the next loop takes its input from `global_step` on, if the step was set back.
    steps_are_done: whether the last loop has run all of its steps.
    step: runs the steps. Only a `SynchronousTraining` has this and the following three.
    state: the counters of the finite guard.
    inputs: takes the steps' batches.
    speed: of the last loop.
  """

  step: training_step.TrainingStep
  state: step_state.StepState
  inputs: step_inputs.StepInputs
  speed: training_speed.TrainingSpeed
  sees_batches: bool = True
  restarts_input: bool = False
  steps_are_done: bool = False

  def __init__(self, trainer: Any):
    """Initializes the training.

    Args:
      trainer: the trainer whose training this is.
    """
    self._trainer = trainer
    step_random.key_random_layers(trainer.model)

  @property
  def plan(self) -> step_plan.StepPlan | None:
    """How the step is compiled; None before that is decided, or if it is decided elsewhere."""
    return None

  @property
  def num_compilations(self) -> int:
    """The number of programs to which the training step was compiled so far."""
    return 1

  @property
  def guards_updates(self) -> bool:
    """Whether updates that are not finite are skipped."""
    return False

  @property
  def num_skips(self) -> int:
    """The number of updates skipped since the start or the last rollback."""
    return 0

  def train(self, num_steps: tf.Tensor) -> orbit.runner.Output | None:
    """Runs a loop of steps: see `Trainer.train`."""
    raise ValueError('The trainer was made with train=False.')

  def train_step(self, iterator: Any) -> None:
    """One update: see `Trainer.train_step`. Cross-replica context."""
    raise ValueError('The trainer was made with train=False.')

  def plan_step(self) -> None:
    """Decides how the step is compiled, if that is not decided yet. Call it when the input has an iterator."""

  def try_step(self) -> None:
    """Refuses a step that cannot be run, where that shows only by running one; changes nothing.

    Raises:
      UserError: it cannot.
    """

  def fused_loop(self) -> Any | None:
    """The loop over whole programs of steps; None if steps are run one by one."""
    return None

  def create_variables(self) -> bool:
    """Lets the training step make its variables; returns whether all exist now."""
    return True

  def take_logs(self) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns and forgets the logs of the loop's steps: (those that replace values of metrics, the others)."""
    return {}, {}

  def end_loop(self, logs: dict[str, Any]) -> dict[str, Any]:
    """Adds to the logs of a loop what is counted at its end."""
    return logs

  def keep_hyperparameters(self) -> None:
    """Gives the optimizer's constants the values that they were made with, after a restore."""

  def forget_skips(self) -> None:
    """Starts to count skipped updates anew."""
