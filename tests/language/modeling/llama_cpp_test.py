"""GGUF files in llama.cpp itself: its tokens equal the tokenizer's, its logits those of transformers."""

import json
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip('gguf', reason="needs the test extra: pip install 'official-ext[test]'")
pytest.importorskip('transformers', reason="needs the test extra: pip install 'official-ext[test]'")
pytest.importorskip('xllamacpp', reason="needs the test extra: pip install 'official-ext[test]'")

from official_ext.language.modeling import gguf_files
from tests.language.modeling import checkpoints
from tests.language.modeling import gguf_files_test

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow]

pieces_tokenizer = gguf_files_test.pieces_tokenizer  # A fixture.
_VOCABULARY = 512
# A separate process, because the server of llama.cpp stays to its end. `logit_bias` makes it answer with a whole
# character, without which it returns no probabilities; they are those before the bias.
_SERVER = """
import json, sys, urllib.request
import xllamacpp

path, request = sys.argv[1], json.load(sys.stdin)
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.warmup = path, 64, 1, False
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = xllamacpp.Server(params)

def post(where, **body):
  headers = {'Content-Type': 'application/json'}
  address = urllib.request.Request(server.listening_address + where, json.dumps(body).encode(), headers)
  return json.load(urllib.request.urlopen(address))

tokens = [
  post('/tokenize', content=text, add_special=True, parse_special=True)['tokens'] for text in request['texts']
]
letter = post('/tokenize', content='a')['tokens'][-1]
log_probabilities = []
for ids in request['prompts']:
  answer = post(
    '/completion', prompt=ids, n_predict=1, n_probs=request['num_tokens'], temperature=0, cache_prompt=False,
    logit_bias=[[letter, 1000]],
  )
  found = {each['id']: each['logprob'] for each in answer['completion_probabilities'][0]['top_logprobs']}
  log_probabilities.append([found[token] for token in range(request['num_tokens'])])
print(json.dumps({'tokens': tokens, 'log_probabilities': log_probabilities}))
"""


def _answers(path, texts, prompts, num_tokens):
  """(the tokens of each text, the log-probabilities `[prompts, num_tokens]` after each prompt)."""
  request = json.dumps({'texts': texts, 'prompts': prompts, 'num_tokens': num_tokens})
  done = subprocess.run(
    [sys.executable, '-c', _SERVER, path], input=request, capture_output=True, text=True, timeout=120
  )
  assert done.returncode == 0, done.stderr[-2000:]
  answer = json.loads(done.stdout.splitlines()[-1])
  return answer['tokens'], np.array(answer['log_probabilities'])


def _log_softmax(logits):
  logits = logits.astype(np.float64)
  return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


_CASES = [*gguf_files_test.READ_AGAIN.items(), *gguf_files_test.OTHERS.items(), ('llama_3', {})]


@pytest.mark.parametrize('name, changes', _CASES, ids=[f'{number}-{name}' for number, (name, _) in enumerate(_CASES)])
def test_tokens_and_logits_of_a_file(tmp_path, name, changes):
  tokenizer = gguf_files_test.bytes_tokenizer()
  model, theirs = gguf_files_test.made(name, tmp_path, tokenizer, changes)
  tokenizer, path = tokenizer.beside(model.config.model_type), str(tmp_path / 'model.gguf')
  gguf_files.write(model, path, tokenizer, 'float32')
  lengths = (1, 3, 4) if name == 'mistral' else (1, 3, 19)  # The window of this one is its longest text.
  ids = np.random.default_rng(0).integers(3, 250, (2, max(lengths))).astype(np.int32)
  prompts = [row[:length].tolist() for row in ids for length in lengths]
  texts = gguf_files_test.TEXTS
  tokens, found = _answers(path, texts, prompts, _VOCABULARY)
  assert tokens == [tokenizer.encode(text) for text in texts]
  logits = checkpoints.logits(theirs, ids)
  expected = _log_softmax(np.stack([logits[row, length - 1] for row in range(2) for length in lengths]))
  # llama.cpp reads GELU from a table of float16.
  np.testing.assert_allclose(found, expected, atol=4e-3 if 'gemma' in name else 2e-5, rtol=0)
  assert expected.std() > 0.3


def test_tokens_by_scores(tmp_path, pieces_tokenizer):
  path = str(tmp_path / 'model.gguf')
  gguf_files.write(gguf_files_test.tiny(pieces_tokenizer), path, pieces_tokenizer)
  texts = [text for text in gguf_files_test.TEXTS if '<|' not in text]
  tokens, _ = _answers(path, texts, [], 1)
  assert tokens == [pieces_tokenizer.encode(text) for text in texts]


@pytest.mark.parametrize('dtype', ['q8_0', 'float16', 'bfloat16'])
def test_fewer_bits_change_little(tmp_path, dtype):
  tokenizer = gguf_files_test.bytes_tokenizer()
  model, theirs = gguf_files_test.made('qwen2', tmp_path, tokenizer, {})
  path = str(tmp_path / 'model.gguf')
  gguf_files.write(model, path, tokenizer.beside('qwen2'), dtype)
  ids = np.arange(5, 24, dtype=np.int32)
  _, (found,) = _answers(path, [], [ids.tolist()], _VOCABULARY)
  difference = np.abs(found - _log_softmax(checkpoints.logits(theirs, ids[None])[0, -1])).max()
  assert 1e-6 < difference < {'q8_0': 0.1, 'float16': 0.01, 'bfloat16': 0.05}[dtype]
