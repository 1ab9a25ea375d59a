"""Stop signals to this process: when a run stops, its saves, and its resumption."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.training.devices import signals
from tests import tiers
from tests.training.loop import harness
from tests.training.loop import small_run


def signal_from(number, step=0, evaluation_batch=0):
  """A task that sends this process a signal: in training step `step`, or in its so many-th batch of evaluation."""
  batches = []

  def send_if(is_now):
    if is_now:
      os.kill(os.getpid(), number)
    return np.int32(0)

  def send_in_time():
    batches.append(0)
    return send_if(len(batches) == evaluation_batch)

  class SignalTask(small_run.SmallTask):
    def forward(self, inputs, model, training):
      loss, logs = super().forward(inputs, model, training)
      if training:
        sent = tf.numpy_function(send_if, [tf.equal(self.step + 1, step)], tf.int32)
      else:
        sent = tf.numpy_function(send_in_time, [], tf.int32)
      with tf.control_dependencies([sent]):
        return tf.identity(loss), logs

  return SignalTask


# The harness has 8 validation examples: 4 batches of 2.
TRAINER = {'validation_interval': 6, 'checkpoint_interval': 4}


def run(folder, task_cls=small_run.SmallTask, mode='train_and_eval'):
  params = small_run.make_params(**TRAINER)
  params.task.validation_data.global_batch_size = 2
  with signals.PreemptionWatch() as watch:
    return small_run.run(folder, mode, task_cls, params=params, watch=watch)


def evaluations(folder):
  return [(event['step'], event['validation_loss']) for event in small_run.events(folder, 'eval')]


@pytest.fixture(scope='module')
def straight(tmp_path_factory):
  """(variables, evaluations) of a run without a signal."""
  folder = tmp_path_factory.mktemp('straight')
  model, _ = run(folder)
  return [variable.numpy() for variable in model.variables], evaluations(folder)


@tiers.parametrize(
  'step, saved, number',
  harness.cases(
    [(1, 4, signal.SIGTERM), (5, 5, signal.SIGINT), (12, 12, signal.SIGTERM)],
    soak=[(1, 4, signal.SIGINT), (5, 5, signal.SIGTERM), (12, 12, signal.SIGINT)],
  ),
  fast=1,
)
def test_a_signal_in_training_saves_at_the_end_of_the_loop(step, saved, number, straight, tmp_path):
  folder = tmp_path
  with pytest.raises(errors.PreemptedError, match=f'{signal.Signals(number).name}: stopped at step {saved}. The same'):
    run(folder, signal_from(number, step))
  assert small_run.record(folder)['status'] == 'preempted'
  assert small_run.events(folder)[-1]['event'] == 'preempted'
  assert small_run.events(folder, 'checkpoint')[-1]['step'] == saved
  resumed, _ = run(folder)
  variables, expected = straight
  assert evaluations(folder) == expected
  for one, other in zip(variables, resumed.variables, strict=True):
    np.testing.assert_array_equal(one, other.numpy())


@pytest.mark.parametrize('step', harness.cases([6], soak=[12]))
def test_a_signal_in_an_evaluation_leaves_it_to_the_next_start(step, straight, tmp_path):
  folder = tmp_path
  with pytest.raises(errors.PreemptedError, match=f'SIGTERM: stopped at step {step}'):
    run(folder, signal_from(signal.SIGTERM, evaluation_batch=step // 6 * 4 - 2))
  assert [at for at, _ in evaluations(folder)] == [6][: step // 12]
  assert small_run.events(folder, 'checkpoint')[-1]['step'] == step
  run(folder)
  assert evaluations(folder) == straight[1]
  assert small_run.events(folder, 'restored')[-1]['step'] == step


@pytest.mark.slow
def test_an_evaluation_alone_stops_and_saves_nothing(tmp_path):
  run(tmp_path)
  before = sorted(path.name for path in tmp_path.glob('ckpt-*'))
  for mode in ('eval', 'continuous_eval'):
    with pytest.raises(errors.PreemptedError, match='SIGTERM'):
      run(tmp_path, signal_from(signal.SIGTERM, evaluation_batch=1), mode)
    assert small_run.record(tmp_path, f'run.{mode}.json')['status'] == 'preempted'
    assert not small_run.events(tmp_path, 'eval', f'events.{mode}.jsonl')
  assert sorted(path.name for path in tmp_path.glob('ckpt-*')) == before


@pytest.mark.slow
def test_averaged_weights_are_put_back_where_an_evaluation_is_left(tmp_path):
  params = small_run.make_params(**TRAINER)
  optimizer = params.trainer.optimizer_config.as_dict() | {'ema': {'average_decay': 0.5}}
  params = params.replace(trainer={'optimizer_config': optimizer})
  straight, _ = small_run.run(tmp_path / 'straight', params=params)
  with pytest.raises(errors.PreemptedError), signals.PreemptionWatch() as watch:
    task_cls = signal_from(signal.SIGTERM, evaluation_batch=1)
    small_run.run(tmp_path / 'run', task_cls=task_cls, params=params, watch=watch)
  resumed, _ = small_run.run(tmp_path / 'run', params=params)
  for one, other in zip(straight.variables, resumed.variables):
    np.testing.assert_array_equal(one.numpy(), other.numpy())
  harness.assert_close(
    [value for _, value in evaluations(tmp_path / 'run')],
    [value for _, value in evaluations(tmp_path / 'straight')],
    0,
    0,
  )


def test_the_handlers_of_before_are_put_back():
  before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
  with signals.PreemptionWatch() as watch:
    assert watch.requested is None
    os.kill(os.getpid(), signal.SIGINT)
    assert watch.requested == 'SIGINT'
  assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_forked_process_is_not_the_run():
  """A worker of a data loader ends by SIGTERM, and a signal to all of a group is one signal to the run."""
  before = signal.getsignal(signal.SIGTERM)
  try:
    with signals.PreemptionWatch() as watch:
      reader, writer = os.pipe()
      child = os.fork()
      if not child:
        os.write(writer, b'.')
        while True:
          time.sleep(0.05)
      assert os.read(reader, 1) == b'.'
      os.kill(child, signal.SIGTERM)
      _, status = os.waitpid(child, 0)
      assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
      assert watch.requested is None
  finally:
    os.close(reader)
    os.close(writer)
  assert signal.getsignal(signal.SIGTERM) == before


def _threads():
  return [thread for thread in threading.enumerate() if thread.name == 'preemption']


def test_its_thread_ends_while_a_forked_process_lives():
  # Before: the child held the other end of the thread's pipe.
  for thread in _threads():  # Of earlier watches, which end a moment after them.
    thread.join(10)
  with signals.PreemptionWatch():
    (thread,) = _threads()
    child = os.fork()
    if not child:
      signal.pause()
      os._exit(0)
  thread.join(10)
  lives = thread.is_alive()
  os.kill(child, signal.SIGKILL)
  os.waitpid(child, 0)
  assert not lives


@pytest.fixture
def handled():
  """Puts the handlers of signals back."""
  before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
  yield
  for number, handler in before.items():
    signal.signal(number, handler)


@pytest.mark.parametrize(('handler', 'found'), [(signal.SIG_DFL, 'SIGHUP'), (signal.SIG_IGN, None)])
def test_the_end_of_the_terminal_stops_what_was_not_started_by_nohup(handler, found, handled):
  signal.signal(signal.SIGHUP, handler)
  with signals.PreemptionWatch() as watch:
    os.kill(os.getpid(), signal.SIGHUP)
    assert watch.requested == found
  assert signal.getsignal(signal.SIGHUP) == handler


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_what_has_nothing_to_save_is_interrupted(number, handled):
  signal.signal(signal.SIGINT, signal.default_int_handler)
  signal.signal(signal.SIGHUP, signal.SIG_DFL)
  before = signal.getsignal(number)
  with pytest.raises(KeyboardInterrupt), signals.interrupting():
    os.kill(os.getpid(), number)
    signal.sigtimedwait([], 5)  # Returns at the signal, or never.
  assert signal.getsignal(number) == before
