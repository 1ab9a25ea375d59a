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
    work: nothing; the programs know their work.
    kind: 'ours' for train.py, 'parts' for train.py with more marks, 'second' for train.py in the folder of a run that
      has begun, 'stock' for Model Garden's driver, 'bare' for a step by hand, 'import' for TensorFlow.
  """
  del work

  def run(amount: int) -> Mapping[str, float]:
    assert amount == 1, amount
    with tempfile.TemporaryDirectory() as folder:
      model_dir = pathlib.Path(folder) / 'run'
      if kind == 'second':
        _timed('ours', model_dir, train_steps=1)
      return _timed('ours' if kind == 'second' else kind, model_dir, train_steps=2 if kind == 'second' else 1)

  return protocol.Measurement(run)


def _timed(kind: str, model_dir: pathlib.Path, train_steps: int) -> Mapping[str, float]:
  """Seconds until the first step, and until its earlier stages."""
  start = time.time()
  finished = subprocess.run(
    _command(kind, model_dir, train_steps), cwd=process.ROOT, capture_output=True, text=True, check=False
  )
  if finished.returncode:
    raise RuntimeError(f'{kind}: {finished.stderr[-500:]}')
  marks = _of_events(model_dir, start) if kind == 'ours' else _of_output(finished.stdout)
  times = {f'to_{name}': at - start for name, at in marks.items()}
  return {'seconds': times.pop('to_first_step'), **times}


def _command(kind: str, model_dir: pathlib.Path, train_steps: int) -> list[str]:
  if kind in _MODULES:
    return [sys.executable, '-m', f'benchmarks.peers.starts.{_MODULES[kind]}', os.fspath(model_dir)]
  intervals = ('steps_per_loop=1', 'trainer.summary_interval=1', 'trainer.checkpoint_interval=1')
  flags = [
    '--experiment=digits_mlp',
    '--mode=train',
    f'--model_dir={model_dir}',
    *(f'--set={field}' for field in (f'train_steps={train_steps}', *intervals)),
  ]
  program = ['train.py'] if kind == 'ours' else ['-m', 'benchmarks.peers.starts.parts']
  return [sys.executable, *program, *flags]


def _of_output(output: str) -> dict[str, float]:
  marks = [json.loads(line) for line in output.splitlines() if line.startswith('{"mark"')]
  return {line['mark']: line['time'] for line in marks}


def _of_events(model_dir: pathlib.Path, since: float) -> dict[str, float]:
  """The times of the events since then of a run whose first loop has only compiled one step and run it."""
  events = [json.loads(line) for line in (model_dir / 'events.jsonl').read_text().splitlines()]
  first = {event['event']: event for event in reversed(events) if event['time'] >= since}
  built, compiled, step = first['start'], first['compiled'], first['train']
  return {'built': built['time'], 'compiling': compiled['time'] - compiled['seconds'], 'first_step': step['time']}
