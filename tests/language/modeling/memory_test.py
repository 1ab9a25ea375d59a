"""The memory of a training step beside its weights, by XLA's own plan of the memory."""

import json

import pytest

from tests import train_processes
from tests.training.loop import harness

# The plan: one buffer for all that is between the parameters of a program and its results.
_SCRIPT = """
import glob, json, os, re, sys
import official_ext as ext
import numpy as np
import tensorflow as tf

from tests.training.loop import harness

fields, quantization, rows = json.loads(sys.argv[1])
dump = sys.argv[2]


class Task(harness.LinearTask):
  def build_model(self):
    self.model = ext.LanguageModel(ext.DecoderConfig(num_key_value_heads=2, num_attention_heads=2, **fields))
    if quantization:
      ext.lora.attach(
        self.model, ext.LoraConfig(r=2), ext.QuantizationConfig(method=quantization), frozen_dtype='bfloat16'
      )
    return self.model

  def forward(self, inputs, model, training):
    logits = model(inputs[0], training=training)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(inputs[1], logits)), {}

  def build_metrics(self, training=True):
    return []


data = tuple(np.random.default_rng(0).integers(0, fields['vocab_size'], [2, *rows]).astype(np.int32))
trainer = harness.make_trainer(Task, data=data, batch_size=rows[0], enable_xla=True)
harness.train(trainer, 1)
assert trainer.plan.execution == 'fused', trainer.plan
plans = {path: open(path).read() for path in glob.glob(f'{dump}/*cpu_after_optimizations-buffer-assignment.txt')}
step = max(plans, key=lambda path: len(plans[path]))
temporary = int(re.search(r'size ([0-9]+), preallocated-temp', plans[step]).group(1))
module = open(step.replace('-buffer-assignment.txt', '.txt')).readline()
results = re.search(r'entry_computation_layout=(.*)', module).group(1).rpartition('->')[2]
print(json.dumps({'temporary': temporary, 'results': results}))
"""


@pytest.fixture
def plans(start_script, tmp_path):
  """plans([(fields, quantization, [batch size, length]), ...]) -> temporary bytes, types of the results."""

  def of(cases):
    scripts = []
    for number, case in enumerate(cases):
      dump = str(tmp_path / f'xla{number}')
      flags = f'--xla_dump_to={dump} --xla_dump_hlo_as_text {train_processes.UNOPTIMISED["XLA_FLAGS"]}'
      scripts.append(start_script(_SCRIPT, [json.dumps(case), dump], env={'XLA_FLAGS': flags}))
    found = []
    for script in scripts:
      result = script.finish(timeout=300)
      assert result.returncode == 0, result.stderr
      found.append(json.loads(result.stdout.splitlines()[-1]))
    return found

  return of


SIZES = dict(vocab_size=64, hidden_size=64, intermediate_size=128)


@pytest.mark.soak
def test_layers_that_are_computed_once_more_need_less_memory(plans):
  """Of each of 4 layers all is kept, or its input alone: the rest exists for one layer at a time.

  A layer keeps, in numbers, at least: its two norms, queries, keys, values, the output of attention, three of the MLP's
  inner size; and the attention's weights.
  """
  rows, layers, heads, width = [4, 64], 4, 2, 64
  fields = {**SIZES, 'num_hidden_layers': layers, 'tie_word_embeddings': True}  # Whose gradient is dense.
  how = ({}, {'remat': 'block'}, {'scan_layers': True})
  none, block, scan = (found['temporary'] for found in plans([({**fields, **each}, '', rows) for each in how]))
  tokens = rows[0] * rows[1]
  layer = 4 * (tokens * (6 * width + 3 * SIZES['intermediate_size']) + rows[0] * heads * rows[1] ** 2)
  assert none > layers * layer
  assert block < none - (layers - 2) * layer, (none, block, scan)
  assert scan < none - (layers - 2) * layer, (none, block, scan)


@pytest.mark.slow
@pytest.mark.parametrize(
  'quantization, scan', harness.cases(fast=[('nf4', True)], soak=[('none', False), ('nf4', False)])
)
def test_frozen_kernels_are_unpacked_when_they_are_used_and_are_no_results(plans, quantization, scan):
  """Two kernels that have the same input may exist at once; a layer has seven, and all layers 21."""
  width, inner = 128, 384
  fields = dict(vocab_size=64, hidden_size=width, intermediate_size=inner, num_hidden_layers=3, scan_layers=scan)
  (plan,) = plans([(fields, quantization, [1, 8])])
  assert plan['temporary'] < 4 * (4 * width**2 + 3 * width * inner)
  assert 'f32[' in plan['results'] and 'u8[' not in plan['results'] and 'bf16[' not in plan['results'], plan
