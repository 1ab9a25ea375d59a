"""run_experiment: wiring, modes, arguments, records; whole runs of a small task."""

import gc
import math
import threading
import types
import weakref

import numpy as np
from official.core import config_definitions as official_cfg
import orbit
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.base.run_folder import run_status
from official_ext.training.config import definitions
from official_ext.training.config import epochs
from official_ext.training.loop import base_trainer
from official_ext.training.loop import controller
from official_ext.training.loop import train_lib
from tests import file_calls
from tests.training.loop import harness
from tests.training.loop import small_run

ALL_LOGS = {'accuracy', 'validation_loss', 'logit_mean'}


def weights(model):
  return [variable.numpy() for variable in model.trainable_variables]


def steps_of(folder, event, name='events.jsonl'):
  return [line['step'] for line in small_run.events(folder, event, name)]


def test_inputs_that_cannot_be_shared_are_refused_on_two_replicas(tmp_path):
  class WholeBatches(small_run.SmallTask):
    def build_inputs(self, params, context=None):  # Orbit passes `input_context`, by name.
      return super().build_inputs(params, context)

  with pytest.raises(
    errors.UserError, match='^WholeBatches.build_inputs: has no argument input_context, and each of 2'
  ):
    small_run.run(tmp_path / 'two', task_cls=WholeBatches, replicas='two')
  assert not (tmp_path / 'two').exists()
  small_run.run(tmp_path / 'one', 'train', task_cls=WholeBatches, trainer={'train_steps': 1})


# Modes.


@pytest.mark.slow
def test_modes_follow_each_other_in_one_folder(tmp_path):
  model, logs = small_run.run(tmp_path, 'train')
  assert logs == {} and not small_run.events(tmp_path, 'eval')
  assert steps_of(tmp_path, 'train') == [4, 5, 8, 10, 12]
  assert steps_of(tmp_path, 'checkpoint') == [4, 8, 12]
  assert not (tmp_path / 'validation').exists()

  evaluated, logs = small_run.run(tmp_path, 'eval')
  assert set(logs) == ALL_LOGS and steps_of(tmp_path, 'eval', 'events.eval.jsonl') == [12]
  for actual, expected in zip(weights(evaluated), weights(model)):
    np.testing.assert_array_equal(actual, expected)

  _, again = small_run.run(tmp_path, 'continuous_eval')  # Finds training finished.
  assert again == logs and steps_of(tmp_path, 'eval', 'events.continuous_eval.jsonl') == [4, 8, 12]

  _, again = small_run.run(tmp_path, 'train_and_eval')  # Finds nothing to train.
  assert again == logs and steps_of(tmp_path, 'train') == [4, 5, 8, 10, 12]
  assert steps_of(tmp_path, 'eval') == [12]

  _, more = small_run.run(tmp_path, 'train_and_post_eval', trainer={'train_steps': 15})
  assert steps_of(tmp_path, 'train') == [4, 5, 8, 10, 12, 15]
  assert steps_of(tmp_path, 'eval')[-1] == 15 and more['validation_loss'] != logs['validation_loss']
  assert small_run.record(tmp_path)['attempt'] == 3
  assert {path.name for path in tmp_path.glob('run*.json')} == {'run.json', 'run.eval.json', 'run.continuous_eval.json'}


@pytest.mark.slow
def test_train_and_eval_reports_and_returns_the_same(tmp_path):
  # Stock: returns {}.
  _, logs = small_run.run(tmp_path)
  assert steps_of(tmp_path, 'eval') == [6, 12] and steps_of(tmp_path, 'train') == [4, 5, 6, 8, 10, 12]
  last = small_run.events(tmp_path, 'eval')[-1]
  assert {name: last[name] for name in ALL_LOGS} == pytest.approx(logs)
  record = small_run.record(tmp_path)
  assert (record['status'], record['step'], record['step_shape']) == ('finished', 12, 'plain')
  assert small_run.events(tmp_path)[0]['event'] == 'start' and small_run.events(tmp_path)[-1]['event'] == 'finished'


@pytest.mark.slow
def test_one_evaluation_more_after_training(tmp_path):
  _, logs = small_run.run(tmp_path, 'train', run_post_eval=True)
  assert set(logs) == ALL_LOGS and steps_of(tmp_path, 'eval') == [12]


def test_a_mode_that_does_not_exist(tmp_path):
  with pytest.raises(errors.UserError, match='--mode=predict'):
    small_run.run(tmp_path, 'predict')
  assert not list(tmp_path.iterdir())


# Arguments.


def test_actions_trainer_and_controller_of_the_caller(tmp_path):
  losses, validation_losses, made = [], [], []

  class Trainer(base_trainer.Trainer):
    def train_loop_end(self):
      return {**super().train_loop_end(), 'mine': tf.constant(3.0)}

  class Controller(controller.Controller):
    def __init__(self, **kwargs):
      made.append(self)
      super().__init__(**kwargs)

  params = small_run.make_params()
  task = small_run.make_task(params)
  with harness.strategy('one').scope():
    optimizer = task.create_optimizer(params.trainer.optimizer_config)
    trainer = Trainer(params, task, task.build_model(), optimizer)
  model, _ = train_lib.run_experiment(
    harness.strategy('one'),
    task,
    'train_and_eval',
    params,
    str(tmp_path),
    options=train_lib.RunOptions(
      trainer=trainer,
      controller_cls=Controller,
      train_actions=[lambda logs: losses.append(float(logs['training_loss']))],
      eval_actions=[lambda logs: validation_losses.append(float(logs['validation_loss']))],
    ),
  )
  assert model is trainer.model and len(made) == 1 and made[0].trainer is trainer
  assert [event['mine'] for event in small_run.events(tmp_path, 'train')] == [3.0] * 6
  assert losses == pytest.approx([event['training_loss'] for event in small_run.events(tmp_path, 'train')])
  assert validation_losses == pytest.approx([event['validation_loss'] for event in small_run.events(tmp_path, 'eval')])


def test_an_action_under_a_condition(tmp_path):
  """orbit's own conditional actions work."""
  called = []
  action = orbit.actions.ConditionalAction(
    condition=lambda logs: logs['training_loss'] < 0, action=lambda logs: called.append(logs)
  )
  small_run.run(tmp_path, 'train', train_actions=[action])
  assert not called


@pytest.mark.slow
def test_no_summaries_where_none_are_wanted(tmp_path):
  small_run.run(tmp_path, save_summary=False)
  assert not list(tmp_path.rglob('*tfevents*')) and small_run.events(tmp_path, 'eval')


@pytest.mark.slow
def test_a_checkpoint_to_start_from(tmp_path):
  small_run.run(tmp_path / 'a', 'train')
  small_run.run(tmp_path / 'b', 'train', checkpoint=str(tmp_path / 'a/ckpt-8'))
  assert steps_of(tmp_path / 'b', 'restored') == [8] and steps_of(tmp_path / 'b', 'train') == [10, 12]
  expected, actual = (tf.train.load_checkpoint(str(tmp_path / name / 'ckpt-12')) for name in 'ab')
  kernel = 'model/layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE'
  np.testing.assert_array_equal(actual.get_tensor(kernel), expected.get_tensor(kernel))


def test_a_plain_configuration_of_model_garden(tmp_path):
  params = small_run.make_params()
  plain = official_cfg.ExperimentConfig(
    task=params.task,
    trainer=official_cfg.TrainerConfig(
      train_steps=6,
      steps_per_loop=3,
      checkpoint_interval=6,
      summary_interval=3,
      validation_interval=6,
      optimizer_config=params.trainer.optimizer_config.as_dict(),
    ),
  )
  small_run.run(tmp_path, params=plain)
  assert steps_of(tmp_path, 'train') == [3, 6]


# Length.


@pytest.mark.parametrize(
  'num_epochs, batch_size, accumulation, expected',
  [(2, 8, 1, 16), (2.5, 8, 1, 20), (1, 24, 1, math.ceil(64 / 24)), (1, 8, 2, 4), (0.01, 8, 1, 1)],
)
def test_epochs_become_steps(num_epochs, batch_size, accumulation, expected):
  params = small_run.make_params(train_steps=0, train_epochs=num_epochs, gradient_accumulation_steps=accumulation)
  params.task.train_data.global_batch_size = batch_size
  task = small_run.make_task(params)
  definitions.lock(params)
  steps = epochs.in_steps(params.trainer, params.task, task)
  assert params.replace(trainer=steps).trainer.train_steps == expected


def test_epochs_are_logged(tmp_path):
  small_run.run(tmp_path, 'train', trainer={'train_steps': 0, 'train_epochs': 2})
  assert steps_of(tmp_path, 'checkpoint')[-1] == 16
  epoch_at = {event['step']: event['epoch'] for event in small_run.events(tmp_path, 'train')}
  assert epoch_at[8] == 1.0 and epoch_at[16] == 2.0
  assert small_run.record(tmp_path)['train_steps'] == 16


def test_epochs_need_a_task_that_knows_its_data(tmp_path):

  class Unknowing(small_run.SmallTask):
    def num_examples(self, params):
      return None

  with pytest.raises(errors.UserError, match='trainer.train_epochs: Unknowing does not know the number'):
    small_run.run(tmp_path / 'run', task_cls=Unknowing, trainer={'train_steps': 0, 'train_epochs': 2})
  assert not (tmp_path / 'run').exists()


# The best checkpoint's metric.


class ReducingTask(small_run.SmallTask):
  """Has a metric that only the end of an evaluation knows."""

  def aggregate_logs(self, state=None, step_outputs=None):
    return (state or 0) + 1

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    return {'batches': float(aggregated_logs)}


def best(metric, **kwargs):
  return {'best_checkpoint_export_subdir': 'best', 'best_checkpoint_eval_metric': metric, **kwargs}


@pytest.mark.slow
@pytest.mark.parametrize(
  'metric, task_cls',
  harness.cases(
    [('logit_mean', small_run.SmallTask), ('batches', ReducingTask)],
    soak=[('accuracy', small_run.SmallTask), ('validation_loss', small_run.SmallTask)],
  ),
)
def test_any_metric_that_is_reported_can_choose_the_best(metric, task_cls, tmp_path):
  _, logs = small_run.run(tmp_path, task_cls=task_cls, trainer=best(metric))
  values = [event[metric] for event in small_run.events(tmp_path, 'eval')]
  assert float(logs[f'best_{metric}']) == pytest.approx(max(values))


def test_a_metric_that_is_not_reported_is_refused_at_the_start(tmp_path):
  # Stock: KeyError after the first whole evaluation.
  with pytest.raises(errors.UserError) as raised:
    small_run.run(tmp_path / 'run', trainer=best('acuracy'))
  assert str(raised.value) == (
    'trainer.best_checkpoint_eval_metric: acuracy: did you mean accuracy? SmallTask reports '
    'accuracy, logit_mean, validation_loss'
  )
  assert not (tmp_path / 'run').exists()


# How a run ends.


class InterruptionError(BaseException):
  """Replaces the function that ends a run at once, and leaves it no time to save."""


def interrupt_at(step):

  def action(logs):
    if int(logs['model_global_step']) == step:
      raise InterruptionError(f'at {step}')

  return action


def test_a_run_that_fails_reports_it(tmp_path):
  with pytest.raises(InterruptionError):
    small_run.run(tmp_path, train_actions=[interrupt_at(10)])
  record = small_run.record(tmp_path)
  assert (record['status'], record['error'], record['step']) == ('failed', 'InterruptionError: at 10', 10)
  last = small_run.events(tmp_path)[-1]
  assert (last['event'], last['step'], last['error']) == ('failed', 10, 'InterruptionError: at 10')
  assert run_status.TrainingWatch(str(tmp_path)).has_ended()


# On two replicas: tests/training/loop/resume_test.py.
@pytest.mark.slow
@pytest.mark.parametrize('replicas', harness.cases(['one'], soak=['two']))
def test_an_interrupted_run_ends_as_the_straight_one(replicas, tmp_path):
  straight, logs = small_run.run(tmp_path / 'straight', replicas=replicas)
  with pytest.raises(InterruptionError):
    small_run.run(tmp_path / 'resumed', replicas=replicas, train_actions=[interrupt_at(10)])
  resumed, resumed_logs = small_run.run(tmp_path / 'resumed', replicas=replicas)
  for actual, expected in zip(weights(resumed), weights(straight)):
    np.testing.assert_array_equal(actual, expected)
  assert resumed_logs == logs
  assert steps_of(tmp_path / 'resumed', 'restored') == [8]
  names = ('step', 'training_loss', 'accuracy', 'grad_norm', 'learning_rate')
  expected, actual = (
    [tuple(event[name] for name in names) for event in small_run.events(tmp_path / name, 'train')]
    for name in ('straight', 'resumed')
  )
  assert actual == expected  # The first run ended in an action, which comes before the log.


def saving_threads():
  """The threads that write checkpoints of this process; one that has ended has no target."""
  found = [thread for thread in threading.enumerate() if isinstance(getattr(thread, '_target', None), types.MethodType)]
  return [thread for thread in found if type(thread._target.__self__).__name__ == 'AsyncCheckpointHelper']


@pytest.mark.slow
def test_a_run_lets_go_of_its_trainer(tmp_path):
  before = set(saving_threads())
  params, strategy = small_run.make_params(), harness.strategy('one')
  task = small_run.make_task(params)
  with strategy.scope():
    optimizer = task.create_optimizer(params.trainer.optimizer_config)
    trainer = base_trainer.Trainer(params, task, task.build_model(), optimizer)
  for steps in (8, 12):  # The second run saves by another thread.
    changed = params.replace(trainer={'train_steps': steps})
    train_lib.run_experiment(
      strategy, task, 'train', changed, str(tmp_path), options=train_lib.RunOptions(trainer=trainer)
    )
    for thread in set(saving_threads()) - before:
      thread.join(60)
    assert set(saving_threads()) <= before
    tf.train.load_checkpoint(str(tmp_path / f'ckpt-{steps}'))
  known = weakref.ref(trainer)
  del trainer, optimizer
  gc.collect()
  assert known() is None


@pytest.mark.slow
def test_a_checkpoint_is_waited_for_before_a_run_has_finished(tmp_path):
  small_run.run(tmp_path, 'train', trainer={'async_checkpointing': True})
  for step in (4, 8, 12):
    tf.train.load_checkpoint(str(tmp_path / f'ckpt-{step}'))


def test_events_are_on_the_disk_before_the_checkpoint_behind_them(tmp_path):
  with file_calls.recorded() as calls:
    small_run.run(tmp_path, trainer={'async_checkpointing': False})
  manifests = [n for n, call in enumerate(calls) if call[0] == 'rename' and call[2].endswith('.manifest.json')]
  assert len(manifests) == 3  # Of steps 4, 8 and 12.
  for before, after in zip([0, *manifests], manifests):
    marks = [n for n in range(before, after) if calls[n][0] == 'sync' and calls[n][1].endswith('.unfinished')]
    assert ('sync', f'{tmp_path}/events.jsonl') in calls[before : marks[0]], calls[before:after]
