"""The task `distillation`: a student learns from labels and from a teacher whose weights are frozen."""

from collections.abc import Mapping

import tensorflow as tf
import tf_keras

import official_ext as ext

from . import configs
from . import data
from . import losses as losses_lib
from . import model as model_lib


@ext.register_task(configs.DistillationTaskConfig)
class DistillationTask(ext.Task):
  """Classification of 64 pixels into ten digits.

  The teacher belongs to the task, not to the model: a checkpoint holds the student alone, and the teacher is read from
  `task.teacher_checkpoint` whenever a run starts or resumes.
  """

  def __init__(self, params: configs.DistillationTaskConfig, logging_dir: str | None = None, name: str | None = None):
    """See base class.

    Raises:
      UserError: a loss needs a teacher, and none is named.
    """
    super().__init__(params, logging_dir=logging_dir, name=name)
    self.teacher: tf_keras.Model | None = None
    self._weights = {name: float(getattr(params.losses, name)) for name in losses_lib.LOSSES}
    in_need = [name for name in losses_lib.NEED_TEACHER if self._weights[name]]
    if in_need and not params.teacher_checkpoint:
      raise ext.UserError(
        f'task.teacher_checkpoint: the loss {in_need[0]} needs a teacher; train one with python train.py '
        '--experiment=distillation_teacher --mode=train --model_dir=runs/distillation_teacher and set this to '
        f'runs/distillation_teacher, or set {" and ".join(f"task.losses.{name}=0" for name in in_need)}'
      )
    self._needs_teacher = bool(in_need)

  def build_model(self) -> tf_keras.Model:
    """The student (see `build_network`). Reads the teacher.

    Raises:
      UserError: `task.teacher_checkpoint` is missing, or does not fit `task.teacher`.
    """
    if self._needs_teacher and self.teacher is None:
      self.teacher = self._build_teacher()
    hint_size = self.config.teacher.hidden_sizes[-1] if self._weights['feature'] else 0
    return model_lib.build_network(self.config.model, hint_size)

  def _build_teacher(self):
    teacher = model_lib.build_network(self.config.teacher)
    teacher.trainable = False
    try:
      ext.load_weights(teacher, self.config.teacher_checkpoint)
    except ext.UserError as error:
      message = (
        str(error)
        .replace('task.init_checkpoint_may_miss', 'task.teacher')
        .replace('task.init_checkpoint', 'task.teacher_checkpoint')
      )
      raise ext.UserError(message) from error
    return teacher

  def build_inputs(
    self, params: ext.DataConfig, input_context: tf.distribute.InputContext | None = None
  ) -> tf.data.Dataset:
    """Batches {'pixels': float32 [b, 64], 'label': int64 [b]}."""
    source = ext.ArraySource(self._examples(params))
    return ext.build_dataset(source, params, input_context)

  def build_metrics(self, training: bool = True) -> list[tf_keras.metrics.Metric]:
    """The fraction of images whose label has the largest logit."""
    return [tf_keras.metrics.SparseCategoricalAccuracy('accuracy')]

  def num_examples(self, params: ext.DataConfig) -> int:
    """The size of the split."""
    return len(self._examples(params)['label'])

  def _examples(self, params):
    examples = data.examples(bool(params.is_training))
    if params.is_training and self.config.num_images:
      return {name: values[: self.config.num_images] for name, values in examples.items()}
    return examples

  def forward(
    self, inputs: Mapping[str, tf.Tensor], model: tf_keras.Model, training: bool
  ) -> tuple[tf.Tensor, Mapping[str, object]]:
    """The weighted sum of the losses, each of which is logged: see base class."""
    pixels, labels = inputs['pixels'], inputs['label']
    if training and self.config.max_shift:
      limit = self.config.max_shift
      shifts = tf.random.stateless_uniform([tf.shape(pixels)[0], 2], self.make_seed('shift'), -limit, limit)
      pixels = data.shifted(pixels, shifts)
    student = model(pixels, training=training)
    teacher = self.teacher(pixels, training=False) if self.teacher is not None else None
    logs: dict[str, object] = {'accuracy': (labels, student['logits'])}
    loss = tf.constant(0.0)
    for name, weight in self._weights.items():
      if weight:
        value = losses_lib.LOSSES[name](student, teacher, labels, self.config.temperature)
        logs[f'{name}_loss'] = value
        loss += weight * value
    if teacher is not None:
      agree = tf.equal(tf.argmax(student['logits'], 1), tf.argmax(teacher['logits'], 1))
      logs['teacher_agreement'] = tf.reduce_mean(tf.cast(agree, tf.float32))
    return loss, logs
