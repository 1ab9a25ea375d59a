"""Small tasks, and trainers around them, whose numbers a test can derive by itself."""

from collections.abc import Callable, Iterable
import functools
from typing import Any

import numpy as np
from official.core import config_definitions as cfg
import orbit
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import tf_internals
from official_ext.training.config import definitions
from official_ext.training.config import mesh_config
from official_ext.training.loop import base_trainer
from official_ext.training.tasks import base_task

NUM_FEATURES, NUM_CLASSES = 4, 3


def cases(fast: Iterable[Any], soak: Iterable[Any]) -> list[Any]:
  """For `pytest.mark.parametrize`: `fast`, and `soak` with the long tests. A tuple is the values of several names."""
  of_soak = (case if isinstance(case, tuple) else (case,) for case in soak)
  return [*fast, *(pytest.param(*case, marks=pytest.mark.soak) for case in of_soak)]


def make_data(num_examples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
  """(features of shape [n, 4], labels of shape [n])."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(num_examples, NUM_FEATURES)).astype(np.float32)
  return x, rng.integers(0, NUM_CLASSES, num_examples).astype(np.int32)


def initial_weights(dtype: Any = np.float32) -> list[np.ndarray]:
  """Kernel and bias of the linear model."""
  rng = np.random.default_rng(42)
  return [rng.normal(size=(NUM_FEATURES, NUM_CLASSES)).astype(dtype), rng.normal(size=NUM_CLASSES).astype(dtype)]


def linear_model(dtype: str = 'float32') -> tf_keras.Model:
  """One Dense layer with `initial_weights`."""
  inputs = tf_keras.Input((NUM_FEATURES,))
  layer = tf_keras.layers.Dense(NUM_CLASSES, dtype=tf_keras.mixed_precision.Policy(dtype), name='dense')
  model = tf_keras.Model(inputs, layer(inputs))
  layer.set_weights(initial_weights())
  return model


class LinearTask(base_task.Task):
  """Softmax regression; global batch s is examples [s * G, (s + 1) * G) of the data, without end."""

  model_fn: Callable[[], tf_keras.Model] = staticmethod(linear_model)

  def __init__(self, params, data, validation_data=None):
    super().__init__(params)
    self.data = data
    self.validation_data = validation_data if validation_data is not None else tuple(part[:8] for part in data)

  def build_model(self):
    return type(self).model_fn()

  def build_inputs(self, params, input_context=None):
    num_replicas = input_context.num_replicas_in_sync if input_context else 1
    dataset = tf.data.Dataset.from_tensor_slices(self.data if params.is_training else self.validation_data)
    if params.is_training:
      dataset = dataset.repeat()
    return dataset.batch(params.global_batch_size // num_replicas, drop_remainder=params.drop_remainder)

  def build_metrics(self, training=True):
    return [tf_keras.metrics.SparseCategoricalAccuracy('accuracy')]

  def forward(self, inputs, model, training):
    x, y = inputs
    logits = tf.cast(model(x, training=training), tf.float32)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
    return loss, {'accuracy': (y, logits), 'logit_mean': tf.reduce_mean(logits)}


@functools.cache
def strategy(name: str) -> tf.distribute.Strategy:
  """'one' replica, 'two' or 'four' replicas, 'mirrored_one' (a MirroredStrategy of one), or 'default' (none)."""
  if name == 'one':
    return tf.distribute.OneDeviceStrategy('CPU:0')
  if name == 'default':
    return tf.distribute.get_strategy()
  devices = [f'CPU:{index}' for index in range({'two': 2, 'four': 4}.get(name, 1))]
  return tf_internals.make_strategy(tf.distribute.MirroredStrategy, devices=devices)


def sgd(learning_rate: float = 0.1, momentum: float = 0.9, **kwargs: Any) -> Any:
  """Legacy SGD, Model Garden's default."""
  return tf_keras.optimizers.legacy.SGD(learning_rate, momentum=momentum, **kwargs)


def make_trainer(
  task_cls: Any = LinearTask,
  data: Any = None,
  *,
  batch_size: int = 8,
  replicas: str = 'one',
  optimizer: Callable[[], Any] = sgd,
  enable_xla: Any = True,
  steps_per_execution: int = 1,
  accumulation: int = 1,
  steps_per_loop: int = 16,
  seed: int = 0,
  validation_data: Any = None,
  validation_batch_size: int | None = None,
  drop_remainder: bool = True,
  trainer_cls: Any = base_trainer.Trainer,
  trainer_config: dict | None = None,
  mesh: dict | None = None,
  evaluate: bool = False,
  **kwargs: Any,
) -> base_trainer.Trainer:
  """A trainer of `task_cls`. XLA off is the plain shape; on, it is fused on one replica and split on two."""
  config = definitions.ExperimentConfig(
    task=cfg.TaskConfig(
      train_data=cfg.DataConfig(global_batch_size=batch_size, is_training=True, drop_remainder=drop_remainder),
      validation_data=cfg.DataConfig(
        global_batch_size=validation_batch_size or batch_size, is_training=False, drop_remainder=False
      ),
    ),
    trainer=definitions.TrainerConfig(
      steps_per_execution=steps_per_execution,
      gradient_accumulation_steps=accumulation,
      steps_per_loop=steps_per_loop,
      train_steps=1000,
      **(trainer_config or {}),
    ),
    runtime=definitions.RuntimeConfig(enable_xla=enable_xla, seed=seed, mesh=mesh_config.MeshConfig(mesh)),
  )
  with strategy(replicas).scope():
    task = task_cls(config.task, data if data is not None else make_data(64), validation_data)
    model = task.build_model()
    return trainer_cls(config, task, model, optimizer(), evaluate=evaluate, **kwargs)


def train(trainer: base_trainer.Trainer, num_steps: int) -> dict[str, Any]:
  """Runs steps in the trainer's scope; the logs as numpy values."""
  with trainer.strategy.scope():
    logs = trainer.train(tf.constant(num_steps))
    return {name: np.asarray(orbit.utils.get_value(value)) for name, value in logs.items()}


def evaluate(trainer: base_trainer.Trainer, num_steps: int = -1) -> dict[str, Any]:
  """Evaluates in the trainer's scope; the logs as numpy values."""
  with trainer.strategy.scope():
    return {name: np.asarray(value) for name, value in trainer.evaluate(tf.constant(num_steps)).items()}


def weights_of(trainer: base_trainer.Trainer) -> list[np.ndarray]:
  return [variable.numpy() for variable in trainer.model.trainable_variables]


def global_batch(data: Any, step: int, size: int) -> Any:
  """The examples of the batch at `step`."""
  indices = np.arange(step * size, (step + 1) * size) % len(data[0])
  return tuple(part[indices] for part in data)


def softmax_regression(weights: list[np.ndarray], batch: Any) -> tuple[float, list[np.ndarray], float]:
  """(mean loss, its gradients, accuracy), in float64, by the formulas."""
  x, y = batch[0].astype(np.float64), batch[1]
  logits = x @ weights[0] + weights[1]
  logits -= logits.max(1, keepdims=True)
  p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  loss = -np.log(p[np.arange(len(y)), y]).mean()
  error = (p - np.eye(NUM_CLASSES)[y]) / len(y)
  return loss, [x.T @ error, error.sum(0)], (p.argmax(1) == y).mean()


def norm(gradients: list[np.ndarray]) -> float:
  return float(np.sqrt(sum(np.square(gradient).sum() for gradient in gradients)))


class Reference:
  """Softmax regression by the formulas, its update by a Keras optimizer without clipping, run eagerly.

  Clipping, in numpy: `clip` maps a list of gradients to a list of gradients.
  """

  def __init__(self, optimizer: Any, data: Any, batch_size: int, clip: Any = None, dtype: Any = np.float64):
    self.optimizer, self.data, self.batch_size, self.clip = optimizer, data, batch_size, clip
    names = ('dense/kernel', 'dense/bias')
    self.variables = [tf.Variable(w, name=name) for w, name in zip(initial_weights(dtype), names)]
    self.losses, self.norms, self.accuracies = [], [], []

  def train(self, num_steps: int) -> 'Reference':
    """Runs steps on the batches that follow."""
    for step in range(len(self.losses), len(self.losses) + num_steps):
      weights = [v.numpy().astype(np.float64) for v in self.variables]
      loss, gradients, accuracy = softmax_regression(weights, global_batch(self.data, step, self.batch_size))
      self.losses.append(loss)
      self.norms.append(norm(gradients))
      self.accuracies.append(accuracy)
      if self.clip:
        gradients = self.clip(gradients)
      self.optimizer.apply_gradients([(tf.constant(g, v.dtype), v) for g, v in zip(gradients, self.variables)])
    return self

  @property
  def weights(self) -> list[np.ndarray]:
    return [v.numpy() for v in self.variables]


def clip_by_global_norm(limit: float) -> Callable[[list[np.ndarray]], list[np.ndarray]]:
  return lambda gradients: [g * min(1.0, limit / norm(gradients)) for g in gradients]


def clip_by_norm(limit: float) -> Callable[[list[np.ndarray]], list[np.ndarray]]:
  return lambda gradients: [g * min(1.0, limit / norm([g])) for g in gradients]


def clip_by_value(limit: float) -> Callable[[list[np.ndarray]], list[np.ndarray]]:
  return lambda gradients: [np.clip(g, -limit, limit) for g in gradients]


def assert_close(actual: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
  """Compares lists of arrays."""
  assert len(actual) == len(expected)
  for a, e in zip(actual, expected):
    np.testing.assert_allclose(a, e, rtol=rtol, atol=atol)
