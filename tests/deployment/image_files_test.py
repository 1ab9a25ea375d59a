"""An export that takes image files answers as the task does, from the bytes of a file; or says that it does not."""

import base64
import dataclasses
import io
import json

import numpy as np
from PIL import Image
import pytest
import tensorflow as tf
import tf_keras

import official_ext as ext
from official_ext.cli import main
from official_ext.deployment import run_examples
from official_ext.training.trained import saved_models
from tests import tiers
from tests.deployment import runs

SIZE = (12, 16)


@dataclasses.dataclass
class PhotosConfig(ext.TaskConfig):
  """`declared` are fields of an ImagePreprocessing, `used` those of the input, if they differ."""

  declared: dict | None = None
  used: dict | None = None
  train_data: ext.DataConfig = dataclasses.field(default_factory=lambda: ext.DataConfig(global_batch_size=4))
  validation_data: ext.DataConfig = dataclasses.field(
    default_factory=lambda: ext.DataConfig(global_batch_size=4, is_training=False)
  )


def made(fields):
  values = {name: tuple(value) if isinstance(value, (list, tuple)) else value for name, value in fields.items()}
  return ext.ImagePreprocessing(**{'size': SIZE, **values})


@ext.register_task(PhotosConfig)
class Photos(ext.Task):
  def image_preprocessing(self):
    fields = self.config.declared
    return None if fields is None else made(fields.as_dict())

  def build_model(self):
    used = self.used()
    inputs = tf_keras.Input((*used.size, used.channels), name='image')
    hidden = tf_keras.layers.Conv2D(4, 3, activation='relu')(inputs)
    return tf_keras.Model(inputs, tf_keras.layers.Dense(3)(tf_keras.layers.Flatten()(hidden)))

  def used(self):
    return made((self.config.used or self.config.declared).as_dict())

  def build_inputs(self, params, input_context=None):
    used, source = self.used(), ext.PreparedRows(params.input_path)
    transform = lambda example, seed: {'image': used(example['image']), 'label': example['label']}
    return ext.build_dataset(source, params, input_context, transform_per_example=transform)


@ext.register_experiment('photos_of_files')
def photos():
  return ext.ExperimentConfig(task=PhotosConfig())


@pytest.fixture(scope='module')
def rows(tmp_path_factory):
  """A folder of `prepare` with images of two classes."""
  folder = tmp_path_factory.mktemp('photos')
  rng = np.random.default_rng(0)
  for name in ('ant', 'bee'):
    (folder / 'files' / name).mkdir(parents=True)
    for number in range(4):
      pixels = rng.integers(0, 255, (30, 40, 3), dtype=np.uint8)
      Image.fromarray(pixels).save(folder / 'files' / name / f'{number}.png')
  assert main.main(['prepare', str(folder / 'files'), str(folder / 'rows')]) == 0
  return str(folder / 'rows')


def export(tmp_path, rows, fields, *flags):
  """(exit status, export.json, the folder of the run, that of the export)."""
  data = {name: {'input_path': rows} for name in ('train_data', 'validation_data')}
  run = runs.make(tmp_path / 'run', 'photos_of_files', {'task': {**fields, **data}})
  status = main.main(['export', run, f'--output_dir={tmp_path}/out', *flags])
  return status, json.loads((tmp_path / 'out' / 'export.json').read_text()), run, str(tmp_path / 'out')


DECLARED = {
  'plain': {},
  'antialias': {'antialias': True},
  'crop': {'crop': 0.75, 'resize': 'bicubic', 'range': (-1, 1)},
  'padding': {'padding': (100.0, 110.0, 120.0), 'range': (0, 255)},
  'centered': {'padding': 0.0, 'is_centered': True, 'antialias': True},
  'grey': {'channels': 1, 'range': (0, 0.5)},
}


@tiers.parametrize('kind', ['image_bytes', 'tf_example'], fast=1)
@tiers.parametrize('name', DECLARED, fast=['crop'])
def test_answers_to_files_are_those_of_the_task(name, kind, rows, tmp_path, capsys):
  fields = DECLARED[name]
  status, note, run, folder = export(tmp_path, rows, {'declared': fields}, f'--input={kind}')
  out = capsys.readouterr().out
  assert status == 0 and note['verified'] is True and 'verified, within the tolerance 0.001' in out
  expected = made(fields)
  stated = note['preprocessing']
  assert stated['resize'] == expected.resize and stated['antialias'] == expected.antialias
  assert stated['crop'] == expected.crop and stated['keeps_aspect_ratio'] == (expected.padding is not None)
  assert stated['range'] == list(expected.range) and stated['size'] == list(SIZE)
  assert stated['channels'] == expected.channels and stated['orientation'] == 'that of EXIF'
  assert stated['transparency'] == 'on white' and stated['stated_by'] == 'task'
  assert (stated['decoded_by'], stated['resized_by']) == ('export', 'export')
  files = note['verification']['files']
  assert files['number'] >= 20 and files['relative'] < 1e-5 and files['compared'] == 'answers'
  model, served = ext.load(run), tf.saved_model.load(folder).signatures['serving_default']
  prepare = tf.function(expected.__call__, input_signature=[tf.TensorSpec([], tf.string)], autograph=False)
  for file in run_examples.drawn_files((50, 70), is_grey=expected.channels == 1):
    own = model(prepare(file.content)[tf.newaxis], training=False)
    content = file.content
    if kind == 'tf_example':
      feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[content]))
      content = tf.train.Example(features=tf.train.Features(feature={'image/encoded': feature})).SerializeToString()
    (answer,) = served(inputs=tf.constant([content])).values()
    np.testing.assert_allclose(answer, own, rtol=1e-4, atol=1e-4, err_msg=file.name)


@pytest.mark.slow
@tiers.parametrize('antialias', [True, False], fast=1)
def test_what_a_task_does_not_state_is_assumed_and_compared(antialias, rows, tmp_path, capsys):
  status, note, _, _ = export(tmp_path, rows, {'used': {'antialias': antialias}}, '--input=image_bytes')
  out = capsys.readouterr().out
  assert note['preprocessing']['stated_by'] == 'examples' and note['preprocessing']['antialias'] is False
  assert note['verified'] is not antialias and status == antialias
  assert (note['verification']['files']['relative'] > 0.01) == antialias and note['verification']['relative'] < 1e-5
  assert ('verified, within' in out) != antialias and ('NOT VERIFIED' in out) == antialias


@pytest.mark.slow
@tiers.parametrize(
  'flags',
  [('--format=litert', '--quantize=int8'), ('--format=onnx',), ('--input=image_bytes',), ()],
  fast=1,
)
@tiers.parametrize('is_true', [False, True], fast=1)
def test_a_statement_is_compared_with_the_data_of_the_task(is_true, flags, rows, tmp_path):
  fields = {'declared': {'range': (-1, 1)}, 'used': {'range': (-1, 1), 'crop': None if is_true else 0.8}}
  status, note, _, _ = export(tmp_path, rows, fields, *flags)
  assert status == (not is_true) and note['verified'] is is_true
  files = note['verification']['files']
  assert (files['relative'] < 1e-5) == (is_true and '--quantize=int8' not in flags) or files['compared'] == 'inputs'
  assert files['compared'] == ('inputs' if '--quantize=int8' in flags else 'answers')
  where = 'export' if '--input=image_bytes' in flags else 'caller'
  assert note['preprocessing']['resized_by'] == where and note['preprocessing']['stated_by'] == 'task'


@pytest.mark.slow
def test_files_that_the_data_of_a_task_cannot_read_leave_an_export_unverified(tmp_path, capsys):
  run = runs.make(tmp_path / 'run', 'digits')
  assert main.main(['export', run, '--input=image_bytes', f'--output_dir={tmp_path}/out']) == 0
  out = capsys.readouterr().out
  note = json.loads((tmp_path / 'out' / 'export.json').read_text())
  reason = 'task.validation_data.input_path: is not a folder of images; convert the images with official-ext prepare'
  assert note['verified'] is None and note['verification']['files'] == {'reason': reason}
  assert f'not verified on image files: {reason}; on pixels within the tolerance 0.001' in out
  assert 'verified, within' not in out


def test_a_statement_of_another_size_is_refused(rows, tmp_path, capsys):
  data = {name: {'input_path': rows} for name in ('train_data', 'validation_data')}
  fields = {'declared': {'size': (9, 9)}, 'used': {}}
  run = runs.make(tmp_path / 'run', 'photos_of_files', {'task': {**fields, **data}})
  assert main.main(['export', run, '--input=image_bytes', f'--output_dir={tmp_path}/out']) == 2
  line = 'Photos takes image, float32 (None, 12, 16, 3); its image_preprocessing makes (9, 9, 3)'
  assert line in capsys.readouterr().err and not (tmp_path / 'out').exists()


@pytest.mark.slow
def test_a_picture_that_is_tried_takes_the_way_that_the_export_states(rows, tmp_path):
  fields = {'crop': 0.5, 'antialias': True, 'range': (0, 0.5)}
  _, _, run, folder = export(tmp_path, rows, {'declared': fields}, '--examples=8')
  exif = Image.Exif()
  exif[0x0112] = 6
  content = io.BytesIO()
  rng = np.random.default_rng(0)
  Image.fromarray(rng.integers(0, 255, (50, 30, 3), dtype=np.uint8)).save(content, 'JPEG', exif=exif)
  model = saved_models.SavedModel(folder)
  found = model.predict('serving_default', {'image': {'image': base64.b64encode(content.getvalue()).decode()}})
  (answer,) = (each['values'] for each in found.values())
  own = ext.load(run)(made(fields)(tf.constant(content.getvalue()))[tf.newaxis], training=False)
  np.testing.assert_allclose(answer, own, rtol=1e-5, atol=1e-5)
