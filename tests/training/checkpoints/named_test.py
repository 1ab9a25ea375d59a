"""A folder in place of a checkpoint's path: alike for training, evaluation, --debug, loading and init_checkpoint."""

import json
import pathlib

from official.core import task_factory
import pytest

from official_ext.base import errors
from official_ext.training.checkpoints import training_lines
from official_ext.training.checkpoints import warm_start
from official_ext.training.diagnosis import finite_checks
from official_ext.training.trained import trained_model
from tests.training.loop import small_run

BEST = {
  'best_checkpoint_export_subdir': 'best',
  'best_checkpoint_eval_metric': 'accuracy',
  'best_checkpoint_metric_comp': 'higher',
}


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A run with checkpoints at 4, 8 and 12, and the best at 6 or 12."""
  folder = tmp_path_factory.mktemp('trained')
  small_run.run(folder, trainer=BEST)
  return folder


def best_of(folder):
  step = json.loads((folder / 'best/info.json').read_text())['best_ckpt_global_step']
  return str(folder / f'best/best_ckpt-{int(step)}')


def copy(source, target, step):
  for path in source.glob(f'ckpt-{step}.*'):
    (target / path.name).write_bytes(path.read_bytes())


@pytest.mark.slow
def test_the_best_of_a_folder_of_best_checkpoints_the_newest_of_others(trained, tmp_path):
  assert training_lines.checkpoint_named(str(trained / 'best'), 'x') == best_of(trained)
  assert training_lines.checkpoint_named(f'{trained}/best/', 'x') in (
    best_of(trained),
    best_of(trained).replace('/best/', '/best//'),
  )
  assert training_lines.checkpoint_named(str(trained), 'x') == str(trained / 'ckpt-12')
  assert training_lines.checkpoint_named(str(trained / 'ckpt-8'), 'x') == str(trained / 'ckpt-8')
  with pytest.raises(errors.UserError, match=r'^x: no checkpoint in this folder$'):
    training_lines.checkpoint_named(str(tmp_path), 'x')
  with pytest.raises(errors.UserError, match=rf'^x: no such checkpoint; a path such as {tmp_path}/ckpt-100$'):
    training_lines.checkpoint_named(f'{tmp_path}/ckpt-3', 'x')


def test_the_best_counts_not_the_newest(trained, tmp_path):
  for number in (4, 12):
    copy(trained, tmp_path, number)
  (tmp_path / 'info.json').write_text(json.dumps({'best_ckpt_global_step': 4.0, 'accuracy': 1.0}))
  assert training_lines.checkpoint_named(str(tmp_path), 'x') == str(tmp_path / 'ckpt-4')


def test_all_commands_take_it(trained, tmp_path, monkeypatch):
  folder, best = str(trained / 'best'), best_of(trained)
  params = small_run.make_params(**BEST)
  # Training: a new line, which the same command resumes after a better checkpoint has come.
  small_run.run(tmp_path / 'a', 'train', params=small_run.make_params(train_steps=16), checkpoint=folder)
  (line,) = json.loads((tmp_path / 'a/lines.json').read_text())
  assert line['checkpoint'] == best
  # Evaluation.
  small_run.run(tmp_path / 'b', 'eval', params=params, checkpoint=folder)
  (evaluated,) = small_run.events(tmp_path / 'b', 'eval', 'events.eval.jsonl')
  assert best.endswith(f'-{evaluated["step"]}')
  # A warm start, --debug, and a model that is loaded, exported or predicts.
  assert warm_start.find(folder) == best
  assert finite_checks._choose_step(None, folder, None)[1] == best
  monkeypatch.setattr(task_factory, 'get_task', lambda config: small_run.make_task(params))
  assert trained_model.load_model(params, str(trained), folder).checkpoint == best


@pytest.mark.slow
def test_the_same_command_resumes_although_the_folder_has_a_better_one_by_then(trained, tmp_path):
  other = tmp_path / 'other'
  other.mkdir()
  copy(trained, other, 8)
  small_run.run(tmp_path / 'a', 'train', params=small_run.make_params(train_steps=10), checkpoint=str(other))
  copy(trained, other, 12)
  small_run.run(tmp_path / 'a', 'train', params=small_run.make_params(train_steps=12), checkpoint=str(other))
  restored = [pathlib.Path(event['checkpoint']) for event in small_run.events(tmp_path / 'a', 'restored')]
  assert restored == [other / 'ckpt-8', tmp_path / 'a/ckpt-10']
