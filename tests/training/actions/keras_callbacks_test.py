"""Keras callbacks in whole runs: their arguments, their effects, and refusals."""

import csv
import math

import numpy as np
import pytest
import tf_keras

from official_ext.base import errors
from official_ext.training.actions import keras_callbacks
from official_ext.training.actions import triggers
from tests.training.loop import small_run

KerasCallback = keras_callbacks.KerasCallback
CONSTANT = {'optimizer': {'type': 'sgd'}, 'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.1}}}


class KilledError(BaseException):
  pass


class Recorder(tf_keras.callbacks.Callback):
  """Notes every call, and how often an epoch has ended."""

  def __init__(self):
    super().__init__()
    self.calls, self.logs, self.num_ends = [], [], 0

  def on_train_begin(self, logs=None):
    self.calls.append('train begins')

  def on_epoch_begin(self, epoch, logs=None):
    self.calls.append(f'{epoch} begins')

  def on_epoch_end(self, epoch, logs=None):
    self.num_ends += 1
    self.calls.append(f'{epoch} ends')
    self.logs.append(logs)

  def on_test_begin(self, logs=None):
    self.calls.append('test begins')

  def on_test_end(self, logs=None):
    self.calls.append('test ends')

  def on_train_end(self, logs=None):
    self.calls.append('train ends')


def task_with(*callbacks, kills_at=0, **kwargs):

  def build_actions(self, trainer):

    def die(logs):
      if logs['step'] == kills_at:
        raise KilledError

    return [*(KerasCallback(callback, trainer, **kwargs) for callback in callbacks), triggers.OnEvent('train', die)]

  return type('WithCallbacks', (small_run.SmallTask,), {'build_actions': build_actions})


@pytest.mark.slow
def test_hooks_and_logs_with_an_epoch_for_each_evaluation(tmp_path):
  """12 steps, evaluated at 6 and 12; training loops end at 4, 5, 6, ... Killed at 10, it resumes from 8."""
  straight = Recorder()
  small_run.run(tmp_path / 'a', task_cls=task_with(straight))
  epoch = ['test begins', 'test ends']
  assert straight.calls == ['train begins', '0 begins', *epoch, '0 ends', '1 begins', *epoch, '1 ends', 'train ends']
  assert straight.params == {'epochs': 2, 'steps': 6, 'verbose': 0}
  trained = small_run.events(tmp_path / 'a', 'train')
  evaluated = small_run.events(tmp_path / 'a', 'eval')
  for logs, first, last, eval_logs in zip(straight.logs, (0, 6), (6, 12), evaluated):
    loops = [line for line in trained if first < line['step'] <= last]
    steps = np.diff([first, *(line['step'] for line in loops)])
    assert logs['loss'] == pytest.approx(np.average([line['training_loss'] for line in loops], weights=steps))
    assert logs['val_loss'] == eval_logs['validation_loss'] and logs['val_accuracy'] == eval_logs['accuracy']
    assert logs['lr'] == pytest.approx(0.1)
    assert not {'step', 'seconds', 'epoch', 'val_seconds', 'steps_per_second'} & set(logs)

  killed, resumed = Recorder(), Recorder()
  with pytest.raises(KilledError):
    small_run.run(tmp_path / 'b', task_cls=task_with(killed, kills_at=10))
  small_run.run(tmp_path / 'b', task_cls=task_with(resumed))
  assert resumed.calls == ['train begins', '1 begins', *epoch, '1 ends', 'train ends']
  assert resumed.num_ends == 2  # As the checkpoint has it.
  assert resumed.logs == straight.logs[1:]

  # Finished: nothing is called any more.
  again = Recorder()
  small_run.run(tmp_path / 'b', task_cls=task_with(again))
  assert again.calls == []


@pytest.mark.slow
def test_without_evaluations_an_epoch_is_one_of_the_data_or_as_configured(tmp_path):
  """64 examples in batches of 8."""
  by_data, by_steps = Recorder(), Recorder()
  small_run.run(tmp_path / 'a', 'train', task_cls=task_with(by_data))
  assert by_data.calls == ['train begins', '0 begins', '0 ends', '1 begins', '1 ends', 'train ends']
  assert by_data.params['epochs'] == math.ceil(12 / 8)
  small_run.run(tmp_path / 'b', 'train', task_cls=task_with(by_steps, steps_per_epoch=3))
  assert by_steps.calls.count('3 ends') == 1 and by_steps.num_ends == 4
  assert [line['step'] for line in small_run.events(tmp_path / 'b', 'train')] == [3, 4, 5, 6, 8, 9, 10, 12]

  unknowing = task_with(Recorder())
  unknowing.num_examples = lambda self, params: None
  with pytest.raises(errors.UserError, match='KerasCallback/Recorder: the task does not know .* give steps_per_epoch'):
    small_run.run(tmp_path / 'c', 'train', task_cls=unknowing)
  assert not (tmp_path / 'c').exists()


@pytest.mark.slow
def test_callbacks_of_keras_do_their_work(tmp_path):
  """Rates by epoch, a table, the best weights in a file, the end when nothing gets better."""
  rates = []
  stop = tf_keras.callbacks.EarlyStopping('val_loss', patience=1, min_delta=100.0)
  callbacks = [
    tf_keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1)),
    tf_keras.callbacks.CSVLogger(str(tmp_path / 'log.csv')),
    tf_keras.callbacks.ModelCheckpoint(str(tmp_path / 'best.h5'), save_best_only=True, save_weights_only=True),
    tf_keras.callbacks.TensorBoard(str(tmp_path / 'board')),
    tf_keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: rates.append(logs['lr'])),
    stop,
  ]
  model, _ = small_run.run(
    tmp_path / 'run', task_cls=task_with(*callbacks), trainer={'train_steps': 24, 'optimizer_config': CONSTANT}
  )
  assert rates == pytest.approx([0.1, 0.05])
  with open(tmp_path / 'log.csv', encoding='utf-8') as f:
    rows = list(csv.DictReader(f))
  assert [row['epoch'] for row in rows] == ['0', '1']
  losses = [line['validation_loss'] for line in small_run.events(tmp_path / 'run', 'eval')]
  assert [float(row['val_loss']) for row in rows] == pytest.approx(losses)
  assert (tmp_path / 'best.h5').stat().st_size and list((tmp_path / 'board').rglob('events*'))
  record = small_run.record(tmp_path / 'run')
  assert (record['status'], record['step']) == ('finished', 12)
  assert record['early_stopped'] == 'the Keras callback EarlyStopping has set model.stop_training'
  best = small_run.make_task(small_run.make_params()).build_model()
  best.load_weights(str(tmp_path / 'best.h5'))
  if losses[1] < losses[0]:
    for one, other in zip(best.get_weights(), model.get_weights()):
      np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
  'make, name',
  [
    (tf_keras.callbacks.TerminateOnNaN, 'TerminateOnNaN'),
    (lambda: tf_keras.callbacks.ModelCheckpoint('x', save_freq=10), 'ModelCheckpoint'),
    (lambda: tf_keras.callbacks.LambdaCallback(on_batch_end=print), 'LambdaCallback'),
  ],
)
def test_hooks_of_batches_are_refused(make, name):
  with pytest.raises(errors.UserError, match=f'the Keras callback {name} needs calls at batches'):
    KerasCallback(make(), None)


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: tf_keras.callbacks.EarlyStopping('val_iou'), 'EarlyStopping takes lower values of val_iou for better'),
    (lambda: tf_keras.callbacks.ReduceLROnPlateau('val_auc'), "of which higher is better; give mode='max'"),
    (lambda: tf_keras.callbacks.EarlyStopping('val_loss', mode='max'), "lower is better; give mode='min'"),
    (lambda: tf_keras.callbacks.ModelCheckpoint('x', 'val_f1', save_best_only=True), "give mode='max'"),
  ],
)
def test_a_direction_that_contradicts_the_name_is_refused(make, message):
  with pytest.raises(errors.UserError, match=message):
    keras_callbacks.KerasCallback(make(), None)


def test_a_direction_that_agrees_or_is_unknown():
  keras = tf_keras.callbacks
  for callback in (keras.EarlyStopping(), keras.EarlyStopping('x'), keras.EarlyStopping('val_iou', mode='max')):
    keras_callbacks.KerasCallback(callback, None)
  keras_callbacks.KerasCallback(keras.ModelCheckpoint('x', 'val_f1'), None)


def test_what_is_no_callback():
  with pytest.raises(ValueError, match='is not a tf_keras.callbacks.Callback'):
    KerasCallback(print, None)
