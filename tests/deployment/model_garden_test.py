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
  assert status == 0 and note['verified'] is True, note
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


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['image_bytes', 'tf_example'])
def test_model_gardens_modules_take_encoded_images(kind, tmp_path):
  note = export(make('resnet_imagenet', tmp_path), tmp_path / 'out', f'--input={kind}')
  assert note['preprocessing']['encoding'] == kind and note['verification']['examples'] == 24


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
