"""Text that comes token by token is the text of all tokens, and no character comes before it is whole."""

import io
import json
from unittest import mock

import numpy as np
import pytest
import tf_keras
import tokenizers

from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import generation
from official_ext.language.serving import writing
from official_ext.language.text import tokenizer as tokenizer_lib
from official_ext.language.text import tokenizer_training
from official_ext.training.devices import device_types

TEXTS = ['a b  c', ' lead and trail ', 'naïve Grüße, 你好, 🎉👩‍👩‍👧!', '\n\tline\n', '<|end|>x<|end|> y']


def byte_level():
  return tokenizer_training.train(TEXTS * 3, 290, ['<|end|>'])


def sentence_piece():
  """As Llama 2 has it: blanks are ▁, one is put in front, and characters without a token are bytes."""
  letters = sorted(set('▁abcdeilnortvxy,!') | {'▁a', '▁lead', '▁and'})
  vocab = {token: n for n, token in enumerate(['<unk>', '<|end|>', *(f'<0x{n:02X}>' for n in range(256)), *letters])}
  model = tokenizers.models.BPE(vocab, [('▁', 'a')], unk_token='<unk>', fuse_unk=True, byte_fallback=True)
  backend = tokenizers.Tokenizer(model)
  backend.normalizer = tokenizers.normalizers.Sequence(
    [tokenizers.normalizers.Prepend('▁'), tokenizers.normalizers.Replace(' ', '▁')]
  )
  decoders = tokenizers.decoders
  backend.decoder = decoders.Sequence(
    [decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(' ', 1, 0)]
  )
  backend.add_special_tokens(['<|end|>'])
  return tokenizer_lib.Tokenizer.from_backend(backend, {'eos_token': '<|end|>'})


@pytest.mark.parametrize('make', [byte_level, sentence_piece])
def test_pieces_make_the_text_behind_any_prompt(make):
  tokenizer = make()
  for text in TEXTS:
    tokens = tokenizer.encode(text)
    for length in range(len(tokens) + 1):
      prompt = tokenizer.decode(tokens[:length], skip_special_tokens=True)
      if prompt.endswith('\ufffd'):  # A prompt is a text: it ends with a whole character.
        continue
      stream = writing.TextStream(tokenizer, tokens[:length])
      pieces = [stream.add(token) for token in tokens[length:]]
      assert not any('\ufffd' in piece for piece in pieces)
      assert prompt + ''.join(pieces) + stream.end() == tokenizer.decode(tokens, skip_special_tokens=True)
      assert len(json.dumps(text)) < 12 or length > len(tokens) - 6 or sum(map(bool, pieces)) > 2


def test_bytes_that_are_no_character_are_returned_in_the_end():
  tokenizer = byte_level()
  stream = writing.TextStream(tokenizer, tokenizer.encode('a'))
  tokens = tokenizer.encode('🎉')[:2]
  assert [stream.add(token) for token in tokens] == ['', '']
  assert stream.end() == '\ufffd' and stream.end() == ''


def test_random_tokens_make_what_they_make_together():
  tokenizer = byte_level()
  for seed in range(20):
    tokens = np.random.default_rng(seed).integers(0, len(tokenizer), 60).tolist()
    stream = writing.TextStream(tokenizer)
    assert ''.join(stream.add(token) for token in tokens) + stream.end() == tokenizer.decode(
      tokens, skip_special_tokens=True
    )


def test_bytes_of_an_incomplete_character_leave_the_returned_ones():
  """The tokenizer replaces a whole run of byte tokens, and the é among them was returned."""
  tokenizer = sentence_piece()
  stream = writing.TextStream(tokenizer, tokenizer.encode('a'))
  pieces = [stream.add(2 + byte) for byte in 'é日'.encode()[:4]]  # 2: the first byte's token.
  assert [*pieces, stream.end()] == ['', 'é', '', '', '\ufffd\ufffd']


def test_conversations_run_by_block_on_a_cpu_and_in_programs_of_several_tokens_on_a_gpu(monkeypatch):
  tokenizer = byte_level()
  config = decoder_config.DecoderConfig(
    vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4
  )
  tf_keras.utils.set_random_seed(1)
  model = decoder.LanguageModel(config)
  made = mock.Mock(side_effect=generation.Generator)
  monkeypatch.setattr(generation, 'Generator', made)
  texts = {}
  for device in ('CPU', 'GPU'):
    monkeypatch.setattr(device_types, 'device_type', lambda strategy, device=device: device)
    assert [writing.pays_by_block(number) for number in (384, 385, None)] == [True, False, device == 'CPU']
    writer = writing.Writer(
      model, tokenizer, generation.GenerationConfig(max_new_tokens=20), writing.pays_by_block(None)
    )
    out = io.StringIO()
    texts[device] = writer.write(tokenizer.encode('a b'), 0, out, is_streamed=True)
    assert out.getvalue() == texts[device].text + '\n' and texts[device].num_tokens == 20
  assert texts['CPU'] == texts['GPU']
  on_cpu, on_gpu = (call.args[2:] + tuple(sorted(call.kwargs.items())) for call in made.call_args_list)
  assert on_cpu == (True,) and on_gpu == (False, ('least_width', 512), ('tokens_per_program', 16))
