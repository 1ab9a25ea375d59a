"""benchmarks/scaling: the computation, beside derived numbers, real traces and tensors that are really split."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

from benchmarks.scaling import __main__ as command
from benchmarks.scaling import cases
from benchmarks.scaling import collectives
from benchmarks.scaling import measuring
from benchmarks.scaling import model
from benchmarks.scaling import traced
import official_ext as ext
from official_ext.training.devices import mesh
from official_ext.training.step import observers
import registry_imports  # noqa: F401
from tests import documents
from tests.experiments import shrunk_run
from tests.training.loop import harness

LINK = collectives.Link(bandwidth=100.0, latency=0.5)
NETWORK = collectives.Network(4, LINK, collectives.Link(10.0, 2.0))
MACHINE = model.Machine(1e6, 0.5, 1e9, NETWORK)
SMALL = ext.DecoderConfig(
  vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1
)
GPT = ext.DecoderConfig(
  vocab_size=32,
  hidden_size=16,
  intermediate_size=64,
  num_hidden_layers=2,
  num_attention_heads=2,
  num_key_value_heads=2,
  max_position_embeddings=8,
  position_embedding_type='learned',
  norm_type='layer_norm',
  gated_mlp=False,
  mlp_bias=True,
  attention_bias=True,
  attention_out_bias=True,
  tie_word_embeddings=True,
)


def simulated_ring(num_bytes, devices, link):
  """Seconds of a ring: in each round every device sends a part to the next; all get the sum of all."""
  values = [[{device} for _ in range(devices)] for device in range(devices)]  # Whose terms are in each part.
  seconds = 0.0
  for number in range(2 * (devices - 1)):
    sent = [(device - number) % devices for device in range(devices)]
    messages = [set(values[device][sent[device]]) for device in range(devices)]
    for device, message in enumerate(messages):
      values[(device + 1) % devices][sent[device]] |= message
    seconds += link.latency + num_bytes / devices / link.bandwidth
  assert all(len(part) == devices for parts in values for part in parts)
  return seconds


@pytest.mark.parametrize('devices', [1, 2, 3, 4, 7, 16])
def test_an_all_reduce_is_a_scatter_and_a_gather_and_never_slower_than_a_ring(devices):
  ring = simulated_ring(700.0, devices, LINK)
  parts = collectives.reduce_scatter(700.0, devices, LINK) + collectives.all_gather(700.0, devices, LINK)
  assert ring == pytest.approx(parts)
  fewer_messages = ring - (2 * (devices - 1) - 2 * math.ceil(math.log2(devices))) * LINK.latency
  assert collectives.all_reduce(700.0, devices, LINK) == pytest.approx(min(ring, fewer_messages))


def test_one_device_exchanges_nothing_and_nodes_exchange_parts():
  assert NETWORK.all_reduce(1e9, 1) == NETWORK.all_gather(1e9, 1) == NETWORK.reduce_scatter(1e9, 1) == 0
  assert NETWORK.all_reduce(800.0, 4) == collectives.all_reduce(800.0, 4, LINK)
  # Two nodes of four: 600 of 800 bytes each way inside; between them each device has 200, half of which it sends twice.
  inside = 2 * (3 * 0.5 + 600 / 100)
  assert NETWORK.all_reduce(800.0, 8) == pytest.approx(inside + 2 * 2.0 + 200 / 10)
  # Every fourth device of two nodes: one in each.
  assert NETWORK.split(2, stride=4) == (1, 2)
  assert NETWORK.all_gather(800.0, 2, stride=4) == pytest.approx(2.0 + 400 / 10)
  with pytest.raises(ValueError, match='6 devices cannot be put on nodes with 4 each'):
    NETWORK.all_reduce(1.0, 6)


def test_exchanges_grow_with_devices_and_bytes_and_shrink_with_bandwidth():
  seconds = [NETWORK.all_reduce(1e6, devices) for devices in (1, 2, 4, 8, 64, 4096)]
  assert seconds == sorted(seconds) and seconds[-1] < 2 * (1e6 / 100 + 1e6 / 4 / 10 + 100)  # Bytes have a limit.
  assert NETWORK.all_reduce(2e6, 64) > NETWORK.all_reduce(1e6, 64)
  faster = dataclasses.replace(NETWORK, between=collectives.Link(20.0, 2.0))
  assert faster.all_reduce(1e6, 64) < NETWORK.all_reduce(1e6, 64)


@pytest.mark.parametrize('config', [SMALL, GPT], ids=['llama', 'gpt2'])
def test_parameters_are_those_of_the_real_model(config):
  made = ext.LanguageModel(config)
  assert model.count(config, 8).parameters == sum(math.prod(v.shape) for v in made.trainable_variables)


def test_the_decoders_of_the_table_have_the_published_sizes():
  assert cases.GPT2.parameters == 124_439_808 and cases.LLAMA_7B.parameters == 6_738_415_616


@pytest.mark.slow
def test_what_two_replicas_hand_to_all_reduce_is_what_the_model_predicts():
  task = {'model': {'hidden_sizes': [16, 8]}, 'train_data': {'global_batch_size': 8}}
  trainer = shrunk_run.make_trainer(shrunk_run.make_params('digits_mlp', {'task': task}), 'two')
  parameters = 64 * 16 + 16 + 16 * 8 + 8 + 8 * 10 + 10
  assert traced.reduced_bytes(trainer) == model.reduced_bytes(parameters)


class Tokens(harness.LinearTask):
  """Next tokens of rows."""

  config = GPT

  def build_model(self):
    return ext.LanguageModel(self.config)

  def forward(self, inputs, model, training):
    return ext.losses.label(model(inputs[0][:, :-1], training=training), inputs[0][:, 1:]), {}

  def build_metrics(self, training=True):
    return []


@pytest.mark.soak
@pytest.mark.parametrize('config', [SMALL, GPT], ids=['llama', 'gpt2'])
def test_what_two_replicas_of_a_decoder_hand_to_all_reduce_is_what_the_model_predicts(config):
  rows = np.random.default_rng(0).integers(0, 32, [8, 9]).astype(np.int32)
  task_cls = type('Task', (Tokens,), {'config': config})
  trainer = harness.make_trainer(task_cls, (rows, np.zeros(8)), replicas='two', enable_xla=False)
  counted = model.count(config, 8)
  rows_looked_up = 32 if config is SMALL else 8  # The embedding, which is not a head; the learned positions.
  assert counted.unmultiplied == rows_looked_up * 16
  assert traced.reduced_bytes(trainer) == model.reduced_bytes(counted.parameters - counted.unmultiplied)


@pytest.mark.slow
def test_the_tensors_that_tensor_parallelism_sums_are_those_that_layers_return():
  sizes = []

  def note(path, output):
    if path.endswith(('self_attn/o_proj', 'mlp/down_proj')):
      sizes.append(output.shape.num_elements() * output.dtype.size)

  made = ext.LanguageModel(GPT)
  with observers.followed(note):
    tf.function(made).get_concrete_function(tf.TensorSpec([4, 8], tf.int32))
  # Forward and backward; 4 bytes: float32.
  assert len(sizes) == 4
  assert 2 * sum(sizes) == model.activation_bytes(model.count(GPT, 8), 32, model.Sizes(activation=4))


def test_a_device_of_a_mesh_holds_the_part_that_the_model_declares():
  counted, made = model.count(SMALL, 8), ext.LanguageModel(SMALL)
  devices = mesh.Mesh({'fsdp': 4})
  held = np.zeros(4)
  for variable in made.trainable_variables:
    split = devices.split(variable, ['fsdp', *[''] * (len(variable.shape) - 1)])
    held += [part.shape.num_elements() * part.dtype.size for part in dtensor.unpack(split)]
  plan = model.Plan(4, 4, model.SHARDED)
  weights = model.Sizes(gathered=0, state=4)
  np.testing.assert_array_equal(held, model.state_bytes(counted, plan, weights))
  assert model.state_bytes(counted, model.Plan(4, 4), weights) == 4 * counted.parameters


def test_a_step_of_one_device_is_arithmetic_alone():
  decoder = model.count(SMALL, 8)
  alone = model.step(decoder, model.Plan(1, 64), MACHINE)
  products = decoder.parameters - 32 * 16  # Without the embedding.
  arithmetic = 4 / 3 * (6 * products + 12 * 2 * 16 * 8) * 64 * 8
  assert alone.exchange == alone.activations == 0 and alone.least == alone.most
  assert alone.compute == pytest.approx(arithmetic / 0.5e6)
  assert model.efficiency(decoder, model.Plan(1, 64), MACHINE) == (1, 1)


@pytest.mark.parametrize('layout', [model.REPLICATED, model.SHARDED])
def test_more_devices_compute_less_and_lose_more(layout):
  decoder = model.count(SMALL, 8)
  found = [model.step(decoder, model.Plan(devices, 64, layout), MACHINE) for devices in (1, 2, 4, 8, 64)]
  assert [step.compute * n for step, n in zip(found, (1, 2, 4, 8, 64))] == pytest.approx([found[0].compute] * 5)
  shares = [step.compute / step.most for step in found]
  assert shares == sorted(shares, reverse=True)
  if layout == model.SHARDED:
    assert found[2].memory > found[-1].memory
  else:
    assert len({step.memory for step in found}) == 1


def test_tensor_parallelism_divides_weights_and_waits_for_activations():
  decoder = model.count(SMALL, 8)
  found = model.step(decoder, model.Plan(4, 64, tensor=4, micro_rows=2), MACHINE)
  each = collectives.all_reduce(2 * 8 * 16 * 2, 4, LINK)
  assert found.activations == pytest.approx(32 * 6 * 2 * each) and found.exchange == 0
  assert model.state_bytes(decoder, model.Plan(4, 64, tensor=4)) == 4 * decoder.parameters


def test_missing_steps_state_why():
  decoder = model.count(SMALL, 8)
  for plan, reason in (
    (model.Plan(128, 64), 'less than a row for each'),
    (model.Plan(8, 64, tensor=8), 'not into a node'),
    (model.Plan(8, 60), 'do not go into parts'),
  ):
    with pytest.raises(ValueError, match=reason):
      model.step(decoder, plan, MACHINE)


def test_the_page_has_the_tables_as_they_are_computed(capsys):
  command.main([])
  page = documents.read('docs/concepts/scaling.md')
  printed = capsys.readouterr().out
  for name in cases.CASES:
    table = '\n'.join(cases.table(name))
    assert table in page and table in printed


def test_what_is_measured_is_a_run_in_loops(tmp_path, capsys):
  split = measuring.command('digits_mlp', 4, 1, tmp_path)
  assert '--set=runtime.num_virtual_cpus=4' in split and '--set=trainer.train_steps=2500' in split
  assert '--num_workers=2' in measuring.command('digits_mlp', 1, 2, tmp_path)
  lines = ['{"event": "train"}', '{"event": "train", "steps_per_second": 8}', '{"event": "eval"}']
  (tmp_path / 'events.jsonl').write_text('\n'.join(lines))
  assert measuring.rates(tmp_path) == [8]
  for arguments, message in ((['--measure', 'speed'], 'speed: no such experiment'), (['digits_mlp'], 'add --measure')):
    with pytest.raises(SystemExit):
      command.main(arguments)
    assert message in capsys.readouterr().err
