"""Scikit-learn's handwritten digits: by a perceptron, and by a convolutional network, as in experiments/."""

import dataclasses
import functools
import math

import numpy as np

from benchmarks.peers.work import training
from official_ext.data import handwritten_digits

NUM_CLASSES = 10
_NUM_TRAIN = 1437


@functools.cache
def _images() -> tuple[np.ndarray, np.ndarray]:
  """Float32 [1437, 8, 8, 1] in [0, 1], int32 [1437]."""
  pixels, labels = handwritten_digits.load()
  images = pixels[:_NUM_TRAIN].reshape(-1, 8, 8, 1).astype(np.float32) / 16
  return np.ascontiguousarray(images), labels[:_NUM_TRAIN].astype(np.int32)


def perceptron() -> training.Work:
  """64-256-256-10, batches of 64: the experiment `digits_mlp`."""
  images, labels = _images()
  return dense((64, 256, 256, NUM_CLASSES), images.reshape(len(images), -1), labels)


def dense(widths: tuple[int, ...], inputs: np.ndarray, labels: np.ndarray) -> training.Work:
  """Layers of these widths, the first that of the inputs, with ReLU between them, on batches of 64."""
  weights = training.Weights()
  for number, (before, after) in enumerate(zip(widths, widths[1:])):
    weights.normal(f'dense_{number}/kernel', (before, after), math.sqrt(2 / before))
    weights.constant(f'dense_{number}/bias', after, 0.0)
  return training.Work('mlp', {'widths': widths}, inputs, labels, 64, weights.drawn)


def convolutional() -> training.Work:
  """Two convolutions of 3x3, pooling, two dense layers, dropout: the experiment `digits`."""
  images, labels = _images()
  sizes = {'filters': (32, 64), 'hidden_size': 128, 'dropout_rate': 0.25}
  weights = training.Weights()
  before = 1
  for number, after in enumerate(sizes['filters']):
    weights.normal(f'conv_{number}/kernel', (3, 3, before, after), math.sqrt(2 / (9 * before)))
    weights.constant(f'conv_{number}/bias', after, 0.0)
    before = after
  widths = (4 * 4 * before, sizes['hidden_size'], NUM_CLASSES)
  for number, (before, after) in enumerate(zip(widths, widths[1:])):
    weights.normal(f'dense_{number}/kernel', (before, after), math.sqrt(2 / before))
    weights.constant(f'dense_{number}/bias', after, 0.0)
  return training.Work('conv', sizes, images, labels, 64, weights.drawn)


def evaluated() -> training.Work:
  """The convolutional network on eight times as many images, in batches of 128: to be evaluated."""
  work = convolutional()
  tiled = lambda array: np.concatenate([array] * 8)[: 89 * 128]
  return dataclasses.replace(work, inputs=tiled(work.inputs), labels=tiled(work.labels), batch_size=128)


def hundred_million() -> training.Work:
  """A perceptron of 100 million parameters, whose step is short for its size: checkpoints of 1.2 GB with slots."""
  images, labels = _images()
  return dense((64, *[3162] * 11, NUM_CLASSES), images.reshape(len(images), -1), labels)
