"""export.json, the notes of an export beside its model. No TensorFlow."""

import json
import os

from official_ext.base import json_types
from official_ext.base.files import paths

FILE = 'export.json'
_MOST_BYTES = 2**20


def read(folder: str) -> json_types.JsonObject:
  """The notes in the folder of an export; {} if there are none."""
  try:
    found = json.loads(paths.read(os.path.join(folder, FILE), _MOST_BYTES))
  except (OSError, ValueError):
    return {}
  return found if isinstance(found, dict) else {}
