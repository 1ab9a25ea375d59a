"""Files of other trackers, written by their own writers."""

import contextlib
import json
import pathlib
import sqlite3
import subprocess
import sys

from official_ext.operations.imports import run_import

TIME = 1_700_000_000.0

# Writes runs offline. The first argument is their folder; the others are their ends: an exit status, or `killed`.
_WANDB = """
import os, signal, sys
os.environ |= {'WANDB_MODE': 'offline', 'WANDB_ERROR_REPORTING': 'false', 'WANDB_SILENT': 'true'}
import wandb
for number, end in enumerate(sys.argv[2:]):
  settings = {'console': 'off', 'x_disable_stats': True, 'x_disable_meta': True, 'disable_git': True}
  config = {'lr': 10.0**-number, 'net': {'width': 3, 'activation': 'relu'}, 'api_key': 'a-secret-of-ours'}
  run = wandb.init(project='digits', name=f'mlp/{number}', dir=sys.argv[1], config=config, settings=settings,
                   tags=['base,line'], notes='a note', reinit='finish_previous')
  if number == 1:
    run.define_metric('*', step_metric='global_step')
  for step in range(3):
    loss = {'box': 1.0 / (step + 1)}
    run.log({'train/loss': loss, 'val/accuracy': float('nan') if step == 1 else step / 4, 'text': 'a', 'step': 7,
             'global_step': 100 * step})
  run.log({'late': 1}, step=10)
  run.config.update({'net': {'width': 4, 'activation': 'relu'}}, allow_val_change=True)
  if end == 'killed':
    for step in range(2000):  # More than a block of the file.
      run.log({'many': step})
    import time
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
  run.finish(exit_code=int(end))
"""


def write_wandb(folder, *ends):
  """Runs of W&B: see _WANDB. Returns their files, in this order."""
  command = [sys.executable, '-c', _WANDB, str(folder), *ends]
  done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
  assert done.returncode in (0, -9), done.stderr
  found = list(pathlib.Path(folder).glob('wandb/offline-run-*/run-*.wandb'))
  assert len(found) == len(ends)
  return sorted(found, key=lambda path: path.stat().st_mtime_ns)


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


def write_trackio(folder):
  """The database of a project: see trackio_project.sql."""
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / 'digits.db'
  script = pathlib.Path(__file__).with_name('trackio_project.sql').read_text()
  with contextlib.closing(sqlite3.connect(path)) as database:
    database.executescript(script)
  return path


def imported(source, root, tracker=None):
  """Imports all runs: the results by name, and the lines about damage."""
  damage: list[str] = []
  found = run_import.find(str(source), tracker, damage)
  results = {each.name: each for each in run_import.import_runs(found, str(root), damage)}
  return results, damage


def events(root, name):
  """The events of a run, without their times."""
  lines = [json.loads(line) for line in pathlib.Path(root, name, 'events.jsonl').read_text().splitlines()]
  return [{key: value for key, value in line.items() if key != 'time'} for line in lines]


def record(root, name):
  """The content of run.json."""
  return json.loads(pathlib.Path(root, name, 'run.json').read_text())
