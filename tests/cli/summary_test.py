"""Tests for summary."""

import pytest

from official_ext.cli import summary
from official_ext.training.checkpoints import best_history
from official_ext.training.config import definitions
from official_ext.training.loop import run_record
from official_ext.training.writers import events_writer


def _run(model_dir, evaluations=(), **trainer):
  """Leaves in `model_dir` a run's files, without the weights."""
  params = definitions.ExperimentConfig()
  params.override({'trainer': {'train_steps': 30, **trainer}})
  record = run_record.RunRecord(str(model_dir), 'train_and_eval', params.trainer.train_steps, 0, '1 replica on CPU:0')
  run_record.save_params(params.masked_yaml(), str(model_dir))
  events = events_writer.EventsWriter(str(model_dir / 'events.jsonl'))
  for step, values in evaluations:
    record.update(stage='eval', step=step)
    events.write('train', step, {'training_loss': 1.0})
    events.write('eval', step, values)
    (model_dir / f'ckpt-{step}.index').touch()
  events.close()
  return record


def test_a_finished_run(tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  accuracies = {8: 0.5, 16: 0.96875, 30: 0.875}
  best = {'best_checkpoint_export_subdir': 'best', 'best_checkpoint_eval_metric': 'accuracy'}
  evaluations = [(step, {'validation_loss': 1 / step, 'accuracy': accuracy}) for step, accuracy in accuracies.items()]
  (tmp_path / 'runs').mkdir()
  _run(tmp_path / 'runs', evaluations, **best).finish('finished')
  assert summary.main(['runs']) == 0
  printed = capsys.readouterr().out.splitlines()
  rows = {line.split()[0]: ' '.join(line.split()[1:]) for line in printed[2:]}
  assert printed[:2] == ['', 'runs']
  assert rows['status'] == 'finished at step 30 of 30 (1 replica on CPU:0)'
  assert rows['validation'] == 'validation_loss 0.03333 accuracy 0.875 (step 30)'
  assert rows['best'] == 'accuracy 0.9688 (step 16), in runs/best/'
  assert rows['checkpoints'] == 'runs/: ckpt-8, ckpt-16, ckpt-30'
  assert rows['TensorBoard'].endswith('tensorboard --logdir=runs')


def test_the_lowest_is_best_where_the_run_says_so(tmp_path):
  losses = {8: 0.5, 16: 0.75, 30: float('nan')}
  evaluations = [(step, {'validation_loss': loss}) for step, loss in losses.items()]
  best = {'best_checkpoint_eval_metric': 'validation_loss', 'best_checkpoint_metric_comp': 'lower'}
  _run(tmp_path, evaluations, best_checkpoint_export_subdir='best', **best)
  assert any('validation_loss 0.5  (step 8)' in line for line in summary.lines(str(tmp_path)))


def test_the_best_is_what_the_training_has_kept(tmp_path):
  best = {'best_checkpoint_export_subdir': 'best', 'best_checkpoint_eval_metric': 'accuracy'}
  record = _run(tmp_path, [(8, {'accuracy': 0.5}), (16, {'accuracy': 0.75})], **best)
  record.update(skipped_updates=9)
  entries = [best_history.entry(step, {'accuracy': value}, ['accuracy']) for step, value in ((8, 0.5), (16, 0.75))]
  (tmp_path / 'best').mkdir()
  best_history.write(str(tmp_path / 'best'), entries)
  events = events_writer.EventsWriter(str(tmp_path / 'events.eval.jsonl'))
  events.write('eval', 16, {'accuracy': 1.0})  # Of one batch.
  events.close()
  lines = summary.lines(str(tmp_path))
  assert any('accuracy 0.75  (step 16)' in line and 'best' in line for line in lines)
  assert any(line.split()[:3] == ['skipped', '9', 'updates'] for line in lines)


def test_a_run_that_failed_at_the_start(tmp_path):
  record = _run(tmp_path)
  record.finish('failed', OSError('no data'))
  (tmp_path / 'params.yaml').unlink()
  assert not (tmp_path / 'events.jsonl').exists()
  status, tensorboard = summary.lines(str(tmp_path))[1:]
  assert status.split() == ['status', 'failed:', 'OSError:', 'no', 'data']
  assert 'TensorBoard' in tensorboard


@pytest.mark.parametrize('arguments', [[], ['nowhere']])
def test_errors_are_one_line(arguments, capsys, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert summary.main(arguments) == 2
  captured = capsys.readouterr()
  assert captured.out == '' and captured.err.startswith('error: ') and captured.err.count('\n') == 1
