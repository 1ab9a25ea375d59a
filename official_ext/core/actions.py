"""The parts that say "when X, do Y": what the controller calls after a training loop or an evaluation."""

from typing import Any, List

import orbit

from official.core import actions
from official_ext.core import base_trainer
from official_ext.core import config_definitions
from official_ext.core import errors
from official_ext.monitoring import writers as writers_lib


class NonfiniteAction:
  """Reports updates that were left out, and ends the run when there were too many."""

  def __init__(
      self,
      trainer: base_trainer.Trainer,
      config: config_definitions.NonfiniteConfig,
      writers: writers_lib.Writer,
  ):
    self._trainer = trainer
    self._config = config
    self._writers = writers
    self._num_reported = -1

  def __call__(self, output: orbit.runner.Output) -> None:
    """Looks at the trainer's counters.

    Args:
      output: the logs of the training loop.

    Raises:
      DivergedError: more than `max_skips` updates were not finite.
    """
    del output
    state = self._trainer.step_state
    total = int(state.num_skips.numpy())
    if self._num_reported < 0:
      self._num_reported = self._trainer.num_skips_restored
    new, self._num_reported = total - self._num_reported, total
    for step in state.last_skips(new):
      examples = self._trainer.pace.examples_per_step
      self._writers.write('update_skipped', step, {
          'total': total,
          # Positions in the stream of training examples: first, and how many.
          'first_example': (step - 1) * examples,
          'num_examples': examples,
      })
    if total > self._config.max_skips:
      steps = ', '.join(map(str, state.last_skips(total)))
      raise errors.DivergedError(
          f'{total} updates were left out because their loss or gradient was not finite, the last at steps {steps}; '
          f'trainer.nonfinite.max_skips allows {self._config.max_skips}')


def get_train_actions(
    params: config_definitions.ExperimentConfig,
    trainer: Any,
    model_dir: str,
    checkpoint_manager: Any,
    writers: writers_lib.Writer,
) -> List[orbit.Action]:
  """Model Garden's train actions, without those that this library does otherwise, and the library's own."""
  # Not finite is the business of NonfiniteAction; Model Garden's recovery reads a mean at the end of the loop.
  stock = params.replace(trainer={'preemption_on_demand_checkpoint': False})
  train_actions = actions.get_train_actions(stock, trainer, model_dir, checkpoint_manager=checkpoint_manager)
  if isinstance(trainer, base_trainer.Trainer) and trainer.guards_updates:
    train_actions.insert(0, NonfiniteAction(trainer, params.trainer.nonfinite, writers))
  return train_actions
