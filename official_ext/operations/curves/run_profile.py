"""The table of a run's last profile: where the time of some steps went (see training/loop/profiling.py)."""

from official_ext.base import json_types
from official_ext.operations.runs import json_files
from official_ext.operations.runs import run_folder

FILE = 'profile.json'


def read(run: run_folder.Run) -> json_types.JsonObject | None:
  """The table: `first` and `last` step, `programs`, `seconds` of all, and `rows`, the seconds of each kind of work.

  None if there is none that can be read.
  """
  found = json_files.read(run.file(FILE))
  rows = (found or {}).get('rows')
  if found is None or not isinstance(rows, dict) or not json_types.is_finite(found.get('seconds')):
    return None
  if not all(json_types.is_finite(value) for value in rows.values()):
    return None
  return {**{key: found.get(key) for key in ('first', 'last', 'programs', 'seconds')}, 'rows': rows}
