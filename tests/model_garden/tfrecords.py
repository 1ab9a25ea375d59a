"""Small TFRecord files of the kind that Model Garden's input pipelines read."""

from collections.abc import Mapping, Sequence
import os
import pathlib

import numpy as np
import tensorflow as tf

Feature = bytes | int | Sequence[int]


def write_examples(path: str | os.PathLike, examples: Sequence[Mapping[str, Feature]]) -> None:
  """Writes a TFRecord file of tf.Examples.

  Args:
    path: the file.
    examples: from feature name to value: bytes become a bytes feature, integers an int64 feature.
  """

  def feature(value):
    if isinstance(value, bytes):
      return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=np.atleast_1d(value)))

  with tf.io.TFRecordWriter(os.fspath(path)) as writer:
    for example in examples:
      features = {name: feature(value) for name, value in example.items()}
      writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def write_images(
  folder: str | os.PathLike,
  num_files: int = 4,
  num_examples: int = 128,
  image_size: int = 32,
  num_classes: int = 10,
  seed: int = 0,
) -> str:
  """Writes labelled JPEG images as `official.vision.dataloaders.classification_input` reads them.

  An image is noise around a colour that its class has, so that there is something to learn.

  Args:
    folder: where the files go; is made.
    num_files: over how many files the examples are spread.
    num_examples: how many in all.
    image_size: height and width in pixels.
    num_classes: labels go from 0 to num_classes - 1.
    seed: of the noise and the labels. The colour of a class does not depend on it.

  Returns:
    The pattern that matches the files, for `task.train_data.input_path`.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  colours = np.random.default_rng(1234).integers(40, 216, size=[num_classes, 3])
  rng = np.random.default_rng(seed)
  labels = rng.integers(num_classes, size=num_examples)
  examples = []
  for label in labels:
    noise = rng.normal(scale=20.0, size=[image_size, image_size, 3])
    image = np.clip(colours[label] + noise, 0, 255).astype(np.uint8)
    examples.append(
      {
        'image/encoded': tf.io.encode_jpeg(image, quality=95).numpy(),
        'image/format': b'jpeg',
        'image/height': image_size,
        'image/width': image_size,
        'image/class/label': int(label),
      }
    )
  for index in range(num_files):
    write_examples(folder / f'images-{index:05d}-of-{num_files:05d}.tfrecord', examples[index::num_files])
  return os.fspath(folder / 'images-*')


def write_sentences(
  path: str | os.PathLike,
  num_examples: int = 128,
  seq_length: int = 16,
  vocab_size: int = 100,
  seed: int = 0,
) -> str:
  """Writes token sequences of two classes as `official.nlp.data.sentence_prediction_dataloader` reads them.

  A sequence is [CLS] (1), then tokens of one half of the vocabulary or of the other, which is its class.

  Args:
    path: the file; its folder is made.
    num_examples: how many.
    seq_length: tokens in each, padding included.
    vocab_size: token ids go from 0 (padding) to vocab_size - 1.
    seed: of lengths, tokens and labels.

  Returns:
    The path, for `task.train_data.input_path`.
  """
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  rng = np.random.default_rng(seed)
  middle = vocab_size // 2
  examples = []
  for _ in range(num_examples):
    label = int(rng.integers(2))
    length = int(rng.integers(seq_length // 2, seq_length + 1))
    low, high = (middle, vocab_size) if label else (2, middle)
    input_ids, input_mask = np.zeros(seq_length, np.int64), np.zeros(seq_length, np.int64)
    input_ids[:length] = [1, *rng.integers(low, high, size=length - 1)]
    input_mask[:length] = 1
    examples.append(
      {
        'input_ids': input_ids,
        'input_mask': input_mask,
        'segment_ids': np.zeros(seq_length, np.int64),
        'label_ids': label,
      }
    )
  write_examples(path, examples)
  return os.fspath(path)
