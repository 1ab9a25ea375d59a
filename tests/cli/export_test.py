"""The model of a run, loaded and exported by the run's folder."""

import json
import re
import subprocess
import sys

import numpy as np
from official.common import registry_imports  # noqa: F401  Model Garden's experiments.
from official.core import exp_factory
from official.core import task_factory
import pytest
import tensorflow as tf
import tf_keras

import official_ext
from official_ext.base import errors
from official_ext.cli import export
from official_ext.cli import main
from official_ext.training.checkpoints import manager
from official_ext.training.config import definitions
from official_ext.training.config import parser
from official_ext.training.optimization import ema_optimizer
from official_ext.training.record import run_record
from official_ext.training.trained import trained_model
from tests.model_garden import train_test
from tests.training.loop import harness
from tests.training.loop import restore_test
from tests.training.loop import small_run

MODELS = {'linear': harness.linear_model, **restore_test.MODELS}


@pytest.fixture(autouse=True)
def _forget_experiments():
  """Other tests of this process look at all that are registered."""
  yield
  for name in [name for name in exp_factory._REGISTERED_CONFIGS if name.startswith('trained_')]:
    del exp_factory._REGISTERED_CONFIGS[name]


def register(kind):
  """An experiment of this process, and its name."""
  name = f'trained_{kind.replace(" ", "_")}'
  if name not in parser.experiment_names():
    config_cls = type(f'Config_{name}', (definitions.TaskConfig,), {})

    def init(self, params, logging_dir=None, name=None):
      small_run.SmallTask.__init__(self, params, harness.make_data(small_run.NUM_EXAMPLES))

    task_cls = type(
      'TrainedTask',
      (small_run.SmallTask,),
      {'__init__': init, 'model_fn': staticmethod(MODELS[kind]), '__module__': __name__},
    )
    task_factory.register_task_cls(config_cls)(task_cls)

    def factory():
      params = small_run.make_params()
      return definitions.ExperimentConfig(
        task=config_cls(train_data=params.task.train_data, validation_data=params.task.validation_data)
      )

    exp_factory.register_config_factory(name)(factory)
  return name


def save(folder, kind='linear', ema=False, dtype='float32'):
  """The result of a training of this experiment, without the training; the trained model."""
  name = register(kind)
  params = definitions.upgrade(exp_factory.get_exp_config(name))
  if dtype != 'float32':
    params.runtime.mixed_precision_dtype = dtype
  run_record.save_params(params.masked_yaml(), str(folder))
  record = run_record.RunRecord(str(folder), 'train', params.trainer.train_steps, 0, 'CPU')
  record.update(experiment=name, registry=[])
  task = task_factory.get_task(params.task)
  with_policy = tf_keras.mixed_precision.Policy(f'mixed_{dtype}' if dtype != 'float32' else dtype)
  tf_keras.mixed_precision.set_global_policy(with_policy)
  model = task.build_model()
  tf_keras.mixed_precision.set_global_policy('float32')
  model(tf.zeros([1, harness.NUM_FEATURES]))
  optimizer = harness.sgd()
  if ema:
    optimizer = ema_optimizer.ExponentialMovingAverage(optimizer)
    optimizer.shadow_copy(model)
    for average in optimizer.averages.values():
      average.assign(tf.ones_like(average))
    if dtype == 'float16':
      optimizer = tf_keras.mixed_precision.LossScaleOptimizer(optimizer)
  checkpoint = tf.train.Checkpoint(
    model=model,
    optimizer=optimizer,
    global_step=tf.Variable(7, dtype=tf.int64),
    **getattr(model, 'checkpoint_items', {}),
  )
  manager.CheckpointManager(checkpoint, str(folder)).save(7, check_interval=False)
  return model


def equal(model, other):
  values, others = ([v.numpy() for v in m.variables] for m in (model, other))
  return len(values) == len(others) and all((v == w).all() for v, w in zip(values, others))


@pytest.mark.parametrize(
  'kind', harness.cases(['linear', 'late', 'aliased'], ['container', 'module', 'two optimizers'])
)
def test_every_model_is_loaded_whole(kind, tmp_path):
  model = save(tmp_path, kind)
  tf_keras.utils.set_random_seed(5)
  loaded = official_ext.load(str(tmp_path))
  x = harness.make_data(4)[0]
  assert equal(model, loaded) and (loaded(x).numpy() == model(x).numpy()).all()


@pytest.mark.parametrize('dtype', ['float32', 'float16'])
def test_averages_are_loaded_unless_the_weights_are_asked_for(dtype, tmp_path):
  model = save(tmp_path, ema=True, dtype=dtype)
  assert equal(official_ext.load(tmp_path, ema=False), model)
  averaged = official_ext.load(tmp_path)
  assert all((v.numpy() == 1).all() for v in averaged.variables)
  assert averaged.layers[-1].compute_dtype == 'float32' or dtype == 'float16'
  assert tf_keras.mixed_precision.global_policy().name == 'float32'


def test_checkpoints_without_manifest_or_state_file_are_found_as_a_training_finds_them(tmp_path):
  # Before: "no checkpoint in this folder", while a training and task.init_checkpoint took the newest.
  model = save(tmp_path)
  for path in [*tmp_path.glob('*.manifest.json'), tmp_path / 'checkpoint']:
    path.unlink()
  assert equal(model, official_ext.load(str(tmp_path)))


def test_what_cannot_be_loaded_is_an_error_in_one_line(tmp_path):
  folder = tmp_path / 'run'
  save(folder)
  record = json.loads((folder / 'run.json').read_text())

  def refuse(words, model_dir=folder, **kwargs):
    with pytest.raises(errors.UserError, match=words) as raised:
      official_ext.load(str(model_dir), **kwargs)
    assert '\n' not in str(raised.value)

  refuse('not the folder of a run: it has no params.yaml', tmp_path)
  refuse('the run keeps no best checkpoint', which='best')
  refuse('no checkpoint of step 5; there are those of steps 7', which=5)
  refuse('/nowhere/ckpt-1: no such checkpoint', which='/nowhere/ckpt-1')
  refuse('--experiment=nonsense: no such experiment', experiment='nonsense')
  refuse('--registry=no_such_module: cannot be imported', registry=['no_such_module'])
  (folder / 'run.json').write_text(json.dumps({**record, 'experiment': register('late')}))
  refuse('ckpt-7: not a checkpoint of this model: .*is not in it')
  (folder / 'run.json').write_text(json.dumps({**record, 'experiment': None, 'command': 'python mine.py'}))
  refuse('run.json does not name the experiment')
  # The records of older runs.
  (folder / 'run.json').write_text(
    json.dumps(
      {**record, 'experiment': None, 'command': f'python train.py --experiment={register("linear")} --mode=train'}
    )
  )
  assert official_ext.load(str(folder)) is not None
  (data,) = folder.glob('ckpt-7.data-*')
  data.write_bytes(data.read_bytes()[:-1] + b'?')
  refuse('no undamaged checkpoint')
  refuse('ckpt-7: it is damaged', which=7)


def test_a_model_that_is_built_late_needs_data_or_an_error_reports_it(tmp_path, monkeypatch):
  save(tmp_path, 'late')

  def no_data(*args):
    raise FileNotFoundError('the data are on another machine')

  monkeypatch.setattr(small_run.SmallTask, 'build_inputs', no_data)
  with pytest.raises(errors.UserError, match='ckpt-7: not a checkpoint of this model: .*is in it and has no place'):
    official_ext.load(str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize('kind, name', harness.cases([('late', 'inputs')], [('linear', 'input'), ('aliased', 'input')]))
def test_a_keras_model_is_exported_with_its_inputs(kind, name, tmp_path, capsys):
  model = save(tmp_path / 'run', kind)
  assert main.main(['export', str(tmp_path / 'run'), f'--output_dir={tmp_path}/out']) == 0, capsys.readouterr().err
  function = tf.saved_model.load(str(tmp_path / 'out')).signatures['serving_default']
  (argument,) = function.structured_input_signature[1]
  assert argument.startswith(name)
  x = harness.make_data(5)[0]
  (output,) = function(**{argument: tf.constant(x)}).values()
  np.testing.assert_allclose(output, model(x), rtol=1e-5, atol=1e-6)
  assert 'Exported ' in capsys.readouterr().out
  assert main.main(['export', str(tmp_path / 'run'), f'--output_dir={tmp_path}/out']) == 2
  assert capsys.readouterr().err.startswith(f'error: {tmp_path}/out: exists already; remove it, or name another')


def test_what_cannot_be_exported_is_an_error_in_one_line(tmp_path, capsys):
  save(tmp_path, 'module')
  assert main.main(['export', str(tmp_path)]) == 2
  line = capsys.readouterr().err
  assert line.count('\n') == 1 and 'TrainedTask.serving_function: nobody calls Module itself' in line
  assert not (tmp_path / 'export').exists()
  assert main.main(['export', str(tmp_path), '--wich=best']) == 2
  assert capsys.readouterr().err.startswith('error: export: --wich: no such flag; did you mean --which? ')
  assert main.main(['export']) == 2 and 'RUN' in capsys.readouterr().err


def test_only_a_language_model_becomes_a_folder_of_hugging_face(tmp_path, capsys):
  save(tmp_path / 'run')
  assert main.main(['convert', str(tmp_path / 'run'), str(tmp_path / 'folder')]) == 2
  found = f'error: {tmp_path}/run: the model of this run is a Functional, which Hugging Face has no folder for'
  assert capsys.readouterr().err.startswith(found) and not (tmp_path / 'folder').exists()


def test_the_help_of_export_names_its_flags(capsys):
  flags = set(re.findall(r'--(\w+)', export._parser().format_usage()))
  assert main.main(['export', '--help']) == 0
  # A tracker, which takes no others.
  assert set(re.findall(r'--(\w+)', capsys.readouterr().out)) == flags | {'to'}


@pytest.mark.slow
@pytest.mark.parametrize('name', harness.cases(['bert/sentence_prediction'], ['resnet_imagenet']))
def test_model_gardens_own_tasks_are_served_as_it_serves_them(name, tmp_path):
  params = definitions.upgrade(exp_factory.get_exp_config(name))
  params.override(train_test.OVERRIDES[name](tmp_path))
  run_record.save_params(params.masked_yaml(), str(tmp_path / 'run'))
  model = task_factory.get_task(params.task).build_model()
  checkpoint = tf.train.Checkpoint(model=model, **model.checkpoint_items)
  manager.CheckpointManager(checkpoint, str(tmp_path / 'run')).save(1, check_interval=False)
  params = trained_model.read_params(str(tmp_path / 'run'), experiment=name)
  folder = export.export_run(params, str(tmp_path / 'run')).folder
  served = tf.saved_model.load(folder).signatures['serving_default']
  if name == 'resnet_imagenet':  # Of any size, and of one colour each, so that cropping makes no difference.
    colours = np.array([[10, 100, 250], [200, 20, 90]])
    outputs = served(inputs=tf.constant(np.broadcast_to(colours[:, None, None], (2, 50, 40, 3)).astype(np.uint8)))
    pixel = (colours / 255 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    images = np.broadcast_to(pixel[:, None, None], (2, 32, 32, 3)).astype(np.float32)
    np.testing.assert_allclose(outputs['logits'], model(images, training=False), rtol=1e-3, atol=1e-4)
  else:
    words = {
      name: np.random.default_rng(0).integers(0, 2, (2, 16)).astype(np.int32)
      for name in ('input_word_ids', 'input_mask', 'input_type_ids')
    }
    outputs = served(**{name: tf.constant(value) for name, value in words.items()})
    np.testing.assert_allclose(next(iter(outputs.values())), model(words, training=False), rtol=1e-4, atol=1e-4)


def test_importing_the_package_imports_no_tensorflow():
  code = 'import sys, official_ext; assert "tensorflow" not in sys.modules; official_ext.nothing'
  process = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=False)
  assert "module 'official_ext' has no attribute 'nothing'" in process.stderr
