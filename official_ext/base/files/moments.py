"""Moments as text: UTC in ISO 8601, to the millisecond. No TensorFlow."""

import datetime

from official_ext.base import json_types


def now() -> str:
  """The present, such as `2026-01-31T12:00:00.000Z`."""
  return datetime.datetime.now(datetime.UTC).isoformat(timespec='milliseconds').replace('+00:00', 'Z')


def seconds(text: json_types.Json) -> float | None:
  """The seconds from 1970 to a moment; None if that is not the text of one."""
  try:
    moment = datetime.datetime.fromisoformat(text)
  except (TypeError, ValueError):
    return None
  try:
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
  except (OverflowError, ValueError):
    return None
