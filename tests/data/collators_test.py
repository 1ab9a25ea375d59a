"""Collators: from examples to a batch."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.data import collators
from official_ext.training.config import definitions


@dataclasses.dataclass
class TokenDataConfig(definitions.DataConfig):
  """Data of sequences."""

  seq_length: int = 0
  pad_value: int = 0


def test_stack_keeps_structure_and_dtypes():
  examples = [{'a': np.full([2], i, np.uint8), 'b': {'c': float(i)}, 'name': f'n{i}'} for i in range(3)]
  batch = collators.get('stack', definitions.DataConfig())(examples)
  assert batch['a'].tolist() == [[0, 0], [1, 1], [2, 2]] and batch['a'].dtype == np.uint8
  assert batch['b']['c'].tolist() == [0, 1, 2]
  assert batch['name'].tolist() == ['n0', 'n1', 'n2']


@pytest.mark.parametrize('name', ['stack', 'pad'])
def test_bytes_keep_the_zeros_at_their_end(name):
  """A serialized record may end with zeros, such as a label of 0 in a tf.train.Example."""
  records = [b'\x08\x00', b'\x08\x01\x02', b'\x00\x00']
  batch = collators.get(name, definitions.DataConfig())([{'record': record} for record in records])
  read = tf.numpy_function(lambda: batch['record'], [], tf.string)  # As an input pipeline reads.
  assert list(read.numpy()) == records


def test_stack_refuses_shapes_that_differ():
  with pytest.raises(ValueError, match='shape'):
    collators.get('stack', definitions.DataConfig())([{'a': np.zeros(2)}, {'a': np.zeros(3)}])


@pytest.mark.parametrize('seq_length, expected', [(0, [[1, -1, -1], [1, 2, 3]]), (2, [[1, -1], [1, 2]])])
def test_pad(seq_length, expected):
  params = TokenDataConfig(seq_length=seq_length, pad_value=-1)
  examples = [{'tokens': np.array([1]), 'label': 5}, {'tokens': np.array([1, 2, 3]), 'label': 6}]
  batch = collators.get('pad', params)(examples)
  assert batch['tokens'].tolist() == expected
  assert batch['label'].tolist() == [5, 6]


def test_pad_of_vectors_and_plain_config():
  batch = collators.get('pad', definitions.DataConfig())([{'x': np.ones([1, 2])}, {'x': np.ones([2, 2])}])
  assert batch['x'].tolist() == [[[1, 1], [0, 0]], [[1, 1], [1, 1]]]


def test_a_name_is_registered_once_and_a_miss_names_its_neighbour():
  with pytest.raises(ValueError, match="'stack' is registered already"):
    collators.register('stack')(lambda params: None)
  with pytest.raises(errors.UserError, match='did you mean stack'):
    collators.get('stak', definitions.DataConfig())
  with pytest.raises(errors.UserError, match='there are .*pad, stack'):
    collators.get('zzz', definitions.DataConfig())


@pytest.mark.parametrize('name', ['stack', 'pad'])
def test_bytes_keep_their_zeros_at_the_end(name):
  # A serialized record may well end with them; NumPy's own strings of bytes do not.
  values = [b'a\0', b'\0\0', b'longer']
  batch = collators.get(name, definitions.DataConfig())([{'record': value} for value in values])
  assert batch['record'].tolist() == values
