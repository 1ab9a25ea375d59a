"""Sweeps made by hand: folders of points that have finished, with nothing to run."""

import json
import math
import os

from official_ext.operations.sweeps import samplers
from official_ext.operations.sweeps import sweep_folder
from official_ext.operations.sweeps import sweep_points
from tests.operations.runs import folders

VALUES = {
  'description': 'How fast and how wide',
  'method': 'random',
  'program': 'program.py',
  'metric': {'name': 'validation_accuracy', 'goal': 'maximize'},
  'run_cap': 24,
  'parameters': {
    'learning_rate': {'distribution': 'log_uniform_values', 'min': 1e-5, 'max': 1e-1},
    'task.model.dropout_rate': {'min': 0.0, 'max': 0.5},
    'optimizer': {'values': ['adam', 'sgd', 'lamb']},
    'seed': {'values': [0, 1]},
    'train_steps': {'value': 500},
  },
}


def accuracy(parameters):
  """The accuracy of a point: best at a learning rate of 0.003, and with adam."""
  distance = abs(math.log10(parameters['learning_rate']) + 2.5) / 3
  return (
    0.97 - 0.25 * distance**2 - 0.1 * parameters['task.model.dropout_rate'] - 0.05 * (parameters['optimizer'] != 'adam')
  )


def make(root, name='search', count=24, pruned=(), failed=(), **values) -> sweep_folder.SweepFolder:
  """Makes a sweep whose points have finished, but for those that have failed or were pruned."""
  folder = sweep_folder.SweepFolder(str(root), name)
  os.makedirs(root, exist_ok=True)
  folder.write(json.dumps({**VALUES, **values}, indent=2), {'cwd': str(root), 'program': 'program.py', 'slots': 2})
  sweep, known = folder.load(), {}
  for number in range(1, count + 1):
    proposal = samplers.propose(sweep, number, known, [])
    assert isinstance(proposal, samplers.Proposal)
    known[number] = proposal
    record = folder.make_point(number, proposal)
    best = accuracy(proposal.parameters)
    steps = range(1, 3) if number in pruned else range(1, 6)
    events = [folders.event('eval', 100 * step, accuracy=best - 0.3 / step) for step in steps]
    status = 'preempted' if number in pruned else 'failed' if number in failed else 'finished'
    folders.make(
      folder.path,
      record.name,
      [] if number in failed else events,
      status=status,
      step=0 if number in failed else 100 * len(steps),
      error='it has failed' if number in failed else None,
      identity=folders.ended_process(),
    )
    if number in pruned:
      with open(os.path.join(record.folder, sweep_folder.PRUNED), 'w') as file:
        json.dump({'reason': '0.5 at iteration 1, and 0.7 was needed'}, file)
  return folder


def points(folder):
  """The points of a sweep, by number."""
  return {point.number: point for point in sweep_points.PointReader(folder).read(folder.load())}
