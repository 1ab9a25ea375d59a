"""Training on parameter servers, whose workers run the steps by themselves, each at its own pace."""

from typing import Any

import orbit
import tensorflow as tf

from official_ext.base import errors
from official_ext.training.loop import base_evaluator
from official_ext.training.loop import no_training


class ParameterServerTraining(no_training.NoTraining):
  """Model Garden's own training under a ParameterServerStrategy: see base class.

  The coordinator, this process, hands whole loops to the workers and waits for the last. It sees no step and no batch,
  so there is no plan, no guard and no exact input; random layers draw as Model Garden's do.
  """

  sees_batches = False

  def __init__(self, trainer: Any, trains: bool):  # pylint: disable=super-init-not-called  # Which keys the layers.
    """Initializes the training.

    Args:
      trainer: the trainer whose training this is.
      trains: whether it will train, and not only evaluate.

    Raises:
      UserError: the configuration needs something that must see the steps.
    """
    self._trainer = trainer
    if not trains:
      return
    if trainer.config.trainer.inspect.every:
      raise errors.UserError('trainer.inspect.every: parameter servers run the steps by themselves; set it to 0')
    if getattr(trainer.model, 'built', False):
      trainer.check_parameter_groups()

  @property
  def _official(self) -> Any:
    """The trainer with the methods of Model Garden's class instead of this library's."""
    trainer: base_evaluator.Evaluator = self._trainer
    return super(base_evaluator.Evaluator, trainer)

  def train(self, num_steps: tf.Tensor) -> orbit.runner.Output | None:
    """See base class. This is Model Garden's."""
    return self._official.train(num_steps)

  def train_step(self, iterator: Any) -> None:
    """See base class. This is Model Garden's; it runs on a worker."""
    self._official.train_step(iterator)

  def create_variables(self) -> bool:
    """See base class. A step cannot be traced here."""
    return False
