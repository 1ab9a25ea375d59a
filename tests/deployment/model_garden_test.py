"""Model Garden's experiments, exported: their own modules, their data, their outputs."""

import json

import numpy as np
import pytest
import tensorflow as tf

from official_ext.cli import main
from tests import tiers
from tests.deployment import runs
from tests.model_garden import tfrecords

SIZE = 64


def data_of(path, **values):
  """The same file for training and evaluation."""
  data = {'input_path': str(path), 'global_batch_size': 4, **values}
  return {name: {**data, 'drop_remainder': False} for name in ('train_data', 'validation_data')}


def resnet(folder):
  model = {
    'num_classes': 10,
    'input_size': [32, 32, 3],
    'backbone': {'resnet': {'model_id': 10, 'depth_multiplier': 0.25}},
  }
  path = tfrecords.write_images(folder / 'data', num_examples=24)
  (folder / 'data' / 'labels.txt').write_text(''.join(f'class {number}\n' for number in range(10)))
  return {'task': {'model': model, **data_of(path)}}


def mobilenet(folder):
  model = {'num_classes': 10, 'input_size': [SIZE, SIZE, 3]}
  return {'task': {'model': model, **data_of(tfrecords.write_images(folder / 'data', num_examples=8, image_size=SIZE))}}


def deeplab(folder):
  path = tfrecords.write_masks(folder / 'data.tfrecord', num_examples=4)
  data = data_of(path, output_size=[SIZE, SIZE], resize_eval_groundtruth=True)
  return {'task': {'model': {'num_classes': 4}, 'init_checkpoint': None, **data}}  # Of any input size.


def bert(folder):
  encoder = {
    'num_layers': 1,
    'hidden_size': 32,
    'num_attention_heads': 2,
    'intermediate_size': 64,
    'vocab_size': 100,
    'max_position_embeddings': 16,
  }
  path = tfrecords.write_sentences(folder / 'data.tfrecord', num_examples=24)
  return {'task': {'model': {'num_classes': 2, 'encoder': {'bert': encoder}}, **data_of(path, seq_length=16)}}


def detector(folder, size=64):
  """Of objects everywhere, so that there are boxes to compare."""
  path = tfrecords.write_boxes(folder / 'data.tfrecord', num_examples=4, image_size=SIZE)
  model = {'num_classes': 3, 'input_size': [size, size, 3], 'max_level': 5}
  model['detection_generator'] = {'pre_nms_score_threshold': 0.0, 'max_num_detections': 5}
  return {'task': {'model': model, 'init_checkpoint': None, 'annotation_file': None, **data_of(path)}}


EXPERIMENTS = {
  'bert/sentence_prediction': bert,
  'resnet_imagenet': resnet,
  'mobilenet_imagenet': mobilenet,
  'mnv2_deeplabv3_pascal': deeplab,
}
KINDS = {'resnet_imagenet': 'classes', 'mobilenet_imagenet': 'classes', 'bert/sentence_prediction': 'classes'}
KINDS |= {'mnv2_deeplabv3_pascal': 'pixels'}


def make(experiment, folder):
  return runs.make(folder / 'run', experiment, EXPERIMENTS[experiment](folder))


def export(run, folder, *flags):
  """export.json of an export that is verified."""
  status = main.main(['export', run, f'--output_dir={folder}', *flags])
  note = json.loads((folder / 'export.json').read_text())
  assert status == 0 and note['verified'] is True, note['verification']
  return note


@pytest.mark.slow
@tiers.parametrize('export_format', ['litert', 'onnx'], fast=2)
@pytest.mark.parametrize('experiment', EXPERIMENTS)
def test_every_experiment_computes_the_same_in_every_format(experiment, export_format, tmp_path):
  note = export(make(experiment, tmp_path), tmp_path / 'out', f'--format={export_format}')
  assert note['verification']['kind'] == KINDS[experiment] and note['verification']['compared'] > 0
  if KINDS[experiment] == 'classes' and experiment != 'bert/sentence_prediction':
    assert note['preprocessing']['range'] == [0, 255] and note['preprocessing']['channels'] == 3


@pytest.mark.slow
def test_an_image_classifier_has_labels_and_takes_pixels(tmp_path):
  from ai_edge_litert import interpreter  # pylint: disable=g-import-not-at-top

  run = make('resnet_imagenet', tmp_path)
  export(run, tmp_path / 'out', '--format=litert', '--quantize=float16')
  assert (tmp_path / 'out' / 'labels.txt').read_text().splitlines()[9] == 'class 9'
  export(run, tmp_path / 'saved')
  # An image of one colour is the same after cropping and resizing.
  image = np.broadcast_to(np.array([10, 100, 250]), [1, 32, 32, 3])
  runner = interpreter.Interpreter(str(tmp_path / 'out' / 'model.tflite')).get_signature_runner()
  served = tf.saved_model.load(str(tmp_path / 'saved')).signatures['serving_default']
  expected = served(inputs=tf.constant(image.astype(np.uint8)))['logits']
  np.testing.assert_allclose(runner(inputs=image.astype(np.float32))['logits'], expected, rtol=0.02, atol=0.02)


# An experiment and values of `task.validation_data` that Model Garden's serving does not read.
OF_FILES = [
  ('resnet_imagenet', {'center_crop_fraction': 0.6, 'tf_resize_method': 'bicubic'}),
  ('mobilenet_imagenet', {'aug_crop': False}),
  ('mnv2_deeplabv3_pascal', {'preserve_aspect_ratio': False}),
  ('mnv2_deeplabv3_pascal', {'centered_crop': True}),
  ('retinanet_mobile_coco', {}),
  ('maskrcnn_mobilenet_coco', {}),
]


def exact_detector(folder):
  """In float32: the rounding of bfloat16 decides which boxes an untrained model finds."""
  return {**detector(folder), 'runtime': {'mixed_precision_dtype': 'float32'}}


MAKERS = {**EXPERIMENTS, 'retinanet_mobile_coco': detector, 'maskrcnn_mobilenet_coco': exact_detector}


def run_of_files(experiment, values, folder):
  overrides = MAKERS[experiment](folder)
  overrides['task']['validation_data'] |= values
  return runs.make(folder / 'run', experiment, overrides)


@pytest.mark.slow
@tiers.parametrize(
  'experiment, values, kind',
  [(*each, kind) for each in OF_FILES for kind in ('image_bytes', 'tf_example', 'tensor')],
  fast=1,
)
def test_answers_to_files_are_those_of_an_evaluation(experiment, values, kind, tmp_path):
  """Model Garden's serving ignores the share of a crop, the method of resizing, and values of the evaluation."""
  note = export(run_of_files(experiment, values, tmp_path), tmp_path / 'out', f'--input={kind}')
  files, stated = note['verification']['files'], note['preprocessing']
  assert files['number'] > 20 and files['relative'] < 1e-3 and files['compared'] == 'answers'
  assert stated['crop'] == (values.get('center_crop_fraction', 0.875) if experiment == 'resnet_imagenet' else None)
  assert stated['resize'] == values.get('tf_resize_method', 'bilinear') and stated['antialias'] is False
  assert stated['is_centered'] == values.get('centered_crop', False)
  assert stated['resized_by'] == 'export' and stated['channel_order'] == 'RGB'
  assert stated['decoded_by'] == ('caller' if kind == 'tensor' else 'export')


# An untrained detector has many equal scores, of which each runtime keeps others.
OF_CALLERS = [each for each in OF_FILES if each[0] in EXPERIMENTS]


@pytest.mark.slow
@pytest.mark.parametrize('export_format', ['litert', 'onnx'])
@pytest.mark.parametrize('experiment, values', OF_CALLERS)
def test_what_a_caller_does_is_stated(experiment, values, export_format, tmp_path):
  note = export(run_of_files(experiment, values, tmp_path), tmp_path / 'out', f'--format={export_format}')
  files, stated = note['verification']['files'], note['preprocessing']
  assert files['relative'] < 1e-3 and files['compared'] == 'answers' and stated['resized_by'] == 'caller'


@pytest.mark.slow
@pytest.mark.parametrize('export_format', ['litert', 'onnx'])
def test_the_mask_of_padding_leaves_a_range_for_8_bits(export_format, tmp_path):
  """With Keras's mask, -1e9, a step of 8 bits is 4e6."""
  folder = tmp_path / 'out'
  export(make('bert/sentence_prediction', tmp_path), folder, f'--format={export_format}', '--quantize=int8')
  if export_format == 'onnx':
    import onnx  # pylint: disable=g-import-not-at-top

    graph = onnx.load(str(folder / 'model.onnx')).graph
    values = [onnx.numpy_helper.to_array(each) for each in graph.initializer]
  else:
    from ai_edge_litert import interpreter  # pylint: disable=g-import-not-at-top

    details = interpreter.Interpreter(str(folder / 'model.tflite')).get_tensor_details()
    values = [each['quantization_parameters']['scales'] for each in details]
  largest = max(float(np.abs(value).max(initial=0)) for value in values if value.dtype.kind == 'f')
  assert 0 < largest < 1000


@pytest.mark.slow
def test_bert_takes_the_examples_of_its_data(tmp_path, capsys):
  run = make('bert/sentence_prediction', tmp_path)
  export(run, tmp_path / 'out', '--input=tf_example')
  served = tf.saved_model.load(str(tmp_path / 'out')).signatures['serving_default']
  records = list(tf.data.TFRecordDataset(str(tmp_path / 'data.tfrecord')).take(3).as_numpy_iterator())
  (name,) = served.structured_input_signature[1]
  assert served(**{name: tf.constant(records)})['outputs'].shape == (3, 2)
  assert main.main(['export', run, '--input=text']) == 2
  assert 'task.train_data has no vocab_file and text_fields' in capsys.readouterr().err
  assert main.main(['export', run, '--input=image_bytes']) == 2
  assert '--input=image_bytes: SentencePredictionTask takes' in capsys.readouterr().err


@pytest.mark.slow
def test_bert_takes_texts_if_its_data_have_a_vocabulary(tmp_path):
  words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', 'good', 'bad', '##ly']
  (tmp_path / 'vocab.txt').write_text('\n'.join(words) + '\n')
  overrides = bert(tmp_path)
  run = runs.make(
    tmp_path / 'run',
    'bert/sentence_prediction_text',
    overrides
    | {
      'task': overrides['task']
      | {
        name: {
          'input_path': str(tmp_path / 'data.tfrecord'),
          'global_batch_size': 4,
          'seq_length': 16,
          'text_fields': ['text'],
          'vocab_file': str(tmp_path / 'vocab.txt'),
        }
        for name in ('train_data', 'validation_data')
      }
    },
  )
  assert main.main(['export', run, '--input=text', f'--output_dir={tmp_path}/out', '--examples=0']) == 0
  assert main.main(['export', run, f'--output_dir={tmp_path}/tensors', '--examples=0']) == 0
  served, tensors = (
    tf.saved_model.load(f'{tmp_path}/{name}').signatures['serving_default'] for name in ('out', 'tensors')
  )
  ids = np.zeros([1, 16], np.int32)
  ids[0, :5] = [words.index(word) for word in ('[CLS]', 'good', 'bad', '##ly', '[SEP]')]
  mask = (np.arange(16) < 5).astype(np.int32)[np.newaxis]
  inputs = {'input_word_ids': ids, 'input_mask': mask, 'input_type_ids': np.zeros_like(ids)}
  by_ids = tensors(**{name: tf.constant(array) for name, array in inputs.items()})
  np.testing.assert_allclose(served(text=tf.constant(['Good badly']))['outputs'], by_ids['outputs'], atol=1e-5)
