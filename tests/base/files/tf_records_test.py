"""TFRecord files and tf.Examples written without TensorFlow equal TensorFlow's."""

import numpy as np
import tensorflow as tf

from official_ext.base.files import tf_records
from tests import tiers

EXAMPLE = {
  'image/encoded': b'\xff\xd8' * 300,
  'image/height': 480,
  'image/class/label': -1,
  'image/object/class/label': [1, 300, 2**40, -7],
  'image/object/bbox/xmin': [0.0, 0.25, 1 / 3],
  'image/object/class/text': ['Ä'.encode(), b''],
  'image/object/is_crowd': [],
}


@tiers.parametrize('lengths', [[*range(70), 4095, 4096, 4097], [*range(70, 1500, 7), 10**6]], fast=1)
def test_records_equal_those_of_tensorflow(lengths, tmp_path):
  rng = np.random.default_rng(0)
  records = [rng.integers(256, size=length, dtype=np.uint8).tobytes() for length in lengths]
  with tf.io.TFRecordWriter(str(tmp_path / 'tf')) as writer:
    for record in records:
      writer.write(record)
  assert b''.join(map(tf_records.framed, records)) == (tmp_path / 'tf').read_bytes()


def test_examples_equal_those_of_tensorflow():
  found = tf.train.Example.FromString(tf_records.encode_example(EXAMPLE))
  features = found.features.feature
  assert features['image/encoded'].bytes_list.value == [EXAMPLE['image/encoded']]
  assert features['image/object/class/label'].int64_list.value == EXAMPLE['image/object/class/label']
  assert features['image/class/label'].int64_list.value == [-1]
  xmin = np.array(EXAMPLE['image/object/bbox/xmin'], np.float32).tolist()
  assert features['image/object/bbox/xmin'].float_list.value == xmin
  assert features['image/object/class/text'].bytes_list.value == EXAMPLE['image/object/class/text']
  assert not features['image/object/is_crowd'].WhichOneof('kind')
  assert found.SerializeToString(deterministic=True) == tf_records.encode_example(EXAMPLE)
