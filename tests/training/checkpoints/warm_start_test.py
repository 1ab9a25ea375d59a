"""New runs that start from the weights of another."""

import shutil
import types

import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.training.checkpoints import manager
from official_ext.training.checkpoints import warm_start
from official_ext.training.config import definitions
from official_ext.training.loop import garden
from tests import tiers
from tests.training.loop import harness
from tests.training.loop import small_run


def make_model(num_classes=3, seed=0, name='logits'):
  return tf_keras.Sequential(
    [
      tf_keras.Input((4,)),
      tf_keras.layers.Dense(5, kernel_initializer=tf_keras.initializers.GlorotUniform(seed), name='hidden'),
      tf_keras.layers.Dense(num_classes, kernel_initializer=tf_keras.initializers.GlorotUniform(seed + 1), name=name),
    ]
  )


def save(model, folder, step=7, manifest=True):
  checkpoint = tf.train.Checkpoint(model=model, global_step=tf.Variable(step, dtype=tf.int64))
  if not manifest:
    return checkpoint.write(f'{folder}/ckpt-{step}')
  return manager.CheckpointManager(checkpoint, str(folder)).save(step, check_interval=False)


def equal(model, other):
  return [bool(tf.reduce_all(a == b)) for a, b in zip(model.variables, other.variables)]


@pytest.mark.parametrize('manifest', [True, False])
def test_all_weights_come_from_the_checkpoint(manifest, tmp_path, capsys):
  trained, model = make_model(), make_model(seed=5)
  path = save(trained, tmp_path, manifest=manifest)
  assert equal(trained, model) == [False, True, False, True]  # Biases are zero.
  warm_start.load_weights(model, path)
  assert all(equal(trained, model))
  assert capsys.readouterr().out == f'Initialized 4 of 4 variables from {path}\n'


def test_a_folder_means_its_newest_sound_checkpoint(tmp_path):
  models = [make_model(seed=seed) for seed in (1, 2, 3)]
  paths = [save(model, tmp_path, step) for step, model in zip((5, 50, 100), models)]
  assert warm_start.find(str(tmp_path)) == paths[2]
  (tmp_path / 'ckpt-100.index').write_bytes(b'')
  assert warm_start.find(str(tmp_path)) == paths[1]
  with pytest.raises(errors.UserError, match='ckpt-100: it is damaged: ckpt-100.index has 0 bytes'):
    warm_start.find(paths[2])


def test_a_new_head(tmp_path, capsys):
  trained, model = make_model(), make_model(num_classes=10, seed=5)
  before = model.layers[-1].get_weights()[0]
  path = save(trained, tmp_path)
  with pytest.raises(errors.UserError) as raised:
    warm_start.load_weights(model, path)
  assert str(raised.value).startswith(f'task.init_checkpoint: {path}: ')
  assert '(logits/kernel:0) has shape (5, 3) in it, (5, 10) here; ' in str(raised.value)
  assert 'task.init_checkpoint_may_miss' in str(raised.value)
  for patterns in (('logits/*',), ('model/*-1/bias', '*kernel:0')):
    warm_start.load_weights(model, path, patterns)
  assert equal(trained.layers[0], model.layers[0]) == [True, True]
  assert (model.layers[-1].get_weights()[0] == before).all()
  assert 'Initialized 2 of 4 variables' in capsys.readouterr().out


def test_a_missing_variable_is_named_and_a_superfluous_one_reported(tmp_path, capsys):
  small = tf_keras.Sequential(make_model().layers[:1])
  small.build((None, 4))
  path = save(small, tmp_path)
  model = make_model(seed=5)
  with pytest.raises(errors.UserError, match=r'layer_with_weights-1/bias \(logits/bias:0\) is not in it'):
    warm_start.load_weights(model, path)
  warm_start.load_weights(model, path, ['logits/*'])
  capsys.readouterr()
  warm_start.load_weights(small, save(make_model(), tmp_path / 'large'))
  assert '; 2 of its weights have no place' in capsys.readouterr().out


def test_patterns_do_not_excuse_a_checkpoint_of_something_else(tmp_path):
  path = save(tf_keras.Sequential([tf_keras.layers.Dense(7, input_shape=(2,))]), tmp_path)
  with pytest.raises(errors.UserError, match="none of the model's 4 variables is in it"):
    warm_start.load_weights(make_model(), path, ['*'])


@pytest.mark.parametrize('name', ['nothing', 'nothing/ckpt-5', 'empty'])
def test_what_is_not_there(name, tmp_path):
  (tmp_path / 'empty').mkdir()
  with pytest.raises(errors.UserError, match=f'task.init_checkpoint: {tmp_path}/{name}: no '):
    warm_start.find(f'{tmp_path}/{name}')


# Whole runs.


def run(folder, path, steps=4, **task):
  params = small_run.make_params(train_steps=steps)
  params.task = definitions.TaskConfig(
    init_checkpoint=path, train_data=params.task.train_data, validation_data=params.task.validation_data, **task
  )
  return small_run.run(folder, 'train', params=params)


@pytest.mark.slow
def test_a_run_starts_from_another_and_resumes_from_itself(tmp_path):
  first, _ = small_run.run(tmp_path / 'first', 'train')
  moved, _ = run(tmp_path / 'second', str(tmp_path / 'first'))
  events = small_run.events(tmp_path / 'second')
  assert [event['event'] for event in events if event['event'] == 'restored'] == []
  assert events[-1]['step'] == 4  # The step is its own.
  fresh, _ = small_run.run(tmp_path / 'fresh', 'train', trainer={'train_steps': 4})
  assert not any(equal(moved, fresh))
  # A resumed run uses its own checkpoint, wherever the first one is by then.
  (tmp_path / 'first').rename(tmp_path / 'gone')
  run(tmp_path / 'second', str(tmp_path / 'first'), steps=8)
  assert small_run.events(tmp_path / 'second', 'restored')[0]['step'] == 4


def test_model_gardens_own_tasks_are_reported_too(tmp_path):
  """Stock Task.initialize logs that there is no checkpoint in the folder, and trains from random weights."""
  from official.core import base_task

  class StockInitialize(small_run.SmallTask):
    initialize = base_task.Task.initialize

  (tmp_path / 'empty').mkdir()
  params = small_run.make_params()
  params.task.init_checkpoint = str(tmp_path / 'empty')
  with pytest.raises(errors.UserError, match='empty: no checkpoint in this folder'):
    small_run.run(tmp_path / 'run', 'train', StockInitialize, params=params)
  assert not (tmp_path / 'run').exists()
  params.task.init_checkpoint = save(make_model(), tmp_path / 'other')
  with pytest.raises(errors.UserError, match='task.init_checkpoint: .*ckpt-7: does not fit the model'):
    small_run.run(tmp_path / 'run', 'train', StockInitialize, params=params)


@pytest.mark.slow
def test_a_copied_or_moved_run_gives_its_own_weights(tmp_path):
  """Model Garden's tasks go by the file named `checkpoint`. Before, it held absolute paths."""
  from official.core import base_task

  class StockInitialize(small_run.SmallTask):
    initialize = base_task.Task.initialize

  run = tmp_path / 'run'
  first, _ = small_run.run(run, 'train', trainer={'train_steps': 4})
  shutil.copytree(run, tmp_path / 'copy')
  assert tf.train.latest_checkpoint(str(tmp_path / 'copy')) == f'{tmp_path}/copy/ckpt-4'
  small_run.run(run, 'train')  # From here on the original has other weights.
  shutil.move(tmp_path / 'copy', tmp_path / 'moved')
  for content in ((tmp_path / 'moved/checkpoint').read_text(), f'model_checkpoint_path: "{run}/ckpt-12"\n'):
    (tmp_path / 'moved/checkpoint').write_text(content)  # The second is that of an older version.
    params = small_run.make_params(train_steps=1)
    params.trainer.optimizer_config.learning_rate.constant.learning_rate = 0.0
    params.task.init_checkpoint = str(tmp_path / 'moved')
    shutil.rmtree(tmp_path / 'second', ignore_errors=True)
    second, _ = small_run.run(tmp_path / 'second', 'train', StockInitialize, params=params)
    assert all(equal(first, second))


@pytest.mark.parametrize('is_beside', [True, False])
def test_a_state_file_with_the_path_of_another_folder(is_beside, tmp_path):
  """Without manifests, as another program writes it: a checkpoint of that name beside it comes first."""
  there = save(make_model(), tmp_path / 'there')
  here = tmp_path / 'here'
  here.mkdir()
  if is_beside:
    save(make_model(), here)
  (here / 'checkpoint').write_text(f'model_checkpoint_path: "{there}"\n')
  for path in (*here.glob('*.manifest.json'), *(tmp_path / 'there').glob('*.manifest.json')):
    path.unlink()
  assert warm_start.find(str(here)) == (f'{here}/ckpt-7' if is_beside else there)


class ModulesTask(small_run.SmallTask):
  """Loads all of a model or its backbone, as the tasks of official.vision do."""

  def build_model(self):
    model = super().build_model()
    model.backbone = model.layers[-1]
    return model

  def initialize(self, model):
    if self.task_config.init_checkpoint_modules not in ('all', 'backbone'):
      raise ValueError("Only 'all' or 'backbone' can be used to initialize the model.")
    checkpoint = tf.train.Checkpoint(model=model)
    checkpoint.read(self.task_config.init_checkpoint).expect_partial().assert_existing_objects_matched()


def test_variables_without_a_value_are_named_with_their_shapes(tmp_path):
  class OneMoreLayer(ModulesTask):
    def build_model(self):
      model = super().build_model()
      model.more = [tf.Variable(tf.zeros([2, number]), name=f'more_{number}') for number in range(1, 7)]
      return model

  params = small_run.make_params()
  params.task.init_checkpoint = save(harness.linear_model(), tmp_path / 'other')
  vars(params.task)['init_checkpoint_modules'] = 'all'
  with pytest.raises(errors.UserError) as failure:
    small_run.run(tmp_path / 'run', params=params, task_cls=OneMoreLayer)
  shown = ', '.join(f'more_{number} (2, {number})' for number in range(1, 5))
  assert str(failure.value).endswith(f': it has no values for {shown} and 2 others')


@tiers.parametrize(
  'modules, words',
  [
    ('backbon', "^task.init_checkpoint_modules: backbon: Only 'all' or 'backbone' can be used"),
    (
      'all',
      '^task.init_checkpoint: .* does not fit the model; task.init_checkpoint_modules=backbone loads the backbone',
    ),
  ],
  fast=1,
)
def test_a_misspelt_part_of_the_model_and_another_model_are_distinguished(modules, words, tmp_path):
  params = small_run.make_params()
  params.task.init_checkpoint = save(make_model(), tmp_path / 'other')
  vars(params.task)['init_checkpoint_modules'] = modules
  with pytest.raises(errors.UserError, match=words):
    small_run.run(tmp_path / 'run', params=params, task_cls=ModulesTask)


def test_parts_that_a_checkpoint_lacks_are_named(tmp_path, capsys):
  parts = {name: tf_keras.Sequential([tf_keras.Input((2,)), tf_keras.layers.Dense(1)]) for name in ('encoder', 'head')}
  model = types.SimpleNamespace(checkpoint_items=parts)
  path = tf.train.Checkpoint(encoder=parts['encoder']).save(str(tmp_path / 'ckpt'))
  garden.report_missing_parts(model, path)
  assert capsys.readouterr().out == f'task.init_checkpoint: {path} has no head: initial values are kept\n'
  garden.report_missing_parts(model, tf.train.Checkpoint(**parts).save(str(tmp_path / 'both')))
  assert capsys.readouterr().out == ''
