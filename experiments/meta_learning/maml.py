"""The inner loop of MAML: a network as a function of its weights, and gradient steps on them.

C. Finn, P. Abbeel, S. Levine: Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks, ICML 2017,
https://arxiv.org/abs/1703.03400.
"""

from collections.abc import Sequence

import tensorflow as tf
import tf_keras


def build_mlp(hidden_sizes: Sequence[int]) -> tf_keras.Model:
  """A perceptron with ReLU from x, [b, 1], to y, [b, 1]."""
  x = tf_keras.Input((1,), name='x')
  features = x
  for size in hidden_sizes:
    features = tf_keras.layers.Dense(size, activation='relu')(features)
  return tf_keras.Model(x, tf_keras.layers.Dense(1, name='y')(features), name='mlp')


def predict(weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
  """The output of the perceptron of `build_mlp` with other weights than its own, for each task its own ones.

  Args:
    weights: kernel and bias of each layer, in the order of the model's, [tasks, inputs, units] and [tasks, 1, units].
    x: [tasks, points, 1], of the weights' dtype.

  Returns:
    y: [tasks, points, 1].
  """
  features = x
  for layer in range(0, len(weights), 2):
    if layer:
      features = tf.nn.relu(features)
    kernel, bias = weights[layer], weights[layer + 1]
    # A product of a single column is a sum of one term: multiplied out, it needs no matrix product.
    product = features * kernel if features.shape[-1] == 1 else tf.matmul(features, kernel)
    features = product + bias
  return features


def squared_error(weights: Sequence[tf.Tensor], x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """The mean squared error of each task: [tasks]."""
  return tf.reduce_mean(tf.square(predict(weights, x) - y), axis=[1, 2])


def for_each_task(weights: Sequence[tf.Tensor], num_tasks: int) -> list[tf.Tensor]:
  """The model's weights, [inputs, units] and [units], once for each task, as `predict` takes them."""
  matrices = [weight if weight.shape.rank == 2 else weight[tf.newaxis] for weight in map(tf.convert_to_tensor, weights)]
  return [tf.broadcast_to(matrix, [num_tasks, *matrix.shape]) for matrix in matrices]


def adapt(
  weights: Sequence[tf.Tensor], x: tf.Tensor, y: tf.Tensor, learning_rate: float, first_order: bool = False
) -> list[tf.Tensor]:
  """One step of gradient descent on the points of each task.

  Args:
    weights: see `predict`.
    x: [tasks, points, 1].
    y: [tasks, points, 1].
    learning_rate: of the inner loop.
    first_order: whether a gradient through the result shall take the step's own gradient for a constant.

  Returns:
    The new weights. A gradient through them is of second order.
  """
  with tf.GradientTape() as tape:
    tape.watch(weights)
    # The sum: the weights of one task have an influence on its own error alone.
    loss = tf.reduce_sum(squared_error(weights, x, y))
  gradients = tape.gradient(loss, weights)
  if first_order:
    gradients = [tf.stop_gradient(gradient) for gradient in gradients]
  return [weight - learning_rate * gradient for weight, gradient in zip(weights, gradients)]
