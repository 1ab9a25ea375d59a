"""The task `gan`: alternating updates of two networks, each with its own optimizer."""

import numpy as np
import tensorflow as tf
import tf_keras

import official_ext as ext

from . import configs
from . import data
from . import judge
from . import losses as losses_lib
from . import model as model_lib

_GRID = 10  # Images in a row and in a column of the grid of samples.
_CELL = 10  # Pixels of an image and its margin of 1.
_ZOOM = 4


@ext.register_task(configs.GanTaskConfig)
class GanTask(ext.Task):
  """Draws 8x8 images of digits.

  The step calls two optimizers: it is in manual optimization, and owns its updates.
  """

  def __init__(self, params: configs.GanTaskConfig, logging_dir: str | None = None, name: str | None = None):
    """See base class.

    Raises:
      UserError: a field has a value that makes no sense.
    """
    super().__init__(params, logging_dir=logging_dir, name=name)
    if params.adversarial_loss not in losses_lib.LOSSES:
      raise ext.UserError(
        f'task.adversarial_loss: {params.adversarial_loss!r} is not one of {", ".join(losses_lib.LOSSES)}'
      )
    if params.n_critic < 1:
      raise ext.UserError(f'task.n_critic: expected at least 1, got {params.n_critic}')

  def build_model(self) -> tf_keras.Model:
    """Generator, discriminator and the discriminator's optimizer, its variables created: see `Gan`."""
    config = self.config.model
    generator = model_lib.build_generator(config.latent_size, config.generator_sizes)
    discriminator = model_lib.build_discriminator(config.discriminator_sizes, config.dropout_rate)
    optimizer = self.create_optimizer(self.config.discriminator_optimizer)
    ext.build_optimizer(optimizer, discriminator.trainable_variables)
    return model_lib.Gan(generator, discriminator, optimizer)

  def build_inputs(
    self, params: ext.DataConfig, input_context: tf.distribute.InputContext | None = None
  ) -> tf.data.Dataset:
    """Batches {'pixels': float32 [b, 64]} for training, {'latents': float32 [b, latent_size]} for evaluation.

    Raises:
      UserError: a replica's batch cannot be divided into `n_critic` equal shares.
    """
    if params.is_training:
      size = params.global_batch_size // (input_context.num_replicas_in_sync if input_context else 1)
      if size % self.config.n_critic:
        raise ext.UserError(
          f'task.n_critic: {size} examples of a replica cannot be divided into {self.config.n_critic} equal shares; '
          'change task.train_data.global_batch_size'
        )
      examples = {'pixels': data.images(is_training=True)}
    else:
      latent_size = self.config.model.latent_size
      examples = {'latents': data.latents(self.config.num_samples, latent_size, params.seed or 0)}
    return ext.build_dataset(ext.ArraySource(examples), params, input_context)

  def build_metrics(self, training: bool = True) -> list[tf_keras.metrics.Metric]:
    """The number of digits that are drawn; nothing while training."""
    return [] if training else [judge.ClassCoverage()]

  def num_examples(self, params: ext.DataConfig) -> int:
    """The number of training images, or of samples in an evaluation."""
    return len(data.images(is_training=True)) if params.is_training else self.config.num_samples

  def train_step(self, inputs, model, optimizer, metrics=None) -> dict[str, tf.Tensor]:
    """`n_critic` updates of the discriminator, each on its share of the batch, then one of the generator."""
    for share in tf.split(inputs['pixels'], self.config.n_critic):
      logs = self._update_discriminator(share, model)
    loss = self._update_generator(len(share), model, optimizer)
    return {self.loss: loss, 'generator_loss': loss, **logs}

  def _update_discriminator(self, real, model):
    """One update of the discriminator; its logs."""
    fake = model.generator(self._latents(len(real)), training=True)
    with tf.GradientTape() as tape:
      real_logits, fake_logits = (model.discriminator(pixels, training=True) for pixels in (real, fake))
      loss = losses_lib.LOSSES[self.config.adversarial_loss].discriminator(real_logits, fake_logits)
      if self.config.adversarial_loss == 'wasserstein':
        shares = tf.random.stateless_uniform([len(real), 1], self.make_seed())
        score = lambda pixels: model.discriminator(pixels, training=True)
        loss += self.config.gradient_penalty * losses_lib.gradient_penalty(score, real, fake, shares)
    self._apply(tape, loss, model.discriminator, model.discriminator_optimizer)
    return {
      'discriminator_loss': loss,
      'real_logit': tf.reduce_mean(real_logits),
      'fake_logit': tf.reduce_mean(fake_logits),
    }

  def _update_generator(self, num_images, model, optimizer):
    """One update of the generator; its loss."""
    with tf.GradientTape() as tape:
      fake = model.generator(self._latents(num_images), training=True)
      logits = model.discriminator(fake, training=True)
      loss = losses_lib.LOSSES[self.config.adversarial_loss].generator(logits)
    self._apply(tape, loss, model.generator, optimizer)
    return loss

  def _latents(self, num_images):
    """Latent vectors, a function of (seed, step, replica, how many were drawn in this step before)."""
    return tf.random.stateless_normal([num_images, self.config.model.latent_size], self.make_seed())

  def _apply(self, tape, loss, network, optimizer):
    """Updates one network. The optimizer sums its gradients over the replicas; their mean is needed."""
    gradients = tape.gradient(loss, network.trainable_variables)
    num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
    optimizer.apply_gradients([(g / num_replicas, v) for g, v in zip(gradients, network.trainable_variables)])

  def validation_step(self, inputs, model, metrics=None) -> dict[str, tf.Tensor]:
    """Lets the judge classify the generator's images from the fixed latent vectors.

    Returns:
      'confidence', the judge's mean probability of the class that it finds likeliest; 'samples', the images.
    """
    samples = model.generator(inputs['latents'], training=False)
    probabilities = judge.class_probabilities(samples)
    for metric in metrics or ():
      metric.update_state(tf.argmax(probabilities, axis=1))
    return {'confidence': tf.reduce_mean(tf.reduce_max(probabilities, axis=1)), 'samples': samples}

  def aggregate_logs(self, state=None, step_outputs=None) -> list[np.ndarray]:
    """Keeps the first images of an evaluation."""
    state = state or []
    if sum(map(len, state)) < _GRID**2 and step_outputs:
      state += [samples.numpy() for samples in step_outputs['samples']]
    return state

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None) -> dict[str, np.ndarray]:
    """A grid of samples, the same latent vector at the same place in every evaluation: uint8 [1, h, w, 1]."""
    del global_step
    return {'samples': image_grid(np.concatenate(aggregated_logs)[: _GRID**2])}


def image_grid(pixels: np.ndarray) -> np.ndarray:
  """Arranges images of digits in rows.

  Args:
    pixels: float32 of shape [n, 64], in [0, 1].

  Returns:
    uint8 of shape [1, 40 * rows, 40 * columns, 1], dark on white, with margins; missing images are left white.
  """
  num_rows = -(-len(pixels) // _GRID)
  cells = np.zeros((num_rows * _GRID, _CELL, _CELL), np.float32)
  cells[: len(pixels), 1:-1, 1:-1] = pixels.reshape(-1, _CELL - 2, _CELL - 2)
  rows = cells.reshape(num_rows, _GRID, _CELL, _CELL).transpose(0, 2, 1, 3).reshape(num_rows * _CELL, _GRID * _CELL)
  image = np.round(255 * (1 - rows)).astype(np.uint8)
  return image.repeat(_ZOOM, 0).repeat(_ZOOM, 1)[np.newaxis, :, :, np.newaxis]
