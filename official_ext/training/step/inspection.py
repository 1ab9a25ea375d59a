"""`trainer.inspect`: norms of gradients, weights and updates, statistics of activations, layer by layer.

Before a program of steps that is to be inspected, its first step is rehearsed, uncompiled and watched, on the batches
that the program will take, with its random numbers. Then every variable that the rehearsal could write gets its value
back, and the program runs on these batches. Nothing is added to the programs of the training.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import fnmatch
import time
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import tf_internals
from official_ext.training.config import definitions
from official_ext.training.optimization import groups
from official_ext.training.step import gradient_tap
from official_ext.training.step import observers
from official_ext.training.step import training_step

_SCALARS, _HISTOGRAMS = 'scalars', 'histograms'
_NUM_BUCKETS = 30  # As tf.summary.histogram has.


class Inspector:
  """Rehearses steps and writes their statistics to the default summary writer, under `inspect/`.

  Attributes:
    seconds: of the last inspection.
  """

  def __init__(
    self,
    config: definitions.InspectConfig,
    step: training_step.TrainingStep,
    optimizer: tf_keras.optimizers.Optimizer,
    take_batches: Callable[[tf.data.Iterator, int], list[Any]],
    model: tf_keras.Model | None = None,
  ):
    """Makes an inspector.

    Args:
      config: `trainer.inspect`.
      step: the trainer's, planned before the first inspection.
      optimizer: the trainer's.
      take_batches: takes the micro-batches of one step from an iterator; its second argument is the number of steps
        between the current one and that.
      model: whose networks name the variables, where it is a container of several: see groups.py.
    """
    self._model = model
    self.seconds = 0.0
    self._config = config
    self._step = step
    self._calls = observers.CallsOf(optimizer)
    self._take_batches = take_batches
    self._programs: dict[int, tuple[Any, Any, Any]] = {}  # By their lengths.
    self._names: dict[str, list[str]] = {}
    self._rehearsal = tf.function(self._rehearse, autograph=False)

  def is_due(self, step: int, num_steps: int) -> bool:
    """Whether the program of `num_steps` steps after `step` holds a multiple of `every`."""
    every = self._config.every
    return every > 0 and (step + num_steps) // every > step // every

  def run(self, iterator: tf.data.Iterator, num_steps: int, step: int) -> None:
    """Inspects the first step of a program, and then runs the program. Cross-replica context, outside of a graph.

    Args:
      iterator: the training iterator.
      num_steps: the program's steps: `plan.steps_per_execution`, or 1.
      step: the number of steps done before.

    Raises:
      UserError: `trainer.inspect.layers` matches none.
    """
    start = time.perf_counter()
    take, run, spec = self._program(iterator, num_steps)
    self.seconds = time.perf_counter() - start
    batches = take(iterator)
    start = time.perf_counter()
    self._inspect(batches[0], spec, step + 1)
    self.seconds += time.perf_counter() - start
    run(batches)

  def look(self, iterator: tf.data.Iterator, step: int) -> None:
    """Inspects the step after `step`, whose batches can be taken again. Cross-replica context, outside of a graph.

    Args:
      iterator: the training iterator.
      step: the number of steps done before.

    Raises:
      UserError: `trainer.inspect.layers` matches none.
    """
    start = time.perf_counter()
    take, _, spec = self._program(iterator, 1)
    self._inspect(take(iterator)[0], spec, step + 1)
    self.seconds = time.perf_counter() - start

  def _program(self, iterator, num_steps):
    """(takes the batches of some steps, runs these steps, the type specs of a step's batches; None for any)."""
    assert self._step.plan is not None
    if self._step.plan.eager:
      return self._taker(num_steps), self._step.run, None
    if num_steps not in self._programs:
      take = tf.function(self._taker(num_steps)).get_concrete_function(iterator)
      specs = take.structured_outputs
      run = tf.function(self._step.run, autograph=False).get_concrete_function(specs)
      self._programs[num_steps] = take, run, specs[0]
    return self._programs[num_steps]

  def _taker(self, num_steps):
    return lambda iterator: [self._take_batches(iterator, i) for i in range(num_steps)]

  def _inspect(self, micro_batches, spec, step):
    rehearsal = self._rehearsal.get_concrete_function(micro_batches if spec is None else spec)
    with _unchanged(rehearsal):
      shown = rehearsal(micro_batches)
    with tf.summary.record_if(True):
      self._write(shown, step)

  def _rehearse(self, micro_batches):
    views: list[_View] = []

    def new_view():
      views.append(_View(self._config, self._calls, self._model))
      return views[-1]

    shown = self._step.rehearse(micro_batches, new_view)
    self._names = views[0].names
    if not self._names[_SCALARS]:
      raise errors.UserError(
        f'trainer.inspect.layers: no layer has a name like {" or ".join(self._config.layers)}; some that there are: '
        f'{", ".join(sorted(views[0].left_out)[:8])}'
      )
    return shown

  def _write(self, shown, step):
    """Writes all values in one record: `tf.summary.scalar` takes a millisecond each, `tf.summary.histogram` many."""
    # pylint: disable=g-import-not-at-top
    # Here: they bring TensorBoard's own part of TensorFlow, which a training that does not inspect need not import.
    from tensorboard.compat.proto import summary_pb2
    from tensorboard.plugins.histogram import metadata as histogram_metadata
    from tensorboard.plugins.scalar import summary_v2 as scalars
    from tensorboard.util import tensor_util

    summary = summary_pb2.Summary()
    for name, value in zip(self._names[_SCALARS], shown[_SCALARS].numpy()):
      summary.value.extend(scalars.scalar_pb(f'inspect/{name}', value).value)
    for name, tensor in zip(self._names[_HISTOGRAMS], shown[_HISTOGRAMS]):
      summary.value.add(
        tag=f'inspect/{name}',
        metadata=histogram_metadata.create_summary_metadata(None, None),
        tensor=tensor_util.make_tensor_proto(_histogram(tensor.numpy()), dtype=np.float64),
      )
    tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=step)


class _View:
  """The statistics of one replica while it is traced.

  Attributes:
    names: the names of the results of `of_update`, by its keys.
    left_out: the layers that `trainer.inspect.layers` does not match.
  """

  def __init__(self, config, calls, model):
    self.names: dict[str, list[str]] = {_SCALARS: [], _HISTOGRAMS: []}
    self.left_out: set = set()
    self._config = config
    self._calls = calls
    self._model = model
    self._outputs: list[tuple[str, tf.Tensor]] = []
    self._gradients: dict[Any, Any] = {}
    self._values: dict[str, list[tf.Tensor]] = {_SCALARS: [], _HISTOGRAMS: []}
    self._num_passes = 0

  @contextlib.contextmanager
  def watch(self) -> Iterator[None]:
    """To be held around the task's step. Of several micro-batches the first one's activations count."""
    self._num_passes += 1
    with contextlib.ExitStack() as stack:
      if self._config.activations and self._num_passes == 1:
        stack.enter_context(observers.followed(self._on_output))
      stack.enter_context(observers.observed(self._on_update))
      stack.enter_context(self._calls.observed(self._on_update))
      yield

  def _on_update(self, optimizer, pairs):
    """Keeps the last gradient of each variable."""
    del optimizer
    self._gradients.update((variable.ref(), gradient) for gradient, variable in pairs if gradient is not None)
    return True

  def _on_output(self, path, outputs):
    known = {id(tensor) for _, tensor in self._outputs}
    for tensor in tf.nest.flatten(outputs):
      tensor = tensor.flat_values if isinstance(tensor, tf.RaggedTensor) else tensor
      # A layer that returns the result of one inside it adds nothing.
      if isinstance(tensor, tf.Tensor) and tensor.dtype.is_floating and id(tensor) not in known:
        self._outputs.append((path, tensor))

  def of_update(
    self, variables: Sequence[tf.Variable], before: Sequence[tf.Tensor], loss: tf.Tensor, gradients: Sequence[tf.Tensor]
  ) -> Any:
    """The statistics, after the update.

    Args:
      variables: the weights.
      before: their values before the update.
      loss: float32 scalar, not shown.
      gradients: summed over the replicas; None takes the gradients that the task has handed to its optimizers.

    Returns:
      A dict: 'scalars', a float32 vector; 'histograms', a list of float32 tensors. Their names are in `names`.
    """
    del loss
    if gradients is None:
      gradients = [self._gradients.get(variable.ref()) for variable in variables]
    self._show_weights(variables, before, gradients)
    self._show_activations()
    scalars = self._values[_SCALARS]
    return {_SCALARS: tf.stack(scalars) if scalars else tf.zeros([0]), _HISTOGRAMS: self._values[_HISTOGRAMS]}

  def _show_weights(self, variables, before, gradients):
    sums: dict[str, dict[str, tf.Tensor]] = {}
    names = groups.by_attribute(self._model)
    for variable, value, gradient in zip(variables, before, gradients):
      name = names.get(groups.key_of(variable), variable.name.partition(':')[0])
      layer = name.rpartition('/')[0] or name
      if not self._is_wanted(layer):
        continue
      values = {'weight': value, 'update': variable.read_value() - value}
      if gradient is not None and _is_here(gradient):
        values['gradient'] = _dense_values(gradient)
      for kind, tensor in values.items():
        squares = tf.reduce_sum(tf.square(tf.cast(tensor, tf.float32)))
        kinds = sums.setdefault(layer, {})
        kinds[kind] = kinds[kind] + squares if kind in kinds else squares
      if self._config.histograms:
        self._add(_HISTOGRAMS, f'weights/{name}', value)
        if 'gradient' in values:
          self._add(_HISTOGRAMS, f'gradients/{name}', values['gradient'])
    for layer, kinds in sums.items():
      norms = {kind: tf.sqrt(total) for kind, total in kinds.items()}
      if 'gradient' in norms:
        self._add(_SCALARS, f'gradient_norm/{layer}', norms['gradient'])
      self._add(_SCALARS, f'weight_norm/{layer}', norms['weight'])
      self._add(_SCALARS, f'update_to_weight/{layer}', tf.math.divide_no_nan(norms['update'], norms['weight']))

  def _show_activations(self):
    calls: dict[str, int] = {}
    for path, tensor in self._outputs:
      if not _is_here(tensor) or not self._is_wanted(path):
        continue
      calls[path] = calls.get(path, 0) + 1
      name = path if calls[path] == 1 else f'{path}:{calls[path]}'
      values = tf.cast(tensor, tf.float32)
      mean = tf.reduce_mean(values)
      self._add(_SCALARS, f'activation_mean/{name}', mean)
      self._add(_SCALARS, f'activation_std/{name}', tf.sqrt(tf.reduce_mean(tf.square(values - mean))))
      self._add(_SCALARS, f'activation_zeros/{name}', tf.reduce_mean(tf.cast(tf.equal(values, 0.0), tf.float32)))
      self._add(_SCALARS, f'activation_max_abs/{name}', tf.reduce_max(tf.abs(values)))
      if self._config.histograms:
        self._add(_HISTOGRAMS, f'activations/{name}', values)

  def _is_wanted(self, layer):
    patterns = self._config.layers
    if not patterns or any(fnmatch.fnmatchcase(layer, pattern) for pattern in patterns):
      return True
    self.left_out.add(layer)
    return False

  def _add(self, key, name, value):
    self.names[key].append(name)
    self._values[key].append(tf.cast(value, tf.float32))


def _histogram(values: np.ndarray) -> np.ndarray:
  """Of the finite values, [left edge, right edge, count] of each bucket, as TensorBoard takes them."""
  values = values[np.isfinite(values)]
  counts, edges = np.histogram(values, _NUM_BUCKETS)
  return np.stack([edges[:-1], edges[1:], counts], axis=1)


def _dense_values(gradient: gradient_tap.Gradient) -> tf.Tensor:
  """The numbers of a gradient: of a sparse one the stored ones, every row once."""
  gradient = gradient_tap.without_duplicates(gradient)
  return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _is_here(tensor: tf.Tensor) -> bool:
  """Whether a tensor is one of the current graph, and not of the body of a loop or a function inside it."""
  tensor = tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor
  return tensor.graph is tf.compat.v1.get_default_graph()


@contextlib.contextmanager
def _unchanged(function: Any) -> Iterator[None]:
  """Gives all variables that a concrete function can write their values back.

  A value is kept by reference: TensorFlow copies it only where the variable is written meanwhile.
  """
  handles = [tensor for tensor in function.captured_inputs if tensor.dtype == tf.resource]
  types = [(handle, tf_internals.dtype_of_variable_at(handle)) for handle in handles]
  kept = [
    (handle, tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)) for handle, dtype in types if dtype is not None
  ]
  try:
    yield
  finally:
    for handle, value in kept:
      tf.raw_ops.AssignVariableOp(resource=handle, value=value)
