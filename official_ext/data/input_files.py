"""The files that an `input_path` names."""

import tensorflow as tf


def matching(pattern: str) -> list[str]:
  """The files of one pattern, sorted: one that is called just so, whatever is in its name, or all that match."""
  if not pattern:
    return []
  if tf.io.gfile.exists(pattern) and not tf.io.gfile.isdir(pattern):
    return [pattern]
  return sorted(tf.io.gfile.glob(pattern))
