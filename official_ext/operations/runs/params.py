"""The configuration of a run as a flat dictionary, and its fields by the names that people use."""

from collections.abc import Mapping
import re

import yaml

from official_ext.base import errors
from official_ext.base import flat_params
from official_ext.base import json_types
from official_ext.base import yaml_text
from official_ext.base.files import paths
from official_ext.operations.runs import run_folder

_MAX_BYTES = 10_000_000
_READER = getattr(yaml, 'CSafeLoader', None)
# Aliases, tags, several documents or values a line, brackets in brackets, and numbers that YAML 1.1 reads otherwise.
_UNUSUAL = re.compile(
  r"""(?mx) ^\s*[&*!?%|>] | :\s+[&*!|>] | ^--- | ^\s*-\s | [\[{][^\]}\n]*[\[{]
  | :\s+ ['"]? [-+]? (?: [0-9]+ [eE] | 0[0-9] | 0o | [0-9_]+ [-:_] )
  | :\s+ (?: [yYnN] | yes | no | on | off | Yes | No | On | Off | YES | NO | ON | OFF ) \s*$"""
)


def read(run: run_folder.Run) -> json_types.JsonObject | None:
  """Dotted path -> value of a run's params.yaml; None if there is none that can be read."""
  values = read_nested(run)
  return None if values is None else flat_params.flatten(values)


def read_nested(run: run_folder.Run) -> json_types.JsonObject | None:
  """A run's params.yaml unchanged; None if there is none that can be read."""
  try:
    values = _parse(paths.read(run.file(run_folder.PARAMS), _MAX_BYTES).decode())
  except (OSError, UnicodeDecodeError, errors.UserError, RecursionError):
    return None
  return values if isinstance(values, dict) else None


def _parse(text: str) -> json_types.Json:
  """The values of a params.yaml.

  The driver's YAML means the same in YAML 1.1, for which there is a reader that is six times as fast. It is
  given nothing that would fill memory or the stack, and nothing else that the driver does not write.
  """
  if _READER is not None and not _UNUSUAL.search(text):
    try:
      return yaml.load(text, Loader=_READER)
    except yaml.YAMLError:
      pass
  return yaml_text.load(text, run_folder.PARAMS)


def with_short_names(values: Mapping[str, object], short_names: Mapping[str, object]) -> json_types.JsonObject:
  """A flat configuration that has the values of short names too.

  Args:
    values: dotted path -> value.
    short_names: short name -> path, as run.json has them.
  """
  short = {name: values[path] for name, path in short_names.items() if isinstance(path, str) and path in values}
  return {**short, **values}


def value_of(name: str, values: Mapping[str, object]) -> list[json_types.Json]:
  """The meanings of a name in a configuration: its value, or those of all paths that end with it; [] if none does.

  Args:
    name: a dotted path, a short name, or the end of a path, such as `cosine.decay_steps`.
    values: see `with_short_names`.
  """
  if name in values:
    return [values[name]]
  return [value for path, value in values.items() if path.endswith(f'.{name}')]
