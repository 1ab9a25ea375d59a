"""Several replicas: the operations that no program contains, and the update that each replica compiles."""

import collections
from unittest import mock

import numpy as np
from official.modeling.optimization import legacy_adamw
import pytest
import tensorflow as tf
import tf_keras

from official_ext.training.config import definitions
from official_ext.training.devices import device_types
from official_ext.training.optimization import ema_optimizer
from official_ext.training.optimization import optimizers
from official_ext.training.step import gradient_tap
from official_ext.training.step import updates
from tests.training.loop import harness

MAX_OPERATIONS = 50
_NOT_RUN = ('Placeholder', 'NoOp', 'Const', '_Arg', '_Retval')


@pytest.fixture(name='on_gpus')
def _on_gpus(monkeypatch):
  """Plans and guards take their branches for GPUs."""
  monkeypatch.setattr(device_types, 'device_type', lambda strategy: 'GPU')


def operations_outside(trainer, num_micro_steps=1):
  """The operations of a step that no program contains, with the programs' starts, by kind."""
  with trainer.strategy.scope():
    trainer.prepare_training()
    next_batches = lambda batches: [[next(batches) for _ in range(num_micro_steps)]]
    step = tf.function(lambda batches: trainer.training_step.run(next_batches(batches)), autograph=False)
    graph = step.get_concrete_function(iter(trainer.train_dataset)).graph.as_graph_def()
  functions = {function.signature.name: function for function in graph.library.function}
  found = collections.Counter()

  def count(nodes):
    for node in nodes:
      names = [each.func.name for each in node.attr.values() if each.func.name in functions]
      if any(functions[name].attr['_XlaMustCompile'].b for name in names):
        found['program'] += 1
      elif node.op not in _NOT_RUN:
        found[node.op] += 1
        for name in names:
          count(functions[name].node_def)

  count(graph.node)
  return found


class DeepTask(harness.LinearTask):
  """Softmax regression over embedded tokens after some layers; its logs have one entry of each type."""

  num_layers = 2
  num_rows = 400

  def build_model(self):
    layers = [tf_keras.layers.Embedding(self.num_rows, 4), tf_keras.layers.GlobalAveragePooling1D()]
    layers += [tf_keras.layers.Dense(4, 'tanh') for _ in range(self.num_layers)]
    model = tf_keras.Sequential([*layers, tf_keras.layers.Dense(harness.NUM_CLASSES)])
    model.build((None, 6))
    rng = np.random.default_rng(5)
    model.set_weights([rng.normal(size=weight.shape) * 0.5 for weight in model.get_weights()])
    return model

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return loss, {**logs, 'examples': tf.shape(inputs[1])[0]}


def tokens_and_labels():
  rng = np.random.default_rng(3)
  return rng.integers(0, 40, (64, 6)).astype(np.int32), harness.make_data(64)[1]


def adamw():
  return tf_keras.optimizers.AdamW(0.05, weight_decay=0.01, global_clipnorm=0.3, jit_compile=False)


def averaged():
  return ema_optimizer.ExponentialMovingAverage(adamw(), average_decay=0.9)


def scaled():
  return tf_keras.mixed_precision.LossScaleOptimizer(adamw(), initial_scale=4.0, dynamic_growth_steps=2)


OPTIMIZERS = {
  'adamw': adamw,
  'averaged': averaged,
  'scaled': scaled,
  'legacy': lambda: legacy_adamw.AdamWeightDecay(0.05, weight_decay_rate=0.01, gradient_clip_norm=0.3),
  'stable_adamw': lambda: optimizers.StableAdamW(0.05, weight_decay=0.01),
}


def make_trainer(optimizer=adamw, task=DeepTask, **options):
  options = {'replicas': 'two', 'enable_xla': 'auto', **options}
  return harness.make_trainer(task, tokens_and_labels(), optimizer=optimizer, **options)


@pytest.mark.usefixtures('on_gpus')
@pytest.mark.parametrize('name', OPTIMIZERS)
def test_few_operations_are_outside_of_programs(name):
  trainer = make_trainer(OPTIMIZERS[name], trainer_config={'loss_spike': definitions.LossSpikeConfig(factor=3.0)})
  found = operations_outside(trainer)
  assert trainer.plan.execution == 'split' and trainer.plan.compiles_update, trainer.plan
  assert found['program'] == 2 * 2  # Each replica's passes and update.
  assert sum(found.values()) <= 2 * MAX_OPERATIONS, found
  assert not {'If', 'StatelessIf', 'While', 'StatelessWhile'} & set(found)  # The host would wait for their conditions.


@pytest.mark.usefixtures('on_gpus')
def test_their_number_depends_neither_on_weights_nor_on_micro_batches():
  deep = type('DeeperTask', (DeepTask,), {'num_layers': 6})
  counts = [operations_outside(make_trainer(task=task)) for task in (DeepTask, deep)]
  assert counts[0] == counts[1]
  accumulated = operations_outside(make_trainer(accumulation=2), num_micro_steps=2)
  assert accumulated - counts[0] == {'IteratorGetNext': 2}


@pytest.mark.parametrize(
  'name, num_rows',  # 41 rows are fewer than the tokens of a batch: a dense gradient.
  [
    ('adamw', 400),
    ('legacy', 41),
    ('scaled', 41),
    *(pytest.param(name, 400, marks=pytest.mark.slow) for name in OPTIMIZERS if name != 'adamw'),
  ],
)
def test_the_values_are_those_of_the_graph(name, num_rows):
  """Also with the guards of CPUs and GPUs, in a step that is skipped, and on both replicas."""
  task = type('Task', (DeepTask,), {'num_rows': num_rows})
  config = {'loss_spike': definitions.LossSpikeConfig(factor=1e-6, window=2)}  # Every step from the third is skipped.
  graph, on_cpu = (
    make_trainer(OPTIMIZERS[name], task, enable_xla=enable_xla, trainer_config=config) for enable_xla in (False, True)
  )
  with mock.patch.object(device_types, 'device_type', lambda strategy: 'GPU'):
    on_gpu = make_trainer(OPTIMIZERS[name], task, trainer_config=config)
    harness.train(on_gpu, 5)
  for trainer in (graph, on_cpu):
    harness.train(trainer, 5)
  for compiled in (on_cpu, on_gpu):
    assert compiled.plan.compiles_update and compiled.step_state.last_skips(16) == [3, 4, 5]
    assert compiled.global_step.numpy() == 5
    harness.assert_close(harness.weights_of(compiled), harness.weights_of(graph), rtol=1e-5, atol=1e-6)
    local = compiled.strategy.experimental_local_results
    for variable in [*compiled.model.variables, *gradient_tap.variables_of(compiled.optimizer), compiled.global_step]:
      first, second = (part.numpy() for part in local(variable))
      np.testing.assert_array_equal(first, second)
  assert not graph.plan.compiles_update


@pytest.mark.parametrize('num_rows', [400, 41])
def test_an_optimizer_leaves_the_slots_of_rows_without_a_gradient(num_rows):
  """Momentum of Keras' legacy SGD, whose update of rows only TensorFlow's graph has."""
  task = type('Task', (DeepTask,), {'num_rows': num_rows})
  momentum = lambda: tf_keras.optimizers.legacy.SGD(0.1, momentum=0.9)
  trainers = [make_trainer(momentum, task, enable_xla=enable_xla) for enable_xla in (False, True)]
  for trainer in trainers:
    harness.train(trainer, 4)
  assert 'XLA cannot compile the update' in trainers[1].plan.reason
  harness.assert_close(*map(harness.weights_of, trainers))


class PythonUpdate(tf_keras.optimizers.SGD):
  """Half of its update is made in Python, which XLA cannot compile."""

  def update_step(self, gradient, variable):
    update = tf.numpy_function(lambda value: 0.5 * value, [tf.convert_to_tensor(gradient)], gradient.dtype)
    super().update_step(tf.ensure_shape(update, variable.shape), variable)


@pytest.mark.usefixtures('on_gpus')
def test_an_update_that_xla_cannot_compile_is_in_the_graph():
  trainers = [
    make_trainer(optimizer) for optimizer in (lambda: PythonUpdate(0.2), lambda: tf_keras.optimizers.SGD(0.1))
  ]
  for trainer in trainers:
    harness.train(trainer, 3)
  assert 'XLA cannot compile the update: ' in trainers[0].plan.reason and not trainers[0].plan.compiles_update
  assert trainers[0].plan.jit_compile and trainers[1].plan.compiles_update
  harness.assert_close(*map(harness.weights_of, trainers))


class SynchronisedTask(harness.LinearTask):
  """Replicas meet in the forward pass."""

  @staticmethod
  def model_fn():
    inputs = tf_keras.Input((harness.NUM_FEATURES,))
    normalised = tf_keras.layers.BatchNormalization(synchronized=True)(inputs)
    model = tf_keras.Model(inputs, tf_keras.layers.Dense(harness.NUM_CLASSES)(normalised))
    model.layers[-1].set_weights(harness.initial_weights())
    return model


def test_passes_in_which_replicas_meet_have_a_compiled_update_on_gpus():
  graph = harness.make_trainer(SynchronisedTask, replicas='two', enable_xla='auto')
  harness.train(graph, 4)
  with mock.patch.object(device_types, 'device_type', lambda strategy: 'GPU'):
    compiled = harness.make_trainer(SynchronisedTask, replicas='two', enable_xla='auto')
    harness.train(compiled, 4)
    found = operations_outside(harness.make_trainer(SynchronisedTask, replicas='two', enable_xla='auto'))
  assert str(compiled.plan).startswith('plain (XLA in the update): replicas meet') and not graph.plan.compiles_update
  assert found['program'] == 2
  harness.assert_close([v.numpy() for v in compiled.model.variables], [v.numpy() for v in graph.model.variables])


def on_replicas(function, *args):
  """The results of a function of (replica, arguments) on two replicas."""
  strategy = harness.strategy('two')
  run = tf.function(lambda: strategy.run(function, args=args), autograph=False)
  return [strategy.experimental_local_results(each) for each in run()]


def test_packed_rows_are_the_rows_of_all_replicas():
  """Replica r has rows 70000 + r and 3 r of numbers r + 1: their sum has each of them, and no other."""
  with harness.strategy('two').scope():
    table, weight = tf.Variable(tf.zeros([70002, 2])), tf.Variable(tf.zeros([3], tf.float64))
  packing = updates._Packing([table, weight], [2, None], 2)

  def of_replica():
    replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int32)
    indices = tf.stack([70000 + replica, 3 * replica])
    rows = tf.IndexedSlices(tf.ones([2, 2]) * tf.cast(replica + 1, tf.float32), indices, tf.constant([70002, 2]))
    packed = packing.pack([rows, tf.constant([1.0, 2.0, 3.0], tf.float64)], tf.constant([0.0, 0.5]))
    assert [(each.dtype, each.shape) for each in packed] == [(tf.float32, [2 * 2 * 4 + 2]), (tf.float64, [3])]
    (rows, weights), shares, dense = packing.unpack(updates.sum_over_replicas(packed))
    assert not dense
    return rows.indices, rows.values, weights, shares

  for replica in (0, 1):
    indices, values, weights, shares = (np.array(each[replica]) for each in on_replicas(of_replica))
    assert indices.tolist() == [70000, 0, 70001, 3]  # None is there twice.
    assert values.tolist() == [[1, 1], [1, 1], [2, 2], [2, 2]]
    assert (weights.tolist(), shares.tolist()) == ([2, 4, 6], [0, 1])


def test_marked_rows_are_those_of_any_replica():
  """Replica r has rows r, 3 and again 3 of a table of 5: 0 and 1 from one of them, 3 four times, 2 and 4 from none."""
  with harness.strategy('two').scope():
    table = tf.Variable(tf.zeros([5, 2]))
  packing = updates._Packing([table], [3], 2)  # The six rows of both are more than five.

  def of_replica():
    replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int32)
    rows = tf.IndexedSlices(tf.ones([3, 2]), tf.stack([replica, 3, 3]), tf.constant([5, 2]))
    (rows,), shares, dense = packing.unpack(updates.sum_over_replicas(packing.pack([rows], tf.constant([1.0]))))
    assert not dense
    return rows.indices, rows.values, shares

  for replica in (0, 1):
    indices, values, shares = (np.array(each[replica]) for each in on_replicas(of_replica))
    assert indices.tolist() == [0, 1, 5, 3, 5]
    assert values[:, 0].tolist() == values[:, 1].tolist() == [1, 1, 0, 4, 0] and shares.tolist() == [2]
