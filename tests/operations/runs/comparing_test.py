"""Tests for comparing."""

import json

from official_ext.operations.runs import run_comparison
from tests.operations.runs import folders
from tests.operations.runs.folders import event


def test_runs_side_by_side(tmp_path):
  ended = folders.ended_process()
  first = [
    event('train', 10, training_loss=0.5),
    event('eval', 10, accuracy=0.75, validation_loss=0.5, odd=3.0),
    event('eval', 20, accuracy=0.9, validation_loss=0.25, odd=1.0),  # Superseded.
    event('restored', 10),
    event('eval', 20, accuracy=0.625, validation_loss='NaN', odd=2.0),
    event('train', 20, training_loss=0.25, accuracy=0.7),
  ]
  a = folders.make(tmp_path, 'a', first, identity=ended, status='finished')
  b = folders.make(
    tmp_path,
    'b',
    [],
    rate=1e-2,
    seed=3,
    identity=ended,
    status='failed',
    git_commit='b' * 40,
    step=7,
    versions={'python': '3.11.7', 'tensorflow': '2.21.0'},
  )
  found = run_comparison.compare_runs([a, b])
  assert (found.names, found.statuses, found.steps) == (('a', 'b'), ('finished', 'failed'), (20, 7))
  assert found.params == {
    'runtime.seed': (0, 3),
    'trainer.optimizer_config.learning_rate.cosine.initial_learning_rate': (0.001, 0.01),
  }
  assert found.last['accuracy'] == (0.625, None)
  assert found.last['training/accuracy'] == (0.7, None)
  assert found.last['training_loss'] == (0.25, None)
  assert found.best == {'accuracy': ((0.75, 10), None), 'validation_loss': ((0.5, 10), None)}
  assert found.origins == {'git_commit': ('a' * 40, 'b' * 40), 'versions.tensorflow': ('2.20.0', '2.21.0')}
  assert json.loads(json.dumps(found.as_dict(), allow_nan=False))['last']['validation_loss'] == ['NaN', None]


def test_the_configuration_decides_what_is_better(tmp_path):
  run = folders.make(
    tmp_path, 'a', [event('eval', 1, accuracy=0.75), event('eval', 2, accuracy=0.5)], status='finished'
  )
  with open(run.file('params.yaml')) as file:
    text = file.read()
  with open(run.file('params.yaml'), 'w') as file:
    file.write(text.replace('higher', 'lower'))
  assert run_comparison.compare_runs([run]).best == {'accuracy': ((0.5, 2),)}


def test_the_table_of_names_decides_what_is_better(tmp_path):
  """'higher' in a configuration is Model Garden's default, and counts as unset."""
  first = event('eval', 1, fid_score=50.0, brier_score=0.3, accuracy=0.9, elbo=1.0, wer='NaN', psnr='Infinity')
  second = event('eval', 2, fid_score=10.0, brier_score=0.1, accuracy=0.8, elbo=2.0, wer=0.5, psnr=30.0)
  run = folders.make(tmp_path, 'a', [first, second], status='finished')
  known = {
    'fid_score': ((10.0, 2),),
    'brier_score': ((0.1, 2),),
    'accuracy': ((0.9, 1),),
    'wer': ((0.5, 2),),
    'psnr': ((30.0, 2),),
  }
  assert run_comparison.compare_runs([run]).best == known
  with open(run.file('params.yaml')) as file:
    text = file.read()
  for metric, comp, more in [
    ('fid_score', 'higher', {}),
    ('fid_score', 'auto', {}),
    ('elbo', 'auto', {}),
    ('elbo', 'higher', {'elbo': ((2.0, 2),)}),
    ('elbo', 'lower', {'elbo': ((1.0, 1),)}),
  ]:
    with open(run.file('params.yaml'), 'w') as file:
      file.write(text.replace('accuracy', metric).replace('higher', comp))
    assert run_comparison.compare_runs([run]).best == known | more


def test_types_and_fields_that_one_does_not_have_are_differences(tmp_path):
  runs = [folders.make(tmp_path, name, status='finished') for name in 'abc']
  for run, text in zip(runs, ('x: 1\ny: .nan\nz: [1, 2]', 'x: 1.0\ny: .nan\nz: [1, 2]', 'no yaml: [')):
    with open(run.file('params.yaml'), 'w') as file:
      file.write(text)
  assert run_comparison.compare_runs(runs[:2]).params == {'x': (1, 1.0)}
  assert list(run_comparison.compare_runs(runs).params) == ['x', 'y', 'z']
