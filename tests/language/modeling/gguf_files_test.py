"""GGUF files: every tensor, the logits and the tokens that independent readers get from them; refusals by name."""

import collections
import io
import json
import sys

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import gguf_files
from official_ext.language.modeling import position_encodings
from official_ext.language.modeling import pretrained
from official_ext.language.text import tokenizer as tokenizer_lib
from official_ext.language.text import tokenizer_training

pytest.importorskip('gguf', reason="needs the test extra: pip install 'official-ext[test]'")
pytest.importorskip('transformers', reason="needs the test extra: pip install 'official-ext[test]'")
import gguf
from safetensors.numpy import load_file
import sentencepiece
import tokenizers

from tests import tiers
from tests.language.modeling import checkpoints
from tests.language.text import hugging_face_folders as folders

NAMES = {
  'self_attn.q_proj': 'attn_q',
  'self_attn.k_proj': 'attn_k',
  'self_attn.v_proj': 'attn_v',
  'self_attn.o_proj': 'attn_output',
  'self_attn.q_norm': 'attn_q_norm',
  'self_attn.k_norm': 'attn_k_norm',
  'mlp.gate_proj': 'ffn_gate',
  'mlp.up_proj': 'ffn_up',
  'mlp.down_proj': 'ffn_down',
  'input_layernorm': 'attn_norm',
}
TEXTS = [
  *folders._texts()[:20],
  *(
    "I'LL say 1234 naïve things...\n\n  def f(x):\t return 3.14",
    ' a  b ',
    'Grüße, 你好, 🎉',
    '<|im_start|>a<|im_end|>',
  ),
]


def name_of(theirs, is_gemma2):
  """The name in a GGUF file of a tensor of transformers, as docs of the format list them."""
  if not theirs.startswith('model.layers.'):
    whole = {'model.embed_tokens': 'token_embd', 'model.norm': 'output_norm', 'lm_head': 'output'}
    module, _, kind = theirs.rpartition('.')
    return f'{whole[module]}.{kind}'
  _, _, number, rest = theirs.split('.', 3)
  module, _, kind = rest.rpartition('.')
  second = 'post_attention_norm' if is_gemma2 else 'ffn_norm'
  norms = {
    'post_attention_layernorm': second,
    'pre_feedforward_layernorm': 'ffn_norm',
    'post_feedforward_layernorm': 'post_ffw_norm',
  }
  return f'blk.{number}.{ {**NAMES, **norms}[module] }.{kind}'.replace(' ', '')


def in_pairs(value, heads):
  """Rows of a projection of heads: those that are rotated together stand side by side."""
  size = len(value) // heads
  order = [head * size + half * size // 2 + i for head in range(heads) for i in range(size // 2) for half in (0, 1)]
  return value[order]


def bytes_tokenizer():
  """GPT-2's rule: 262 tokens."""
  return tokenizer_training.train(folders._texts(), 300, ['<|im_start|>', '<|im_end|>'], folders.CHATML)


@pytest.fixture(scope='module')
def pieces_tokenizer(tmp_path_factory):
  """Llama 2's kind: the pieces of a model of sentencepiece, with all merges that make them."""
  written = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(folders._texts()),
    model_writer=written,
    vocab_size=480,
    model_type='bpe',
    byte_fallback=True,
    normalization_rule_name='identity',
    remove_extra_whitespaces=False,
    minloglevel=2,
  )
  model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
  vocab = {model.id_to_piece(number): number for number in range(len(model))}
  pairs = [
    (-model.get_score(number), text[:end], text[end:])
    for text, number in vocab.items()
    if number > 258
    for end in range(1, len(text))
    if text[:end] in vocab and text[end:] in vocab
  ]
  merges = [(left, right) for _, left, right in sorted(pairs, key=lambda pair: pair[0])]
  backend = tokenizers.Tokenizer(
    tokenizers.models.BPE(vocab, merges, unk_token='<unk>', byte_fallback=True, fuse_unk=True)
  )
  backend.normalizer = tokenizers.normalizers.Sequence(
    [tokenizers.normalizers.Prepend('▁'), tokenizers.normalizers.Replace(' ', '▁')]
  )
  backend.add_special_tokens(['<unk>', '<s>', '</s>'])
  backend.post_processor = tokenizers.processors.TemplateProcessing(single='<s> $A', special_tokens=[('<s>', 1)])
  named = {'bos_token': '<s>', 'eos_token': '</s>', 'unk_token': '<unk>'}
  return tokenizer_lib.Tokenizer.from_backend(backend, named)


# Cases whose logits transformers' own reader of GGUF files computes: it knows no biases of Llama, and no Gemma 1.
READ_AGAIN = {
  'llama': dict(attention_bias=False, mlp_bias=False, head_dim=8),
  'llama_tied': dict(hidden_act='silu'),
  'mistral': dict(),
  'qwen2': dict(),
  'qwen3': dict(attention_bias=False, head_dim=128),  # It reads no head_dim of Qwen3, and no scalar of Gemma 2.
  'gemma2': dict(
    attention_bias=False,
    head_dim=256,
    query_pre_attn_scalar=256,
    attn_logit_softcapping=50.0,
    final_logit_softcapping=30.0,
  ),
}
OTHERS = {'llama': dict(head_dim=12), 'gemma': dict(attention_bias=False)}


def made(name, folder, tokenizer, changes):
  """(our model, transformers') of a case."""
  theirs = checkpoints.random_model(checkpoints.config(name, vocab_size=512, **changes))
  theirs.save_pretrained(folder)
  tokenizer.save(str(folder))
  return pretrained.load(str(folder)), theirs


def read(path):
  """(name -> `ReaderTensor`, name -> value of the metadata) of a file."""
  reader = gguf.GGUFReader(path)
  fields = {name: field.contents() for name, field in reader.fields.items()}
  return {tensor.name: tensor for tensor in reader.tensors}, fields


@tiers.parametrize(
  'name, changes', [*READ_AGAIN.items(), *((name, changes) for name, changes in OTHERS.items())], fast=1
)
def test_every_tensor_of_a_folder_is_in_the_file(tmp_path, name, changes):
  model, theirs = made(name, tmp_path, bytes_tokenizer(), changes)
  path = str(tmp_path / 'model.gguf')
  gguf_files.write(model, path, bytes_tokenizer().beside(model.config.model_type), 'float32')
  found, fields = read(path)
  config = theirs.config
  heads = {'q_proj': config.num_attention_heads, 'k_proj': config.num_key_value_heads}
  expected = {}
  for their_name, value in load_file(tmp_path / 'model.safetensors').items():
    if fields['general.architecture'] == 'llama':
      value = next((in_pairs(value, number) for part, number in heads.items() if f'.{part}.' in their_name), value)
    is_offset = 'gemma' in name and value.ndim == 1
    expected[name_of(their_name, name == 'gemma2')] = value + np.float32(is_offset)
  assert found.keys() == expected.keys() and len(found) > 20
  for each, value in expected.items():
    assert found[each].tensor_type.name == 'F32'
    np.testing.assert_array_equal(found[each].data, value, err_msg=each)

  architecture = fields['general.architecture']
  of = lambda key: fields[f'{architecture}.{key}']
  assert architecture == {'mistral': 'llama'}.get(model.config.model_type, model.config.model_type)
  assert of('block_count') == 3 and of('embedding_length') == 32 and of('feed_forward_length') == 44
  assert (of('attention.head_count'), of('attention.head_count_kv')) == (4, 2)
  assert of('attention.key_length') == of('rope.dimension_count') == decoder_config.head_dim(model.config)
  assert of('rope.freq_base') == 5000.0 or name == 'gemma2'
  assert of('attention.layer_norm_rms_epsilon') == pytest.approx(1e-3)
  assert of('context_length') == (5 if name == 'mistral' else 64)
  if name == 'gemma2':
    caps = [of(key) for key in ('attn_logit_softcapping', 'final_logit_softcapping', 'attention.sliding_window')]
    assert caps == [50.0, 30.0, 5]

  if name in READ_AGAIN and changes is READ_AGAIN[name]:
    ids = np.random.default_rng(0).integers(3, 300, (2, 5 if name == 'mistral' else 19)).astype(np.int32)
    again = checkpoints.transformers.AutoModelForCausalLM.from_pretrained(
      tmp_path, gguf_file='model.gguf', attn_implementation='eager', dtype=checkpoints.torch.float32
    )
    difference = checkpoints.logits(again.eval(), ids) - np.asarray(model(tf.constant(ids)))
    assert np.abs(difference).max() < 2e-5


@tiers.parametrize('dtype', ['q8_0', 'float16', 'bfloat16'], fast=1)
def test_fewer_bits_are_rounded_and_vectors_are_not(tmp_path, dtype):
  model, _ = made('qwen2', tmp_path, bytes_tokenizer(), {})
  tokenizer = bytes_tokenizer().beside('qwen2')
  gguf_files.write(model, str(tmp_path / 'whole.gguf'), tokenizer, 'float32')
  gguf_files.write(model, str(tmp_path / 'small.gguf'), tokenizer, dtype)
  whole, (small, fields) = read(str(tmp_path / 'whole.gguf'))[0], read(str(tmp_path / 'small.gguf'))
  assert fields['general.file_type'] == {'float16': 1, 'q8_0': 7, 'bfloat16': 32}[dtype]
  kinds = set()
  for name, tensor in small.items():
    value, kind = whole[name].data, tensor.tensor_type
    found = gguf.quants.dequantize(tensor.data, kind)
    kinds.add((kind.name, value.ndim, value.shape[-1] % 32 == 0))
    if kind.name == 'Q8_0':
      blocks = np.abs(value.reshape(-1, 32))
      bound = np.repeat(blocks.max(axis=1) / 127 * (0.5 + 127 / 2048) + 1e-7, 32).reshape(
        value.shape
      )  # The scale is float16.
    else:
      bound = {'F32': 0.0, 'F16': 2.0**-11, 'BF16': 2.0**-8}[kind.name] * np.abs(value)
      bound = bound + (1e-7 if kind.name == 'F16' else 0)
    assert np.all(np.abs(found - value) <= bound), name
  if dtype == 'q8_0':
    assert kinds == {('Q8_0', 2, True), ('F16', 2, False), ('F32', 1, True), ('F32', 1, False)}
  else:
    assert {kind for kind, ndim, _ in kinds if ndim == 2} == {{'float16': 'F16', 'bfloat16': 'BF16'}[dtype]}


def test_the_frequencies_of_llama_3_are_factors_in_the_file(tmp_path):
  scaling = checkpoints._LLAMA3
  model, theirs = made('llama_3', tmp_path, bytes_tokenizer(), {})
  gguf_files.write(model, str(tmp_path / 'model.gguf'), bytes_tokenizer(), 'float32')
  factors = read(str(tmp_path / 'model.gguf'))[0]['rope_freqs.weight'].data
  plain = 5000.0 ** -(np.arange(0, 8, 2) / 8)
  np.testing.assert_allclose(plain / factors, theirs.model.rotary_emb.inv_freq.numpy(), rtol=1e-5)
  assert factors.max() == pytest.approx(scaling['factor']) and factors.min() < scaling['factor'] / 2


def spm_tokens(fields, text):
  """The tokens that llama.cpp makes of a text by scores: src/llama-vocab.cpp, llm_tokenizer_spm."""
  tokens, scores = fields['tokenizer.ggml.tokens'], fields['tokenizer.ggml.scores']
  numbers = {token: number for number, token in enumerate(tokens)}
  parts = list((' ' if fields['tokenizer.ggml.add_space_prefix'] else '') + text)
  parts = ['▁' if part == ' ' else part for part in parts]
  while True:
    pairs = [
      (-scores[numbers[left + right]], place)
      for place, (left, right) in enumerate(zip(parts, parts[1:]))
      if left + right in numbers
    ]
    if not pairs:
      break
    place = min(pairs)[1]
    parts[place : place + 2] = [parts[place] + parts[place + 1]]
  found = [fields['tokenizer.ggml.bos_token_id']] if fields['tokenizer.ggml.add_bos_token'] else []
  for part in parts:
    found += [numbers[part]] if part in numbers else [numbers[f'<0x{byte:02X}>'] for byte in part.encode()]
  return found


def tiny(tokenizer, **fields):
  config = dict(vocab_size=len(tokenizer) + 7, hidden_size=32, intermediate_size=32, num_hidden_layers=1)
  return decoder.LanguageModel(decoder_config.DecoderConfig(**{**config, **fields}))


@pytest.mark.slow
def test_the_tokens_of_scores_are_those_of_the_merges(tmp_path, pieces_tokenizer):
  path = str(tmp_path / 'model.gguf')
  gguf_files.write(tiny(pieces_tokenizer), path, pieces_tokenizer)
  fields = read(path)[1]
  assert fields['tokenizer.ggml.model'] == 'llama' and fields['tokenizer.ggml.add_space_prefix']
  kinds = fields['tokenizer.ggml.token_type']
  assert kinds[:3] == [2, 3, 3] and set(kinds[3:259]) == {6} and kinds[-7:] == [5] * 7
  texts = [text for text in TEXTS if '<|' not in text]
  assert [spm_tokens(fields, text) for text in texts] == [pieces_tokenizer.encode(text) for text in texts]
  assert max(map(len, map(pieces_tokenizer.encode, texts))) > 30


def test_tokens_and_chats_are_those_of_transformers_reader(tmp_path):
  tokenizer = bytes_tokenizer()
  path = str(tmp_path / 'model.gguf')
  gguf_files.write(tiny(tokenizer), path, tokenizer)
  fields = read(path)[1]
  assert (fields['tokenizer.ggml.model'], fields['tokenizer.ggml.pre']) == ('gpt2', 'gpt-2')
  assert fields['tokenizer.chat_template'] == folders.CHATML
  assert fields['tokenizer.ggml.eos_token_id'] == tokenizer.eos_token_id and not fields['tokenizer.ggml.add_bos_token']
  vocab, merges = fields['tokenizer.ggml.tokens'], fields['tokenizer.ggml.merges']
  backend = tokenizers.Tokenizer(
    tokenizers.models.BPE({token: number for number, token in enumerate(vocab)}, [tuple(m.split(' ')) for m in merges])
  )
  backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  special = [token for token, kind in zip(vocab, fields['tokenizer.ggml.token_type']) if kind == 3]
  backend.add_special_tokens(special)
  assert set(special) == {'<|endoftext|>', '<|im_start|>', '<|im_end|>'}
  assert [backend.encode(text).ids for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]


@pytest.mark.parametrize('has_config', [True, False])
def test_special_tokens_of_their_own_file_are_written(tmp_path, has_config):
  folder = tmp_path / 'folder'
  bytes_tokenizer().save(str(folder))
  config = json.loads((folder / 'tokenizer_config.json').read_text())
  (folder / 'special_tokens_map.json').write_text('{"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}')
  if has_config:
    kept = {name: value for name, value in config.items() if not name.endswith('_token')}
    (folder / 'tokenizer_config.json').write_text(json.dumps({**kept, 'add_bos_token': True}))
  else:
    (folder / 'tokenizer_config.json').unlink()
  tokenizer = tokenizer_lib.Tokenizer.load(str(folder))
  assert tokenizer.special_tokens == {'eos_token': '<|im_end|>', 'bos_token': '<|im_start|>'}
  path = str(tmp_path / 'model.gguf')
  gguf_files.write(tiny(tokenizer), path, tokenizer)
  fields = read(path)[1]
  tokens = fields['tokenizer.ggml.tokens']
  assert tokens[fields['tokenizer.ggml.eos_token_id']] == '<|im_end|>'
  assert tokens[fields['tokenizer.ggml.bos_token_id']] == '<|im_start|>'
  assert not fields['tokenizer.ggml.add_bos_token']  # Nothing adds it in training: add_bos_token is not read.
  assert fields['tokenizer.chat_template'] == folders.CHATML


def test_each_rule_has_llama_cpps_name(tmp_path):
  rules = {}
  for name, tokenizer in (('gpt2', bytes_tokenizer()), ('qwen2', bytes_tokenizer().beside('qwen2'))):
    rules[name] = tokenizer.definition()
  split = dict(rules['qwen2']['pre_tokenizer']['pretokenizers'][0])
  split['pattern'] = {'Regex': split['pattern']['Regex'].replace(r'|\p{N}|', r'|\p{N}{1,3}|')}
  plain = rules['gpt2']['pre_tokenizer']
  rest = rules['qwen2']['pre_tokenizer']['pretokenizers'][1]
  in_two = lambda first, last: {'type': 'Sequence', 'pretokenizers': [first, last]}
  model = rules['gpt2']['model']
  rules['llama3'] = {
    'pre_tokenizer': in_two(split, rest), 'normalizer': None, 'model': {**model, 'ignore_merges': True}
  }  # fmt: skip
  digits = {'type': 'Digits', 'individual_digits': True}
  rules['smollm'] = {'pre_tokenizer': in_two(digits, plain), 'normalizer': None, 'model': model}
  found = {name: gguf_files.split_rule(content, 'x') for name, content in rules.items()}
  assert found == {'gpt2': 'gpt-2', 'qwen2': 'qwen2', 'llama3': 'llama-bpe', 'smollm': 'smollm'}
  for name, change in (
    ('gpt2', {'normalizer': {'type': 'NFKC'}}),
    ('gpt2', {'pre_tokenizer': {**plain, 'add_prefix_space': True}}),
    ('gpt2', {'model': {**model, 'ignore_merges': True}}),
    ('llama3', {'model': model}),
    ('smollm', {'pre_tokenizer': in_two({**digits, 'individual_digits': False}, plain)}),
    ('qwen2', {'pre_tokenizer': in_two({**split, 'behavior': 'Removed'}, rest)}),
  ):
    with pytest.raises(errors.UserError, match='is not known to llama.cpp under any name'):
      gguf_files.split_rule({**rules[name], **change}, 'x')


GEMMA2 = dict(
  model_type='gemma2',
  hidden_act='gelu_pytorch_tanh',
  tie_word_embeddings=True,
  layer_types=('sliding_attention',),
  sliding_window=5,
)


@pytest.mark.parametrize(
  'fields, message',
  [
    (
      dict(model_type='falcon', position_embedding_type='alibi'),
      'position_embedding_type: alibi: llama.cpp computes falcon with rotations alone; convert without --to=gguf',
    ),
    (dict(model_type='phi3'), 'model_type: phi3 is not written as GGUF, llama, mistral, qwen2'),
    (dict(hidden_act='gelu'), "hidden_act: 'gelu': llama.cpp computes llama with silu alone"),
    (
      dict(rope_parameters=position_encodings.RopeParameters(rope_type='dynamic', factor=2.0)),
      'rope_type: dynamic is not written',
    ),
    (dict(model_type='qwen3', attention_bias=True), 'attention_bias: True: llama.cpp computes qwen3 with False alone'),
    (
      dict(model_type='gemma', hidden_act='gelu_pytorch_tanh'),
      'tie_word_embeddings: False: llama.cpp computes gemma with True alone',
    ),
    (
      dict(model_type='gemma2', hidden_act='gelu_pytorch_tanh', tie_word_embeddings=True),
      'layer_types: .*: llama.cpp computes gemma2 with a window in every other layer',
    ),
    (dict(query_pre_attn_scalar=3.0), 'query_pre_attn_scalar: 3.0: llama.cpp computes llama with the size of a head'),
    (
      dict(**GEMMA2, final_logit_softcapping=30.0),
      'attn_logit_softcapping: 0.0: llama.cpp computes gemma2 with a cap above 0 alone',
    ),
    (
      dict(**GEMMA2, attn_logit_softcapping=50.0),
      'final_logit_softcapping: 0.0: llama.cpp computes gemma2 with a cap above 0 alone',
    ),
    *(
      ({name: value}, f'model.gguf: {name}: {value} cannot be saved as llama')
      for name, value in (
        ('scale_embeddings', True),
        ('final_logit_softcapping', 30.0),
        ('logit_scale', 0.5),
        ('residual_multiplier', 0.5),
      )
    ),
    (
      dict(rope_parameters=position_encodings.RopeParameters(partial_rotary_factor=0.5)),
      'model.gguf: .*partial_rotary_factor: 0.5: in this family only 1.0 is implemented',
    ),
  ],
)
def test_what_llama_cpp_does_not_compute_is_refused_by_name(tmp_path, fields, message):
  tokenizer = bytes_tokenizer()
  with pytest.raises(errors.UserError, match=message):
    gguf_files.write(tiny(tokenizer, **fields), str(tmp_path / 'model.gguf'), tokenizer)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('is_incomplete', [False, True])
def test_a_tokenizer_whose_tokens_would_be_others_is_refused(tmp_path, pieces_tokenizer, is_incomplete):
  content = pieces_tokenizer.definition()
  merges = content['model']['merges']
  made_by = collections.Counter(''.join(pair) for pair in merges)
  place = next(place for place, pair in enumerate(merges) if made_by[''.join(pair)] > 1)
  pair = merges.pop(place)  # Another one makes its token.
  if not is_incomplete:
    merges.append(pair)
  backend = tokenizers.Tokenizer.from_str(json.dumps(content))
  tokenizer = tokenizer_lib.Tokenizer.from_backend(backend, {'bos_token': '<s>', 'eos_token': '</s>'})
  with pytest.raises(errors.UserError, match='are no order of scores, by which llama.cpp joins tokens'):
    gguf_files.write(tiny(tokenizer), str(tmp_path / 'model.gguf'), tokenizer)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  'dtype, added, what', [('float16', 1e6, 'the tensor'), ('q8_0', 1e7, 'the scales of the tensor')]
)
def test_weights_beyond_float16_leave_no_file(tmp_path, dtype, added, what):
  tokenizer = bytes_tokenizer()
  model = tiny(tokenizer)
  model.lm_head.kernel.assign_add(tf.ones_like(model.lm_head.kernel) * added)
  with pytest.raises(errors.UserError, match=f'in float16, {what} output.weight'):
    gguf_files.write(model, str(tmp_path / 'model.gguf'), tokenizer, dtype)
  assert not list(tmp_path.iterdir())


def test_a_missing_library_is_named_with_the_extra(tmp_path, monkeypatch):
  tokenizer = bytes_tokenizer()
  monkeypatch.setitem(sys.modules, 'gguf', None)
  with pytest.raises(errors.UserError, match=r"needs the package gguf: pip install 'official-ext\[gguf\]'"):
    gguf_files.write(tiny(tokenizer), str(tmp_path / 'model.gguf'), tokenizer)


@pytest.mark.parametrize('config', [{}, {'add_bos_token': True}, {'add_bos_token': False, 'add_eos_token': True}])
@pytest.mark.parametrize('adds', [True, False])
def test_texts_begin_and_end_in_the_file_as_in_training(tmp_path, config, adds):
  backend = folders.byte_level()
  if not adds:
    backend.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
  named = {
    'bos_token': '<|begin_of_text|>',
    'eos_token': '<|end_of_text|>',
    'tokenizer_class': 'PreTrainedTokenizerFast',
  }
  folders.write(tmp_path, backend, {**named, **config})
  tokenizer = tokenizer_lib.Tokenizer.load(str(tmp_path))
  gguf_files.write(tiny(tokenizer), str(tmp_path / 'x.gguf'), tokenizer)
  fields = read(str(tmp_path / 'x.gguf'))[1]
  assert fields['tokenizer.ggml.add_bos_token'] == (tokenizer.encode('a')[0] == tokenizer.bos_token_id) == adds
  assert not fields['tokenizer.ggml.add_eos_token']


def test_a_begin_that_is_not_the_named_one_is_refused(tmp_path):
  folders.write(tmp_path, folders.byte_level(), {'bos_token': '<|im_start|>', 'eos_token': '<|im_end|>'})
  tokenizer = tokenizer_lib.Tokenizer.load(str(tmp_path))
  with pytest.raises(
    errors.UserError, match=r"adds <\|begin_of_text\|> to texts, .* bos_token, which is '<\|im_start\|>'"
  ):
    gguf_files.write(tiny(tokenizer), str(tmp_path / 'x.gguf'), tokenizer)


def test_all_ends_of_generation_config_are_ends_in_the_file(tmp_path):
  folder = folders.llama3(tmp_path)  # generation_config.json adds <|eot_id|>.
  tokenizer = tokenizer_lib.Tokenizer.load(str(folder)).with_stops([tokenizer_id(folder, '<|im_end|>')])
  gguf_files.write(tiny(tokenizer), str(tmp_path / 'x.gguf'), tokenizer)
  fields = read(str(tmp_path / 'x.gguf'))[1]
  names = [fields['tokenizer.ggml.tokens'][fields[f'tokenizer.ggml.{kind}_token_id']] for kind in ('eos', 'eot', 'eom')]
  assert names == ['<|end_of_text|>', '<|im_end|>', '<|eot_id|>']


def tokenizer_id(folder, token):
  return tokenizer_lib.Tokenizer.load(str(folder)).token_id(token)
