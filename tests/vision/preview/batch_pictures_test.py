"""Pictures show the pixels, boxes, masks and labels that were annotated, in the layouts of Model Garden's inputs."""

import types

import numpy as np
from official.vision.configs import image_classification as classification_config
from official.vision.configs import maskrcnn as maskrcnn_config
from official.vision.configs import retinanet as retinanet_config
from official.vision.configs import semantic_segmentation as segmentation_config
from official.vision.tasks import image_classification
from official.vision.tasks import maskrcnn
from official.vision.tasks import retinanet
from official.vision.tasks import semantic_segmentation
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.vision.preview import pictures as pictures_lib
from tests.vision import drawn


def found_by_colour(image):
  """((top, left, bottom, right), class number) of the box in an image, by its colour."""
  for number, name in enumerate(drawn.CLASSES, 1):
    near = np.abs(image.astype(int) - drawn.COLOURS[name]).max(-1) < 60
    if near.sum() > 20:
      rows, columns = np.nonzero(near.any(1))[0], np.nonzero(near.any(0))[0]
      return (rows[0], columns[0], rows[-1] + 1, columns[-1] + 1), number
  raise AssertionError('no box')


def first_batch(task, data):
  (batch,) = task.build_inputs(data).take(1)
  return batch


@pytest.fixture(scope='module')
def boxes(tmp_path_factory):
  folder = tmp_path_factory.mktemp('boxes')
  drawn.write_coco(folder / 'in', 8)
  drawn.convert(folder / 'in', folder / 'out', 'instance_segmentation', validation_share=0.0)
  return folder / 'out'


def check_boxes(pictures, least=4):
  assert len(pictures) >= least
  for picture in pictures:
    box, number = found_by_colour(picture.image)
    assert list(picture.classes) == [number]
    np.testing.assert_allclose(picture.boxes[0], box, atol=2.5)  # Resized with blurred edges.


@pytest.mark.slow
@pytest.mark.parametrize('is_training', [True, pytest.param(False, marks=pytest.mark.slow)])
def test_boxes_of_retinanets_targets(is_training, boxes):
  config = retinanet_config.RetinaNetTask()
  config.model.num_classes, config.model.input_size = 4, [128, 128, 3]
  task = retinanet.RetinaNetTask(config)
  data = retinanet_config.DataConfig(
    input_path=f'{boxes}/train-*', global_batch_size=4, is_training=is_training, dtype='float32'
  )
  data.parser.aug_rand_hflip = True
  pictures, how = pictures_lib.pictures_of_batch(first_batch(task, data), task)
  check_boxes(pictures)
  assert how == "Model Garden's mean and deviation undone"


@pytest.mark.slow
@pytest.mark.parametrize('is_training', [True, pytest.param(False, marks=pytest.mark.slow)])
def test_boxes_and_masks_of_mask_rcnn(is_training, boxes):
  config = maskrcnn_config.MaskRCNNTask()
  config.model.num_classes, config.model.input_size, config.model.include_mask = 4, [128, 128, 3], True
  task = maskrcnn.MaskRCNNTask(config)
  data = maskrcnn_config.DataConfig(
    input_path=f'{boxes}/train-*', global_batch_size=4, is_training=is_training, dtype='float32'
  )
  pictures, _ = pictures_lib.pictures_of_batch(first_batch(task, data), task)
  check_boxes(pictures)
  for picture in pictures:
    (mask,) = picture.masks
    top, left, bottom, right = (int(round(value)) for value in picture.boxes[0])
    filled = np.zeros_like(mask)
    filled[top:bottom, left:right] = True
    assert (mask & filled).sum() / (mask | filled).sum() > 0.9


@pytest.mark.slow
@pytest.mark.parametrize('is_training', [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_class_of_each_pixel(is_training, tmp_path):
  drawn.write_masks(tmp_path / 'in', 4)
  drawn.convert(tmp_path / 'in', tmp_path / 'out', 'semantic_segmentation', validation_share=0.0)
  config = segmentation_config.SemanticSegmentationTask()
  task = semantic_segmentation.SemanticSegmentationTask(config)
  data = segmentation_config.DataConfig(
    input_path=f'{tmp_path}/out/train-*', global_batch_size=4, is_training=is_training, output_size=[96, 96]
  )
  pictures, _ = pictures_lib.pictures_of_batch(first_batch(task, data), task)
  assert len(pictures) == 4
  for picture in pictures:
    (top, left, bottom, right), number = found_by_colour(picture.image)
    assert set(np.unique(picture.class_map)) == {0, number, 255} and picture.ignored == 255  # The rest is padding.
    assert (picture.class_map[top + 2 : bottom - 2, left + 2 : right - 2] == number).all()
    assert (picture.class_map[64:] == 255).all()


@pytest.mark.slow
def test_classes_and_mixed_classes(tmp_path):
  drawn.write_class_folders(tmp_path / 'in', 12)
  drawn.convert(tmp_path / 'in', tmp_path / 'out', 'image_classification', validation_share=0.0)
  config = classification_config.ImageClassificationTask()
  config.model.num_classes, config.model.input_size = 3, [64, 96, 3]
  task = image_classification.ImageClassificationTask(config)
  data = classification_config.DataConfig(input_path=f'{tmp_path}/out/train-*', global_batch_size=12, aug_crop=False)
  pictures, _ = pictures_lib.pictures_of_batch(first_batch(task, data), task)
  for picture in pictures:
    assert picture.labels == [(found_by_colour(picture.image)[1] - 1, 1.0)]
  data.mixup_and_cutmix = classification_config.common.MixupAndCutmix(label_smoothing=0.0)
  pictures, _ = pictures_lib.pictures_of_batch(first_batch(task, data), task)
  assert all(sum(share for _, share in picture.labels) == pytest.approx(1, abs=0.03) for picture in pictures)
  assert any(len(picture.labels) > 1 for picture in pictures)


@pytest.mark.parametrize(
  ('images', 'how', 'white'),
  [
    (np.uint8([[0, 255]]), 'unchanged', 255),
    (np.float32([[0, 1]]), 'taken for 0 to 1', 255),
    (np.float32([[0, 255]]), 'taken for 0 to 255', 255),
    (np.float32([[-1, 1]]), 'taken for -1 to 1', 255),
    (np.float32([[-3, 500]]), 'scaled from -3 to 500', 255),
  ],
)
def test_pixels_of_other_tasks(images, how, white):
  batch = {
    'image': tf.constant(np.tile(images[..., np.newaxis], [4, 4, 4, 1]).reshape(4, 4, 8, 1)),
    'label': tf.constant([1] * 4),
  }
  pictures, reported = pictures_lib.pictures_of_batch(batch, types.SimpleNamespace())
  assert reported == how
  assert pictures[0].image.shape == (4, 8, 3) and pictures[0].image.max() == white and pictures[0].image.min() == 0
  assert pictures[0].labels == [(1, 1.0)]


def test_an_input_without_images_is_refused():
  with pytest.raises(errors.UserError, match='the input of SimpleNamespace contains no images; it has int32'):
    pictures_lib.pictures_of_batch({'tokens': tf.zeros([2, 3], tf.int32)}, types.SimpleNamespace())
