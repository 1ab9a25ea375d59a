"""Starts of a new process, up to its first finished step. Python's byte code and the disk's cache are warm."""

from collections.abc import Mapping
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from benchmarks.peers import process
from benchmarks.peers import protocol

_MODULES = {'import': 'import_tensorflow', 'bare': 'bare', 'stock': 'stock'}


def measurement(work: None, kind: str) -> protocol.Measurement:
  """Starts, one at a time.

  Args:
    work: nothing; the programs know what they do.
    kind: 'ours' for train.py, 'stock' for Model Garden's driver, 'bare' for a step by hand, 'import' for TensorFlow.
  """
  del work
  return protocol.Measurement(lambda amount: _start(kind) if amount == 1 else _refuse(amount))


def _refuse(amount):
  raise ValueError(f'amount: {amount}, and starts are measured one at a time.')


def _start(kind: str) -> Mapping[str, float]:
  with tempfile.TemporaryDirectory() as folder:
    model_dir = pathlib.Path(folder) / 'run'
    start = time.time()
    finished = subprocess.run(_command(kind, model_dir), cwd=process.ROOT, capture_output=True, text=True, check=False)
    if finished.returncode:
      raise RuntimeError(f'{kind}: {finished.stderr[-500:]}')
    marks = _of_events(model_dir) if kind == 'ours' else _of_output(finished.stdout)
  times = {f'to_{name}': at - start for name, at in marks.items()}
  return {'seconds': times.pop('to_first_step'), **times}


def _command(kind: str, model_dir: pathlib.Path) -> list[str]:
  if kind != 'ours':
    return [sys.executable, '-m', f'benchmarks.peers.starts.{_MODULES[kind]}', os.fspath(model_dir)]
  fields = ('train_steps=1', 'steps_per_loop=1', 'trainer.summary_interval=1', 'trainer.checkpoint_interval=1')
  flags = [
    '--experiment=digits_mlp',
    '--mode=train',
    f'--model_dir={model_dir}',
    *(f'--set={field}' for field in fields),
  ]
  return [sys.executable, 'train.py', *flags]


def _of_output(output: str) -> dict[str, float]:
  marks = [json.loads(line) for line in output.splitlines() if line.startswith('{"mark"')]
  return {line['mark']: line['time'] for line in marks}


def _of_events(model_dir: pathlib.Path) -> dict[str, float]:
  """The times of the events of a run that has taken one step. Its first loop has only compiled and run that step."""
  events = [json.loads(line) for line in (model_dir / 'events.jsonl').read_text().splitlines()]
  first = {event['event']: event for event in reversed(events)}
  built, compiled, step = first['start'], first['compiled'], first['train']
  return {'built': built['time'], 'compiling': compiled['time'] - compiled['seconds'], 'first_step': step['time']}
