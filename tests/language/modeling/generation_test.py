"""Continuations: token for token those of transformers, with a cache, for any batch."""

import json
import types

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import generation
from official_ext.language.modeling import lora
from official_ext.language.modeling import pretrained
from tests import tiers

CONFIG = decoder_config.DecoderConfig(
  vocab_size=31,
  hidden_size=16,
  intermediate_size=24,
  num_hidden_layers=3,
  num_attention_heads=4,
  num_key_value_heads=2,
  layer_types=('sliding_attention', 'full_attention', 'sliding_attention'),
  sliding_window=4,
  initializer_range=0.4,
)
PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [3], [20, 21, 22]]


@pytest.fixture(scope='module')
def model():
  tf_keras.utils.set_random_seed(1)
  return decoder.LanguageModel(CONFIG)


def generated(model, prompts, seed=0, **fields):
  return generation.Generator(model, generation.GenerationConfig(**fields))(prompts, seed)


@tiers.parametrize(
  'name',
  [
    *('llama_3', 'llama_dynamic', 'mistral', 'gemma3', 'gpt2', 'qwen3_moe', 'gemma', 'starcoder2', 'granite', 'phi'),
    *('olmo2_yarn', 'mixtral_sliding', 'cohere', 'falcon', 'falcon_groups', 'qwen2_moe'),
    *('cohere_qk_norm', 'cohere2', 'falcon_alibi', 'falcon_alibi_groups'),
  ],
  fast=1,
)
def test_greedy_tokens_are_those_of_transformers_alone_and_in_a_padded_batch(name, tmp_path):
  pytest.importorskip('transformers', reason="needs the test extra: pip install 'official-ext[test]'")
  import torch

  from tests.language.modeling import checkpoints

  # With seed 0 Falcon writes the same behind two prompts.
  theirs = checkpoints.random_model(checkpoints.config(name), seed=int(name == 'falcon'))
  theirs.save_pretrained(tmp_path)
  ours = pretrained.load(str(tmp_path))
  width = max(map(len, PROMPTS))
  padded = dict(
    input_ids=torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in PROMPTS]),
    attention_mask=torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in PROMPTS]),
  )
  expected = theirs.generate(**padded, max_new_tokens=14, do_sample=False, eos_token_id=None)[:, width:].tolist()
  continuations = generated(ours, PROMPTS, max_new_tokens=14)
  assert [found.tokens for found in continuations] == expected
  assert len({tuple(tokens) for tokens in expected}) == len(PROMPTS)


def test_filters_are_those_of_transformers():
  transformers = pytest.importorskip('transformers', reason="needs the test extra: pip install 'official-ext[test]'")
  import torch

  rng = np.random.default_rng(0)
  logits = rng.normal(0, 2, (8, 40)).astype(np.float32)
  ids = rng.integers(0, 40, (8, 6))
  seen = np.zeros((8, 40), bool)
  seen[np.arange(8)[:, None], ids] = True
  cases = (
    (dict(temperature=0.7), []),
    (dict(temperature=0.7, top_k=5), [transformers.TopKLogitsWarper(5)]),
    (dict(temperature=0.7, top_p=0.8), [transformers.TopPLogitsWarper(0.8)]),
    (dict(temperature=0.7, min_p=0.1), [transformers.MinPLogitsWarper(0.1)]),
    (
      dict(temperature=0.7, top_k=9, top_p=0.7, min_p=0.2),
      [transformers.TopKLogitsWarper(9), transformers.TopPLogitsWarper(0.7), transformers.MinPLogitsWarper(0.2)],
    ),
  )
  for penalty in (1.0, 1.7):
    for fields, warpers in cases:
      expected = torch.tensor(logits)
      processors = [transformers.RepetitionPenaltyLogitsProcessor(penalty), transformers.TemperatureLogitsWarper(0.7)]
      for processor in [*processors, *warpers]:
        expected = processor(torch.tensor(ids), expected)
      config = generation.GenerationConfig(repetition_penalty=penalty, **fields)
      found = generation.processed_logits(tf.constant(logits), config, tf.constant(seen)).numpy()
      is_out = found <= -1e29
      np.testing.assert_array_equal(is_out, torch.isinf(expected).numpy())
      np.testing.assert_allclose(found[~is_out], expected.numpy()[~is_out], rtol=1e-6)


def test_draws_have_the_probabilities_of_the_filtered_logits():
  logits = tf.constant([[1.0, 0.0, 2.0, -1.0]])
  config = generation.GenerationConfig(temperature=0.5, top_k=3)
  rows = tf.tile(generation.processed_logits(logits, config), [20000, 1])
  drawn = generation.drawn_tokens(rows, config, tf.constant([3, 0], tf.int64)).numpy()
  powers = np.exp([2.0, 0.0, 4.0])
  expected = dict(zip((0, 1, 2), powers / powers.sum()))
  assert set(drawn) == set(expected)
  for token, probability in expected.items():  # Four standard deviations.
    assert abs(np.mean(drawn == token) - probability) < 4 * np.sqrt(probability * (1 - probability) / len(drawn))


@pytest.mark.slow
@pytest.mark.parametrize('scan_layers', [False, pytest.param(True, marks=pytest.mark.soak)])
def test_the_samplers_log_probabilities_are_those_of_the_loss(model, scan_layers):
  if scan_layers:
    tf_keras.utils.set_random_seed(1)
    model = decoder.LanguageModel(CONFIG.replace(scan_layers=True))
  continuations = generated(model, PROMPTS, max_new_tokens=12, temperature=0.9, top_p=0.9)
  for prompt, found in zip(PROMPTS, continuations):
    assert len(found.tokens) == len(found.log_probs) == 12
    logits = model(tf.constant([prompt + found.tokens]))[0, len(prompt) - 1 : -1]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(found.tokens, logits)
    np.testing.assert_allclose(found.log_probs, -losses, atol=1e-5)


@pytest.mark.slow
def test_a_stream_gives_the_tokens_of_the_whole_and_a_seed_the_same_again(model):
  config = generation.GenerationConfig(max_new_tokens=10, temperature=1.0, repetition_penalty=1.3)
  generate = generation.Generator(model, config)
  whole = [generate([PROMPTS[0]], seed)[0].tokens for seed in (0, 1, 0)]
  assert whole[0] == whole[2] != whole[1]
  assert list(generate.stream(PROMPTS[0], seed=1)) == whole[1]


@pytest.mark.parametrize(
  'count', [4, pytest.param(3, marks=pytest.mark.slow), pytest.param(16, marks=pytest.mark.slow)]
)
def test_programs_of_several_tokens_stream_the_same(model, count):
  """10 tokens: 1 and 4 and 4 and 1; 1 and 9 in threes; 1 and 9 of 16. A stop token ends within a program."""
  fields = dict(max_new_tokens=10, temperature=1.0, repetition_penalty=1.3)
  free = generated(model, PROMPTS[:1], seed=1, **fields)[0].tokens
  several = dict(tokens_per_program=count, least_width=32)
  assert (
    list(generation.Generator(model, generation.GenerationConfig(**fields), **several).stream(PROMPTS[0], 1)) == free
  )
  stop = next(token for token in free[2:8] if token not in free[:2])
  config = generation.GenerationConfig(**fields, stop_token_ids=(stop,))
  found = list(generation.Generator(model, config, **several).stream(PROMPTS[0], 1))
  assert found == free[: free.index(stop) + 1]


@pytest.mark.slow
@pytest.mark.parametrize('scan_layers', [False, pytest.param(True, marks=pytest.mark.slow)])
def test_continuations_of_a_prompt_that_is_read_once_are_those_of_its_copies(scan_layers):
  tf_keras.utils.set_random_seed(1)
  model = decoder.LanguageModel(CONFIG.replace(scan_layers=scan_layers))
  config = generation.GenerationConfig(max_new_tokens=6, temperature=1.0, repetition_penalty=1.2)
  ids = tf.constant([[0, 0, 5, 6, 7], [8, 9, 10, 11, 12]])
  seed = tf.constant([3, 0], tf.int64)
  draw = tf.function(
    lambda ids, count: generation.sample(model, config, ids, tf.cast(ids > 0, tf.int32), seed, count=count),
    jit_compile=True,
    autograph=False,
  )
  found, expected = draw(ids, 3), draw(tf.repeat(ids, 3, axis=0), 1)
  np.testing.assert_array_equal(found.tokens, expected.tokens)
  np.testing.assert_array_equal(found.mask, expected.mask)
  np.testing.assert_allclose(found.log_probs, expected.log_probs, rtol=1e-4, atol=1e-5)
  assert len({tuple(row) for row in found.tokens.numpy()}) == 6


@pytest.mark.slow
@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'layer_types': ()},
    {'position_embedding_type': 'alibi'},
    {'num_experts': 4, 'num_experts_per_tok': 2, 'moe_intermediate_size': 8, 'mlp_only_layers': (1,)},
  ],
  ids=['windows', 'alike', 'alibi', 'experts'],
)
def test_block_by_block_the_same_tokens_are_drawn(changes):
  tf_keras.utils.set_random_seed(2)
  model = decoder.LanguageModel(CONFIG.replace(**changes))
  config = generation.GenerationConfig(max_new_tokens=12, temperature=0.8, top_p=0.9, repetition_penalty=1.1)
  whole, by_block = (generation.Generator(model, config, by_block=value) for value in (False, True))
  for seed in range(3):
    for expected, found in zip(whole(PROMPTS, seed), by_block(PROMPTS, seed)):
      assert found.tokens == expected.tokens
      np.testing.assert_allclose(found.log_probs, expected.log_probs, rtol=1e-4, atol=1e-5)
  assert list(by_block.stream(PROMPTS[0])) == list(whole.stream(PROMPTS[0]))


def test_blocks_whose_adapters_differ_in_their_factor_alone_do_not_share_a_program():
  tf_keras.utils.set_random_seed(3)
  model = decoder.LanguageModel(CONFIG.replace(layer_types=()))
  lora.attach(model, lora.LoraConfig(r=2, lora_alpha=2.0))
  adapters = lora.adapters(model)
  for adapter in adapters:
    adapter.lora_b.assign(tf.random.normal(adapter.lora_b.shape))
  inputs = tf.zeros([1, 1], tf.int32), tf.ones([1, 1], tf.int32), tf.zeros([2], tf.int64)
  config = generation.GenerationConfig(max_new_tokens=1)
  last = [adapter for adapter in adapters if 'blocks/2/' in adapter.name]
  assert last and len(last) < len(adapters)
  for adapter in last:  # As alpha_pattern of peft has it.
    adapter.scaling = 3.0
  whole, by_block = (
    generation.start(model, config, *inputs, run_block=run_block) for run_block in (None, generation.BlockPrograms())
  )
  np.testing.assert_allclose(by_block.log_probs, whole.log_probs, rtol=1e-5)


@pytest.mark.slow
def test_a_row_ends_with_its_stop_token_and_the_others_continue(model):
  free = [found.tokens for found in generated(model, PROMPTS, max_new_tokens=10, temperature=1.0)]
  stop = next(token for token in free[1][1:8] if token not in free[0][:9] + free[2][:9])
  end = free[1].index(stop)
  fields = dict(max_new_tokens=10, temperature=1.0, stop_token_ids=(stop,), pad_token_id=30)
  generate = generation.Generator(model, generation.GenerationConfig(**fields))
  found = generate(PROMPTS)
  assert found[1].tokens == free[1][: end + 1] and len(found[1].log_probs) == end + 1
  assert [row.tokens[:9] for row in (found[0], found[2])] == [free[0][:9], free[2][:9]]


@pytest.mark.slow
def test_all_rows_at_their_end_end_the_loop(model):
  first = generated(model, [PROMPTS[0]], max_new_tokens=1)[0].tokens[0]
  config = generation.GenerationConfig(max_new_tokens=6, stop_token_ids=(first,), pad_token_id=30)
  generate = generation.Generator(model, config)
  assert generate([PROMPTS[0]])[0].tokens == [first] == list(generate.stream(PROMPTS[0]))


def test_settings_of_a_folder_for_generation_count():
  model = decoder.LanguageModel(CONFIG.replace(num_hidden_layers=1, layer_types=()))
  assert generation.config_of(model).as_dict() == generation.GenerationConfig().as_dict()
  files = {'generation_config.json': json.dumps({'do_sample': True, 'top_k': 7, 'eos_token_id': [4, 5]}).encode()}
  model.origin = pretrained.Origin('', {'eos_token_id': 9, 'pad_token_id': 3}, files)
  config = generation.config_of(model, top_p=0.5)
  assert (config.temperature, config.top_k, config.top_p) == (1.0, 7, 0.5)
  assert (tuple(config.stop_token_ids), config.pad_token_id) == ((4, 5), 3)
  model.origin = pretrained.Origin('', {'eos_token_id': 9}, {})
  assert tuple(generation.config_of(model).stop_token_ids) == (9,)


@pytest.mark.parametrize(
  'content, message',
  [
    ('{', 'is invalid JSON: '),
    ('[]', 'expected an object, found list'),
    ('{"do_sample": true, "temperature": "hot"}', "temperature: 'hot': expected a number"),
    ('{"do_sample": true, "top_k": 2.5}', 'top_k: 2.5: expected a whole number'),
    ('{"eos_token_id": [[1]]}', r"eos_token_id: \[\[1\]\]: expected a token's number, or a list of such"),
    ('{"pad_token_id": true}', "pad_token_id: True: expected a token's number"),
    ('{"repetition_penalty": 0}', 'repetition_penalty: 0 must be above 0'),
    ('{"do_sample": true, "top_p": 7}', 'top_p: 7 must be above 0'),
  ],
)
def test_what_is_wrong_in_a_folder_is_reported_with_its_file(content, message):
  model = types.SimpleNamespace(origin=pretrained.Origin('folder', {}, {'generation_config.json': content.encode()}))
  with pytest.raises(errors.UserError, match=f'^folder/generation_config.json: {message}'):
    generation.config_of(model)
  with pytest.raises(errors.UserError, match='^top_p: 2 '):  # The request overrides the file's.
    generation.config_of(types.SimpleNamespace(origin=None), top_p=2)


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(top_p=0.0), 'top_p: 0.0 must be above 0'),
    (dict(temperature=-1.0), 'temperature: -1.0 must be 0'),
    (dict(max_new_tokens=0), 'max_new_tokens: 0 must be 1 or more'),
  ],
)
def test_a_field_that_means_nothing_is_refused(model, fields, message):
  with pytest.raises(errors.UserError, match=message):
    generation.Generator(model, generation.GenerationConfig(**fields))


def test_prompts_that_cannot_be_read_are_refused(model):
  generate = generation.Generator(model, generation.GenerationConfig(max_new_tokens=2))
  for prompt, message in (([], 'prompt 0: holds no tokens'), ([31], 'prompt 0: 31 is not a token; there are 31')):
    with pytest.raises(errors.UserError, match=message):
      generate([prompt])
  few = CONFIG.replace(
    num_hidden_layers=1, layer_types=(), position_embedding_type='learned', max_position_embeddings=8
  )
  short = generation.Generator(decoder.LanguageModel(few), generation.GenerationConfig(max_new_tokens=5))
  with pytest.raises(errors.UserError, match='max_new_tokens: 5 behind a prompt of 7 tokens make 12'):
    short([PROMPTS[0]])


@pytest.mark.parametrize('scan_layers', [False, True])
def test_a_program_for_the_next_token_is_compiled_once(scan_layers):
  """Compile-time constants would be in the program: the first tokens' would not be that of the next ones."""
  model = decoder.LanguageModel(CONFIG.replace(scan_layers=scan_layers))
  config = generation.GenerationConfig(max_new_tokens=6, temperature=1.0, top_p=0.9, repetition_penalty=1.2)
  advance = tf.function(lambda state: generation.advance(model, config, state), jit_compile=True, autograph=False)
  ids = tf.constant([[0] * 11 + PROMPTS[0][:5]])
  state = generation.start(model, config, ids, tf.cast(ids > 0, tf.int32), tf.constant([0, 0], tf.int64))
  later = state._replace(step=state.step + 3, cache=state.cache._replace(index=state.cache.index + 3))
  programs = [advance.experimental_get_compiler_ir(each)(stage='hlo') for each in (state, later)]
  assert programs[0] == programs[1]
