"""Tests for distribute. Each process has one set of devices, so some cases run in a separate process."""

import json
import textwrap

import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.training.config import definitions
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
