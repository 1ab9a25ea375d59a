"""Muon: momentum, orthogonalised."""

from collections.abc import Sequence
import math
import re

import tensorflow as tf
import tf_keras

from official_ext.training.optimization import optimizers

# The coefficients of a*x + b*x^3 + c*x^5, which maps singular values from (0, 1] to about 0.7 ... 1.2 in five rounds.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
# Their rows are looked up or compared one by one: they do not map one space to another.
ADAMW_PATTERNS = ('embed', '(?<!multi_)head', 'logits', 'classifier', 'predictions')


def orthogonalize(matrix: tf.Tensor, steps: int = 5) -> tf.Tensor:
  """Returns approximately U V^T for a matrix U S V^T, by Newton-Schulz iterations.

  Args:
    matrix: float32 of shape [m, n].
    steps: number of iterations.

  Returns:
    float32 of shape [m, n], with singular values between about 0.7 and 1.2.
  """
  a, b, c = _COEFFICIENTS
  is_tall = matrix.shape[0] > matrix.shape[1]
  x = tf.transpose(matrix) if is_tall else matrix
  x /= tf.norm(x) + 1e-7
  for _ in range(steps):
    square = tf.matmul(x, x, transpose_b=True)
    x = a * x + tf.matmul(b * square + c * tf.matmul(square, square), x)
  return tf.transpose(x) if is_tall else x


def matrix_shape(shape: Sequence[int]) -> tuple[int, int] | None:
  """The numbers of rows and columns of a variable as a matrix: its axes are split into two groups.

  The last axis is a separate group: a convolution's [height, width, in, out] becomes [height * width * in, out]. With
  three axes, the split makes the two sides as equal as possible: an attention's [model, heads, size] becomes
  [model, heads * size], and its [heads, size, model] becomes [heads * size, model].

  Returns:
    None if it is not a matrix: it has fewer than two axes, or a single row or column.
  """
  shape = [int(size) for size in shape]
  cuts = [1, 2] if len(shape) == 3 else [len(shape) - 1] if len(shape) > 1 else []
  matrices = [(math.prod(shape[:cut]), math.prod(shape[cut:])) for cut in cuts]
  matrices = [matrix for matrix in matrices if min(matrix) > 1]
  return min(matrices, key=max) if matrices else None


class Muon(optimizers.Optimizer):
  """Muon for matrices, AdamW for everything else.

  Jordan et al. 2024, https://kellerjordan.github.io/posts/muon, at the scale of Liu et al. 2025,
  https://arxiv.org/abs/2502.16982, which lets matrices and the rest share AdamW's learning rate and weight decay. With
  gradient g of a matrix x with r rows and c columns:

    b  = momentum * b + g
    o  = orthogonalize(g + momentum * b)                 without nesterov: orthogonalize(b)
    x -= learning_rate * (rms_scale * sqrt(max(r, c)) * o + weight_decay * x)

  AdamW updates variables with fewer than two axes, or with names that match one of `adamw_patterns`.
  """

  def __init__(
    self,
    learning_rate: float | tf.Tensor | tf_keras.optimizers.schedules.LearningRateSchedule = 0.001,
    momentum: float = 0.95,
    nesterov: bool = True,
    newton_schulz_steps: int = 5,
    rms_scale: float = 0.2,
    weight_decay: float = 0.0,
    adamw_patterns: Sequence[str] = ADAMW_PATTERNS,
    beta_1: float = 0.9,
    beta_2: float = 0.95,
    epsilon: float = 1e-8,
    name: str = 'Muon',
    **kwargs: object,
  ):
    """Initializes the optimizer.

    Args:
      learning_rate: a number, or a schedule.
      momentum: decay of the sum of the gradients.
      nesterov: whether to use Nesterov momentum.
      newton_schulz_steps: iterations of `orthogonalize`.
      rms_scale: the root mean square of a full-rank update of a square matrix.
      weight_decay: decay of the weights, times the learning rate, of all variables.
      adamw_patterns: regular expressions, searched for in the names of variables.
      beta_1: AdamW's decay of the first moment.
      beta_2: AdamW's decay of the second moment.
      epsilon: AdamW's, added to the root of the second moment.
      name: of the optimizer.
      **kwargs: see base class.
    """
    super().__init__(name, learning_rate, weight_decay=weight_decay, **kwargs)
    self.momentum, self.nesterov, self.newton_schulz_steps = momentum, nesterov, newton_schulz_steps
    self.rms_scale, self.adamw_patterns = rms_scale, tuple(adamw_patterns)
    self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon

  def is_matrix(self, variable: tf.Variable) -> bool:
    """Whether Muon updates a variable, not AdamW."""
    matches = any(re.search(pattern, variable.name) for pattern in self.adamw_patterns)
    return not matches and matrix_shape(variable.shape) is not None

  def build(self, var_list):
    """Creates the slots: see base class."""
    super().build(var_list)
    if self._built:
      return
    self._momentums = [self.add_slot(variable, 'm') for variable in var_list]
    of_adamw = [index for index, variable in enumerate(var_list) if not self.is_matrix(variable)]
    self._velocities = [self.add_slot(var_list[index], 'v') for index in of_adamw]
    self._velocity_of = self._no_dependency({index: place for place, index in enumerate(of_adamw)})
    self._built = True

  def update_step(self, gradient, variable):
    """Updates one variable: see base class."""
    index = self.index_of(variable)
    gradient = optimizers.dense(gradient, variable)
    update = self._adamw_update(index, gradient) if index in self._velocity_of else self._muon_update(index, gradient)
    self.note_update(update)
    variable.assign_sub(tf.cast(tf.cast(self.learning_rate, tf.float32) * update, variable.dtype))

  def _muon_update(self, index, gradient):
    buffer = self._momentums[index]
    total = self.momentum * buffer + gradient
    buffer.assign(total)
    ahead = gradient + self.momentum * total if self.nesterov else total
    matrix = matrix_shape(gradient.shape)
    assert matrix is not None, 'AdamW updates all other variables.'
    rows, columns = matrix
    update = orthogonalize(tf.reshape(ahead, [rows, columns]), self.newton_schulz_steps)
    return self.rms_scale * max(rows, columns) ** 0.5 * tf.reshape(update, gradient.shape)

  def _adamw_update(self, index, gradient):
    momentum, velocity = self._momentums[index], self._velocities[self._velocity_of[index]]
    first, second = optimizers.adam_moments(gradient, momentum, velocity, self.beta_1, self.beta_2)
    momentum.assign(first)
    velocity.assign(second)
    first = first / optimizers.correction(self.beta_1, self.iterations)
    second = second / optimizers.correction(self.beta_2, self.iterations)
    return first / (tf.sqrt(second) + self.epsilon)

  def get_config(self) -> dict[str, object]:
    fields = ('momentum', 'nesterov', 'newton_schulz_steps', 'rms_scale', 'beta_1', 'beta_2', 'epsilon')
    config = {field: getattr(self, field) for field in fields}
    return {**super().get_config(), **config, 'adamw_patterns': list(self.adamw_patterns)}
