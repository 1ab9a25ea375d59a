"""The checkpoints of the averaged weights: which are kept, and their contents."""

from official.modeling.optimization import ema_optimizer
import pytest
import tensorflow as tf

from official_ext.training.checkpoints import exported_weights
from official_ext.training.checkpoints import manifests
from tests.training.loop import harness


def _averaged(**kwargs):
  return ema_optimizer.ExponentialMovingAverage(harness.sgd(), average_decay=0.5, **kwargs)


def _act(action, trainer):
  with trainer.strategy.scope():
    action({})


def _kept(folder):
  return [manifests.step_of(path) for path in manifests.complete_paths(f'{folder}/ema_checkpoints', 'average_weights')]


def test_averages_are_saved_verified_and_never_deleted_by_number(tmp_path):
  trainer = harness.make_trainer(optimizer=_averaged, evaluate=True)
  action = exported_weights.EMACheckpointing(str(tmp_path), trainer.optimizer, trainer.checkpoint, max_to_keep=2)
  before = []
  for _ in range(3):
    harness.train(trainer, 2)
    before = [weight.tobytes() for weight in harness.weights_of(trainer)]
    _act(action, trainer)
    assert [weight.tobytes() for weight in harness.weights_of(trainer)] == before
  assert _kept(tmp_path) == [4, 6]
  latest = tf.train.latest_checkpoint(f'{tmp_path}/ema_checkpoints')
  assert latest.endswith('average_weights-6') and manifests.find_damage(latest) is None
  kernel = 'model/layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE'
  saved = tf.train.load_checkpoint(latest).get_tensor(kernel)
  average = trainer.optimizer.get_slot(trainer.model.trainable_variables[0], 'average').numpy()
  assert saved.tobytes() == average.tobytes() and saved.tobytes() != before[0]
  # A run that resumes from an earlier step: its saves do not have the highest number.
  trainer.optimizer.iterations.assign(1)
  _act(action, trainer)
  assert 1 in _kept(tmp_path)


def test_who_does_not_own_the_folder_or_is_not_the_chief_writes_nothing(tmp_path):
  trainer = harness.make_trainer(optimizer=_averaged, evaluate=True)
  harness.train(trainer, 1)
  for arguments in ({'owns': lambda: False}, {'is_chief': False}):
    action = exported_weights.EMACheckpointing(str(tmp_path), trainer.optimizer, trainer.checkpoint, **arguments)
    _act(action, trainer)
  assert not list(tmp_path.iterdir())


def test_an_optimizer_without_averages_is_refused(tmp_path):
  with pytest.raises(ValueError, match='keeps no moving average'):
    exported_weights.EMACheckpointing(str(tmp_path), harness.sgd(), tf.train.Checkpoint())


def test_averages_that_cannot_be_saved_do_not_end_the_run(tmp_path, caplog):
  # Before: the run ended, and left the parts of the checkpoint there.
  trainer = harness.make_trainer(optimizer=_averaged, evaluate=True)
  action = exported_weights.EMACheckpointing(str(tmp_path), trainer.optimizer, trainer.checkpoint)
  harness.train(trainer, 1)
  _act(action, trainer)
  (tmp_path / 'ema_checkpoints/average_weights-2.index/something').mkdir(parents=True)
  harness.train(trainer, 1)
  before = [weight.tobytes() for weight in harness.weights_of(trainer)]
  _act(action, trainer)
  assert [weight.tobytes() for weight in harness.weights_of(trainer)] == before
  assert _kept(tmp_path) == [1] and 'average_weights-2: could not be saved: ' in caplog.text
  assert not list((tmp_path / 'ema_checkpoints').glob('average_weights-2.data*'))
