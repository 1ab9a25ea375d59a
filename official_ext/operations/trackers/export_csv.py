"""The events of a run as one table, for spreadsheets and pandas. No TensorFlow.

It has a row for each event that stands (steps that were repeated after a restore occur once) and a column for each
name that any event has: `time` (seconds since 1970), `event`, `step`, and then as they came. A cell is empty if the
event has no such value; numbers that are not finite are nan, inf and -inf; lists are JSON.
"""

import csv
import io
import os

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.base.run_folder import tracker_values
from official_ext.operations.trackers import tracked_run

FILE = 'events.csv'
_FIRST = ('time', 'event', 'step')


def export(tracked: tracked_run.TrackedRun, output_dir: str | None = None) -> str:
  """Writes the table, whole, in the place of an earlier one.

  Args:
    tracked: the run.
    output_dir: a folder for NAME.csv; None: the run's own, for events.csv.

  Returns:
    The path of the file.

  Raises:
    StorageError: it cannot be written.
  """
  path = tracked.run.file(FILE) if output_dir is None else os.path.join(output_dir, f'{tracked.name}.csv')
  columns = list(dict.fromkeys([*_FIRST, *(name for event in tracked.events for name in event)]))
  text = io.StringIO()
  writer = csv.DictWriter(text, columns, restval='', lineterminator='\n')
  writer.writeheader()
  writer.writerows({name: tracker_values.csv_cell(value) for name, value in event.items()} for event in tracked.events)
  try:
    paths.make_folder(os.path.dirname(path))
    paths.write_atomically(path, text.getvalue().encode('utf-8', 'surrogatepass'))
  except OSError as error:
    raise errors.StorageError(f'{path}: cannot be written: {error.strerror or error}') from error
  return path
