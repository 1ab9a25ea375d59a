"""Evaluators on models with random weights: figures from all examples of a prepared folder, pictures of mistakes."""

import types

from official.core import task_factory
import pytest

from official_ext.training.config import parser
from official_ext.training.config import registries
from official_ext.training.evaluation import evaluated_data
from official_ext.training.trained import trained_model
from official_ext.vision.conversion import image_set
from official_ext.vision.evaluation import boxes
from official_ext.vision.evaluation import pixel_classes
from tests.vision import drawn

CASES = [
  (image_set.SEGMENTATION, 'mnv2_deeplabv3_pascal', drawn.write_masks, pixel_classes),
  pytest.param(image_set.DETECTION, 'retinanet_mobile_coco', drawn.write_coco, boxes, marks=pytest.mark.slow),
  pytest.param(image_set.INSTANCES, 'maskrcnn_mobilenet_coco', drawn.write_coco, boxes, marks=pytest.mark.slow),
]


@pytest.mark.slow
@pytest.mark.parametrize(('target', 'experiment', 'write', 'evaluator'), CASES)
def test_an_untrained_model(target, experiment, write, evaluator, tmp_path):
  write(tmp_path / 'in', 12)
  made = drawn.convert(tmp_path / 'in', tmp_path / 'out', target, validation_share=0.4)[1]
  registries.import_last()
  flags = types.SimpleNamespace(experiment=experiment, config_file=[str(tmp_path / 'out' / 'experiment.yaml')])
  params = parser.parse_configuration(flags, print_return=False)
  task = task_factory.get_task(params.task)
  trained = trained_model.TrainedModel(task.build_model(), task, params, '', 'raw')
  data = evaluated_data.find(params, (target,), params.task.model.num_classes, str(tmp_path / 'out'))
  result = evaluator.evaluate(trained, data, 3)
  split = made.report['splits']['validation']
  assert result.figures['examples'] == split['images']
  assert list(result.figures['classes']) == list(split['classes'])
  assert result.pictures['mistakes'].shape[2] == 3
  if target == image_set.SEGMENTATION:
    assert 0 <= result.figures['mean_iou'] < 0.5
    matrix = result.figures['confusion_matrix']
    assert sum(map(sum, matrix)) == split['images'] * 64 * 96  # All pixels, without padding.
  else:
    assert result.figures['AP'] < 0.5
    objects = {name: values['objects'] for name, values in result.figures['classes'].items()}
    assert objects == split['classes']
    assert ('mask_AP' in result.figures) == (target == image_set.INSTANCES)
