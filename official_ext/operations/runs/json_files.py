"""Small JSON objects as files: each exists whole or not at all, and one that is damaged reads as none."""

import json
import os
import uuid

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.files import paths
from official_ext.base.files import regular_files


def read(path: str) -> json_types.JsonObject | None:
  """The object in a file; None if there is none, or none that can be read."""
  try:
    values = json.loads(paths.read(path, regular_files.MAX_RECORD))
  except (OSError, ValueError, RecursionError):
    return None
  return values if isinstance(values, dict) else None


def write(path: str, values: json_types.JsonMapping) -> None:
  """Writes an object to a file of an existing folder, under a temporary name that is then replaced.

  Raises:
    StorageError: it cannot be written.
  """
  content = (json.dumps(values, indent=2, ensure_ascii=False) + '\n').encode('utf-8', 'surrogatepass')
  folder, name = os.path.split(path)
  temporary = os.path.join(folder, f'.{name}.tmp-{os.getpid()}-{uuid.uuid4().hex[:12]}')  # Threads write too.
  try:
    paths.write_atomically(path, content, temporary)
  except OSError as error:
    raise errors.StorageError(f'{path}: cannot be written: {error.strerror or error}') from error
