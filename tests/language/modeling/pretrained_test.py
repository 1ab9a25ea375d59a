"""A model loaded from a Hugging Face folder equals that of transformers, and so does a saved one."""

import json
import pathlib
import pickle
import re
import sys

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import families
from official_ext.language.modeling import lora
from official_ext.language.modeling import model_weights
from official_ext.language.modeling import pretrained
from official_ext.language.modeling import quantized_linear
from official_ext.language.modeling.families import family
from official_ext.language.text import tokenizer as tokenizer_lib
from official_ext.language.text import tokenizer_training

pytest.importorskip('transformers', reason="needs the test extra: pip install 'official-ext[test]'")
from safetensors.numpy import load_file
from safetensors.numpy import save_file

from tests import tiers
from tests.language.modeling import checkpoints
from tests.language.text import hugging_face_folders

IDS = np.random.default_rng(0).integers(3, 67, (2, 21)).astype(np.int32)
SHORT = IDS[:, :9]


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """A function: name of a case -> (folder, transformers' model), made once."""
  found = {}

  def make(name):
    if name not in found:
      folder = tmp_path_factory.mktemp(name)
      model = checkpoints.random_model(checkpoints.config(name))
      model.save_pretrained(folder)
      found[name] = str(folder), model
    return found[name]

  return make


def difference(first, second):
  return float(np.max(np.abs(np.asarray(first) - np.asarray(second))))


def edited(folder, target, remove=(), **fields):
  """A copy of a folder with another configuration."""
  target.mkdir()
  for name in ('model.safetensors', 'config.json'):
    (target / name).write_bytes((pathlib.Path(folder) / name).read_bytes())
  config = json.loads((target / 'config.json').read_text())
  config.update(fields)
  for name in remove:
    config.pop(name, None)
  (target / 'config.json').write_text(json.dumps(config))
  return str(target)


# Of each family the first.
_OF_EACH_FAMILY = {config: name for name, (config, _) in reversed(checkpoints.CASES.items())}.values()


@tiers.parametrize('name', checkpoints.CASES, fast=[*_OF_EACH_FAMILY])
def test_logits_are_those_of_transformers(made, tmp_path, name):
  folder, theirs = made(name)
  model = pretrained.load(folder)
  logits = model(tf.constant(IDS))
  assert logits.dtype == tf.float32 and logits.shape == (2, 21, 67)
  expected = checkpoints.logits(theirs, IDS)
  assert np.std(expected) > 0.3  # Logits of nothing would agree with anything.
  assert difference(logits, expected) < 1e-5
  assert difference(tf.function(model, jit_compile=True)(tf.constant(IDS)), expected) < 1e-5
  # Up to the original context dynamic and longrope have other frequencies.
  fresh = checkpoints.reloaded(folder)
  assert difference(model(tf.constant(SHORT)), checkpoints.logits(fresh, SHORT)) < 1e-5

  pretrained.save(model, str(tmp_path / 'saved'))
  again = checkpoints.reloaded(str(tmp_path / 'saved'))
  # Of a folder too: weights in a file lie otherwise in memory than new ones, which rounds some products otherwise.
  assert difference(checkpoints.logits(again, IDS), checkpoints.logits(fresh, IDS)) == 0.0


@tiers.parametrize(
  'name',
  [
    *('falcon_groups', 'cohere', 'granite', 'olmo2', 'mixtral', 'qwen2_moe', 'phi', 'gemma', 'starcoder2'),
    *('falcon', 'falcon_sequential', 'falcon_alibi_groups', 'cohere_qk_norm', 'llama'),
  ],
  fast=1,
)
def test_gradients_are_those_of_transformers(made, tmp_path, name):
  folder, _ = made(name)
  theirs = checkpoints.reloaded(folder)
  (theirs(checkpoints.torch.tensor(IDS).long()).logits ** 2).mean().backward()
  with checkpoints.torch.no_grad():
    for parameter in theirs.parameters():
      parameter.copy_(parameter.grad)
  theirs.save_pretrained(tmp_path)  # Gradients by the names of weights.
  expected = {path: slot.numpy() for path, slot in model_weights.find_slots(pretrained.load(str(tmp_path))).items()}

  model = pretrained.load(folder)
  with tf.GradientTape() as tape:
    loss = tf.reduce_mean(model(tf.constant(IDS)) ** 2)
  found = tape.gradient(loss, model.trainable_variables)
  for variable, gradient in zip(model.trainable_variables, found):
    variable.assign(tf.convert_to_tensor(gradient))
  for path, slot in model_weights.find_slots(model).items():
    # An expert may have no token.
    assert np.abs(expected[path]).max() > 1e-5 or '/experts/' in path, path
    np.testing.assert_allclose(slot.numpy(), expected[path], rtol=1e-4, atol=2e-6, err_msg=path)


def refusal(folder, **options):
  with pytest.raises(errors.UserError) as raised:
    pretrained.load(folder, **options)
  return str(raised.value)


@pytest.mark.parametrize('name', ['llama_3', 'llama_longrope', 'qwen2_sliding', 'gemma3'])
def test_the_dialect_of_transformers_4_means_the_same(made, tmp_path, name):
  folder, theirs = made(name)
  ropes = json.loads((pathlib.Path(folder) / 'config.json').read_text())['rope_parameters']
  old = {}
  if 'full_attention' in ropes:
    old['rope_local_base_freq'] = ropes['sliding_attention']['rope_theta']
    ropes = ropes['full_attention']
  old['rope_theta'] = ropes.pop('rope_theta')
  old['rope_scaling'] = {'type' if name == 'qwen2_sliding' else 'rope_type': ropes.pop('rope_type'), **ropes}
  copy = edited(folder, tmp_path / 'old', remove=('rope_parameters',), **old)
  model = pretrained.load(copy)
  assert difference(model(tf.constant(IDS)), checkpoints.logits(theirs, IDS)) < 1e-5
  pretrained.save(model, str(tmp_path / 'saved'))
  written = json.loads((tmp_path / 'saved/config.json').read_text())
  assert 'rope_parameters' not in written and written['rope_theta'] == old['rope_theta']
  again = checkpoints.reloaded(str(tmp_path / 'saved'))
  assert difference(checkpoints.logits(again, IDS), checkpoints.logits(theirs, IDS)) == 0.0


def test_shards_in_bfloat16_and_the_files_of_the_tokenizer_come_and_go(tmp_path):
  theirs = checkpoints.random_model(checkpoints.config('qwen3')).to(checkpoints.torch.bfloat16)
  theirs.save_pretrained(tmp_path / 'in', max_shard_size='20KB')
  (tmp_path / 'in/tokenizer.json').write_bytes(b'{"x": "\\u00e4"}\r\n')
  (tmp_path / 'in/tokenizer.model').write_bytes(b'\x00\xff')
  assert len(list((tmp_path / 'in').glob('*.safetensors'))) > 2
  model = pretrained.load(str(tmp_path / 'in'), dtype='float32')
  expected = checkpoints.logits(checkpoints.reloaded(str(tmp_path / 'in')), IDS)
  assert difference(model(tf.constant(IDS)), expected) < 1e-5

  pretrained.save(model, str(tmp_path / 'out'), dtype='bfloat16', max_shard_bytes=20000)
  files = list((tmp_path / 'out').glob('*.safetensors'))
  assert len(files) > 2 and all(file.stat().st_size < 24000 for file in files)
  for name in ('tokenizer.json', 'tokenizer.model'):
    assert (tmp_path / 'out' / name).read_bytes() == (tmp_path / 'in' / name).read_bytes()
  assert json.loads((tmp_path / 'out/config.json').read_text())['eos_token_id'] == 2
  again = checkpoints.reloaded(str(tmp_path / 'out'))
  assert difference(checkpoints.logits(again, IDS), expected) == 0.0  # They were multiples of bfloat16 before.

  pretrained.save(model, str(tmp_path / 'out'))  # In one file: the shards and their index would be read before it.
  assert [path.name for path in (tmp_path / 'out').glob('*.safetensors*')] == ['model.safetensors']
  checkpoints.reloaded(str(tmp_path / 'out'))


def test_the_tokenizer_of_a_folder_that_was_saved_is_the_same_for_transformers(made, tmp_path):
  auto = checkpoints.transformers.AutoTokenizer.from_pretrained
  text = ' Grüße <|im_end|>\n<|begin_of_text|><s> 🎉</s><pad> a<tool_call>'
  messages = [{'role': 'user', 'content': text}]
  for name, write in hugging_face_folders.ALL.items():
    folder = edited(made('llama')[0], tmp_path / name)
    write(pathlib.Path(folder))
    (pathlib.Path(folder) / 'generation_config.json').write_text('{"eos_token_id": [2, 5]}')
    model = pretrained.load(folder)
    pretrained.save(model, str(tmp_path / f'{name}_saved'))
    pretrained.save(model, str(tmp_path / f'{name}_given'), tokenizer=tokenizer_lib.Tokenizer.load(folder))
    theirs = auto(folder)
    for saved in ('saved', 'given'):
      again = auto(str(tmp_path / f'{name}_{saved}'))
      assert again.encode(text) == theirs.encode(text) and len(again.encode(text)) > 5
      for tools in (None, [{'type': 'function', 'function': {'name': 'f'}}]):  # Some have another template then.
        rendered = [each.apply_chat_template(messages, tokenize=False, tools=tools) for each in (again, theirs)]
        assert rendered[0] == rendered[1]
      assert again.special_tokens_map == theirs.special_tokens_map
      config = checkpoints.transformers.GenerationConfig.from_pretrained(str(tmp_path / f'{name}_{saved}'))
      assert config.eos_token_id == [2, 5]


def test_a_tokenizer_that_is_given_names_its_special_tokens(tmp_path):
  tokenizer = tokenizer_training.train(['hello'], 262, ['<|end|>'])
  model = decoder.LanguageModel(decoder_config.DecoderConfig(vocab_size=262, hidden_size=32))
  pretrained.save(model, str(tmp_path), tokenizer=tokenizer)
  fields = json.loads((tmp_path / 'config.json').read_text())
  assert fields['eos_token_id'] == fields['bos_token_id'] == fields['pad_token_id'] == tokenizer.eos_token_id
  assert checkpoints.transformers.AutoTokenizer.from_pretrained(str(tmp_path)).decode([tokenizer.eos_token_id])


def test_a_model_with_adapters_or_packed_weights_is_saved_when_they_are_merged(made, tmp_path):
  model = pretrained.load(made('llama')[0])
  lora.attach(model, lora.LoraConfig(r=2))
  message = f'{tmp_path}: the model has adapters: merge first (ext.lora.merge), or save the adapters (ext.peft_folders.'
  with pytest.raises(errors.UserError, match=re.escape(message)):
    pretrained.save(model, str(tmp_path))
  lora.merge(model)
  quantized_linear.quantize(model, quantized_linear.QuantizationConfig(method='int8'))
  with pytest.raises(errors.UserError, match='the weights of the model are packed: unpack first'):
    pretrained.save(model, str(tmp_path))
  assert not list(tmp_path.iterdir())
  lora.merge(model)
  pretrained.save(model, str(tmp_path))
  checkpoints.reloaded(str(tmp_path))


def test_stacked_layers_hold_the_same_weights(made, tmp_path):
  folder, theirs = made('gemma3')
  model = pretrained.load(folder, scan_layers=True)
  assert len(model.decoder.blocks) == 1
  assert difference(model(tf.constant(IDS)), checkpoints.logits(theirs, IDS)) < 1e-5
  pretrained.save(model, str(tmp_path))
  again = checkpoints.reloaded(str(tmp_path))
  assert difference(checkpoints.logits(again, IDS), checkpoints.logits(theirs, IDS)) == 0.0


def test_a_model_that_was_never_loaded_is_saved(tmp_path):
  config = decoder_config.DecoderConfig(
    model_type='mistral',
    hidden_size=32,
    num_key_value_heads=2,
    layer_types=('sliding_attention',) * 4,
    sliding_window=3,
  )
  model = decoder.LanguageModel(config)
  pretrained.save(model, str(tmp_path))
  again = checkpoints.reloaded(str(tmp_path))
  assert again.config.sliding_window == 3
  assert difference(checkpoints.logits(again, IDS), model(tf.constant(IDS))) < 1e-5


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(qk_norm=True), 'decoder/blocks/0/self_attn/k_norm/scale: llama has no tensor|qk_norm: True cannot be saved'),
    (dict(layer_types=('sliding_attention',) * 4, sliding_window=3), 'layer_types: llama has no layers with a window'),
    (dict(final_logit_softcapping=3.0), 'final_logit_softcapping: 3.0 cannot be saved as llama, which has 0.0'),
    (dict(lm_head_bias=True), 'lm_head_bias: True cannot be saved as llama, which has False'),
    (dict(attention_multiplier=0.3), 'attention_multiplier: 0.3 cannot be saved as llama, which has 0.35'),
    (dict(block_type='parallel'), 'block_type: .parallel. cannot be saved as llama, which has .sequential.'),
    (dict(model_type='falcon'), 'norm_type: .rms_norm. cannot be saved as falcon|gated_mlp: True cannot be saved'),
    (
      dict(position_embedding_type='alibi'),
      'position_embedding_type: .alibi. cannot be saved as llama, which has .rope.',
    ),
    (dict(model_type='gemma', hidden_act='gelu'), "hidden_act: 'gelu' cannot be saved as gemma"),
    (dict(model_type='lama'), "^model_type: no supported architecture 'lama'; did you mean llama"),
  ],
)
def test_a_model_that_its_family_cannot_express_is_not_saved(tmp_path, fields, message):
  model = decoder.LanguageModel(decoder_config.DecoderConfig(hidden_size=32, **fields))
  with pytest.raises(errors.UserError, match=message):
    pretrained.save(model, str(tmp_path / 'folder'))
  assert not (tmp_path / 'folder').exists()


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(model_type='mamba'), "config.json: no supported architecture 'mamba'; did you mean .* There are cohere, "),
    (dict(hidden_act='swish7'), "config.json: hidden_act: 'swish7' is not known"),
    (
      dict(quantization_config={'bits': 4}),
      'config.json: quantization_config: the weights are quantized .by an unnamed method.',
    ),
    (dict(attention_chunk_size=8192), 'config.json: attention_chunk_size: 8192 may change the output of the model'),
    (
      dict(rope_parameters={'rope_type': 'mrope'}),
      "rope_parameters.rope_type: 'mrope' is not known; known are",
    ),
    (dict(rope_parameters={'mrope_section': [1, 1]}), "rope_parameters.mrope_section: .*'default' has no such field"),
    (dict(rope_parameters={'rope_type': 'linear'}), "rope_parameters.factor: must be set for rope_type 'linear'"),
    (dict(partial_rotary_factor=0.5), 'partial_rotary_factor: 0.5: in this family only 1.0'),
    (dict(num_key_value_heads=3), 'num_key_value_heads: 3 does not divide 4 heads'),
    (dict(hidden_size=None), 'config.json: hidden_size is missing'),
  ],
)
def test_a_configuration_that_is_not_implemented_is_refused_by_name(made, tmp_path, fields, message):
  found = refusal(edited(made('llama')[0], tmp_path / 'folder', **fields))
  assert re.search(message, found), found
  assert '\n' not in found


@pytest.mark.parametrize(
  'name, fields, message',
  [
    ('gpt2', dict(scale_attn_by_inverse_layer_idx=True), 'scale_attn_by_inverse_layer_idx: True .* only False'),
    ('gemma2', dict(use_bidirectional_attention=True), 'use_bidirectional_attention: True .* only False'),
    ('gemma3', dict(rope_parameters={'global': {}}), 'rope_parameters.global: this family has full_attention'),
    ('qwen3', dict(layer_types=['full_attention', 'linear_attention', 'full_attention']), 'layer_types: .*linear_att'),
    ('qwen3', dict(layer_types=['full_attention']), 'layer_types: 1 types for 3 layers'),
    ('cohere2', dict(rotary_pct=0.5), 'rotary_pct: 0.5 .* only 1.0'),
    ('cohere2', dict(sliding_window=None), 'sliding_window: 0 must be above 0 for layers of type sliding_attention'),
    ('phi', dict(qk_layernorm=True), 'qk_layernorm: True .* only False'),
    ('phi', dict(tie_word_embeddings=True), 'lm_head_bias: the embedding is the head'),
    ('falcon_alibi', dict(attention_dropout=0.1), 'attention_dropout: 0.1 .* only 0.0'),
    ('mixtral', dict(router_jitter_noise=0.1), 'router_jitter_noise: 0.1 .* only 0.0'),
    ('gemma', dict(hidden_activation='gelu'), "hidden_activation: 'gelu' .* only 'gelu_pytorch_tanh'"),
  ],
)
def test_what_only_some_families_have_is_refused_by_name(made, tmp_path, name, fields, message):
  found = refusal(edited(made(name)[0], tmp_path / 'folder', **fields))
  assert re.search(message, found), found


# Of config.json of tiiuae/falcon-7b and CohereForAI/c4ai-command-r-v01, but for sizes.
PUBLISHED = {
  'falcon': dict(
    alibi=False,
    apply_residual_connection_post_layernorm=False,
    attention_dropout=0.0,
    bias=False,
    bos_token_id=11,
    eos_token_id=11,
    hidden_dropout=0.0,
    initializer_range=0.02,
    layer_norm_epsilon=1e-05,
    multi_query=True,
    new_decoder_architecture=False,
    parallel_attn=True,
    torch_dtype='bfloat16',
    use_cache=True,
  ),
  'cohere': dict(
    attention_bias=False,
    attention_dropout=0.0,
    bos_token_id=5,
    eos_token_id=255001,
    hidden_act='silu',
    initializer_range=0.02,
    layer_norm_eps=1e-05,
    logit_scale=0.0625,
    max_position_embeddings=8192,
    model_max_length=131072,
    pad_token_id=0,
    rope_theta=8000000.0,
    torch_dtype='float16',
    use_cache=True,
  ),
}


@pytest.mark.parametrize('name', list(PUBLISHED))
def test_published_fields_are_read(name):
  sizes = dict(vocab_size=96, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4)
  if name == 'falcon':
    del sizes['intermediate_size']
  config = family.read(families.find(name, 'model_type'), {**sizes, **PUBLISHED[name]}, 'config.json')
  assert config.norm_eps == 1e-5 and config.block_type == 'parallel' and config.attention_dropout == 0
  assert config.num_key_value_heads == {'falcon': 1, 'cohere': 4}[name]


def test_the_layers_of_cohere2_are_read_from_published_fields():
  """Every fourth layer has neither window nor rotation. Fields of config.json of CohereLabs/tiny-aya-earth, but for
  sizes; older files have a sliding_window_pattern in place of layer_types.
  """
  sizes = dict(vocab_size=96, hidden_size=32, intermediate_size=44, num_hidden_layers=8, num_attention_heads=4)
  published = dict(
    cache_implementation='hybrid',
    layer_switch=4,
    logit_scale=1.0,
    order_of_interleaved_layers='local_attn_first',
    position_embedding_type='rope_gptj',
    rope_scaling=None,
    rope_theta=50000,
    rotary_pct=1.0,
    sliding_window=4096,
    sliding_window_pattern=4,
    use_embedding_sharing=True,
    use_gated_activation=True,
    use_parallel_block=True,
    use_parallel_embedding=False,
    use_qk_norm=False,
  )
  config = family.read(families.find('cohere2', 'model_type'), {**sizes, **published}, 'config.json')
  local, whole = (decoder_config.SLIDING, True), (decoder_config.FULL, False)
  assert decoder_config.layer_kinds(config) == (*(local,) * 3, whole) * 2
  assert config.sliding_window == 4096 and config.rope_parameters.rope_theta == 50000 and not config.qk_norm


@pytest.mark.parametrize(
  'field, value', [('apply_residual_connection_post_layernorm', True), ('attention_dropout', 0.1)]
)
def test_a_falcon_of_another_function_is_refused(field, value):
  fields = dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, **{field: value})
  with pytest.raises(errors.UserError, match=f'{field}: {value} may change the output of the model'):
    family.read(families.find('falcon', 'model_type'), fields, 'config.json')


@pytest.mark.parametrize('name', ['granite', 'cohere', 'cohere2'])
def test_a_classifier_that_transformers_does_not_have_is_refused(made, tmp_path, name):
  message = f'transformers has no classifier of {name}, so a folder cannot represent one'
  with pytest.raises(errors.UserError, match=message):
    pretrained.load_classifier(made(name)[0])
  config = pretrained.load(made(name)[0]).config
  with pytest.raises(errors.UserError, match=message):
    pretrained.save(decoder.SequenceClassifier(config, 1), str(tmp_path / 'folder'))
  assert not (tmp_path / 'folder').exists()


def test_a_field_that_is_unknown_can_be_ignored_by_name(made, tmp_path):
  folder, theirs = made('llama')
  folder = edited(folder, tmp_path / 'folder', some_tool_was_here='1.2')
  assert "ignore_fields=('some_tool_was_here',)" in refusal(folder)
  model = pretrained.load(folder, ignore_fields=('some_tool_was_here',))
  assert difference(model(tf.constant(IDS)), checkpoints.logits(theirs, IDS)) < 1e-5


def rewritten(folder, target, change):
  """A copy of a folder with other tensors: `change` is called with the dictionary of all."""
  folder = edited(folder, target)
  tensors = load_file(f'{folder}/model.safetensors')
  change(tensors)
  save_file(tensors, f'{folder}/model.safetensors')
  return folder


@pytest.mark.parametrize(
  'name, change, message',
  [
    (
      'llama',
      lambda tensors: tensors.pop('model.layers.1.mlp.up_proj.weight'),
      'folder: the tensor model.layers.1.mlp.up_proj.weight is missing$',
    ),
    (
      'llama',
      lambda tensors: [tensors.pop(name) for name in list(tensors) if '.mlp.' in name],
      r'folder: the tensor model.layers.0.mlp.\w+.\w+ is missing, and 17 more$',
    ),
    (
      'llama',
      lambda tensors: tensors.update({'model.layers.3.input_layernorm.weight': np.ones(32, np.float32)}),
      'folder: the tensor model.layers.3.input_layernorm.weight has no place here$',
    ),
    (
      'llama',
      lambda tensors: tensors.update({'lm_head.weight': np.ones((32, 67), np.float32)}),
      r'folder: the tensor lm_head.weight has the shape \(32, 67\); the configuration says \(67, 32\)$',
    ),
    (
      'llama_tied',
      lambda tensors: tensors.update({'lm_head.weight': np.ones((67, 32), np.float32)}),
      'folder: the tensor lm_head.weight is not the embedding, though config.json says tie_word_embeddings; set it',
    ),
  ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(made, tmp_path, name, change, message):
  found = refusal(rewritten(made(name)[0], tmp_path / 'folder', change))
  assert re.search(message, found), found


def test_files_of_the_bare_decoder_and_of_old_versions_are_read(made, tmp_path):
  """As OpenAI's GPT-2 is published: without the prefix, with masks as buffers, with a head that is the embedding."""

  def change(tensors):
    for name in list(tensors):
      tensors[name.removeprefix('transformer.')] = tensors.pop(name)
    tensors['h.0.attn.bias'] = np.ones((1, 1, 8, 8), np.float32)
    tensors['lm_head.weight'] = tensors['wte.weight'].copy()

  folder, theirs = made('gpt2')
  model = pretrained.load(rewritten(folder, tmp_path / 'folder', change))
  assert difference(model(tf.constant(IDS)), checkpoints.logits(theirs, IDS)) < 1e-5


class _Bomb:
  def __reduce__(self):
    return exec, ('raise SystemExit("opened")',)


def test_a_folder_without_safetensors_is_refused_and_a_pickle_never_opened(made, tmp_path):
  folder = pathlib.Path(edited(made('llama')[0], tmp_path / 'folder'))
  (folder / 'model.safetensors').unlink()
  assert 'model.safetensors: no such file, and no model.safetensors.index.json' in refusal(str(folder))
  (folder / 'pytorch_model.bin').write_bytes(pickle.dumps(_Bomb()))
  assert 'pytorch_model.bin: a pickle file runs any code' in refusal(str(folder))
  (folder / 'model.safetensors').write_bytes(pickle.dumps(_Bomb()))
  assert 'model.safetensors: cannot be read as safetensors' in refusal(str(folder))
  index = {'weight_map': {'lm_head.weight': '../other.safetensors'}}
  (folder / 'model.safetensors.index.json').write_text(json.dumps(index))
  assert "'../other.safetensors' is not a safetensors file of this folder" in refusal(str(folder))
  index = {'weight_map': {'lm_head.weight': 'model-1.safetensors'}}
  (folder / 'model.safetensors.index.json').write_text(json.dumps(index))
  assert 'model-1.safetensors: no such file, and model.safetensors.index.json names it' in refusal(str(folder))
  (folder / 'config.json').write_text('[]')
  assert 'config.json: expected an object, found list' in refusal(str(folder))
  (folder / 'config.json').unlink()
  assert 'config.json: no such file' in refusal(str(folder))
  assert 'nowhere: no such folder' in refusal(str(tmp_path / 'nowhere'))


def test_what_the_weights_were_trained_with_cannot_be_changed_by_loading(made):
  assert 'hidden_act: is the value of the training' in refusal(made('llama')[0], hidden_act='gelu')


def test_a_missing_library_is_named_with_the_extra(made, monkeypatch):
  monkeypatch.setitem(sys.modules, 'safetensors', None)
  assert "pip install 'official-ext[language_models]'" in refusal(made('llama')[0])
