"""The best checkpoints: which are kept, and that the file names them only once they exist."""

import contextlib
import errno
import json
import os
import shutil
from unittest import mock

import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.training.checkpoints import best as best_lib
from official_ext.training.checkpoints import exported_weights
from official_ext.training.checkpoints import listing
from official_ext.training.checkpoints import manifests
from tests import file_calls
from tests.training.loop import small_run


def _exporter(folder, keep=2, comp='higher'):
  return best_lib.BestCheckpointExporter(str(folder), 'accuracy', comp, keep)


def _evaluate(exporter, values):
  weight = tf.Variable(0.0)
  for step, value in values.items():
    weight.assign(step)
    exporter.maybe_export_checkpoint(tf.train.Checkpoint(weight=weight), {'accuracy': tf.constant(value)}, step)
  return exporter


def _kept(folder):
  return [manifests.step_of(path) for path in manifests.complete_paths(str(folder), 'best_ckpt')]


@pytest.mark.parametrize(('comp', 'kept'), [('higher', [20, 40]), ('lower', [10, 30])])
def test_keeps_as_many_of_the_best_as_are_wanted(tmp_path, comp, kept):
  # Stock: keeps one.
  (tmp_path / 'best_ckpt-5_temp').mkdir()  # The leftovers of a kill in the middle of a save.
  exporter = _evaluate(_exporter(tmp_path, comp=comp), {10: 0.1, 20: 0.8, 30: 0.3, 40: 0.9})
  assert not (tmp_path / 'best_ckpt-5_temp').exists()
  assert _kept(tmp_path) == kept
  best = {'higher': 40, 'lower': 10}[comp]
  assert exporter.best_ckpt_path == f'{tmp_path}/best_ckpt-{best}' == tf.train.latest_checkpoint(str(tmp_path))
  info = json.loads((tmp_path / 'info.json').read_text())
  assert info['best_ckpt_global_step'] == best
  weight = tf.Variable(0.0)
  tf.train.Checkpoint(weight=weight).read(exporter.best_ckpt_path)
  assert weight.numpy() == best


def test_a_nan_metric_never_wins(tmp_path):
  # Stock: a first metric that is NaN stays the best for ever.
  exporter = _evaluate(_exporter(tmp_path, keep=1), {10: float('nan'), 20: 0.5, 30: float('inf'), 40: 0.4})
  assert _kept(tmp_path) == [20]
  assert exporter.best_ckpt_logs['accuracy'] == pytest.approx(0.5)


def test_the_first_of_equals_wins(tmp_path):
  _evaluate(_exporter(tmp_path, keep=1), {10: 0.5, 20: 0.5})
  assert _kept(tmp_path) == [10]


def test_writes_nothing_before_the_first_evaluation(tmp_path):
  _exporter(tmp_path / 'best')
  assert not os.path.exists(tmp_path / 'best')


def test_a_run_that_resumes_from_earlier_judges_as_it_did_then(tmp_path):
  values = {10: 0.5, 20: 0.4, 30: 0.9}
  straight = _evaluate(_exporter(tmp_path / 'straight', keep=1), values)
  _evaluate(_exporter(tmp_path / 'killed', keep=1), values)
  resumed = _exporter(tmp_path / 'killed', keep=1)  # From the checkpoint of step 10.
  _evaluate(resumed, {20: 0.4})
  assert resumed.best_ckpt_logs['accuracy'] == pytest.approx(0.5)  # Not 0.9, of a step still to come.
  _evaluate(resumed, {30: 0.9})
  assert _kept(tmp_path / 'killed') == _kept(tmp_path / 'straight') == [30]
  assert resumed.best_ckpt_logs == straight.best_ckpt_logs


@pytest.mark.parametrize('name', ['info.json', 'history.json'])
def test_a_truncated_record_of_the_best_does_not_stop_the_run(tmp_path, name):
  # Stock: JSONDecodeError at every restart.
  _evaluate(_exporter(tmp_path), {10: 0.5})
  (tmp_path / name).write_text('{"accu')
  _evaluate(_exporter(tmp_path), {20: 0.6})
  assert 20 in _kept(tmp_path)
  assert json.loads((tmp_path / 'info.json').read_text())['best_ckpt_global_step'] == 20


def test_nested_metrics(tmp_path):
  exporter = best_lib.BestCheckpointExporter(str(tmp_path), 'box|ap', 'higher')
  assert exporter.maybe_export_checkpoint(tf.train.Checkpoint(), {'box': {'ap': 0.3}, 'image': tf.zeros([2, 2])}, 5)


@pytest.mark.parametrize('logs', [{'loss': 0.5}, {'accuracy': [0.1, 0.2], 'loss': 0.5}])
def test_a_metric_that_an_evaluation_does_not_report_is_one_line(logs, tmp_path):
  # Before: KeyError or TypeError, after a whole evaluation.
  with pytest.raises(errors.UserError, match=r'best_checkpoint_eval_metric: accuracy: .* of step 5: loss$'):
    _exporter(tmp_path).maybe_export_checkpoint(tf.train.Checkpoint(), logs, 5)


# The rebuilt file.


@pytest.mark.parametrize(
  'content',
  [
    b'{"accu',
    b'',
    b'{}',
    b'null',
    b'7',
    b'[1, null]',
    b'\xff\xfe',
    b'[' * 100_000,
    None,
    b'[{"step": "30", "value": 0.9, "logs": {}}]',
    b'[{"step": 30, "value": 0.9, "logs": null}]',
    b'[{"step": true, "value": 0.9, "logs": {"accuracy": 0.9}}]',
  ],
)
def test_a_torn_or_mistyped_history_does_not_cost_the_best_checkpoint(content, tmp_path):
  # Before: the next evaluation deleted best_ckpt-30, or a traceback.
  _evaluate(_exporter(tmp_path, keep=1), {10: 0.5, 30: 0.9})
  if content is None:
    (tmp_path / 'history.json').unlink()
  else:
    (tmp_path / 'history.json').write_bytes(content)
  exporter = _evaluate(_exporter(tmp_path, keep=1), {40: 0.6})
  assert _kept(tmp_path) == [30] and exporter.best_ckpt_logs['accuracy'] == pytest.approx(0.9)
  assert [entry['step'] for entry in json.loads((tmp_path / 'history.json').read_text())] == [30, 40]
  assert _kept(tmp_path) == [30] and manifests.find_damage(exporter.best_ckpt_path) is None


@pytest.mark.parametrize('source', ['info.json', 'events.jsonl'])
def test_a_history_is_rebuilt_for_checkpoints_whose_manifests_have_no_metrics(source, tmp_path):
  events = tmp_path / 'events.jsonl'
  best = tmp_path / 'best'
  _evaluate(_exporter(best, keep=1), {30: 0.9})
  manifests.write(f'{best}/best_ckpt-30', step=30)  # As an earlier version left it.
  (best / 'history.json').write_text('[{"st')
  if source == 'events.jsonl':
    (best / 'info.json').write_text('[]')
    events.write_text('{"time": 1, "event": "eval", "step": 30, "accuracy": 0.9}\n[]\n'[:-3] + '{"event": "ev')
  exporter = best_lib.BestCheckpointExporter(str(best), 'accuracy', 'higher', 1, records=[str(events)])
  _evaluate(exporter, {40: 0.6})
  assert _kept(best) == [30] and exporter.best_ckpt_logs['accuracy'] == pytest.approx(0.9)


def test_a_best_checkpoint_of_which_nothing_is_known_is_not_deleted(tmp_path):
  _evaluate(_exporter(tmp_path, keep=1), {30: 0.9})
  manifests.write(f'{tmp_path}/best_ckpt-30', step=30)
  for name in ('history.json', 'info.json'):
    (tmp_path / name).unlink()
  _evaluate(_exporter(tmp_path, keep=1), {40: 0.6, 50: 0.7})
  assert _kept(tmp_path) == [30, 50]


def test_another_metric_judges_what_was_measured_before_anew(tmp_path):
  # Before: accuracies were compared with losses.
  weight = tf.train.Checkpoint(weight=tf.Variable(0.0))
  for step, (accuracy, loss) in {10: (0.5, 0.1), 20: (0.9, 0.3)}.items():
    _exporter(tmp_path).maybe_export_checkpoint(weight, {'accuracy': accuracy, 'loss': loss}, step)
  exporter = best_lib.BestCheckpointExporter(str(tmp_path), 'loss', 'lower', 2)
  exporter.maybe_export_checkpoint(weight, {'accuracy': 0.4, 'loss': 0.2}, 30)
  assert _kept(tmp_path) == [10, 30] and exporter.best_ckpt_logs['loss'] == pytest.approx(0.1)


# The direction.


class FallingTask(small_run.SmallTask):
  """Evaluations report minus their step as `fid_score` and as `elbo`."""

  def aggregate_logs(self, state=None, step_outputs=None):
    return state or {'batches': 1}

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    return dict.fromkeys(('fid_score', 'elbo'), -float(global_step.numpy()))


def _chosen(folder, metric, **trainer):
  trainer = {'best_checkpoint_export_subdir': 'best', 'best_checkpoint_eval_metric': metric, **trainer}
  small_run.run(folder, task_cls=FallingTask, trainer=trainer)
  return json.loads((folder / 'best/info.json').read_text())['best_ckpt_global_step']


@pytest.mark.slow
def test_the_name_of_the_metric_implies_which_is_best(tmp_path, capsys):
  # Evaluations at 6 and 12. Before: 'higher' is Model Garden's default, and kept the checkpoint of step 6.
  assert _chosen(tmp_path / 'known', 'fid_score') == 12
  assert 'metric_comp' not in capsys.readouterr().err
  assert _chosen(tmp_path / 'unknown', 'elbo') == 6
  assert [line for line in capsys.readouterr().err.splitlines() if 'metric_comp' in line] == [
    'warning: trainer.best_checkpoint_metric_comp: the name elbo does not imply whether higher or lower is better, and '
    'higher is assumed; set it to higher or lower'
  ]
  assert _chosen(tmp_path / 'set', 'elbo', best_checkpoint_metric_comp='lower') == 12
  assert 'metric_comp' not in capsys.readouterr().err


@pytest.mark.slow
def test_a_direction_that_contradicts_the_name_is_refused(tmp_path):
  expected = '^trainer.best_checkpoint_metric_comp: higher contradicts the name fid_score, of which lower is better'
  with pytest.raises(errors.UserError, match=expected):
    _chosen(tmp_path / 'run', 'fid_score', best_checkpoint_metric_comp='higher')
  assert not (tmp_path / 'run').exists()


def test_a_run_that_kept_the_worst_continues_with_the_best(tmp_path):
  # A folder from before: step 10 is the best by the new direction, and its checkpoint was not kept.
  _evaluate(_exporter(tmp_path, keep=1, comp='higher'), {5: 0.5, 10: 0.3})
  assert _kept(tmp_path) == [5]
  exporter = _evaluate(_exporter(tmp_path, keep=1, comp='lower'), {15: 0.4})
  assert _kept(tmp_path) == [15] and exporter.best_ckpt_path == f'{tmp_path}/best_ckpt-15'


# Whose they are.


BEST = {
  'best_checkpoint_export_subdir': 'best',
  'best_checkpoint_eval_metric': 'validation_loss',
  'best_checkpoint_metric_comp': 'lower',
}


def _contents(folder):
  return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


@pytest.mark.slow
def test_evaluations_beside_a_training_that_evaluates_leave_its_best_checkpoint_alone(tmp_path):
  # Before: eval of ckpt-4 cut the history, and the training that continued deleted the best.
  optimizer = small_run.make_params().trainer.optimizer_config.as_dict() | {'ema': {'average_decay': 0.5}}
  trainer = {**BEST, 'optimizer_config': optimizer}
  small_run.run(tmp_path, trainer=trainer)
  best = _contents(tmp_path / 'best') | _contents(tmp_path / 'ema_checkpoints')
  assert any(name.startswith('average_weights-12') for name in best)
  _, logs = small_run.run(tmp_path, 'eval', trainer=trainer, checkpoint=str(tmp_path / 'ckpt-4'))
  small_run.run(tmp_path, 'continuous_eval', trainer={**trainer, 'validation_steps': 1})
  assert _contents(tmp_path / 'best') | _contents(tmp_path / 'ema_checkpoints') == best
  info = json.loads((tmp_path / 'best/info.json').read_text())
  assert logs['best_validation_loss'] == pytest.approx(info['validation_loss'])  # That of the training.


@pytest.mark.slow
def test_continuous_eval_keeps_the_best_where_the_training_does_not_evaluate(tmp_path):
  small_run.run(tmp_path, 'train', trainer=BEST)
  assert not (tmp_path / 'best').exists()
  small_run.run(tmp_path, 'eval', trainer=BEST)
  assert not (tmp_path / 'best').exists()
  small_run.run(tmp_path, 'continuous_eval', trainer=BEST)
  losses = {
    event['step']: event['validation_loss']
    for event in small_run.events(tmp_path, 'eval', 'events.continuous_eval.jsonl')
  }
  assert list(losses) == [4, 8, 12]
  best = min(losses, key=losses.get)
  assert _kept(tmp_path / 'best') == [best]
  # Again, when the best one is not in the run's folder any more: it is kept, with all that was measured.
  for path in tmp_path.glob(f'ckpt-{best}.*'):
    path.unlink()
  small_run.run(tmp_path, 'continuous_eval', trainer=BEST)
  assert _kept(tmp_path / 'best') == [best]
  history = json.loads((tmp_path / 'best/history.json').read_text())
  assert {entry['step']: entry['value'] for entry in history} == losses


# A better one that cannot be written.


def _block(path):
  (path / 'something').mkdir(parents=True)


def test_an_evaluation_whose_checkpoint_could_not_be_saved_counts_for_nobody_who_reads_the_history(tmp_path):
  # Before: its value was made again of its logs, and the best checkpoint was one that does not exist.
  _block(tmp_path / 'best_ckpt-20.index')
  _evaluate(_exporter(tmp_path, keep=1), {10: 0.5, 20: 0.9})
  assert _exporter(tmp_path).best_ckpt_path == f'{tmp_path}/best_ckpt-10'
  again = _evaluate(_exporter(tmp_path, keep=1), {30: 0.6})
  assert again.best_ckpt_path == f'{tmp_path}/best_ckpt-30' and _kept(tmp_path) == [30]


def test_workers_agree_that_the_chief_could_not_save_one_of_the_best(tmp_path):
  # Before: the others counted it, and did not take part in the next save, for which the chief then waited.
  sent = []

  def send(topic, make):
    sent.append((topic, make()))
    return sent[-1][1]

  def hear(topic, make):
    known, value = sent.pop(0)
    assert known == topic
    make()
    return value

  _block(tmp_path / 'best_ckpt-20.index')
  values = {10: 0.5, 20: 0.9, 30: 0.6}
  chief = best_lib.BestCheckpointExporter(str(tmp_path), 'accuracy', 'higher', 1, from_chief=send)
  _evaluate(chief, values)
  other = best_lib.BestCheckpointExporter(str(tmp_path), 'accuracy', 'higher', 1, False, from_chief=hear)
  _evaluate(other, values)
  assert not sent and other.best_ckpt_path == chief.best_ckpt_path == f'{tmp_path}/best_ckpt-30'


def test_the_best_checkpoint_stays_until_the_history_shows_that_another_is_better(tmp_path):
  # Before: history.json and info.json named a checkpoint that had been deleted.
  exporter = _evaluate(_exporter(tmp_path, keep=1), {10: 0.5})
  (tmp_path / 'history.json').rename(tmp_path / 'kept')
  _block(tmp_path / 'history.json')
  _evaluate(exporter, {20: 0.9})
  assert _kept(tmp_path) == [10, 20]
  (tmp_path / 'history.json' / 'something').rmdir()
  (tmp_path / 'history.json').rmdir()
  _evaluate(exporter, {30: 0.1})
  assert _kept(tmp_path) == [20] and exporter.best_ckpt_path == f'{tmp_path}/best_ckpt-20'


def _forget(folder, *steps):
  """Leaves the history as a power loss does that has cost its last versions."""
  path = folder / 'history.json'
  path.write_text(json.dumps([entry for entry in json.loads(path.read_text()) if entry['step'] not in steps]))


def test_a_history_from_before_the_best_checkpoint_does_not_cost_it(tmp_path, caplog):
  # Before: the next evaluation deleted it, and reported a worse one.
  values = {10: 0.5, 20: 0.9, 30: 0.4}
  _evaluate(_exporter(tmp_path, keep=1), values)
  _forget(tmp_path, 20)
  again = _evaluate(_exporter(tmp_path, keep=1), {40: 0.6})
  assert _kept(tmp_path) == [20] and again.best_ckpt_path == f'{tmp_path}/best_ckpt-20'
  assert again.best_ckpt_logs['accuracy'] == pytest.approx(0.9)
  assert 'lacks 1 evaluations of the best checkpoints beside it' in caplog.text
  assert [entry['step'] for entry in json.loads((tmp_path / 'history.json').read_text())] == [10, 20, 30, 40]


def test_a_checkpoint_that_a_rollback_has_left_behind_is_not_added_to_the_history(tmp_path):
  best, rollbacks = tmp_path / 'best', listing.Rollbacks(str(tmp_path))

  def exporter():
    make = lambda: listing.Rollbacks(str(tmp_path))
    return best_lib.BestCheckpointExporter(str(best), 'accuracy', 'higher', 1, rollbacks=make)

  _evaluate(exporter(), {10: 0.5, 20: 0.9})
  rollbacks.add(listing.Rollback(from_step=25, to_step=15, data_offset=10))
  _evaluate(exporter(), {16: 0.6})  # After the rollback, other steps are evaluated.
  assert _kept(best) == [16, 20]
  again = _evaluate(exporter(), {30: 0.3})
  assert again.best_ckpt_path == f'{best}/best_ckpt-16' and _kept(best) == [16]


def test_what_decides_which_checkpoint_is_the_best_is_on_the_disk_before_others_are_deleted(tmp_path):
  exporter = _evaluate(_exporter(tmp_path, keep=1), {10: 0.5})
  with file_calls.recorded() as calls:
    _evaluate(exporter, {20: 0.9})
  deleted = calls.index(('remove', f'{tmp_path}/best_ckpt-10.manifest.json'))
  for name in ('best_ckpt-20.manifest.json', 'history.json', 'info.json', 'checkpoint'):
    path = f'{tmp_path}/{name}'
    (renamed,) = (n for n, call in enumerate(calls) if call[0] == 'rename' and call[2] == path)
    assert ('sync', calls[renamed][1]) in calls[:renamed]  # The content before the name.
    assert ('sync', str(tmp_path)) in calls[renamed:deleted]  # The name before the deletion.


@pytest.mark.parametrize('name', ['history.json', 'best_ckpt-20.manifest.json'])
def test_no_best_checkpoint_is_deleted_if_the_disk_may_not_have_stored_a_better_one(name, tmp_path, caplog):
  exporter = _evaluate(_exporter(tmp_path, keep=1), {10: 0.5})
  with file_calls.failing_syncs(lambda path: name in path, errno.EIO):
    _evaluate(exporter, {20: 0.9})
  assert 10 in _kept(tmp_path) and 'Input/output error' in caplog.text
  assert manifests.find_damage(f'{tmp_path}/best_ckpt-10') is None
  _evaluate(exporter, {30: 0.95})
  assert _kept(tmp_path) == [30]


@pytest.mark.parametrize('is_same', [True, False])
def test_a_best_checkpoint_that_is_written_again_is_there_at_any_moment(is_same, tmp_path):
  # Before: its files were overwritten under its manifest.
  _evaluate(_exporter(tmp_path / 'run', keep=1), {10: 0.5, 20: 0.9})
  original = {path.name: path.read_bytes() for path in (tmp_path / 'run').iterdir()}
  for number in range(100):
    folder = tmp_path / str(number)
    shutil.copytree(tmp_path / 'run', folder)
    weight = tf.Variable(20.0 if is_same else 21.0)
    exporter, logs = _exporter(folder, keep=1), {'accuracy': tf.constant(0.9)}
    with file_calls.ending_after(number) as has_ended:
      exporter.maybe_export_checkpoint(tf.train.Checkpoint(weight=weight), logs, 20)
    exported_weights.end_unfinished_exports(str(folder), 'best_ckpt')
    assert _kept(folder) == [20] and manifests.find_damage(f'{folder}/best_ckpt-20') is None
    assert not [name for name in os.listdir(folder) if name.endswith(('_temp', '.unfinished'))]
    if not has_ended():
      break
  assert number > 5
  found = (folder / 'best_ckpt-20.manifest.json').read_bytes()
  assert (found == original['best_ckpt-20.manifest.json']) == is_same


@contextlib.contextmanager
def _failing_renames(first):
  """A context in which the renames of checkpoints fail, but for those before number `first`."""
  move, num = paths.move, 0

  def fail(*args, **kwargs):
    nonlocal num
    num += 1
    if num > first:
      raise tf.errors.UnknownError(None, None, f'{args[0]}; Input/output error')
    move(*args, **kwargs)

  with mock.patch.object(paths, 'move', fail):
    yield


def _value(value):
  return tf.train.Checkpoint(weight=tf.Variable(value))


@pytest.mark.parametrize('first', [0, 1, 2])  # The index, the data, the manifest.
def test_a_checkpoint_that_cannot_be_moved_into_place_is_moved_later(first, tmp_path):
  # Before: the old one was marked, the new one deleted, and none was left.
  path = str(tmp_path / 'best_ckpt-20')
  exported_weights.write_export(_value(1.0), path, True, step=20)
  with _failing_renames(first), pytest.raises(errors.StorageError, match='Input/output error'):
    exported_weights.write_export(_value(2.0), path, True, step=20)
  exported_weights.end_unfinished_exports(str(tmp_path), 'best_ckpt')
  assert manifests.find_damage(path) is None and _kept(tmp_path) == [20]
  assert tf.train.load_variable(path, 'weight/.ATTRIBUTES/VARIABLE_VALUE') == 2.0
  assert not [name for name in os.listdir(tmp_path) if name.endswith(('_temp', '.unfinished'))]


def test_an_interrupted_save_that_cannot_be_completed_ends_no_evaluation(tmp_path, caplog):
  # Before: the error ended the run, on all workers.
  path = str(tmp_path / 'best_ckpt-20')
  exported_weights.write_export(_value(1.0), path, True, step=20)
  with _failing_renames(0):
    with pytest.raises(errors.StorageError):
      exported_weights.write_export(_value(2.0), path, True, step=20)
    exporter = _evaluate(_exporter(tmp_path, keep=1), {30: 0.6})
  assert 'an interrupted save cannot be completed' in caplog.text and _kept(tmp_path) == []
  _evaluate(exporter, {40: 0.7})
  assert 40 in _kept(tmp_path) and manifests.find_damage(f'{tmp_path}/best_ckpt-40') is None


def test_rollbacks_that_cannot_be_read_cost_one_of_the_best_and_not_the_run(tmp_path, caplog):
  make = lambda: listing.Rollbacks(str(tmp_path))
  best = tmp_path / 'best'
  exporter = best_lib.BestCheckpointExporter(str(best), 'accuracy', 'higher', 1, rollbacks=make)
  _evaluate(exporter, {10: 0.5})
  (tmp_path / 'rollbacks.json').write_text('{')
  _evaluate(exporter, {20: 0.9})
  assert _kept(best) == [10] and 'not saved as one of the best' in caplog.text
  (tmp_path / 'rollbacks.json').unlink()
  _evaluate(exporter, {30: 0.6})
  assert _kept(best) == [30]
