"""The configuration of a run as a flat dictionary, and its fields by the names that people use."""

from collections.abc import Mapping
from typing import Any

from official_ext import errors
from official_ext.config import flat_params
from official_ext.config import yaml_text
from official_ext.files import paths
from official_ext.runs import run_folder

_MAX_BYTES = 10_000_000


def read(run: run_folder.Run) -> dict[str, Any] | None:
  """Dotted path -> value of a run's params.yaml; None if there is none that can be read."""
  try:
    values = yaml_text.load(paths.read(run.file(run_folder.PARAMS), _MAX_BYTES).decode(), run_folder.PARAMS)
  except (OSError, UnicodeDecodeError, errors.UserError, RecursionError):
    return None
  return flat_params.flatten(values) if isinstance(values, dict) else None


def with_short_names(values: Mapping[str, Any], short_names: Mapping[str, Any]) -> dict[str, Any]:
  """A flat configuration that has the values of short names too.

  Args:
    values: dotted path -> value.
    short_names: short name -> path, as run.json has them.
  """
  short = {name: values[path] for name, path in short_names.items() if isinstance(path, str) and path in values}
  return {**short, **values}


def value_of(name: str, values: Mapping[str, Any]) -> list[Any]:
  """What a name may stand for in a configuration: its value, or those of all paths that end with it; [] if none does.

  Args:
    name: a dotted path, a short name, or the end of a path, such as `cosine.decay_steps`.
    values: see `with_short_names`.
  """
  if name in values:
    return [values[name]]
  return [value for path, value in values.items() if path.endswith(f'.{name}')]
