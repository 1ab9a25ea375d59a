"""Parameter groups: other learning rates, no weight decay, frozen; for every optimizer that can be named."""

import dataclasses

import numpy as np
from official.modeling import optimization
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.training.optimization import configs
from official_ext.training.optimization import groups as groups_lib
from tests import tiers
from tests.training.loop import harness

LR = 0.05
UNIMPLEMENTED = {'slide', 'adafactor'}  # In Model Garden's published package these are names without a class.
# The setter of the weight decay of those that have one.
DECAYS = {
  'adamw': dict(weight_decay_rate=0.1),
  'lamb': dict(weight_decay_rate=0.1),
  'lars': dict(weight_decay_rate=0.1),
  'adamw_experimental': dict(weight_decay=0.1),
  'lion': dict(weight_decay=0.1),
  'muon': dict(weight_decay=0.1),
  'stable_adamw': dict(weight_decay=0.1),
}
FIELDS = {
  'sgd': dict(momentum=0.9),
  'sgd_experimental': dict(momentum=0.9, nesterov=True),
  'rmsprop': dict(momentum=0.5),
  'stable_adamw': dict(slot_dtype='float32'),
  'adamw': dict(gradient_clip_norm=0.0),
  'adamw_experimental': dict(global_clipnorm=None),
  'lars': dict(eeta=0.1),
}
KINDS = sorted({field.name for field in dataclasses.fields(configs.OptimizerConfig)} - {'type'} - UNIMPLEMENTED)
GROUPS = (
  dict(patterns=('^slow/',), learning_rate_scale=0.25),
  dict(patterns=('bias$', '^free/kernel$'), weight_decay=False),
  dict(patterns=('^frozen/',), frozen=True),
  dict(patterns=('^fast/',), learning_rate_scale=3.0, weight_decay=False),
)
NAMES = ('slow/kernel', 'free/kernel', 'free/bias', 'frozen/kernel', 'fast/kernel', 'other/kernel')


def groups_of(*groups):
  return tuple(configs.ParameterGroupConfig(**group) for group in groups)


def make(kind, groups=(), learning_rate=LR, decays=True, **fields):
  config = configs.OptimizationConfig(
    {
      'optimizer': {'type': kind, kind: {**FIELDS.get(kind, {}), **(DECAYS.get(kind, {}) if decays else {}), **fields}},
      'learning_rate': {'type': 'constant', 'constant': {'learning_rate': learning_rate}},
    }
  )
  factory = optimization.OptimizerFactory(config)
  optimizer = factory.build_optimizer(factory.build_learning_rate())
  groups_lib.install(groups_of(*groups), optimizer)
  return optimizer


def initial(name):
  rng = np.random.default_rng(len(name) + NAMES.index(name))
  return rng.normal(size=(4,) if name.endswith('bias') else (4, 3)).astype(np.float32)


def gradient(name, step):
  rng = np.random.default_rng(1000 * step + NAMES.index(name))
  return rng.normal(size=initial(name).shape).astype(np.float32)


def run(optimizer, names, num_steps=4):
  """The weights after some steps of gradients that do not depend on the weights, by name."""
  variables = {name: tf.Variable(initial(name), name=name) for name in names}
  for step in range(num_steps):
    optimizer.apply_gradients([(tf.constant(gradient(name, step)), variables[name]) for name in names])
  return {name: variable.numpy() for name, variable in variables.items()}


@tiers.parametrize('kind', KINDS, fast=1)
def test_a_group_is_trained_as_by_an_optimizer_of_its_own(kind):
  found = run(make(kind, GROUPS), NAMES)
  expected = {
    **run(make(kind, learning_rate=LR / 4), ['slow/kernel']),
    **run(make(kind, decays=False), ['free/kernel', 'free/bias']),
    **run(make(kind, learning_rate=LR * 3, decays=False), ['fast/kernel']),
    **run(make(kind), ['other/kernel']),
    'frozen/kernel': initial('frozen/kernel'),
  }
  for name in NAMES:
    np.testing.assert_allclose(found[name], expected[name], rtol=2e-5, atol=2e-6, err_msg=name)
  assert found['frozen/kernel'].tobytes() == initial('frozen/kernel').tobytes()
  if kind in DECAYS:  # Weight decay made a difference.
    assert np.abs(found['free/kernel'] - run(make(kind), ['free/kernel'])['free/kernel']).max() > 1e-4


@pytest.mark.parametrize('kind', ['sgd', 'adam', 'adamw', 'adamw_experimental', 'lamb', 'lion'])
def test_sparse_gradients_follow_their_group(kind):
  sparse = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([1, 3]), tf.constant([4, 3]))
  found = []
  for groups, rate in ((GROUPS, LR), ((), LR / 4)):
    optimizer, variable = make(kind, groups, rate), tf.Variable(initial('slow/kernel'), name='slow/kernel')
    for _ in range(3):
      optimizer.apply_gradients([(sparse, variable)])
    found.append(variable.numpy())
  np.testing.assert_allclose(*found, rtol=2e-5, atol=2e-6)
  assert np.abs(found[0] - initial('slow/kernel')).max() > 1e-3


SHAPES = {
  'plain': dict(enable_xla=False),
  'fused': dict(steps_per_execution=2),
  'split': dict(replicas='two'),
  'plain_two': dict(enable_xla=False, replicas='two'),
}
LIMIT = 0.1  # Below every norm of the bias's gradient that occurs.
OF_LINEAR_MODEL = [dict(patterns=['kernel'], frozen=True), dict(patterns=['^dense/bias$'], learning_rate_scale=0.5)]


@tiers.parametrize(
  'shape', ['fused', 'plain_two', *(pytest.param(name, marks=pytest.mark.soak) for name in ('plain', 'split'))], fast=1
)
def test_groups_in_every_shape_of_the_step(shape):
  trainer = harness.make_trainer(
    optimizer=lambda: harness.sgd(global_clipnorm=LIMIT),
    accumulation=2,
    trainer_config=dict(optimizer_config={'parameter_groups': OF_LINEAR_MODEL}),
    **SHAPES[shape],
  )
  logs = harness.train(trainer, 5)

  norms = []

  def of_bias(gradients):  # SGD is linear: half the gradient is half the learning rate.
    norms.append(harness.norm(gradients[1:]))
    return [0 * gradients[0], 0.5 * gradients[1] * min(1, LIMIT / norms[-1])]

  reference = harness.Reference(harness.sgd(), trainer.task.data, 16, of_bias).train(5)
  kernel, bias = harness.weights_of(trainer)
  assert kernel.tobytes() == harness.initial_weights()[0].tobytes()
  np.testing.assert_allclose(bias, reference.weights[1], rtol=1e-5, atol=1e-6)
  assert min(norms) > LIMIT and np.abs(bias - harness.initial_weights()[1]).max() > 0.01
  np.testing.assert_allclose(logs['grad_norm'], np.mean(norms), rtol=1e-5)  # Without the frozen.


@pytest.mark.parametrize(
  ('kind', 'shape'), [('stable_adamw', 'split'), pytest.param('adamw', 'plain_two', marks=pytest.mark.soak)]
)
def test_groups_of_an_optimizer_with_weight_decay(kind, shape):
  groups = [dict(patterns=['kernel'], frozen=True), dict(patterns=['bias'], weight_decay=False)]
  trainer = harness.make_trainer(
    optimizer=lambda: make(kind, epsilon=0.1),
    trainer_config=dict(optimizer_config={'parameter_groups': groups}),
    **SHAPES[shape],
  )
  harness.train(trainer, 4)
  reference = harness.Reference(
    make(kind, decays=False, epsilon=0.1), trainer.task.data, 8, lambda g: [0 * g[0], g[1]], np.float32
  )
  reference.train(4)
  kernel, bias = harness.weights_of(trainer)
  assert kernel.tobytes() == harness.initial_weights()[0].tobytes()
  np.testing.assert_allclose(bias, reference.weights[1], rtol=1e-4, atol=1e-5)


def test_groups_under_loss_scaling_and_in_a_task_that_owns_its_updates():
  class Twice(harness.LinearTask):
    def train_step(self, inputs, model, optimizer, metrics=None):
      super().train_step(inputs, model, optimizer, metrics)
      return super().train_step(inputs, model, optimizer, metrics)

  config = dict(optimizer_config={'parameter_groups': OF_LINEAR_MODEL})
  for task_cls, wrap, num_updates in (
    (Twice, lambda optimizer: optimizer, 2),
    (harness.LinearTask, tf_keras.mixed_precision.LossScaleOptimizer, 1),
  ):
    trainer = harness.make_trainer(
      task_cls, optimizer=lambda wrap=wrap: wrap(harness.sgd(0.1, 0.0)), enable_xla=False, trainer_config=config
    )
    harness.train(trainer, 1)
    weights = [w.astype(np.float64) for w in harness.initial_weights()]
    for _ in range(num_updates):
      batch = harness.global_batch(trainer.task.data, 0, 8)
      weights[1] -= 0.05 * harness.softmax_regression(weights, batch)[1][1]
    kernel, bias = harness.weights_of(trainer)
    assert kernel.tobytes() == harness.initial_weights()[0].tobytes()
    np.testing.assert_allclose(bias, weights[1], rtol=1e-5)


def test_an_update_that_is_compiled_by_itself_follows_its_group():
  variable = tf.Variable(initial('slow/kernel'), name='slow/kernel')
  optimizer = make('adamw_experimental', GROUPS, jit_compile=True)
  optimizer.apply_gradients([(tf.constant(gradient('slow/kernel', 0)), variable)])
  expected = run(make('adamw_experimental', learning_rate=LR / 4), ['slow/kernel'], 1)['slow/kernel']
  np.testing.assert_allclose(variable.numpy(), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
  ('groups', 'message'),
  [
    (
      [dict(patterns=['kernel']), dict(patterns=['bias', 'encoder'])],
      "parameter_groups.1.patterns.1: 'encoder' matches none of the 2 trainable variables: dense/kernel, dense/bias",
    ),
    (
      [dict(patterns=['kernel']), dict(patterns=['dense/k'])],
      "parameter_groups.1.patterns.0: 'dense/k' matches only variables that belong to groups before it",
    ),
    ([dict(patterns=['dense'], frozen=True)], 'all trainable variables are frozen, nothing is left to train'),
  ],
)
def test_groups_that_do_not_fit_the_model_are_refused(groups, message):
  with pytest.raises(errors.UserError) as error:
    harness.make_trainer(trainer_config=dict(optimizer_config={'parameter_groups': groups}))
  assert str(error.value).startswith('trainer.optimizer_config.parameter_groups') and message in str(error.value)


def test_groups_of_a_model_that_is_built_by_its_first_call():
  class Late(tf_keras.Model):
    def __init__(self):
      super().__init__()
      self.dense = tf_keras.layers.Dense(harness.NUM_CLASSES, name='dense')

    def call(self, inputs):
      return self.dense(inputs)

  class Task(harness.LinearTask):
    model_fn = Late

  make_trainer = lambda pattern: harness.make_trainer(
    Task,
    enable_xla=False,
    trainer_config=dict(optimizer_config={'parameter_groups': [dict(patterns=[pattern], frozen=True)]}),
  )
  with pytest.raises(errors.UserError, match='matches none'):
    harness.train(make_trainer('encoder'), 1)
  trainer = make_trainer('kernel')
  harness.train(trainer, 1)
  before = harness.weights_of(trainer)
  harness.train(trainer, 2)
  after = harness.weights_of(trainer)
  assert before[0].tobytes() == after[0].tobytes() and np.abs(before[1] - after[1]).max() > 1e-3


def test_parts_that_a_model_lists_for_checkpoints_precede_the_names():
  """As in Model Garden's models, whose variables do not say which part they belong to."""
  inputs = tf_keras.Input([3])
  backbone = tf_keras.Sequential([tf_keras.layers.Dense(4, name='dense')])
  model = tf_keras.Model(inputs, tf_keras.layers.Dense(2, name='dense_1')(backbone(inputs)))
  model.checkpoint_items = {'backbone': backbone}
  groups = groups_lib.ParameterGroups(groups_of(dict(patterns=['^backbone/'], learning_rate_scale=0.1)), model)
  groups.check(model.trainable_variables)
  scales = [groups.group_of(variable).learning_rate_scale for variable in model.trainable_variables]
  assert scales == [0.1, 0.1, 1.0, 1.0]


def test_names_are_those_of_the_variable_not_of_its_copies():
  with harness.strategy('two').scope():
    variable = tf.Variable(tf.zeros([2]), name='dense/kernel')
  copies = [harness.strategy('two').experimental_local_results(variable)[i] for i in range(2)]
  assert [groups_lib.name_of(v) for v in (variable, *copies)] == ['dense/kernel'] * 3
  assert groups_lib.of(make('sgd')) is None


class Container(tf_keras.Model):
  """Two networks whose variables have the same names, and a list."""

  def __init__(self):
    super().__init__()
    self.encoder = tf_keras.Sequential([tf_keras.Input((2,)), tf_keras.layers.Dense(3, name='dense')])
    self.decoder = tf_keras.Sequential([tf_keras.Input((3,)), tf_keras.layers.Dense(2, name='dense')])
    self.heads = [tf_keras.Sequential([tf_keras.Input((2,)), tf_keras.layers.Dense(1, name='out')]) for _ in range(2)]


@pytest.mark.parametrize('optimizer_cls', [tf_keras.optimizers.legacy.SGD, tf_keras.optimizers.SGD])
def test_patterns_find_the_networks_of_a_container_by_attribute(optimizer_cls):
  model, optimizer = Container(), optimizer_cls(LR)
  names = groups_lib.by_attribute(model)
  assert [names[groups_lib.key_of(v)] for v in model.trainable_variables] == [
    'encoder/dense/kernel',
    'encoder/dense/bias',
    'decoder/dense/kernel',
    'decoder/dense/bias',
    'heads/0/out/kernel',
    'heads/0/out/bias',
    'heads/1/out/kernel',
    'heads/1/out/bias',
  ]
  groups = [
    configs.ParameterGroupConfig(patterns=('^encoder/', '^heads/1/'), frozen=True),
    configs.ParameterGroupConfig(patterns=('^dense/kernel$',), learning_rate_scale=0.5),
  ]  # By its own name.
  installed = groups_lib.install(groups, optimizer, model)
  installed.check(model.trainable_variables)
  before = [v.numpy() for v in model.trainable_variables]
  optimizer.apply_gradients([(tf.ones_like(v), v) for v in model.trainable_variables])
  steps = [float((b - v.numpy()).mean()) / LR for b, v in zip(before, model.trainable_variables)]
  np.testing.assert_allclose(steps, [0, 0, 0.5, 1, 1, 1, 0, 0], atol=1e-5)


@pytest.mark.parametrize('optimizer_cls', [tf_keras.optimizers.legacy.SGD, tf_keras.optimizers.SGD])
def test_patterns_find_the_networks_of_a_container_on_every_replica(optimizer_cls):
  strategy = harness.strategy('two')
  with strategy.scope():
    model, optimizer = Container(), optimizer_cls(LR)
    groups_lib.install(
      [configs.ParameterGroupConfig(patterns=('^encoder/',), learning_rate_scale=0.5)], optimizer, model
    )
    before = [v.numpy() for v in model.trainable_variables]
  strategy.run(lambda: optimizer.apply_gradients([(tf.ones_like(v), v) for v in model.trainable_variables]))
  for start, variable in zip(before, model.trainable_variables):
    steps = [(start - copy.numpy()).mean() / LR for copy in strategy.experimental_local_results(variable)]
    assert steps[0] == pytest.approx(steps[1], rel=1e-5), variable.name
  assert (before[0] - model.trainable_variables[0].numpy()).mean() / LR == pytest.approx(1.0, rel=1e-4)  # 0.5 of 2.
