"""Images from shards, decoded, cropped, flipped and resized: by this library's input and by Model Garden's."""

from collections.abc import Mapping
import pathlib
import shutil
import tempfile

import official_ext as ext  # Before tensorflow.

# isort: split
import numpy as np
from official.core import config_definitions as cfg
from official.core import input_reader
import tensorflow as tf

from benchmarks.peers import protocol

_NUM_IMAGES, _NUM_SHARDS, _BATCH = 2048, 4, 64
_HEIGHT, _WIDTH, _CROP, _SIZE = 96, 128, 80, 64


def measurement(work: None, kind: str) -> protocol.Measurement:
  """Examples, in whole batches.

  Args:
    work: nothing; the images are made here, the same for all.
    kind: 'ours' for ArrayRecord files and `ext.build_dataset`, 'input_reader' for TFRecord files and Model Garden's
      `InputReader`.
  """
  del work
  folder = pathlib.Path(tempfile.mkdtemp(prefix='bench-images-'))
  iterator = iter({'ours': _ours, 'input_reader': _input_reader}[kind](folder))

  @tf.function
  def read(iterator, num_batches):
    total = tf.constant(0.0)
    for _ in tf.range(num_batches):
      images, labels = next(iterator)
      total += images[0, 0, 0, 0] + tf.cast(labels[0], tf.float32)
    return total

  def run(num_examples: int) -> Mapping[str, float]:
    float(read(iterator, tf.constant(num_examples // _BATCH)))
    return {}

  return protocol.Measurement(run, _BATCH, close=lambda: shutil.rmtree(folder, ignore_errors=True))


def _records() -> list[bytes]:
  """JPEGs with their labels, as tf.train.Example."""
  rng = np.random.default_rng(0)
  smooth = rng.integers(0, 256, [_NUM_IMAGES, 6, 8, 3]).astype(np.float32)
  records = []
  for number, small in enumerate(smooth):
    image = tf.cast(tf.image.resize(small, [_HEIGHT, _WIDTH], 'bicubic'), tf.uint8)
    feature = {
      'image': tf.train.Feature(bytes_list=tf.train.BytesList(value=[tf.io.encode_jpeg(image).numpy()])),
      'label': tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 10])),
    }
    records.append(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
  return records


def _parsed(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  features = {'image': tf.io.FixedLenFeature([], tf.string), 'label': tf.io.FixedLenFeature([], tf.int64)}
  example = tf.io.parse_single_example(record, features)
  return example['image'], example['label']


def _augmented(jpeg: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Decodes the part of an image that is cropped, turns it, resizes it: float32 [64, 64, 3] in [0, 1]."""
  room = tf.constant([_HEIGHT - _CROP + 1, _WIDTH - _CROP + 1], tf.float32)
  corner = tf.cast(tf.random.stateless_uniform([2], seed) * room, tf.int32)
  image = tf.io.decode_and_crop_jpeg(jpeg, tf.concat([corner, [_CROP, _CROP]], 0), channels=3)
  image = tf.image.resize(tf.image.stateless_random_flip_left_right(image, seed), [_SIZE, _SIZE])
  return tf.ensure_shape(image / 255.0, [_SIZE, _SIZE, 3])


def _ours(folder: pathlib.Path) -> tf.data.Dataset:
  from array_record.python import array_record_module

  records = _records()
  for shard in range(_NUM_SHARDS):
    writer = array_record_module.ArrayRecordWriter(str(folder / f'{shard}.array_record'), 'group_size:1')
    for record in records[shard::_NUM_SHARDS]:
      writer.write(record)
    writer.close()
  source = ext.ArrayRecordSource(str(folder / '*.array_record'), lambda record: {'record': record})

  def transform(example, seed):
    jpeg, label = _parsed(example['record'])
    return _augmented(jpeg, seed), label

  params = ext.DataConfig(global_batch_size=_BATCH, is_training=True, seed=0)
  return ext.build_dataset(source, params, transform_per_example=transform)


def _input_reader(folder: pathlib.Path) -> tf.data.Dataset:
  records = _records()
  for shard in range(_NUM_SHARDS):
    with tf.io.TFRecordWriter(str(folder / f'{shard}.tfrecord')) as writer:
      for record in records[shard::_NUM_SHARDS]:
        writer.write(record)

  def parse(example):
    jpeg, label = example
    seed = tf.random.uniform([2], maxval=2**31 - 1, dtype=tf.int32)
    return _augmented(jpeg, seed), label

  params = cfg.DataConfig(
    input_path=str(folder / '*.tfrecord'), global_batch_size=_BATCH, is_training=True, shuffle_buffer_size=_NUM_IMAGES
  )
  return input_reader.InputReader(params, decoder_fn=_parsed, parser_fn=parse).read()
