"""docs/how_to/export.md is correct: it runs from its first line to its last."""

import json
import re
import shlex
import sys

import numpy as np
from official.core import exp_factory
import pytest
import tensorflow as tf
import tf_keras

import official_ext
from official_ext.cli import main as official_ext_main
from official_ext.training.checkpoints import manifests
from tests import documents

PAGE = re.sub(r' \\\n +', ' ', documents.read('docs/how_to/export.md'))  # Joins the lines of a command.


pytestmark = pytest.mark.slow


def steps():
  """(kind, text) of every block of code, file and command, in the order of the page."""
  pattern = r'^```(python|yaml)\n(.*?)^```|^    ((?:python|official-ext) [^\n]*)$'
  for match in re.finditer(pattern, PAGE, re.DOTALL | re.MULTILINE):
    before = PAGE[: match.start()].rstrip()
    file = re.search(r'The file\s+`([^`]+)` (?:becomes:|is)$', before)
    yield ('command', '', match[3]) if match[3] else ('file' if file else match[1], file and file[1], match[2])


@pytest.fixture(scope='module')
def page(run_train, tmp_path_factory):
  """The definitions of the page's Python, the printed lines of its commands, and the folder."""
  folder, namespace, printed = tmp_path_factory.mktemp('page'), {}, []
  patch = pytest.MonkeyPatch()
  patch.chdir(folder)
  patch.syspath_prepend(str(folder))
  for kind, name, text in steps():  # Files first, as a reader who follows a reference to one.
    if kind == 'file':
      (folder / name).write_text(text)
  for kind, _, text in steps():
    if kind == 'python':
      exec(compile(text, 'use_a_model.md', 'exec'), namespace)  # pylint: disable=exec-used
      namespace.setdefault('models', []).append(namespace.get('model'))
    elif kind == 'command' and text.startswith('python train.py '):
      process = run_train(shlex.split(text)[2:], cwd=folder)
      assert process.returncode == 0, process.stderr
      printed.append(process.stdout)
    elif kind == 'command':
      assert official_ext_main.main(shlex.split(text)[1:]) == 0, text
  yield namespace, printed, folder
  patch.undo()
  del exp_factory._REGISTERED_CONFIGS['ring_codes'], sys.modules['ring_codes']  # Others look at all there are.


def test_the_loaded_model_has_the_accuracy_of_the_best_evaluation(page):
  namespace, _, folder = page
  info = json.loads((folder / 'runs/digits/best/info.json').read_text())
  assert namespace['accuracy'] == pytest.approx(info['accuracy'], abs=1e-6) and info['accuracy'] > 0.5


def test_the_export_computes_what_the_model_does(page):
  namespace, printed, folder = page
  logits = namespace['models'][1](namespace['pixels'], training=False)
  np.testing.assert_allclose(namespace['logits'], logits, rtol=1e-4, atol=1e-4)
  note = json.loads((folder / 'runs/digits/export/200/export.json').read_text())
  assert np.mean(namespace['quantized'].argmax(axis=1) == namespace['logits'].numpy().argmax(axis=1)) > 0.95
  assert note['verified'] is True and note['verification']['examples'] == 64
  assert note['weights'] == 'averaged' and note['checkpoint'].endswith('best/best_ckpt-200') and note['step'] == 200
  signature = re.search(r'`(serving_default: .*?)`', PAGE, re.DOTALL)[1]
  assert '(raw weights)' not in printed[1] and 'runs/digits/export/100' in printed[1] and signature in printed[1]


def test_what_can_be_chosen_differs(page):
  namespace, _, folder = page
  kernels = [m.trainable_variables[0].numpy() for m in (namespace['models'][0], namespace['last'], namespace['first'])]
  assert len({kernel.tobytes() for kernel in kernels}) == 3
  reader = tf.train.load_checkpoint(str(folder / 'runs/digits/ckpt-200'))
  key = next(
    key
    for key in reader.get_variable_to_shape_map()
    if key.startswith('model/') and key.endswith('0/kernel/.ATTRIBUTES/VARIABLE_VALUE')
  )
  np.testing.assert_array_equal(reader.get_tensor(key), kernels[1])


def test_the_table_of_weights_agrees_with_manifests(page):
  _, _, folder = page
  rows = re.findall(r'^\| `([\w/]+)-N` \| (\w+)', PAGE, re.MULTILINE)
  assert dict(rows) == {'ckpt': 'raw', 'best/best_ckpt': 'averaged', 'ema_checkpoints/average_weights': 'averaged'}
  for name, weights in rows[:2]:
    assert manifests.read(str(folder / f'runs/digits/{name}-200'))['weights'] == weights
  assert list((folder / 'runs/digits/ema_checkpoints').glob('average_weights-200.index'))


def test_the_default_policy_is_left_alone(page):
  assert tf_keras.mixed_precision.global_policy().name == 'float32' and official_ext.load is not None
