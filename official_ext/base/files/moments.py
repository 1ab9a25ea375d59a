"""Moments as text: UTC in ISO 8601, to the millisecond. No TensorFlow."""

import datetime

from official_ext.base import json_types


def now() -> str:
  """The present, such as `2026-01-31T12:00:00.000Z`."""
  return _text(datetime.datetime.now(datetime.UTC))


def of_seconds(value: float) -> str:
  """A moment as text.

  Args:
    value: in seconds since 1970, of the years 1 to 9999.
  """
  return _text(datetime.datetime.fromtimestamp(value, datetime.UTC))


def _text(moment: datetime.datetime) -> str:
  return moment.isoformat(timespec='milliseconds').replace('+00:00', 'Z')


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
