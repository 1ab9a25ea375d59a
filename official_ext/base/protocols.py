"""Protocols of objects that come from elsewhere, limited to the members that this library uses.

Model Garden's classes have no type information, and a task or a trainer may derive from Model Garden's classes or from
this library's. A value whose class TensorFlow defines is `Any`, or `object` if it is only passed on: TensorFlow has no
type information either.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol


class TextOutput(Protocol):
  """A stream that takes text, such as `sys.stdout`."""

  def write(self, text: str, /) -> object:
    """Writes text."""

  def flush(self) -> None:
    """Passes on the written text."""


class Optimizer(Protocol):
  """An optimizer of tf_keras, legacy or not, or a wrapper of one."""

  iterations: Any
  learning_rate: Any

  def apply_gradients(self, grads_and_vars: Iterable[tuple[object, object]], /) -> object:
    """Updates variables."""


class Task(Protocol):
  """A task of Model Garden: `official.core.base_task.Task`."""

  task_config: object
  loss: str

  def build_model(self) -> object:
    """A Keras model."""

  def build_inputs(self, params: object, input_context: object = None) -> object:
    """A dataset of batches."""

  def build_metrics(self, training: bool = True) -> Sequence[object]:
    """Keras metrics."""

  def initialize(self, model: object) -> None:
    """Restores weights that a new run starts from."""

  def train_step(
    self, inputs: object, model: object, optimizer: Optimizer, metrics: object = None
  ) -> Mapping[str, Any]:
    """One update of one replica; returns logs."""

  def validation_step(self, inputs: object, model: object, metrics: object = None) -> Mapping[str, Any]:
    """The evaluation of one batch; returns logs."""

  def aggregate_logs(self, state: object, step_outputs: object) -> object:
    """Adds the logs of a step to a state."""

  def reduce_aggregated_logs(self, aggregated_logs: object, global_step: object = None) -> Mapping[str, object]:
    """The logs of an evaluation, from its state."""


class Trainer(Protocol):
  """A trainer of Model Garden: `official.core.base_trainer.Trainer`."""

  model: Any
  optimizer: Any
  global_step: Any
  checkpoint: Any
  config: Any
  train_loss: Any
  validation_loss: Any
  strategy: Any

  def initialize(self) -> None:
    """Restores weights that a new run starts from."""

  def train(self, num_steps: Any) -> Mapping[str, Any] | None:
    """Trains; returns logs."""

  def evaluate(self, num_steps: object) -> Mapping[str, Any] | None:
    """Evaluates; returns logs."""
