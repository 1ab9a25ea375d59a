"""The same examples by this library's input and by Model Garden's `InputReader`: images from shards, rows of tokens."""

from collections.abc import Callable
import json
import pathlib
from typing import Any

import official_ext as ext  # Before tensorflow.

# isort: split
import numpy as np
from official.core import config_definitions as cfg
from official.core import input_reader
import tensorflow as tf

IMAGE_BATCH, IMAGE_SIZE = 64, 64
TEXT_BATCH, TEXT_LENGTH, VOCABULARY = 16, 128, 512
TEXT_FEATURES = ('input_ids', 'labels', 'segment_ids', 'position_ids')
_NUM_IMAGES, _NUM_SHARDS = 2048, 4
_HEIGHT, _WIDTH, _CROP = 96, 128, 80


def dataset(data: str, kind: str, folder: pathlib.Path) -> tf.data.Dataset:
  """Batches without end; their files are written first.

  Args:
    data: 'images' for `{'x': float32 [64, 64, 64, 3], 'label': int64 [64]}`, 'texts' for the features of
      `ext.text_source`, int32 [16, 128] each.
    kind: 'ours' for ArrayRecord files and `ext.build_dataset`, or a source of packed texts; 'input_reader' for TFRecord
      files, of rows that are packed already, and Model Garden's `InputReader`; 'one_batch' for our first, again
      and again.
    folder: for the files.
  """
  if kind == 'one_batch':
    return dataset(data, 'ours', folder).take(1).cache().repeat().prefetch(1)
  makers: dict[tuple[str, str], Callable[[pathlib.Path], tf.data.Dataset]] = {
    ('images', 'ours'): _our_images,
    ('images', 'input_reader'): _read_images,
    ('texts', 'ours'): _our_texts,
    ('texts', 'input_reader'): _read_texts,
  }
  return makers[data, kind](folder)


def batch_size(data: str) -> int:
  """Examples of a batch."""
  return {'images': IMAGE_BATCH, 'texts': TEXT_BATCH}[data]


def _image_records() -> list[bytes]:
  """JPEGs with their labels, as tf.train.Example."""
  rng = np.random.default_rng(0)
  smooth = rng.integers(0, 256, [_NUM_IMAGES, 6, 8, 3]).astype(np.float32)
  records = []
  for number, small in enumerate(smooth):
    image = tf.cast(tf.clip_by_value(tf.image.resize(small, [_HEIGHT, _WIDTH], 'bicubic'), 0.0, 255.0), tf.uint8)
    feature = {
      'image': tf.train.Feature(bytes_list=tf.train.BytesList(value=[tf.io.encode_jpeg(image).numpy()])),
      'label': tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 10])),
    }
    records.append(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
  return records


def _decoded_record(record: tf.Tensor) -> dict[str, tf.Tensor]:
  features = {'image': tf.io.FixedLenFeature([], tf.string), 'label': tf.io.FixedLenFeature([], tf.int64)}
  return tf.io.parse_single_example(record, features)


def _augmented(example: dict[str, tf.Tensor], seed: tf.Tensor) -> dict[str, tf.Tensor]:
  """Decodes the part of an image that is cropped, turns it, resizes it: float32 [64, 64, 3] in [0, 1]."""
  room = tf.constant([_HEIGHT - _CROP + 1, _WIDTH - _CROP + 1], tf.float32)
  corner = tf.cast(tf.random.stateless_uniform([2], seed) * room, tf.int32)
  image = tf.io.decode_and_crop_jpeg(example['image'], tf.concat([corner, [_CROP, _CROP]], 0), channels=3)
  image = tf.image.resize(tf.image.stateless_random_flip_left_right(image, seed), [IMAGE_SIZE, IMAGE_SIZE])
  return {'x': tf.ensure_shape(image / 255.0, [IMAGE_SIZE, IMAGE_SIZE, 3]), 'label': example['label']}


def _our_images(folder: pathlib.Path) -> tf.data.Dataset:
  from array_record.python import array_record_module

  records = _image_records()
  for shard in range(_NUM_SHARDS):
    writer = array_record_module.ArrayRecordWriter(str(folder / f'{shard}.array_record'), 'group_size:1')
    for record in records[shard::_NUM_SHARDS]:
      writer.write(record)
    writer.close()
  source = ext.ArrayRecordSource(str(folder / '*.array_record'), lambda record: {'record': record})
  params = ext.DataConfig(global_batch_size=IMAGE_BATCH, is_training=True, seed=0)
  transform = lambda example, seed: _augmented(_decoded_record(example['record']), seed)
  return ext.build_dataset(source, params, transform_per_example=transform)


def _read_images(folder: pathlib.Path) -> tf.data.Dataset:
  _write(folder, _image_records())

  def parse(example):
    return _augmented(example, tf.random.uniform([2], maxval=2**31 - 1, dtype=tf.int32))

  return _read(folder, IMAGE_BATCH, _NUM_IMAGES, _decoded_record, parse)


def _text_source(folder: pathlib.Path) -> tuple[Any, Any]:
  """(rows, their configuration)."""
  params = ext.TextDataConfig(
    global_batch_size=TEXT_BATCH,
    is_training=True,
    seed=0,
    seq_length=TEXT_LENGTH,
    packing='best_fit',
    max_content_length=TEXT_LENGTH,
    cache_dir=str(folder / 'tokens'),
  )
  # Parts of the topics, of different lengths, so that several share a row.
  texts = [document['text'] for document in ext.python_topics.documents('train')]
  parts = [text[start : start + 20 + start % 300] for text in texts for start in range(0, len(text), 150)]
  tokenizer = ext.train_tokenizer(texts, VOCABULARY)
  file = folder / 'texts.jsonl'
  file.write_text(''.join(f'{json.dumps({"text": part})}\n' for part in parts if part.strip()))
  params.input_path = str(file)
  return ext.text_source(params, tokenizer), params


def _our_texts(folder: pathlib.Path) -> tf.data.Dataset:
  source, params = _text_source(folder)
  return ext.build_dataset(source, params)


def _read_texts(folder: pathlib.Path) -> tf.data.Dataset:
  source, params = _text_source(folder)
  params.is_training = False  # Each row once.
  rows = [row for batch in ext.build_dataset(source, params) for row in zip(*(batch[name] for name in TEXT_FEATURES))]

  def record(row):
    feature = {
      name: tf.train.Feature(int64_list=tf.train.Int64List(value=values.numpy()))
      for name, values in zip(TEXT_FEATURES, row)
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

  _write(folder, [record(row) for row in rows])

  def decode(record):
    feature = tf.io.FixedLenFeature([TEXT_LENGTH], tf.int64)
    return tf.io.parse_single_example(record, dict.fromkeys(TEXT_FEATURES, feature))

  def parse(example):
    return {name: tf.cast(example[name], tf.int32) for name in TEXT_FEATURES}

  return _read(folder, TEXT_BATCH, len(rows), decode, parse)


def _write(folder: pathlib.Path, records: list[bytes]) -> None:
  for shard in range(_NUM_SHARDS):
    with tf.io.TFRecordWriter(str(folder / f'{shard}.tfrecord')) as writer:
      for record in records[shard::_NUM_SHARDS]:
        writer.write(record)


def _read(
  folder: pathlib.Path, size: int, num_examples: int, decode: Callable[..., Any], parse: Callable[..., Any]
) -> tf.data.Dataset:
  """As Model Garden's tasks read: all examples shuffled, which ours are too."""
  params = cfg.DataConfig(
    input_path=str(folder / '*.tfrecord'), global_batch_size=size, is_training=True, shuffle_buffer_size=num_examples
  )
  return input_reader.InputReader(params, decoder_fn=decode, parser_fn=parse).read()
