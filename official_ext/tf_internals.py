"""All that this library uses of the inside of TensorFlow and tf_keras, each with the public API that is missing.

No other module imports `tensorflow.python` and the like, or reads an attribute with an underscore of their objects.
What subclasses call and override of their bases is listed in `INHERITED`. tests/tf_internals_test.py holds that all of
it exists, in the form that is relied upon: a TensorFlow that has changed it fails there, with the name.
"""

# pylint: disable=protected-access
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.core.protobuf import trackable_object_graph_pb2
from tensorflow.python import pywrap_tfe
from tensorflow.python.distribute import values as distribute_values
from tensorflow.python.eager import backprop
from tensorflow.python.eager import context
from tensorflow.python.framework import config as framework_config
from tensorflow.python.framework import op_callbacks
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_v2_func_graphs
from tensorflow.python.ops import custom_gradient
from tensorflow.python.ops import gen_image_ops
from tensorflow.python.ops import gen_random_ops
from tensorflow.python.ops import resource_variable_ops
import tf_keras

# Several workers.

# The store of keys and values, the states of workers and the reports of errors of the coordination service are methods
# of the eager context alone; tf.distribute shows none of them.
eager_context = context.context
# The type in which `configure_coordination_service` is told the workers; tf.config has no way to set its timeouts.
CoordinatedJob = coordination_config_pb2.CoordinatedJob
# What a variable is that each replica writes for itself, such as a batch normalization's statistics; tf.distribute
# tells a variable's `synchronization` only if it is not wrapped by mixed precision.
SyncOnReadVariable = distribute_values.SyncOnReadVariable
# tf.config.experimental enables determinism, and does not tell whether it is enabled.
is_op_determinism_enabled = framework_config.is_op_determinism_enabled

# Checkpoints.

# The graph of objects that every checkpoint holds; tf.train lists a checkpoint's values without whose they are.
TrackableObjectGraph = trackable_object_graph_pb2.TrackableObjectGraph
# The name under which a checkpoint holds that graph.
OBJECT_GRAPH_KEY = '_CHECKPOINTABLE_OBJECT_GRAPH'
# Writes the file named `checkpoint`; in public only tf.train.CheckpointManager does, at its own saves.
update_checkpoint_state = tf.__internal__.train.update_checkpoint_state


def async_save_error(checkpoint: tf.train.Checkpoint) -> BaseException | None:
  """What the save in flight has failed of so far; in public, the next save tells it."""
  return getattr(_async_helper(checkpoint), '_async_error', None)


def raise_async_save_error(checkpoint: tf.train.Checkpoint) -> None:
  """Raises what an asynchronous save has failed of; in public, the next save or the end of the process does."""
  helper = _async_helper(checkpoint)
  if helper is not None:
    helper._check_async_thread_error()


def _async_helper(checkpoint):
  """None until the first asynchronous save."""
  return getattr(checkpoint, '_async_checkpointer_impl', None)


# Operations and graphs.

# Called for every operation that runs eagerly; tf.debugging has only checks of its own that are made so.
add_op_callback = op_callbacks.add_op_callback
remove_op_callback = op_callbacks.remove_op_callback
# Calls the gradient of an operation, and what the tape calls in its place; tf.GradientTape tells of neither.
gradient_function = backprop._gradient_function
register_gradient_function = pywrap_tfe.TFE_Py_RegisterGradientFunction
# Whose `numpy` and `__array__` bring values to the host; tf.Tensor and tf.Variable are abstract.
EagerTensor = ops._EagerTensorBase
ResourceVariable = resource_variable_ops.BaseResourceVariable
# Graphs of branches and loops, which run inside another; a tf.Graph does not tell what it is for.
ControlFlowGraph = control_flow_v2_func_graphs.ControlFlowFuncGraph
WhileBodyGraph = control_flow_v2_func_graphs.WhileBodyFuncGraph
# Modules whose functions are replaced for a while: all random operations, those of images among them, end here, and no
# public hook lets them draw by a key.
random_ops = gen_random_ops
image_ops = gen_image_ops
# A module too. Functions with a custom gradient are called by these of it; tf.recompute_grad has no hook for draws.
custom_gradients = custom_gradient
CUSTOM_GRADIENT_CALLERS = ('_graph_mode_decorator', '_eager_mode_decorator')


def tensor_id(tensor: Any) -> int:
  """What tells an eager tensor from others and from those before it; `id` is given anew. -1 if there is none."""
  return getattr(tensor, '_id', -1)


def dtype_of_variable_at(handle: tf.Tensor) -> tf.DType | None:
  """The type of the variable that a resource refers to; None for tables and the like. No public function tells it."""
  data = getattr(handle, '_handle_data', None)
  return tf.as_dtype(data.shape_and_type[0].dtype) if data is not None and data.is_set else None


def autograph_converted(function: Callable[..., Any]) -> Callable[..., Any]:
  """`function` as AutoGraph converts it inside a tf.function; tf.autograph.to_graph has no calling context."""
  contexts: list[Any] = []
  tf.function(lambda: contexts.append(tf.__internal__.autograph.control_status_ctx())).get_concrete_function()
  return tf.__internal__.autograph.tf_convert(function, contexts[0])


def inputs_of(dataset: tf.data.Dataset) -> Sequence[tf.data.Dataset]:
  """The datasets that one is made from; tf.data has no public way up."""
  return dataset._inputs()


def resource_of(writer: tf.summary.SummaryWriter) -> Any:
  """The resource that summary operations write to; no public attribute has it."""
  return writer._resource


# Variables and models.


def whole_variable(variable: Any) -> Any:
  """The variable that a replica's copy is a part of; a copy does not tell it in public."""
  if isinstance(variable, distribute_values.DistributedVariable):
    return variable
  for holder in (getattr(variable, 'handle', None), variable):  # The handle, of variables that are composite tensors.
    container = getattr(holder, '_distributed_container', None)
    if container is not None and container() is not None:
      return container()
  return variable


def unique_id(variable: Any) -> Any:
  """What stays the same of a variable in all graphs; `ref` is that of the object in Python."""
  return getattr(variable, '_unique_id', id(variable))


def shared_name(variable: tf.Variable) -> str:
  """A variable's name without a number of an output; tf_keras names slots by it, and so are ours."""
  return variable._shared_name


def is_functional(model: tf_keras.Model) -> bool:
  """Whether a model is a graph of layers, by the functional API or tf_keras.Sequential; its class need not tell."""
  return bool(getattr(model, '_is_graph_network', False))


def random_generator_of(module: Any) -> Any:
  """The tf_keras RandomGenerator that a layer draws from; None if it has none. tf_keras shows it nowhere."""
  generator = getattr(module, '_random_generator', None)
  return generator if hasattr(generator, 'make_seed_for_stateless_op') else None


def make_stateless(generator: Any) -> None:
  """Takes the state from a tf_keras RandomGenerator that was made with one: the kind is chosen when a layer is made."""
  generator._rng_type = generator.RNG_STATELESS
  generator._generator = None
  generator._built = True


def has_batch_hooks(callback: tf_keras.callbacks.Callback) -> bool:
  """Whether a Keras callback wants to be called at batches; in public, all have these methods."""
  return callback._implements_train_batch_hooks() or callback._implements_test_batch_hooks()


# Optimizers of tf_keras, legacy and new.

# The last class whose `apply_gradients` all updates come to: the new optimizers' one is reduced and clipped above it.
UPDATING_CLASSES: tuple[Any, ...] = (tf_keras.optimizers.Optimizer.__mro__[1], tf_keras.optimizers.legacy.Optimizer)


def is_legacy(optimizer: Any) -> bool:
  """Whether an optimizer without wrappers is one of tf_keras' legacy ones."""
  return isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer)


def create_legacy_variables(optimizer: Any, variables: Sequence[tf.Variable]) -> None:
  """What the first update of a legacy optimizer does first; only new ones have `build`."""
  if hasattr(optimizer, '_create_all_weights'):
    optimizer._create_all_weights(variables)


def weights_of(optimizer: Any) -> list[tf.Variable]:
  """What a wrapper keeps of its own beside its public `variables`."""
  return list(getattr(optimizer, '_weights', ()))


def loss_scale_variables(optimizer: Any) -> list[tf.Variable]:
  """The state of a dynamic loss scale: not among the `variables` of a LossScaleOptimizer."""
  return list((getattr(getattr(optimizer, '_loss_scale', None), '_weights', None) or {}).values())


def hyperparameter_variables(optimizer: Any) -> list[tf.Variable]:
  """Those that keep constants of the configuration: `learning_rate` in public is a number or a tensor."""
  values = [getattr(optimizer, '_learning_rate', None), *getattr(optimizer, '_hyper', {}).values()]
  return [value for value in values if isinstance(value, tf.Variable)]


def learning_rate_or_schedule(optimizer: Any) -> Any:
  """What an optimizer was given; `learning_rate` of a new one is the schedule's value."""
  return optimizer._get_hyper('learning_rate') if is_legacy(optimizer) else optimizer._learning_rate


def replace_schedule(optimizer: Any, schedule: Any) -> None:
  """Puts a schedule in the place of another; `learning_rate` of a new optimizer refuses that."""
  if is_legacy(optimizer):
    optimizer._hyper['learning_rate'] = schedule
  else:
    optimizer._learning_rate = schedule


def replace_global_clipping(optimizer: Any, clip: Callable[[Sequence[Any], float], list[Any]]) -> None:
  """Lets `global_clipnorm` clip by another function, `clip(gradients, limit)`; a public hook is there for none."""
  limit = getattr(optimizer, 'global_clipnorm', None)
  if is_legacy(optimizer) and limit is not None:

    def clip_pairs(grads_and_vars):
      gradients, variables = zip(*grads_and_vars)
      return list(zip(clip(gradients, limit), variables))

    optimizer._global_clipnorm_fn = clip_pairs
  elif not is_legacy(optimizer) and limit:
    optimizer._clip_gradients = lambda grads: clip(grads, optimizer.global_clipnorm)


def uses_weight_decay(optimizer: Any, variable: Any) -> bool:
  """Whether a new optimizer decays a variable; `exclude_from_weight_decay` can be asked in no public way."""
  return optimizer._use_weight_decay(variable)


def restrict_weight_decay(optimizer: Any, may_decay: Callable[[Any], bool]) -> None:
  """Lets a new optimizer decay only what `may_decay` too; `exclude_from_weight_decay` replaces what was set before."""
  uses = optimizer._use_weight_decay
  optimizer._use_weight_decay = lambda variable: may_decay(variable) and uses(variable)


def decays_in_its_own_way(optimizer: Any) -> bool:
  """Whether a new optimizer's class has a weight decay other than that of tf_keras."""
  return type(optimizer)._apply_weight_decay is not tf_keras.optimizers.Optimizer._apply_weight_decay


def leave_out_weight_decay(optimizer: Any) -> None:
  """A new optimizer decays no more, and keeps its `weight_decay` for whoever does it instead."""
  optimizer._apply_weight_decay = lambda variables: None


def wrap_legacy_weight_decay(optimizer: Any, wrap: Callable[[Callable[[str], bool]], Callable[[str], bool]]) -> None:
  """Replaces the test by name whether to decay, of Model Garden's AdamWeightDecay and LAMB (two names of it)."""
  for method in ('_do_use_weight_decay', '_use_weight_decay'):
    if hasattr(optimizer, method):
      setattr(optimizer, method, wrap(getattr(optimizer, method)))


def wrap_legacy_updates(optimizer: Any, around: Callable[[Any, Callable[[], Any]], Any]) -> None:
  """`around(variable, update)` is called for each variable's update; new optimizers have a public `update_step`."""
  dense, sparse = optimizer._resource_apply_dense, optimizer._resource_apply_sparse_duplicate_indices
  takes_state = 'apply_state' in optimizer._dense_apply_args

  def apply_dense(grad, var, apply_state=None):
    kwargs = {'apply_state': apply_state} if takes_state else {}
    return around(var, lambda: dense(grad, var, **kwargs))

  def apply_sparse(grad, handle, indices, **kwargs):
    return around(handle, lambda: sparse(grad, handle, indices, **kwargs))

  optimizer._resource_apply_dense = apply_dense
  optimizer._resource_apply_sparse_duplicate_indices = apply_sparse


# (class, what our subclasses of it call, override or set). Objects have the attributes, not always the classes.
INHERITED: dict[Any, tuple[str, ...]] = {
  tf.train.CheckpointManager: ('_directory', '_checkpoint_prefix', '_step_counter', '_checkpoint_interval', '_init_fn'),
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
}
