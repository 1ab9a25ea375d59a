"""Every tensor that peft 0.21 writes into a folder: its logits here, or refused with the reason."""

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.language.modeling import adapter_sets
from official_ext.language.modeling import lora
from official_ext.language.modeling import peft_folders
from official_ext.language.modeling import pretrained

pytest.importorskip('peft', reason="needs the test extra: pip install 'official-ext[test]'")
import peft
import torch
import transformers

from tests import tiers
from tests.language.modeling import checkpoints

IDS = np.random.default_rng(0).integers(3, 67, (2, 11)).astype(np.int32)
# name -> (the base, fields of peft's LoraConfig, size of the vocabulary).
LOADED = {
  'head': ('llama', dict(target_modules=['q_proj', 'lm_head']), 67),
  'head with DoRA': ('llama', dict(target_modules=['q_proj', 'lm_head'], use_dora=True), 67),
  'embedding': ('llama', dict(target_modules=['q_proj', 'embed_tokens']), 67),
  'embedding by a rank-stabilized factor': (
    'llama',
    dict(target_modules=['embed_tokens', 'v_proj'], use_rslora=True, lora_alpha=3, rank_pattern={'v_proj': 2}), 67,
  ),
  'scaled embedding': ('gemma2_untied', dict(target_modules=['q_proj', 'embed_tokens']), 67),
  'head and embedding': ('llama', dict(target_modules=['k_proj', 'lm_head', 'embed_tokens']), 67),
  'rows': ('llama', dict(target_modules=['q_proj'], trainable_token_indices=[3, 9]), 67),
  'rows by module': (
    'llama', dict(target_modules=['q_proj'], trainable_token_indices={'embed_tokens': [4], 'lm_head': [5, 6]}), 67,
  ),
  'rows of a tied embedding': ('llama_tied', dict(target_modules=['q_proj'], trainable_token_indices=[3, 9]), 67),
  'larger vocabulary': ('llama', dict(target_modules=['q_proj']), 73),
  'larger vocabulary of a tied embedding': ('llama_tied', dict(target_modules=['q_proj']), 73),
  'larger vocabulary and a head': ('llama', dict(target_modules=['q_proj', 'lm_head']), 73),
  'larger vocabulary and rows': ('llama', dict(target_modules=['q_proj'], trainable_token_indices=[70]), 73),
  'larger vocabulary, trained whole': (
    'llama', dict(target_modules=['q_proj'], modules_to_save=['embed_tokens', 'lm_head']), 73,
  ),
  'biases of all': ('llama', dict(target_modules=['q_proj', 'up_proj'], bias='all'), 67),
  'biases of adapters': ('llama', dict(target_modules=['q_proj', 'up_proj'], bias='lora_only'), 67),
  'MiCA': ('llama', dict(target_modules=['q_proj'], init_lora_weights='mica'), 67),
}  # fmt: skip
REFUSED = {
  'tied embedding': ('llama_tied', dict(target_modules=['q_proj', 'embed_tokens']), 'tie_word_embeddings'),
  'tied embedding, trained whole': (
    'llama_tied', dict(target_modules=['q_proj'], modules_to_save=['embed_tokens']), 'tie_word_embeddings',
  ),
  'embedding with DoRA': ('llama', dict(target_modules=['q_proj', 'embed_tokens'], use_dora=True), 'use_dora'),
  'bias of an adapter': ('llama', dict(target_modules=['q_proj'], lora_bias=True), 'lora_bias'),
  'layers twice': ('llama', dict(target_modules=['q_proj'], layer_replication=[[0, 2], [1, 3]]), 'layer_replication'),
  'tokens of invocation': ('llama', dict(target_modules=['q_proj'], alora_invocation_tokens=[3]), 'alora_invocation'),
}  # fmt: skip


@pytest.fixture(scope='module')
def base(tmp_path_factory):
  untied = checkpoints.config('gemma2', tie_word_embeddings=False)
  return checkpoints.folders(tmp_path_factory, gemma2_untied=untied)


def trained(base_folder, fields, size, folder):
  """The logits of a model of peft with noise on its trained weights, which is saved."""
  torch.manual_seed(0)
  model = checkpoints.reloaded(base_folder)
  if size != model.config.vocab_size:
    model.resize_token_embeddings(size)
  made = peft.get_peft_model(model, peft.LoraConfig(r=3, task_type='CAUSAL_LM', **fields)).eval()
  with torch.no_grad():
    for parameter in made.parameters():
      if parameter.requires_grad:
        parameter.add_(torch.randn(parameter.shape) * 0.2)
  made.save_pretrained(folder)
  return checkpoints.logits(made, IDS)


@tiers.parametrize('case', LOADED, fast=['head', 'rows of a tied embedding', 'larger vocabulary and rows'])
def test_what_peft_writes_is_loaded_to_its_logits(base, tmp_path, case):
  name, fields, size = LOADED[case]
  expected = trained(base(name), fields, size, tmp_path / 'adapter')
  found = peft_folders.vocab_size(str(tmp_path / 'adapter'))
  assert found in (None, size) and (found or size == 67)
  model = pretrained.load(base(name), vocab_size=found)
  peft_folders.load(model, str(tmp_path / 'adapter'))
  np.testing.assert_allclose(model(IDS), expected, atol=2e-5)

  peft_folders.save(model, str(tmp_path / 'again'))  # peft loads what is saved here.
  theirs = checkpoints.reloaded(base(name))
  theirs.resize_token_embeddings(size)
  loaded = peft.PeftModel.from_pretrained(theirs, str(tmp_path / 'again')).eval()
  np.testing.assert_allclose(checkpoints.logits(loaded, IDS), expected, atol=2e-5)
  again = pretrained.load(base(name), vocab_size=peft_folders.vocab_size(str(tmp_path / 'again')))
  peft_folders.load(again, str(tmp_path / 'again'))
  np.testing.assert_allclose(again(IDS), expected, atol=2e-5)

  lora.merge(model)
  pretrained.save(model, str(tmp_path / 'merged'))
  np.testing.assert_allclose(
    checkpoints.logits(checkpoints.reloaded(str(tmp_path / 'merged')), IDS), expected, atol=1e-4
  )


@pytest.mark.parametrize('case', REFUSED)
def test_what_is_not_loaded_is_refused_with_the_reason(base, tmp_path, case):
  name, fields, reason = REFUSED[case]
  trained(base(name), fields, 67, tmp_path)
  model = pretrained.load(base(name))
  with pytest.raises(errors.UserError, match=reason):
    peft_folders.load(model, str(tmp_path))
  assert not lora.adapters(model)


def test_a_larger_vocabulary_names_the_remedy(base, tmp_path):
  trained(base('llama'), dict(target_modules=['q_proj']), 73, tmp_path)
  with pytest.raises(errors.UserError, match='the vocabulary was enlarged; load the base with vocab_size=73'):
    peft_folders.load(pretrained.load(base('llama')), str(tmp_path))


def test_the_head_of_a_classifier_is_loaded(base, tmp_path):
  torch.manual_seed(0)
  model = transformers.AutoModelForSequenceClassification.from_pretrained(base('llama'), num_labels=3)
  made = peft.get_peft_model(model, peft.LoraConfig(r=3, target_modules=['q_proj'], task_type='SEQ_CLS')).eval()
  with torch.no_grad():
    for parameter in made.parameters():
      if parameter.requires_grad:
        parameter.add_(torch.randn(parameter.shape) * 0.2)
  made.save_pretrained(tmp_path)
  ours = pretrained.load_classifier(base('llama'), 3)
  peft_folders.load(ours, str(tmp_path))
  with torch.no_grad():
    expected = made(torch.tensor(IDS)).logits.numpy()
  np.testing.assert_allclose(ours(IDS), expected, atol=2e-5)
  with pytest.raises(errors.UserError, match='score'):
    peft_folders.load(pretrained.load(base('llama')), str(tmp_path))


def test_several_adapters_share_a_head_and_refuse_another_one(base, tmp_path):
  fields = dict(target_modules=['q_proj', 'lm_head'])
  expected = trained(base('llama'), fields, 67, tmp_path / 'one')
  trained(base('llama'), dict(target_modules=['v_proj', 'embed_tokens']), 67, tmp_path / 'two')
  model = pretrained.load(base('llama'))
  adapter_sets.AdapterSet(model, {'one': str(tmp_path / 'one')})
  np.testing.assert_allclose(model(IDS), expected, atol=2e-5)
  with pytest.raises(errors.UserError, match='two: model.embed_tokens.weight: differs from the base'):
    adapter_sets.AdapterSet(pretrained.load(base('llama')), {name: str(tmp_path / name) for name in ('one', 'two')})
  adapter_sets.combine([str(tmp_path / 'one')], [1.0], str(tmp_path / 'combined'))
  model = pretrained.load(base('llama'))
  peft_folders.load(model, str(tmp_path / 'combined'))
  np.testing.assert_allclose(model(IDS), expected, atol=2e-5)


def test_rows_without_their_tokens_are_refused(base, tmp_path):
  fields = {'trainable_token_indices': None, 'r': 2, 'lora_alpha': 2}
  model = pretrained.load(base('llama'))
  tensors = {'model.embed_tokens.token_adapter.trainable_tokens_delta': np.zeros([1, 32], np.float32)}
  with pytest.raises(errors.UserError, match='trainable_token_indices does not name its tokens'):
    peft_folders.replaced_tensors(model, fields, tensors, 'there')
  with pytest.raises(errors.UserError, match='token 99; the model has'):
    peft_folders.replaced_tensors(model, {**fields, 'trainable_token_indices': [99]}, tensors, 'there')
  assert tf.shape(model.decoder.embed_tokens.embeddings)[0] == 67
