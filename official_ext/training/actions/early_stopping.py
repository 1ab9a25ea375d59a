"""Ends training when a metric has stopped improving."""

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.run_folder import better
from official_ext.training.actions import triggers
from official_ext.training.config import trainer_parts


class EarlyStopping(triggers.Trigger):
  """Ends training after `patience` evaluations in a row without improvement, like tf_keras.callbacks.EarlyStopping.

  Checkpoints keep the best value and the count, so that a killed run stops at the step at which it would have stopped,
  and a stopped run does not continue when it is started again, unless `patience` is raised.
  """

  def __init__(self, config: trainer_parts.EarlyStoppingConfig):
    """Initializes the trigger.

    Args:
      config: its `metric` is set.
    """
    self._config = config
    mode = better.mode_of(config.metric, config.mode)
    self._best = triggers.Best(config.metric, mode, config.min_delta)
    super().__init__(('eval',), self._look)
    self.name = f'{self.name}/{config.metric}/{mode}'

  def state(self) -> json_types.JsonObject:
    """See base class."""
    return self._best.state()

  def restore(self, state: json_types.JsonMapping) -> None:
    """See base class."""
    self._best.restore(state)
    self._stop_if_spent()

  def _look(self, logs: triggers.Logs) -> None:
    self._best.update(logs)
    self._stop_if_spent()

  def _stop_if_spent(self) -> None:
    best, patience = self._best, self._config.patience
    if best.num_since < patience:
      return
    ever = 'has never been a finite number' if best.value is None else f'was best at step {best.step}: {best.value:.4g}'
    raise errors.StopTraining(
      f'{self._config.metric} {ever}, and has not improved in {best.num_since} evaluations '
      f'(trainer.early_stopping.patience {patience})'
    )
