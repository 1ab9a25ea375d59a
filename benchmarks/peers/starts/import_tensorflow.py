"""Imports TensorFlow and tf_keras, and nothing else."""

from benchmarks.peers.starts import marks

if __name__ == '__main__':
  import tensorflow  # noqa: F401
  import tf_keras  # noqa: F401

  marks.mark('imported')
  marks.mark('first_step')
