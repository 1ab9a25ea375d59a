"""Event files, written by TensorBoard's own writer."""

import json
import pathlib

from official_ext.operations.imports import run_import

TIME = 1_700_000_000.0


def write_tensorboard(folder, events, suffix='', as_tensors=False):
  """Event files of TensorBoard's own writer.

  Args:
    folder: of the file.
    events: (step, {tag: value}) of each.
    suffix: of the file's name.
    as_tensors: whether values are written as TensorFlow 2 does.
  """
  from tensorboard.compat.proto import event_pb2
  from tensorboard.compat.proto import summary_pb2
  from tensorboard.plugins.scalar import summary_v2
  from tensorboard.summary.writer import event_file_writer

  writer = event_file_writer.EventFileWriter(str(folder), filename_suffix=suffix)
  for step, values in events:
    if as_tensors:
      found = [value for tag, data in values.items() for value in summary_v2.scalar_pb(tag, data).value]
    else:
      found = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    writer.add_event(event_pb2.Event(wall_time=TIME + step, step=step, summary=summary_pb2.Summary(value=found)))
  writer.close()


def imported(source, root):
  """Imports all runs: the results by name, and the lines about damage."""
  damage: list[str] = []
  results = {each.name: each for each in run_import.import_runs(run_import.find(str(source)), str(root), damage)}
  return results, damage


def events(root, name):
  """The events of a run, without their times."""
  lines = [json.loads(line) for line in pathlib.Path(root, name, 'events.jsonl').read_text().splitlines()]
  return [{key: value for key, value in line.items() if key != 'time'} for line in lines]


def record(root, name):
  """The content of run.json."""
  return json.loads(pathlib.Path(root, name, 'run.json').read_text())
