"""Every experiment that Model Garden registers parses, is described, and builds its task, model and optimizer.

Models are built at their registered size. Two kinds of values are set for it: those that Model Garden leaves open, and
so must be set (`OPEN`), and, for the two-stage detectors, fewer classes than COCO's 91 (`SMALLER`): their model
holds one non-maximum suppression for each class and level, 450 loops whose tracing takes half a minute each.
"""

import types

import pytest
import tensorflow as tf

from official_ext.cli import describe
from official_ext.training.config import checks
from official_ext.training.config import parser
from tests import tiers
from tests.model_garden import tfrecords

IMAGE_SIZE_AND_CLASSES = ('task.model.input_size=[64, 64, 3]', 'task.model.num_classes=4')
OPTIMIZER = ('trainer.optimizer_config.optimizer.type=sgd', 'trainer.optimizer_config.learning_rate.type=constant')
LENGTHS = (
  'trainer.optimizer_config.learning_rate.polynomial.decay_steps=100',
  'trainer.optimizer_config.warmup.polynomial.warmup_steps=10',
)

# Fields without a value in the registered configuration, and no model or optimizer can be built without.
OPEN = {
  'bert/pretraining': LENGTHS,
  'bert/pretraining_dynamic': LENGTHS,
  'bert/sentence_prediction': (*LENGTHS, 'task.model.num_classes=3'),
  'bert/sentence_prediction_text': (*LENGTHS, 'task.model.num_classes=3'),
  'bert/squad': LENGTHS,
  'bert/tagging': (*LENGTHS, 'task.class_names=[O, B, I]'),
  'bert/text_wiki_pretraining': LENGTHS,
  'electra/pretraining': LENGTHS,
  'image_classification': (*IMAGE_SIZE_AND_CLASSES, *OPTIMIZER),
  'retinanet': ('task.model.input_size=[128, 128, 3]', 'task.model.num_classes=4', *OPTIMIZER),
  'semantic_segmentation': (*IMAGE_SIZE_AND_CLASSES, *OPTIMIZER),
  'video_classification': ('task.train_data.num_classes=4', *OPTIMIZER),
  # The task translates its validation data to references when it is made: WMT14 would be downloaded.
  'wmt_transformer/large': ('task.sentencepiece_model_path={sentencepiece_model}', 'task.validation_data.tfds_name=""'),
}

SMALLER = {
  'cascadercnn_spinenet_coco': ('task.model.num_classes=2',),
  'fasterrcnn_resnetfpn_coco': ('task.model.num_classes=2',),
  'maskrcnn_mobilenet_coco': ('task.model.num_classes=2',),
  'maskrcnn_resnetfpn_coco': ('task.model.num_classes=2',),
  'maskrcnn_spinenet_coco': ('task.model.num_classes=2',),
}

# From name to millions of trainable parameters, with the values above. None: the variables are made by the first call.
EXPERIMENTS = {
  'bert/pretraining': 109.5,
  'bert/pretraining_dynamic': 109.5,
  'bert/sentence_prediction': 110.1,
  'bert/sentence_prediction_text': 110.1,
  'bert/squad': 109.5,
  'bert/tagging': 109.5,
  'bert/text_wiki_pretraining': 109.5,
  'cascadercnn_spinenet_coco': 70.7,
  'deit_imagenet_pretrain': 87.2,
  'electra/pretraining': 195.5,
  'fasterrcnn_resnetfpn_coco': 43.3,
  'image_classification': 23.5,
  'maskrcnn_mobilenet_coco': 5.8,
  'maskrcnn_resnetfpn_coco': 45.9,
  'maskrcnn_spinenet_coco': 40.3,
  'mnv2_deeplabv3_cityscapes': 2.5,
  'mnv2_deeplabv3_pascal': 2.5,
  'mnv2_deeplabv3plus_cityscapes': 2.7,
  'mobilenet_imagenet': 3.5,
  'resnet_imagenet': 25.6,
  'resnet_rs_imagenet': 35.7,
  'retinanet': 32.3,
  'retinanet_mobile_coco': 2.3,
  'retinanet_resnetfpn_coco': 34.1,
  'retinanet_spinenet_coco': 21.8,
  'revnet_imagenet': 22.8,
  'seg_deeplabv3_pascal': 58.2,
  'seg_deeplabv3plus_cityscapes': 59.5,
  'seg_deeplabv3plus_pascal': 59.5,
  'seg_resnetfpn_pascal': 29.2,
  'semantic_segmentation': 25.3,
  'video_classification': 32.8,
  'video_classification_kinetics400': 33.6,
  'video_classification_kinetics600': 34.0,
  'video_classification_kinetics700': 34.2,
  'video_classification_kinetics700_2020': 34.2,
  'video_classification_ucf101': 33.0,
  'vit_imagenet_finetune': 86.9,
  'vit_imagenet_pretrain': 87.2,
  'wmt_transformer/large': None,
}

# One of each kind of task and model is built by the quick tests; the others are these with other sizes and backbones.
# Those that train_test.py trains, shrunk, are not among them.
QUICK = {
  'bert/pretraining',
  'bert/squad',
  'bert/tagging',
  'electra/pretraining',
  'maskrcnn_mobilenet_coco',
  'mnv2_deeplabv3_pascal',
  'retinanet_resnetfpn_coco',
  'video_classification_ucf101',
  'vit_imagenet_finetune',
  'wmt_transformer/large',
}


@pytest.fixture(scope='module')
def sentencepiece_model(tmp_path_factory):
  return tfrecords.write_sentencepiece_model(tmp_path_factory.mktemp('sentencepiece'))


@pytest.fixture
def no_autograph(monkeypatch):
  """Layers as they are written: no registered model has Python control flow over tensors."""
  monkeypatch.setattr(tf.__internal__.autograph, 'tf_convert', lambda function, *args, **kwargs: function)


def parse(name, settings=(), mode=None):
  return parser.parse_configuration(types.SimpleNamespace(experiment=name, set=list(settings), mode=mode))


def test_these_are_all_that_model_garden_registers():
  names = parser.experiment_names()
  of_model_garden = {name for name in names if parser.factory_of(name).__module__.startswith('official.')}
  assert of_model_garden - {'mock'} == set(EXPERIMENTS)
  assert len(EXPERIMENTS) == 40


@pytest.mark.parametrize('name', EXPERIMENTS)
def test_parses_and_is_described(name):
  params = parse(name)
  text = '\n'.join(describe.field_lines(params, name))
  assert text.splitlines()[0].startswith(name)
  # This library's fields, Model Garden's, and those of the task.
  for path in (
    'trainer.gradient_accumulation_steps',
    'trainer.train_steps',
    'runtime.seed',
    'runtime.enable_xla',
    'task.init_checkpoint',
    'task.train_data.input_path',
    'task.train_data.global_batch_size',
  ):
    assert f'\n{path}: ' in text
  assert not checks.schedule_warnings(params.trainer)


@pytest.mark.slow
@tiers.parametrize(
  'name',
  [name if name in QUICK else pytest.param(name, marks=pytest.mark.soak) for name in EXPERIMENTS],
  fast=['bert/tagging'],
)
def test_builds_task_model_and_optimizer(name, request, tmp_path, no_random_weights, no_autograph, release_memory):
  from official.core import task_factory
  from official.core import train_utils

  settings = [*OPEN.get(name, ()), *SMALLER.get(name, ())]
  if any('{sentencepiece_model}' in setting for setting in settings):
    model_path = request.getfixturevalue('sentencepiece_model')
    settings = [setting.format(sentencepiece_model=model_path) for setting in settings]
  params = parse(name, settings)
  with tf.distribute.OneDeviceStrategy('CPU:0').scope():
    task = task_factory.get_task(params.task, logging_dir=str(tmp_path))
    model = task.build_model()
    optimizer = train_utils.create_optimizer(task, params)
  num_parameters = sum(variable.shape.num_elements() for variable in model.trainable_variables)
  assert num_parameters / 1e6 == pytest.approx(EXPERIMENTS[name] or 0, abs=0.06)
  learning_rate = optimizer.learning_rate(5) if callable(optimizer.learning_rate) else optimizer.learning_rate
  assert 0 <= float(learning_rate) < 100
