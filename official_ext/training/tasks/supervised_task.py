"""Supervised learning with a model, a loss, metrics and arrays: the rest of a task follows from them.

Each part can be overridden by itself: `forward` for another use of the model, `build_inputs` for another pipeline.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any

import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import tf_internals
from official_ext.data import sources
from official_ext.data import step_indexed
from official_ext.training.config import definitions
from official_ext.training.tasks import base_task

FEATURES, LABELS, WEIGHTS = 'features', 'labels', 'weights'
PREDICTIONS = 'predictions'  # The log of `forward` that goes to all metrics.


@dataclasses.dataclass
class SupervisedConfig(definitions.TaskConfig):
  """The configuration of a `SupervisedTask`. A subclass adds fields, such as the sizes of layers.

  Attributes:
    train_data: The batches of training.
    validation_data: The batches of evaluation.

  Example:

    >>> @dataclasses.dataclass
    ... class WideConfig(ext.SupervisedConfig):
    ...   hidden_size: int = 64
    >>> WideConfig().train_data.global_batch_size
    32
  """

  train_data: definitions.InMemoryDataConfig = dataclasses.field(
    default_factory=lambda: definitions.InMemoryDataConfig(global_batch_size=32, is_training=True)
  )
  validation_data: definitions.InMemoryDataConfig = dataclasses.field(
    default_factory=lambda: definitions.InMemoryDataConfig(global_batch_size=256, is_training=False)
  )


class SupervisedTask(base_task.Task):
  """A task of examples with labels: `examples`, `build_model` and `build_loss` make it.

  The library makes the batches, counts the examples, and gives labels `[b]` the shape of outputs `[b, 1]`.

  Example:

    >>> class Line(ext.SupervisedTask):
    ...   def examples(self, is_training):
    ...     x = np.linspace(0, 1, 64 if is_training else 16, dtype=np.float32)
    ...     return x[:, np.newaxis], 2 * x
    ...
    ...   def build_model(self):
    ...     return tf_keras.Sequential([tf_keras.Input((1,)), tf_keras.layers.Dense(1, kernel_initializer='ones')])
    ...
    ...   def build_loss(self):
    ...     return tf_keras.losses.MeanSquaredError()
    >>> task = Line(ext.SupervisedConfig())
    >>> batch = {'features': tf.constant([[1.0], [3.0]]), 'labels': tf.constant([2.0, 6.0])}
    >>> loss, _ = task.forward(batch, task.build_model(), training=False)
    >>> float(loss), task.num_examples(task.config.train_data)  # ((2 - 1)^2 + (6 - 3)^2) / 2
    (5.0, 64)
  """

  def __init_subclass__(cls, **kwargs: Any):
    """Builds the models of `build_model` that have no `tf_keras.Input`, on the shapes of the training data."""
    super().__init_subclass__(**kwargs)
    if 'build_model' in vars(cls):
      cls.build_model = _building(cls.build_model)

  def examples(self, is_training: bool) -> Any:
    """The examples of a split.

    Args:
      is_training: whether the split is `task.train_data`; else it is `task.validation_data`.

    Returns:
      (features, labels) or (features, labels, weights): arrays `[n, ...]`, features also as a dictionary of them, whose
      names are those of the model's inputs. Or an `ext.Source` of examples with the keys `features`, `labels` and, if
      they have weights, `weights`.
    """
    raise NotImplementedError(f'{type(self).__name__} must implement examples, or build_inputs.')

  def build_loss(self) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """The loss: one of `tf_keras.losses`, or a function of (labels, outputs) that returns losses `[b, ...]`."""
    raise NotImplementedError(f'{type(self).__name__} must implement build_loss, or forward.')

  def build_inputs(self, params: Any, input_context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
    """Batches with the keys `features` and `labels`, and `weights` if there are any: see `ext.build_dataset`."""
    return step_indexed.build_dataset(self._source(params), params, input_context)

  def num_examples(self, params: Any) -> int:
    """The size of the split."""
    return len(self._source(params))

  def forward(
    self, inputs: Mapping[str, Any], model: tf_keras.Model, training: bool
  ) -> tuple[tf.Tensor, Mapping[str, Any]]:
    """Computes the loss of one replica's batch, and the labels and outputs for all metrics.

    Args:
      inputs: a batch with the keys `features` and `labels`, and `weights` if the examples have them.
      model: the model of `build_model`.
      training: whether the pass is for an update.

    Returns:
      (loss, logs). `loss` is the sum of the examples' losses, each times its weight, over their number, as in Keras.
      `logs` has labels, outputs and weights under `predictions`, for each metric without a log of its name.

    Raises:
      UserError: the model has several outputs, or `build_loss` returns one number for a batch.
    """
    outputs = model(inputs[FEATURES], training=training)
    if not tf.is_tensor(outputs):
      raise errors.UserError(
        f'{type(self).__name__}.forward: the model has several outputs, and build_loss takes one; override forward'
      )
    labels, weights = aligned(tf.convert_to_tensor(inputs[LABELS]), outputs), inputs.get(WEIGHTS)
    losses = self._losses(labels, outputs)
    if weights is not None:
      losses *= tf.cast(weights, losses.dtype)
    pair = (labels, outputs) if weights is None else (labels, outputs, weights)
    return tf.reduce_mean(losses), {PREDICTIONS: pair}

  def _losses(self, labels, outputs):
    """The loss of each example, `[b]`."""
    function = self.build_loss()
    call = function.call if isinstance(function, tf_keras.losses.Loss) else function
    losses = tf.convert_to_tensor(call(labels, outputs))
    if not losses.shape.rank:
      raise errors.UserError(
        f'{type(self).__name__}.build_loss: returns a scalar for a batch; return a loss for each example'
      )
    return tf.reduce_mean(losses, axis=range(1, losses.shape.rank)) if losses.shape.rank > 1 else losses

  @tf_internals.autograph_unconverted
  def _update_metrics(self, logs, metrics):
    """Hands labels and outputs to all metrics that `forward` names no other values for."""
    logs = dict(logs)
    pair = logs.pop(PREDICTIONS, None)
    others = {metric.name: pair for metric in metrics or () if metric.name not in logs and pair is not None}
    return super()._update_metrics({**logs, **others}, metrics)

  def _source(self, params):
    known = self.__dict__.setdefault('_known_sources', {})
    is_training = bool(params.is_training)
    if is_training not in known:
      known[is_training] = _source_of(self.examples(is_training), type(self).__name__)
    return known[is_training]


def _building(build_model: Callable[..., tf_keras.Model]) -> Callable[..., tf_keras.Model]:
  @functools.wraps(build_model)
  def build(self) -> tf_keras.Model:
    model = build_model(self)
    if isinstance(model, tf_keras.Model) and not model.built:
      features = self._source(self.config.train_data)[0][FEATURES]
      model(tf.nest.map_structure(lambda value: tf.convert_to_tensor(value)[tf.newaxis], features))
    return model

  return build


def _source_of(found: Any, name: str) -> sources.Source:
  if isinstance(found, sources.Source):
    return found
  if not isinstance(found, tuple) or len(found) not in (2, 3):
    raise errors.UserError(
      f'{name}.examples: returned {type(found).__name__}; expected (features, labels), (features, labels, weights) or '
      'an ext.Source'
    )
  try:
    return sources.ArraySource(dict(zip((FEATURES, LABELS, WEIGHTS), found)))
  except ValueError as error:
    raise errors.UserError(f'{name}.examples: {error}') from None


def aligned(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
  """Labels with the rank of outputs, if one of the two ends with a dimension of 1 that the other lacks.

  `[b]` beside `[b, 1]` would broadcast to `[b, b]`.

  Example:

    >>> aligned(tf.zeros([4]), tf.zeros([4, 1])).shape, aligned(tf.zeros([4, 1]), tf.zeros([4, 3])).shape
    (TensorShape([4, 1]), TensorShape([4, 1]))
  """
  ranks = labels.shape.rank, outputs.shape.rank
  if None in ranks:
    return labels
  if ranks[0] + 1 == ranks[1] and outputs.shape[-1] == 1:
    return labels[..., tf.newaxis]
  if ranks[0] == ranks[1] + 1 and labels.shape[-1] == 1:
    return labels[..., 0]
  return labels


def supervised_experiment(
  task: definitions.TaskConfig,
  epochs: int = 10,
  learning_rate: float = 1e-3,
  optimizer: str = 'adam_experimental',
  monitor: str = '',
  patience: int = 0,
  **trainer: Any,
) -> definitions.ExperimentConfig:
  """An experiment that evaluates and saves after each epoch. All of its fields can be changed as usual.

  Args:
    task: the configuration of the task.
    epochs: the length of the training.
    learning_rate: a constant one.
    optimizer: one of Model Garden's, such as 'adam_experimental', 'adamw_experimental' or 'sgd_experimental'.
    monitor: the metric of evaluations that decides which checkpoint is kept in `best`; '' for none.
    patience: the number of evaluations without a better value of `monitor`, or of the loss, after which training
      ends; 0: it does not end early.
    **trainer: further fields of `ext.TrainerConfig`, which replace those above.

  Example:

    >>> config = ext.supervised_experiment(ext.SupervisedConfig(), epochs=3, monitor='accuracy', patience=5)
    >>> config.trainer.train_epochs, config.trainer.best_checkpoint_eval_metric, config.trainer.early_stopping.patience
    (3, 'accuracy', 5)
  """
  fields: dict[str, Any] = {
    'train_epochs': epochs,
    'validation_interval_epochs': 1,
    'checkpoint_interval_epochs': 1,
    'summary_interval_epochs': 1,
    'optimizer_config': definitions.OptimizationConfig(
      {
        'optimizer': {'type': optimizer},
        'learning_rate': {'type': 'constant', 'constant': {'learning_rate': learning_rate}},
      }
    ),
  }
  if monitor:
    fields |= {'best_checkpoint_export_subdir': 'best', 'best_checkpoint_eval_metric': monitor}
  if patience:
    fields['early_stopping'] = {'metric': monitor or 'validation_loss', 'patience': patience}
  return definitions.ExperimentConfig(task=task, trainer=definitions.TrainerConfig(**{**fields, **trainer}))
