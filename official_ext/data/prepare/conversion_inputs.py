"""Files of class names, and paths by patterns. No TensorFlow."""

from collections.abc import Sequence
import glob
import os

from official_ext.base import errors


def read_labels(path: str) -> list[str]:
  """The names in a file, one on each line.

  Raises:
    UserError: it cannot be read, is empty, or has a name twice.
  """
  try:
    with open(os.path.expanduser(path), encoding='utf-8-sig') as f:
      names = [line.strip() for line in f if line.strip()]
  except (OSError, UnicodeDecodeError) as error:
    raise errors.UserError(f'--labels: {path}: cannot be read: {getattr(error, "strerror", None) or error}') from error
  if not names or len(set(names)) < len(names):
    raise errors.UserError(f'--labels: {path}: expected a name on each line, each once')
  return names


def matching(paths: Sequence[str]) -> list[str]:
  """The paths that words of the command line name: a pattern names several, unless a file has its name."""
  found: list[str] = []
  for path in map(os.path.expanduser, paths):
    found += [path] if os.path.exists(path) else sorted(glob.glob(path)) or [path]
  return found
