"""The process that starts the workers of a run, and starts them again when one is lost. No TensorFlow."""

from collections.abc import Mapping
import json
import os
from typing import Any

from official_ext.runtime import invocation
from official_ext.runtime import process_identity

_VARIABLE = 'OFFICIAL_EXT_LAUNCHER'


def told() -> Mapping[str, str]:
  """What the launcher, which is this process, adds to the environment of its workers."""
  started = {'command': invocation.command(), 'environment': invocation.environment()}
  return {_VARIABLE: json.dumps({**process_identity.own().as_dict(), **started})}


def own() -> dict[str, Any] | None:
  """The identity, command and environment of this process's launcher, as JSON values; None if it has none."""
  try:
    values = json.loads(os.environ.get(_VARIABLE, ''))
  except (ValueError, RecursionError):
    return None
  # A worker's own children inherit the variable, and have another parent.
  return values if isinstance(values, dict) and values.get('pid') == os.getppid() else None
