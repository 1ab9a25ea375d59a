"""Tests for distribute. Each process has one set of devices, so some cases run in a separate process."""

import json
import textwrap
import types

import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.training.config import definitions
from official_ext.training.config import parser
from official_ext.training.devices import device_types
from official_ext.training.devices import distribute


def _runtime(**values):
  return definitions.RuntimeConfig(**values)


_PRELUDE = """
import tensorflow as tf
from official_ext.base import errors
from official_ext.training.config import definitions as cfg
from official_ext.training.devices import distribute
"""


@pytest.fixture
def start(start_script):
  """start(code, **environment) -> the process that runs `code`, without GPUs and with no device made so far."""
  return lambda code, **env: start_script(_PRELUDE + textwrap.dedent(code), env=env)


def _printed(script):
  process = script.finish()
  assert process.returncode == 0, process.stderr
  return process.stdout.strip()


def test_auto_without_accelerator_is_one_cpu():
  strategy = distribute.get_strategy(_runtime())
  assert isinstance(strategy, tf.distribute.OneDeviceStrategy)
  assert distribute.describe(strategy) == '1 replica on CPU:0, OneDeviceStrategy, float32'


@pytest.mark.parametrize('name', ['auto', 'mirrored', 'MIRRORED'])
def test_virtual_cpus_are_mirrored(name):
  runtime = _runtime(distribution_strategy=name, num_virtual_cpus=3)
  distribute.configure(runtime)
  strategy = distribute.get_strategy(runtime)
  assert isinstance(strategy, tf.distribute.MirroredStrategy)
  assert strategy.num_replicas_in_sync == 3
  assert distribute.describe(strategy) == '3 replicas on CPU:0, CPU:1, CPU:2, MirroredStrategy, float32'


def test_replicas_reduce_to_their_sum():
  strategy = distribute.get_strategy(_runtime(distribution_strategy='mirrored', num_virtual_cpus=2))
  per_replica = strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group + 1)
  assert strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None).numpy() == 1 + 2


def test_strategies_of_one_process_do_not_take_each_others_reductions_for_their_own(start):
  printed = _printed(
    start("""
    distribute.configure(cfg.RuntimeConfig(num_virtual_cpus=3))
    kinds = [('mirrored', 2), ('mirrored', 2), ('mirrored', 3), *[('multi_worker_mirrored', 1)] * 2]
    of_the_user = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])
    made = [distribute.get_strategy(cfg.RuntimeConfig(distribution_strategy=k, num_virtual_cpus=n)) for k, n in kinds]
    for size, strategy in enumerate([of_the_user, *made], start=1):
      total = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce('sum', tf.ones([size])))
      print(*strategy.experimental_local_results(total)[0].numpy().astype(int))
  """)
  )
  assert printed.splitlines() == ['2', '2 2', '2 2 2', '3 3 3 3', '1 1 1 1 1', '1 1 1 1 1 1']


def test_explicit_names():
  assert isinstance(distribute.get_strategy(_runtime(distribution_strategy='mirrored')), tf.distribute.MirroredStrategy)
  one = distribute.get_strategy(_runtime(distribution_strategy='one_device', num_virtual_cpus=2))
  assert isinstance(one, tf.distribute.OneDeviceStrategy)
  off = distribute.get_strategy(_runtime(distribution_strategy='off'))
  assert not tf.distribute.has_strategy() and off is tf.distribute.get_strategy()
  assert distribute.describe(off) == '1 replica on CPU:0, no strategy, float32'


@pytest.mark.parametrize(
  ('values', 'field'),
  [
    ({'distribution_strategy': 'miror'}, 'runtime.distribution_strategy'),
    ({'distribution_strategy': 'parameter_server'}, 'runtime.distribution_strategy'),
    ({'num_gpus': 1}, 'runtime.num_gpus'),
    ({'num_gpus': -1}, 'runtime.num_gpus'),
    ({'distribution_strategy': 'mirrored', 'num_gpus': 2}, 'runtime.num_gpus'),
    ({'distribution_strategy': 'one_device', 'num_gpus': 2}, 'runtime.num_gpus'),
    ({'distribution_strategy': 'tpu'}, 'runtime.tpu'),
    ({'distribution_strategy': 'mirrored', 'all_reduce_alg': 'ring'}, 'runtime.all_reduce_alg'),
    ({'distribution_strategy': 'mirrored', 'all_reduce_alg': 'nccl'}, 'runtime.all_reduce_alg'),
    ({'distribution_strategy': 'multi_worker_mirrored', 'all_reduce_alg': 'hierarchical_copy'}, 'all_reduce_alg'),
    ({'distribution_strategy': 'mirrored', 'num_virtual_cpus': 5}, 'runtime.num_virtual_cpus'),
  ],
)
def test_what_is_not_there_names_the_field(values, field):
  with pytest.raises(errors.UserError, match=f'^(runtime.)?{field}: ') as raised:
    distribute.get_strategy(_runtime(**values))
  assert '\n' not in str(raised.value)


def test_a_mesh_refuses_gpus(monkeypatch):
  gpus = [tf.config.PhysicalDevice('/physical_device:GPU:0', 'GPU')]
  monkeypatch.setattr(tf.config, 'get_visible_devices', lambda kind=None: gpus if kind == 'GPU' else [])
  runtime = _runtime(mesh={'data': 2})
  with pytest.raises(errors.UserError) as raised:
    distribute.get_strategy(runtime)
  assert str(raised.value) == (
    'runtime.mesh: meshes are of CPUs, and this process sees GPUs, on which no mesh has run; remove runtime.mesh for a '
    'replica on each GPU (runtime.distribution_strategy=auto), or set CUDA_VISIBLE_DEVICES=-1 to take CPUs'
  )
  gpus.clear()
  assert distribute.describe(distribute.get_strategy(runtime), runtime) == 'mesh data 2 on 2 CPUs, float32'


@pytest.mark.parametrize(
  ('values', 'field'),
  [
    ({'mixed_precision_dtype': 'half'}, 'runtime.mixed_precision_dtype'),
    ({'loss_scale': 'dynamic'}, 'runtime.loss_scale'),
    ({'loss_scale': 128.0, 'mixed_precision_dtype': 'bfloat16'}, 'runtime.loss_scale'),
    ({'num_virtual_cpus': -1}, 'runtime.num_virtual_cpus'),
    ({'num_virtual_cpus': 64}, 'runtime.num_virtual_cpus'),
    ({'seed': -1}, 'runtime.seed'),
  ],
)
def test_configure_refuses(values, field):
  tf.config.list_logical_devices()  # From here on, devices cannot be changed.
  with pytest.raises(errors.UserError, match=f'^{field}: '):
    distribute.configure(_runtime(**values))


@pytest.mark.parametrize(
  ('dtype', 'policy'),
  [('float16', 'mixed_float16'), ('bfloat16', 'mixed_bfloat16'), ('float32', 'float32'), (None, 'float32')],
)
def test_mixed_precision(dtype, policy):
  before = tf_keras.mixed_precision.global_policy()
  try:
    distribute.configure(_runtime(mixed_precision_dtype=dtype))
    assert tf_keras.mixed_precision.global_policy().name == policy
    assert distribute.describe(distribute.get_strategy(_runtime())).endswith(policy)
  finally:
    tf_keras.mixed_precision.set_global_policy(before)


def test_seed_fixes_initial_weights():
  def weights(seed):
    distribute.configure(_runtime(seed=seed))
    return tf_keras.initializers.GlorotUniform()((4, 4)).numpy().tolist()

  assert weights(1) == weights(1) != weights(2)


def test_virtual_cpus_and_determinism_in_a_process_of_its_own(start):
  printed = _printed(
    start("""
    runtime = cfg.RuntimeConfig(num_virtual_cpus=2, deterministic=True)
    distribute.configure(runtime)
    print(distribute.describe(distribute.get_strategy(runtime)))
    from tensorflow.python.framework import config
    print(config.is_op_determinism_enabled(), len(tf.config.list_logical_devices('CPU')))
  """)
  )
  assert printed.splitlines() == ['2 replicas on CPU:0, CPU:1, MirroredStrategy, float32', 'True 2']


@pytest.mark.parametrize('name', ['mirrored', 'one_device', 'off'])
def test_a_cluster_is_not_left_unused(name, monkeypatch):
  tf_config = {'cluster': {'worker': ['a:1', 'b:1']}, 'task': {'type': 'worker', 'index': 0}}
  monkeypatch.setenv('TF_CONFIG', json.dumps(tf_config))
  with pytest.raises(errors.UserError, match=f'^runtime.distribution_strategy: {name} drives one process'):
    distribute.get_strategy(_runtime(distribution_strategy=name))


def test_auto_takes_parameter_servers_from_tf_config(start, unused_ports):
  chief, worker, ps = (f'localhost:{port}' for port in unused_ports(3))
  cluster = {'chief': [chief], 'worker': [worker], 'ps': [ps]}
  *_, chief_script = [  # The others serve until they are killed.
    start(
      """
      strategy = distribute.get_strategy(cfg.RuntimeConfig())
      print(type(strategy).__name__, distribute.describe(strategy).split()[0])
    """,
      TF_CONFIG=json.dumps({'cluster': cluster, 'task': {'type': job, 'index': 0}}),
    )
    for job in ('worker', 'ps', 'chief')
  ]
  assert _printed(chief_script) == 'ParameterServerStrategyV2 1'


def test_tf_config_that_is_no_json(monkeypatch):
  monkeypatch.setenv('TF_CONFIG', 'worker,ps')
  with pytest.raises(errors.UserError, match='^TF_CONFIG: '):
    distribute.get_strategy(_runtime())


def test_workers_that_are_connected_too_late_are_one_line(start, unused_ports):
  addresses = [f'localhost:{port}' for port in unused_ports(2)]
  scripts = [
    start(
      """
      tf.config.list_logical_devices()
      try:
        distribute.get_strategy(cfg.RuntimeConfig())
      except errors.UserError as error:
        print(error)
    """,
      TF_CONFIG=json.dumps({'cluster': {'worker': addresses}, 'task': {'type': 'worker', 'index': index}}),
    )
    for index in range(2)
  ]
  for script in scripts:
    assert 'TF_CONFIG: TensorFlow has set its devices up before' in _printed(script)


@pytest.mark.slow
@pytest.mark.parametrize('optimizer', ['adam', 'adam_experimental'])
def test_a_resume_on_parameter_servers_restores_all_slots(start_script, unused_ports, tmp_path, optimizer):
  """Slots must exist before they are restored; a legacy optimizer makes them at its first update."""
  ports = unused_ports(2)
  code = f"""
  import numpy as np
  import tensorflow as tf
  from official_ext.training.loop import base_trainer
  from official_ext.training.loop import train_lib
  from official_ext.training.step import gradient_tap
  from tests.training.loop import harness, small_run

  spec = tf.train.ClusterSpec({{'worker': ['localhost:{ports[0]}'], 'ps': ['localhost:{ports[1]}']}})
  servers = [tf.distribute.Server(spec, job_name=job, task_index=0, protocol='grpc') for job in ('worker', 'ps')]
  resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer='grpc')
  strategy = tf.distribute.ParameterServerStrategy(resolver)
  seen = []

  class Task(harness.LinearTask):
    def build_inputs(self, params, input_context=None):
      return tf.data.Dataset.from_tensor_slices(self.data).repeat().batch(8)

  class Trainer(base_trainer.Trainer):
    def checkpoint_restored(self, **kwargs):
      super().checkpoint_restored(**kwargs)
      seen.append({{variable.name: variable.numpy() for variable in gradient_tap.variables_of(self.optimizer)}})

  for steps in (4, 8):
    rate = {{'type': 'constant', 'constant': {{'learning_rate': 0.1}}}}
    settings = {{'optimizer': {{'type': '{optimizer}'}}, 'learning_rate': rate}}
    params = small_run.make_params(train_steps=steps, steps_per_loop=4, optimizer_config=settings)
    with strategy.scope():
      task = Task(params.task, harness.make_data(64))
      trainer = Trainer(params, task, task.build_model(), task.create_optimizer(params.trainer.optimizer_config))
    train_lib.run_experiment(strategy, task, 'train', params, {str(tmp_path / 'run')!r}, trainer=trainer)
  reader = tf.train.load_checkpoint({str(tmp_path / 'run' / 'ckpt-4')!r})
  kinds = ('OPTIMIZER_SLOT', 'optimizer/_variables')
  names = [name for name in reader.get_variable_to_shape_map() if any(kind in name for kind in kinds)]
  slots = {{name: reader.get_tensor(name) for name in names}}
  (found,) = seen
  assert len(slots) == 4, slots
  for values in slots.values():
    assert any(np.array_equal(values, each) for each in found.values())
  print('all slots')
  import os
  os._exit(0)
  """
  process = start_script(textwrap.dedent(code)).finish()
  assert 'all slots' in process.stdout, process.stderr[-2000:]
  assert 'the training input starts from its beginning' in process.stderr


def _language_params():
  import experiments.language_model.configs  # noqa: F401  # pylint: disable=g-import-not-at-top

  return parser.parse_configuration(types.SimpleNamespace(experiment='language_model'), print_return=False)


@pytest.mark.parametrize('has_bfloat16, expected', [(False, 'float32'), (True, 'bfloat16')])
def test_auto_precision_of_a_new_run_follows_the_devices(tmp_path, monkeypatch, has_bfloat16, expected):
  monkeypatch.setattr(device_types, 'gpu_capability', lambda: (9, 0) if has_bfloat16 else (7, 5))
  params = _language_params()
  assert params.runtime.mixed_precision_dtype == 'auto'
  chosen = distribute.with_precision(params, str(tmp_path / 'new'))
  assert chosen.runtime.mixed_precision_dtype == expected and params.runtime.mixed_precision_dtype == 'auto'
  assert distribute.policy_dtype(params.runtime) == expected


@pytest.mark.parametrize(
  'recorded, expected',
  [
    ('bfloat16', 'bfloat16'),
    ('null', 'float32'),
    ('float32', 'float32'),
    ('float16', 'float16'),
    ('auto', 'bfloat16'),
  ],
)
def test_auto_precision_of_a_resumed_run_is_the_recorded_one(tmp_path, monkeypatch, recorded, expected):
  monkeypatch.setattr(device_types, 'gpu_capability', lambda: (0, 0) if recorded == 'bfloat16' else (9, 0))
  (tmp_path / 'params.yaml').write_text(f'runtime:\n  mixed_precision_dtype: {recorded}\n')
  assert distribute.with_precision(_language_params(), str(tmp_path)).runtime.mixed_precision_dtype == expected


def test_auto_precision_of_another_driver_is_that_of_its_policy(monkeypatch):
  """Whatever the devices are: the driver has set the policy, or none."""
  monkeypatch.setattr(device_types, 'gpu_capability', lambda: (9, 0))
  assert distribute.with_policy(_language_params()).runtime.mixed_precision_dtype == 'float32'
  tf_keras.mixed_precision.set_global_policy('mixed_bfloat16')
  try:
    assert distribute.with_policy(_language_params()).runtime.mixed_precision_dtype == 'bfloat16'
  finally:
    tf_keras.mixed_precision.set_global_policy('float32')


def test_a_run_in_float32_on_a_gpu_with_fast_bfloat16_names_the_setting(monkeypatch):
  monkeypatch.setattr(device_types, 'gpu_capability', lambda: (8, 0))
  assert 'runtime.mixed_precision_dtype=bfloat16' in distribute.float32_hint(definitions.RuntimeConfig())
  assert not distribute.float32_hint(definitions.RuntimeConfig(mixed_precision_dtype='float32'))
  monkeypatch.setattr(device_types, 'gpu_capability', lambda: (7, 5))
  assert not distribute.float32_hint(definitions.RuntimeConfig())
