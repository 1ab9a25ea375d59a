"""Errors of Model Garden's own trainer that concern several modules, and what this library does instead.

The tests of the modules cover the others.
"""

import json
import os
import time

from official.core import config_definitions as cfg
from official.core import input_reader
import pytest
import tensorflow as tf

from official_ext.training.checkpoints import best
from official_ext.training.checkpoints import manifests
from official_ext.training.config import definitions
from official_ext.training.devices import distribute
from tests.training.loop import small_run


def test_the_record_of_the_best_comes_after_its_checkpoint(tmp_path, monkeypatch):
  # Stock: info.json is written first, and names a checkpoint that a kill or a full disk leaves unwritten.
  exporter = best.BestCheckpointExporter(str(tmp_path), 'accuracy', 'higher', 1)
  weight = tf.Variable(1.0)
  exporter.maybe_export_checkpoint(tf.train.Checkpoint(weight=weight), {'accuracy': 0.5}, 10)

  def fail(*args, **kwargs):
    raise tf.errors.ResourceExhaustedError(None, None, 'the disk is full')

  monkeypatch.setattr(tf.train.Checkpoint, 'write', fail)
  assert not exporter.maybe_export_checkpoint(tf.train.Checkpoint(weight=weight), {'accuracy': 0.9}, 20)
  assert json.loads((tmp_path / 'info.json').read_text())['best_ckpt_global_step'] == 10
  again = best.BestCheckpointExporter(str(tmp_path), 'accuracy', 'higher', 1)
  assert again.best_ckpt_path == f'{tmp_path}/best_ckpt-10' and manifests.find_damage(again.best_ckpt_path) is None


def test_seeded_files_are_read_by_one_pipeline_each(tmp_path):
  # Stock: unseeded, every pipeline shuffles the files for itself before it takes its share: 13 of 16 were read.
  for number in range(16):
    with tf.io.TFRecordWriter(str(tmp_path / f'{number:02d}')) as writer:
      writer.write(str(number).encode())
  seed = definitions.RuntimeConfig().seed  # The library's value if none is set.
  params = cfg.DataConfig(
    input_path=str(tmp_path / '*'),
    global_batch_size=4,
    is_training=True,
    shuffle_buffer_size=1,
    seed=seed,
    deterministic=True,
    sharding=True,
  )
  reader = input_reader.InputReader(params, decoder_fn=lambda record: record, parser_fn=lambda record: record)
  seen = []
  for pipeline in range(4):
    context = tf.distribute.InputContext(num_input_pipelines=4, input_pipeline_id=pipeline, num_replicas_in_sync=4)
    seen += [int(record) for batch in reader.read(context).take(4) for record in batch.numpy()]
  assert sorted(seen) == list(range(16))


@pytest.mark.slow
def test_throughput_counts_training_alone(tmp_path):
  # Stock: the step timer continues through evaluations and saves; 193 steps/s were reported as 2.
  evaluation_seconds = 1.0
  small_run.run(
    tmp_path,
    eval_actions=[lambda logs: time.sleep(evaluation_seconds)],
    trainer={'train_steps': 20, 'steps_per_loop': 5, 'validation_interval': 5, 'checkpoint_interval': 5},
  )
  events = small_run.events(tmp_path, 'train')[1:]  # The first one compiles.
  between = [later['time'] - earlier['time'] for earlier, later in zip(events, events[1:])]
  assert min(between) > evaluation_seconds  # There was an evaluation in each.
  for event in events[1:]:
    assert event['steps_per_second'] > 5 / evaluation_seconds * 2


@pytest.mark.parametrize(('gpus', 'strategy'), [(0, 'one_device'), (1, 'one_device'), (2, 'mirrored')])
def test_gpus_that_are_there_are_used(gpus, strategy, monkeypatch):
  # Stock: num_gpus is 0 by default, and a machine with GPUs trains on its CPU.
  devices = [tf.config.LogicalDevice(f'/device:GPU:{i}', 'GPU') for i in range(gpus)]
  real = tf.config.list_logical_devices
  monkeypatch.setattr(tf.config, 'list_logical_devices', lambda kind=None: devices if kind == 'GPU' else real(kind))
  runtime = definitions.RuntimeConfig()
  assert distribute._choose(runtime) == strategy
  assert distribute._num_gpus(runtime) == gpus
  if strategy == 'one_device':
    (device,) = distribute._one_device(runtime).extended.worker_devices
    assert ('GPU:0' in device) == bool(gpus)


def test_the_features_of_tpu_hardware_are_found(monkeypatch):
  # Stock: AttributeError, `tf.tpu.experimental.HardWareFeature` is not its name.
  features = tf.tpu.experimental.HardwareFeature

  class Resolver:
    tpu_hardware_feature = None

    def get_tpu_system_metadata(self):
      raise AssertionError('only for the second generation')

  monkeypatch.setattr(features, 'embedding_feature', features.EmbeddingFeature.V1)
  assert distribute._tpu_assignment(Resolver(), None) is None


def test_the_last_checkpoint_is_written_once(tmp_path, monkeypatch):
  # Stock does so too.
  written = []
  write = manifests.write
  monkeypatch.setattr(manifests, 'write', lambda prefix, **values: (written.append(prefix), write(prefix, **values)))
  small_run.run(tmp_path, trainer={'train_steps': 8, 'checkpoint_interval': 4})
  assert [os.path.basename(prefix) for prefix in written] == ['ckpt-4', 'ckpt-8']
