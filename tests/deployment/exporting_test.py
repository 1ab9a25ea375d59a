"""A model that was exported computes the same in its own runtime, and one that does not is found out."""

import json
import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

import official_ext
from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.cli import main
from official_ext.deployment import converters
from official_ext.deployment import export_options
from official_ext.deployment import exporting
from official_ext.deployment import run_examples
from official_ext.deployment import verifying
from official_ext.language.modeling import lora
from tests import tiers
from tests.deployment import runs
from tests.language.fine_tuning import tiny_models


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
  return runs.make(tmp_path_factory.mktemp('digits') / 'run', 'digits')


def export(run, *flags):
  """(exit status, export.json) of an export to a folder that did not exist."""
  folder = f'{run}/out-{len(flags)}-{abs(hash(flags))}'
  status = main.main(['export', run, f'--output_dir={folder}', *flags])
  assert status != 2
  return status, json.loads(open(f'{folder}/export.json', encoding='utf-8').read()), folder


@tiers.parametrize(
  'export_format, quantization',
  [
    ('litert', 'int8'),
    ('onnx', 'int8'),
    ('litert', 'none'),
    ('onnx', 'none'),
    ('litert', 'float16'),
    ('litert', 'dynamic'),
    ('onnx', 'float16'),
    ('onnx', 'dynamic'),
    ('saved_model', 'none'),
  ],
  fast=1,
)
def test_an_export_computes_what_the_model_does(export_format, quantization, digits, capsys):
  status, note, folder = export(digits, f'--format={export_format}', f'--quantize={quantization}')
  out = capsys.readouterr()
  assert status == 0, out.err
  assert note['verified'] is True and note['format'] == export_format and note['quantization'] == quantization
  verification = note['verification']
  assert verification['examples'] == 64 and verification['split'] == 'validation_data'
  assert 0 < verification['latency_ms'] < 1000 and verification['threads'] >= 1
  assert verification['relative'] <= verification['tolerance'] == export_options.TOLERANCES[quantization]
  assert (verification['relative'] > 1e-5) == (quantization != 'none')  # float16 has 11 bits.
  size = paths.folder_size(str(folder)) / 1e6
  assert verification['megabytes'] == pytest.approx(size, abs=0.01)
  weights = sum(w.size for w in official_ext.load(digits).get_weights())
  least = weights * {'none': 4, 'float16': 2, 'dynamic': 1, 'int8': 1}[quantization] / 1e6
  assert least < size < least * 1.2 + (0.1 if export_format == 'saved_model' else 0.01)
  assert note['preprocessing'] == {
    'input': 'image',
    'range': [0, 1],
    'size': [8, 8],
    'channels': 1,
    'range_from': 'examples',
  }
  assert note['signature']['inputs'][0]['name'] == 'image' and note['signature']['outputs'][0]['name'] == 'logits'
  # 296 of the 360 validation examples are left.
  assert note.get('calibration') == ({'examples': 128, 'split': 'validation_data'} if quantization == 'int8' else None)
  assert 'verified, within the tolerance' in out.out and 'for one example' in out.out


@pytest.mark.slow
@tiers.parametrize('kind', ['image_bytes', 'tf_example'], fast=1)
def test_a_saved_model_takes_encoded_images(kind, digits):
  status, note, folder = export(digits, f'--input={kind}')
  # Its examples are arrays: no file can take their way.
  assert status == 0 and note['verified'] is None and note['verification']['examples'] == 64
  assert note['verification']['relative'] < 1e-5
  assert note['input'] == kind and note['signature']['inputs'] == [
    {'name': 'inputs', 'dtype': 'string', 'shape': [None]}
  ]
  pixels = np.random.default_rng(0).integers(256, size=[8, 8, 1]).astype(np.uint8)
  encoded = tf.io.encode_png(pixels).numpy()
  if kind == 'tf_example':
    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded]))
    encoded = tf.train.Example(features=tf.train.Features(feature={'image/encoded': feature})).SerializeToString()
  served = tf.saved_model.load(folder).signatures['serving_default']
  logits = served(inputs=tf.constant([encoded, encoded]))['logits']
  np.testing.assert_allclose(logits[1], official_ext.load(digits)(pixels[np.newaxis] / np.float32(255))[0], atol=1e-4)


def test_inputs_that_a_task_cannot_take_are_refused(digits, tmp_path, capsys):
  assert main.main(['export', digits, '--input=text']) == 2
  assert 'error: --input=text: DigitsTask tokenizes outside of TensorFlow, or takes no text' in capsys.readouterr().err
  mlp = runs.make(tmp_path / 'mlp', 'digits_mlp')
  assert main.main(['export', mlp, '--input=image_bytes']) == 2
  line = capsys.readouterr().err
  assert 'error: --input=image_bytes: DigitsMlpTask takes pixels, float32 (None, 64), not an image' in line
  assert line.count('\n') == 1


def test_the_runtime_has_no_tensorflow_and_not_this_library(digits):
  _, _, folder = export(digits, '--format=onnx', '--examples=0')
  outputs, facts = verifying.run(f'{folder}/model.onnx', 'onnx', {'image': np.zeros([3, 8, 8, 1], np.float32)})
  assert facts['modules'] == [] and facts['runtime'].startswith('onnxruntime ')
  np.testing.assert_allclose(outputs['logits'][:, 0], official_ext.load(digits)(np.zeros([3, 8, 8, 1])), atol=1e-5)


@pytest.mark.slow
@tiers.parametrize('export_format', ['litert', 'onnx', 'saved_model'], fast=1)
def test_a_damaged_conversion_fails_and_reports_it(export_format, digits, monkeypatch, capsys):
  """The converters see weights that differ from the model's by a tenth."""
  own = {'litert': converters.convert_to_litert, 'onnx': converters.convert_to_onnx, 'saved_model': tf.saved_model.save}

  def damaged(first, *arguments, **kwargs):
    variables = first.variables
    for variable in variables:
      variable.assign(variable * 1.1)
    try:
      return own[export_format](first, *arguments, **kwargs)
    finally:
      for variable in variables:
        variable.assign(variable / 1.1)

  owner, name = {
    'litert': (converters, 'convert_to_litert'),
    'onnx': (converters, 'convert_to_onnx'),
    'saved_model': (tf.saved_model, 'save'),
  }[export_format]
  monkeypatch.setattr(owner, name, damaged)
  status, note, folder = export(digits, f'--format={export_format}', '--tolerance=0.01')
  assert status == 1 and note['verified'] is False and note['verification']['relative'] > 0.01
  assert 'NOT VERIFIED: beyond the tolerance 0.01' in capsys.readouterr().out
  status, note, _ = export(digits, f'--format={export_format}', '--tolerance=1')
  assert status == 0 and note['verified'] is True


def test_an_export_that_its_runtime_cannot_run_is_not_verified(digits, monkeypatch, capsys):
  monkeypatch.setattr(
    converters, 'convert_to_onnx', lambda concrete, quantization, calibration, path: open(path, 'w').close()
  )
  status, note, _ = export(digits, '--format=onnx', '--examples=5')
  assert status == 1 and note['verified'] is False
  assert note['verification']['reason'].startswith('onnx: the runtime cannot run the export: ')
  assert 'NOT VERIFIED' in capsys.readouterr().out


def test_data_that_are_missing_leave_an_export_unverified_unless_examples_were_requested(tmp_path, capsys):
  run = runs.make(tmp_path, 'digits', {'task': {name: {'tfds_name': 'nothing'} for name in run_examples.SPLITS}})
  status, note, _ = export(run, '--format=onnx')
  assert status == 0 and note['verified'] is None and 'nothing' in note['verification']['reason']
  assert 'not verified: ' in capsys.readouterr().out
  for flag in ('--examples=8', '--quantize=int8'):
    assert main.main(['export', run, '--format=onnx', flag, f'--output_dir={tmp_path}/out']) == 2
    assert 'nothing' in capsys.readouterr().err and not (tmp_path / 'out').exists()


def test_an_operation_that_a_format_lacks_is_named(capfd):
  spec = tf.TensorSpec([1, 4, 4], tf.float32, 'x')
  svd, inverse = (
    tf.function(function).get_concrete_function(spec)
    for function in (lambda x: {'y': tf.linalg.svd(x, compute_uv=False)}, lambda x: {'y': tf.linalg.inv(x)})
  )
  assert converters.convert_to_litert(inverse, 'none', None).tensorflow_ops == ('MatrixInverse',)
  with pytest.raises(errors.UserError, match=r'LiteRT has no operation Svd; use --format=saved_model') as of_litert:
    converters.convert_to_litert(svd, 'none', None)
  with pytest.raises(errors.UserError, match=r'ONNX has no operation Svd; use --format=saved_model') as of_onnx:
    converters.convert_to_onnx(svd, 'none', None, '/nowhere/model.onnx')
  assert '\n' not in f'{of_litert.value}{of_onnx.value}' and not capfd.readouterr().err


def test_onnx_in_16_bits_with_loops_resized_images_and_constant_outputs(tmp_path):
  import onnxruntime  # pylint: disable=g-import-not-at-top

  @tf.function(input_signature=[tf.TensorSpec([1, 4, 4, 2], tf.float32, 'x')])
  def function(x):
    scale = tf.reduce_max(x) + 1
    total = tf.while_loop(lambda i, _: i < tf.cast(scale, tf.int32), lambda i, y: (i + 1, y + scale), (0, scale))[1]
    return {'y': tf.image.resize(x, [8, 8]), 'total': total, 'constant': tf.constant([0.5, 3.0])}

  path = str(tmp_path / 'model.onnx')
  converters.convert_to_onnx(function.get_concrete_function(), 'float16', None, path)
  x = np.random.default_rng(0).integers(0, 4, (1, 4, 4, 2)).astype(np.float32)
  session = onnxruntime.InferenceSession(path)
  found = dict(zip((output.name for output in session.get_outputs()), session.run(None, {'x': x})))
  for name, value in function(x).items():
    assert found[name].dtype == np.float32
    np.testing.assert_allclose(found[name], value, rtol=0.002, atol=0.002)


def test_the_script_of_a_runtime_imports_neither_this_library_nor_model_garden():
  code = 'import runpy, sys; runpy.run_path(sys.argv[1]); print({m.partition(".")[0] for m in sys.modules})'
  done = subprocess.run(
    [sys.executable, '-I', '-c', code, verifying._SCRIPT], capture_output=True, text=True, check=True
  )
  assert "'numpy'" in done.stdout
  assert not any(f"'{name}'" in done.stdout for name in ('official', 'official_ext', 'tensorflow'))


def test_int8_of_a_detector_for_litert_is_refused_before_it_crashes():
  options = export_options.ExportOptions('litert', 'int8')
  with pytest.raises(errors.UserError, match='crashes on detectors; use --quantize=dynamic or --format=onnx'):
    with exporting._computation(None, types.SimpleNamespace(kind='boxes'), options):
      pass


_PAIR = {'prompt': 'What is it?', 'chosen': 'It is this.', 'rejected': 'No.'}


@pytest.mark.slow
@tiers.parametrize(
  'experiment, record, quantization',
  [
    ('sft', {'prompt': 'What is it?', 'completion': 'It is this.'}, 'nf4'),
    ('preference', _PAIR, 'none'),
    ('reward_model', _PAIR, 'none'),
  ],
  fast=1,
)
def test_an_export_of_adapters_is_verified_on_the_data_of_its_run(experiment, record, quantization, tmp_path):
  lines = [json.dumps({**record, 'prompt': f'{record["prompt"]} {number}'}) for number in range(20)]
  (tmp_path / 'data.jsonl').write_text('\n'.join(lines) + '\n')
  data = {'input_path': str(tmp_path / 'data.jsonl'), 'seq_length': 48}
  task = {'model_path': tiny_models.write(tmp_path / 'base'), 'quantization': {'method': quantization}}
  run = runs.make(tmp_path / 'run', experiment, {'task': {**task, 'train_data': data, 'validation_data': data}})
  status, note, folder = export(run, '--examples=3')
  assert status == 0 and note['verified'] is True
  assert note['verification']['examples'] == 3 and note['verification']['split'] == 'validation_data'
  assert [each['name'] for each in note['signature']['inputs']] == ['input_ids', 'segment_ids']
  model = official_ext.load(run)
  assert lora.adapters(model)
  ids = tf.constant(np.random.default_rng(0).integers(0, 304, [2, 9]), tf.int32)
  served = tf.saved_model.load(folder).signatures['serving_default']
  found = served(input_ids=ids, segment_ids=tf.ones_like(ids))['logits']
  np.testing.assert_allclose(found, model(ids), atol=1e-4)
  with lora.switched_off(model):
    assert np.abs(found - model(ids)).max() > 1e-3
