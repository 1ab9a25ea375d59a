"""The training steps, an evaluation and generation have nothing that is slow on a GPU."""

import json

import pytest
import tf_keras

from benchmarks.gpu import __main__ as table
from benchmarks.gpu import hlo_checks
from benchmarks.gpu import programs

FAST = ('gpt2_steps', 'gpt2_replica_update', 'moe', 'scan_layers', 'generate_sampled', 'grpo_sampling')


@pytest.mark.parametrize(
  'name', [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in programs.PROGRAMS]
)
def test_a_program_is_clean(name):
  policy = tf_keras.mixed_precision.global_policy()
  hlo = programs.program(name, programs.SMALL)
  assert tf_keras.mixed_precision.global_policy().name == policy.name  # Later tests compute as before.
  is_sampling = name.startswith(('generate', 'grpo'))
  options = dict(has_constant_weights=is_sampling, is_bfloat16=name != 'resnet50')
  options['num_new_results'] = int(name == 'gpt2_replica')  # The vector of gradients.
  assert hlo_checks.complaints(hlo.text, **options) == []
  if name in ('gpt2_cudnn', 'gpt2_steps', 'gpt2_replica'):
    assert '__cudnn$fmhaSoftmax' in hlo.text


def test_the_tokens_of_a_conversation_are_a_loop_in_a_program():
  """Weights are cast before it: in a program of one token they would be cast for each."""
  hlo = programs.next_tokens(programs.SMALL, count=16)
  assert hlo_checks.complaints(hlo.text, has_constant_weights=True) == []
  assert any(
    'a weight is cast in each round' in line
    for line in hlo_checks.complaints(programs.next_tokens(programs.SMALL, count=1).text, has_constant_weights=True)
  )


def test_batches_of_several_lengths_are_programs():
  short, long = programs.bert_buckets(programs.SMALL, (64, 128))
  for hlo, length in ((short, 64), (long, 128)):
    assert hlo_checks.complaints(hlo.text) == []
    assert hlo.plan.startswith('fused (XLA') and 'a program for each of the first 16 shapes' in hlo.plan
    assert f's32[4,{length}]' in hlo.text and f'f32[4,2,{length},{length}]' in hlo.text  # Rows, and scores.


def test_the_table_has_all_programs():
  assert tuple(programs.PROGRAMS) == table.NAMES and set(json.loads(table.TABLE.read_text())) == set(table.NAMES)
