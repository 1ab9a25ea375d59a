"""Figures of detections by COCO's definitions, and the choice of the worst examples."""

import json

import numpy as np
from pycocotools import mask as mask_api

from official_ext.vision.evaluation import boxes
from official_ext.vision.preview import pictures


def truth(folder, objects):
  """A file in COCO's format with objects (image, category, box)."""
  annotations = [
    {
      'id': number,
      'image_id': image,
      'category_id': category,
      'bbox': box,
      'area': box[2] * box[3],
      'iscrowd': 0,
    }
    for number, (image, category, box) in enumerate(objects, 1)
  ]
  values = {
    'images': [{'id': number, 'width': 200, 'height': 200, 'file_name': ''} for number in (1, 2)],
    'annotations': annotations,
    'categories': [{'id': 1, 'name': 'cat'}, {'id': 2, 'name': 'dog'}],
  }
  path = folder / 'annotations.json'
  path.write_text(json.dumps(values))
  return str(path)


def detection(image, category, box, score=0.9):
  return {'image_id': image, 'category_id': category, 'bbox': box, 'score': score}


SMALL, LARGE = [10, 10, 20, 20], [10, 10, 150, 150]


def test_average_precision_of_classes_and_sizes(tmp_path):
  path = truth(tmp_path, [(1, 1, SMALL), (2, 1, LARGE), (2, 2, LARGE)])
  found = [detection(1, 1, SMALL), detection(2, 1, LARGE)]  # No dog.
  figures, (table,) = boxes.of_detections(path, found, [1, 2], with_masks=False)
  assert figures['classes']['cat'] == {
    'objects': 2, 'AP': 1.0, 'AP_small': 1.0, 'AP_medium': None, 'AP_large': 1.0, 'AP50': 1.0, 'recall': 1.0
  }  # fmt: skip
  assert figures['classes']['dog']['AP'] == 0.0 and figures['classes']['dog']['objects'] == 1
  assert (figures['AP'], figures['AP_small'], figures['AP_large'], figures['recall']) == (0.5, 1.0, 0.5, 0.5)
  assert [row[0] for row in table.rows] == ['cat', 'dog']


def test_a_loose_box_counts_at_low_overlaps_only(tmp_path):
  path = truth(tmp_path, [(1, 1, [0, 0, 100, 100])])
  # Intersection over union 80 x 100 / 100 x 100 = 0.8: right at 0.5, 0.55, ..., 0.8, which are 7 of 10 thresholds.
  figures, _ = boxes.of_detections(path, [detection(1, 1, [0, 0, 80, 100])], [1], with_masks=False)
  assert (figures['AP'], figures['AP50']) == (0.7, 1.0)


def test_without_detections_all_figures_are_0(tmp_path):
  path = truth(tmp_path, [(1, 1, SMALL)])
  figures, _ = boxes.of_detections(path, [], [1, 2], with_masks=False)
  assert (figures['AP'], figures['recall'], figures['AP_medium']) == (0.0, 0.0, None)


def test_the_object_of_the_id_0_is_found(tmp_path):
  path = truth(tmp_path, [(1, 1, SMALL), (1, 1, LARGE)])
  values = json.loads(open(path, encoding='utf-8').read())
  for number, each in enumerate(values['annotations']):
    each['id'] = number
  (tmp_path / 'annotations.json').write_text(json.dumps(values))
  figures, _ = boxes.of_detections(path, [detection(1, 1, SMALL), detection(1, 1, LARGE)], [1], with_masks=False)
  assert (figures['AP'], figures['recall']) == (1.0, 1.0)


def test_more_than_100_detections_count_if_the_model_has_them(tmp_path):
  many = [[13 * (number % 15), 19 * (number // 15), 9, 9] for number in range(150)]
  path = truth(tmp_path, [(1, 1, box) for box in many])
  figures, _ = boxes.of_detections(path, [detection(1, 1, box) for box in many], [1], with_masks=False)
  assert (figures['AP'], figures['AP_small'], figures['recall'], figures['max_detections']) == (1.0, 1.0, 1.0, 150)
  figures, _ = boxes.of_detections(path, [detection(1, 1, box) for box in many[:100]], [1], with_masks=False)
  assert figures['recall'] == 0.666667 and 'max_detections' not in figures


def test_boxes_match_others_of_their_class_once():
  corners = np.array([[0, 0, 10, 10], [0, 0, 10, 10], [50, 50, 60, 60]], float)
  assert boxes._matches(corners[:1], [1], corners, [1, 1, 1]) == 1
  assert boxes._matches(corners, [1, 2, 1], corners, [1, 1, 1]) == 2
  assert boxes._matches(corners[:0], [], corners, [1, 1, 1]) == 0


def test_the_worst_examples_are_kept_and_of_equal_ones_the_first():
  worst = pictures.Worst(2)
  for index, badness in enumerate([0.5, 0.7, 0.5, 0.9, 0.7]):
    if worst.accepts(badness):
      worst.add(badness, index, pictures.Mistake(str(index), ()))
  assert [mistake.words for mistake in worst.found] == ['3', '1']
  assert not pictures.Worst(0).accepts(1.0) and pictures.Worst(0).found == []


def test_masks_are_pasted_into_their_boxes():
  masks = np.ones([2, 28, 28], np.float32)
  masks[1, 14:] = 0  # The upper half.
  found = boxes._encoded(masks, np.array([[10, 20, 30, 60], [10, 20, 30, 60]], float), 100, 100)
  decoded = [mask_api.decode(each) for each in found]
  rows, columns = decoded[0].nonzero()
  assert abs(int(rows.min()) - 10) <= 1 and abs(int(columns.max()) - 60) <= 1
  areas = mask_api.area(found)
  assert abs(int(areas[0]) - 20 * 40) < 80 and abs(int(areas[1]) - 10 * 40) < 80


def test_detections_that_are_not_finite_are_left_out():
  """A box and a score of NaN among three detections: only the first is an answer."""
  found = {
    'num_detections': np.array([3]),
    'detection_boxes': np.array([[[1.0, 2.0, 5.0, 8.0], [np.nan, 2.0, 5.0, 8.0], [1.0, 2.0, 5.0, 8.0]]]),
    'detection_scores': np.array([[0.5, 0.9, np.nan]]),
    'detection_classes': np.array([[3, 1, 2]]),
    'detection_masks': np.ones([1, 3, 4, 4], np.float32),
  }
  info = np.array([[10, 20], [10, 20], [1, 1], [0, 0]])
  (entry,) = boxes._annotations(found, info, 0, 7)
  assert entry.pop('segmentation')['size'] == [10, 20]
  assert entry == {'image_id': 7, 'category_id': 3, 'bbox': [2.0, 1.0, 6.0, 4.0], 'score': 0.5}
