"""Losses and their gradients are TRL's and PyTorch's; those without a peer are derived."""

import collections
import functools
import types

import numpy as np
import pytest
import tensorflow as tf

from official_ext.language.modeling import losses

pytest.importorskip('trl', reason="needs the test extra: pip install 'official-ext[test]'")
import torch

from tests import tiers

B, T, V = 4, 6, 11
TOLERANCE = dict(rtol=1e-6, atol=1e-6)


def _normal(seed, *shape):
  return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _gradient(loss, values):
  """Of a loss by an array, and the loss itself: eager, and under XLA."""

  def both(values):
    with tf.GradientTape() as tape:
      tape.watch(values)
      found = loss(values)
    assert found.dtype == tf.float32 and found.shape == ()
    return found, tape.gradient(found, values)

  values = tf.constant(values)
  results = [[result.numpy() for result in f(values)] for f in (both, tf.function(both, jit_compile=True))]
  for eager, compiled in zip(*results):
    np.testing.assert_allclose(compiled, eager, **TOLERANCE)
  return results[0]


def _torch_gradient(loss, values):
  values = torch.tensor(values, requires_grad=True)
  found = loss(values)
  found.backward()
  return found.detach().numpy(), values.grad.numpy()


def _assert_same(ours, theirs):
  for mine, other in zip(ours, theirs):
    np.testing.assert_allclose(mine, other, **TOLERANCE)


@pytest.fixture(scope='module')
def grpo_trainer(tmp_path_factory):
  """A real trainer of TRL's over a tiny Llama, with all of TRL's defaults; tests set attributes of it."""
  import datasets
  import trl

  arguments = trl.GRPOConfig(str(tmp_path_factory.mktemp('grpo')), report_to='none', use_cpu=True, bf16=False)
  tokenizer, (model, _) = _tokenizer_and_models()
  return trl.GRPOTrainer(
    model,
    reward_funcs=lambda completions, **_: [0.0] * len(completions),
    args=arguments,
    train_dataset=datasets.Dataset.from_dict({'prompt': ['a b', 'c']}),
    processing_class=tokenizer,
  )


@pytest.fixture
def trl_grpo(grpo_trainer, monkeypatch):
  """TRL's loss of GRPO, of log-probabilities that are given: (attributes, inputs) -> a function of them."""

  def of(attributes, inputs):
    for name, value in {'current_gradient_accumulation_steps': 1, **attributes}.items():
      monkeypatch.setattr(grpo_trainer, name, value, raising=False)
    monkeypatch.setattr(grpo_trainer.args, 'steps_per_generation', 1)
    monkeypatch.setattr(grpo_trainer.args, 'use_bias_correction_kl', grpo_trainer.args.use_bias_correction_kl)

    def loss(log_probs):
      given = log_probs, torch.zeros(log_probs.shape), None
      monkeypatch.setattr(grpo_trainer, '_get_per_token_logps_and_entropies', lambda *args, **kwargs: given)
      monkeypatch.setattr(grpo_trainer, '_metrics', collections.defaultdict(lambda: collections.defaultdict(list)))
      found = grpo_trainer._compute_loss(None, inputs)
      loss.metrics = grpo_trainer._metrics['train']
      return found

    return loss

  return of


def _completions(seed=0, moved=0.4):
  """Log-probabilities: of the policy, when sampled, of the reference; advantages; and a mask of lengths 6, 3, 1, 5."""
  old = -np.abs(_normal(seed, B, T)) - 0.1
  policy = old + moved * _normal(seed + 1, B, T)
  reference = old + 0.3 * _normal(seed + 2, B, T)
  mask = (np.arange(T)[None] < np.array([6, 3, 1, 5])[:, None]).astype(np.float32)
  return policy, old, reference, np.array([1.3, -0.7, 0.2, -0.8], np.float32), mask


@pytest.mark.parametrize('seed, moved', [(0, 0.4), (10, 0.0), (20, 1.5)])
@tiers.parametrize('beta', [0.0, 0.04, 2.0], fast=[0.04])
@pytest.mark.parametrize('normalization', ['grpo', 'bnpo', 'dr_grpo', 'dapo'])
def test_grpo_is_trl(trl_grpo, grpo_trainer, normalization, beta, seed, moved):
  """With TRL's defaults, of tokens that other weights have sampled; the same weights if `moved` is 0."""
  policy, old, reference, advantages, mask = _completions(seed, moved)
  epsilons, longest, tokens = (0.2, 0.28), 9, 31.0
  inputs = {
    'prompt_ids': torch.zeros([B, 2], dtype=torch.int64),
    'prompt_mask': torch.ones([B, 2], dtype=torch.int64),
    'completion_ids': torch.zeros([B, T], dtype=torch.int64),
    'completion_mask': torch.tensor(mask),
    'advantages': torch.tensor(advantages),
    'old_per_token_logps': torch.tensor(old),
    'ref_per_token_logps': torch.tensor(reference),
    'num_items_in_batch': torch.tensor(tokens),
  }
  attributes = {
    'loss_type': normalization,
    'beta': beta,
    'epsilon_low': epsilons[0],
    'epsilon_high': epsilons[1],
    'max_completion_length': longest,
  }
  trl_loss = trl_grpo(attributes, inputs)
  theirs = _torch_gradient(trl_loss, policy)

  def ours(log_probs, **kwargs):
    return losses.grpo(
      log_probs,
      old,
      reference if beta else None,
      advantages,
      mask,
      *epsilons,
      beta,
      normalization,
      max_completion_length=longest,
      num_items_in_batch=tokens,
      **kwargs,
    )

  found = _gradient(ours, policy)
  _assert_same(found, theirs)
  fraction = losses.clip_fraction(policy, old, advantages, mask, *epsilons)
  assert (fraction > 0) == (moved > 0)
  np.testing.assert_allclose(fraction, trl_loss.metrics['clip_ratio/region_mean'], **TOLERANCE)
  if not beta:
    return
  kl = losses.kl_estimate(policy, reference, old)
  np.testing.assert_allclose(tf.reduce_sum(kl * mask) / mask.sum(), trl_loss.metrics['kl'], **TOLERANCE)
  without = ours(policy, use_bias_correction_kl=False)
  grpo_trainer.args.use_bias_correction_kl = False
  _assert_same(
    _gradient(functools.partial(ours, use_bias_correction_kl=False), policy), _torch_gradient(trl_loss, policy)
  )
  assert (abs(without - found[0]) > 1e-4 * beta) == (moved > 0)


@pytest.mark.parametrize('seed', range(3))
def test_a_batch_of_grpo_under_trls_defaults_is_trls(grpo_trainer, monkeypatch, seed):
  """The whole of TRL's loss, from its model's logits on, off-policy, with a reference."""
  monkeypatch.setattr(grpo_trainer, 'beta', 0.7)
  monkeypatch.setattr(grpo_trainer, 'current_gradient_accumulation_steps', 1, raising=False)
  monkeypatch.setattr(grpo_trainer.args, 'steps_per_generation', 1)
  rng = np.random.default_rng(seed)
  prompts, completions = rng.integers(2, 12, (B, 3)), rng.integers(2, 12, (B, T))
  mask = (np.arange(T) < rng.integers(1, T + 1, (B, 1))).astype(np.int64)
  with torch.no_grad():
    logits = grpo_trainer.model(torch.tensor(np.concatenate([prompts, completions], axis=1))).logits[:, 2:-1].numpy()
  now = losses.log_probs(logits, completions)
  old, reference = (now.numpy() + 0.5 * _normal(100 * seed + n, B, T) for n in range(2))
  advantages = _normal(seed, B)
  loss = grpo_trainer._compute_loss(
    grpo_trainer.model,
    {
      'prompt_ids': torch.tensor(prompts),
      'prompt_mask': torch.ones_like(torch.tensor(prompts)),
      'completion_ids': torch.tensor(completions),
      'completion_mask': torch.tensor(mask),
      'advantages': torch.tensor(advantages),
      'old_per_token_logps': torch.tensor(old),
      'ref_per_token_logps': torch.tensor(reference),
      'num_items_in_batch': torch.tensor(mask.sum()),
    },
  )
  found = losses.grpo(now, old, reference, advantages, mask, beta=0.7, normalization=grpo_trainer.loss_type)
  np.testing.assert_allclose(found, loss.detach(), rtol=1e-5, atol=1e-5)


def test_grpo_takes_lengths_from_the_batch_unless_given():
  policy, old, _, advantages, mask = _completions()

  def loss(normalization, **given):
    return losses.grpo(policy, old, None, advantages, mask, normalization=normalization, **given)

  np.testing.assert_allclose(loss('dr_grpo'), loss('dr_grpo', max_completion_length=T), rtol=1e-6)
  np.testing.assert_allclose(loss('dapo'), loss('bnpo'), rtol=1e-6)
  np.testing.assert_allclose(loss('dapo', num_items_in_batch=30), loss('dapo') * 15 / 30, rtol=1e-6)


def test_grpo_reads_nothing_behind_a_completion():
  policy, old, reference, advantages, mask = _completions()
  expected = _gradient(lambda values: losses.grpo(values, old, reference, advantages, mask, beta=0.1), policy)
  old, reference = (np.where(mask > 0, values, -np.inf).astype(np.float32) for values in (old, reference))
  found = _gradient(lambda values: losses.grpo(values, old, reference, advantages, mask > 0, beta=0.1), policy)
  _assert_same(found, expected)


def test_grpo_refuses_what_it_does_not_know():
  policy, old, _, advantages, mask = _completions()
  with pytest.raises(ValueError, match="normalization: 'mean' is not one of grpo, bnpo, dr_grpo, dapo"):
    losses.grpo(policy, old, None, advantages, mask, normalization='mean')
  with pytest.raises(ValueError, match='reference_log_probs: needed'):
    losses.grpo(policy, old, None, advantages, mask, beta=0.1)


@pytest.mark.parametrize('scale_rewards', ['group', 'batch', 'none'])
def test_advantages_are_those_of_a_group(scale_rewards):
  rewards = np.array([1, 0, 0, 1, 5, 5, 5, 5, 0, 2, 0, 0], np.float32)
  groups = rewards.reshape(3, 4)
  expected = groups - groups.mean(axis=1, keepdims=True)
  if scale_rewards != 'none':
    spread = groups.std(axis=1, ddof=1, keepdims=True) if scale_rewards == 'group' else rewards.std(ddof=1)
    expected = expected / (spread + 1e-4)
  found = losses.group_advantages(rewards, 4, scale_rewards)
  np.testing.assert_allclose(found, expected.reshape(-1), **TOLERANCE)
  np.testing.assert_array_equal(losses.group_advantages([3.0, 1.0], 1, scale_rewards), [0, 0])
  with pytest.raises(ValueError, match="scale_rewards: 'std'"):
    losses.group_advantages(rewards, 4, 'std')


def test_orpo_is_trl():
  from trl.experimental.orpo import orpo_trainer

  trainer = types.SimpleNamespace(beta=0.1, accelerator=types.SimpleNamespace(device='cpu'))
  chosen, rejected = -np.abs(_normal(3, 2, 16)) * np.geomspace(1e-3, 8, 16).astype(np.float32)
  for number in range(2):

    def of_pair(loss, values, number=number):
      pair = [chosen, rejected]
      pair[number] = values
      return loss(*pair)

    def trl_loss(*pair):
      return -orpo_trainer.ORPOTrainer.odds_ratio_loss(trainer, *map(torch.as_tensor, pair))[0].mean()

    start = (chosen, rejected)[number]
    ours, gradient = _gradient(lambda values: of_pair(lambda *pair: losses.orpo(*pair, beta=0.1), values), start)
    theirs, trl_gradient = _torch_gradient(lambda values: of_pair(trl_loss, values), start)
    np.testing.assert_allclose(ours, theirs, **TOLERANCE)
    np.testing.assert_allclose(gradient, trl_gradient, rtol=1e-6)


def test_orpo_is_finite_where_an_answer_is_certain():
  loss, gradient = _gradient(lambda chosen: losses.orpo(chosen, [-1.0, 0.0]), np.zeros(2, np.float32))
  assert np.isfinite(loss) and np.isfinite(gradient).all()


@tiers.parametrize('loss_type', ['sigmoid', 'ipo'], fast=1)
def test_dpo_and_ipo_are_trl(loss_type, tmp_path):
  """A real trainer of TRL's over a tiny Llama: its loss, and its gradient by the log-probabilities of the tokens."""
  trainer, inputs = _dpo_trainer(tmp_path, loss_type)
  kept = {}
  loss = trainer._compute_loss(_keeping(trainer.model, kept), inputs, return_outputs=False)
  loss.backward()
  gradient = kept['log_probs'].grad.numpy()
  labels, policy, reference = _log_probs_of(trainer, inputs)
  size, counts = labels.shape[1], labels != losses.IGNORED_LABEL
  np.testing.assert_allclose(policy, np.where(counts, kept['log_probs'].detach().numpy()[:, -size:], 0), **TOLERANCE)
  divisor = counts.sum(axis=1).astype(np.float32) if loss_type == 'ipo' else 1.0
  references = np.split(reference.sum(axis=1) / divisor, 2)
  function = losses.ipo if loss_type == 'ipo' else losses.dpo

  def ours(values):
    return function(*tf.split(tf.reduce_sum(values, axis=1) / divisor, 2), *references, beta=trainer.beta)

  found, our_gradient = _gradient(ours, policy)
  without_gain = function(*references, *references, beta=trainer.beta)
  assert abs(found - without_gain) > 1e-3, 'policy and reference differ'
  np.testing.assert_allclose(found, loss.detach(), **TOLERANCE)
  np.testing.assert_allclose(
    np.where(counts, our_gradient, 0), np.where(counts, gradient[:, -size:], 0), rtol=1e-5, atol=1e-6
  )


def _keeping(model, kept):
  """A model of TRL's that keeps the log-probabilities of its last call with a gradient."""

  def call(**kwargs):
    outputs = model(**kwargs)
    if outputs.log_probs.requires_grad:
      outputs.log_probs.retain_grad()
      kept['log_probs'] = outputs.log_probs
    return outputs

  return call


def _log_probs_of(trainer, inputs, prefix=''):
  """Labels, and the log-probabilities of these tokens under TRL's model and its reference, by `losses.log_probs`."""
  tokens = inputs[f'{prefix}input_ids']
  completion = inputs[f'{prefix}completion_mask'].numpy() == 1
  labels = np.where(completion, tokens.numpy(), losses.IGNORED_LABEL)[:, 1:]
  found = []
  for model in (trainer.model, trainer.ref_model):
    with torch.no_grad():
      logits = model(tokens, attention_mask=inputs[f'{prefix}attention_mask']).logits[:, :-1].numpy()
    found.append(losses.log_probs(logits, labels).numpy())
  return labels, *found


def _dpo_trainer(folder, loss_type):
  """TRL's trainer, with a reference of other weights, and a batch of pairs of different lengths."""
  import datasets
  import trl

  tokenizer, models = _tokenizer_and_models()
  data = datasets.Dataset.from_dict(
    {'prompt': ['a b', 'c'], 'chosen': [' d e f', ' g'], 'rejected': [' h', ' i j a b']},
  )
  arguments = trl.DPOConfig(
    str(folder), report_to='none', use_cpu=True, bf16=False, per_device_train_batch_size=2, loss_type=[loss_type]
  )
  trainer = trl.DPOTrainer(models[0], models[1], args=arguments, train_dataset=data, processing_class=tokenizer)
  return trainer, next(iter(trainer.get_train_dataloader()))


def test_one_answer_has_no_other_to_estimate_the_divergence_by():
  assert float(losses.kto_kl(np.float32([-1.0]), np.float32([-3.0]))) == 0
  assert float(losses.kto_kl(np.float32([-1.0, -1.0]), np.float32([-3.0, -2.0]))) == 1.5


@tiers.parametrize('swapped', [False, True], fast=1)
def test_kto_is_trl(swapped, tmp_path):
  """A real trainer of TRL's, by the log-probabilities of the tokens. Swapped models negate the estimate."""
  trainer, inputs = _kto_trainer(tmp_path, swapped)
  kept = {}
  loss = trainer._compute_loss(_keeping(trainer.model, kept), inputs, return_outputs=False)
  loss.backward()
  labels, policy, reference = _log_probs_of(trainer, inputs)
  _, *of_others = _log_probs_of(trainer, inputs, 'KL_')
  kl = losses.kto_kl(*(values.sum(axis=1) for values in of_others))
  estimate = (of_others[0] - of_others[1]).sum(axis=1).mean()
  np.testing.assert_allclose(kl, max(estimate, 0), rtol=1e-5)
  assert inputs['label'].tolist() == [True, False, True]

  def ours(values):
    return losses.kto(
      tf.reduce_sum(values, axis=1),
      reference.sum(axis=1),
      kl,
      inputs['label'].numpy(),
      trainer.beta,
      trainer.desirable_weight,
      trainer.undesirable_weight,
    )

  found, our_gradient = _gradient(ours, policy)
  np.testing.assert_allclose(found, loss.detach(), **TOLERANCE)
  counts, size = labels != losses.IGNORED_LABEL, labels.shape[1]
  gradient = kept['log_probs'].grad.numpy()[:, -size:]
  assert np.abs(gradient).max() > 1e-3
  np.testing.assert_allclose(np.where(counts, our_gradient, 0), np.where(counts, gradient, 0), rtol=1e-5, atol=1e-6)


def _kto_trainer(folder, swapped):
  """TRL's trainer, with a reference of other weights, and a batch of three answers."""
  import datasets
  import trl

  tokenizer, models = _tokenizer_and_models()
  data = datasets.Dataset.from_dict(
    {'prompt': ['a b', 'c', 'd'], 'completion': [' d e f', ' h', ' i j a b'], 'label': [True, False, True]},
  )
  arguments = trl.KTOConfig(
    str(folder),
    report_to='none',
    use_cpu=True,
    bf16=False,
    per_device_train_batch_size=3,
    beta=0.3,
    desirable_weight=1.2,
    undesirable_weight=0.7,
  )
  models = models[::-1] if swapped else models
  trainer = trl.KTOTrainer(models[0], models[1], args=arguments, train_dataset=data, processing_class=tokenizer)
  return trainer, next(iter(trainer.get_train_dataloader()))


@tiers.parametrize('name', ['simpo', 'cpo'], fast=1)
def test_losses_without_reference_are_trl(name):
  from trl.experimental.cpo import cpo_trainer

  parameters = {'beta': 1.7, **({'gamma': 0.9} if name == 'simpo' else {})}
  trainer = types.SimpleNamespace(
    alpha=0.0,
    loss_type={'simpo': 'simpo', 'cpo': 'sigmoid'}[name],
    beta=1.7,
    simpo_gamma=0.9,
    label_smoothing=0.0,
    accelerator=types.SimpleNamespace(device='cpu'),
  )
  chosen, rejected = -np.abs(_normal(3, 2, 16)) * np.geomspace(1e-3, 8, 16).astype(np.float32)
  for number in range(2):

    def of_pair(loss, values, number=number):
      pair = [chosen, rejected]
      pair[number] = values
      return loss(*pair)

    def trl_loss(*pair):
      return cpo_trainer.CPOTrainer.cpo_loss(trainer, *map(torch.as_tensor, pair))[0].mean()

    start = (chosen, rejected)[number]
    function = functools.partial(getattr(losses, name), **parameters)
    _assert_same(
      _gradient(functools.partial(of_pair, function), start),
      _torch_gradient(functools.partial(of_pair, trl_loss), start),
    )


def _tokenizer_and_models():
  """A tokenizer of 12 words, and two tiny Llamas of different weights."""
  import tokenizers
  import transformers

  words = {word: number for number, word in enumerate(['<pad>', '</s>', *'abcdefghij'])}
  tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words))
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token='<pad>', eos_token='</s>')
  config = transformers.LlamaConfig(
    vocab_size=len(words),
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=1,
    num_attention_heads=2,
    pad_token_id=0,
    eos_token_id=1,
    initializer_range=0.5,
  )
  models = []
  for seed in range(2):
    torch.manual_seed(seed)
    models.append(transformers.LlamaForCausalLM(config))
  return tokenizer, models


def test_log_probs_and_label_are_cross_entropy():
  logits, labels = _normal(4, B, T, V), np.random.default_rng(5).integers(0, V, [B, T])
  labels[0, 2:4] = losses.IGNORED_LABEL
  loss, gradient = _gradient(lambda values: losses.label(values, labels), logits)
  expected = _torch_gradient(
    lambda values: torch.nn.functional.cross_entropy(values.reshape(-1, V), torch.tensor(labels).reshape(-1)), logits
  )
  _assert_same((loss, gradient), expected)
  found = losses.log_probs(logits, labels).numpy()
  np.testing.assert_array_equal(found[0, 2:4], 0)
  np.testing.assert_allclose(found.sum() / -(B * T - 2), loss, rtol=1e-6)
  mask = np.zeros([B, T])
  mask[1, 3] = 1
  np.testing.assert_allclose(losses.label(logits, labels, mask), -found[1, 3], rtol=1e-6)
  assert losses.label(logits, labels, np.zeros([B, T])) == 0
  assert losses.label(tf.cast(logits, tf.bfloat16), labels).dtype == tf.float32


def test_distillation_is_kullback_leibler():
  logits, teacher, mask = _normal(6, B, T, V), _normal(7, B, T, V), np.tile([1.0, 0, 1, 1, 0, 0], (B, 1))

  def theirs(values):
    student = torch.log_softmax(values / 2, -1)
    target = torch.log_softmax(torch.tensor(teacher) / 2, -1)
    divergence = torch.nn.functional.kl_div(student, target, log_target=True, reduction='none').sum(-1)
    return 4 * (divergence * torch.tensor(mask)).sum() / mask.sum()

  _assert_same(
    _gradient(lambda values: losses.distillation(values, teacher, mask, temperature=2.0), logits),
    _torch_gradient(theirs, logits),
  )
  _, of_teacher = _gradient_or_none(lambda values: losses.distillation(logits, values), teacher)
  assert of_teacher is None


def _gradient_or_none(loss, values):
  values = tf.constant(values)
  with tf.GradientTape() as tape:
    tape.watch(values)
    found = loss(values)
  return found, tape.gradient(found, values)


def test_z_loss_is_the_square_of_the_normalizer():
  logits = _normal(8, B, T, V)
  _assert_same(
    _gradient(losses.z_loss, logits),
    _torch_gradient(lambda values: torch.logsumexp(values, -1).square().mean(), logits),
  )
  np.testing.assert_allclose(losses.z_loss(np.zeros([1, 1, 8])), np.log(8) ** 2, rtol=1e-6)


def test_references_get_no_gradient():
  for function in (losses.dpo, losses.ipo):
    for number in (2, 3):
      pairs = [_normal(seed, B) for seed in range(4)]
      _, gradient = _gradient_or_none(
        lambda values, number=number, pairs=pairs, function=function: function(
          *pairs[:number], values, *pairs[number + 1 :]
        ),
        pairs[number],
      )
      assert gradient is None
  answers = [_normal(seed, B) for seed in range(2)]
  is_desirable = np.arange(B) % 2
  assert _gradient_or_none(lambda values: losses.kto(answers[0], values, 0.1, is_desirable), answers[1])[1] is None
  assert _gradient_or_none(lambda values: losses.kto(*answers, values, is_desirable), np.float32(0.1))[1] is None
  assert _gradient_or_none(lambda values: losses.kto_kl(values, answers[1]), answers[0])[1] is None
