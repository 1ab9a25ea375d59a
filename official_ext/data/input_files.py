"""The files that an `input_path` names. TensorFlow is imported for patterns and remote paths alone."""

from collections.abc import Iterator
import os

from official_ext.base import errors
from official_ext.base.files import paths


def patterns(input_path: object) -> Iterator[str]:
  """The patterns of an `input_path`: a string of patterns joined by commas, or lists and sections of such strings.

  A string that is the path of a local file or folder means that one, even if it has commas.
  """
  if hasattr(input_path, 'as_dict'):
    input_path = input_path.as_dict()
  if isinstance(input_path, dict):
    input_path = list(input_path.values())
  if isinstance(input_path, (list, tuple)):
    for element in input_path:
      yield from patterns(element)
  elif isinstance(input_path, str) and '://' not in input_path and os.path.exists(input_path):
    yield input_path
  elif isinstance(input_path, str):
    yield from filter(None, (pattern.strip() for pattern in input_path.split(',')))


def matching(pattern: str) -> list[str]:
  """The files of one pattern, sorted: the file with exactly this name, or else all that match.

  Raises:
    UserError: the name of one that matches is not UTF-8.
  """
  if not pattern:
    return []
  if not paths.is_remote(pattern) and os.path.isfile(pattern):
    return [pattern]
  import tensorflow as tf  # pylint: disable=g-import-not-at-top

  if tf.io.gfile.exists(pattern) and not tf.io.gfile.isdir(pattern):
    return [pattern]
  try:
    return sorted(tf.io.gfile.glob(pattern))
  except UnicodeDecodeError as error:
    name = ascii(error.object)[2:-1]
    raise errors.UserError(
      f'{pattern}: {name}: its name is not UTF-8, and TensorFlow opens no such file; rename it'
    ) from error
