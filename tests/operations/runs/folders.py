"""Folders of runs, made by hand."""

import dataclasses
import functools
import json
import pathlib
import subprocess
import sys

from official_ext.base import json_values
from official_ext.base import processes
from official_ext.operations.runs import run_folders

PARAMS = """runtime:
  seed: {seed}
trainer:
  best_checkpoint_eval_metric: accuracy
  best_checkpoint_metric_comp: higher
  optimizer_config:
    learning_rate:
      cosine:
        initial_learning_rate: {rate}
      type: cosine
  train_steps: 100
"""
_RATE = 'trainer.optimizer_config.learning_rate.cosine.initial_learning_rate'


def record(identity=None, **values):
  """A record as a training writes it: by default of this process, which lives."""
  now = json_values.timestamp_now()
  return {
    'status': 'running',
    'stage': 'train',
    'step': 10,
    'error': None,
    'mode': 'train_and_eval',
    **(identity or processes.own_identity()).as_dict(),
    'command': f'{sys.executable} train.py --experiment=digits --mode=train_and_eval --model_dir=old --set=seed=1',
    'cwd': '/tmp',
    'git_commit': 'a' * 40,
    'versions': {'python': '3.11.7', 'tensorflow': '2.20.0'},
    'devices': '1 replica on CPU:0',
    'seed': 0,
    'train_steps': 100,
    'attempt': 1,
    'started': now,
    'updated': now,
    'heartbeat': now,
    'finished': None,
    'experiment': 'digits',
    'registry': [],
    'short_names': {'learning_rate': _RATE},
    **values,
  }


def event(name, step, **values):
  return {'time': 1_700_000_000.0 + step, 'event': name, 'step': step, **values}


def make(root, name, events=(), rate=1e-3, seed=0, record_values=None, **values) -> run_folders.Run:
  """Makes the folder of a run; `values` change its record, `record_values=False` leaves it out."""
  folder = pathlib.Path(root, name)
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'params.yaml').write_text(PARAMS.format(rate=rate, seed=seed))
  (folder / 'events.jsonl').write_text(''.join(json.dumps(each) + '\n' for each in events))
  if record_values is not False:
    (folder / 'run.json').write_text(json.dumps(record(**values)))
  return run_folders.Run(str(folder), name)


@functools.cache
def ended_process(number: int = 0) -> processes.ProcessIdentity:
  """The identity of a process that has ended, another one for each number."""
  del number
  process = subprocess.Popen(['cat'], stdin=subprocess.PIPE)
  start = processes.start_of(process.pid)
  process.communicate()
  return dataclasses.replace(processes.own_identity(), pid=process.pid, pid_start=start)
