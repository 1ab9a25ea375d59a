"""What a detector would learn or measure wrongly is refused or printed before it is trained."""

import json
import types

import pytest

from official_ext.base import errors
from official_ext.data import input_files
from official_ext.training.loop import run_checks
from tests.vision import drawn


def config(**fields):
  return types.SimpleNamespace(**fields)


def test_an_annotation_of_the_id_0_is_refused(tmp_path):
  path = tmp_path / 'annotations.json'
  for numbers in ([1, 2], [0, 1]):
    path.write_text(json.dumps({'annotations': [{'id': number} for number in numbers]}))
    if numbers[0]:
      run_checks.check_detection(config(annotation_file=str(path)))
  with pytest.raises(errors.UserError, match='task.annotation_file: .*: an annotation has the id 0'):
    run_checks.check_detection(config(annotation_file=str(path)))


def test_another_number_of_detections_than_that_of_the_ap_is_refused():
  run_checks.check_detection(config(max_num_eval_detections=100))
  with pytest.raises(errors.UserError, match='task.max_num_eval_detections: 200: the AP would be -1'):
    run_checks.check_detection(config(max_num_eval_detections=200))
  run_checks.check_detection(config(max_num_eval_detections=200, use_coco_metrics=False))


def test_objects_beyond_the_number_that_is_learned_are_named(tmp_path):
  boxes = [{'image_id': 1000, 'category_id': 10, 'bbox': [number, 1, 9, 9], 'iscrowd': 0} for number in range(20)]
  drawn.write_coco(tmp_path / 'in', extra=boxes)
  drawn.convert(tmp_path / 'in', tmp_path / 'out', 'object_detection', validation_share=0.2)

  def warnings(limit, augmentation=None):
    parser = config(max_num_instances=limit, aug_type=augmentation)
    return run_checks.object_warnings(config(train_data=config(input_path=f'{tmp_path}/out/train-*', parser=parser)))

  (line,) = warnings(20)
  assert (
    line.startswith('task.train_data.parser.max_num_instances: is 20, and an image has 21 objects') and '21' in line
  )
  assert warnings(21) == []
  report = json.loads((tmp_path / 'out/report.json').read_text())
  report['splits']['validation'][input_files.MOST_OBJECTS] = 50
  (tmp_path / 'out/report.json').write_text(json.dumps(report))
  assert warnings(21) == []  # Of the files of training alone.
  (line,) = warnings(100, config(type='randaug'))
  assert 'aug_type: translations, shears and rotations of Model Garden fill the empty area with mirrored pixels' in line
