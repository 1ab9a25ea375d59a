"""Acts when a metric has stopped improving: ends training, or lowers the learning rate."""

import math

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.run_folder import metric_direction
from official_ext.training.actions import triggers
from official_ext.training.config import definitions
from official_ext.training.optimization import schedules


class EarlyStopping(triggers.Trigger):
  """Ends training after `patience` evaluations in a row without improvement, like tf_keras.callbacks.EarlyStopping.

  Checkpoints keep the best value and the count, so that a killed run stops at the step at which it would have stopped,
  and a stopped run does not continue when it is started again, unless `patience` is raised.

  Example:

    >>> config = ext.TrainerConfig({'early_stopping': {'metric': 'validation_loss', 'patience': 3}})
    >>> action = ext.EarlyStopping(config.early_stopping)
  """

  def __init__(self, config: definitions.EarlyStoppingConfig):
    """Initializes the trigger.

    Args:
      config: its `metric` is set.
    """
    self._config = config
    mode = metric_direction.mode_of(config.metric, config.mode)
    self._best = triggers.Best(config.metric, mode, config.min_delta)
    super().__init__(('eval',), self._look)
    self.name = f'{self.name}/{config.metric}/{mode}'

  def state(self) -> json_values.JsonObject:
    """See base class."""
    return self._best.state()

  def restore(self, state: json_values.JsonMapping) -> None:
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


LEARNING_RATE_REDUCED = 'learning_rate_reduced'


class ReduceLROnPlateau(triggers.Trigger):
  """Multiplies the learning rate by a factor, as tf_keras.callbacks.ReduceLROnPlateau does; see its configuration.

  It multiplies the optimizer's learning rate, constant or scheduled. Checkpoints keep the factor and the
  counts, so that a run that was killed, or has rolled back, continues as an uninterrupted one does.

  Example:

    >>> from official_ext.training.optimization import schedules
    >>> config = ext.TrainerConfig({'reduce_lr_on_plateau': {'metric': 'loss', 'factor': 0.5, 'patience': 2}})
    >>> scale = schedules.LearningRateScale(tf_keras.optimizers.SGD(0.1))
    >>> action = ext.ReduceLROnPlateau(config.reduce_lr_on_plateau, scale)
    >>> for step, loss in enumerate([3.0, 2.0, 2.0, 2.0]):  # The loss of an evaluation.
    ...   action({'step': step, 'loss': loss})
    >>> round(scale.learning_rate(), 6)
    0.05
  """

  def __init__(
    self,
    config: definitions.ReduceLROnPlateauConfig,
    scale: schedules.LearningRateScale,
  ):
    """Initializes the trigger.

    Args:
      config: its `metric` is set.
      scale: the factor on the learning rate of the optimizer.
    """
    self._config = config
    self._scale = scale
    self._sign = 1 if metric_direction.mode_of(config.metric, config.mode) == 'max' else -1
    super().__init__(('eval',), self._look)
    self.name = f'{self.name}/{config.metric}'
    self._set_state({})

  def state(self) -> json_values.JsonObject:
    """See base class."""
    return {
      **self._scale.state(),
      'best': self._best,
      'wait': self._wait,
      'cooldown': self._cooldown,
      'last_step': self._last_step,
    }

  def restore(self, state: json_values.JsonMapping) -> None:
    """See base class."""
    self._set_state(state)
    self._scale.restore(state)

  def _set_state(self, state):
    self._best: float | None = state.get('best')
    self._wait, self._cooldown = state.get('wait', 0), state.get('cooldown', 0)
    self._last_step = state.get('last_step', -1)

  def _look(self, logs: triggers.Logs) -> None:
    if logs['step'] <= self._last_step:  # The evaluation is repeated.
      return
    self._last_step = int(logs['step'])
    value = triggers.value_in(logs, self._config.metric)
    if self._cooldown:
      self._cooldown -= 1
      self._wait = 0
    if self._is_better(value):
      self._best, self._wait = value, 0
    elif not self._cooldown:
      self._wait += 1
      if self._wait >= self._config.patience:
        self._reduce(value)

  def _is_better(self, value: float) -> bool:
    if not math.isfinite(value):
      return False
    return self._best is None or self._sign * (value - self._best) > self._config.min_delta

  def _reduce(self, value: float) -> None:
    config, before = self._config, self._scale.learning_rate()
    if before <= config.min_lr:
      return
    after = max(before * config.factor, config.min_lr)
    self._scale.assign(self._scale.value * after / before)
    self.report(
      LEARNING_RATE_REDUCED,
      self._last_step,
      {'learning_rate': after, 'before': before, 'metric': config.metric, 'value': value, 'best': self._best},
    )
    self._cooldown, self._wait = config.cooldown, 0
