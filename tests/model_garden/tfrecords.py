"""Small TFRecord files of the kind that Model Garden's input pipelines read."""

from collections.abc import Mapping, Sequence
import os
import pathlib

import numpy as np
import tensorflow as tf

Feature = bytes | int | float | Sequence[bytes] | Sequence[int] | Sequence[float]


def write_examples(path: str | os.PathLike, examples: Sequence[Mapping[str, Feature]]) -> None:
  """Writes a TFRecord file of tf.Examples.

  Args:
    path: the file.
    examples: from feature name to value: bytes become a bytes feature, integers an int64 feature, floats a float one.
  """

  def feature(value):
    values = [value] if isinstance(value, bytes) else np.atleast_1d(value).tolist()
    if isinstance(values[0], bytes):
      return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], float):
      return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

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


def write_masks(path: str | os.PathLike, num_examples: int = 16, image_size: int = 64, num_classes: int = 4) -> str:
  """Writes noise with a class for each pixel, as `official.vision.dataloaders.segmentation_input` reads it.

  Returns:
    The path, for `task.train_data.input_path`.
  """
  rng = np.random.default_rng(0)
  size = [image_size, image_size]
  examples = [
    {
      'image/encoded': tf.io.encode_jpeg(rng.integers(256, size=[*size, 3]).astype(np.uint8)).numpy(),
      'image/height': image_size,
      'image/width': image_size,
      'image/segmentation/class/encoded': tf.io.encode_png(
        rng.integers(num_classes, size=[*size, 1]).astype(np.uint8)
      ).numpy(),
    }
    for _ in range(num_examples)
  ]
  write_examples(path, examples)
  return os.fspath(path)


def write_boxes(path: str | os.PathLike, num_examples: int = 16, image_size: int = 64) -> str:
  """Writes noise with two boxes and their masks, as `official.vision.dataloaders.tf_example_decoder` reads it.

  The classes are 1.

  Returns:
    The path, for `task.train_data.input_path`.
  """
  rng = np.random.default_rng(0)
  mask = np.zeros([image_size, image_size, 1], np.uint8)
  mask[: image_size // 2, : image_size // 2] = 1
  examples = [
    {
      'image/encoded': tf.io.encode_jpeg(rng.integers(256, size=[image_size, image_size, 3]).astype(np.uint8)).numpy(),
      'image/source_id': str(number).encode(),
      'image/height': image_size,
      'image/width': image_size,
      'image/object/bbox/xmin': [0.0, 0.25],
      'image/object/bbox/xmax': [0.5, 0.75],
      'image/object/bbox/ymin': [0.0, 0.5],
      'image/object/bbox/ymax': [0.5, 1.0],
      'image/object/class/label': [1, 1],
      'image/object/area': [0.25 * image_size**2, 0.25 * image_size**2],
      'image/object/is_crowd': [0, 0],
      'image/object/mask': [tf.io.encode_png(mask).numpy()] * 2,
    }
    for number in range(num_examples)
  ]
  write_examples(path, examples)
  return os.fspath(path)


def write_masked_tokens(
  path: str | os.PathLike, num_examples: int = 16, seq_length: int = 16, num_predictions: int = 4
) -> str:
  """Writes tokens for BERT's pretraining, SQuAD and tagging, as the dataloaders of `official.nlp.data` read them.

  Returns:
    The path, for `task.train_data.input_path`.
  """
  ones, predictions = np.ones(seq_length, np.int64), np.arange(num_predictions)
  example: dict[str, Feature] = {
    'input_ids': ones * 5,
    'input_word_ids': ones * 5,
    'input_mask': ones,
    'segment_ids': ones * 0,
    'input_type_ids': ones * 0,
    'masked_lm_positions': predictions,
    'masked_lm_ids': predictions + 1,
    'masked_lm_weights': [1.0] * num_predictions,
    'next_sentence_labels': 1,
    'start_positions': 1,
    'end_positions': 2,
    'label_ids': ones,
  }
  write_examples(path, [example] * num_examples)
  return os.fspath(path)


def write_texts(path: str | os.PathLike, num_examples: int = 16) -> str:
  """Writes a text, and two sentences with a label, for the dataloaders of raw text.

  Returns:
    The path, for `task.train_data.input_path`. A WordPiece vocabulary is beside it, in `vocab.txt`.
  """
  example: dict[str, Feature] = {
    'text': b'the quick brown fox jumps. over a lazy dog. the fox jumps.',
    'sentence1': b'the quick brown fox',
    'sentence2': b'jumps over a lazy dog',
    'label': 1,
  }
  words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '.', *'the quick brown fox jumps over a lazy dog'.split()]
  (pathlib.Path(path).parent / 'vocab.txt').write_text('\n'.join(words) + '\n')
  write_examples(path, [example] * num_examples)
  return os.fspath(path)


def write_videos(
  path: str | os.PathLike, num_examples: int = 16, num_frames: int = 4, image_size: int = 64, num_classes: int = 4
) -> str:
  """Writes clips of noise with a label, as `official.vision.dataloaders.video_input` reads them.

  Returns:
    The path, for `task.train_data.input_path`.
  """
  rng = np.random.default_rng(0)
  with tf.io.TFRecordWriter(os.fspath(path)) as writer:
    for number in range(num_examples):
      example = tf.train.SequenceExample()
      example.context.feature['clip/label/index'].int64_list.value.append(number % num_classes)
      for frame in rng.integers(256, size=[num_frames, image_size, image_size, 3]).astype(np.uint8):
        feature = example.feature_lists.feature_list['image/encoded'].feature.add()
        feature.bytes_list.value.append(tf.io.encode_jpeg(frame).numpy())
      writer.write(example.SerializeToString())
  return os.fspath(path)


def write_sentencepiece_model(folder: str | os.PathLike) -> str:
  """Trains a SentencePiece model of 64 pieces on a few English and German words.

  Returns:
    The path of the model, `sentencepiece.model` in the folder, for `task.sentencepiece_model_path`.
  """
  import sentencepiece

  prefix = os.path.join(folder, 'sentencepiece')
  words = ['the', 'quick', 'brown', 'fox', 'jumps', 'over', 'a', 'lazy', 'dog', 'und', 'der', 'schnelle', 'fuchs']
  sentences = [' '.join(words[i % 13] for i in range(start, start + 7)) for start in range(100)]
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(sentences),
    model_prefix=prefix,
    vocab_size=64,
    hard_vocab_limit=False,
    pad_id=0,
    bos_id=1,
    eos_id=2,
    unk_id=3,
    minloglevel=2,
  )
  return f'{prefix}.model'


def write_translations(path: str | os.PathLike, num_examples: int = 16) -> str:
  """Writes pairs of sentences, as `official.nlp.data.wmt_dataloader` reads them.

  Returns:
    The path, for `task.train_data.input_path`. A SentencePiece model is beside it, in `sentencepiece.model`.
  """
  write_sentencepiece_model(pathlib.Path(path).parent)
  write_examples(path, [{'en': b'the quick brown fox', 'de': b'der schnelle fuchs'}] * num_examples)
  return os.fspath(path)
