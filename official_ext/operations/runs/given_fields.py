"""Which fields of a run's configuration its starter has given, as far as the command and the files in it show."""

from collections.abc import Mapping
import os

from official_ext.base import errors
from official_ext.base import flat_params
from official_ext.base import yaml_text
from official_ext.base.files import paths
from official_ext.operations.runs import commands
from official_ext.operations.runs import run_folder

_MAX_BYTES = 1 << 20


def of_run(run: run_folder.Run, values: Mapping[str, object]) -> list[str]:
  """The dotted paths of the fields that --set, --params_override and --config_file have given, ordered as in `values`.

  The values that a clone takes over from its original are not among them.

  Args:
    run: the run.
    values: its configuration, flat.
  """
  try:
    flags, cwd = commands.given_flags(run)
  except errors.UserError:
    return []
  short_names = (run.record() or {}).get('short_names')
  short_names = short_names if isinstance(short_names, dict) else {}
  found: set[str] = set()
  for name, value in flags:
    if name == 'set':
      field = (value or '').partition('=')[0]
      found.add(str(short_names.get(field, field)))
    elif name == 'params_override':
      found.update(_fields(value or '', cwd))
    elif name == 'config_file' and os.path.basename(value or '') != commands.BASE_PARAMS:
      found.update(_fields(os.path.join(cwd, os.path.expanduser(value or '')), cwd))
  return [path for path in values if any(path == each or path.startswith(f'{each}.') for each in found)]


def _fields(source: str, cwd: str) -> list[str]:
  """The dotted paths in YAML text, or in a file."""
  path = os.path.join(cwd, os.path.expanduser(source))
  try:
    text = paths.read(path, _MAX_BYTES).decode() if len(source) < 1000 and os.path.isfile(path) else source
    values = yaml_text.load(text, 'params')
  except (OSError, ValueError, errors.UserError, RecursionError):
    return [part.partition('=')[0].strip() for part in source.split(',') if '=' in part]
  if not isinstance(values, dict):
    return [part.partition('=')[0].strip() for part in source.split(',') if '=' in part]
  return list(flat_params.flatten(values))
