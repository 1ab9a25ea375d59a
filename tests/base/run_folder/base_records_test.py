"""Adapters know the base that they were trained on: another one is reported, one of another shape refused."""

import json
import logging
import pathlib
import shutil

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.base.run_folder import model_folders
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import lora
from official_ext.language.modeling import peft_folders
from official_ext.language.modeling import pretrained
from official_ext.language.modeling import quantized_linear

safetensors = pytest.importorskip('safetensors.numpy', reason="needs: pip install 'official-ext[language_models]'")

NF4 = quantized_linear.QuantizationConfig(method='nf4')


def write_model(folder, seed=0, dtype='bfloat16', **fields):
  sizes = dict(vocab_size=31, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_key_value_heads=2)
  model = decoder.LanguageModel(decoder_config.DecoderConfig(**{**sizes, **fields}))
  for number, variable in enumerate(model.variables):
    variable.assign_add(0.1 * tf.random.stateless_normal(variable.shape, [seed, number]))
  pretrained.save(model, str(folder), dtype)
  return str(folder)


def write_adapter(base, folder, quantization=None, frozen_dtype=None, modules_to_save=(), **settings):
  model = pretrained.load(base, **settings)
  config = lora.LoraConfig(r=2, target_modules=('q_proj', 'up_proj'), modules_to_save=modules_to_save)
  lora.attach(model, config, quantization, frozen_dtype)
  peft_folders.save(model, str(folder))
  return str(folder)


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  """A folder with a model, `base`, its weights multiples of bfloat16, and `adapter` on it."""
  place = tmp_path_factory.mktemp('place')
  write_adapter(write_model(place / 'base'), place / 'adapter')
  return place


@pytest.fixture
def warnings(caplog):
  """A function: loads an adapter over a base, returns the warnings."""

  def load(base, adapter, **options):
    caplog.clear()
    with caplog.at_level(logging.WARNING):
      model = pretrained.load(str(base), **options)
      peft_folders.load(model, str(adapter))
    return [record.getMessage() for record in caplog.records]

  logger = logging.getLogger('absl')
  propagates, logger.propagate = logger.propagate, True
  yield load
  logger.propagate = propagates


def rewrite(folder, target, change):
  """A copy of a folder with other tensors."""
  shutil.copytree(folder, target)
  path = target / 'model.safetensors'
  safetensors.save_file(change(safetensors.load_file(path)), path, metadata={'format': 'pt'})
  return target


def test_the_record_names_the_base_and_how_it_was_kept(place, tmp_path):
  write_adapter(str(place / 'base'), tmp_path, NF4, 'bfloat16', dtype='mixed_bfloat16')
  found = json.loads((tmp_path / 'base_model.json').read_text())
  assert found['folder'] == str(place / 'base') and len(found['weights_sha256']) == 64
  assert found['quantization'] == {**NF4.as_dict(), 'skip_modules': ['lm_head']}
  assert (found['frozen_dtype'], found['compute_dtype']) == ('bfloat16', 'bfloat16')
  assert found['config']['num_hidden_layers'] == 2 and 'scan_layers' not in found['config']
  plain = json.loads((place / 'adapter/base_model.json').read_text())
  assert plain['weights_sha256'] == found['weights_sha256']
  assert plain['quantization'] == {'method': 'none'} and plain['frozen_dtype'] == 'float32'


@pytest.mark.parametrize('quantization', [None, NF4], ids=['bfloat16', 'nf4'])
def test_modules_that_are_trained_whole_do_not_hide_how_the_rest_was_kept(place, tmp_path, warnings, quantization):
  base = str(place / 'base')
  write_adapter(base, tmp_path, quantization, 'bfloat16', ('embed_tokens', 'lm_head'))
  found = json.loads((tmp_path / 'base_model.json').read_text())
  assert found['frozen_dtype'] == 'bfloat16'
  assert warnings(base, tmp_path, quantization=quantization, frozen_dtype='bfloat16') == []


def test_the_same_weights_in_other_files_are_the_same_base(place, tmp_path, warnings):
  assert warnings(place / 'base', place / 'adapter') == []
  assert warnings(place / 'base', place / 'adapter', scan_layers=True) == []
  pretrained.save(pretrained.load(str(place / 'base')), str(tmp_path / 'wide'), 'float32', max_shard_bytes=9000)
  assert len(list((tmp_path / 'wide').glob('*.safetensors'))) > 2
  assert warnings(tmp_path / 'wide', place / 'adapter') == []
  bare = lambda tensors: {name.removeprefix('model.'): value for name, value in tensors.items()}
  assert warnings(rewrite(place / 'base', tmp_path / 'bare', bare), place / 'adapter') == []


def test_one_weight_that_differs_is_reported_with_both_digests(place, tmp_path, warnings):
  def change(tensors):
    value = tensors['model.norm.weight'].astype(np.float32)
    value[3] += 0.5
    return {**tensors, 'model.norm.weight': value.astype(ml_dtypes.bfloat16)}

  other = rewrite(place / 'base', tmp_path / 'other', change)
  (line,) = warnings(other, place / 'adapter')
  recorded = json.loads((place / 'adapter/base_model.json').read_text())['weights_sha256'][:12]
  assert line.startswith(f'{place / "adapter"}: ') and recorded in line and str(other) in line and '\n' not in line


def test_a_base_that_is_kept_otherwise_is_reported(place, tmp_path, warnings):
  packed = write_adapter(str(place / 'base'), tmp_path / 'packed', NF4, 'bfloat16')
  options = dict(quantization=NF4, frozen_dtype='bfloat16')
  assert warnings(place / 'base', packed, **options) == []
  (line,) = warnings(place / 'base', packed)
  assert 'nf4' in line and 'float32' in line and 'load_in_4bit' in line
  (line,) = warnings(place / 'base', place / 'adapter', **options)
  assert 'trained on float32 weights' in line and 'nf4' in line


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'num_hidden_layers': 3}, 'num_hidden_layers: 2 in the base of the adapters, 3 in this model'),
    ({'vocab_size': 33}, 'vocab_size: 31 in the base of the adapters, 33 in this model'),
    ({'model_type': 'mistral'}, 'model_type: llama in the base of the adapters, mistral in this model'),
    ({'intermediate_size': 64}, 'intermediate_size: 48 in the base of the adapters, 64'),
  ],
)
def test_a_base_of_another_shape_is_refused(place, tmp_path, fields, message):
  model = pretrained.load(write_model(tmp_path, **fields))
  with pytest.raises(errors.UserError, match=message):
    peft_folders.load(model, str(place / 'adapter'))
  assert not lora.adapters(model)


def test_adapters_without_a_record_are_held_against_their_targets(place, tmp_path, warnings):
  """As peft writes them: nothing to compare, but shapes and the layers that target_modules names."""
  shutil.copytree(place / 'adapter', tmp_path / 'adapter')
  (tmp_path / 'adapter/base_model.json').unlink()
  assert warnings(place / 'base', tmp_path / 'adapter') == []
  model = pretrained.load(write_model(tmp_path / 'deep', num_hidden_layers=3))
  with pytest.raises(
    errors.UserError, match=r"layers\.2\.\S+: has no adapter, and target_modules \('q_proj'\) names it"
  ):
    peft_folders.load(model, str(tmp_path / 'adapter'))


def test_a_record_that_is_none_is_refused(place, tmp_path):
  shutil.copytree(place / 'adapter', tmp_path / 'adapter')
  for content in ('[]', '{"quantization": {"method": "nf5"}}', '{"config": 3}', 'no'):
    (tmp_path / 'adapter/base_model.json').write_text(content)
    with pytest.raises(errors.UserError, match=r'base_model\.json: '):
      peft_folders.load(pretrained.load(str(place / 'base')), str(tmp_path / 'adapter'))


def test_merged_weights_are_in_no_folder_that_new_adapters_could_name(place, tmp_path):
  model = pretrained.load(str(place / 'base'))
  peft_folders.load(model, str(place / 'adapter'))
  lora.merge(model)
  lora.attach(model, lora.LoraConfig(r=2))
  peft_folders.save(model, str(tmp_path))
  assert json.loads((tmp_path / 'adapter_config.json').read_text())['base_model_name_or_path'] is None
  record = json.loads((tmp_path / 'base_model.json').read_text())
  assert record['folder'] is None and record['weights_sha256'] is None


def test_a_base_that_changes_after_it_was_loaded_has_no_digest(place, tmp_path):
  shutil.copytree(place / 'base', tmp_path / 'base')
  model = pretrained.load(str(tmp_path / 'base'))
  lora.attach(model, lora.LoraConfig(r=2))
  write_model(tmp_path / 'base', seed=5)
  peft_folders.save(model, str(tmp_path / 'adapter'))
  assert json.loads((tmp_path / 'adapter/base_model.json').read_text())['weights_sha256'] is None


def test_adapters_are_saved_although_the_folder_of_their_base_is_gone(place, tmp_path):
  shutil.copytree(place / 'base', tmp_path / 'base')
  model = pretrained.load(str(tmp_path / 'base'))
  lora.attach(model, lora.LoraConfig(r=2))
  shutil.rmtree(tmp_path / 'base')
  peft_folders.save(model, str(tmp_path / 'adapter'))
  record = json.loads((tmp_path / 'adapter/base_model.json').read_text())
  assert (record['folder'], record['weights_sha256']) == (str(tmp_path / 'base'), None)


def test_adapters_of_a_decoder_record_the_base_of_its_model(place, tmp_path):
  for name, add_head in (('model', pretrained.load), ('classifier', pretrained.load_classifier)):
    model = add_head(str(place / 'base'))
    lora.attach(model.decoder, lora.LoraConfig(r=2))
    peft_folders.save(model.decoder, str(tmp_path / name))
    record, expected = (json.loads((folder / 'base_model.json').read_text()) for folder in (
      tmp_path / name, place / 'adapter'
    ))  # fmt: skip
    assert record['folder'] == str(place / 'base')
    assert record['weights_sha256'] == expected['weights_sha256'] is not None


@pytest.mark.parametrize(
  'fields', [{'method': 'nf4', 'bits': 4}, {'method': 'nf4', 'block_size': '64'}, {'method': 'nf4', 'skip_modules': 3}]
)
def test_a_quantization_that_is_unknown_is_refused(place, tmp_path, fields):
  shutil.copytree(place / 'adapter', tmp_path / 'adapter')
  path = tmp_path / 'adapter/base_model.json'
  path.write_text(json.dumps({**json.loads(path.read_text()), 'quantization': fields}))
  with pytest.raises(errors.UserError, match=r'base_model\.json: not a record of a base; save the adapters again'):
    model_folders.read_base(str(tmp_path / 'adapter'))


def test_a_record_knows_all_fields_of_a_quantization(place, tmp_path):
  write_adapter(str(place / 'base'), tmp_path, NF4)
  record = model_folders.read_base(str(tmp_path))
  assert record.quantization == {**NF4.as_dict(), 'skip_modules': ['lm_head']}


# Weights that are not numbers.


@pytest.mark.parametrize('dtype, value', [('float32', np.nan), ('bfloat16', np.inf), ('float16', -np.inf)])
def test_weights_that_are_not_finite_are_refused_by_name(place, tmp_path, dtype, value):
  def change(tensors):
    kind = ml_dtypes.bfloat16 if dtype == 'bfloat16' else dtype
    tensors = {name: tensor.astype(kind) for name, tensor in tensors.items()}
    tensors['model.layers.1.mlp.up_proj.weight'][3, 4] = value
    return tensors

  folder = rewrite(place / 'base', tmp_path / 'broken', change)
  message = f'{folder}: the tensor model.layers.1.mlp.up_proj.weight has values that are not finite'
  for options in ({}, {'quantization': NF4}, {'scan_layers': True}):
    with pytest.raises(errors.UserError, match=message):
      pretrained.load(str(folder), **options)
  with pytest.raises(errors.UserError, match=message):
    pretrained.load_classifier(str(folder))


def test_adapters_that_are_not_finite_are_neither_loaded_nor_saved(place, tmp_path):
  shutil.copytree(place / 'adapter', tmp_path / 'adapter')
  path = tmp_path / 'adapter/adapter_model.safetensors'
  tensors = safetensors.load_file(path)
  name = sorted(tensors)[1]
  tensors[name][1, 1] = np.nan
  safetensors.save_file(tensors, path)
  model = pretrained.load(str(place / 'base'))
  with pytest.raises(errors.UserError, match=f'the tensor {name} has values that are not finite'):
    peft_folders.load(model, str(tmp_path / 'adapter'))
  assert not lora.adapters(model)
  peft_folders.load(model, str(place / 'adapter'))
  lora.adapters(model)[0].lora_a[0, 0].assign(np.nan)
  with pytest.raises(errors.UserError, match=r'lora_A\.weight has values that are not finite'):
    peft_folders.save(model, str(tmp_path / 'new'))
  assert not (tmp_path / 'new').exists()


def test_weights_that_are_not_finite_or_become_so_are_not_saved(place, tmp_path):
  model = pretrained.load(str(place / 'base'))
  model.decoder.norm.scale[3].assign(1e5)  # Finite, and too large for float16.
  with pytest.raises(errors.UserError, match=r'model\.norm\.weight has values that are beyond float16'):
    pretrained.save(model, str(tmp_path / 'half'), 'float16')
  pretrained.save(model, str(tmp_path / 'wide'), 'bfloat16')
  model.decoder.norm.scale[3].assign(np.nan)
  before = (tmp_path / 'wide/model.safetensors').read_bytes()
  with pytest.raises(errors.UserError, match=r'model\.norm\.weight has values that are not finite'):
    pretrained.save(model, str(tmp_path / 'wide'))
  assert [path.name for path in pathlib.Path(tmp_path / 'wide').iterdir() if path.name.startswith('.')] == []
  assert (tmp_path / 'wide/model.safetensors').read_bytes() == before
