"""Tests of inspection.py: its statistics, by the formulas, and that training does not notice."""

import collections
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.training.loop import base_trainer
from tests import tiers
from tests.training.loop import harness

SHAPES = {
  'plain': dict(enable_xla=False),
  'fused': dict(enable_xla=True, steps_per_execution=4, accumulation=2),
  'split': dict(enable_xla=True, replicas='two'),
  'eager': dict(enable_xla=False, trainer_config={'train_tf_function': False, 'train_tf_while_loop': False}),
}


class RandomTask(harness.LinearTask):
  """Its model has a state and random numbers."""

  def build_model(self):
    inputs = tf_keras.Input((harness.NUM_FEATURES,))
    x = tf_keras.layers.BatchNormalization(name='norm')(inputs)
    logits = tf_keras.layers.Dense(harness.NUM_CLASSES, name='logits')
    model = tf_keras.Model(inputs, logits(tf_keras.layers.Dropout(0.3, name='dropout')(x)))
    logits.set_weights(harness.initial_weights())
    return model


class NestedTask(harness.LinearTask):
  """Its model has layers inside a layer."""

  def build_model(self):
    inputs = tf_keras.Input((harness.NUM_FEATURES,))
    layers = [tf_keras.layers.Dense(6, name='dense'), tf_keras.layers.ReLU(name='relu')]
    block = tf_keras.Sequential(layers, name='block')
    x = tf_keras.layers.Dense(harness.NUM_CLASSES, name='logits')(block(inputs))
    block.get_layer('dense').set_weights([np.random.default_rng(0).normal(size=(4, 6)), np.zeros(6)])
    return tf_keras.Model(inputs, x)


class OwnUpdatesTask(harness.LinearTask):
  """Two updates a step, and a separate variable."""

  def __init__(self, *args: Any):
    super().__init__(*args)
    self.count = tf.Variable(0.0)

  def train_step(self, inputs, model, optimizer, metrics=None):
    for _ in range(2):
      with tf.GradientTape() as tape:
        loss, logs = self.forward(inputs, model, training=True)
      optimizer.apply_gradients(list(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables)))
    self.count.assign_add(1.0)
    return {**self._update_metrics(logs, metrics), self.loss: loss}


def make_trainer(task_cls: Any = RandomTask, inspect: Any = None, trainer_config: Any = None, **kwargs: Any) -> Any:
  return harness.make_trainer(task_cls, trainer_config={**(trainer_config or {}), 'inspect': inspect or {}}, **kwargs)


def train(trainer: Any, folder: Any, loops: Any = (5, 3)) -> list:
  """The logs of loops of steps, with summaries written to `folder`."""
  with tf.summary.create_file_writer(str(folder)).as_default() as writer, tf.summary.record_if(False):
    logs = [harness.train(trainer, steps) for steps in loops]
    writer.flush()
  return logs


def shown(folder: Any) -> dict:
  """Scalars and histograms by (step, tag)."""
  values = {}
  for path in map(str, pathlib.Path(folder).glob('*tfevents*')):
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
      event = tf.compat.v1.Event.FromString(record)
      for value in event.summary.value:
        array = tf.make_ndarray(value.tensor)
        values[event.step, value.tag] = array if array.ndim else float(array)
  return values


def state_of(trainer: Any) -> list:
  variables = [*trainer.model.variables, *trainer.optimizer.variables(), *trainer.step_state.variables]
  return [variable.numpy() for variable in variables]


def nodes_of(trainer: Any) -> Any:
  """How many there are of each kind in the loop over the steps."""
  function = trainer._train_loop_fn.get_concrete_function(trainer._train_iter, tf.constant(1))
  definition = function.graph.as_graph_def()
  groups = [definition.node, *(function.node_def for function in definition.library.function)]
  return collections.Counter(node.op for group in groups for node in group)


@pytest.mark.slow
@tiers.parametrize('shape', harness.cases(['plain', 'fused', 'eager'], soak=['split']), fast=['fused'])
def test_training_does_not_notice(tmp_path, shape):
  """Weights, slots, statistics and every log are the same bit for bit.

  Of programs of four steps, those that hold a multiple of 3 are inspected.
  """
  plain, inspected = make_trainer(**SHAPES[shape]), make_trainer(inspect={'every': 3}, **SHAPES[shape])
  loops = (8,) if shape == 'fused' else (5, 3)
  expected, logs = train(plain, tmp_path / 'off', loops), train(inspected, tmp_path / 'on', loops)
  assert inspected.plan == plain.plan and inspected.plan.execution == ('plain' if shape == 'eager' else shape)
  for a, b in zip(state_of(plain), state_of(inspected), strict=True):
    np.testing.assert_array_equal(a, b)
  for a, b in zip(expected, logs, strict=True):
    assert a == b
  steps = {step for step, _ in shown(tmp_path / 'on')}
  assert steps == ({1, 5} if shape == 'fused' else {3, 6})
  assert not shown(tmp_path / 'off')
  if shape == 'plain':  # Nothing was added to the steps' graph, node by node.
    assert nodes_of(inspected) == nodes_of(plain)


@pytest.mark.slow
@pytest.mark.parametrize('replicas', harness.cases(['two'], soak=['one']))
def test_a_step_by_the_formulas(tmp_path, replicas):
  """Step 3 of softmax regression with SGD: gradients of the whole batch, activations of the first replica's part."""
  data = harness.make_data(64)
  trainer = harness.make_trainer(
    data=data,
    replicas=replicas,
    enable_xla=False,
    optimizer=lambda: harness.sgd(0.1, momentum=0.0),
    trainer_config={'inspect': {'every': 3, 'histograms': True}},
  )
  train(trainer, tmp_path, loops=(4,))
  before = harness.Reference(harness.sgd(0.1, momentum=0.0), data, 8).train(2).weights
  batch = harness.global_batch(data, 2, 8)
  _, gradients, _ = harness.softmax_regression(before, batch)
  outputs = (batch[0] @ before[0] + before[1])[: 8 if replicas == 'one' else 4]
  weight_norm, gradient_norm = harness.norm(before), harness.norm(gradients)
  expected = {
    'gradient_norm': gradient_norm,
    'weight_norm': weight_norm,
    'update_to_weight': 0.1 * gradient_norm / weight_norm,
    'activation_mean': outputs.mean(),
    'activation_std': outputs.std(),
    'activation_zeros': 0.0,
    'activation_max_abs': np.abs(outputs).max(),
  }
  values = shown(tmp_path)
  scalars = {tag: value for (step, tag), value in values.items() if step == 3 and isinstance(value, float)}
  assert set(scalars) == {f'inspect/{name}/dense' for name in expected}
  for name, value in expected.items():
    np.testing.assert_allclose(scalars[f'inspect/{name}/dense'], value, rtol=1e-5, atol=1e-7)
  histograms = {tag: value for (_, tag), value in values.items() if not isinstance(value, float)}
  for tag, array in (
    ('weights/dense/kernel', before[0]),
    ('gradients/dense/kernel', gradients[0]),
    ('activations/dense', outputs),
  ):
    edges_and_counts = histograms[f'inspect/{tag}']
    np.testing.assert_allclose(edges_and_counts[:, 2].sum(), array.size)
    np.testing.assert_allclose(
      [edges_and_counts[0, 0], edges_and_counts[-1, 1]], [array.min(), array.max()], rtol=1e-5, atol=1e-7
    )
  assert set(histograms) == {
    'inspect/activations/dense',
    *(f'inspect/{kind}/dense/{name}' for kind in ('weights', 'gradients') for name in ('kernel', 'bias')),
  }


def test_layers_inside_layers_and_patterns(tmp_path):
  trainer = make_trainer(NestedTask, {'every': 1, 'layers': ('block/*',)}, enable_xla=False)
  train(trainer, tmp_path, loops=(1,))
  values = {tag.removeprefix('inspect/'): value for (_, tag), value in shown(tmp_path).items()}
  assert {tag.partition('/')[2] for tag in values} == {'block/dense', 'block/relu'}
  assert 0 < values['activation_zeros/block/relu'] < 1 and values['activation_zeros/block/dense'] == 0
  with pytest.raises(errors.UserError, match=r'trainer.inspect.layers: .* like encoder/\*; .* logits'):
    train(make_trainer(NestedTask, {'every': 1, 'layers': ('encoder/*',)}, enable_xla=False), tmp_path, loops=(1,))


def test_manual_optimization(tmp_path):
  """The task's own variables come back too. The last gradient of the step is shown."""
  plain, inspected = make_trainer(OwnUpdatesTask), make_trainer(OwnUpdatesTask, {'every': 2})
  train(plain, tmp_path / 'off', loops=(5,))
  train(inspected, tmp_path / 'on', loops=(5,))
  assert plain.plan.manual_optimization and inspected.task.count.numpy() == plain.task.count.numpy() == 5
  harness.assert_close(harness.weights_of(inspected), harness.weights_of(plain), rtol=0, atol=0)
  assert shown(tmp_path / 'on')[4, 'inspect/gradient_norm/dense'] > 0


@pytest.mark.slow
def test_replicas_that_meet_in_the_forward_pass(tmp_path):
  """Their threads interleave: every layer is shown once, and all that was replaced while they were traced is back."""

  class Task(harness.LinearTask):
    def build_model(self):
      inputs = tf_keras.Input((harness.NUM_FEATURES,))
      x = tf_keras.layers.BatchNormalization(synchronized=True, name='norm')(inputs)
      return tf_keras.Model(inputs, tf_keras.layers.Dense(harness.NUM_CLASSES, name='logits')(x))

  trainer = harness.make_trainer(Task, replicas='two', trainer_config={'inspect': {'every': 1}})
  call, apply_gradients = tf_keras.layers.Layer.__call__, tf_keras.optimizers.legacy.Optimizer.apply_gradients
  train(trainer, tmp_path, loops=(1,))
  assert 'replicas meet' in trainer.plan.reason
  assert tf_keras.layers.Layer.__call__ is call
  assert tf_keras.optimizers.legacy.Optimizer.apply_gradients is apply_gradients
  assert {tag.rpartition('/')[2] for _, tag in shown(tmp_path)} == {'norm', 'logits'}


def test_what_cannot_be_inspected_is_refused():
  class OwnStep(base_trainer.Trainer):
    def train_step(self, iterator):
      super().train_step(iterator)

  with pytest.raises(errors.UserError, match='trainer.inspect.every: OwnStep overrides train_step'):
    make_trainer(inspect={'every': 5}, trainer_cls=OwnStep)
