"""Moving averages are coherent: the contents of checkpoints, and their restoration."""

import json
import os

import numpy as np
from official.core import actions as official_actions
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.training.checkpoints import best
from official_ext.training.checkpoints import manager as manager_lib
from official_ext.training.checkpoints import manifests
from official_ext.training.optimization import ema_optimizer
from tests import tiers
from tests.training.loop import harness
from tests.training.loop import restore_test
from tests.training.loop import small_run

STEPS = 6


def make_params(ema=True, optimizer='sgd', **trainer):
  config = {
    'optimizer': {'type': optimizer, optimizer: {'momentum': 0.9}},
    'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.1}},
  }
  if ema:
    config['ema'] = {'average_decay': 0.9}
  return small_run.make_params(
    **{
      'train_steps': STEPS,
      'steps_per_loop': 3,
      'checkpoint_interval': 3,
      'validation_interval': 3,
      'best_checkpoint_export_subdir': 'best',
      'best_checkpoint_eval_metric': 'validation_loss',
      'best_checkpoint_metric_comp': 'lower',
      'optimizer_config': config,
      **trainer,
    }
  )


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A run with averages."""
  folder = tmp_path_factory.mktemp('averages') / 'run'
  small_run.run(folder, params=make_params())
  return folder


def evaluate(folder, checkpoint=None, replicas='one', **params):
  params = make_params(best_checkpoint_export_subdir='', **params)
  return small_run.run(folder, 'eval', replicas=replicas, params=params, checkpoint=checkpoint)


def newest_best(folder):
  return manifests.complete_paths(str(folder / 'best'), 'best_ckpt')[-1]


def measured(folder):
  return json.loads((folder / 'best/info.json').read_text())


def loss_of(model):
  x, y = harness.make_data(small_run.NUM_EXAMPLES)
  return harness.softmax_regression([v.numpy() for v in model.trainable_variables], (x[:8], y[:8]))[0]


@pytest.mark.slow
@tiers.parametrize(
  'replicas, ema, optimizer',
  [('one', True, 'sgd'), ('two', True, 'sgd'), ('one', False, 'sgd'), ('one', False, 'sgd_experimental')],
  fast=1,
)
def test_evaluating_the_best_gives_the_number_that_made_it_the_best(replicas, ema, optimizer, folder):
  path = newest_best(folder)
  _, logs = evaluate(folder, path, replicas, ema=ema, optimizer=optimizer)
  assert float(logs['validation_loss']) == pytest.approx(measured(folder)['validation_loss'], rel=1e-6)
  assert float(logs['accuracy']) == measured(folder)['accuracy']


def test_the_newest_checkpoint_is_evaluated_with_averages_or_without(folder):
  model, logs = evaluate(folder)
  averaged = float(logs['validation_loss'])
  assert averaged == pytest.approx(measured(folder)['validation_loss'], rel=1e-6)
  raw_model, logs = evaluate(folder, ema=False)
  raw = float(logs['validation_loss'])
  assert raw == pytest.approx(loss_of(raw_model), rel=1e-5) and abs(raw - averaged) > 1e-3
  assert loss_of(model) == pytest.approx(raw, rel=1e-5)  # After the evaluation the weights are back.


def test_plain_tensorflow_reads_raw_weights_from_ckpt_and_averages_from_exports(folder):
  """The text of docs/concepts/guarantees.md about `tf.train.Checkpoint(model=model)`."""
  ema_checkpoint = tf.train.latest_checkpoint(str(folder / 'ema_checkpoints'))
  averaged, raw = measured(folder)['validation_loss'], float(evaluate(folder, ema=False)[1]['validation_loss'])
  for path, expected in ((f'{folder}/ckpt-{STEPS}', raw), (newest_best(folder), averaged), (ema_checkpoint, averaged)):
    model = harness.linear_model()
    tf.train.Checkpoint(model=model).read(path).assert_existing_objects_matched().expect_partial()
    assert loss_of(model) == pytest.approx(expected, rel=1e-5), path


def test_manifests_note_which_weights_there_are(folder):
  assert manifests.read(f'{folder}/ckpt-{STEPS}')['weights'] == 'raw'
  assert manifests.read(newest_best(folder))['weights'] == 'averaged'


@pytest.mark.slow
def test_a_checkpoint_without_averages_is_not_evaluated_with_averages(tmp_path):
  """Those that do not exist would be zeros."""
  small_run.run(tmp_path, 'train', params=make_params(ema=False))
  with pytest.raises(errors.UserError, match=r'ckpt-6: it holds no moving averages; --set=.*ema=null'):
    evaluate(tmp_path)
  _, logs = evaluate(tmp_path, ema=False)
  assert np.isfinite(float(logs['validation_loss']))


def make_trainer(tmp_path, exporter=True, replicas='one'):
  return harness.make_trainer(
    optimizer=lambda: ema_optimizer.ExponentialMovingAverage(harness.sgd(), average_decay=0.9),
    evaluate=True,
    enable_xla=False,
    replicas=replicas,
    trainer_config=dict(best_checkpoint_eval_metric='validation_loss'),
    checkpoint_exporter=best.BestCheckpointExporter(str(tmp_path / 'best'), 'validation_loss', 'lower')
    if exporter
    else None,
  )


def state(trainer):
  optimizer = ema_optimizer.find(trainer.optimizer)
  slots = [slot for slots in (optimizer._slots, optimizer._optimizer._slots) for slot in slots.values()]
  values = [v for each in slots for _, v in sorted(each.items())]
  return [v.numpy() for v in [*trainer.model.variables, *values]]


@pytest.mark.slow
@pytest.mark.parametrize(
  'source, replicas',
  harness.cases(fast=[('ema_checkpoints', 'two')], soak=[('best', 'one'), ('best without a note', 'two')]),
)
def test_training_resumes_from_an_export_as_from_the_run_itself(source, replicas, tmp_path):
  """Weights and averages are back in their places."""
  trainer = make_trainer(tmp_path, replicas=replicas)
  harness.train(trainer, 3)
  harness.evaluate(trainer)
  path = f'{tmp_path}/best/best_ckpt-3'
  if source == 'ema_checkpoints':  # As Model Garden writes them.
    with trainer.strategy.scope():
      official_actions.EMACheckpointing(str(tmp_path), trainer.optimizer, trainer.checkpoint)({})
    path = tf.train.latest_checkpoint(str(tmp_path / source))
  if source == 'best without a note':
    os.remove(path + manifests.SUFFIX)
  before = state(trainer)
  again = make_trainer(tmp_path, exporter=False, replicas=replicas)
  manager = manager_lib.CheckpointManager(again.checkpoint, str(tmp_path))
  with again.strategy.scope():
    manager.restore(path)
  harness.assert_close(state(again), before, rtol=0, atol=0)
  again.checkpoint_restored()
  harness.train(trainer, 2)
  harness.train(again, 2)
  harness.assert_close(state(again), state(trainer), rtol=0, atol=0)


def averages_after(folder, *zero_starts):
  """The averages after three more steps for each start of a run, of which each has another switch."""
  for number, zero_start in enumerate(zero_starts, 1):
    params = make_params(train_steps=3 * number, best_checkpoint_export_subdir='')
    params.override({'trainer': {'optimizer_config': {'ema_zero_start': zero_start, 'ema': {'dynamic_decay': False}}}})
    small_run.run(folder, 'train', params=params)
  reader = tf.train.load_checkpoint(f'{folder}/ckpt-{3 * len(zero_starts)}')
  names = [name for name in reader.get_variable_to_shape_map() if '/average/' in name]
  return [reader.get_tensor(name) for name in sorted(names)]


def test_a_resumed_run_keeps_the_start_of_its_averages(tmp_path):
  """A run of an older version began at zero, and the switch is false by default."""
  straight = averages_after(tmp_path / 'straight', True, True)
  harness.assert_close(averages_after(tmp_path / 'resumed', True, False), straight, rtol=0, atol=0)
  assert 'ema_zero_start: true' in (tmp_path / 'resumed/params.yaml').read_text()
  assert np.abs(averages_after(tmp_path / 'weights', False, False)[0] - straight[0]).max() > 0.01


def half_trainer(tmp_path, monkeypatch, is_old):
  class Task(harness.LinearTask):
    model_fn = staticmethod(lambda: harness.linear_model('bfloat16'))

  with monkeypatch.context() as patch:
    if is_old:
      patch.setattr(ema_optimizer, '_is_rounded', lambda weight: False)
    optimizer = lambda: ema_optimizer.ExponentialMovingAverage(harness.sgd(), average_decay=0.9, dynamic_decay=False)
    trainer = harness.make_trainer(Task, optimizer=optimizer, enable_xla=False)
    harness.train(trainer, 2)
  return trainer, manager_lib.CheckpointManager(trainer.checkpoint, str(tmp_path), step_counter=trainer.global_step)


@pytest.mark.parametrize('is_old', [False, True])
def test_averages_in_bfloat16_are_restored_exactly_or_from_their_rounded_values(is_old, tmp_path, monkeypatch):
  trainer, manager = half_trainer(tmp_path, monkeypatch, is_old)
  manager.save()
  manager.sync()
  again, manager = half_trainer(tmp_path, monkeypatch, False)
  manager.restore(f'{tmp_path}/ckpt-2')
  for before, after in zip(trainer.model.trainable_variables, again.model.trainable_variables):
    for slot in ('average', 'average_float32'):
      expected = trainer.optimizer.get_slot(before, 'average' if is_old else slot).numpy()
      np.testing.assert_array_equal(again.optimizer.get_slot(after, slot).numpy(), expected.astype(np.float32))


def ema_trainer(model_fn):
  class Task(harness.LinearTask):
    pass

  Task.model_fn = staticmethod(model_fn)
  return harness.make_trainer(Task, optimizer=lambda: ema_optimizer.ExponentialMovingAverage(harness.sgd()))


def partly_built():
  model = restore_test.Late()
  model.networks[0].build((None, harness.NUM_FEATURES))
  return model


@tiers.parametrize('model_fn', [restore_test.Late, partly_built], fast=1)
def test_weights_that_do_not_exist_yet_are_made_for_their_averages(model_fn):
  trainer = ema_trainer(model_fn)
  harness.train(trainer, 1)
  averages = ema_optimizer.find(trainer.optimizer).averages
  assert trainer.model.trainable_variables
  assert all(id(weight) in averages for weight in trainer.model.trainable_variables)


def test_averages_of_weights_that_a_batch_cannot_make_are_refused():
  """They would never be made, and raw weights be evaluated in their place."""

  class NeedsMore(restore_test.Late):
    def call(self, inputs, training=None):
      raise TypeError('a second input is missing')

  with pytest.raises(errors.UserError, match='trainer.optimizer_config.ema: the model makes every weight at its first'):
    ema_trainer(NeedsMore)
