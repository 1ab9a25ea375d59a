"""The identity of a run, wherever its folder is and however often it is started. No TensorFlow."""

import hashlib

from official_ext.base.files import regular_files
from official_ext.operations.runs import run_folder

_MAX_LINE = 1 << 20


def of_run(run: run_folder.Run) -> str:
  """The identity of a run: 24 hexadecimal digits, of the first line of its events.jsonl, which never changes.

  It holds the moment at which the run first began. A copy of the folder is the same run, until it is begun anew. ''
  if there is no such line yet.
  """
  try:
    with regular_files.open_to_read(run.file(run_folder.EVENTS)) as file:
      line = file.readline(_MAX_LINE)
  except OSError:
    return ''
  return hashlib.sha256(line).hexdigest()[:24] if line.endswith(b'\n') else ''
