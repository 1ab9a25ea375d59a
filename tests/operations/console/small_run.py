"""A run as a console sees it, without TensorFlow.

    python -m tests.operations.console.small_run --model_dir=FOLDER [--steps=N]

It resumes from its last step, notes a step and an event every 20 ms, saves and ends with 75 on SIGTERM.
"""

import argparse
import json
import os
import pathlib
import signal
import sys
import time

from official_ext.base import json_values
from tests.operations.runs import folders

ROOT = pathlib.Path(__file__).resolve().parents[3]
_SECONDS = 0.02


def command(folder, steps=100_000):
  """The command that starts or resumes one."""
  words = ['-m', 'tests.operations.console.small_run', '--experiment=small', '--mode=train', f'--model_dir={folder}']
  return [sys.executable, *words, f'--steps={steps}']


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument('--model_dir', type=pathlib.Path)
  parser.add_argument('--steps', type=int)
  parser.add_argument('--experiment')
  parser.add_argument('--mode')
  options = parser.parse_args()
  stops = []
  signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
  folder, events = options.model_dir, options.model_dir / 'events.jsonl'
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'params.yaml').write_text(folders.PARAMS.format(rate=1e-3, seed=0))
  saved = folder / 'step.txt'
  step = int(saved.read_text()) if saved.exists() else 0
  values = {'command': ' '.join(command(folder, options.steps)), 'cwd': str(ROOT), 'train_steps': options.steps}
  values |= {'experiment': 'small', 'mode': 'train', 'git_commit': None}
  with open(folder / 'starts.txt', 'a') as file:
    file.write(f'{os.getpid()}\n')

  def note(status):
    record = folders.record(**values, step=step, status=status)
    temporary = folder / 'run.json.tmp'
    temporary.write_text(
      json.dumps({**record, 'finished': None if status == 'running' else json_values.timestamp_now()})
    )
    os.replace(temporary, folder / 'run.json')

  note('running')
  with open(events, 'a', buffering=1) as file:
    while step < options.steps and not stops:
      step += 1
      event = {'time': time.time(), 'event': 'train', 'step': step, 'loss': 1 / step, 'steps_per_second': 1 / _SECONDS}
      file.write(json.dumps({**event, 'eta_seconds': (options.steps - step) * _SECONDS}) + '\n')
      time.sleep(_SECONDS)
  saved.write_text(str(step))
  note('preempted' if stops else 'finished')
  sys.exit(75 if stops else 0)


if __name__ == '__main__':
  main()
