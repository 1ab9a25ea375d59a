"""Combinations of options that cannot work, and the names of folders."""

import dataclasses
import sys

import pytest

from official_ext.base import errors
from official_ext.deployment import export_options


@pytest.mark.parametrize(
  'values, words',
  [
    ({'quantization': 'int8'}, '--quantize=int8: a SavedModel keeps the weights of the run; use --format=litert'),
    ({'format': 'litert', 'input': 'text'}, '--input=text: litert models take tensors'),
    ({'format': 'onnx', 'input': 'image_bytes'}, '--input=image_bytes: onnx models take tensors'),
    ({'tolerance': 1.5}, '--tolerance=1.5: expected a number from 0 to 1'),
  ],
)
def test_what_cannot_work_is_refused_in_one_line(values, words):
  with pytest.raises(errors.UserError, match=words) as raised:
    export_options.ExportOptions(**values).check()
  assert '\n' not in str(raised.value)


@pytest.mark.parametrize('package, extra', [('ai_edge_litert', 'litert'), ('tf2onnx', 'onnx'), ('onnxruntime', 'onnx')])
def test_a_missing_package_is_named_with_its_extra(package, extra, monkeypatch):
  monkeypatch.setitem(sys.modules, package, None)
  with pytest.raises(errors.UserError, match=rf"needs the package {package}: pip install 'official-ext\[{extra}\]'"):
    export_options.ExportOptions(format=extra).check()


def test_a_saved_model_has_the_name_of_a_version_and_others_name_their_kind():
  names = [
    export_options.ExportOptions(*values).folder_name(200)
    for values in (
      ('saved_model', 'none', 'tensor'),
      ('saved_model', 'none', 'image_bytes'),
      ('litert', 'none', 'tensor'),
      ('onnx', 'int8', 'tensor'),
    )
  ]
  assert names == ['200', '200-saved_model-image_bytes', '200-litert', '200-onnx-int8']


def test_the_tolerance_is_that_of_the_quantization_unless_it_is_given():
  assert export_options.ExportOptions().accepted == export_options.TOLERANCES['none']
  assert export_options.ExportOptions(quantization='int8', tolerance=0.0).accepted == 0


def test_an_export_beyond_its_tolerance_names_one_that_is_closer():
  closer, options = [], export_options.ExportOptions('onnx', 'int8')
  while options.closer:
    closer.append(options.closer)
    field, value = options.closer.removeprefix('--').split('=')
    options = dataclasses.replace(options, **{'quantization' if field == 'quantize' else field: value})
  assert closer == ['--quantize=dynamic', '--quantize=float16', '--quantize=none', '--format=saved_model']
