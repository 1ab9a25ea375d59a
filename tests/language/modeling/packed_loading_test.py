"""Loading a folder: packing, the order of weights, and memory."""

import json

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import lora
from official_ext.language.modeling import nf4
from official_ext.language.modeling import pretrained
from official_ext.language.modeling import quantized_linear
from official_ext.training.model_parts import model_size
from tests import tiers

IDS = tf.constant(np.random.default_rng(0).integers(0, 31, [2, 9]), tf.int32)
NF4 = quantized_linear.QuantizationConfig(method='nf4')
INT8 = quantized_linear.QuantizationConfig(method='int8')


def _saved(folder, dtype='float32', max_shard_bytes=5 * 10**9, zeros=False, **fields):
  sizes = dict(vocab_size=31, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_key_value_heads=2)
  config = decoder_config.DecoderConfig(**{**sizes, 'initializer_range': 0.2, **fields})
  model = decoder.LanguageModel(config, initializer=tf.zeros_initializer if zeros else None)
  if not zeros:
    for number, variable in enumerate(model.variables):
      variable.assign_add(0.1 * tf.random.stateless_normal(variable.shape, [1, number]))
  pretrained.save(model, str(folder), dtype, max_shard_bytes)
  return str(folder)


def _notes(model):
  return [name for name in vars(model) if name.startswith('frozen_weights_sha256_')]


@tiers.parametrize('dtype', [pytest.param('float32', marks=pytest.mark.soak), 'bfloat16'], fast=['bfloat16'])
@tiers.parametrize('quantization, scan', [(NF4, False), (NF4, True), (INT8, True)], fast=1)
def test_kernels_packed_on_the_way_are_those_packed_afterwards(tmp_path, quantization, scan, dtype):
  folder = _saved(tmp_path, dtype, max_shard_bytes=9000, attention_bias=True, attention_out_bias=True)
  options = dict(quantization=quantization, frozen_dtype='bfloat16')
  afterwards = pretrained.load(folder, scan_layers=scan)
  lora.attach(afterwards, lora.LoraConfig(r=2), **options)
  on_the_way = pretrained.load(folder, scan_layers=scan, **options)
  assert on_the_way.trainable_variables == [] and _notes(on_the_way) == _notes(afterwards)
  without_adapters = on_the_way(IDS)
  lora.attach(on_the_way, lora.LoraConfig(r=2), **options)
  assert len(_notes(on_the_way)) == 1 and _notes(on_the_way) == _notes(afterwards)
  of = lambda model: [(variable.name, variable.shape, variable.dtype) for variable in model.trainable_variables]
  assert of(on_the_way) == of(afterwards) and len(of(afterwards)) == 2 * 7 * (1 if scan else 2)
  np.testing.assert_array_equal(on_the_way(IDS), afterwards(IDS))
  np.testing.assert_array_equal(without_adapters, afterwards(IDS))
  assert model_size.of(on_the_way) == model_size.of(afterwards)
  lora.merge(on_the_way)
  lora.merge(afterwards)
  np.testing.assert_array_equal(on_the_way(IDS), afterwards(IDS))
  assert len(on_the_way.trainable_variables) == len(pretrained.load(folder, scan_layers=scan).variables)


def test_a_model_that_is_packed_is_not_packed_otherwise(tmp_path):
  model = pretrained.load(_saved(tmp_path), quantization=NF4)
  with pytest.raises(errors.UserError, match='quantization: decoder/blocks/0/self_attn/q_proj is packed .* as nf4'):
    lora.attach(model, lora.LoraConfig(), INT8)
  with pytest.raises(errors.UserError, match='as nf4'):
    lora.attach(model, lora.LoraConfig(), NF4.replace(block_size=32))
  lora.attach(model, lora.LoraConfig(target_modules=('q_proj',)), NF4.replace())
  assert len(lora.adapters(model)) == 2


def test_numbers_that_are_not_finite_are_refused_by_the_layers_name(tmp_path):
  folder = _saved(tmp_path)
  model = pretrained.load(folder)
  model.decoder.blocks[1].mlp.up_proj.kernel[3, 4].assign(np.inf)
  with pytest.raises(errors.UserError, match='decoder/blocks/1/mlp/up_proj/kernel: has values that are not finite'):
    lora.attach(model, lora.LoraConfig(), NF4)


def test_variables_come_in_the_order_of_a_new_model_whatever_the_order_of_the_files(tmp_path):
  """Optimizers number their slots by it, in checkpoints too. Files are sorted by name: bias before weight."""
  fields = dict(norm_type='layer_norm', attention_bias=True, attention_out_bias=True, mlp_bias=True, model_type='gpt2')
  fields |= dict(position_embedding_type='learned', gated_mlp=False, hidden_act='gelu_new', tie_word_embeddings=True)
  fields |= dict(num_attention_heads=2, intermediate_size=128, max_position_embeddings=16)
  folder = _saved(tmp_path, **fields)
  assert json.loads((tmp_path / 'config.json').read_text())['model_type'] == 'gpt2'
  new = decoder.LanguageModel(pretrained.read_config(folder)[0])
  assert [v.name for v in pretrained.load(folder).variables] == [v.name for v in new.variables]


_SCRIPT = """
import json, sys
import official_ext as ext
import tensorflow as tf

def megabytes(name):
  return int(next(line for line in open('/proc/self/status') if line.startswith(name)).split()[1]) * 1024 / 1e6

small, folder = sys.argv[1:3]
options = json.loads(sys.argv[3])
if options.pop('method', None):
  options.update(quantization=ext.QuantizationConfig(method='nf4'), frozen_dtype='bfloat16')
ext.pretrained.load(small, **options)
open('/proc/self/clear_refs', 'w').write('5')  # The peak begins anew.
before = megabytes('VmRSS')
model = ext.pretrained.load(folder, **options)
weights = sum(variable.shape.num_elements() * variable.dtype.size for variable in model.variables) / 1e6
print(json.dumps({'weights': weights, 'peak': megabytes('VmHWM') - before}))
"""


@pytest.mark.slow
def test_loading_takes_the_weights_once_and_one_tensor(tmp_path, start_script):
  """A buffer of all weights, of the file, or of the float32 kernels that are packed, would be 100 MB more.

  Beside the weights there are 17 MB of the file at a time, the largest tensor in its stored type and in float32.
  """
  small = _saved(tmp_path / 'small')
  sizes = dict(hidden_size=512, intermediate_size=1536, num_hidden_layers=8, vocab_size=4000, zeros=True)
  folder = _saved(tmp_path / 'folder', **sizes)
  (file,) = (tmp_path / 'folder').glob('*.safetensors')
  assert file.stat().st_size > 110e6
  kernels, rest = 8 * (3 * 512 * 512 + 3 * 512 * 1536), 2 * 4000 * 512 + 17 * 512
  sizes = {False: 4 * (kernels + rest) / 1e6, True: (nf4.bytes_of([kernels], 64, True) + 2 * rest) / 1e6}
  cases = [{}, {'scan_layers': True}, {'method': 'nf4'}, {'method': 'nf4', 'scan_layers': True}]
  scripts = [start_script(_SCRIPT, [small, folder, json.dumps(options)]) for options in cases]
  for options, script in zip(cases, scripts):
    result = script.finish(timeout=300)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found['weights'] == pytest.approx(sizes['method' in options], rel=0.01), found
    assert found['peak'] < found['weights'] + 17 + 2 * 8.2 + 25, (options, found)
