"""The private members of TensorFlow, tf_keras, Model Garden and Orbit in use exist, and are used in one place."""

import ast
import inspect
import pathlib
import re

import numpy as np
from official.core import base_task
from official.core import base_trainer
from official.core import exp_factory
from official.core import train_utils
from official.modeling.hyperparams import base_config
from official.modeling.optimization import ema_optimizer
from official.modeling.optimization import lamb
from official.modeling.optimization import legacy_adamw
from official.vision.serving import detection
from official.vision.serving import image_classification
from official.vision.serving import semantic_segmentation
import orbit
import pytest
import tensorflow as tf
from tensorflow.python.framework import config as framework_config
import tf_keras

from official_ext.base import model_garden_internals
from official_ext.base import tf_internals
from tests.training.loop import small_run

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULES = ('tf_internals.py', 'model_garden_internals.py')
INSIDE = re.compile(r'tensorflow\.(python|compiler|core|tools)\b|tf_keras\.src|__internal__')
new, legacy = tf_keras.optimizers, tf_keras.optimizers.legacy


def of_others(tree):
  """The names with one underscore in front that code reads of objects other than `self`, with their lines."""
  for node in ast.walk(tree):
    owner, name = None, ''
    if isinstance(node, ast.Attribute):
      owner, name = node.value, node.attr
    elif isinstance(node, ast.Call) and getattr(node.func, 'id', '') in ('getattr', 'hasattr', 'setattr'):
      owner, name = node.args[0], str(getattr(node.args[1], 'value', ''))
    if re.match('_[a-zA-Z]', name) and getattr(owner, 'id', '') not in ('self', 'cls'):
      yield name, node.lineno


def leaks(root):
  """The places of private access in other modules, as lines of text."""
  paths = sorted((root / 'official_ext').rglob('*.py'))
  own = [path for path in paths if path.name in MODULES]
  names = {name for path in own for name, _ in of_others(ast.parse(path.read_text()))}
  assert '_check_async_thread_error' in names and '_REGISTERED_CONFIGS' in names
  found = []
  for path in (path for path in paths if path not in own):
    text = path.read_text()
    found += [f'{path.name}: {line.strip()}' for line in text.splitlines() if INSIDE.search(line)]
    found += [
      f'{path.name}:{line}: {name}'
      for name, line in of_others(ast.parse(text))
      if name in names and not _of_base(text.splitlines()[line - 1], name)
    ]
  return found


def _of_base(line, name):
  return f'super().{name}' in line  # Listed as inherited.


def test_no_other_module_reaches_inside():
  assert leaks(ROOT) == []


@pytest.mark.parametrize(
  'line',
  [
    'from tensorflow.python.eager import context',
    'tf.__internal__.train',
    'variable._shared_name',
    "getattr(checkpoint, '_async_checkpointer_impl', None)",
    'exp_factory._REGISTERED_CONFIGS',
  ],
)
def test_a_module_that_reaches_inside_is_found(tmp_path, line):
  folder = tmp_path / 'official_ext'
  folder.mkdir()
  for name in MODULES:
    (folder / name).write_text((ROOT / 'official_ext/base' / name).read_text())
  (folder / 'other.py').write_text(f'{line}\n')
  assert len(leaks(tmp_path)) == 1


def inherited():
  """(class, name, an object of the class)."""
  optimizer = new.SGD(0.1, momentum=0.5)
  averaged = ema_optimizer.ExponentialMovingAverage(legacy.SGD(0.1))
  averaged.shadow_copy(built_model())
  objects = {
    tf.summary.SummaryWriter: tf.summary.create_file_writer,
    tf_keras.optimizers.Optimizer: lambda folder: optimizer,
    legacy.Optimizer: lambda folder: legacy.SGD(0.1),
    tf_keras.layers.Layer: lambda folder: tf_keras.layers.Layer(),
    ema_optimizer.ExponentialMovingAverage: lambda folder: averaged,
    orbit.Controller: lambda folder: orbit.Controller,
    base_task.Task: lambda folder: small_run.make_task(small_run.make_params()),
    train_utils.ExperimentParser: train_utils.ExperimentParser,
    detection.DetectionModule: lambda folder: detection.DetectionModule,
    image_classification.ClassificationModule: lambda folder: image_classification.ClassificationModule,
    semantic_segmentation.SegmentationModule: lambda folder: semantic_segmentation.SegmentationModule,
  }
  optimizer.build(built_model().trainable_variables)
  return objects


def built_model():
  return tf_keras.Sequential([tf_keras.Input((3,)), tf_keras.layers.Dense(2)])


def test_what_subclasses_use_of_their_bases_exists(tmp_path):
  make = inherited()
  listed = {**tf_internals.INHERITED, **model_garden_internals.inherited()}
  assert set(make) | {base_trainer.Trainer} == set(listed)
  for cls, make_one in make.items():
    example = make_one(str(tmp_path / cls.__name__))
    assert [name for name in listed[cls] if not hasattr(example, name)] == [], cls
  source = inspect.getsource(base_trainer)  # An object of it needs a whole experiment.
  assert [name for name in listed[base_trainer.Trainer] if f'self.{name} = ' not in source] == []


def test_checkpoints_report_asynchronous_failures_and_hold_their_graph(tmp_path):
  checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
  assert tf_internals.async_save_error(checkpoint) is None
  tf_internals.raise_async_save_error(checkpoint)
  options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
  path = checkpoint.write(str(tmp_path / 'ckpt'), options=options)
  checkpoint.sync()
  helper = checkpoint._async_checkpointer_impl
  assert helper._async_error is None
  reader = tf.train.load_checkpoint(path)
  graph = tf_internals.TrackableObjectGraph.FromString(reader.get_tensor(tf_internals.OBJECT_GRAPH_KEY))
  assert 'v' in [child.local_name for child in graph.nodes[0].children]
  helper._async_error = tf.errors.UnknownError(None, None, 'disk full')
  assert 'disk full' in str(tf_internals.async_save_error(checkpoint))
  with pytest.raises(tf.errors.UnknownError, match='disk full'):
    tf_internals.raise_async_save_error(checkpoint)
  assert tf_internals.async_save_error(checkpoint) is None


def test_names_of_layers_are_given_back():
  make = lambda: [tf_keras.layers.Dense(1).name for _ in range(2)]
  tf_keras.backend.reset_uids()
  with tf_internals.layer_names_given_back():
    first = make()
  assert make() == first == ['dense', 'dense_1']
  with tf_internals.layer_names_given_back():
    assert make() == ['dense_2', 'dense_3']
  assert make() == ['dense_2', 'dense_3']


def test_operations_and_their_gradients_are_listed():
  operations, gradients = [], []

  def hear(op_type, inputs, attrs, outputs, op_name=None, graph=None):
    operations.append((op_type, tf_internals.tensor_id(outputs[0]), graph))

  def gradient(op_name, attr_tuple, num_inputs, inputs, outputs, *args):
    gradients.append(op_name)
    return tf_internals.gradient_function(op_name, attr_tuple, num_inputs, inputs, outputs, *args)

  x = tf.constant(3.0)
  tf_internals.add_op_callback(hear)
  tf_internals.register_gradient_function(gradient)
  try:
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = tf.square(x)
    assert float(tape.gradient(y, x)) == 6.0
  finally:
    tf_internals.register_gradient_function(tf_internals.gradient_function)
    tf_internals.remove_op_callback(hear)
  assert ('Square', tf_internals.tensor_id(y), None) in operations and gradients == ['Square']
  assert isinstance(y, tf_internals.EagerTensor) and isinstance(tf.Variable(1.0), tf_internals.ResourceVariable)
  for cls in (tf_internals.EagerTensor, tf_internals.ResourceVariable):
    assert hasattr(vars(cls)['numpy'], '__code__'), cls


def test_a_part_of_a_tensor_is_written_in_place():
  write = tf.function(tf_internals.dynamic_update_slice, jit_compile=True)
  written = write(tf.zeros([2, 4]), tf.ones([2, 2]), tf.constant([0, 1]))
  np.testing.assert_array_equal(written, [[0, 1, 1, 0]] * 2)


def test_graphs_have_their_purpose():
  kinds = []

  def body(i):
    kinds.append(type(tf.compat.v1.get_default_graph()))
    return tf.cond(i > 0, lambda: kinds.append(type(tf.compat.v1.get_default_graph())) or i + 1, lambda: i + 1)

  tf.function(lambda: tf.while_loop(lambda i: i < 3, body, [0])).get_concrete_function()
  assert kinds[0] is tf_internals.WhileBodyGraph and issubclass(kinds[1], tf_internals.ControlFlowGraph)
  assert issubclass(tf_internals.WhileBodyGraph, tf_internals.ControlFlowGraph)


@pytest.mark.parametrize(
  'module, names',
  [
    (
      tf_internals.random_ops,
      (
        'random_uniform',
        'random_uniform_int',
        'random_standard_normal',
        'truncated_normal',
        'random_shuffle',
        'multinomial',
        'random_gamma',
        'random_poisson_v2',
      ),
    ),
    (tf_internals.image_ops, ('sample_distorted_bounding_box_v2', 'stateless_sample_distorted_bounding_box')),
    (tf_internals.custom_gradients, (*tf_internals.CUSTOM_GRADIENT_CALLERS, tf_internals.DEPENDENT_VARIABLES)),
  ],
)
def test_functions_that_are_replaced_for_a_while_exist(module, names):
  assert [name for name in names if not callable(getattr(module, name, None))] == []


def test_random_ops_are_called_by_way_of_their_module(monkeypatch):
  quarters = lambda shape, dtype, **_: tf.zeros(shape, dtype) + 0.25
  monkeypatch.setattr(tf_internals.random_ops, 'random_uniform', quarters)
  np.testing.assert_array_equal(tf.random.uniform([2]), [0.25, 0.25])


def test_functions_with_a_custom_gradient_are_called_by_way_of_their_module(monkeypatch):
  called = []
  for name in tf_internals.CUSTOM_GRADIENT_CALLERS:
    original = getattr(tf_internals.custom_gradients, name)
    assert list(inspect.signature(original).parameters) == ['f', 'args', 'kwargs']
    monkeypatch.setattr(
      tf_internals.custom_gradients,
      name,
      lambda f, args, kwargs, name=name, original=original: (
        called.append((name, f.__qualname__)),
        original(f, args, kwargs),
      )[1],
    )
  again = tf.recompute_grad(lambda x: x * 2)
  again(tf.constant(1.0))
  tf.function(lambda: again(tf.constant(1.0))).get_concrete_function()
  assert sorted(name for name, _ in called) == ['_eager_mode_decorator', '_graph_mode_decorator']
  assert all(qualname.endswith('recompute_grad.<locals>.inner') for _, qualname in called)


def test_variables_datasets_models_and_callbacks_have_what_is_asked():
  variable = tf.Variable([1.0], name='weights')
  function = tf.function(lambda: variable.assign([2.0])).get_concrete_function()
  handles = [tensor for tensor in function.captured_inputs if tensor.dtype == tf.resource]
  assert [tf_internals.dtype_of_variable_at(handle) for handle in handles] == [tf.float32]
  assert tf_internals.shared_name(variable) == 'weights' and tf_internals.unique_id(variable).startswith('weights')
  assert tf_internals.whole_variable(variable) is variable
  with tf_internals.make_strategy(
    tf.distribute.MirroredStrategy, devices=tf.config.list_logical_devices('CPU')[:2]
  ).scope():
    mirrored = tf.Variable(1.0)
    statistics = tf.Variable(1.0, synchronization=tf.VariableSynchronization.ON_READ, trainable=False)
  assert [tf_internals.whole_variable(copy) is mirrored for copy in mirrored.values] == [True, True]
  assert tf_internals.whole_variable(mirrored) is mirrored
  assert isinstance(statistics, tf_internals.SyncOnReadVariable)
  assert not isinstance(mirrored, tf_internals.SyncOnReadVariable)
  dataset = tf.data.Dataset.range(3)
  assert list(tf_internals.inputs_of(dataset.batch(2))) == [dataset] and not tf_internals.inputs_of(dataset)
  inputs = tf_keras.Input((3,))
  assert tf_internals.is_functional(tf_keras.Model(inputs, tf_keras.layers.Dense(1)(inputs)))
  assert not tf_internals.is_functional(type('Own', (tf_keras.Model,), {})())
  assert not tf_internals.has_batch_hooks(tf_keras.callbacks.CSVLogger('unused'))
  assert tf_internals.has_batch_hooks(tf_keras.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: None))
  assert tf_internals.is_op_determinism_enabled() in (False, True)


def test_a_replica_updates_its_parts_inside_a_function_of_its_own():
  """Also variables whose values TensorFlow would let the replicas meet for. Both add 2, then 4 to their own parts."""
  strategy = tf_internals.make_strategy(
    tf.distribute.MirroredStrategy, devices=tf.config.list_logical_devices('CPU')[:2]
  )
  expected = {'NONE': 1 + 2 + 4, 'ONLY_FIRST_REPLICA': 1 + 2 + 4, 'MEAN': 1 + 2 + 4, 'SUM': 1 + 2 * 2 + 4}
  with strategy.scope():
    variables = {
      name: tf.Variable([1.0], aggregation=getattr(tf.VariableAggregation, name), trainable=False) for name in expected
    }

  @tf.function(autograph=False)
  def update():
    with tf_internals.updates_here(strategy):
      for variable in variables.values():
        assert any(tf_internals.part_here(variable) is part for part in variable.values)
        variable.assign_add(tf.constant([2.0]))
        strategy.extended.update(variable, lambda part: part.assign_add([4.0]), group=False)

  # `run` would trace a function of TensorFlow's that it gets for all replicas at once.
  tf.function(lambda: strategy.run(lambda: update()), autograph=False)()
  for name, variable in variables.items():
    assert [part.numpy().tolist() for part in variable.values] == [[expected[name]]] * 2, name

  # After the context, replicas meet again, which no function inside another one can contain.
  function = tf.function(lambda: variables['MEAN'].assign_add(tf.constant([2.0])), autograph=False)
  with pytest.raises(RuntimeError, match='merge_call'):
    tf.function(lambda: strategy.run(lambda: function()), autograph=False)()


def waiting_for_an_argument(x, y):
  with tf.control_dependencies([y]):
    waited = x + 1
  if waited > 0:  # Converted by AutoGraph.
    waited += tf.cast(y, tf.int64)
  return {'x': waited, 'drawn': tf.random.uniform([], seed=1)}


def test_determinism_covers_maps_that_wait_for_an_argument():
  """TensorFlow alone: input[0] == '^args_1', is not found."""

  def elements():
    tf.random.set_seed(0)
    dataset = tf.data.Dataset.range(200).map(lambda x: (x, tf.cast(x, tf.int32)))
    dataset = dataset.map(waiting_for_an_argument, num_parallel_calls=8)
    return [(int(each['x']), float(each['drawn'])) for each in dataset]

  tf_internals.enable_op_determinism()
  try:
    first = elements()
    assert first == elements() and [x for x, _ in first] == [2 * x + 1 for x in range(200)]
    assert len({drawn for _, drawn in first}) == 200
    ragged = tf.data.Dataset.from_tensors(tf.ragged.constant([[1], [2, 3]])).window(1)
    assert [int(window.reduce(0, lambda total, row: total + row[1, 1])) for window in ragged.map(lambda x: x)] == [3]
  finally:
    framework_config.disable_op_determinism()
    tf.random.set_seed(None)


def test_a_layers_random_generator_can_be_made_stateless():
  layer = tf_keras.layers.Dropout(0.5)
  generator = tf_internals.random_generator_of(layer)
  assert tf_internals.random_generator_of(tf_keras.layers.Dense(1)) is None
  tf_internals.make_stateless(generator)
  assert generator._rng_type == 'stateless'
  seeds = []
  generator.make_seed_for_stateless_op = lambda: seeds.append(1) or tf.constant([1, 2], tf.int64)
  layer(tf.ones([4]), training=True)
  assert seeds


def test_code_is_converted_as_inside_a_function():
  def double_if_positive(x):
    if x > 0:
      x *= 2
    return x

  @tf_internals.autograph_unconverted
  def in_context(x):
    with tf_internals.autograph_in_graphs():
      return tf_internals.autograph_called(double_if_positive)(x)

  function = tf.function(in_context, autograph=False)
  assert [float(function(tf.constant(x))) for x in (2.0, -1.0)] == [4.0, -1.0]


@pytest.mark.slow
def test_what_is_left_as_it_is_calls_what_is_converted():
  def double_if_positive(x):
    if x > 0:
      x *= 2
    return x

  class Layer(tf_keras.layers.Layer):
    def call(self, x):
      return double_if_positive(x)

  layer = Layer()

  @tf_internals.autograph_unconverted
  def outer(x):
    return layer(x) + tf_internals.autograph_called(double_if_positive)(x)

  called_by = lambda function: [float(function(tf.constant(x))) for x in (2.0, -1.0)]
  files = []
  tf_internals.autograph_called(lambda: files.append(inspect.stack()[0].filename))()
  assert files == [__file__]  # Python alone runs it.
  assert called_by(tf.function(outer)) == called_by(outer) == [8.0, -2.0]

  def in_context(x):
    with tf_internals.autograph_in_graphs():
      return outer(x)

  assert called_by(tf.function(in_context, autograph=False)) == [8.0, -2.0]
  converted = tf.function(lambda x: outer(x) if x > -10 else x)  # By a caller that AutoGraph converts.
  assert called_by(converted) == [8.0, -2.0]

  @tf_internals.autograph_unconverted
  def fails(x):
    return double_if_positive(x)

  with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
    tf.function(fails)(tf.constant(1.0))


@pytest.mark.parametrize('cls', [tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy])
def test_the_keys_of_a_strategys_collective_operations_can_be_chosen(cls):
  one, other = (tf_internals.make_strategy(cls) for _ in range(2))
  assert type(one) is cls and one.num_replicas_in_sync == other.num_replicas_in_sync
  keys = [strategy.extended._collective_keys._group_key for strategy in (cls(), one, other)]
  assert keys[0] < 1000 < keys[1] < keys[2]


def test_the_coordination_service_has_what_workers_call():
  context = tf_internals.eager_context()
  expected = {
    'configure_coordination_service': [
      'service_type',
      'service_leader',
      'cluster_register_timeout_in_ms',
      'heartbeat_timeout_in_ms',
      'coordinated_jobs',
    ],
    'set_config_key_value': ['key', 'value'],
    'get_config_key_value': ['key', 'timeout_in_ms'],
    'get_task_states': ['job_configs'],
    'report_error_to_cluster': ['error_code', 'error_message'],
  }
  for name, parameters in expected.items():
    assert set(parameters) <= set(inspect.signature(getattr(context, name)).parameters), name
  assert tf_internals.CoordinatedJob(name='worker', num_tasks=2).num_tasks == 2


@pytest.mark.parametrize('make', [new.Adam, legacy.Adam])
def test_all_updates_come_to_the_updating_classes(make, monkeypatch):
  heard = []
  for cls in tf_internals.UPDATING_CLASSES:
    original = vars(cls)['apply_gradients']
    monkeypatch.setattr(
      cls,
      'apply_gradients',
      lambda self, pairs, *args, original=original, **kwargs: (
        heard.append(self),
        original(self, pairs, *args, **kwargs),
      )[1],
    )
  optimizer, variable = make(0.1), tf.Variable(1.0)
  tf_keras.mixed_precision.LossScaleOptimizer(optimizer).apply_gradients([(tf.constant(1.0), variable)])
  assert heard == [optimizer]


@pytest.mark.parametrize('make', [new.SGD, legacy.SGD])
def test_clipping_and_learning_rates_can_be_replaced(make):
  optimizer, variable = make(0.1, global_clipnorm=1.0), tf.Variable(1.0)
  assert tf_internals.is_legacy(optimizer) == (make is legacy.SGD)
  limits = []
  tf_internals.replace_global_clipping(
    optimizer, lambda gradients, limit: limits.append(limit) or [gradient * 0 for gradient in gradients]
  )
  tf_internals.create_legacy_variables(optimizer, [variable])
  optimizer.apply_gradients([(tf.constant(5.0), variable)])
  assert limits == [1.0] and float(variable) == 1.0
  assert float(tf_internals.learning_rate_or_schedule(optimizer)) == pytest.approx(0.1)
  rates = tf_internals.hyperparameter_variables(optimizer)
  assert any(float(rate) == pytest.approx(0.1) for rate in rates)
  decay = tf_keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
  scheduled = make(decay)
  assert tf_internals.learning_rate_or_schedule(scheduled) is decay
  tf_internals.replace_schedule(scheduled, tf_keras.optimizers.schedules.ExponentialDecay(2.0, 1, 0.5))
  scheduled.apply_gradients([(tf.constant(0.5), variable)])
  assert float(variable) == 0.0


@pytest.mark.parametrize('make', [new.Adam, legacy.Adam])
def test_an_optimizer_searches_for_equal_indices_only_if_asked(make):
  def after_an_update(are_unique):
    optimizer, variable = make(0.1), tf.Variable(tf.ones([3, 1]))
    tf_internals.replace_search_for_duplicates(optimizer, lambda: are_unique)
    gradient = tf.IndexedSlices(tf.ones([2, 1]), tf.constant([1, 1]), tf.constant([3, 1]))
    optimizer.apply_gradients([(gradient, variable)])
    return variable.numpy()[:, 0]

  # Adam's first step is lr * g / |g|; taken for two rows, the mean has 1 + 1, and that of squares 1^2 + 1^2.
  np.testing.assert_allclose(after_an_update(False), [1, 0.9, 1], rtol=1e-5)
  np.testing.assert_allclose(after_an_update(True), [1, 1 - 0.1 * 2 / 2**0.5, 1], rtol=1e-5)


def test_a_dynamic_loss_scale_shows_its_variables():
  scaled = tf_keras.mixed_precision.LossScaleOptimizer(legacy.SGD(0.1, momentum=0.5), initial_scale=8.0)
  assert 8.0 in [float(variable) for variable in tf_internals.loss_scale_variables(scaled)]
  assert tf_internals.loss_scale_variables(legacy.SGD(0.1)) == []
  inner = scaled.inner_optimizer
  tf_internals.create_legacy_variables(inner, [tf.Variable(1.0)])
  assert len(tf_internals.weights_of(inner)) == 2  # Iterations and a momentum.


def test_weight_decay_of_new_optimizers_can_be_asked_for_and_restricted():
  variables = [tf.Variable(1.0, name=name) for name in ('kernel', 'bias')]
  optimizer = new.SGD(0.1, weight_decay=0.5)
  optimizer.build(variables)
  tf_internals.restrict_weight_decay(optimizer, lambda variable: 'kernel' in variable.name)
  assert [tf_internals.uses_weight_decay(optimizer, variable) for variable in variables] == [True, False]
  assert not tf_internals.decays_in_its_own_way(optimizer)
  optimizer.apply_gradients([(tf.zeros([]), variable) for variable in variables])
  assert [float(variable) for variable in variables] == pytest.approx([0.95, 1.0])
  tf_internals.disable_weight_decay(optimizer)
  optimizer.apply_gradients([(tf.zeros([]), variable) for variable in variables])
  assert [float(variable) for variable in variables] == pytest.approx([0.95, 1.0])


@pytest.mark.parametrize(
  'make',
  [
    lambda: legacy_adamw.AdamWeightDecay(0.1, weight_decay_rate=0.5),
    lambda: lamb.LAMB(0.1, weight_decay_rate=0.5),
    lambda: legacy.SGD(0.1),
  ],
)
def test_updates_of_legacy_optimizers_can_be_wrapped(make):
  optimizer, asked, updated = make(), [], []
  tf_internals.wrap_legacy_weight_decay(optimizer, lambda uses: lambda name: asked.append(name) or uses(name))
  tf_internals.wrap_legacy_updates(optimizer, lambda variable, update: (updated.append(variable.name), update())[1])
  dense, sparse = tf.Variable(1.0, name='dense'), tf.Variable([[1.0], [2.0]], name='sparse')
  slices = tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([1]), tf.constant([2, 1]))
  optimizer.apply_gradients([(tf.constant(1.0), dense), (slices, sparse)])
  assert updated == ['dense:0', 'sparse:0'] and float(dense) < 1 and float(sparse[1, 0]) < 2
  assert bool(asked) == (not isinstance(optimizer, legacy.SGD))


def test_the_registry_and_the_locks_of_model_garden_are_there():
  assert model_garden_internals.registered_configs() is exp_factory._REGISTERED_CONFIGS
  model_garden_internals.registered_configs()['one'] = lambda: 'made'
  assert exp_factory.get_exp_config('one') == 'made'
  model_garden_internals.unregister_config('one')
  assert 'one' not in exp_factory._REGISTERED_CONFIGS
  config = base_config.Config()
  assert not model_garden_internals.is_locked(config)
  model_garden_internals.set_locked(config)
  assert model_garden_internals.is_locked(config)
  with pytest.raises(ValueError, match='locked'):
    config.anything = 1
  assert model_garden_internals.restrictions_of(base_config.Config(restrictions=['a < b'])) == ['a < b']
  assert model_garden_internals.is_valid_sequence([1, 2]) and not model_garden_internals.is_valid_sequence([[1], [2]])
  inner = legacy.SGD(0.1)
  assert model_garden_internals.averaged_optimizer(ema_optimizer.ExponentialMovingAverage(inner)) is inner
  assert model_garden_internals.averaged_optimizer(inner) is None


def test_a_saved_model_of_signatures_needs_no_call_in_training(tmp_path):
  class OnlyServes(tf_keras.Model):
    def call(self, inputs, masks=None, training=None):
      return inputs * tf.cast(masks, tf.float32) if training else inputs * 2.0  # No tensor is made of None.

  holder = tf.Module()
  holder.model = OnlyServes()
  holder.model(tf.ones([1, 3]))
  serve = tf.function(holder.model, input_signature=[tf.TensorSpec([None, 3], tf.float32, 'x')])
  signatures = {
    'serving_default': tf.function(lambda x: {'y': serve(x)}).get_concrete_function(serve.input_signature[0])
  }
  with pytest.raises(ValueError, match='None values not supported'):
    tf.saved_model.save(holder, str(tmp_path / 'traced'), signatures=signatures)
  tf_internals.save_signatures(holder, str(tmp_path / 'saved'), signatures)
  loaded = tf.saved_model.load(str(tmp_path / 'saved')).signatures['serving_default']
  np.testing.assert_array_equal(loaded(x=tf.ones([2, 3]))['y'], np.full([2, 3], 2.0))
