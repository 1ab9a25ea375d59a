"""Types of values that are read from JSON and YAML, and written to them; values as JSON can hold them."""

from collections.abc import Mapping
import math
from typing import Any, TypeGuard

# A value as `json.loads` returns it. Its shape is not known to a type checker: who reads it checks it.
Json = Any
# A mapping from names to such values.
JsonObject = dict[str, Json]
# The same, only read.
JsonMapping = Mapping[str, Json]

# The strings for numbers that are not finite, which strict JSON lacks.
NOT_FINITE = ('NaN', 'Infinity', '-Infinity')


def is_int(value: Json) -> TypeGuard[int]:
  """Whether a value is a whole number: a bool, which Python counts among them, is not."""
  return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Json) -> TypeGuard[int | float]:
  """Whether a value is a number, finite or not; a bool is not."""
  return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_finite(value: Json) -> TypeGuard[int | float]:
  """Whether a value is a finite number; a bool is not."""
  return is_number(value) and math.isfinite(value)


def as_float(value: Json) -> float:
  """A number, or one of NOT_FINITE, as a float. A whole number of JSON has any length: a too large one is infinite."""
  try:
    return float(value)
  except OverflowError:
    return math.inf if value > 0 else -math.inf


def json_values(values: object) -> Json:
  """Values as strict JSON: numbers that are not finite as the strings "NaN", "Infinity" and "-Infinity"."""
  if isinstance(values, Mapping):
    return {str(key): json_values(value) for key, value in values.items()}
  if isinstance(values, (list, tuple)):
    return [json_values(value) for value in values]
  if isinstance(values, float) and not math.isfinite(values):
    return 'NaN' if math.isnan(values) else 'Infinity' if values > 0 else '-Infinity'
  return values if values is None or isinstance(values, (str, int, float)) else str(values)  # YAML has dates.
