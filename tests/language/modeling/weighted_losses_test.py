"""Losses by name with weights: the sum, logs, and refusals."""

import dataclasses

import numpy as np
import pytest

from official_ext.base import errors
from official_ext.language.modeling import losses
from official_ext.language.modeling import weighted_losses
from official_ext.training.config import ranges

LOGITS = np.random.default_rng(0).standard_normal([2, 3, 5]).astype(np.float32)
LABELS = np.array([[0, 1, 2], [3, 4, -100]])
INPUTS = {
  'label': {'logits': LOGITS, 'labels': LABELS},
  'z_loss': {'logits': LOGITS},
  'distillation': {'logits': LOGITS, 'teacher_logits': LOGITS[::-1]},
}


def test_total_is_the_weighted_sum():
  config = weighted_losses.LossesConfig()
  config.override({'label': {'weight': 1.0}, 'distillation': {'weight': 0.5, 'temperature': 3.0}})
  total, found = weighted_losses.total(config, INPUTS)
  assert sorted(found) == ['distillation', 'label']
  distillation = losses.distillation(LOGITS, LOGITS[::-1], temperature=3.0)
  np.testing.assert_allclose(found['distillation'], distillation, rtol=1e-6)
  np.testing.assert_allclose(total, losses.label(LOGITS, LABELS) + 0.5 * distillation, rtol=1e-6)


def test_every_loss_is_a_function_with_these_parameters():
  pair = dict(policy_chosen=[-1.0], policy_rejected=[-2.0])
  tokens = dict(log_probs=[[-1.0]], old_log_probs=[[-2.0]], reference_log_probs=[[-2.0]], advantages=[1.0], mask=[[1]])
  inputs = {
    **INPUTS,
    **dict.fromkeys(('dpo', 'ipo'), {**pair, 'reference_chosen': [-2.0], 'reference_rejected': [-2.0]}),
    **dict.fromkeys(('simpo', 'cpo', 'orpo'), pair),
    'kto': {'policy': [-1.0], 'reference': [-2.0], 'kl': 0.0, 'is_desirable': [True]},
    'grpo': tokens,
  }
  config = weighted_losses.LossesConfig()
  for field in dataclasses.fields(config):
    getattr(config, field.name).weight = 1.0
  config.grpo.beta = 0.1
  total, found = weighted_losses.total(config, inputs)
  assert sorted(found) == sorted(inputs)
  np.testing.assert_allclose(total, np.sum(list(found.values())), rtol=1e-6)
  np.testing.assert_allclose(found['dpo'], np.log1p(np.exp(-0.1)), rtol=1e-6)
  np.testing.assert_allclose(found['kto'], 1 / (1 + np.exp(0.1)), rtol=1e-6)


def test_losses_that_a_task_does_not_have_are_refused_together():
  config = weighted_losses.LossesConfig()
  config.override({'dpo': {'weight': 1.0}, 'grpo': {'weight': 1.0}})
  with pytest.raises(errors.UserErrors) as raised:
    weighted_losses.total(config, INPUTS)
  assert str(raised.value).split('\n') == [
    'task.losses.dpo.weight: this task has distillation, label, z_loss, and no dpo',
    'task.losses.grpo.weight: this task has distillation, label, z_loss, and no grpo',
  ]
  with pytest.raises(errors.UserError, match='task.losses: no loss has a weight'):
    weighted_losses.total(weighted_losses.LossesConfig(), INPUTS)


def test_numbers_without_a_meaning_are_refused():
  config = weighted_losses.LossesConfig()
  config.override({'label': {'weight': -1.0}, 'dpo': {'beta': 0.0}, 'distillation': {'temperature': 0.0}})
  with pytest.raises(errors.UserErrors) as raised:
    ranges.check(config, 'task.losses')
  named = [line.partition(': ')[0] for line in str(raised.value).split('\n')]
  assert sorted(named) == ['task.losses.distillation.temperature', 'task.losses.dpo.beta', 'task.losses.label.weight']
