"""The content of a checkpoint's manifest, and whether it can be believed. No TensorFlow: see manifests.py."""

from collections.abc import Mapping
import hashlib
import json
import re

from official_ext.base import json_types

SUFFIX = '.manifest.json'
PART = r'\.(index|data-[0-9]{5}-of-[0-9]{5})'  # How the names of a checkpoint's files end.
_DAMAGED = 'its manifest is damaged'


def parse(content: bytes, name: str) -> json_types.JsonObject:
  """The entries of a manifest.

  Args:
    content: of its file.
    name: the checkpoint's, without its folder.

  Raises:
    ValueError: it is damaged.
  """
  try:
    entries = json.loads(content.decode())
    expected = entries.pop('sha256')
  except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
    raise ValueError(_DAMAGED) from error
  if expected != sum_of(entries):
    raise ValueError(_DAMAGED)
  _check_files(entries.get('files'), name)
  return entries


def sum_of(entries: Mapping[str, object]) -> str:
  """The SHA-256 sum of a manifest's entries."""
  return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def is_complete(files: json_types.Json) -> bool:
  """Whether the names of a checkpoint's files are those of a whole one."""
  return any(name.endswith('.index') for name in files) and any('.data-' in name for name in files)


def _check_files(files: json_types.Json, name: str) -> None:
  """Raises a ValueError if a manifest's files are not those of the checkpoint `name`."""
  if not isinstance(files, dict):
    raise ValueError(_DAMAGED)
  for file, entry in files.items():
    if not re.fullmatch(re.escape(name) + PART, file):
      raise ValueError(f'its manifest names {file!r}, which is not a file of it')
    if not (isinstance(entry, dict) and isinstance(entry.get('size'), int) and isinstance(entry.get('sha256'), str)):
      raise ValueError(_DAMAGED)
  if not is_complete(files):
    raise ValueError('its manifest names no index, or no data')
