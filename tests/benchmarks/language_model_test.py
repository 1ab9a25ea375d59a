"""benchmarks/language_model.py: the decoder here and that in PyTorch learn the same."""

import importlib.util
import math
import pathlib
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / 'benchmarks/language_model.py'
SMALL = {
  'xla': 'false',
  'eval_batch_size': 4,
  'batch_size': 4,
  'learning_rate': 0.01,
  'task.model.vocab_size': 300,
  'task.model.hidden_size': 16,
  'task.model.intermediate_size': 24,
  'task.model.num_hidden_layers': 1,
  'task.model.num_attention_heads': 2,
  'task.model.num_key_value_heads': 1,
  'task.train_data.seq_length': 24,
  'task.train_data.max_samples': 6,
  'task.validation_data.seq_length': 24,
  'task.validation_data.max_samples': 3,
}


@pytest.fixture(scope='module')
def script():
  pytest.importorskip('transformers')
  spec = importlib.util.spec_from_file_location('benchmark_of_language_model', SCRIPT)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.mark.soak
def test_both_learn_the_same_from_the_same_weights(script, monkeypatch, capsys, tmp_path):
  settings = [f'--set={name}={value}' for name, value in SMALL.items()]
  monkeypatch.setattr(sys, 'argv', ['language_model.py', '--steps=20', f'--folder={tmp_path}', *settings])
  script.main()
  head, ours, theirs, *others = capsys.readouterr().out.splitlines()[-5:]
  assert head.split() == '20 steps seconds a step training loss bits per byte'.split()
  (_, loss, bits), (_, other_loss, other_bits) = (list(map(float, row.split()[1:])) for row in (ours, theirs))
  assert loss == pytest.approx(other_loss, abs=2e-3) and bits == pytest.approx(other_bits, abs=2e-3)
  assert loss < math.log(300)  # A mean over the steps, of which the first is about this.
  assert [row.split()[0] for row in others] == ['6-grams', 'xz']


@pytest.mark.soak
def test_n_grams_by_hand(script):
  """After 'ab' * 2: of 'b' the unigram is (2 + 2 / 256) / 6, and behind 'a' (2 + that) / 3."""
  unigram = (2 + 2 / 256) / 6

  expected = -(math.log2((2 + 2 / 256) / 6) + math.log2((2 + unigram) / 3)) / 2
  assert script.bits_of_n_grams(b'abab', b'ab', order=2) == pytest.approx(expected)
