"""run_experiment takes the arguments of Model Garden's, each of which is used or refused with its replacement."""

import inspect

from absl import flags
import gin
from official.core import base_trainer as official_trainer
from official.core import train_lib as official_train_lib
import orbit
import pytest
from tensorboard.backend.event_processing import event_accumulator
import tensorflow as tf
import tf_keras
from tf_keras.src import backend as keras_backend

from official_ext.base import errors
from official_ext.training.loop import base_trainer
from official_ext.training.loop import controller
from official_ext.training.loop import run_options
from official_ext.training.loop import train_lib
from tests import tiers
from tests.training.loop import harness
from tests.training.loop import small_run


class OurTrainer(base_trainer.Trainer):
  pass


class TheirTrainer(official_trainer.Trainer):
  pass


class TheirController(orbit.Controller):
  pass


def make_trainer(task, params, cls):
  with harness.strategy('one').scope():
    return cls(params, task, task.build_model(), task.create_optimizer(params.trainer.optimizer_config))


def run(folder, trainer_cls=None, mode='train_and_eval', **arguments):
  params = small_run.make_params()
  task = small_run.make_task(params)
  if trainer_cls is not None:
    arguments['trainer'] = make_trainer(task, params, trainer_cls)
  return train_lib.run_experiment(harness.strategy('one'), task, mode, params, str(folder), **arguments)


def test_the_arguments_are_model_gardens_in_their_order():
  theirs = list(inspect.signature(official_train_lib.run_experiment).parameters)
  ours = inspect.signature(train_lib.run_experiment).parameters
  assert list(ours)[: len(theirs)] == theirs
  # Later versions of Model Garden may add arguments here.
  assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in list(ours.values())[len(theirs) :])


def tags(folder):
  return set(event_accumulator.EventAccumulator(str(folder)).Reload().Tags()['tensors'])


def test_they_are_used(tmp_path):
  losses, validation_losses = [], []
  summaries = [orbit.utils.SummaryManager(str(tmp_path / name), tf.summary.scalar) for name in ('mine', 'mine_eval')]
  model, _ = run(
    tmp_path / 'run',
    OurTrainer,
    train_actions=[lambda logs: losses.append(float(logs['training_loss']))],
    eval_actions=[lambda logs: validation_losses.append(float(logs['validation_loss']))],
    controller_cls=orbit.Controller,  # Model Garden's default, which callers may pass on.
    summary_manager=summaries[0],
    eval_summary_manager=summaries[1],
    enable_async_checkpointing=False,
  )
  assert losses == pytest.approx([event['training_loss'] for event in small_run.events(tmp_path / 'run', 'train')])
  assert len(validation_losses) == len(small_run.events(tmp_path / 'run', 'eval')) > 0
  assert {'training_loss', 'learning_rate'} <= tags(tmp_path / 'mine')
  assert 'validation_loss' in tags(tmp_path / 'mine_eval')
  assert 'async_checkpointing: false' in (tmp_path / 'run/params.yaml').read_text()
  assert model is not None


def test_a_driver_with_model_gardens_flags_names_the_experiment(tmp_path, monkeypatch):
  """Else `runs list` would show, filter and compare its runs without one."""
  given = flags.FlagValues()
  flags.DEFINE_string('experiment', None, '', flag_values=given)
  assert run_options.origin_by_flag() is None  # These tests parse no flags.
  given(['driver.py', '--experiment=my_iris'])
  monkeypatch.setattr(flags, 'FLAGS', given)
  run(tmp_path)
  assert small_run.record(tmp_path)['experiment'] == 'my_iris'


def test_the_given_trainer_runs(tmp_path):
  params = small_run.make_params()
  task = small_run.make_task(params)
  trainer = make_trainer(task, params, OurTrainer)
  model, _ = train_lib.run_experiment(harness.strategy('one'), task, 'train', params, str(tmp_path), trainer=trainer)
  assert model is trainer.model and int(trainer.global_step.numpy()) == params.trainer.train_steps


def test_a_subclass_of_our_controller_is_used(tmp_path):
  made = []

  class OurController(controller.Controller):
    def __init__(self, **kwargs):
      made.append(self)
      super().__init__(**kwargs)

  run(tmp_path, mode='train', controller_cls=OurController)
  assert len(made) == 1


@pytest.mark.parametrize(
  'arguments, words',
  [
    (dict(trainer_cls=TheirTrainer), 'trainer: TheirTrainer derives from .*; derive it from ext.Trainer'),
    (dict(controller_cls=TheirController), 'controller_cls: TheirController .*train_actions'),
    (
      dict(train_actions=[print], options=run_options.RunOptions(train_actions=[print])),
      'train_actions: given twice, .*options',
    ),
  ],
)
def test_the_others_are_refused_in_one_line(arguments, words, tmp_path):
  with pytest.raises(errors.UserError, match=words) as caught:
    run(tmp_path / 'run', **arguments)
  assert '\n' not in str(caught.value) and not (tmp_path / 'run').exists()


class TaskWithTheirTrainer(small_run.SmallTask):
  trainer_cls = TheirTrainer


def test_a_task_that_names_a_trainer_of_model_gardens_is_refused_before_anything_runs(tmp_path):
  with pytest.raises(errors.UserError, match='^TaskWithTheirTrainer.trainer_cls: .*derive it from ext.Trainer$'):
    small_run.run(tmp_path / 'run', task_cls=TaskWithTheirTrainer)
  assert not (tmp_path / 'run').exists()


@pytest.fixture
def bindings():
  gin.clear_config()
  yield gin.parse_config
  gin.clear_config()


@gin.configurable(module='run_arguments_test')
def uncalled(value=0):
  return value


def test_gin_bindings_that_no_call_used_are_a_warning(bindings, tmp_path, capsys):
  """Those of classes after the build, those of functions at the end, each once."""
  bindings('official.core.base_trainer.Trainer.evaluate = True\nuncalled.value = 1')
  small_run.run(tmp_path, 'train')
  lines = [line for line in capsys.readouterr().err.splitlines() if 'no call used' in line]
  assert [line.partition('no call used ')[2] for line in lines] == [
    'official.core.base_trainer.Trainer.evaluate while the experiment was built; '
    'the trainer here is official_ext.Trainer',
    'run_arguments_test.uncalled.value in this run',
  ]


def test_used_gin_bindings_are_not(bindings, tmp_path, capsys):
  bindings('official_ext.Trainer.max_silent_recompilations = 7')
  small_run.run(tmp_path, 'train')
  assert 'no call used' not in capsys.readouterr().err


@tiers.parametrize(
  ('found', 'recorded', 'message'),
  [(5, 5, ''), (3, None, 'has set the seed 3:'), (None, None, 'has set no seed:')],
  fast=1,
)
def test_the_seed_of_a_driver(found, recorded, message, tmp_path, capsys, monkeypatch):
  """It is that of the run only if the driver has set it."""
  if found is None:
    monkeypatch.delattr(keras_backend._SEED_GENERATOR, 'generator', raising=False)
    tf.random.set_seed(5)  # Not that of initial weights.
  else:
    tf_keras.utils.set_random_seed(found)
  params = small_run.make_params(train_steps=4, runtime={'seed': 5})
  task = small_run.make_task(params)
  train_lib.run_experiment(harness.strategy('one'), task, 'train', params, str(tmp_path))
  assert small_run.record(tmp_path)['seed'] == recorded
  (start,) = small_run.events(tmp_path, 'start')
  assert start['seed'] == (recorded or 'unset')
  printed = capsys.readouterr()
  assert f'seed {recorded or "unset"}' in printed.out
  lines = [line for line in printed.err.splitlines() if 'runtime.seed' in line]
  assert len(lines) == bool(message) and all(message in line and 'Seed of a driver' in line for line in lines)


@pytest.mark.parametrize('decay_steps', [0, -1])
def test_a_driver_without_the_parser_has_its_values_checked(tmp_path, decay_steps):
  # An exponential schedule of -1 steps doubles the rate at each step.
  schedule = {'type': 'exponential', 'exponential': {'initial_learning_rate': 0.1, 'decay_steps': decay_steps}}
  config = {'optimizer': {'type': 'sgd'}, 'learning_rate': schedule}
  path = 'trainer.optimizer_config.learning_rate.exponential.decay_steps'
  with pytest.raises(errors.UserError, match=f'^{path}: '):
    small_run.run(tmp_path, 'train', trainer={'optimizer_config': config})
  assert not list(tmp_path.iterdir())
