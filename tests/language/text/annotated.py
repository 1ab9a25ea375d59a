"""Texts whose class depends on the order of their words, questions about them, and readers of converted files."""

import contextlib
import glob
import json
import os
import pathlib

import numpy as np

from official_ext.data.prepare import planning
from official_ext.data.prepare import preparing
from official_ext.language.text import bert_conversion
from official_ext.language.text import bert_targets
from tests.data.prepare import prepared_inputs

COLOURS = ('red', 'blue', 'green', 'black')
WORDS = ('beats', 'the', 'team', 'today', 'again', 'who', 'wins', '?')


def winners(number, seed=0):
  """(text, label) of sentences: the label is the colour before `beats`. Counts of words do not show it."""
  rng = np.random.default_rng(seed)
  found = []
  for _ in range(number):
    first, second = (COLOURS[index] for index in rng.permutation(2))
    before, after = (['today', 'again', 'the team'][rng.integers(3)] for _ in range(2))
    found.append((f'{before} {first} beats {second} {after}', first))
  return found


def questions(number, seed=0):
  """Questions as bert_conversion.py reads them; every fifth has no answer."""
  found = []
  for index, (text, label) in enumerate(winners(number, seed)):
    answers = [{'text': label, 'answer_start': text.index(label)}] if index % 5 else []
    found.append({'id': f'q{index}', 'question': 'who wins ?', 'context': f'{text}', 'answers': answers})
  return found


def squad(examples):
  """The text of a file in SQuAD's JSON."""
  paragraphs = [
    {
      'context': each['context'],
      'qas': [{**{name: each[name] for name in ('id', 'question', 'answers')}, 'is_impossible': not each['answers']}],
    }
    for each in examples
  ]
  return json.dumps({'version': 'v2.0', 'data': [{'title': 'colours', 'paragraphs': paragraphs}]})


def write_vocabulary(path):
  """A vocabulary of all words here; returns its path."""
  pathlib.Path(path).write_text('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', *COLOURS, *WORDS]) + '\n')
  return pathlib.Path(path)


def examples(folder, split):
  """The features of a split, all of integers, in order."""
  import tensorflow as tf  # pylint: disable=g-import-not-at-top

  found = []
  for file in sorted(glob.glob(os.path.join(glob.escape(str(folder)), f'{split}-*.tfrecord'))):
    for record in tf.data.TFRecordDataset(file):
      features = tf.train.Example.FromString(record.numpy()).features.feature
      found.append({name: list(feature.int64_list.value) for name, feature in features.items()})
  return found


def convert(inputs, folder, target, vocab_file, on_bad_example='skip', reading=None, reverse=False, **values):
  """A conversion in this process: (the result of `prepare_plan`, the conversion)."""
  settings = planning.Settings(shard_bytes=values.pop('shard_bytes', 10**6), on_bad_example=on_bad_example)
  inputs = inputs if isinstance(inputs, dict) else {'': [str(inputs)]}
  conversion = bert_targets.Conversion(target, **values)
  made = bert_conversion.BertConversion(
    inputs, conversion, settings, reading or bert_conversion.Reading(), str(vocab_file)
  )
  engine = lambda num_shards: contextlib.nullcontext(prepared_inputs.Here(reverse))
  done = preparing.prepare_plan(made.plan, [], str(folder), engine, made)
  return done, made
