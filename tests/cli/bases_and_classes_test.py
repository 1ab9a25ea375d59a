"""Convert, generate and chat: models that a folder cannot represent are refused; adapters need their base."""

import importlib
import io
import json
import re
import shutil

import numpy as np
from official.core import exp_factory
import pytest
import tensorflow as tf

from official_ext.cli import main as cli
from official_ext.language.modeling import lora
from official_ext.language.modeling import peft_folders
from official_ext.language.modeling import pretrained
from official_ext.language.modeling import quantized_linear
from official_ext.language.serving import model_server

pytest.importorskip('safetensors', reason="needs: pip install 'official-ext[language_models]'")
from tests import tiers
from tests.cli import language_models_test
from tests.language.fine_tuning import tiny_models

IDS = np.random.default_rng(0).integers(0, 31, [2, 9]).astype(np.int32)
NF4 = quantized_linear.QuantizationConfig(method='nf4')


@pytest.fixture(autouse=True)
def _forget_experiments(monkeypatch):
  """Other tests of this process look at all experiments that there are, and may have imported these."""
  registered = dict(exp_factory._REGISTERED_CONFIGS)
  monkeypatch.setattr(exp_factory, '_REGISTERED_CONFIGS', registered)
  for name in ('custom_language_model', 'lora_language_model'):
    registered.setdefault(name, getattr(importlib.import_module(f'tests.{name}'), name))


@pytest.fixture
def run(capsys):
  """A function: the arguments of official-ext -> (status, stdout, stderr)."""

  def run(*arguments):
    capsys.readouterr()
    return cli.main([str(argument) for argument in arguments]), *capsys.readouterr()

  return run


def logits(model):
  return np.asarray(model(tf.constant(IDS)))


# Models of runs.


@tiers.parametrize(
  'kind, message',
  [
    ('block', r'the model has decoder/blocks/0, a tests\.custom_language_model\.Louder: '),
    ('head', r'the model has value_head, a tf_keras\..*\.Dense: '),
    ('activation', r'read back, its outputs differ by 0\.\d+ from those of the model, whose largest is '),
  ],
  fast=1,
)
def test_a_run_whose_model_is_another_one_as_a_folder_is_not_converted(kind, message, run, tmp_path):
  language_models_test.leave_run(str(tmp_path / 'run'), 'tests.custom_language_model', kind=kind)
  status, out, err = run('convert', tmp_path / 'run', tmp_path / 'target')
  assert (status, out) == (2, '') and re.search(message, err) and err.count('error: ') == 1, err
  assert not (tmp_path / 'target').exists() and [path.name for path in tmp_path.iterdir()] == ['run']


@tiers.parametrize('dtype', ['float32', 'bfloat16', 'float16'], fast=1)
def test_a_run_of_the_librarys_own_model_is_converted(dtype, run, tmp_path):
  model = language_models_test.leave_run(str(tmp_path / 'run'), 'tests.custom_language_model')
  status, _, err = run('convert', tmp_path / 'run', tmp_path / 'target', f'--dtype={dtype}')
  assert status == 0, err
  np.testing.assert_allclose(logits(pretrained.load(str(tmp_path / 'target'))), logits(model), atol=0.2)


# Adapters and their base.


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  """A folder with a model, `base`, and adapters on it: `packed`, on its weights in 4 bits, and `plain`."""
  place = tmp_path_factory.mktemp('place')
  tiny_models.write(place / 'base', max_position_embeddings=64)
  for name, quantization in (('packed', NF4), ('plain', None)):
    model = pretrained.load(str(place / 'base'))
    lora.attach(model, lora.LoraConfig(r=2), quantization)
    language_models_test.random_weights(model, 2)
    peft_folders.save(model, str(place / name))
    np.save(place / f'{name}.npy', logits(model))
  return place


@pytest.mark.slow
def test_adapters_are_converted_over_the_base_that_they_were_trained_on(run, place, tmp_path):
  expected = np.load(place / 'packed.npy')
  status, _, err = run('convert', place / 'packed', tmp_path / 'merged')
  assert status == 0 and f'base: nf4 weights (blocks of 64, other weights float32) of {place / "base"}' in err
  np.testing.assert_allclose(logits(pretrained.load(str(tmp_path / 'merged'))), expected, atol=1e-4)
  status, _, err = run('convert', place / 'packed', tmp_path / 'float', '--load_in_4bit=false')
  assert status == 0 and 'trained on nf4 weights' in err and f'base: float32 weights of {place / "base"}' in err
  assert np.abs(logits(pretrained.load(str(tmp_path / 'float'))) - expected).max() > 0.05
  assert run('convert', place / 'plain', tmp_path / 'plain')[0] == 0
  np.testing.assert_allclose(logits(pretrained.load(str(tmp_path / 'plain'))), np.load(place / 'plain.npy'), atol=1e-4)


@pytest.mark.slow
def test_a_run_over_4_bits_and_its_adapter_are_converted_to_the_same_model(run, place, tmp_path):
  language_models_test.leave_run(str(tmp_path / 'run'), 'tests.lora_language_model', model_path=str(place / 'base'))
  status, _, err = run('convert', tmp_path / 'run', tmp_path / 'of_run')
  assert status == 0 and 'base: nf4 weights (blocks of 64, other weights float32) of ' in err, err
  of_run = logits(pretrained.load(str(tmp_path / 'of_run')))
  model = pretrained.load(str(place / 'base'))
  lora.attach(model, lora.LoraConfig(r=4, lora_dropout=0.1, target_modules=('q_proj', 'up_proj')), NF4)
  language_models_test.random_weights(model, 3)
  peft_folders.save(model, str(tmp_path / 'adapter'))
  assert run('convert', tmp_path / 'adapter', tmp_path / 'of_adapter')[0] == 0
  np.testing.assert_allclose(of_run, logits(pretrained.load(str(tmp_path / 'of_adapter'))), atol=1e-4)
  assert run('convert', tmp_path / 'run', tmp_path / 'new', '--load_in_4bit=true')[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
  'flags', [pytest.param((), id='float32'), pytest.param(('--dtype=bfloat16',), id='bfloat16', marks=pytest.mark.soak)]
)
def test_generate_and_chat_stand_on_what_adapters_were_trained_on(flags, run, place, tmp_path, monkeypatch):
  assert run('convert', place / 'packed', tmp_path / 'merged')[0] == 0
  prompt = ('--prompt=What does the function', '--max_new_tokens=12', *flags)
  status, out, err = run('generate', place / 'packed', *prompt)
  assert status == 0 and 'base: nf4 weights' in err, err
  if not flags:
    assert out == run('generate', tmp_path / 'merged', *prompt)[1]
  _, err = run('generate', place / 'packed', *prompt, '--load_in_4bit=false')[1:]
  assert 'base: float32 weights' in err or flags
  status, out_of_plain, err = run('generate', place / 'plain', *prompt, '--load_in_4bit=true')
  assert status == 0 and 'trained on ' in err and 'but are loaded onto nf4 weights' in err
  assert run('generate', place / 'base', *prompt, '--load_in_4bit=true')[0] == 0
  monkeypatch.setattr('sys.stdin', io.StringIO('hello\n'))
  status, _, err = run('chat', place / 'packed', '--max_new_tokens=4', *flags)
  assert status == 0 and 'base: nf4 weights' in err


@pytest.mark.parametrize('name, kept', [('plain', 'float32 weights'), ('packed', 'nf4 weights (blocks of 64, ')])
def test_the_console_names_the_base_of_adapters(name, kept, place):
  base = model_server._LanguageModel(str(place / name)).description()['base']
  assert base.startswith(kept) and base.endswith(f' of {place / "base"}')


def test_a_saved_model_stays_over_the_base_that_was_exported(run, tmp_path):
  module = tf.Module()
  serve = tf.function(lambda x: {'y': 2 * x}, input_signature=[tf.TensorSpec([None], tf.float32, 'x')])
  tf.saved_model.save(module, str(tmp_path / 'saved'), signatures=serve)
  predict = ('predict', tmp_path / 'saved', '--input=x=[1]')
  assert run(*predict)[::2] == (0, '') and run(*predict, '--load_in_4bit=false')[0] == 0
  status, out, err = run(*predict, '--load_in_4bit=true')
  assert (status, out, err.count('\n')) == (2, '', 1) and 'holds no weights in 4 bits' in err
  note = {'base': {'folder': 'base', 'quantization': {'method': 'nf4'}, 'frozen_dtype': 'bfloat16'}}
  (tmp_path / 'saved/export.json').write_text(json.dumps(note))
  assert run(*predict, '--load_in_4bit=true')[::2] == (0, 'base: nf4 weights of base\n')
  status, out, err = run(*predict, '--load_in_4bit=false')
  assert (status, out, err.count('\n')) == (2, '', 1) and 'holds nf4 weights, as the run was exported' in err


@pytest.mark.slow
def test_an_export_of_adapters_predicts_as_the_run_and_notes_how_its_base_is_kept(run, place, tmp_path):
  model = language_models_test.leave_run(
    str(tmp_path / 'run'), 'tests.lora_language_model', model_path=str(place / 'base')
  )
  status, _, err = run('export', tmp_path / 'run', f'--output_dir={tmp_path / "saved"}')
  assert status == 0, err
  note = json.loads((tmp_path / 'saved/export.json').read_text())
  assert note['base']['quantization']['method'] == 'nf4' and note['base']['folder'] == str(place / 'base')
  status, out, err = run('predict', tmp_path / 'saved')
  assert status == 0 and f'base: nf4 weights of {place / "base"}' in err
  ids = np.random.default_rng(0).integers(0, 31, [2, 11])  # The length of the rows, without the last token.
  known = {'inputs': ids, 'positions': np.tile(np.arange(11), [2, 1]), 'segments': np.ones_like(ids)}
  names = [entry['name'] for entry in json.loads(out)['serving_default']['inputs']]
  inputs = [f'--input={name}={json.dumps(known[name].tolist())}' for name in names]
  status, out, err = run('predict', tmp_path / 'saved', *inputs)
  assert status == 0 and json.loads(out)['output']['shape'] == [2, 11, 304], err
  served = tf.saved_model.load(str(tmp_path / 'saved')).signatures['serving_default']
  found = served(**{name: tf.constant(known[name], tf.int32) for name in names})['output']
  expected = np.asarray(model(tf.constant(ids, tf.int32)))
  np.testing.assert_allclose(found, expected, atol=1e-4)
  with lora.switched_off(model):
    assert np.abs(np.asarray(model(tf.constant(ids, tf.int32))) - expected).max() > 0.05


@pytest.mark.slow
def test_another_base_and_flags_without_a_meaning_are_reported(run, place, tmp_path):
  tiny_models.write(tmp_path / 'other', seed=4, max_position_embeddings=64)
  prompt = ('--prompt=What', '--max_new_tokens=2')
  status, _, err = run('generate', place / 'plain', *prompt, f'--base_model={tmp_path / "other"}')
  assert status == 0 and err.count('warning: ') == 1 and 'another base has other logits' in err
  tiny_models.write(tmp_path / 'deep', num_hidden_layers=3, max_position_embeddings=64)
  status, out, err = run('generate', place / 'plain', *prompt, f'--base_model={tmp_path / "deep"}')
  assert (status, out) == (2, '') and 'num_hidden_layers: 2 in the base of the adapters, 3 in this model' in err
  status, _, err = run('convert', place / 'base', tmp_path / 'new', '--load_in_4bit=true')
  assert status == 2 and '--load_in_4bit: has no meaning for ' in err
  status, _, err = run('generate', place / 'plain', *prompt, '--load_in_4bit=yes')
  assert status == 2 and 'load_in_4bit: yes: expected true or false' in err and err.count('\n') == 1


def test_weights_that_are_no_numbers_are_refused_by_every_command(run, place, tmp_path):
  from safetensors import numpy as safetensors

  shutil.copytree(place / 'base', tmp_path / 'broken')
  path = tmp_path / 'broken/model.safetensors'
  tensors = safetensors.load_file(path)
  tensors['model.norm.weight'][5] = np.nan
  safetensors.save_file(tensors, path, metadata={'format': 'pt'})
  for command in (['generate', tmp_path / 'broken', '--prompt=a'], ['convert', tmp_path / 'broken', tmp_path / 'new']):
    status, out, err = run(*command)
    assert (status, out, err.count('\n')) == (2, '', 1) and 'the tensor model.norm.weight has values' in err
  config = json.loads((place / 'plain/adapter_config.json').read_text())
  assert config['base_model_name_or_path'] == str(place / 'base')
