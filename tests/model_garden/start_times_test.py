"""How long Model Garden's experiments take to their first step, on one replica and on two.

A start is the trace that plans the step, the trace of the program, its compilation and one step, at the registered
depth of the model, on small inputs. Its processor time is measured in units of that of `resnet_imagenet` on one
replica, measured before in the same process, so that the table holds on other machines and beside other processes.
"""

import time

import pytest
import tensorflow as tf

from official_ext.base import tf_internals
from tests.model_garden import tfrecords
from tests.model_garden.all_experiments_test import OPEN
from tests.model_garden.all_experiments_test import SMALLER
from tests.model_garden.all_experiments_test import parse

IMAGE = ('task.model.input_size=[64, 64, 3]', 'task.model.num_classes=4')
MASK = (*IMAGE, 'task.train_data.output_size=[64, 64]', 'task.train_data.crop_size=[]')
BOX = ('task.model.input_size=[128, 128, 3]',)
VIDEO = ('task.train_data.feature_shape=[8, 64, 64, 3]', 'task.train_data.min_image_size=64')
TOKENS = ('task.train_data.seq_length=16',)
MASKED = (*TOKENS, 'task.train_data.max_predictions_per_seq=4')
SENTENCES = (
  *TOKENS,
  'task.train_data.text_fields=[sentence1, sentence2]',
  'task.train_data.vocab_file={folder}/vocab.txt',
)
DOCUMENTS = (
  *MASKED,
  'task.train_data.text_field_names=[text]',
  'task.train_data.use_next_sentence_label=false',
  'task.train_data.vocab_file_path={folder}/vocab.txt',
)
# Lengths vary, which XLA cannot compile.
BUCKETS = ('task.train_data.seq_bucket_lengths=[16]', 'runtime.enable_xla=false')
# Batches are counted in tokens.
TRANSLATION = (
  'task.train_data.max_seq_length=16',
  'task.train_data.global_batch_size=64',
  'runtime.enable_xla=false',
)

WRITERS = {
  'images': lambda folder: tfrecords.write_images(folder, num_examples=16, image_size=64, num_classes=4),
  'masks': lambda folder: tfrecords.write_masks(folder / 'masks'),
  'boxes': lambda folder: tfrecords.write_boxes(folder / 'boxes'),
  'videos': lambda folder: tfrecords.write_videos(folder / 'videos'),
  'sentences': lambda folder: tfrecords.write_sentences(folder / 'sentences'),
  'texts': lambda folder: tfrecords.write_texts(folder / 'texts'),
  'tokens': lambda folder: tfrecords.write_masked_tokens(folder / 'tokens'),
}

UNIT = ('resnet_imagenet', 'images', IMAGE)
FACTOR = 2.0

# Name: (kind of its data, settings, units on one replica, units on two), measured. Others are not measured yet.
EXPERIMENTS: dict[str, tuple[str, tuple[str, ...], float, float]] = {
  'bert/pretraining': ('tokens', MASKED, 1.84, 2.71),
  'bert/sentence_prediction': ('sentences', TOKENS, 2.23, 1.94),
  'bert/squad': ('tokens', TOKENS, 2.31, 2.07),
  'bert/tagging': ('tokens', TOKENS, 2.4, 1.97),
  'cascadercnn_spinenet_coco': ('boxes', BOX, 6.15, 16.36),
  'deit_imagenet_pretrain': ('images', IMAGE, 1.06, 1.74),
  'mnv2_deeplabv3_pascal': ('masks', MASK, 0.94, 3.54),
}


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  return {kind: write(folder) for kind, write in WRITERS.items()}


def start_seconds(name, path, settings, num_replicas):
  """Builds a trainer in this process, and returns the processor seconds of its first step."""
  from official.core import task_factory

  from official_ext.training.loop import building

  params = parse(
    name,
    [
      *OPEN.get(name, ()),
      *SMALLER.get(name, ()),
      f'task.train_data.input_path={path}',
      'task.train_data.global_batch_size=2',
      'task.train_data.shuffle_buffer_size=2',
      'task.init_checkpoint=""',
      *settings,
      'trainer.train_steps=1',
      'trainer.steps_per_loop=1',
    ],
  )
  devices = [device.name for device in tf.config.list_logical_devices('CPU')[:num_replicas]]
  if num_replicas == 1:
    strategy = tf.distribute.OneDeviceStrategy(devices[0])
  else:
    strategy = tf_internals.make_strategy(tf.distribute.MirroredStrategy, devices=devices)
  with strategy.scope():
    task = task_factory.get_task(params.task)
  trainer = building.build_trainer(strategy, task, params, None, train=True, evaluate=False)
  begin = time.process_time()
  trainer.train(tf.constant(1))
  return time.process_time() - begin


@pytest.fixture(scope='module')
def unit(data):
  name, kind, settings = UNIT
  return start_seconds(name, data[kind], settings, 1)


@pytest.mark.soak
@pytest.mark.parametrize('num_replicas', [1, 2])
@pytest.mark.parametrize('name', EXPERIMENTS)
def test_start_takes_no_longer_than_it_did(name, num_replicas, data, unit, no_random_weights, release_memory):
  kind, settings, *expected = EXPERIMENTS[name]
  units = start_seconds(name, data[kind], settings, num_replicas) / unit
  print(f'{name} on {num_replicas}: {units:.2f} units of {unit:.1f} s')
  assert units < FACTOR * expected[num_replicas - 1]
