"""The actions that the controller takes after a training loop or an evaluation: "when X, do Y"."""

from collections.abc import Callable, Mapping, Sequence
import math
from typing import Any

from official.core import actions
import orbit

from official_ext.base import errors
from official_ext.base import number_ranges
from official_ext.base import protocols
from official_ext.data import config_fields
from official_ext.training.checkpoints import exported_weights
from official_ext.training.checkpoints import manager
from official_ext.training.config import definitions
from official_ext.training.devices import workers
from official_ext.training.loop import base_trainer
from official_ext.training.loop import controller
from official_ext.training.optimization import ema_optimizer
from official_ext.training.record import run_events


class RollbackAction:
  """The base of actions that watch for divergence: they roll back to a checkpoint, and skip the bad batches."""

  def __init__(self, trainer: base_trainer.Trainer, checkpoint_manager: manager.CheckpointManager | None):
    """Makes the action.

    Args:
      trainer: this library's.
      checkpoint_manager: that of the run; None if no rollback is configured.
    """
    self._trainer = trainer
    self._manager = checkpoint_manager

  def _roll_back(self, bad_steps: Sequence[int], max_rollbacks: int, limit: str, reason: str) -> controller.RolledBack:
    """Restores a checkpoint from before the trouble; the next batches are those after the last bad step's.

    Args:
      bad_steps: see `CheckpointManager.roll_back`.
      max_rollbacks: how many the run may make.
      limit: the dotted path of the field that limits them.
      reason: the cause.

    Returns:
      The rollback.

    Raises:
      DivergedError: the run may not roll back, or cannot.
    """
    if not max_rollbacks or self._manager is None:
      raise errors.DivergedError(reason)
    if len(self._manager.rollbacks) >= max_rollbacks:
      raise errors.DivergedError(f'{reason}; {limit} allows {max_rollbacks} rollbacks, which have been made')
    trainer = self._trainer
    from_step, next_batch = int(trainer.global_step.numpy()), bad_steps[-1] + trainer.data_offset
    with trainer.strategy.scope():
      path = self._manager.roll_back(bad_steps, lambda step: next_batch - step, trainer.num_skips)
    if path is None:
      raise errors.DivergedError(f'{reason}; there is no checkpoint to roll back to')
    trainer.checkpoint_restored(**self._manager.continuation(path))
    return controller.RolledBack(
      from_step, path, rollbacks=len(self._manager.rollbacks), data_offset=trainer.data_offset, reason=reason
    )


class NonfiniteAction(RollbackAction):
  """Reports skipped updates; after too many, rolls back or ends the run."""

  def __init__(
    self,
    trainer: base_trainer.Trainer,
    config: definitions.NonfiniteConfig,
    events: run_events.RunEvents,
    checkpoint_manager: manager.CheckpointManager | None = None,
  ):
    """Makes the action.

    Args:
      trainer: the trainer, which guards its updates.
      config: the limit of skipped updates, and the reaction above it.
      events: the run's events, to which it reports skipped updates.
      checkpoint_manager: see base class.
    """
    super().__init__(trainer, checkpoint_manager)
    self._config = config
    self._events = events
    self._num_reported = -1
    self._cause = ''  # The error in the inputs of a skipped step.

  def __call__(self, output: orbit.runner.Output) -> controller.RolledBack | None:
    """Looks at the trainer's counters.

    Args:
      output: the logs of the training loop.

    Returns:
      Where the run stands now, if it has rolled back.

    Raises:
      DivergedError: more than `max_skips` updates were skipped, and the run may not roll back, or not again.
    """
    state = self._trainer.step_state
    total = int(state.num_skips.numpy())
    if self._num_reported < 0:
      self._num_reported = self._trainer.num_skips_restored
    new, self._num_reported = total - self._num_reported, total
    examples = self._trainer.speed.examples_per_step
    for number, step in enumerate(state.last_skips(new)):
      # Examining the inputs of all of them would take as long as these steps did.
      cause = self._trainer.examine_step(step) if not number else ''
      self._cause = f'step {step}: {cause}' if cause else self._cause
      self._events.report(
        'update_skipped',
        step,
        {
          'total': total,
          # Positions in the stream of training examples: first, and how many.
          'first_example': (step - 1 + self._trainer.data_offset) * examples,
          'num_examples': examples,
          **({'cause': cause} if cause else {}),
        },
      )
    if total <= self._config.max_skips:
      return None
    steps = state.last_skips(total)
    positions = [(step - 1 + self._trainer.data_offset) * examples for step in steps]
    updates = '1 update was skipped' if total == 1 else f'{total} updates were skipped'
    place = 'at' if len(steps) == total else 'the last at'
    at_steps = number_ranges.describe_with_noun('step', steps)
    reason = (
      f'{self._cause or self._general_cause(output)}: {updates}, {place} {at_steps}; '
      f'trainer.nonfinite.max_skips allows {self._config.max_skips}; the examples are at '
      f'{number_ranges.describe_with_noun("position", positions, examples)}'
    )
    reason += '' if self._cause else '; --debug locates it'
    max_rollbacks = self._config.max_rollbacks if self._config.then == 'rollback' else 0
    rollback = self._roll_back(steps, max_rollbacks, 'trainer.nonfinite.max_rollbacks', reason)
    self._num_reported = self._trainer.num_skips_restored
    return rollback

  def _general_cause(self, output: Mapping[str, Any]) -> str:
    """The cause of skipped updates whose inputs are in order."""
    spikes = self._trainer.config.trainer.loss_spike.factor
    rate = output.get('learning_rate')
    at_rate = '' if rate is None else f' at the learning rate {float(rate):.4g}'
    return f'the loss or its gradient was not finite{", or the loss a spike," if spikes else ""}{at_rate}'


class LossBoundAction(RollbackAction):
  """Rolls back, or ends the run, if the loss of a training loop is above `trainer.loss_upper_bound`.

  It reads the fields of Model Garden's RecoveryCondition, which restores a checkpoint too, but not the input.
  """

  def __init__(
    self,
    trainer: base_trainer.Trainer,
    config: definitions.TrainerConfig,
    checkpoint_manager: manager.CheckpointManager | None,
  ):
    """Makes the action.

    Args:
      trainer: the trainer. A loss that is not finite counts if it does not guard its updates.
      config: has `loss_upper_bound`, `recovery_begin_steps` and `recovery_max_trials`.
      checkpoint_manager: see base class.
    """
    super().__init__(trainer, checkpoint_manager)
    self._config = config

  def __call__(self, output: orbit.runner.Output) -> controller.RolledBack | None:
    """Looks at the loss.

    Args:
      output: the logs of the training loop.

    Returns:
      Where the run stands now, if it has rolled back.

    Raises:
      DivergedError: the loss is too high, and the run may not roll back, or not again.
    """
    name = self._trainer.train_loss.name
    if name not in output:
      return None
    loss, step = float(output[name]), int(self._trainer.global_step.numpy())
    if not math.isfinite(loss):
      if self._trainer.guards_updates:
        return None
      reason = f'the {name} up to step {step} is {loss}'
    elif step >= self._config.recovery_begin_steps and loss > self._config.loss_upper_bound:
      bound = self._config.loss_upper_bound
      reason = f'the {name} up to step {step} is {loss:g}; trainer.loss_upper_bound is {bound:g}'
    else:
      return None
    return self._roll_back([step], self._config.recovery_max_trials, 'trainer.recovery_max_trials', reason)


def may_roll_back(config: definitions.TrainerConfig) -> bool:
  """Whether a run may have to roll back; then there must be a checkpoint from the first step on."""
  return config.nonfinite.then == 'rollback' or config.recovery_max_trials > 0


def get_train_actions(
  config: definitions.TrainerConfig,
  trainer: base_trainer.Trainer,
  model_dir: str,
  checkpoint_manager: manager.CheckpointManager,
  events: run_events.RunEvents,
) -> list[orbit.Action]:
  """The actions that watch for divergence, and Model Garden's that prunes; its others are replaced by this library."""
  train_actions: list[orbit.Action] = []
  if trainer.guards_updates:
    train_actions.append(NonfiniteAction(trainer, config.nonfinite, events, checkpoint_manager))
  if config.recovery_max_trials >= 0:
    train_actions.append(LossBoundAction(trainer, config, checkpoint_manager))
  if config_fields.of_task(trainer.config.task).pruning:
    folder = workers.own_folder(trainer.strategy, model_dir)
    train_actions.append(actions.PruningAction(folder, trainer.model, trainer.optimizer))
  return train_actions


def get_eval_actions(
  max_to_keep: int, trainer: protocols.Trainer, model_dir: str, owns: Callable[[], bool]
) -> list[orbit.Action]:
  """Model Garden's eval actions; only the chief's files count.

  Args:
    max_to_keep: the number of checkpoints with averages to keep.
    trainer: the trainer that evaluates.
    model_dir: the run's folder.
    owns: called at every evaluation: whether this process may write the training's files.
  """
  if ema_optimizer.find(trainer.optimizer) is None:
    return []
  return [
    exported_weights.EMACheckpointing(
      model_dir,
      trainer.optimizer,
      trainer.checkpoint,
      max_to_keep,
      is_chief=trainer.strategy.extended.should_checkpoint,
      owns=owns,
    )
  ]
