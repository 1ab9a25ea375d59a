"""Adapters go out to peft and come in from it with the same logits."""

import json

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.language.modeling import lora
from official_ext.language.modeling import peft_folders
from official_ext.language.modeling import pretrained
from official_ext.language.modeling import quantized_linear

pytest.importorskip('peft', reason="needs the test extra: pip install 'official-ext[test]'")
import peft
import torch

from tests import tiers
from tests.language.modeling import checkpoints

IDS = np.random.default_rng(0).integers(3, 67, (2, 11)).astype(np.int32)
KINDS = {
  'lora': dict(),
  'rslora': dict(use_rslora=True),
  'dora': dict(use_dora=True),
}


@pytest.fixture(scope='module')
def base(tmp_path_factory):
  return checkpoints.folders(tmp_path_factory)


def _difference(first, second):
  return float(np.max(np.abs(np.asarray(first) - np.asarray(second))))


def _shaken(model):
  for number, variable in enumerate(model.trainable_variables):
    variable.assign_add(0.2 * tf.random.stateless_normal(variable.shape, [7, number]))
  return model


def _theirs(base_folder, adapter):
  """The logits of peft's model of an adapter's folder."""
  return checkpoints.logits(peft.PeftModel.from_pretrained(checkpoints.reloaded(base_folder), adapter).eval(), IDS)


CASES = [
  ('llama', 'lora', False, ('q_proj', 'v_proj', 'down_proj')),
  ('llama', 'rslora', True, ('all-linear',)),
  ('llama', 'dora', True, ('all-linear',)),
  ('qwen3', 'dora', False, (r'model\.layers\.[01]\.mlp\..*', 'lm_head')),
  ('gpt2', 'lora', False, ('all-linear',)),
  ('gpt2', 'dora', False, ('q_proj', 'down_proj')),
  ('falcon_groups', 'dora', False, ('all-linear',)),
  ('falcon', 'lora', False, ('k_proj', 'down_proj')),
  *((name, 'lora', False, ('all-linear',)) for name in ('gemma', 'starcoder2', 'granite', 'olmo2', 'cohere')),
  *((name, 'lora', False, ('all-linear',)) for name in ('mixtral', 'phi', 'qwen2_moe')),
  ('phi', 'lora', False, ('lm_head', 'fc1')),
  *((name, 'lora', False, ('all-linear',)) for name in ('cohere_qk_norm', 'cohere2', 'falcon_alibi')),
]


@tiers.parametrize('name, kind, scan, targets', CASES, fast=CASES[:2])
def test_peft_loads_what_is_saved(base, tmp_path, name, kind, scan, targets):
  model = pretrained.load(base(name), scan_layers=scan)
  plain = model(IDS)
  lora.attach(model, lora.LoraConfig(r=3, lora_alpha=5.0, target_modules=targets, **KINDS[kind]))
  logits = _shaken(model)(IDS)
  assert _difference(logits, plain) > 0.05
  peft_folders.save(model, str(tmp_path))
  assert _difference(logits, _theirs(base(name), str(tmp_path))) < 1e-5

  again = pretrained.load(base(name), scan_layers=False)
  peft_folders.load(again, str(tmp_path))
  assert _difference(again(IDS), logits) < 1e-5


@tiers.parametrize(
  'name, kind',
  [('llama', 'lora'), ('llama', 'dora'), ('gemma2', 'rslora'), ('gpt2', 'dora'), ('falcon_groups', 'dora')],
  fast=2,
)
def test_what_peft_saves_is_loaded(base, tmp_path, name, kind):
  targets = {'gpt2': ['c_attn', 'c_proj'], 'falcon_groups': ['query_key_value', 'dense_h_to_4h']}.get(
    name, ['k_proj', 'o_proj', 'gate_proj']
  )
  config = peft.LoraConfig(r=3, lora_alpha=7, target_modules=targets, task_type='CAUSAL_LM', **KINDS[kind])
  theirs = peft.get_peft_model(checkpoints.reloaded(base(name)), config).eval()
  _disturb(theirs)
  expected = checkpoints.logits(theirs, IDS)
  theirs.save_pretrained(tmp_path / 'adapter')

  model = pretrained.load(base(name), scan_layers=name == 'llama')
  peft_folders.load(model, str(tmp_path / 'adapter'))
  assert _difference(model(IDS), expected) < 1e-5
  peft_folders.save(model, str(tmp_path / 'again'))
  assert _difference(_theirs(base(name), str(tmp_path / 'again')), expected) < 1e-5
  assert json.loads((tmp_path / 'again/adapter_config.json').read_text())['rank_pattern'] == {}
  lora.merge(model)
  pretrained.save(model, str(tmp_path / 'merged'))
  assert _difference(checkpoints.logits(checkpoints.reloaded(str(tmp_path / 'merged')), IDS), expected) < 1e-5


SAVED = [
  ('llama', False, ('lm_head', 'embed_tokens', 'model.norm')),
  ('llama', True, ('input_layernorm', 'lm_head')),
  ('gpt2', False, ('ln_f', 'wpe')),
  ('cohere_qk_norm', False, ('q_norm',)),
]


@tiers.parametrize('name, scan, modules', SAVED, fast=1)
def test_modules_that_are_trained_whole_go_to_peft_and_come_back(base, tmp_path, name, scan, modules):
  tf_keras.utils.set_random_seed(0)
  model = pretrained.load(base(name), scan_layers=scan, frozen_dtype='bfloat16')
  lora.attach(model, lora.LoraConfig(r=2, target_modules=('q_proj', 'up_proj'), modules_to_save=modules))
  assert {variable.dtype.name for variable in model.trainable_variables} == {'float32'}
  num_whole = len(model.trainable_variables) - sum(len(each.own_weights()) for each in lora.adapters(model))
  expected = 3 if not scan else 2  # GPT-2's norm has a bias.
  assert num_whole == expected
  plain = pretrained.load(base(name), frozen_dtype='bfloat16')(IDS)
  logits = _shaken(model)(IDS)
  assert _difference(logits, plain) > 0.05
  peft_folders.save(model, str(tmp_path))
  fields = json.loads((tmp_path / 'adapter_config.json').read_text())
  assert all(any(each.endswith(module) for each in fields['modules_to_save']) for module in modules)

  theirs = checkpoints.reloaded(base(name))
  with torch.no_grad():  # The frozen weights are rounded here.
    for parameter in theirs.parameters():
      parameter.copy_(parameter.to(torch.bfloat16).to(torch.float32))
  loaded = peft.PeftModel.from_pretrained(theirs, str(tmp_path)).eval()
  assert _difference(logits, checkpoints.logits(loaded, IDS)) < 1e-5
  again = pretrained.load(base(name), frozen_dtype='bfloat16')
  peft_folders.load(again, str(tmp_path))
  assert _difference(again(IDS), logits) < 1e-5
  lora.merge(again)
  assert _difference(again(IDS), logits) < 1e-4 and len(again.trainable_variables) == len(plain_weights(again))


def plain_weights(model):
  return [variable for variable in model.variables if variable.dtype.is_floating]


def _disturb(model):
  """Adds noise to the trained weights of peft's model: new adapters change nothing."""
  torch.manual_seed(0)
  with torch.no_grad():
    for parameter in model.parameters():
      if parameter.requires_grad:
        parameter.add_(torch.randn(parameter.shape) * 0.2)


def test_modules_that_peft_trained_whole_are_loaded(base, tmp_path):
  config = peft.LoraConfig(r=2, target_modules=['q_proj'], modules_to_save=['lm_head', 'norm'], task_type='CAUSAL_LM')
  theirs = peft.get_peft_model(checkpoints.reloaded(base('llama')), config).eval()
  _disturb(theirs)
  expected = checkpoints.logits(theirs, IDS)
  theirs.save_pretrained(tmp_path)
  model = pretrained.load(base('llama'))
  peft_folders.load(model, str(tmp_path))
  assert _difference(model(IDS), expected) < 1e-5


@pytest.mark.parametrize(
  'modules, message',
  [
    (('lm_haed',), "modules_to_save: 'lm_haed' matches no module .*; did you mean lm_head"),
    (('q_proj',), 'modules_to_save: decoder/blocks/0/self_attn/q_proj: has an adapter by target_modules'),
  ],
)
def test_modules_that_cannot_be_trained_whole_are_refused(base, modules, message):
  with pytest.raises(errors.UserError, match=message):
    lora.attach(pretrained.load(base('llama')), lora.LoraConfig(target_modules=('q_proj',), modules_to_save=modules))


@tiers.parametrize(
  'modules, message',
  [
    (('lm_head',), r'the head of this model is its embedding \(tie_word_embeddings\)'),
    (('wte',), r'the head is the embedding \(tie_word_embeddings\)'),
  ],
  fast=1,
)
def test_a_head_that_is_the_embedding_is_not_trained_whole(base, modules, message):
  with pytest.raises(errors.UserError, match=message):
    lora.attach(pretrained.load(base('gpt2')), lora.LoraConfig(modules_to_save=modules))


def test_some_rows_of_stacked_layers_are_not_trained_whole(base):
  with pytest.raises(errors.UserError, match='load with scan_layers=False'):
    lora.attach(
      pretrained.load(base('llama'), scan_layers=True),
      lora.LoraConfig(modules_to_save=('model.layers.0.input_layernorm',)),
    )


def test_ranks_and_alphas_of_single_modules_are_loaded(base, tmp_path):
  config = peft.LoraConfig(
    r=2, lora_alpha=4, target_modules=['q_proj', 'up_proj'], rank_pattern={'up_proj': 5}, alpha_pattern={'up_proj': 1}
  )
  theirs = peft.get_peft_model(checkpoints.reloaded(base('llama')), config).eval()
  with torch.no_grad():
    for parameter in theirs.parameters():
      parameter.add_(torch.randn(parameter.shape) * (0.2 if parameter.requires_grad else 0))
  theirs.save_pretrained(tmp_path / 'adapter')
  model = pretrained.load(base('llama'))
  peft_folders.load(model, str(tmp_path / 'adapter'))
  expected = checkpoints.logits(theirs, IDS)
  assert _difference(model(IDS), expected) < 1e-5
  peft_folders.save(model, str(tmp_path / 'again'))
  assert _difference(_theirs(base('llama'), str(tmp_path / 'again')), expected) < 1e-5


def test_an_adapter_over_nf4_is_loaded_over_nf4(base, tmp_path):
  quantization = quantized_linear.QuantizationConfig(method='nf4')
  model = pretrained.load(base('llama'))
  lora.attach(model, lora.LoraConfig(), quantization)
  logits = _shaken(model)(IDS)
  peft_folders.save(model, str(tmp_path))
  again = pretrained.load(base('llama'))
  peft_folders.load(again, str(tmp_path), quantization)
  assert _difference(again(IDS), logits) < 1e-6


def test_saving_adapters_unpacks_no_kernel(base, tmp_path, monkeypatch):
  """Of stacked layers each would be all rows in float32, once for every row."""
  model = pretrained.load(base('llama'), scan_layers=True)
  lora.attach(model, lora.LoraConfig(r=2), quantized_linear.QuantizationConfig(method='nf4'))
  unpacked = []
  matrix = quantized_linear.QuantizedLinear.matrix
  monkeypatch.setattr(quantized_linear.QuantizedLinear, 'matrix', lambda self: unpacked.append(self) or matrix(self))
  peft_folders.save(model, str(tmp_path / 'adapter'))
  assert (tmp_path / 'adapter/adapter_model.safetensors').exists() and not unpacked


@pytest.fixture(scope='module')
def adapter(base, tmp_path_factory):
  """The folder of an adapter of Llama."""
  model = pretrained.load(base('llama'))
  lora.attach(model, lora.LoraConfig(target_modules=('q_proj',)))
  folder = tmp_path_factory.mktemp('adapter')
  peft_folders.save(model, str(folder))
  return folder


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'bias': 'other'}, "bias: 'other' is not implemented, none, all, lora_only are"),
    ({'peft_type': 'IA3'}, "peft_type: 'IA3' is not implemented"),
    ({'modules_to_save': ['lm_head']}, 'modules_to_save: lm_head: its tensors are missing'),
    ({'lora_bias': True}, 'lora_bias: True may change the result: not implemented'),
    ({'init_lora_weights': 'pissa'}, "init_lora_weights: 'pissa' changes the base model too"),
    ({'some_new_field': 3}, 'some_new_field: 3 may change the result: not implemented'),
    ({'r': None}, 'r and lora_alpha: expected numbers'),
    ({'use_dora': True}, 'lora_magnitude_vector is missing'),
  ],
)
def test_what_is_not_implemented_is_refused_by_name(base, adapter, tmp_path, fields, message):
  for name in (peft_folders.CONFIG_FILE, peft_folders.WEIGHTS_FILE):
    (tmp_path / name).write_bytes((adapter / name).read_bytes())
  config = json.loads((tmp_path / peft_folders.CONFIG_FILE).read_text())
  (tmp_path / peft_folders.CONFIG_FILE).write_text(json.dumps({**config, **fields}))
  model = pretrained.load(base('llama'))
  with pytest.raises(errors.UserError, match=message):
    peft_folders.load(model, str(tmp_path))
  assert not lora.adapters(model)


def test_folders_of_something_else_are_refused(base, adapter, tmp_path):
  model = pretrained.load(base('llama'))
  with pytest.raises(errors.UserError, match='adapter_config.json: no such file'):
    peft_folders.load(model, str(tmp_path))
  (tmp_path / peft_folders.CONFIG_FILE).write_bytes((adapter / peft_folders.CONFIG_FILE).read_bytes())
  with pytest.raises(errors.UserError, match='adapter_model.safetensors: no such file'):
    peft_folders.load(model, str(tmp_path))
  (tmp_path / peft_folders.WEIGHTS_FILE).write_bytes((adapter / peft_folders.WEIGHTS_FILE).read_bytes())
  for name, folder, message in (
    ('qwen3', tmp_path, 'has the shape .* this model needs'),
    ('gpt2', tmp_path, 'q_proj.lora_A.weight has no place in this model'),
    ('qwen3', adapter, 'model_type: llama in the base of the adapters, qwen3 in this model'),
  ):
    with pytest.raises(errors.UserError, match=message):
      peft_folders.load(pretrained.load(base(name)), str(folder))
  with pytest.raises(errors.UserError, match='the model has no adapters to be saved'):
    peft_folders.save(model, str(tmp_path))
