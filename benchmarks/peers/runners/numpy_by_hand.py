"""The perceptron in NumPy alone: gradients and AdamW by hand. The baseline for a framework's overhead."""

from collections.abc import Mapping

import numpy as np

from benchmarks.peers import protocol
from benchmarks.peers.work import training


class Perceptron:
  """Weights and slots of AdamW."""

  def __init__(self, work: training.Work):
    assert work.architecture == 'mlp', work.architecture
    self._work = work
    self.weights = [weight.copy() for weight in work.weights.values()]
    self._means = [np.zeros_like(weight) for weight in self.weights]
    self._squares = [np.zeros_like(weight) for weight in self.weights]
    self._step = 0

  def _forward(self, inputs):
    """(the outputs of all layers, the inputs first)."""
    outputs = [inputs]
    last = len(self.weights) // 2 - 1
    for number, (kernel, bias) in enumerate(zip(self.weights[::2], self.weights[1::2])):
      x = outputs[-1] @ kernel + bias
      outputs.append(x if number == last else np.maximum(x, 0))
    return outputs

  @staticmethod
  def _log_probabilities(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))

  def loss(self, inputs: np.ndarray, labels: np.ndarray) -> float:
    """The mean cross-entropy of a batch."""
    return float(-self._log_probabilities(self._forward(inputs)[-1])[np.arange(len(labels)), labels].mean())

  def step(self, inputs: np.ndarray, labels: np.ndarray) -> float:
    """One update; returns the loss before it."""
    outputs, rows = self._forward(inputs), np.arange(len(labels))
    logs = self._log_probabilities(outputs[-1])
    error = np.exp(logs)
    error[rows, labels] -= 1
    error /= len(labels)
    gradients: list[np.ndarray] = []
    for number in range(len(self.weights) // 2 - 1, -1, -1):
      gradients = [outputs[number].T @ error, error.sum(axis=0), *gradients]
      if number:
        error = (error @ self.weights[2 * number].T) * (outputs[number] > 0)
    self._update(gradients)
    return float(-logs[rows, labels].mean())

  def _update(self, gradients):
    work = self._work
    norm = np.sqrt(sum(np.vdot(gradient, gradient) for gradient in gradients))
    factor = work.clip_norm / max(norm, work.clip_norm)
    self._step += 1
    rate = work.learning_rate * np.sqrt(1 - work.beta_2**self._step) / (1 - work.beta_1**self._step)
    for weight, mean, square, gradient in zip(self.weights, self._means, self._squares, gradients):
      gradient *= factor
      weight -= work.learning_rate * work.weight_decay * weight
      mean += (1 - work.beta_1) * (gradient - mean)
      square += (1 - work.beta_2) * (gradient * gradient - square)
      weight -= rate * mean / (np.sqrt(square) + work.epsilon)


def measurement(work: training.Work) -> protocol.Measurement:
  """Steps of the perceptron."""
  network, batches = Perceptron(work), work.batches()

  def run(num_steps: int) -> Mapping[str, float]:
    for _ in range(num_steps):
      loss = network.step(*next(batches))
    return {'loss': loss}

  return protocol.Measurement(
    run,
    parameters=sum(weight.size for weight in network.weights),
    loss=lambda: network.loss(*work.check_batch),
  )
