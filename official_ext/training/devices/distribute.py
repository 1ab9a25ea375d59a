"""Sets up devices, and chooses the `tf.distribute` strategy for them."""

from collections.abc import Callable, Iterable, Mapping
import os
import signal
import sys
import threading

from absl import logging
from official.modeling import performance
import tensorflow as tf
import tf_keras

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import hardware as hardware_lib
from official_ext.base import tf_internals
from official_ext.base.files import paths
from official_ext.training.config import definitions
from official_ext.training.config import mesh_config
from official_ext.training.config import ranges
from official_ext.training.devices import cluster as cluster_lib
from official_ext.training.devices import device_types
from official_ext.training.devices import mesh_strategy
from official_ext.training.devices import workers

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_CROSS_DEVICE_OPS = {
  'nccl': tf.distribute.NcclAllReduce,
  'hierarchical_copy': tf.distribute.HierarchicalCopyAllReduce,
}


def configure(runtime: definitions.RuntimeConfig) -> None:
  """Sets up TensorFlow for a run. Must come before anything touches a device.

  It sets virtual CPUs, memory growth of GPUs, seeds, op determinism and the mixed-precision policy: all global state of
  the process.

  Args:
    runtime: `params.runtime`.

  Raises:
    UserError: a field's value is not allowed, or this machine cannot provide it.
  """
  ranges.check(runtime, 'runtime')
  _set_virtual_cpus(max(runtime.num_virtual_cpus, _num_devices_of_mesh(runtime)))
  for gpu in tf.config.list_physical_devices('GPU'):
    try:
      tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as e:  # Too late: the devices are in use already.
      logging.warning('%s keeps its memory setting: %s', gpu.name, e)
  _warn_of_unusable_gpus()
  tf_keras.utils.set_random_seed(runtime.seed)
  if runtime.deterministic:
    tf_internals.enable_op_determinism()
  _set_mixed_precision(runtime)


def _warn_of_unusable_gpus() -> None:
  """Warns if the machine has GPUs and TensorFlow none: the reasons are in logs that are hidden by default."""
  names = hardware_lib.visible_gpus()
  if names and not tf.config.list_physical_devices('GPU'):
    print(
      f'warning: GPUs: {len(names)} visible, and TensorFlow can use none; TF_CPP_MIN_LOG_LEVEL=0 shows why, '
      'CUDA_VISIBLE_DEVICES=-1 hides them',
      file=sys.stderr,
      flush=True,
    )


def get_strategy(runtime: definitions.RuntimeConfig) -> tf.distribute.Strategy:
  """Returns the strategy that `runtime.distribution_strategy` names; `auto` takes the best devices that exist.

  `auto` looks for, in this order: several workers or parameter servers in TF_CONFIG, a TPU, several GPUs, one GPU,
  several virtual CPUs, one CPU. One device is driven by OneDeviceStrategy. `runtime.num_gpus` 0 means all GPUs.

  Under `parameter_server`, a process whose TF_CONFIG task is a worker or a parameter server serves, and never returns.
  An evaluator of TF_CONFIG takes the devices of its machine, also if `multi_worker_mirrored` or `parameter_server` is
  named.

  Args:
    runtime: `params.runtime`. Only its devices count: `official-ext train` and train.py have set up seeds, mixed
      precision, virtual CPUs and the memory of GPUs before; another driver does so itself, before this call.

  Raises:
    UserError: the requested devices are missing.

  Example:

    >>> strategy = ext.get_strategy(ext.RuntimeConfig(distribution_strategy='off'))
    >>> strategy.num_replicas_in_sync
    1
  """
  name = runtime.distribution_strategy.lower()
  cluster = cluster_lib.find()
  if cluster is not None and name in ('mirrored', 'one_device', 'off'):
    raise errors.UserError(
      f'runtime.distribution_strategy: {name} drives one process, and there are {len(cluster.addresses)} workers; '
      'leave it at auto, or unset TF_CONFIG'
    )
  if runtime.mesh.sizes():
    return _mesh(runtime)
  is_evaluator = cluster_lib.read_tf_config()[1][0] == 'evaluator'
  if name == 'auto' or (is_evaluator and name in ('multi_worker_mirrored', 'parameter_server')):
    name = _choose(runtime)
  builders = {
    'tpu': _tpu,
    'mirrored': _mirrored,
    'one_device': _one_device,
    'multi_worker_mirrored': _multi_worker_mirrored,
    'parameter_server': _parameter_server,
    'off': lambda _: tf.distribute.get_strategy(),
  }
  if name not in builders:
    raise errors.UserError(
      f'runtime.distribution_strategy: {runtime.distribution_strategy!r} is not one of auto, {", ".join(builders)}'
    )
  return builders[name](runtime)


def describe(strategy: tf.distribute.Strategy, runtime: definitions.RuntimeConfig | None = None) -> str:
  """One line for people: the strategy or the mesh, its devices, and the precision of the computation.

  Args:
    strategy: the strategy.
    runtime: `params.runtime`, whose mesh counts; None for no mesh.
  """
  if runtime is not None and runtime.mesh.sizes():
    cluster = cluster_lib.find()
    spread = f' of {len(cluster.addresses)} workers' if cluster is not None else ''
    policy, sizes = tf_keras.mixed_precision.global_policy().name, mesh_config.describe(runtime.mesh.sizes())
    return f'mesh {sizes} on {runtime.mesh.num_devices()} CPUs{spread}, {policy}'
  if strategy is tf.distribute.get_strategy() and not tf.distribute.has_strategy():
    name = 'no strategy'
    # Not the logical devices: listing them takes memory of the GPUs, which a task may need to leave to others.
    devices = [f'/device:{"GPU" if tf.config.get_visible_devices("GPU") else "CPU"}:0']
  else:
    name = type(strategy).__name__
    devices = list(strategy.extended.worker_devices)
  specs = [tf.DeviceSpec.from_string(device) for device in devices]
  short = ', '.join(f'{spec.device_type}:{spec.device_index}' for spec in specs)
  hardware = _gpu_names() if any(spec.device_type == 'GPU' for spec in specs) else ''
  replicas = strategy.num_replicas_in_sync
  policy = tf_keras.mixed_precision.global_policy().name
  return f'{replicas} replica{"s" if replicas > 1 else ""} on {short}{hardware}, {name}, {policy}'


def _set_virtual_cpus(count: int) -> None:
  """Splits the CPU into `count` logical devices, unless it has as many already."""
  cpus = tf.config.list_physical_devices('CPU')
  if not count or len(tf.config.get_logical_device_configuration(cpus[0]) or ()) >= count:
    return
  try:
    tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * count)
  except RuntimeError:
    raise errors.UserError(
      f'runtime.num_virtual_cpus: {count} requested, after TensorFlow has set its devices up in this process'
    ) from None


def _set_mixed_precision(runtime: definitions.RuntimeConfig) -> None:
  dtypes = definitions.RuntimeConfig.CHOICES['mixed_precision_dtype']  # A subclass may have additional ones.
  if runtime.mixed_precision_dtype not in dtypes:
    known = ', '.join(str(dtype) for dtype in dtypes if dtype)
    raise errors.UserError(f'runtime.mixed_precision_dtype: {runtime.mixed_precision_dtype!r} is not one of {known}')
  dtype = policy_dtype(runtime)
  if runtime.loss_scale is not None and dtype != 'float16':
    raise errors.UserError(
      f'runtime.loss_scale: {runtime.loss_scale!r} needs runtime.mixed_precision_dtype=float16, which is {dtype}'
    )
  performance.set_mixed_precision_policy(tf.as_dtype(dtype))


def policy_dtype(runtime: definitions.RuntimeConfig) -> str:
  """The dtype that `runtime.mixed_precision_dtype` means on this machine: 'float32', 'float16' or 'bfloat16'."""
  if runtime.mixed_precision_dtype != 'auto':
    return runtime.mixed_precision_dtype or 'float32'
  if runtime.tpu is not None or tf.config.list_physical_devices('TPU') or device_types.gpus_multiply_bfloat16():
    return 'bfloat16'
  return 'float32'


def with_precision(params: definitions.ExperimentConfig, model_dir: str | None) -> definitions.ExperimentConfig:
  """`params` with the dtype in the place of `runtime.mixed_precision_dtype: auto`: the dtype of the run in the folder.

  Without a run it is `policy_dtype`.
  """
  if params.runtime.mixed_precision_dtype != 'auto':
    return params
  path = os.path.join(model_dir or '', 'params.yaml')
  recorded: object = 'auto'
  if model_dir and paths.is_file(path):
    runtime = config_text.load_file(path, path).get('runtime')
    recorded = runtime.get('mixed_precision_dtype') if isinstance(runtime, dict) else None
  return _with_dtype(params, policy_dtype(params.runtime) if recorded == 'auto' else str(recorded or 'float32'))


def with_policy(params: definitions.ExperimentConfig) -> definitions.ExperimentConfig:
  """`params` with the dtype of the policy that is set in the place of `runtime.mixed_precision_dtype: auto`.

  So the configuration of a run names the dtype of its computation, for any driver that sets the policy.
  """
  if params.runtime.mixed_precision_dtype != 'auto':
    return params
  return _with_dtype(params, tf_keras.mixed_precision.global_policy().compute_dtype)


def _with_dtype(params, dtype):
  chosen = params.replace(runtime={'mixed_precision_dtype': dtype})
  definitions.lock(chosen)
  return chosen


def float32_hint(runtime: definitions.RuntimeConfig) -> str:
  """A line for a run whose layers compute in float32 on devices with fast bfloat16; ''."""
  if runtime.mixed_precision_dtype is None and not runtime.mesh.sizes() and device_types.gpus_multiply_bfloat16():
    return 'note: layers compute in float32 on this GPU; runtime.mixed_precision_dtype=bfloat16 is faster'
  return ''


def _choose(runtime: definitions.RuntimeConfig) -> str:
  # TF_CONFIG first: a multi-worker strategy must be made before TensorFlow sets its devices up.
  if cluster_lib.read_tf_config()[0].get('ps'):
    return 'parameter_server'
  if cluster_lib.find() is not None:
    return 'multi_worker_mirrored'
  if runtime.tpu is not None or tf.config.list_physical_devices('TPU'):
    return 'tpu'
  replicas = _num_gpus(runtime) or runtime.num_virtual_cpus
  return 'mirrored' if replicas > 1 else 'one_device'


def _num_gpus(runtime: definitions.RuntimeConfig) -> int:
  """How many GPUs the run uses: `runtime.num_gpus`, or all if that is 0."""
  there = len(tf.config.list_logical_devices('GPU'))
  if not 0 <= runtime.num_gpus <= there:
    raise errors.UserError(f'runtime.num_gpus: requested {runtime.num_gpus}, found {there}; 0 takes all')
  return runtime.num_gpus or there


def _tpu(runtime: definitions.RuntimeConfig) -> tf.distribute.Strategy:
  address = runtime.tpu or 'local'
  try:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
    if address != 'local':
      tf.config.experimental_connect_to_cluster(resolver)
    topology = tf.tpu.experimental.initialize_tpu_system(resolver)
  except (ValueError, tf.errors.OpError) as e:
    reason = str(e).splitlines()[0]
    raise errors.UserError(f'runtime.tpu: no TPU at {address!r}: {reason}') from e
  return tf.distribute.TPUStrategy(resolver, experimental_device_assignment=_tpu_assignment(resolver, topology))


def _tpu_assignment(resolver: tf.distribute.cluster_resolver.ClusterResolver, topology: object) -> object | None:
  """TPUs with the second embedding generation (v5p) need their cores named one by one."""
  features = tf.tpu.experimental.HardwareFeature
  if features(resolver.tpu_hardware_feature).embedding_feature != features.EmbeddingFeature.V2:
    return None
  cores = resolver.get_tpu_system_metadata().num_cores
  return tf.tpu.experimental.DeviceAssignment.build(topology, num_replicas=cores)


def _mirrored(runtime: definitions.RuntimeConfig) -> tf.distribute.Strategy:
  """A strategy over the GPUs, or over the virtual CPUs if they are requested or there are no GPUs."""
  on_cpus = runtime.num_virtual_cpus > 0 and runtime.num_gpus == 0 and runtime.distribution_strategy.lower() != 'auto'
  gpus = 0 if on_cpus else _num_gpus(runtime)
  if gpus:
    devices = [f'device:GPU:{i}' for i in range(gpus)]
  else:
    cpus = max(1, runtime.num_virtual_cpus)
    there = len(tf.config.list_logical_devices('CPU'))
    if cpus > there:
      raise errors.UserError(f'runtime.num_virtual_cpus: requested {cpus}, found {there}')
    devices = [f'device:CPU:{i}' for i in range(cpus)]
  algorithm = _all_reduce_alg(runtime, _CROSS_DEVICE_OPS)
  if algorithm == 'nccl' and not gpus:
    raise errors.UserError('runtime.all_reduce_alg: nccl needs GPUs, and there are none')
  if algorithm:
    operations = _CROSS_DEVICE_OPS[algorithm](num_packs=runtime.num_packs)
  else:  # Virtual CPUs share their memory: a collective operation among them costs more than a sum by one of them.
    operations = None if gpus else tf.distribute.ReductionToOneDevice()
  return tf_internals.make_strategy(tf.distribute.MirroredStrategy, devices=devices, cross_device_ops=operations)


def _one_device(runtime: definitions.RuntimeConfig) -> tf.distribute.Strategy:
  if runtime.num_gpus > 1:
    raise errors.UserError(f'runtime.num_gpus: {runtime.num_gpus} requested, but one_device drives one')
  return tf.distribute.OneDeviceStrategy('device:GPU:0' if _num_gpus(runtime) else 'device:CPU:0')


def _multi_worker_mirrored(runtime: definitions.RuntimeConfig) -> tf.distribute.Strategy:
  algorithm = _all_reduce_alg(runtime, ('nccl', 'ring')) or 'auto'
  options = tf.distribute.experimental.CommunicationOptions(
    implementation=tf.distribute.experimental.CommunicationImplementation(algorithm.upper())
  )
  cluster = cluster_lib.find()
  if cluster is None:
    return tf_internals.make_strategy(tf.distribute.MultiWorkerMirroredStrategy, communication_options=options)
  try:
    return _connected(
      cluster, lambda: tf.distribute.MultiWorkerMirroredStrategy(communication_options=options), runtime
    )
  except RuntimeError as error:
    if 'must be configured at program startup' not in str(error):
      raise
    raise errors.UserError(
      'TF_CONFIG: TensorFlow has set its devices up before the workers could be connected; set TF_CONFIG and call '
      'ext.get_strategy before anything that lists devices or runs an operation'
    ) from error


def _mesh(runtime: definitions.RuntimeConfig) -> tf.distribute.Strategy:
  """The strategy that holds the variables, of which a mesh takes copies."""
  if tf.config.get_visible_devices('GPU'):  # Not the logical devices: listing them sets TensorFlow's devices up.
    raise errors.UserError(
      'runtime.mesh: meshes are of CPUs, and this process sees GPUs, on which no mesh has run; remove runtime.mesh for '
      'a replica on each GPU (runtime.distribution_strategy=auto), or set CUDA_VISIBLE_DEVICES=-1 to take CPUs'
    )
  cluster = cluster_lib.find()
  if cluster is None:
    return tf.distribute.OneDeviceStrategy('device:CPU:0')
  jobs = {mesh_strategy.JOB: len(cluster.addresses)}
  return _connected(cluster, lambda: mesh_strategy.join(cluster), runtime, jobs)


def _num_devices_of_mesh(runtime: definitions.RuntimeConfig) -> int:
  """The devices of `runtime.mesh` in this process; 0 without a mesh."""
  cluster = cluster_lib.find() if runtime.mesh.sizes() else None
  count, processes = runtime.mesh.num_devices(), len(cluster.addresses) if cluster is not None else 1
  if count % processes:
    raise errors.UserError(
      f'runtime.mesh: {count} devices cannot be spread evenly over the {processes} workers of TF_CONFIG'
    )
  return count // processes


def _connected(
  cluster: cluster_lib.Cluster,
  make_strategy: Callable[[], tf.distribute.Strategy],
  runtime: definitions.RuntimeConfig,
  jobs: Mapping[str, int] | None = None,
) -> tf.distribute.Strategy:
  """The strategy that the workers of a cluster share: see `workers.connect`."""
  handlers = {number: signal.getsignal(number) for number in _SIGNALS}
  strategy = workers.connect(
    cluster, make_strategy, runtime.worker_start_timeout_seconds, runtime.worker_timeout_seconds, jobs
  )
  if threading.current_thread() is threading.main_thread():
    for number, handler in handlers.items():  # TensorFlow has replaced them by its own, which swallow the signals.
      signal.signal(number, handler)
  return strategy


def _parameter_server(runtime: definitions.RuntimeConfig) -> tf.distribute.Strategy:
  del runtime
  if not cluster_lib.read_tf_config()[0].get('ps'):
    raise errors.UserError('runtime.distribution_strategy: parameter_server needs a cluster with ps tasks in TF_CONFIG')
  resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
  if resolver.task_type in ('worker', 'ps'):
    server = tf.distribute.Server(
      resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol='grpc'
    )
    server.join()
  return tf.distribute.ParameterServerStrategy(resolver)


def _all_reduce_alg(runtime: definitions.RuntimeConfig, known: Iterable[str]) -> str | None:
  if runtime.all_reduce_alg is not None and runtime.all_reduce_alg not in known:
    raise errors.UserError(f'runtime.all_reduce_alg: {runtime.all_reduce_alg!r} is not one of {", ".join(known)}')
  return runtime.all_reduce_alg


def _gpu_names() -> str:
  details = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices('GPU')]
  names = sorted({detail.get('device_name', 'GPU') for detail in details})
  return f' ({", ".join(names)})'
