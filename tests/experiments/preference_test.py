"""The experiment preference: losses and measures by the formulas, the reference, and resuming."""

import json
import math
import re
import time

import numpy as np
import pytest
import tensorflow as tf

from experiments import preference
from experiments.preference import unpaired
from official_ext.base import errors
from tests import tiers
from tests import train_processes
from tests.experiments import shrunk_run
from tests.soak import comparison
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


def gains_of(model, batch, before):
  """(sums, means) over the tokens of answers of the gain on `before`, and of log-probabilities: by kind of answer."""
  found = {}
  for kind in ('chosen', 'rejected'):
    ids, is_answer = answers(batch, kind)
    now = log_probs_of(model, ids)
    counts = is_answer.sum(1)
    found[kind] = {
      'gain': ((now - before[kind]) * is_answer).sum(1) / counts,
      'sum': (now * is_answer).sum(1),
      'mean': (now * is_answer).sum(1) / counts,
      'label': now[is_answer].mean(),
    }
  return found


def difference(found, name):
  return found['chosen'][name] - found['rejected'][name]


# Loss -> (its settings, its value and the rewards by the paper's formula).
FORMULAS = {
  'ipo': ({'beta': 0.4}, lambda found: ((difference(found, 'gain') - 1.25) ** 2).mean(), 0.4, 'gain'),
  'simpo': (
    {'beta': 2.5, 'gamma': 0.7},
    lambda found: -log_sigmoid(2.5 * difference(found, 'mean') - 0.7).mean(),
    2.5,
    'mean',
  ),
  'cpo': (
    {'beta': 0.2},
    lambda found: -log_sigmoid(0.2 * difference(found, 'sum')).mean() - found['chosen']['label'],
    0.2,
    'sum',
  ),
}


@tiers.parametrize('name', list(FORMULAS), fast=1)
def test_a_method_by_name_is_its_papers_formula(name):
  parameters, formula, beta, of_rewards = FORMULAS[name]
  task = shrunk_run.make_task(make_params({'task': {'loss_type': name, 'losses': {name: parameters}}}))
  model = task.build_model()
  (batch,) = task.build_inputs(task.config.validation_data).take(1)
  before = {kind: log_probs_of(model, answers(batch, kind)[0]) for kind in ('chosen', 'rejected')}
  loss, logs = task.forward(batch, moved(model), training=False)
  found = gains_of(model, batch, before)
  assert float(loss) == pytest.approx(formula(found), rel=1e-4)
  # A margin is a small difference of log-probabilities of about 6, each rounded by 3e-7.
  expected = pytest.approx(beta * difference(found, of_rewards).mean(), rel=1e-3, abs=1e-5)
  assert float(logs['rewards/margins']) == expected
  np.testing.assert_array_equal(logs['accuracy'][0], (difference(found, of_rewards) > 0).astype(np.float32))


@pytest.mark.parametrize(
  'name, weights, expected',
  [
    ('cpo', {}, {'cpo': 1, 'label': 1}),
    ('cpo', {'label': 0}, {'cpo': 1}),  # TRL's cpo_alpha=0.
    ('orpo', {'label': 0.5}, {'orpo': 1, 'label': 0.5}),
    ('simpo', {'label': 1, 'simpo': 2}, {'simpo': 2, 'label': 1}),
    ('dpo', {}, {'dpo': 1}),
    ('', {'dpo': 0, 'ipo': 3}, {'ipo': 3}),
  ],
)
def test_a_weight_that_is_set_takes_the_place_of_the_methods(name, weights, expected):
  losses = {loss: {'weight': weight} for loss, weight in weights.items()}
  config = make_params({'task': {'loss_type': name, 'losses': losses}}).task
  config.check_values('task')
  found = {field: getattr(config.weighted_losses, field).weight for field in config.losses.as_dict()}
  assert {field: weight for field, weight in found.items() if weight} == expected


@pytest.mark.parametrize(
  'name, expected', [(name, name in ('dpo', 'ipo', 'kto')) for name in preference.configs.METHODS]
)
def test_only_methods_with_a_reference_keep_one(name, expected):
  params = make_params({'task': {'loss_type': name}})
  params.task.check_values('task')
  model = shrunk_run.make_task(params).build_model()
  assert hasattr(model, 'checkpoint_items') == expected
  if expected:
    assert 'reference' in model.checkpoint_items


@pytest.fixture
def labeled(tmp_path):
  """A file of answers with labels, of different lengths."""
  path = tmp_path / 'labeled.jsonl'
  records = [
    {'prompt': f'What is {n}? ', 'completion': 'It is a number.' * (n % 3 + 1), 'label': bool(n % 2)} for n in range(8)
  ]
  path.write_text('\n'.join(map(json.dumps, records)))
  return path


KTO = {'beta': 0.3, 'desirable_weight': 1.5, 'undesirable_weight': 0.5}


def test_kto_holds_answers_against_those_to_other_prompts(labeled):
  data = {name: {'input_path': str(labeled), 'use_chat_template': False} for name in ('train_data', 'validation_data')}
  task = shrunk_run.make_task(make_params({'task': {'loss_type': 'kto', 'losses': {'kto': KTO}, **data}}))
  model = task.build_model()
  (batch,) = task.build_inputs(task.config.validation_data).take(1)
  ids, labels = batch['input_ids'].numpy(), batch['labels'].numpy()
  assert batch['is_desirable'].numpy().tolist() == [0, 1, 0, 1]
  texts = []  # (prompt, answer) as tokens, by what a row holds.
  for row, marks, segments in zip(ids, labels, batch['segment_ids'].numpy()):
    row, marks = row[segments > 0].tolist(), marks[segments > 0]
    start = int(np.flatnonzero(marks != -100)[0])
    texts.append((row[:start], row[start:]))
  pairs = {'own': texts, 'other': [(prompt, texts[n - 1][1]) for n, (prompt, _) in enumerate(texts)]}

  def sums():
    """The log-probability of each answer, one text at a time: no padding."""
    return {
      kind: np.array(
        [log_probs_of(model, np.array([prompt + answer]))[0, len(prompt) - 1 :].sum() for prompt, answer in of]
      )
      for kind, of in pairs.items()
    }

  before = sums()
  loss, logs = task.forward(batch, moved(model), training=False)
  gains = {kind: values - before[kind] for kind, values in sums().items()}
  kl = max(gains['other'].mean(), 0)
  signed = np.where([0, 1, 0, 1], gains['own'] - kl, kl - gains['own'])
  expected = (np.array([0.5, 1.5, 0.5, 1.5]) * (1 - 1 / (1 + np.exp(-0.3 * signed)))).mean()
  assert float(loss) == pytest.approx(expected, rel=1e-4)
  assert float(logs['kl']) == pytest.approx(kl, rel=1e-3)
  np.testing.assert_array_equal(logs['accuracy'][0], (signed > 0).astype(np.float32))
  np.testing.assert_allclose(logs['rewards/chosen'][0], 0.3 * gains['own'], rtol=1e-3)
  np.testing.assert_array_equal(logs['rewards/chosen'][1], [0, 1, 0, 1])


def test_each_answer_of_a_pair_is_an_example_of_kto():
  pairs = shrunk_run.make_task(make_params({'task': {'loss_type': 'dpo'}}))
  task = shrunk_run.make_task(make_params({'task': {'loss_type': 'kto'}}))
  whole, split = (each.source(each.config.validation_data) for each in (pairs, task))
  assert len(split) == 2 * len(whole)
  pair, answers_of_it = whole.fetch([3])[0], split.fetch([3, 3 + len(whole)])
  for kind, row, label in zip(('chosen', 'rejected'), answers_of_it, (1, 0)):
    np.testing.assert_array_equal(row['input_ids'], pair[f'{kind}_input_ids'])
    np.testing.assert_array_equal(row['labels'], pair[f'{kind}_labels'])
    assert row['is_desirable'] == label
  last = 3 + len(whole)
  assert split.describe(3) == whole.describe(3) and split.describe(last) == whole.describe(3).replace('3', f'{last}', 1)


def test_evaluations_of_pairs_compare_each_prompt_with_the_answer_to_another():
  task = shrunk_run.make_task(make_params({'task': {'loss_type': 'kto'}}))
  prompts = []
  for batch in task.build_inputs(task.config.validation_data):
    rows = zip(batch['input_ids'].numpy(), batch['labels'].numpy())
    of_batch = [tuple(ids[: np.flatnonzero(labels != -100)[0]]) for ids, labels in rows]
    assert len(of_batch) == 1 or all(prompt != of_batch[number - 1] for number, prompt in enumerate(of_batch))
    prompts += of_batch
  assert len(prompts) == 2 * len(set(prompts)) > 100


def test_a_mismatched_text_that_is_too_long_is_cut():
  rows = {
    'input_ids': np.array([[1, 2, 3, 4, 5, 0], [6, 7, 8, 9, 10, 11]]),
    'labels': np.array([[-100, -100, -100, -100, 5, -100], [-100, -100, 8, 9, 10, 11]]),
    'segment_ids': np.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]]),
    'position_ids': np.array([[0, 1, 2, 3, 4, 0], [0, 1, 2, 3, 4, 5]]),
  }
  found = unpaired.mismatched({name: tf.constant(values, tf.int32) for name, values in rows.items()})
  np.testing.assert_array_equal(found['input_ids'], [[1, 2, 3, 4, 8, 9], [6, 7, 5, 0, 0, 0]])
  np.testing.assert_array_equal(found['labels'], [[-100] * 4 + [8, 9], [-100, -100, 5] + [-100] * 3])
  np.testing.assert_array_equal(found['segment_ids'], [[1] * 6, [1, 1, 1, 0, 0, 0]])
  np.testing.assert_array_equal(found['position_ids'], [[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 0, 0]])


def test_a_replica_gets_more_than_one_answer_of_kto():
  params = make_params({'task': {'loss_type': 'kto', 'train_data': {'global_batch_size': 2}}})
  task = shrunk_run.make_task(params)
  assert task.build_inputs(params.task.train_data).element_spec['is_desirable'].shape == (2,)
  with pytest.raises(errors.UserError, match='task.train_data.global_batch_size: 2 answers for 2 devices'):
    task.build_inputs(params.task.train_data, tf.distribute.InputContext(num_replicas_in_sync=2))


@pytest.mark.slow
@tiers.parametrize('name', ['kto', 'ipo', 'simpo', 'cpo'], fast=1)
def test_a_run_of_each_method(name, tmp_path):
  logs = shrunk_run.run(tmp_path, make_params({'task': {'loss_type': name, 'train_data': {'max_samples': 8}}}))
  assert np.isfinite(logs['validation_loss']) and 0 <= logs['accuracy'] <= 1


@pytest.mark.parametrize(
  'changes, message',
  [
    (
      {'loss_type': 'simpo', 'losses': {'orpo': {'weight': 1.0}}},
      'task.losses.orpo.weight: is set beside task.loss_type',
    ),
    ({'loss_type': 'kto', 'losses': {'simpo': {'weight': 1.0}}}, 'task.losses.simpo.weight: this task has kto, label'),
    ({'loss_type': 'kto', 'train_data': {'loss_on': 'all'}}, 'task.train_data.loss_on: all: the loss kto'),
    ({'loss_type': 'kto', 'label_on_prompt': True}, 'task.label_on_prompt'),
    ({'train_data': {'example_format': 'unpaired'}}, 'task.train_data.example_format: unpaired is for the experiment'),
    ({'loss_type': 'kto', 'losses': {'kto': {'weight': 0}}}, 'task.losses: no loss has a weight'),
  ],
)
def test_settings_that_a_method_does_not_have_are_refused(changes, message):
  with pytest.raises(errors.UserError, match=re.escape(message)):
    make_params({'task': changes}).task.check_values('task')


@pytest.mark.slow
@pytest.mark.parametrize('replicas, enable_xla', shrunk_run.CONTINUATIONS)
def test_a_restored_run_resumes_bit_for_bit_and_against_the_first_weights(replicas, enable_xla, tmp_path):
  held = shrunk_run.assert_resumes_bit_for_bit(make_params(DPO, enable_xla=enable_xla), tmp_path, replicas)
  assert sum('reference' in name for name in held) == 2 * 9 + 3  # Two layers; embedding, norm and head.


@pytest.mark.slow
def test_a_killed_run_of_kto_ends_as_one_that_was_not(labeled, tmp_path, run_train, start_train):
  model = ','.join(f'task.model.{name}={value}' for name, value in SMALL['task']['model'].items())
  command = [
    '--experiment=preference',
    '--mode=train_and_eval',
    f'--params_override={model},trainer.train_steps=16,trainer.checkpoint_interval=4,trainer.validation_interval=8,'
    'trainer.steps_per_loop=2,trainer.summary_interval=2',
    *(f'--set={each}' for each in ('loss_type=kto', 'max_seq_length=64', 'batch_size=4', 'xla=false')),
    f'--set=dataset_path={labeled}',
    '--set=task.validation_share=0.25',
  ]
  options = {'env': train_processes.UNOPTIMISED}
  straight = run_train([*command, f'--model_dir={tmp_path}/straight'], **options)
  assert straight.returncode == 0, straight.stderr
  killed = start_train([*command, f'--model_dir={tmp_path}/killed'], **options)
  deadline = time.monotonic() + 300
  while not (tmp_path / 'killed/ckpt-8.manifest.json').exists():
    assert killed.poll() is None and time.monotonic() < deadline
    time.sleep(0.01)
  killed.kill()
  killed.wait()
  resumed = run_train([*command, f'--model_dir={tmp_path}/killed'], **options)
  assert resumed.returncode == 0, resumed.stderr
  assert '"event": "restored"' in (tmp_path / 'killed/events.jsonl').read_text()
  assert comparison.differences(tmp_path / 'killed', tmp_path / 'straight') == []
  held = comparison.tensors(tmp_path / 'killed/ckpt-16')
  references = [value for name, value in held.items() if 'reference' in name and 'VARIABLE_VALUE' in name]
  assert len(references) == 2 * 9 + 3


@pytest.mark.slow
def test_kto_computes_the_same_with_and_without_xla(labeled):
  data = {'train_data': {'input_path': str(labeled), 'use_chat_template': False}}
  found = []
  for enable_xla in (False, True):
    params = make_params({'task': {'loss_type': 'kto', 'losses': {'kto': KTO}, **data}}, enable_xla=enable_xla)
    trainer = shrunk_run.make_trainer(params)
    start = [np.array(values) for values in harness.weights_of(trainer)]
    logs = harness.train(trainer, 4)
    assert trainer.plan.jit_compile == enable_xla and float(logs['kl']) > 0
    changes = [new - old for new, old in zip(harness.weights_of(trainer), start)]
    assert max(np.abs(change).max() for change in changes) > 1e-4
    found.append([logs[name] for name in ('training_loss', 'kl', 'rewards/chosen', 'rewards/rejected')] + changes)
  harness.assert_close(found[1], found[0], rtol=1e-3, atol=1e-6)


@pytest.mark.soak
def test_pairs_are_learned(tmp_path):
  trainer = shrunk_run.make_trainer(make_params(DPO, {'task': {'train_data': {'max_samples': 8}}}, train_steps=40))
  first, last = harness.train(trainer, 2), None
  for _ in range(4):
    last = harness.train(trainer, 5)
  assert float(first['training_loss']) == pytest.approx(math.log(2), abs=0.05)
  assert float(last['training_loss']) < 0.8 * math.log(2) and float(last['accuracy']) > 0.8


@pytest.mark.soak
@pytest.mark.parametrize('changes', [DPO, {'task': {'loss_type': 'kto'}}], ids=['dpo', 'kto'])
def test_two_replicas_learn_what_one_does(changes):
  found = []
  for replicas in ('one', 'two'):
    trainer = shrunk_run.make_trainer(make_params(changes), replicas)
    logs = harness.train(trainer, 2)
    reward = logs['rewards/margins' if changes is DPO else 'rewards/chosen']
    found.append([logs['training_loss'], reward, *harness.weights_of(trainer)])
  harness.assert_close(found[1], found[0], rtol=1e-3, atol=1e-5)


def test_a_loss_that_pairs_do_not_have_is_refused():
  with pytest.raises(
    errors.UserError, match='task.losses.grpo.weight: this task has cpo, dpo, ipo, label, orpo, simpo, z_loss, and no'
  ):
    params = make_params({'task': {'losses': {'grpo': {'weight': 1.0}}}})
    params.task.check_values('task')
