"""Whether two runs have the same result, bit for bit."""

from collections.abc import Mapping
import json
import pathlib
import re
from typing import Any

import numpy as np
import tensorflow as tf

from official_ext.training.writers import writers

# Times, and names of the folder.
TIMES = {
  'time',
  'seconds',
  'steps_per_second',
  'examples_per_second',
  'tokens_per_second',
  'learned_tokens_per_second',
  'data_wait',
  'eta_seconds',
}


def tensors(prefix: Any) -> Mapping[str, np.ndarray]:
  """All variables of a checkpoint, by their names in it, but TensorFlow's count of the saves of a process."""
  reader = tf.train.load_checkpoint(str(prefix))
  return {
    name: np.asarray(reader.get_tensor(name))
    for name in reader.get_variable_to_shape_map()
    if not name.startswith('save_counter/')
  }


def history(folder: Any, name: str = 'events.jsonl') -> list[Mapping[str, Any]]:
  """The events 'train' and 'eval' that stand, without times.

  A run that ends between its last save and its end evaluates the last step once more: twice the same counts once.
  """
  found: list[Mapping[str, Any]] = []
  for event in writers.read_events(f'{folder}/{name}'):
    if event['event'] in ('train', 'eval'):
      kept = {key: value for key, value in event.items() if key not in TIMES}
      if [kept] != found[-1:]:
        found.append(kept)
  return found


def checkpoint_files(folder: Any, pattern: str = 'ckpt-*') -> set[str]:
  """Names of the files of checkpoints, without those that were set aside and the leftovers of an interrupted save."""
  return {path.name for path in pathlib.Path(folder).glob(pattern) if path.is_file() and '.broken' not in path.name}


def differences(folder: Any, straight: Any) -> list[str]:
  """The differences between a run and an undisturbed one; [] if there are none.

  Compared: the files of checkpoints that exist, in the folder and among the best; every variable of each of these
  checkpoints (weights, slots, averages, loss scale, counters), its type and all its bits; the averaged weights that
  Model Garden exports at the last evaluation; every value of every loop and of every evaluation but times; run.json's
  status.
  """
  folder, straight = pathlib.Path(folder), pathlib.Path(straight)
  found = []
  averaged = sorted((straight / 'ema_checkpoints').glob('*.index'), key=lambda path: int(path.stem.rpartition('-')[2]))
  for path in averaged[-1:]:
    prefix = path.relative_to(straight).with_suffix('')
    found += [f'{prefix}: {line}' for line in _of_tensors(tensors(folder / prefix), tensors(straight / prefix))]
  for sub, pattern in (('', 'ckpt-*'), ('best', 'best_ckpt-*')):
    names, expected = (checkpoint_files(root / sub, pattern) for root in (folder, straight))
    if names != expected:
      found.append(f'files in {sub or "."}: {sorted(names - expected)} too many, {sorted(expected - names)} missing')
    for name in sorted(names & expected):
      if name.endswith('.index'):
        prefix = pathlib.Path(sub, name[:-6])
        found += [f'{prefix}: {line}' for line in _of_tensors(tensors(folder / prefix), tensors(straight / prefix))]
  for name in ('best/info.json', 'best/history.json'):
    if (straight / name).exists() and _read(folder / name) != _read(straight / name):
      found.append(f'{name}: {_read(folder / name)} instead of {_read(straight / name)}')
  found += _of_history(history(folder), history(straight))
  status = _read(folder / 'run.json')['status']
  if status != 'finished':
    found.append(f'run.json: {status}')
  return found


def _of_tensors(found, expected):
  for name in sorted(found.keys() | expected.keys()):
    if name not in found or name not in expected:
      yield f'{name} is {"missing" if name in expected else "too many"}'
    elif found[name].dtype != expected[name].dtype or found[name].shape != expected[name].shape:
      yield f'{name}: {found[name].dtype}{found[name].shape}, not {expected[name].dtype}{expected[name].shape}'
    elif found[name].tobytes() != expected[name].tobytes():
      yield f'{name}: {int(np.sum(found[name] != expected[name]))} of {found[name].size} values'


def _of_history(found, expected):
  where = lambda events: [(event['event'], event['step']) for event in events]
  if where(found) != where(expected):
    yield f'events.jsonl: {where(found)} instead of {where(expected)}'
    return
  for one, other in zip(found, expected):
    keys = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
    if keys:
      yield f'events.jsonl: {one["event"]} {one["step"]}: ' + ', '.join(
        f'{key} {one.get(key)} instead of {other.get(key)}' for key in keys
      )


def _read(path):
  return json.loads(path.read_text())


def steps_done_again(folder: Any) -> int:
  """How many steps the run has done more than once: those after the last checkpoint when it was killed."""
  again, reached, begins = 0, 0, 0
  for line in pathlib.Path(folder, 'events.jsonl').read_text().splitlines():
    match = re.match(r'\{"time": [\d.]+, "event": "(\w+)", "step": (\d+)', line)
    if match is None:
      continue
    event, step = match[1], int(match[2])
    if event == 'start':
      begins = 0
    elif event == 'restored':
      begins = step
    elif event == 'train':
      if begins is not None:
        again += max(0, reached - begins)
        begins = None
      reached = step
  return again
