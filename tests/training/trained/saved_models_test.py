"""A SavedModel that is tried uses the range and the labels of its export, and shows classes of pixels and masks."""

import base64
import json

import numpy as np
import pytest
import tensorflow as tf

from official_ext.training.trained import saved_models


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('saved')

  @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 1], tf.float32, 'image')])
  def segment(image):
    is_left = tf.cast(tf.range(8) < 2, tf.float32)[tf.newaxis, tf.newaxis, :, tf.newaxis]
    return {'logits': tf.concat([tf.ones_like(image) * 0.5, image * is_left], -1), 'largest': tf.reduce_max(image)}

  module = tf.Module()
  module.serve = segment
  tf.saved_model.save(module, str(folder), signatures=segment)
  return folder


def predict(folder, **how):
  white = base64.b64encode(tf.io.encode_png(np.full([8, 8, 3], 255, np.uint8)).numpy()).decode()
  return saved_models.SavedModel(str(folder)).predict('serving_default', {'image': {'image': white, **how}})


@pytest.mark.parametrize(
  'note, how, largest',
  [
    ({}, {}, 255),
    ({'preprocessing': {'input': 'image', 'range': [0, 1]}}, {}, 1),
    ({'preprocessing': {'input': 'image', 'range': [0, 1]}}, {'range': '0..255'}, 255),
    ({'preprocessing': {'input': 'other', 'range': [0, 1]}}, {}, 255),
    ({'preprocessing': {'input': 'image', 'range': None}}, {}, 255),
  ],
)
def test_the_range_is_that_of_the_export_unless_it_is_given(note, how, largest, folder):
  (folder / 'export.json').write_text(json.dumps(note))
  assert predict(folder, **how)['largest']['values'] == largest


def test_the_classes_of_pixels_become_a_picture(folder):
  (folder / 'export.json').write_text(json.dumps({'preprocessing': {'input': 'image', 'range': [0, 1]}}))
  (folder / 'labels.txt').write_text('ground\nroad\n')
  mask = predict(folder)['logits']['mask']
  assert [(each['number'], each['share']) for each in mask['classes']] == [(0, 0.75), (1, 0.25)]
  pixels = tf.io.decode_png(base64.b64decode(mask['png'])).numpy()
  assert pixels.shape == (8, 8, 4) and (pixels[:, 2:] == 0).all()
  assert (pixels[:, :2, :3] == mask['classes'][1]['colour']).all() and (pixels[:, :2, 3] > 0).all()
  model = saved_models.SavedModel(str(folder))
  assert model.labels == ['ground', 'road']
  assert model.signatures()['serving_default']['inputs'][0]['range'] == '0..1'


def test_the_masks_of_objects_become_pictures():
  shares = np.zeros([1, 2, 28, 28], np.float32)
  shares[0, 0, :, :14] = 0.9
  shares[0, 1, 7:] = 0.6
  found = saved_models.pictures_of('detection_masks', tf.constant(shares))['masks']
  opaque = [tf.io.decode_png(base64.b64decode(each), channels=4).numpy()[..., 3] == 255 for each in found]
  assert [each.shape for each in opaque] == [(112, 112)] * 2
  assert [each.mean() for each in opaque] == pytest.approx([0.5, 0.75], abs=0.02)
  assert opaque[0][:, 0].all() and not opaque[0][:, -1].any() and opaque[1][-1].all() and not opaque[1][0].any()
  assert saved_models.pictures_of('detection_boxes', tf.zeros([1, 2, 28, 28])) == {}
