"""Catches the gradients that a task hands to `optimizer.apply_gradients`, and applies them later, reduced and clipped.

A task's `train_step` ends in `optimizer.apply_gradients(...)`. Accumulation, reduction over replicas, the test for
finite values and clipping come before that. While a step is traced inside `GradientTap.capture`, `apply_gradients` of
the optimizer instance only records its pairs: an unmodified step becomes a function from inputs to gradients.

`without_searches` speeds up the trace of a step in which replicas meet, as in synchronised batch normalisation.
`ReplicaContext.all_reduce` and `all_gather` have a custom gradient, for which TensorFlow walks backwards through all
that other replicas have computed so far, looking for variables. These functions use none, and would fail if the walk
found one. Of the 170 s to trace DeepLab v3 on MobileNet v2 for two replicas, 546 walks took 155 s.

`ReplicaStatistics` are variables that each replica updates separately, as in batch normalisation.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import contextlib
import functools
import threading
from typing import Any

from official.modeling.optimization import legacy_adamw
import tensorflow as tf
import tf_keras

from official_ext.base import model_garden_internals
from official_ext.base import tf_internals
from official_ext.training.optimization import groups as groups_lib
from official_ext.training.step import observers


class _Local(threading.local):
  """Whether one thread is inside such a function. Other replicas are traced in threads that take turns."""

  def __init__(self):
    self.is_meeting = False


_LOCAL = _Local()


def _noting(meet: Callable[..., object]) -> Callable[..., Any]:
  @functools.wraps(meet)
  def noted(*args, **kwargs):
    before, _LOCAL.is_meeting = _LOCAL.is_meeting, True
    try:
      return meet(*args, **kwargs)
    finally:
      _LOCAL.is_meeting = before

  return noted


def _skipping(find: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
  @functools.wraps(find)
  def found(*args, **kwargs):
    return [] if _LOCAL.is_meeting else find(*args, **kwargs)

  return found


_PATCHES = (
  *(observers.MethodPatch(tf.distribute.ReplicaContext, name, _noting) for name in ('all_reduce', 'all_gather')),
  observers.MethodPatch(tf_internals.custom_gradients, tf_internals.DEPENDENT_VARIABLES, _skipping),
)


@contextlib.contextmanager
def without_searches() -> Iterator[None]:
  """A context for traces of a step, in which a meeting of replicas costs the same, however large the graph is."""
  with observers.all_of(_PATCHES):
    yield


class ReplicaStatistics:
  """The variables of a model whose values differ between replicas, and their averages."""

  def __init__(self, model: tf_keras.Model, averages: Callable[[], Iterable[tf.Variable]] = lambda: ()):
    """Takes a model, whose variables may be made later.

    Args:
      model: the model.
      averages: returns the averages of its variables, when all of them exist.
    """
    self._model = model
    self._averages = averages
    self._agree_fn: Callable[[], None] | None = None

  def agree(self) -> None:
    """Gives every replica the mean of all replicas' values.

    A checkpoint holds only that mean, and a run that resumes from it must have the same values as the uninterrupted
    one.
    """
    variables = [*tf_internals.variables_of(self._model), *self._averages()]
    statistics = [v for v in variables if isinstance(v, tf_internals.SyncOnReadVariable)]
    if not statistics:
      return
    if self._agree_fn is None:

      def agree():
        for variable in statistics:
          variable.assign(variable.read_value())

      self._agree_fn = tf.function(agree, autograph=False)
    self._agree_fn()


Gradient = tf.Tensor | tf.IndexedSlices | None
GradientsAndVariables = list[tuple[Gradient, tf.Variable]]


@contextlib.contextmanager
def other_updates() -> Iterator[list[Any]]:
  """Lists the optimizers without a tap with which this thread updates, one entry for each update.

  A tapped optimizer's `apply_gradients` does not call its class's method.
  """
  optimizers: list[Any] = []

  def note(optimizer, pairs):
    del pairs
    optimizers.append(optimizer)
    return True

  with observers.observed(note):
    yield optimizers


class _Captured(threading.local):
  """What a tap holds of one thread: the calls that it records; the gradients with a known norm, and the norm."""

  calls: list[GradientsAndVariables] | None = None
  known: tuple[Sequence[Any], Any] = ((), None)


class GradientTap:
  """Stands between a task and one optimizer instance.

  Replicas are traced in threads that take turns, so the captured gradients belong to the thread that captures.

  Attributes:
    optimizer: the optimizer.
    on_cpu: see `global_norm`; a plan without XLA sets it to False.
  """

  def __init__(self, optimizer: tf_keras.optimizers.Optimizer, on_cpu: bool = False):
    """Puts the tap on `optimizer`.

    Args:
      optimizer: a tf_keras optimizer, legacy or new, or a LossScaleOptimizer around one.
      on_cpu: see `global_norm`.
    """
    self.optimizer: Any = optimizer
    self.on_cpu = on_cpu
    # Its own norm is slow on a CPU, and would be computed a second time.
    tf_internals.replace_global_clipping(inner_optimizer(optimizer), self._clip_by_global_norm)
    # Not of one thread: replicas meet in a legacy optimizer's update, which another thread then makes for all.
    self._num_applying = 0
    tf_internals.replace_search_for_duplicates(inner_optimizer(optimizer), lambda: self._num_applying > 0)
    self._local = _Captured()
    self._apply_gradients = optimizer.apply_gradients
    optimizer.apply_gradients = self._record_or_apply

  @contextlib.contextmanager
  def capture(self) -> Iterator[list[GradientsAndVariables]]:
    """Records this thread's calls of `apply_gradients`: one list of pairs for each."""
    outer = self._local.calls
    calls: list[GradientsAndVariables] = []
    self._local.calls = calls
    try:
      yield calls
    finally:
      self._local.calls = outer

  @tf_internals.autograph_unconverted
  def _record_or_apply(self, grads_and_vars, *args, **kwargs):
    calls = self._local.calls
    if calls is None:
      return self._apply_gradients(grads_and_vars, *args, **kwargs)
    groups = groups_lib.of(inner_optimizer(self.optimizer))
    calls.append(groups.without_frozen(grads_and_vars) if groups is not None else list(grads_and_vars))
    return None

  def apply_reduced(
    self, gradients: Sequence[Gradient], variables: Sequence[tf.Variable], norm: tf.Tensor | None = None
  ) -> None:
    """Clips and applies gradients that are already summed over the replicas, by the settings of the optimizer.

    Runs in a replica context. `clipnorm`, `clipvalue`, `global_clipnorm` and gradient transformers act inside
    `apply_gradients`, after its own reduction, which is switched off here. Model Garden's AdamWeightDecay clips before
    its reduction, and not at all without one, so its `gradient_clip_norm` is applied here.

    Args:
      gradients: of `variables`, `without_duplicates`.
      variables: the weights.
      norm: the global norm of `gradients`; None if it is not known.
    """
    inner = inner_optimizer(self.optimizer)
    clip_norm = getattr(inner, 'gradient_clip_norm', None) if isinstance(inner, legacy_adamw.AdamWeightDecay) else None
    self._local.known = gradients, norm
    self._num_applying += 1
    try:
      if clip_norm:
        gradients = self._clip_by_global_norm(gradients, clip_norm)
      self._apply_gradients(list(zip(gradients, variables)), experimental_aggregate_gradients=False)
    finally:
      self._num_applying -= 1
      self._local.known = (), None

  def _clip_by_global_norm(self, gradients, limit):
    """Multiplies gradients (see `global_norm`) by `limit / norm` if the norm is larger; all NaN if it is not finite."""
    known, norm = self._local.known
    # An optimizer may clip other gradients than it was given: transformed ones, or a group's.
    if norm is None or [id(gradient) for gradient in gradients] != [id(gradient) for gradient in known]:
      norm = global_norm(gradients, self.on_cpu)
    return tf.clip_by_global_norm(gradients, limit, use_norm=norm)[0]


@tf.autograph.experimental.do_not_convert
def inner_optimizer(optimizer: tf_keras.optimizers.Optimizer) -> Any:
  """The optimizer that makes the update, inside loss scaling and moving averages."""
  while True:
    if isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer):
      optimizer = optimizer.inner_optimizer
    elif hasattr(optimizer, 'update_average'):  # The optimizer is an exponential moving average around another one.
      optimizer = model_garden_internals.averaged_optimizer(optimizer)
    else:
      return optimizer


def with_shape_of(variable: tf.Variable, gradient: Gradient) -> Gradient:
  """An IndexedSlices with the variable's shape as a constant; any other gradient unchanged.

  The shape that a function returned is one of its results. XLA needs it while it compiles: it would take all that the
  function reads, weights among it, as constants of the program, and compile another program for each step.
  """
  if not isinstance(gradient, tf.IndexedSlices) or not variable.shape.is_fully_defined():
    return gradient
  return tf.IndexedSlices(gradient.values, gradient.indices, tf.constant(variable.shape.as_list(), tf.int32))


def without_duplicates(gradient: Gradient, in_xla: bool = False) -> Gradient:
  """Sums the values of equal indices in an IndexedSlices; returns any other gradient unchanged.

  An embedding's gradient has the norm and clipping of the dense gradient only if no row is in it twice.

  Args:
    gradient: of one variable.
    in_xla: whether XLA compiles this. There `tf.unique` is a loop of one round for each index, which takes a second for
      32,768 tokens on a GPU. Instead, the first of equal indices gets the sum, and the others 0 and an index after the
      last row, which XLA's gather clamps and its scatter ignores.
  """
  if not isinstance(gradient, tf.IndexedSlices):
    return gradient
  if not in_xla:
    indices, positions = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(indices))
    return tf.IndexedSlices(values, indices, gradient.dense_shape)
  indices, num_rows = gradient.indices, tf.cast(gradient.dense_shape[0], gradient.indices.dtype)
  numbers = tf.range(tf.size(indices))
  first = tf.gather(tf.math.unsorted_segment_min(numbers, indices, num_rows), indices)
  values = tf.math.unsorted_segment_sum(gradient.values, first, tf.size(indices))
  return tf.IndexedSlices(values, tf.where(tf.equal(first, numbers), indices, num_rows), gradient.dense_shape)


def accumulate(total: Gradient, gradient: Gradient) -> Gradient:
  """The sum of two gradients of one variable, each of which may be None, dense or IndexedSlices."""
  if total is None or gradient is None:
    return gradient if total is None else total
  if isinstance(total, tf.IndexedSlices) and isinstance(gradient, tf.IndexedSlices):
    return tf.IndexedSlices(
      tf.concat([total.values, gradient.values], 0),
      tf.concat([total.indices, gradient.indices], 0),
      total.dense_shape,
    )
  return tf.convert_to_tensor(total) + tf.convert_to_tensor(gradient)


def scale(gradient: Gradient, factor: float | tf.Tensor) -> Gradient:
  """`gradient` times a number."""
  if gradient is None:
    return None
  values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
  scaled = values * (tf.cast(factor, values.dtype) if tf.is_tensor(factor) else factor)
  if isinstance(gradient, tf.IndexedSlices):
    return tf.IndexedSlices(scaled, gradient.indices, gradient.dense_shape)
  return scaled


def global_norm(gradients: Sequence[Gradient], on_cpu: bool = False) -> tf.Tensor:
  """The L2 norm over all gradients: float32 scalar. IndexedSlices must be free of duplicates.

  Args:
    gradients: dense, sparse or None.
    on_cpu: whether XLA runs this on a CPU. There it adds the numbers of a sum one by one, and a product with ones is
      ten times as fast; elsewhere, a product may round its inputs.
  """
  squares: list[tf.Tensor] = []
  for gradient in gradients:
    if gradient is not None:
      values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
      square = tf.square(tf.cast(values, tf.float32))
      if on_cpu and square.shape.rank and square.shape[-1]:
        square = tf.linalg.matvec(tf.reshape(square, [-1, square.shape[-1]]), tf.ones([square.shape[-1]]))
      squares.append(tf.reduce_sum(square))
  return tf.sqrt(tf.add_n(squares)) if squares else tf.constant(0.0)


def build_optimizer(optimizer: tf_keras.optimizers.Optimizer, variables: Sequence[tf.Variable]) -> None:
  """Creates the variables of an optimizer (slots, iterations), as its first `apply_gradients` would.

  Example:

    >>> weight = tf.Variable([1.0, 2.0])
    >>> optimizer = tf_keras.optimizers.Adam()
    >>> ext.build_optimizer(optimizer, [weight])
    >>> len(optimizer.variables)
    3
  """
  tf_internals.create_legacy_variables(optimizer, variables)
  if hasattr(optimizer, 'build'):
    optimizer.build(variables)
  inner = inner_optimizer(optimizer)
  if inner is not optimizer:
    build_optimizer(inner, variables)


def variables_of(optimizer: tf_keras.optimizers.Optimizer) -> list[tf.Variable]:
  """All variables that an optimizer, or one inside it, writes."""
  found: dict[int, tf.Variable] = {}
  while optimizer is not None:
    for name in ('variables', 'weights'):
      variables = getattr(optimizer, name, ())
      found.update((id(variable), variable) for variable in (variables() if callable(variables) else variables))
    of_its_own = [*tf_internals.weights_of(optimizer), *tf_internals.loss_scale_variables(optimizer)]
    found.update((id(variable), variable) for variable in of_its_own)
    optimizer = getattr(optimizer, 'inner_optimizer', None) or model_garden_internals.averaged_optimizer(optimizer)
  return list(found.values())


def logs_of(optimizer: tf_keras.optimizers.Optimizer) -> dict[str, tf.Tensor]:
  """The logs of the optimizer that makes the update, about the last one: float32 scalars under 'optimizer/...'.

  Its method `logs` returns them, if it has one: a dictionary from names, always the same, to scalars read from its
  variables.
  """
  logs = _logs_method(optimizer)
  return {} if logs is None else {f'optimizer/{name}': tf.cast(value, tf.float32) for name, value in logs().items()}


def has_logs(optimizer: tf_keras.optimizers.Optimizer) -> bool:
  """Whether the optimizer that makes the update has logs: see `logs_of`."""
  return _logs_method(optimizer) is not None


def _logs_method(optimizer):
  logs = getattr(inner_optimizer(optimizer), 'logs', None)
  return logs if callable(logs) else None


def hyperparameters(optimizer: tf_keras.optimizers.Optimizer) -> list[tf.Variable]:
  """The variables in which an optimizer, and inner ones, keep constants of the configuration: the learning rate
  of a new optimizer; learning rate, momentum and decay of a legacy one."""
  return tf_internals.hyperparameter_variables(inner_optimizer(optimizer))
