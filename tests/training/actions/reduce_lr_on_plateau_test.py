"""ReduceLROnPlateau: as Keras' own, in every kind of optimizer, schedule and step, and exact over a kill."""

import math

import numpy as np
import pytest
import tf_keras

from official_ext.base import errors
from official_ext.base.run_folder import metric_direction
from official_ext.training.actions import plateau
from official_ext.training.actions import triggers
from official_ext.training.config import checks
from official_ext.training.config import definitions
from official_ext.training.loop import run_checks
from official_ext.training.optimization import schedules
from tests.training.loop import harness
from tests.training.loop import small_run

# By step. Not better than at 4 at 6 and 8, and again at 10 and 12.
SCORES = {2: 0.1, 4: 0.5, 6: 0.4, 8: 0.45, 10: 0.5, 12: 0.3}
PLATEAU = {'metric': 'score', 'mode': 'max', 'patience': 2, 'factor': 0.5}
TRAINER = {'validation_interval': 2, 'checkpoint_interval': 2, 'steps_per_loop': 2, 'reduce_lr_on_plateau': PLATEAU}
CONSTANT = {'type': 'constant', 'constant': {'learning_rate': 0.1}}
COSINE = {'type': 'cosine', 'cosine': {'initial_learning_rate': 0.1, 'decay_steps': 20}}


class KilledError(BaseException):
  pass


class ScoredTask(small_run.SmallTask):
  """Reports SCORES."""

  def aggregate_logs(self, state=None, step_outputs=None):
    return state or {'batches': 1}

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    return {'score': SCORES[int(global_step.numpy())]}


class KilledTask(ScoredTask):
  """Dies in the evaluation at 10, after the first reduction and its checkpoint."""

  def build_actions(self, trainer):

    def die(logs):
      if logs['step'] == 10:
        raise KilledError

    return [triggers.OnEvent('eval', die)]


@pytest.mark.parametrize(
  'config',
  [
    {},
    {'mode': 'max'},
    {'patience': 1, 'cooldown': 2},
    {'patience': 0},
    {'min_delta': 0.3},
    {'min_lr': 0.02},
    {'patience': 3, 'cooldown': 1, 'min_lr': 1e-3},
  ],
)
def test_as_the_callback_of_keras(config):
  """On random numbers, after every one of which the learning rates agree."""
  config = {'factor': 0.5, 'patience': 2, 'mode': 'min', 'min_delta': 1e-4, **config}
  theirs = tf_keras.callbacks.ReduceLROnPlateau('loss', **config)
  model = tf_keras.Sequential([tf_keras.Input((1,)), tf_keras.layers.Dense(1)])
  model.compile(tf_keras.optimizers.legacy.SGD(0.1))
  theirs.set_model(model)
  theirs.on_train_begin()
  scale = schedules.LearningRateScale(tf_keras.optimizers.legacy.SGD(0.1))
  ours = plateau.ReduceLROnPlateau(definitions.ReduceLROnPlateauConfig(metric='loss', **config), scale)
  rng = np.random.default_rng(1)
  rates = []
  for step in range(1, 40):
    value = float('nan') if step == 20 else float(rng.integers(0, 8))
    theirs.on_epoch_end(step, {'loss': value})
    ours({'step': step, 'loss': value})
    rates.append(scale.learning_rate())
    assert rates[-1] == pytest.approx(float(model.optimizer.lr.numpy()), rel=1e-5), step
  assert len(set(rates)) > 2


def run(folder, task_cls=ScoredTask, optimizer='sgd', schedule=CONSTANT, replicas='one', xla=False, **trainer):
  params = small_run.make_params(
    **{**TRAINER, **trainer},
    runtime={'enable_xla': xla},
    optimizer_config={'optimizer': {'type': optimizer}, 'learning_rate': schedule},
  )
  return small_run.run(folder, task_cls=task_cls, params=params, replicas=replicas)[0]


def rates(folder):
  return {line['step']: line['learning_rate'] for line in small_run.events(folder, 'train')}


@pytest.mark.slow
@pytest.mark.parametrize(
  'optimizer, schedule, replicas, xla',
  harness.cases(
    fast=[('sgd_experimental', COSINE, 'two', False)],
    soak=[
      ('adam', CONSTANT, 'one', True),
      ('sgd', COSINE, 'one', False),
      ('adam_experimental', CONSTANT, 'one', True),
      ('adamw', COSINE, 'two', True),
      ('lamb', CONSTANT, 'one', True),
      ('sgd_experimental', CONSTANT, 'two', True),
    ],
  ),
)
def test_a_killed_run_resumes_with_the_lowered_rate(optimizer, schedule, replicas, xla, tmp_path):
  straight = run(tmp_path / 'a', optimizer=optimizer, schedule=schedule, replicas=replicas, xla=xla)
  reduced = small_run.events(tmp_path / 'a', 'learning_rate_reduced')
  assert [line['step'] for line in reduced] == [8, 12]
  # The log of a new optimizer with a schedule is the last update's rate, of others the next update's.
  late = optimizer.endswith('experimental') and schedule is COSINE
  for step, rate in rates(tmp_path / 'a').items():
    scheduled = 0.05 * (1 + math.cos(math.pi * (step - late) / 20)) if schedule is COSINE else 0.1
    assert rate == pytest.approx(scheduled * (0.5 if step > 8 else 1.0), rel=1e-4), step
  with pytest.raises(KilledError):
    run(tmp_path / 'b', KilledTask, optimizer, schedule, replicas, xla)
  resumed = run(tmp_path / 'b', optimizer=optimizer, schedule=schedule, replicas=replicas, xla=xla)
  assert [line['step'] for line in small_run.events(tmp_path / 'b', 'restored')] == [8]
  assert rates(tmp_path / 'b') == rates(tmp_path / 'a')
  for one, other in zip(straight.variables, resumed.variables):
    np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.slow
def test_the_rate_that_is_logged_is_the_rate_that_is_used():
  """Softmax regression by the formulas."""
  for optimizer_cls in (tf_keras.optimizers.legacy.SGD, tf_keras.optimizers.SGD):
    for rate in (0.1, tf_keras.optimizers.schedules.PolynomialDecay(0.1, 10)):
      trainer = harness.make_trainer(optimizer=lambda cls=optimizer_cls, rate=rate: cls(rate), steps_per_execution=2)
      with trainer.strategy.scope():
        scale = schedules.LearningRateScale(trainer.optimizer)
      harness.train(trainer, 2)
      weights, used = harness.weights_of(trainer), scale.learning_rate() * 0.25
      scale.assign(0.25)
      assert scale.learning_rate() == pytest.approx(used)
      _, gradients, _ = harness.softmax_regression(weights, harness.global_batch(harness.make_data(64), 2, 8))
      harness.train(trainer, 1)
      harness.assert_close(
        harness.weights_of(trainer), [w - used * g for w, g in zip(weights, gradients)], rtol=1e-5, atol=1e-7
      )


@pytest.mark.slow
def test_a_checkpoint_from_before_is_read_and_a_changed_rate_is_lowered_too(tmp_path):
  """Switched on, and given another learning rate, between two starts."""
  run(tmp_path, reduce_lr_on_plateau={}, train_steps=4)
  run(
    tmp_path,
    train_steps=12,
    schedule={'type': 'constant', 'constant': {'learning_rate': 0.2}},
    reduce_lr_on_plateau={**PLATEAU, 'mode': 'min'},
  )
  assert rates(tmp_path)[6] == pytest.approx(0.2)
  assert [line['step'] for line in small_run.events(tmp_path, 'learning_rate_reduced')] == [10]
  assert rates(tmp_path)[12] == pytest.approx(0.1)


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'factor': 1.0}, r'factor: expected between 0 and 1, got 1\.0'),
    ({'patience': -1}, 'patience: expected at least 0, got -1'),
    ({'min_lr': -0.1}, 'min_lr: expected at least 0'),
    ({'mode': 'best'}, "mode: 'best' is not one of"),
    (
      {'metric': 'elbo', 'mode': 'auto'},
      'mode: the name elbo does not imply whether higher or lower is better; set it to max or min',
    ),
    ({'metric': 'fid_score', 'mode': 'max'}, 'mode: max contradicts the name fid_score, of which lower is better'),
  ],
)
def test_mistakes(fields, message):
  params = small_run.make_params(reduce_lr_on_plateau={'metric': 'score', **fields})
  with pytest.raises(errors.UserError, match=f'^trainer.reduce_lr_on_plateau.{message}'):
    checks.check(params, None)


def test_it_needs_evaluations(tmp_path):
  params = small_run.make_params(reduce_lr_on_plateau={'metric': 'accuracy'})
  with pytest.raises(errors.UserError, match='^trainer.reduce_lr_on_plateau.metric: accuracy: mode train does not'):
    run_checks.check_metrics(params.trainer, None, None, 'train', evaluates=False)


def test_what_is_better_of_a_metric():
  for metric, mode in [('validation_loss', 'min'), ('top_5_accuracy', 'max'), ('wer', 'min'), ('heads/a/f1', 'max')]:
    assert metric_direction.mode_of(metric) == mode
  assert metric_direction.mode_of('validation_loss', 'max') == 'max'
  with pytest.raises(ValueError, match='does not imply whether higher or lower is better'):
    metric_direction.mode_of('elbo')
