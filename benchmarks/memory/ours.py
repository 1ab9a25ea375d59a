"""The training by this library's trainer, in the execution that its rule picks."""

from collections.abc import Callable
from typing import Any

import official_ext as ext

# isort: split
import numpy as np
from official.core import train_utils
from official.vision.configs import image_classification
from official.vision.modeling.layers import nn_blocks
from official.vision.tasks import image_classification as image_classification_task
import tensorflow as tf

from benchmarks.memory import subjects
from benchmarks.peers.runners import tasks
from benchmarks.peers.work import training
from official_ext.training.config import definitions
from official_ext.training.devices import distribute
from official_ext.training.loop import base_trainer

_OPTIONS: dict[str, dict[str, Any]] = {'remat': {'remat': 'block'}, 'scan': {'scan_layers': True}}


def trainer(
  subject: subjects.Subject, variant: str, work: training.Work | None, batch_size: int
) -> tuple[Callable[[], None], int, Callable[[], str]]:
  """(takes `steps_per_loop` steps, number of parameters, how they are executed).

  Args:
    subject: of the training.
    variant: of the subject.
    work: of a decoder.
    batch_size: examples of an update.
  """
  if work is None:
    strategy, made = _resnet(subject, variant, batch_size)
  else:
    strategy, made = _decoder(subject, variant, work, batch_size)

  def loop() -> None:
    with strategy.scope():
      logs = made.train(tf.constant(subject.steps_per_loop))
    float(logs['training_loss'])  # Waits.

  parameters = sum(variable.shape.num_elements() for variable in made.model.trainable_variables)
  return loop, parameters, lambda: str(made.plan)


def _decoder(subject, variant, work, batch_size):
  rows, count = subjects.split(variant, batch_size)
  params = tasks.experiment(
    work,
    steps_per_loop=subject.steps_per_loop,
    enable_xla=True if variant == 'xla' else 'auto',
    gradient_accumulation_steps=count,
  )
  params.task.train_data.global_batch_size = rows
  task_cls = tasks.task_class(work, pipeline=False, **_OPTIONS.get(variant, {}))
  return tasks.make_trainer(work, params, task_cls, base_trainer.Trainer)


class _RandomImages(image_classification_task.ImageClassificationTask):
  """Model Garden's task, on the same images again and again."""

  def build_inputs(self, params, input_context=None):
    """See base class."""
    del input_context
    rng, size = np.random.default_rng(0), subjects.IMAGE_SIZE
    images = rng.standard_normal([params.global_batch_size, size, size, 3], np.float32)
    labels = rng.integers(0, subjects.NUM_CLASSES, params.global_batch_size).astype(np.int32)
    return tf.data.Dataset.from_tensors((images, labels)).repeat()


def _recompute_blocks() -> None:
  """Lets the backward pass keep the input alone of each of Model Garden's blocks, in this process, which measures that.

  Their moving averages take two steps in each, as those of PyTorch's checkpointed blocks do.
  """
  call = nn_blocks.BottleneckBlock.call

  def recomputed(self, inputs, training=None):
    return tf.recompute_grad(lambda x: call(self, x, training=training))(inputs)

  nn_blocks.BottleneckBlock.call = recomputed


def _resnet(subject, variant, batch_size):
  rows, count = subjects.split(variant, batch_size)
  size = subjects.IMAGE_SIZE
  model = image_classification.ImageClassificationModel(
    num_classes=subjects.NUM_CLASSES, input_size=[size, size, 3], dropout_rate=0.0
  )
  model.norm_activation.use_sync_bn = False
  params = definitions.upgrade(
    ext.ExperimentConfig(
      task=image_classification.ImageClassificationTask(
        model=model,
        train_data=image_classification.DataConfig(is_training=True, global_batch_size=rows),
        validation_data=image_classification.DataConfig(is_training=False, global_batch_size=rows),
      ),
      trainer=ext.TrainerConfig(
        train_steps=10**9,
        steps_per_loop=subject.steps_per_loop,
        gradient_accumulation_steps=count,
        optimizer_config=ext.OptimizationConfig(
          {
            'optimizer': {'type': 'sgd', 'sgd': {'momentum': subjects.MOMENTUM}},
            'learning_rate': {'type': 'constant', 'constant': {'learning_rate': subjects.LEARNING_RATE}},
          }
        ),
      ),
    )
  )
  distribute.configure(params.runtime)
  strategy = distribute.get_strategy(params.runtime)
  if variant == 'remat':
    _recompute_blocks()
  with strategy.scope():
    task = _RandomImages(params.task)
    return strategy, train_utils.create_trainer(
      params, task, train=True, evaluate=False, trainer_cls=base_trainer.Trainer
    )
