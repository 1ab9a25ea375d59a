"""Runs with Keras callbacks that are killed and resumed equal those that are not, and a stopped one stays stopped."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.training.actions import keras_callbacks
from official_ext.training.actions import triggers
from tests import tiers
from tests.training.loop import recovery_test
from tests.training.loop import small_run

callbacks = tf_keras.callbacks


class KilledError(BaseException):
  pass


class BaseRate(callbacks.Callback):
  """A rate for each epoch, from the one that the optimizer has when training begins."""

  def on_train_begin(self, logs=None):
    self.base = float(tf_keras.backend.get_value(self.model.optimizer.learning_rate))

  def on_epoch_begin(self, epoch, logs=None):
    self.model.optimizer.learning_rate = self.base * 0.5**epoch


class Halving(callbacks.Callback):
  """Halves the rate whenever training begins, as a warm start does."""

  def on_train_begin(self, logs=None):
    rate = self.model.optimizer.learning_rate
    self.model.optimizer.learning_rate = float(tf_keras.backend.get_value(rate)) / 2


class Shrinking(callbacks.Callback):
  """Shrinks the weights at the beginning of an epoch."""

  def on_epoch_begin(self, epoch, logs=None):
    for weight in self.model.trainable_variables:
      weight.assign(0.9 * weight)


def scheduler():
  return callbacks.LearningRateScheduler(lambda epoch, lr: lr * (epoch + 1) / 3 if epoch < 2 else lr * 0.97)


def plateau():
  return callbacks.ReduceLROnPlateau('val_loss', factor=0.5, patience=1, min_delta=10.0)


def trainer_settings(optimizer='sgd_experimental', **kwargs):
  constant = {'type': 'constant', 'constant': {'learning_rate': 0.1}}
  return {
    'train_steps': 24,
    'optimizer_config': {'optimizer': {'type': optimizer}, 'learning_rate': constant},
    **kwargs,
  }


def task_with(*made, kills_at=0, fails_at=0, base=small_run.SmallTask):
  """A task with callbacks. It notes the rate at the end of every loop, and may die or fail there."""

  def build_actions(self, trainer):

    def note(logs):
      rate = trainer.optimizer.learning_rate
      cls.rates[logs['step']] = float(tf_keras.backend.get_value(rate))
      if logs['step'] == kills_at:
        raise KilledError
      if logs['step'] == fails_at:
        raise RuntimeError('an action fails')

    return [triggers.OnEvent('train', note), *(keras_callbacks.KerasCallback(each, trainer) for each in made)]

  cls = type('WithCallbacks', (base,), {'build_actions': build_actions, 'rates': {}})
  return cls


def weights_of(model):
  return [variable.numpy() for variable in model.variables]


def run_killed(folder, make, kills_at, mode='train_and_eval', **settings):
  """(weights, rates by step) of a run that was killed at a step and started again."""
  killed, resumed = task_with(*make(), kills_at=kills_at), task_with(*make())
  with pytest.raises(KilledError):
    small_run.run(folder, mode, task_cls=killed, trainer=settings)
  model, _ = small_run.run(folder, mode, task_cls=resumed, trainer=settings)
  return weights_of(model), {**killed.rates, **resumed.rates}


def check_resume(folder, make, kills_at, mode='train_and_eval', **settings):
  straight = task_with(*make())
  model, _ = small_run.run(folder / 'a', mode, task_cls=straight, trainer=settings)
  weights, rates = run_killed(folder / 'b', make, kills_at, mode, **settings)
  assert rates == straight.rates
  for one, other in zip(weights_of(model), weights, strict=True):
    np.testing.assert_array_equal(one, other)


# Epochs of 6 steps, checkpoints at multiples of 4 or 6: resumed within an epoch (16, 20), or at its beginning (18).
# Loops end at multiples of 5 too: the run is killed at the end of the loop after the checkpoint.
@pytest.mark.slow
@tiers.parametrize('optimizer', ['sgd_experimental', 'sgd'], fast=1)
@tiers.parametrize(('interval', 'kills_at'), [(4, 18), (6, 20), (4, 24)], fast=2)
def test_a_resume_is_exact(tmp_path, interval, kills_at, optimizer):
  make = lambda: [scheduler(), Halving(), plateau(), Shrinking()]
  check_resume(tmp_path, make, kills_at, checkpoint_interval=interval, **trainer_settings(optimizer))


@pytest.mark.slow
@tiers.parametrize('optimizer', ['sgd_experimental', 'sgd'], fast=1)
def test_a_resume_is_exact_beside_reduce_lr_on_plateau_of_the_trainer(tmp_path, optimizer):
  """Nothing improves by 10: the factor counts once, at step 12, and the scheduler multiplies the result."""
  plateau_of_trainer = {'metric': 'validation_loss', 'factor': 0.5, 'patience': 1, 'min_delta': 10.0}
  settings = trainer_settings(optimizer, reduce_lr_on_plateau=plateau_of_trainer)
  check_resume(tmp_path, lambda: [callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.9)], 18, **settings)
  rates = [line['learning_rate'] for line in small_run.events(tmp_path / 'a', 'learning_rate_reduced')]
  # The scheduler begins the epochs 0 to 2 before the factor of step 12, the epoch 3 before that of step 18.
  assert rates == pytest.approx([0.1 * 0.9**3 / 2, 0.1 * 0.9**4 / 4, 0.1 * 0.9**4 / 8])


@pytest.mark.slow
@tiers.parametrize('mode', ['train_and_eval', 'train', 'train_and_post_eval'], fast=1)
def test_an_attribute_that_training_began_with_is_kept(tmp_path, mode):
  check_resume(tmp_path, lambda: [BaseRate()], 20, mode, **trainer_settings(train_steps=24))


@pytest.mark.slow
def test_a_variable_set_by_the_epoch_is_set_in_the_new_process(tmp_path):
  """Such as the weight of a loss, which no checkpoint keeps."""
  seen = []

  def make():
    weight = tf.Variable(0.0)
    set_weight = lambda epoch, logs: weight.assign(0.1 * epoch)
    note = lambda epoch, logs: seen.append(float(weight))
    return [callbacks.LambdaCallback(on_epoch_begin=set_weight, on_epoch_end=note)]

  run_killed(tmp_path, make, 10, **trainer_settings(train_steps=12))
  assert seen == pytest.approx([0.0, 0.1])


@pytest.mark.slow
def test_a_variable_among_the_attributes_stays_one(tmp_path):
  class Counting(callbacks.Callback):
    def __init__(self):
      super().__init__()
      self.count = tf.Variable(0)

    def on_epoch_end(self, epoch, logs=None):
      self.count.assign_add(1)

  found = []
  run_killed(tmp_path, lambda: found.append(Counting()) or [found[-1]], 10, **trainer_settings(train_steps=12))
  assert [int(each.count.value()) for each in found] == [1, 2]


class Hooks(callbacks.Callback):
  def __init__(self, calls):
    super().__init__()
    self.calls = calls

  def on_train_begin(self, logs=None):
    self.calls.append('train begins')

  def on_epoch_begin(self, epoch, logs=None):
    self.calls.append(f'{epoch} begins')

  def on_epoch_end(self, epoch, logs=None):
    self.calls.append(f'{epoch} ends')

  def on_train_end(self, logs=None):
    self.calls.append('train ends')


@pytest.mark.slow
@tiers.parametrize('mode', ['train', 'train_and_eval'], fast=1)
def test_an_epoch_whose_last_step_was_saved_by_a_failure_ends_in_the_next_process(tmp_path, mode):
  """64 examples in batches of 8; evaluated every 6 steps. The action before the callback fails at the last step."""
  end = {'train': 8, 'train_and_eval': 6}[mode]
  failed, resumed = Hooks([]), Hooks([])
  with pytest.raises(RuntimeError, match='an action fails'):
    small_run.run(tmp_path, mode, task_with(failed, fails_at=end), trainer=trainer_settings(train_steps=12))
  assert failed.calls == ['train begins', '0 begins']
  small_run.run(tmp_path, mode, task_with(resumed), trainer=trainer_settings(train_steps=12))
  assert resumed.calls == ['train begins', '0 begins', '0 ends', '1 begins', '1 ends', 'train ends']


def test_an_evaluation_after_training_ends_no_epoch(tmp_path):
  hooks = Hooks([])
  settings = trainer_settings(train_steps=6)
  small_run.run(tmp_path, task_cls=task_with(hooks), trainer=settings, run_post_eval=True)
  assert hooks.calls == ['train begins', '0 begins', '0 ends', 'train ends']


def test_a_rollback_takes_up_the_epoch_of_its_checkpoint(tmp_path):
  """Steps 7 and 9 are bad: from 9 back to 4, which is before the first multiple of 8."""
  calls = []
  task = task_with(Hooks(calls), scheduler(), base=recovery_test.task_with_bad_batches(6, 8))
  settings = {**recovery_test.ROLLBACK, **trainer_settings(train_steps=16)}
  small_run.run(tmp_path, 'train', task, trainer=settings)
  begins = ['train begins', '0 begins']
  assert calls == [*begins, '0 ends', '1 begins', '0 begins', '0 ends', '1 begins', '1 ends', 'train ends']
  assert task.rates[5] == pytest.approx(0.1 / 3) and task.rates[16] == pytest.approx(0.1 / 3 * 2 / 3)


def test_a_rollback_to_the_first_step_begins_training_again(tmp_path):
  """Steps 1 and 3 are bad: back to 0, where on_train_begin had not yet run."""
  calls = []
  task = task_with(Hooks(calls), Halving(), scheduler(), base=recovery_test.task_with_bad_batches(0, 2))
  small_run.run(tmp_path, 'train', task, trainer={**recovery_test.ROLLBACK, **trainer_settings(train_steps=8)})
  assert calls == ['train begins', '0 begins', 'train begins', '0 begins', '0 ends', 'train ends']
  assert task.rates[8] == pytest.approx(0.1 / 2 / 3)


@pytest.mark.slow
def test_a_run_that_was_stopped_stays_stopped_unless_the_callback_is_given_other_settings(tmp_path):
  """Nothing improves by 10: patience 1 ends it at the second evaluation, of step 12."""

  def start(patience):
    stop = callbacks.EarlyStopping('val_loss', patience=patience, min_delta=10.0)
    small_run.run(tmp_path, task_cls=task_with(stop), trainer=trainer_settings(train_steps=24))
    return small_run.record(tmp_path)['step']

  assert [start(1), start(1), start(2)] == [12, 12, 18]
