"""Several adapters over one base, switched and combined, beside peft's `set_adapter` and `add_weighted_adapter`."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.language.modeling import adapter_sets
from official_ext.language.modeling import lora
from official_ext.language.modeling import peft_folders
from official_ext.language.modeling import pretrained
from official_ext.language.modeling import quantized_linear

pytest.importorskip('peft', reason="needs the test extra: pip install 'official-ext[test]'")
import peft

from tests import tiers
from tests.language.modeling import checkpoints

IDS = np.random.default_rng(0).integers(3, 67, (2, 11)).astype(np.int32)
_SETTINGS = {  # Of other layers and ranks.
  'a': {'r': 3, 'lora_alpha': 5.0, 'target_modules': ('q_proj', 'down_proj')},
  'b': {'r': 3, 'lora_alpha': 2.0, 'target_modules': ('q_proj', 'v_proj'), 'use_rslora': True},
  'c': {'r': 5, 'lora_alpha': 7.0, 'target_modules': ('q_proj', 'o_proj')},
}


def _adapter(base, folder, settings, seed):
  model = pretrained.load(base)
  lora.attach(model, lora.LoraConfig(**settings))
  for number, variable in enumerate(model.trainable_variables):
    variable.assign_add(0.2 * tf.random.stateless_normal(variable.shape, [seed, number]))
  peft_folders.save(model, folder)
  return folder


@pytest.fixture(scope='module', params=['llama', 'gpt2'])
def folders(request, tmp_path_factory):
  """(the folder of a base, name -> folder of an adapter)."""
  root = tmp_path_factory.mktemp('folders') / request.param
  root.mkdir()
  base = str(root / 'base')
  checkpoints.random_model(checkpoints.config(request.param)).save_pretrained(base)
  made = {name: _adapter(base, str(root / name), each, seed) for seed, (name, each) in enumerate(_SETTINGS.items(), 1)}
  return base, made


@pytest.fixture
def theirs(folders):
  base, adapters = folders
  model = peft.PeftModel.from_pretrained(checkpoints.reloaded(base), adapters['a'], adapter_name='a')
  for name in ('b', 'c'):
    model.load_adapter(adapters[name], adapter_name=name)
  return model.eval()


def _difference(first, second):
  return float(np.max(np.abs(np.asarray(first) - np.asarray(second))))


@pytest.mark.slow
def test_switched_adapters_are_those_of_peft(folders, theirs):
  base, adapters = folders
  model = pretrained.load(base)
  plain = model(IDS).numpy()
  found = adapter_sets.AdapterSet(model, adapters)
  traces = []

  @tf.function(autograph=False)
  def logits(ids):
    traces.append(1)
    return model(ids)

  assert found.active == 'a'
  for name in ('a', 'c', 'b', 'a'):
    found.set_adapter(name)
    theirs.set_adapter(name)
    ours = logits(IDS)
    assert _difference(ours, plain) > 0.05
    assert _difference(ours, checkpoints.logits(theirs, IDS)) < 7e-6
  found.set_adapter(None)
  assert _difference(model(IDS), plain) == 0 and found.active is None
  assert len(traces) == 1


@tiers.parametrize(
  'names, weights, kind',
  [('ab', (0.7, 0.3), 'linear'), ('ab', (1.0, -0.5), 'linear'), ('abc', (0.5, 0.25, 1.5), 'cat'), ('c', (0.5,), 'cat')],
  fast=1,
)
def test_combined_adapters_are_those_of_peft(folders, theirs, tmp_path, names, weights, kind):
  base, adapters = folders
  if kind == 'linear' and base.endswith('gpt2/base'):
    kind = 'cat'  # There q_proj and v_proj are one module, so that b has twice the rank.
  target = str(tmp_path / 'both')
  adapter_sets.combine([adapters[name] for name in names], weights, target, kind)
  theirs.add_weighted_adapter(list(names), list(weights), 'both', combination_type=kind)
  theirs.set_adapter('both')
  expected = checkpoints.logits(theirs, IDS)
  model = pretrained.load(base)
  peft_folders.load(model, target)
  assert _difference(model(IDS), expected) < 7e-6
  loaded = peft.PeftModel.from_pretrained(checkpoints.reloaded(base), target).eval()
  assert _difference(checkpoints.logits(loaded, IDS), expected) < 7e-6


def test_what_cannot_be_switched_or_combined_is_refused(folders, tmp_path):
  base, adapters = folders
  with pytest.raises(
    errors.UserError, match='combination_type: linear: .*: has the ranks 3, [56], and linear needs one'
  ):
    adapter_sets.combine([adapters['a'], adapters['c']], [1, 1], str(tmp_path / 'x'))
  with pytest.raises(errors.UserError, match='adapter_weights: 1 for 2 adapters'):
    adapter_sets.combine([adapters['a'], adapters['b']], [1], str(tmp_path / 'x'))
  dora = _adapter(base, str(tmp_path / 'dora'), {'target_modules': ('q_proj',), 'use_dora': True}, 5)
  with pytest.raises(errors.UserError, match='use_dora: several adapters over one base have none'):
    adapter_sets.AdapterSet(pretrained.load(base), {'a': adapters['a'], 'dora': dora})
  found = adapter_sets.AdapterSet(pretrained.load(base), {'a': adapters['a']})
  with pytest.raises(errors.UserError, match="adapter: 'b' is not loaded; loaded are a"):
    found.set_adapter('b')
  assert not pathlib.Path(tmp_path / 'x').exists()


def test_a_combined_folder_names_its_base(folders, tmp_path):
  base, adapters = folders
  adapter_sets.combine([adapters['a'], adapters['b']], [0.5, 0.5], str(tmp_path / 'both'), 'cat')
  assert json.loads((tmp_path / 'both/adapter_config.json').read_text())['base_model_name_or_path'] == base
  assert (tmp_path / 'both/base_model.json').exists()


@tiers.parametrize(
  'how', [{'scan_layers': True}, {'quantization': quantized_linear.QuantizationConfig(method='nf4')}], fast=1
)
def test_adapters_are_switched_over_stacked_and_over_packed_layers(folders, how):
  base, adapters = folders
  names = ('a', 'b')
  model = pretrained.load(base, **how)
  found = adapter_sets.AdapterSet(model, {name: adapters[name] for name in names})
  for name in reversed(names):
    alone = pretrained.load(base, **how)
    peft_folders.load(alone, adapters[name])
    found.set_adapter(name)
    assert _difference(model(IDS), alone(IDS)) < 2e-6
