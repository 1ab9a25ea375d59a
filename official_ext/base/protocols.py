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
  """A task of Model Garden, `official.core.base_task.Task`, adapted: see training/tasks/model_garden.py."""

  task_config: object
  loss: str

  @property
  def class_names(self) -> Sequence[str]:
    """The names of the classes, in the order of their numbers; () if there are none."""

  @property
  def trainer_cls(self) -> type | None:
    """Trains the task; None for the library's trainer."""

  @property
  def evaluation_end_names(self) -> Sequence[str]:
    """The names of the metrics of `evaluation_end`."""

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

  def evaluation_end(self, model: Any) -> Mapping[str, Any]:
    """Further metrics, after the last batch of an evaluation."""

  def num_examples(self, params: object) -> int | None:
    """The number of examples in an epoch; None if it is not known."""

  def activation_bytes(self, model: Any, num_replicas: int) -> int | None:
    """An estimate of the memory of a micro-batch's activations; None without one."""

  def least_weights(self) -> tuple[int, int] | None:
    """(bytes of all weights, numbers in the trained ones), both at least; None if they are not known."""

  def serving_function(self, model: Any) -> Any | None:
    """The function that an exported model computes; None for the call of the model."""

  def build_actions(self, trainer: Any) -> Sequence[Any]:
    """Actions besides training."""

  def keep_files(self, model_dir: str) -> None:
    """Writes data into the run's folder."""

  def example_lines(self) -> Sequence[str]:
    """Lines about the first training example."""

  def code_files(self) -> Mapping[str, Any]:
    """Further code and files that decide the result of a step."""


class Trainer(Protocol):
  """A trainer of Model Garden, `official.core.base_trainer.Trainer`, adapted: see training/tasks/model_garden.py."""

  model: Any
  optimizer: Any
  global_step: Any
  checkpoint: Any
  config: Any
  train_loss: Any
  validation_loss: Any
  strategy: Any
  speed: Any
  profiler: Any
  steps_are_done: bool

  @property
  def plan(self) -> Any:
    """How the step is compiled; None if that is not decided."""

  @property
  def data_offset(self) -> int:
    """The offset that is added to the number of a step when its batches are chosen."""

  def initialize(self) -> None:
    """Restores weights that a new run starts from."""

  def train(self, num_steps: Any) -> Mapping[str, Any] | None:
    """Trains; returns logs."""

  def evaluate(self, num_steps: object) -> Mapping[str, Any] | None:
    """Evaluates; returns logs."""
