"""All that this library uses of the private parts of TensorFlow and tf_keras, each with the reason.

No other module imports private modules such as `tensorflow.python`, or reads an attribute of their objects that begins
with an underscore. `INHERITED` lists the members that our subclasses call and override of their bases.
tests/base/tf_internals_test.py checks that all of it exists, in the form that we rely on: if another TensorFlow has
changed it, that test fails and names it.
"""

# pylint: disable=protected-access
import atexit
import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import ctypes
import functools
import itertools
import os
import random
import re
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow.core.protobuf import trackable_object_graph_pb2
from tensorflow.dtensor.python import gen_dtensor_ops
from tensorflow.python import pywrap_tfe
from tensorflow.python.autograph.core import config as autograph_config
from tensorflow.python.autograph.core import config_lib as autograph_config_lib
from tensorflow.python.autograph.impl import api as autograph_api
from tensorflow.python.data.ops import cache_op
from tensorflow.python.distribute import one_device_strategy
from tensorflow.python.distribute import values as distribute_values
from tensorflow.python.eager import backprop
from tensorflow.python.eager import cancellation
from tensorflow.python.eager import context
from tensorflow.python.eager import execute
from tensorflow.python.framework import config as framework_config
from tensorflow.python.framework import convert_to_constants
from tensorflow.python.framework import function_def_to_graph
from tensorflow.python.framework import op_callbacks
from tensorflow.python.framework import ops
from tensorflow.python.framework import random_seed
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.ops import control_flow_v2_func_graphs
from tensorflow.python.ops import custom_gradient
from tensorflow.python.ops import gen_array_ops
from tensorflow.python.ops import gen_image_ops
from tensorflow.python.ops import gen_math_ops
from tensorflow.python.ops import gen_nn_ops
from tensorflow.python.ops import gen_random_ops
from tensorflow.python.ops import gen_resource_variable_ops
from tensorflow.python.ops import gen_stateless_random_ops
from tensorflow.python.ops import gen_stateless_random_ops_v2
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.ops import script_ops
import tf_keras
from tf_keras.src import backend as keras_backend
from tf_keras.src.layers.activation import softmax as keras_softmax
from tf_keras.src.saving.legacy.saved_model import utils as keras_saved_model_utils
from tf_keras.src.utils import generic_utils as keras_generic_utils

FunctionT = TypeVar('FunctionT', bound=Callable[..., object])

# The logs of the C++ code.

# By the version of TensorFlow: absl::SetMinLogLevel(absl::LogSeverityAtLeast) of its Abseil, and the level to set. All
# of 2.21 logs by Abseil, also what TF_CPP_MIN_LOG_LEVEL=3 hides in 2.20: errors, such as for a missing driver.
_SET_MIN_LOG_LEVEL = {
  '2.20': ('_ZN4absl12lts_2025012714SetMinLogLevelENS0_18LogSeverityAtLeastE', 1),
  '2.21': ('_ZN4absl12lts_2025081414SetMinLogLevelENS0_18LogSeverityAtLeastE', 3),
}


def hide_remarks() -> bool:
  """Hides the information logs of TensorFlow's C++ code, such as its first program of XLA, except those at import.

  A part of that code logs by Abseil itself, past TF_CPP_MIN_LOG_LEVEL; Python has no way to set Abseil's level. If that
  variable is '0', nothing is hidden.

  Returns:
    Whether it could be done. Another TensorFlow has functions of other names, and then the lines are shown.
  """
  if os.environ.get('TF_CPP_MIN_LOG_LEVEL') == '0':
    return True
  try:
    library = ctypes.CDLL(os.path.join(tf.sysconfig.get_lib(), 'libtensorflow_framework.so.2'))
    name, level = _SET_MIN_LOG_LEVEL[tf.__version__.rpartition('.')[0]]
    set_level = getattr(library, name)
  except (OSError, AttributeError, KeyError):
    return False
  set_level.argtypes, set_level.restype = [ctypes.c_int], None
  set_level(level)
  return True


# Functions of Python, and the ends of operations.


def register_py_function(name: str, function: Callable[..., object]) -> None:
  """Lets the operations PyFunc of that name in this process call a function, as long as the caller keeps it.

  `tf.numpy_function` numbers its functions by process; a graph that another process has made cannot know the number.
  """
  script_ops._py_funcs._funcs[name] = function


class CancellableIterator:
  """An iterator over a dataset of tensors whose `next` another thread can end.

  TensorFlow has a way to cancel the operation that a thread waits for, but no public one, and
  `CancellationManagerContext` would cancel the calls of all other threads as well.
  """

  def __init__(self, dataset: tf.data.Dataset):
    self._iterator = iter(dataset)
    self._manager = cancellation.CancellationManager()

  def __next__(self) -> list[tf.Tensor]:
    """The next element, flat. Raises OutOfRangeError after the last, and CancelledError after `cancel`."""
    types = [execute.make_type(dtype, 'output_types') for dtype in self._iterator._flat_output_types]
    shapes = [execute.make_shape(shape, 'output_shapes') for shape in self._iterator._flat_output_shapes]
    return execute.execute_with_cancellation(
      b'IteratorGetNext',
      len(types),
      [self._iterator._iterator_resource],
      ('output_types', types, 'output_shapes', shapes),
      context.context(),
      self._manager,
    )

  def cancel(self) -> None:
    """Ends the call that is under way, and all later ones."""
    self._manager.start_cancel()


# Several replicas and workers.

# The first collective key of each strategy of this process; 1 is the key of all strategies made elsewhere.
_collective_key_bases = itertools.count(1000, 1000)


def make_strategy(cls: Any, **arguments: object) -> tf.distribute.Strategy:
  """Makes a strategy whose collective operations are distinct from the operations of this process's other strategies.

  TensorFlow restarts the numbers of device groups and their operations for each strategy, and remembers the shape of
  each number for as long as the process lives. If the first gradients that a second strategy reduces have another shape
  than the gradients of the first, all collective operations of the process fail from then on ("Shape mismatch in the
  collective instance 100"). The first number is an attribute that no constructor takes.

  Args:
    cls: `tf.distribute.MirroredStrategy`, or `MultiWorkerMirroredStrategy` without other workers: all workers of a
      cluster must have the same numbers.
    **arguments: of its constructor.
  """
  strategy = cls.__new__(cls)
  strategy._collective_key_base = next(_collective_key_bases)
  strategy.__init__(**arguments)
  return strategy


def part_here(variable: tf.Variable) -> tf.Variable:
  """This replica's part of a variable; the variable itself if it has no parts. Replica context.

  A strategy's public method returns the parts of all replicas, without saying which is this one's.
  """
  return (
    variable._get_on_device_or_primary() if isinstance(variable, distribute_values.DistributedVariable) else variable
  )


@contextlib.contextmanager
def updates_here(strategy: tf.distribute.Strategy) -> Iterator[None]:
  """A context of a replica's function: it updates this replica's part of variables, and no replicas meet for that.

  All replicas assign the same values, whose mean is the value of each. TensorFlow has this for functions that XLA
  compiles for GPUs alone, and lets replicas meet to aggregate.
  """
  extended = strategy.extended
  aggregate = distribute_values.apply_aggregation_replica_context

  def aggregate_here(value, aggregation, destinations):
    del destinations
    is_sum = aggregation == tf.VariableAggregation.SUM and tf.is_tensor(value)
    return value * strategy.num_replicas_in_sync if is_sum else value

  extended._use_merge_call = lambda: False
  distribute_values.apply_aggregation_replica_context = aggregate_here
  try:
    yield
  finally:
    distribute_values.apply_aggregation_replica_context = aggregate
    del extended._use_merge_call


# The extended part of a strategy is where it says whether a process's files count; it has no public class.
OneDeviceExtended = one_device_strategy.OneDeviceExtended
# Only the eager context has methods for the coordination service: its key-value store, the states of workers, and
# reports of errors. tf.distribute exposes none of them.
eager_context = context.context
# The type of the workers that `configure_coordination_service` takes; tf.config cannot set its timeouts.
CoordinatedJob = coordination_config_pb2.CoordinatedJob
# The class of a variable that each replica writes for itself, such as the statistics of batch normalization; a variable
# that mixed precision wraps has no public `synchronization`.
SyncOnReadVariable = distribute_values.SyncOnReadVariable
# tf.config.experimental enables determinism, but does not report whether it is enabled.
is_op_determinism_enabled = framework_config.is_op_determinism_enabled


def enable_op_determinism() -> None:
  """Enables TensorFlow's op determinism, also for datasets whose functions wait for one of their arguments.

  tf.data then splits the function of a parallel map: one thread draws its random numbers, several compute the rest.
  TensorFlow 2.20 leaves a control input from an argument, which `tf.control_dependencies` makes, in the second part,
  which lacks this argument: "input[0] == '^args_3', is not found" (`SplitFunction` in
  core/grappler/optimizers/data/split_utils.cc). Model Garden's parsers of detection wait for `is_crowds` so. Copies of
  the arguments are operations, whose control inputs TensorFlow splits correctly.
  """
  tf.config.experimental.enable_op_determinism()
  _copy_arguments_of_maps()


@functools.cache
def _copy_arguments_of_maps() -> None:
  map_unchanged = tf.data.Dataset.map

  @functools.wraps(map_unchanged)
  def map_copies(dataset, map_func, *args, **kwargs):
    if is_op_determinism_enabled():
      map_func = _with_copied_arguments(map_func)
    return map_unchanged(dataset, map_func, *args, **kwargs)

  tf.data.Dataset.map = map_copies


def _with_copied_arguments(function: Callable[..., object]) -> Callable[..., object]:
  """`function`, called with copies of tensors; converted by AutoGraph if a function of a dataset here would be."""
  converted = tf.__internal__.autograph.tf_convert(function, tf.__internal__.autograph.control_status_ctx())

  @functools.wraps(function)
  def call(*arguments):
    return converted(*tf.nest.map_structure(lambda each: tf.identity(each) if tf.is_tensor(each) else each, arguments))

  return autograph_unconverted(call)


# Checkpoints.

# The object graph that every checkpoint holds; tf.train lists the values of a checkpoint, but not their owners.
TrackableObjectGraph = trackable_object_graph_pb2.TrackableObjectGraph
# The name under which a checkpoint holds that graph.
OBJECT_GRAPH_KEY = '_CHECKPOINTABLE_OBJECT_GRAPH'


def async_save_error(checkpoint: tf.train.Checkpoint) -> BaseException | None:
  """The error of the save in flight, None if it has not failed so far; publicly, only the next save raises it."""
  return getattr(_async_helper(checkpoint), '_async_error', None)


def raise_async_save_error(checkpoint: tf.train.Checkpoint) -> None:
  """Raises the error of an asynchronous save; publicly, only the next save or the end of the process does."""
  helper = _async_helper(checkpoint)
  if helper is not None:
    helper._check_async_thread_error()


def end_async_saves(checkpoint: object) -> None:
  """Ends the thread of asynchronous saves, which otherwise lives, and holds all that is saved, as long as the process.

  A save in flight is left to its thread, which the end of the process waits for. The next save begins another thread.

  Args:
    checkpoint: a tf.train.Checkpoint; nothing is done about anything else.
  """
  helper = _async_helper(checkpoint)
  if helper is None or helper._queue.unfinished_tasks:
    return
  atexit.unregister(helper._join_async_save_thread)
  vars(checkpoint)['_async_checkpointer_impl'] = None  # A wait for this one would never end.
  helper._queue.put_nowait(False)


def _async_helper(checkpoint):
  """None until the first asynchronous save."""
  return getattr(checkpoint, '_async_checkpointer_impl', None)


# Operations and graphs.

# Writes a part of a tensor in place, under XLA only; tf.tensor_scatter_nd_update writes row by row.
dynamic_update_slice = xla.dynamic_update_slice
# tf.raw_ops lacks it, and TensorFlow has no other way to XLA's fused attention.
xla_custom_call = xla.custom_call_v2
# They register a function to be called for every eager operation; tf.debugging has such checks, but only its own.
add_op_callback = op_callbacks.add_op_callback
remove_op_callback = op_callbacks.remove_op_callback
# The function that calls the gradient of an operation, and the way to replace it; tf.GradientTape exposes neither.
gradient_function = backprop._gradient_function
register_gradient_function = pywrap_tfe.TFE_Py_RegisterGradientFunction
# The classes whose `numpy` and `__array__` copy values to the host; tf.Tensor and tf.Variable are abstract.
EagerTensor = ops._EagerTensorBase
ResourceVariable = resource_variable_ops.BaseResourceVariable
# The class of the variables that tf.Variable makes; it has its base's methods as its own.
OrdinaryVariable = resource_variable_ops.ResourceVariable
# Graphs of branches and loops, which run inside another graph; a tf.Graph does not know its purpose.
ControlFlowGraph = control_flow_v2_func_graphs.ControlFlowFuncGraph
WhileBodyGraph = control_flow_v2_func_graphs.WhileBodyFuncGraph
# Modules whose functions are replaced for a while: all random operations, for images too, end here, and no public
# hook lets them draw by a key.
random_ops = gen_random_ops
stateless_random_ops = gen_stateless_random_ops
stateless_random_ops_v2 = gen_stateless_random_ops_v2
image_ops = gen_image_ops
# The same, of operations that DTensor cannot split.
array_ops = gen_array_ops
math_ops = gen_math_ops
nn_ops = gen_nn_ops
# The same, of reads of single rows: XLA and GPUs do not refuse an index that is out of range.
variable_ops = gen_resource_variable_ops
# The module whose functions call those with a custom gradient; tf.recompute_grad has no hook for random draws.
custom_gradients = custom_gradient
CUSTOM_GRADIENT_CALLERS = ('_graph_mode_decorator', '_eager_mode_decorator')
# The function of that module which searches the graph for variables; no argument of tf.custom_gradient avoids it.
DEPENDENT_VARIABLES = '_get_dependent_variables'


def with_layout(tensor: tf.Tensor, layout: Any) -> tf.Tensor:
  """A tensor in a DTensor layout; `dtensor.relayout` refuses to be called in a graph that is not of a mesh yet."""
  return gen_dtensor_ops.relayout(input=tensor, layout=layout.to_string())


def call_with_captures(function: Any, inputs: Sequence[tf.Tensor], captures: Sequence[tf.Tensor]) -> Any:
  """Calls a concrete function with other tensors and variables in place of the ones that it was traced with.

  Args:
    function: the concrete function.
    inputs: its arguments, flat.
    captures: one for each of its `captured_inputs`.
  """
  return function._call_flat(list(inputs), captured_inputs=list(captures))


def tensor_id(tensor: tf.Tensor) -> int:
  """A number that no other eager tensor has, not even an earlier one (Python reuses an `id`); -1 for other values."""
  return getattr(tensor, '_id', -1)


def dtype_of_variable_at(handle: tf.Tensor) -> tf.DType | None:
  """The dtype of the variable that a resource refers to; None for tables and similar. No public function has it."""
  found = variable_at(handle)
  return None if found is None else tf.as_dtype(found[1])


def variable_at(handle: tf.Tensor) -> tuple[Any, int] | None:
  """(shape, dtype) of the variable that a resource refers to, as protocol buffers hold them; None for tables."""
  data = getattr(handle, '_handle_data', None)
  return (data.shape_and_type[0].shape, data.shape_and_type[0].dtype) if data is not None and data.is_set else None


# Attributes that keep a function from being inlined.
_APART = ('_noinline', '_XlaMustCompile', 'api_implements')


def inlined(function: Any) -> Any:
  """The GraphDef of a concrete function, with its calls of functions inlined; branches and loops stay functions.

  The converters of TensorFlow do the same; no public function does. The graph is for analysis, not for execution:
  parts that XLA must compile are inlined too.
  """
  graph_def = convert_to_constants.disable_lower_using_switch_merge(function.graph.as_graph_def())
  in_functions = (node for each in graph_def.library.function for node in each.node_def)
  for each in (*graph_def.node, *graph_def.library.function, *in_functions):
    for name in _APART:
      each.attr.pop(name, None)
  meta_graph = meta_graph_pb2.MetaGraphDef(graph_def=graph_def)
  fetched = meta_graph.collection_def['train_op'].node_list.value
  fetched.extend(tensor.name for tensor in (*function.inputs, *function.outputs))
  config = config_pb2.ConfigProto()
  options = config.graph_options.rewrite_options
  options.min_graph_nodes = -1  # Small graphs too.
  options.optimizers.append('function')
  options.function_optimization = rewriter_config_pb2.RewriterConfig.AGGRESSIVE
  return tf_optimizer.OptimizeGraph(config, meta_graph, verbose=False)


def body_of(function_def: Any) -> tuple[Any, list[str]]:
  """(the GraphDef of a function of the default graph, the names of its outputs); its arguments are placeholders."""
  graph_def, names = function_def_to_graph.function_def_to_graph_def(function_def)
  return graph_def, [names[function_def.ret[each.name]] for each in function_def.signature.output_arg]


@functools.cache
def _autograph_context() -> Any:
  """AutoGraph's information for the functions that it converts: the context inside of a tf.function."""
  contexts: list[object] = []
  tf.function(lambda: contexts.append(tf.__internal__.autograph.control_status_ctx())).get_concrete_function()
  return contexts[0]


def autograph_in_graphs() -> contextlib.AbstractContextManager[Any]:
  """A context in which AutoGraph is at work, as inside a tf.function, if a graph is being traced."""
  return contextlib.nullcontext() if tf.executing_eagerly() else _autograph_context()


def autograph_unconverted(function: FunctionT) -> FunctionT:
  """Marks a function that AutoGraph calls unconverted, which saves the time of converting it.

  Its callees are not converted either, but Keras layers and metrics are, and calls through `autograph_called`:
  `tf.autograph.experimental.do_not_convert` would leave those alone too.
  """
  return autograph_api.autograph_artifact(function)


# AutoGraph converts each function that it meets, which takes milliseconds, and these need none: no `if` and no loop of
# them asks a tensor. Layers that others derive from them are still converted. No public function adds such a rule.
autograph_config.CONVERSION_RULES = (
  *map(autograph_config_lib.DoNotConvert, ('official_ext.base', 'official_ext.language.modeling')),
  autograph_config_lib.DoNotConvert('official_ext.training.model_parts'),
  autograph_config_lib.DoNotConvert('official_ext.data.image_preprocessing'),
  *autograph_config.CONVERSION_RULES,
)


def autograph_called(function: FunctionT) -> FunctionT:
  """`function` as a converted caller would call it here: converted if AutoGraph is at work, unconverted if not."""
  context = tf.__internal__.autograph.control_status_ctx()
  return tf.__internal__.autograph.tf_convert(function, context, convert_by_default=False, user_requested=False)


def inputs_of(dataset: tf.data.Dataset) -> Sequence[tf.data.Dataset]:
  """The datasets that a dataset is made from; tf.data has no public way to them."""
  return dataset._inputs()


def cache_file_of(dataset: tf.data.Dataset) -> str:
  """The path that `dataset.cache(filename)` writes to; '' for any other dataset. Only where operations run eagerly."""
  return dataset._filename.numpy().decode() if isinstance(dataset, cache_op.CacheDataset) else ''


op_seeds = random_seed  # All random ops call its `get_seed`, which returns two numbers.

_RANDOM_OPS = frozenset(
  """Multinomial ParameterizedTruncatedNormal RandomGamma RandomPoisson RandomPoissonV2 RandomShuffle
  RandomStandardNormal RandomUniform RandomUniformInt SampleDistortedBoundingBox SampleDistortedBoundingBoxV2
  StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform StatefulUniformFullInt StatefulUniformInt
  TruncatedNormal""".split()
)


@contextlib.contextmanager
def same_op_seeds(seed: int) -> Iterator[None]:
  """A context whose ops without a seed get the same seeds each time. Seeds of later ops are not changed by the context.

  Args:
    seed: decides the seeds.
  """
  here = context.context()
  before = here._seed, getattr(here, '_rng', None)  # A process without a seed has none.
  here._seed, here._rng = seed, random.Random(f'{seed}')  # Other ones than the run's.
  try:
    yield
  finally:
    here._seed, here._rng = before


def is_in_map() -> bool:
  """Whether the ops that are made belong to a function of `tf.data.Dataset.map`."""
  graph = None if tf.executing_eagerly() else ops.get_default_graph()
  while graph is not None and not getattr(graph, 'name', '').startswith('Dataset_map'):
    graph = getattr(graph, 'outer_graph', None)
  return graph is not None


def draws(dataset: tf.data.Dataset, in_parallel: bool) -> bool:
  """Whether functions of a pipeline draw by random ops with a state.

  Args:
    dataset: the end of the pipeline.
    in_parallel: whether only functions count that several threads call, so that the order of the draws varies.
  """
  if not in_parallel or ('Parallel' in type(dataset).__name__ and not is_op_determinism_enabled()):
    for function in dataset._functions():
      found = function.function.graph.as_graph_def()
      nodes = [*found.node, *(node for each in found.library.function for node in each.node_def)]
      if any(node.op in _RANDOM_OPS for node in nodes):
        return True
  return any(draws(each, in_parallel) for each in inputs_of(dataset))


def resource_of(writer: tf.summary.SummaryWriter) -> object:
  """The resource that summary operations write to; no public attribute has it."""
  return writer._resource


# Variables and models.


def whole_variable(variable: tf.Variable) -> tf.Variable:
  """The variable that a replica's copy belongs to; a copy has no public reference to it."""
  if isinstance(variable, distribute_values.DistributedVariable):
    return variable
  for holder in (getattr(variable, 'handle', None), variable):  # The handle, of variables that are composite tensors.
    container = getattr(holder, '_distributed_container', None)
    if container is not None and container() is not None:
      return container()
  return variable


def unique_id(variable: tf.Variable) -> object:
  """An identifier of a variable that is the same in all graphs; `ref` identifies the Python object."""
  return getattr(variable, '_unique_id', id(variable))


def shared_name(variable: tf.Variable) -> str:
  """A variable's name without the number of an output; tf_keras names its slots by it, and so do we."""
  return variable._shared_name


def is_functional(model: tf_keras.Model) -> bool:
  """Whether a model is a graph of layers, functional or tf_keras.Sequential; its class does not always show it."""
  return bool(getattr(model, '_is_graph_network', False))


def names_keras_3(message: str) -> bool:
  """Whether a message names a class of Keras 3; classes of tf_keras have another package in front."""
  return re.search(r'(?<![\w.])keras\.src\.|`keras\.\w+`', message) is not None


def call_values(layer: tf.Module) -> list[Any]:
  """The values other than its inputs that the calls of a layer in a functional model have; [] without such values."""
  nodes = getattr(layer, '_inbound_nodes', ())
  return tf.nest.flatten([[node.call_args, node.call_kwargs] for node in nodes])


def has_numbered_name(layer: Any) -> bool:
  """Whether Keras has named a layer: by its class, as `dense_1`, or by an operation, as `tf.__operators__.add`."""
  if layer.name.startswith('tf.'):
    return True
  return re.sub(r'_\d+$', '', layer.name) == keras_generic_utils.to_snake_case(type(layer).__name__)


@contextlib.contextmanager
def layer_names_given_back() -> Iterator[None]:
  """A context: layers that are made after it have the names that they would have without the layers made in it.

  tf_keras numbers the names of layers on, and publicly can only forget all numbers.
  """
  numbers = {graph: dict(names) for graph, names in keras_backend.PER_GRAPH_OBJECT_NAME_UIDS.items()}
  observed = set(keras_backend.OBSERVED_NAMES)
  try:
    yield
  finally:
    keras_backend.reset_uids()
    for graph, names in numbers.items():
      keras_backend.PER_GRAPH_OBJECT_NAME_UIDS[graph] = collections.defaultdict(int, names)
    keras_backend.OBSERVED_NAMES.update(observed)


@contextlib.contextmanager
def layer_names_from_start() -> Iterator[None]:
  """A context: layers that are made in it have the names of a fresh process. After it, as `layer_names_given_back`."""
  with layer_names_given_back():
    keras_backend.reset_uids()
    yield


@contextlib.contextmanager
def softmax_mask(value: float) -> Iterator[None]:
  """A context: tf_keras's Softmax adds `value` to masked entries in place of -1e9, for which it has no argument."""
  own = keras_softmax._large_compatible_negative
  keras_softmax._large_compatible_negative = lambda tensor_type: value
  try:
    yield
  finally:
    keras_softmax._large_compatible_negative = own


def save_signatures(module: tf.Module, folder: str, signatures: Mapping[str, Any]) -> None:
  """Saves a SavedModel that has signatures alone.

  `tf.saved_model.save` also traces the calls of every Keras layer in the module, with and without `training`. Model
  Garden's Mask R-CNN, for example, cannot be called with `training` and without masks. `tf_keras.Model.save` has an
  argument against that.

  Args:
    module: holds the variables.
    folder: a new folder.
    signatures: the functions by name.
  """
  with keras_saved_model_utils.keras_option_scope(save_traces=False):
    tf.saved_model.save(module, folder, signatures=dict(signatures))


def random_generator_of(module: tf.Module) -> tf.random.Generator | None:
  """The tf_keras RandomGenerator that a layer draws from, None if it has none; it is not public."""
  generator = getattr(module, '_random_generator', None)
  return generator if hasattr(generator, 'make_seed_for_stateless_op') else None


def make_stateless(generator: Any) -> None:
  """Makes a tf_keras RandomGenerator stateless; publicly, its kind can be chosen only when a layer is made."""
  generator._rng_type = generator.RNG_STATELESS
  generator._generator = None
  generator._built = True


def has_batch_hooks(callback: tf_keras.callbacks.Callback) -> bool:
  """Whether a Keras callback overrides a batch hook; publicly, all callbacks have these methods."""
  return callback._implements_train_batch_hooks() or callback._implements_test_batch_hooks()


def global_seed() -> int | None:
  """The seed that this process has from `tf_keras.utils.set_random_seed`; None without it.

  TensorFlow's own seed alone does not count: tf_keras draws initial weights from another generator.
  """
  return context.global_seed() if getattr(keras_backend._SEED_GENERATOR, 'generator', None) else None


# Optimizers of tf_keras, legacy and new.

# The base classes whose `apply_gradients` all updates reach; new optimizers reduce and clip before that.
UPDATING_CLASSES: tuple[type, ...] = (tf_keras.optimizers.Optimizer.__mro__[1], tf_keras.optimizers.legacy.Optimizer)


def is_legacy(optimizer: tf_keras.optimizers.Optimizer) -> bool:
  """Whether an optimizer without wrappers is one of tf_keras' legacy ones."""
  return isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer)


def variables_of(owner: object) -> Sequence[tf.Variable]:
  """The variables of a model, metric or optimizer, of which legacy optimizers have a method; () of anything else."""
  found: Any = getattr(owner, 'variables', ())
  # Keras counts the vocabulary of a lookup layer among its weights.
  return [each for each in (found() if callable(found) else found) if hasattr(each, 'dtype')]


def is_variable_handle(resource: tf.Tensor) -> bool:
  """Whether a resource is a variable's: the handle of one knows dtype and shape; that of a lookup table does not."""
  data = getattr(resource, '_handle_data', None)
  return data is not None and data.is_set


def checkpoint_items_of(model: object) -> Mapping[str, Any]:
  """The further items that Model Garden's checkpoints hold of a model, by name; {} for a model that states none."""
  return getattr(model, 'checkpoint_items', {})


def create_legacy_variables(optimizer: tf_keras.optimizers.Optimizer, variables: Sequence[tf.Variable]) -> None:
  """Creates the variables of a legacy optimizer, as its first update does; only new ones have `build`."""
  if hasattr(optimizer, '_create_all_weights'):
    optimizer._create_all_weights(variables)


def weights_of(optimizer: tf_keras.optimizers.Optimizer) -> list[tf.Variable]:
  """The variables of a wrapper that are not in its public `variables`."""
  return list(getattr(optimizer, '_weights', ()))


def slot_numbers(optimizer: Any, variables: Mapping[str, tf.Variable]) -> dict[str, int]:
  """The places at which a new optimizer of tf_keras keeps the slots of variables; {} of others, which name them.

  Args:
    optimizer: any object.
    variables: name -> variable; those without slots are left out.
  """
  numbers = getattr(optimizer, '_index_dict', None)
  if not numbers:
    return {}
  found = {name: numbers.get(optimizer._var_key(variable)) for name, variable in variables.items()}
  return {name: number for name, number in found.items() if number is not None}


def loss_scale_variables(optimizer: tf_keras.optimizers.Optimizer) -> list[tf.Variable]:
  """The state of a dynamic loss scale, which is not in the `variables` of a LossScaleOptimizer."""
  return list((getattr(getattr(optimizer, '_loss_scale', None), '_weights', None) or {}).values())


def hyperparameter_variables(optimizer: tf_keras.optimizers.Optimizer) -> list[tf.Variable]:
  """The variables that hold hyperparameters; the public `learning_rate` is a number or a tensor."""
  values = [getattr(optimizer, '_learning_rate', None), *getattr(optimizer, '_hyper', {}).values()]
  return [value for value in values if isinstance(value, tf.Variable)]


def learning_rate_or_schedule(optimizer: tf_keras.optimizers.Optimizer) -> Any:
  """The learning rate that an optimizer was given; `learning_rate` of a new one is the schedule's present value."""
  return optimizer._get_hyper('learning_rate') if is_legacy(optimizer) else optimizer._learning_rate


def replace_schedule(
  optimizer: tf_keras.optimizers.Optimizer, schedule: tf_keras.optimizers.schedules.LearningRateSchedule
) -> None:
  """Replaces an optimizer's schedule; `learning_rate` of a new optimizer refuses that."""
  if is_legacy(optimizer):
    optimizer._hyper['learning_rate'] = schedule
  else:
    optimizer._learning_rate = schedule


def replace_global_clipping(
  optimizer: tf_keras.optimizers.Optimizer, clip: Callable[[Sequence[Any], float], list[Any]]
) -> None:
  """Lets `global_clipnorm` clip by another function, `clip(gradients, limit)`; there is no public hook."""
  limit = getattr(optimizer, 'global_clipnorm', None)
  if is_legacy(optimizer) and limit is not None:

    def clip_pairs(grads_and_vars):
      gradients, variables = zip(*grads_and_vars)
      return list(zip(clip(gradients, limit), variables))

    optimizer._global_clipnorm_fn = clip_pairs
  elif not is_legacy(optimizer) and limit:
    optimizer._clip_gradients = lambda grads: clip(grads, optimizer.global_clipnorm)


def replace_search_for_duplicates(optimizer: tf_keras.optimizers.Optimizer, are_unique: Callable[[], bool]) -> None:
  """Lets an optimizer search the indices of sparse gradients for equal ones only if asked; it has no public switch.

  Args:
    optimizer: without wrappers, legacy or new.
    are_unique: asked with each gradient: whether its indices are unique.
  """
  name = '_resource_apply_sparse_duplicate_indices' if is_legacy(optimizer) else '_deduplicate_sparse_grad'
  base = tf_keras.optimizers.legacy.Optimizer if is_legacy(optimizer) else tf_keras.optimizers.Optimizer
  if getattr(type(optimizer), name) is not getattr(base, name):
    return  # The class treats them in its own way.
  original = getattr(optimizer, name)
  unsearched = optimizer._resource_apply_sparse if is_legacy(optimizer) else lambda grads: grads
  setattr(optimizer, name, lambda *args, **kwargs: (unsearched if are_unique() else original)(*args, **kwargs))


def is_resource_variable(variable: Any) -> bool:
  """Whether a variable is one of a single device, not spread over replicas or a mesh; its class has no public name."""
  return type(variable) is resource_variable_ops.ResourceVariable


def adam_slots(optimizer: tf_keras.optimizers.Optimizer, variable: tf.Variable) -> tuple[tf.Variable, tf.Variable]:
  """The averages of a variable's gradients and of their squares in a new Adam or AdamW, which names them in private."""
  index = optimizer._index_dict[optimizer._var_key(variable)]
  return optimizer._momentums[index], optimizer._velocities[index]


def uses_weight_decay(optimizer: tf_keras.optimizers.Optimizer, variable: tf.Variable) -> bool:
  """Whether a new optimizer decays a variable; the result of `exclude_from_weight_decay` is not public."""
  return optimizer._use_weight_decay(variable)


def restrict_weight_decay(optimizer: tf_keras.optimizers.Optimizer, may_decay: Callable[[Any], bool]) -> None:
  """Adds a condition to a new optimizer's weight decay; `exclude_from_weight_decay` would replace those set before."""
  uses = optimizer._use_weight_decay
  optimizer._use_weight_decay = lambda variable: may_decay(variable) and uses(variable)


def decays_in_its_own_way(optimizer: tf_keras.optimizers.Optimizer) -> bool:
  """Whether the class of a new optimizer overrides the weight decay of tf_keras."""
  return type(optimizer)._apply_weight_decay is not tf_keras.optimizers.Optimizer._apply_weight_decay


def disable_weight_decay(optimizer: tf_keras.optimizers.Optimizer) -> None:
  """Stops a new optimizer from decaying; it keeps its `weight_decay`, for a caller that decays instead."""
  optimizer._apply_weight_decay = lambda variables: None


def wrap_legacy_weight_decay(
  optimizer: tf_keras.optimizers.Optimizer, wrap: Callable[[Callable[[str], bool]], Callable[[str], bool]]
) -> None:
  """Replaces the method of Model Garden's AdamWeightDecay or LAMB (it has two names) that selects variables by name."""
  for method in ('_do_use_weight_decay', '_use_weight_decay'):
    if hasattr(optimizer, method):
      setattr(optimizer, method, wrap(getattr(optimizer, method)))


def wrap_legacy_updates(
  optimizer: tf_keras.optimizers.Optimizer, around: Callable[[Any, Callable[[], Any]], object]
) -> None:
  """Lets `around(variable, update)` make each variable's update; new optimizers have a public `update_step`."""
  dense, sparse = optimizer._resource_apply_dense, optimizer._resource_apply_sparse_duplicate_indices
  takes_state = 'apply_state' in optimizer._dense_apply_args

  def apply_dense(grad, var, apply_state=None):
    kwargs = {'apply_state': apply_state} if takes_state else {}
    return around(var, lambda: dense(grad, var, **kwargs))

  def apply_sparse(grad, handle, indices, **kwargs):
    return around(handle, lambda: sparse(grad, handle, indices, **kwargs))

  optimizer._resource_apply_dense = apply_dense
  optimizer._resource_apply_sparse_duplicate_indices = apply_sparse


# By class, the attributes that our subclasses call, override or set; objects have them, classes do not always.
INHERITED: dict[type, tuple[str, ...]] = {
  tf.summary.SummaryWriter: ('_resource', '_mesh'),
  tf_keras.optimizers.Optimizer: (
    '_build_learning_rate',
    '_learning_rate',
    '_variables',
    '_index_dict',
    '_var_key',
    '_serialize_hyperparameter',
    '_distributed_apply_gradients_fn',
    '_use_weight_decay',
    '_no_dependency',
  ),
  tf_keras.optimizers.legacy.Optimizer: ('_create_hypers', '_create_slots'),
  tf_keras.layers.Layer: ('_dtype_policy', '_trackable_children'),
}

hide_remarks()
