"""Batches, read and left."""

from collections.abc import Mapping
import pathlib
import shutil
import tempfile

import official_ext as ext  # noqa: F401  Before tensorflow.

# isort: split
import tensorflow as tf

from benchmarks.peers import protocol
from benchmarks.peers.runners import inputs


def measurement(work: None, data: str, kind: str) -> protocol.Measurement:
  """Examples, in whole batches.

  Args:
    work: nothing; the data are made here, the same for all.
    data: see `inputs.dataset`.
    kind: see `inputs.dataset`.
  """
  del work
  folder = pathlib.Path(tempfile.mkdtemp(prefix='bench-input-'))
  iterator = iter(inputs.dataset(data, kind, folder))
  size = inputs.batch_size(data)

  @tf.function
  def read(iterator, num_batches):
    total = tf.constant(0.0)
    for _ in tf.range(num_batches):
      for value in next(iterator).values():
        tf.debugging.assert_equal(tf.shape(value)[0], size)
        total += tf.cast(tf.reshape(value, [-1])[0], tf.float32)
    return total

  def run(num_examples: int) -> Mapping[str, float]:
    float(read(iterator, tf.constant(num_examples // size)))
    return {}

  return protocol.Measurement(run, size, close=lambda: shutil.rmtree(folder, ignore_errors=True))
