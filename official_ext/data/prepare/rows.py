"""From the records of a shard to its rows, in order. No TensorFlow."""

from collections.abc import Callable, Iterator
import importlib

from official_ext.base import json_types
from official_ext.data import bad_examples
from official_ext.data import numbered_records
from official_ext.data import record_report
from official_ext.data import row_encoding

_HINT = 'repair or replace it, or give --on_bad_example=skip'


def write_rows(
  job: json_types.JsonObject, records: numbered_records.Records, write: Callable[[bytes], None]
) -> record_report.RecordReport:
  """Writes the rows of a shard.

  Args:
    job: of `Plan.job`.
    records: of its pieces.
    write: takes each row.

  Returns:
    Counts of the records.

  Raises:
    BadExampleError: a record cannot be used, and none is to be left out.
    OSError: there is no room for the tokens, which lie in a temporary folder beside the shard meanwhile.
  """
  leaves_out = job['settings']['on_bad_example'] == 'skip'
  make = importlib.import_module(job['row_format']).rows if job['row_format'] else _example_rows
  report = record_report.RecordReport(records=len(records))
  try:
    for row in make(job, records, leaves_out, report):
      write(row)
  except bad_examples.BadExampleError as error:
    raise bad_examples.BadExampleError(f'{error}; {_HINT}') from error
  return report


def _example_rows(job, records, leaves_out, report) -> Iterator[bytes]:
  for number in range(len(records)):
    try:
      row = _example_row(records, number)
    except bad_examples.BadExampleError as error:
      if not leaves_out:
        raise
      report.bad_records += 1
      if len(report.named) < record_report.MAX_NAMED:
        report.named.append(str(error))
    else:
      report.examples += 1
      yield row


def _example_row(records, number):
  record = records.read(number)
  try:
    return row_encoding.encode_example(record)
  except (ValueError, RecursionError) as error:
    raise bad_examples.BadExampleError(f'{records.place(number)}: {bad_examples.one_line(error)}') from error
