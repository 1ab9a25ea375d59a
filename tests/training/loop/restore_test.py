"""A restore is complete or an error in one line: in every mode, of every model, whenever its variables are made."""

import functools
import os

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.training.checkpoints import contents
from official_ext.training.checkpoints import manager as manager_lib
from official_ext.training.loop import base_trainer
from official_ext.training.step import gradient_tap
from tests import tiers
from tests.training.loop import harness
from tests.training.loop import small_run

LEGACY = {'optimizer': {'type': 'sgd', 'sgd': {'momentum': 0.9}}}
NEW = {'optimizer': {'type': 'sgd_experimental', 'sgd_experimental': {'momentum': 0.9}}}


def perceptron(size):
  layers = [tf_keras.layers.Dense(size, 'relu'), tf_keras.layers.Dense(harness.NUM_CLASSES)]
  return tf_keras.Sequential([tf_keras.Input((harness.NUM_FEATURES,)), *layers])


class Container(tf_keras.Model):
  """Networks that are built, in a model that never is: the pattern of docs/how_to/manual_optimization.md."""

  def __init__(self, size=5, name_of_network='network'):
    super().__init__()
    setattr(self, name_of_network, perceptron(size))
    self.called = name_of_network

  def call(self, x, training=None):
    return getattr(self, self.called)(x, training=training)


class Late(tf_keras.Model):
  """Nothing is built before the first call, and networks are in a list and a dictionary."""

  def __init__(self, size=5, name_of_network='networks'):
    super().__init__()
    setattr(self, name_of_network, [tf_keras.layers.Dense(size, 'relu')])
    self.heads = {'logits': tf_keras.layers.Dense(harness.NUM_CLASSES)}
    self.called = name_of_network

  def call(self, x, training=None):
    for network in getattr(self, self.called):
      x = network(x, training=training)
    return self.heads['logits'](x)


class Module(tf.Module):
  """No Keras model at all, and its layers are built by their first call."""

  def __init__(self, size=5, name_of_network='network'):
    super().__init__()
    setattr(self, name_of_network, tf_keras.layers.Dense(size, 'relu'))
    self.head = tf_keras.layers.Dense(harness.NUM_CLASSES)
    self.called = name_of_network

  def __call__(self, x, training=None):
    return self.head(getattr(self, self.called)(x, training=training))


class Aliased(tf_keras.Model):
  """Names its parts as items of the checkpoint too, as Model Garden's models do: values go by that shorter name."""

  def __init__(self, size=5, name_of_network='network'):
    x = tf_keras.Input((harness.NUM_FEATURES,))
    backbone = tf_keras.Sequential([tf_keras.Input((harness.NUM_FEATURES,)), tf_keras.layers.Dense(size)])
    head = tf_keras.layers.Dense(harness.NUM_CLASSES)
    super().__init__(x, head(backbone(x)))
    self.backbone_name, self._backbone, self._head = f'backbone_{name_of_network}', backbone, head

  @property
  def checkpoint_items(self):
    return {self.backbone_name: self._backbone}


class TwoOptimizers(Container):
  """As in a GAN: an optimizer of the model's own, which is built with the model."""

  def __init__(self, size=5, name_of_network='network'):
    super().__init__(size, name_of_network)
    self.second = perceptron(size)
    self.second_optimizer = tf_keras.optimizers.legacy.Adam(0.01)
    gradient_tap.build_optimizer(self.second_optimizer, self.second.trainable_variables)


class ModelTask(small_run.SmallTask):
  """The task of a model."""


class ManualTask(ModelTask):
  """Two networks, each with its optimizer."""

  def train_step(self, inputs, model, optimizer, metrics=None):
    x, y = inputs
    for network, own in ((getattr(model, model.called), optimizer), (model.second, model.second_optimizer)):
      with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, network(x)))
      own.apply_gradients(zip(tape.gradient(loss, network.trainable_variables), network.trainable_variables))
    return {self.loss: loss}


MODELS = {'container': Container, 'late': Late, 'module': Module, 'aliased': Aliased, 'two optimizers': TwoOptimizers}


def run(folder, mode, kind, optimizer=LEGACY, steps=2, replicas='one', checkpoint=None, **model):
  """A run of a model; the model and the logs."""
  base = ManualTask if kind == 'two optimizers' else ModelTask
  task_cls = type('Task', (base,), {'model_fn': staticmethod(functools.partial(MODELS[kind], **model))})
  tf_keras.utils.set_random_seed(len(os.listdir(folder.parent)))  # No two models begin alike.
  params = small_run.make_params(
    train_steps=steps,
    steps_per_loop=2,
    checkpoint_interval=2,
    validation_interval=2,
    max_to_keep=9,
    continuous_eval_timeout=0,
    optimizer_config={**optimizer, 'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.1}}},
  )
  return small_run.run(folder, mode, task_cls, replicas, params, checkpoint=checkpoint)


def values(path):
  reader = tf.train.load_checkpoint(str(path))
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if not name.startswith('_')}


def refuse(folder, mode, kind, *words, **kwargs):
  """The error in one line; nothing is saved or reported after it, and params.yaml is still that of the checkpoints."""
  before, params = {path.name for path in folder.glob('ckpt-*')}, (folder / 'params.yaml').read_bytes()
  with pytest.raises(errors.UserError) as raised:
    run(folder, mode, kind, **kwargs)
  line = str(raised.value)
  assert 'not a checkpoint of this model' in line and '\n' not in line and all(word in line for word in words), line
  assert {path.name for path in folder.glob('ckpt-*')} == before
  assert (folder / 'params.yaml').read_bytes() == params and not (folder / 'params.1.yaml').exists()
  name = f'events{"" if "train" in mode else "." + mode}.jsonl'
  events = small_run.events(folder, name=name)
  last = [event['event'] for event in events[max(i for i, e in enumerate(events) if e['event'] == 'start') :]]
  assert not {'train', 'eval', 'checkpoint'} & set(last), last


@pytest.mark.slow
@pytest.mark.parametrize(
  'kind, optimizer, replicas',
  harness.cases(
    [('late', LEGACY, 'one'), ('module', NEW, 'two')],
    [
      ('two optimizers', NEW, 'one'),
      ('container', LEGACY, 'two'),
      ('two optimizers', LEGACY, 'two'),
      ('module', LEGACY, 'one'),
      ('late', NEW, 'two'),
      ('aliased', LEGACY, 'two'),
      ('aliased', NEW, 'one'),
    ],
  ),
)
def test_every_model_resumes_bit_for_bit(kind, optimizer, replicas, tmp_path):
  _, logs = run(tmp_path / 'straight', 'train_and_eval', kind, optimizer, 4, replicas)
  first = values(tmp_path / 'straight/ckpt-2')
  (tmp_path / 'resumed').mkdir()
  for path in (tmp_path / 'straight').glob('ckpt-2*'):
    (tmp_path / 'resumed' / path.name).write_bytes(path.read_bytes())
  run(tmp_path / 'resumed', 'train', kind, optimizer, 4, replicas)
  straight, resumed = (values(tmp_path / name / 'ckpt-4') for name in ('straight', 'resumed'))
  assert straight.keys() == resumed.keys() == first.keys()
  assert any('momentum' in name or '_variables' in name for name in straight)
  for name, value in straight.items():
    np.testing.assert_array_equal(value, resumed[name], name)
  _, again = run(tmp_path / 'straight', 'eval', kind, optimizer, 4, replicas)
  assert float(logs['accuracy']) == float(again['accuracy'])


@tiers.parametrize(
  'kind', harness.cases(['late', 'aliased'], ['container', 'module', 'two optimizers']), fast=['aliased']
)
def test_another_model_restores_nothing_and_reports_it(kind, tmp_path):
  """An attribute that was renamed, and a size that was changed, between two starts."""
  run(tmp_path / 'run', 'train', kind)
  for mode in ('train', 'eval') if kind != 'aliased' else ('eval',):
    if kind != 'aliased':  # There, the other name still leads to each value.
      refuse(tmp_path / 'run', mode, kind, 'renamed', 'is not in it', steps=4, name_of_network='renamed')
    refuse(tmp_path / 'run', mode, kind, 'has shape', ', 5)', ', 7)', steps=4, size=7)


@pytest.mark.slow
def test_every_mode_refuses_the_checkpoint_of_another_model(tmp_path):
  run(tmp_path / 'run', 'train', 'container')
  for mode in ('continuous_eval', 'train_and_eval', 'train_and_post_eval'):
    refuse(tmp_path / 'run', mode, 'module', 'model/', steps=4)


@pytest.mark.slow
def test_a_named_checkpoint_of_another_model_is_refused(tmp_path):
  run(tmp_path / 'other', 'train', 'late')
  run(tmp_path / 'run', 'train', 'container')
  refuse(tmp_path / 'run', 'eval', 'container', 'model/', checkpoint=str(tmp_path / 'other/ckpt-2'))


class OwnsItsStep(base_trainer.Trainer):
  """A subclass that runs eagerly: no trace can make the model's variables."""

  def train_step(self, iterator):
    super().train_step(iterator)


@tiers.parametrize(
  'model, words',
  [
    (functools.partial(Late, size=7), 'expected axis -1 of input shape to have value 7'),
    (functools.partial(Late, name_of_network='renamed'), 'renamed/0/kernel'),
    (Late, ''),
  ],
  fast=2,
)
def test_what_cannot_be_traced_is_held_against_the_checkpoint_after_its_first_step(model, words, tmp_path):
  def build(model):
    task_cls = type('Task', (harness.LinearTask,), {'model_fn': staticmethod(model)})
    trainer = harness.make_trainer(
      task_cls,
      trainer_cls=OwnsItsStep,
      enable_xla=False,
      trainer_config=dict(train_tf_function=False, train_tf_while_loop=False),
    )
    manager = manager_lib.CheckpointManager(
      trainer.checkpoint, str(tmp_path), create_variables=trainer.create_variables
    )
    return trainer, manager

  trainer, manager = build(Late)
  harness.train(trainer, 2)
  manager.save(2, check_interval=False)
  harness.train(trainer, 1)
  again, manager = build(model)
  manager.restore(str(tmp_path / 'ckpt-2'))
  again.checkpoint_restored()
  if words:
    with pytest.raises(errors.UserError, match=f'ckpt-2: not a checkpoint of this model.*{words}'):
      with manager.restoring.completing():
        harness.train(again, 1)
  else:
    with manager.restoring.completing():
      harness.train(again, 1)
    harness.assert_close(harness.weights_of(again), harness.weights_of(trainer), rtol=0, atol=0)


def test_slots_of_a_legacy_optimizer_are_held_against_the_checkpoint(tmp_path):
  def build(optimizer):
    trainer = harness.make_trainer(optimizer=optimizer)
    return trainer, manager_lib.CheckpointManager(trainer.checkpoint, str(tmp_path))

  plain = lambda: tf_keras.optimizers.legacy.SGD(0.1, momentum=0.0)
  _, manager = build(plain)
  path = manager.save(0, check_interval=False)
  _, manager = build(harness.sgd)
  with pytest.raises(errors.UserError, match='momentum of model/.*/kernel in optimizer .* is not in it'):
    manager.restore(path)
  path = manager.save(1, check_interval=False)
  _, manager = build(plain)
  with pytest.raises(errors.UserError, match='momentum of model/.* in optimizer .* is in it and has no place'):
    manager.restore(path)


def test_contents_fit_by_either_name_of_an_object(tmp_path):
  model = Aliased()
  path = tf.train.Checkpoint(model=model, **model.checkpoint_items).write(str(tmp_path / 'ckpt'))
  alone = contents.Contents(path).match(tf.train.Checkpoint(model=Aliased()))
  assert not alone.differences() and len(alone.places) == 4
  assert {place.key.split('/')[0] for place in alone.places.values()} == {'backbone_network', 'model'}
