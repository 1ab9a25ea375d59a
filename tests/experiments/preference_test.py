"""The experiment preference: losses and measures by the formulas, the reference, and resuming."""

import math

import numpy as np
import pytest

from experiments import preference  # noqa: F401  Registers it.
from official_ext.base import errors
from tests.experiments import shrunk_run
from tests.training.loop import harness

SMALL = {
  'task': {
    'model': {
      'vocab_size': 300,
      'hidden_size': 16,
      'intermediate_size': 24,
      'num_hidden_layers': 2,
      'num_attention_heads': 2,
      'num_key_value_heads': 2,
    },
    'train_data': {'global_batch_size': 4, 'seq_length': 64},
    'validation_data': {'global_batch_size': 4, 'seq_length': 64},
  }
}
DPO = {'task': {'losses': {'dpo': {'weight': 1.0, 'beta': 0.3}}}}
ORPO = {
  'task': {'losses': {'dpo': {'weight': 0.0}, 'orpo': {'weight': 1.0, 'beta': 0.2}, 'label': {'weight': 1.0}}},
}


def make_params(*changes, **kwargs):
  return shrunk_run.make_params('preference', SMALL, *changes, **kwargs)


def moved(model):
  """The model after something that changed every weight."""
  rng = np.random.default_rng(0)
  for variable in model.trainable_variables:
    variable.assign_add(rng.normal(0, 0.1, variable.shape))
  return model


def log_probs_of(model, ids):
  """By the formula: of every token but the first, float64 [b, t - 1]."""
  logits = model(ids).numpy().astype(np.float64)[:, :-1]
  logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
  return np.take_along_axis(logits, ids[:, 1:, None], axis=-1)[..., 0]


def answers(batch, kind):
  """(ids, where the answer's tokens are): no row is padded in front, so that padding changes nothing before it."""
  ids, labels = (batch[f'{kind}_{name}'].numpy() for name in ('input_ids', 'labels'))
  return ids, labels[:, 1:] != -100


def log_sigmoid(x):
  return -np.log1p(np.exp(-x))


@pytest.fixture(scope='module')
def dpo():
  task = shrunk_run.make_task(make_params(DPO))
  model = task.build_model()
  (batch,) = task.build_inputs(task.config.validation_data).take(1)
  before = {kind: log_probs_of(model, answers(batch, kind)[0]) for kind in ('chosen', 'rejected')}
  return task, moved(model), batch, before


def test_dpo_holds_answers_against_what_the_model_was(dpo):
  task, model, batch, before = dpo
  loss, logs = task.forward(batch, model, training=False)
  gains = {}
  for kind in ('chosen', 'rejected'):
    ids, is_answer = answers(batch, kind)
    gains[kind] = ((log_probs_of(model, ids) - before[kind]) * is_answer).sum(1)
  margins = 0.3 * (gains['chosen'] - gains['rejected'])
  assert np.abs(margins).max() > 0.1
  assert float(loss) == pytest.approx(-log_sigmoid(margins).mean(), rel=1e-4)
  assert float(logs['dpo_loss']) == float(loss)
  for kind in ('chosen', 'rejected'):
    assert float(logs[f'rewards/{kind}']) == pytest.approx(0.3 * gains[kind].mean(), rel=1e-3)
  assert float(logs['rewards/margins']) == pytest.approx(margins.mean(), rel=1e-3)
  np.testing.assert_array_equal(logs['accuracy'][0], (margins > 0).astype(np.float32))


@pytest.mark.parametrize('on_prompt', [False, True])
def test_orpo_is_the_odds_of_the_answers_beside_the_chosen_ones_label(on_prompt):
  task = shrunk_run.make_task(make_params(ORPO, {'task': {'label_on_prompt': on_prompt}}))
  model = moved(task.build_model())
  (batch,) = task.build_inputs(task.config.validation_data).take(1)
  loss, logs = task.forward(batch, model, training=False)
  means = {}
  for kind in ('chosen', 'rejected'):
    ids, is_answer = answers(batch, kind)
    means[kind] = (log_probs_of(model, ids) * is_answer).sum(1) / is_answer.sum(1)
  odds = {kind: mean - np.log1p(-np.exp(mean)) for kind, mean in means.items()}
  expected = -0.2 * log_sigmoid(odds['chosen'] - odds['rejected']).mean()
  assert float(logs['orpo_loss']) == pytest.approx(expected, rel=1e-4)
  ids, is_learned = answers(batch, 'chosen')
  if on_prompt:
    is_learned = batch['chosen_segment_ids'].numpy()[:, 1:] > 0
    assert is_learned.sum() > answers(batch, 'chosen')[1].sum()
  label = -(log_probs_of(model, ids) * is_learned).sum() / is_learned.sum()
  assert float(logs['label_loss']) == pytest.approx(label, rel=1e-4)
  assert float(loss) == pytest.approx(expected + label, rel=1e-4)
  assert float(logs['rewards/chosen']) == pytest.approx(0.2 * means['chosen'].mean(), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('replicas, enable_xla', shrunk_run.CONTINUATIONS)
def test_a_restored_run_goes_on_bit_for_bit_and_against_the_first_weights(replicas, enable_xla, tmp_path):
  held = shrunk_run.assert_goes_on_bit_for_bit(make_params(DPO, enable_xla=enable_xla), tmp_path, replicas)
  assert sum('reference' in name for name in held) == 2 * 9 + 3  # Two layers; embedding, norm and head.


@pytest.mark.soak
def test_pairs_are_learned(tmp_path):
  trainer = shrunk_run.make_trainer(make_params(DPO, {'task': {'train_data': {'max_samples': 8}}}, train_steps=40))
  first, last = harness.train(trainer, 2), None
  for _ in range(4):
    last = harness.train(trainer, 5)
  assert float(first['training_loss']) == pytest.approx(math.log(2), abs=0.05)
  assert float(last['training_loss']) < 0.8 * math.log(2) and float(last['accuracy']) > 0.8


@pytest.mark.soak
def test_two_replicas_learn_what_one_does():
  found = []
  for replicas in ('one', 'two'):
    trainer = shrunk_run.make_trainer(make_params(DPO), replicas)
    logs = harness.train(trainer, 2)
    found.append([logs['training_loss'], logs['rewards/margins'], *harness.weights_of(trainer)])
  harness.assert_close(found[1], found[0], rtol=1e-3, atol=1e-5)


def test_a_loss_that_pairs_do_not_have_is_refused():
  with pytest.raises(errors.UserError, match='task.losses.grpo.weight: this task has dpo, label, orpo, z_loss, and no'):
    params = make_params({'task': {'losses': {'grpo': {'weight': 1.0}}}})
    params.task.check_values('task')
