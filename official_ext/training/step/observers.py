"""Observes layers, updates and methods of other libraries while a step is traced.

In this order: `MethodPatch` replaces a method in all threads, as replicas are traced in threads that take turns;
`observed` watches a thread's updates with any optimizer, and may hold them back; `followed` watches the calls of Keras
layers; `checked_indices` watches the reads of rows of a table; `noted_broadcasts` finds labels and predictions whose
shapes differ. No other module observes updates.
"""

from collections.abc import Callable, Iterable, Iterator
import contextlib
import functools
import threading
from typing import Any

import tensorflow as tf
import tf_keras

from official_ext.base import tf_internals


class MethodPatch:
  """A context in which a method is replaced. Threads may be in it at the same time: the last one restores it.

  A method that the owner inherits, also an object from its class, is inherited again afterwards.
  """

  def __init__(self, owner: object, name: str, wrap: Callable[[Any], object]):
    """Makes a context that may be entered repeatedly.

    Args:
      owner: a class or an object.
      name: of the method.
      wrap: a function from the method to its replacement.
    """
    self._owner = owner
    self._name = name
    self._wrap = wrap
    self._lock = threading.Lock()
    self._num_inside = 0
    self._own: Any = None  # The owner's own attribute of this name.

  def __enter__(self) -> None:
    with self._lock:
      self._num_inside += 1
      if self._num_inside == 1:
        self._own = vars(self._owner).get(self._name)
        self._kind.__setattr__(self._owner, self._name, self._wrap(getattr(self._owner, self._name)))

  def __exit__(self, *_: object) -> None:
    with self._lock:
      self._num_inside -= 1
      if not self._num_inside and self._own is not None:
        self._kind.__setattr__(self._owner, self._name, self._own)
      elif not self._num_inside:
        self._kind.__delattr__(self._owner, self._name)

  @property
  def _kind(self) -> Any:
    """By which an attribute is set directly: Keras' objects track their attributes."""
    return type if isinstance(self._owner, type) else object


@contextlib.contextmanager
def all_of(patches: Iterable[MethodPatch]) -> Iterator[None]:
  """A context in which several methods are replaced."""
  with contextlib.ExitStack() as stack:
    for patch in patches:
      stack.enter_context(patch)
    yield


# Called before an update with the optimizer and the (gradient, variable) pairs; gradients are summed over the replicas
# by then, if a new optimizer does that. Returns whether the update may be made.
Observer = Callable[[Any, list[tuple[Any, Any]]], bool]


class _Observers(threading.local):
  """The observers of one thread: of the updates of all optimizers, and of the calls of one object."""

  def __init__(self):
    self.of_all: tuple[Observer, ...] = ()
    self.of_one: tuple[Observer, ...] = ()


_OBSERVERS = _Observers()


def _announcing(original: Callable[..., object]) -> Callable[..., Any]:
  """A class's `apply_gradients` that notifies the observers first."""

  @tf.autograph.experimental.do_not_convert
  @functools.wraps(original)
  def apply_gradients(optimizer, grads_and_vars, *args, **kwargs):
    if not _OBSERVERS.of_all:
      return original(optimizer, grads_and_vars, *args, **kwargs)
    pairs = list(grads_and_vars)
    allowed = [observer(optimizer, pairs) for observer in _OBSERVERS.of_all]  # Every observer is called.
    return original(optimizer, pairs, *args, **kwargs) if all(allowed) else None

  return apply_gradients


def _announcing_of(optimizer: tf_keras.optimizers.Optimizer) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
  """The same for one object with an own `apply_gradients`."""

  def announcing(original):
    @tf.autograph.experimental.do_not_convert
    def apply_gradients(grads_and_vars, *args, **kwargs):
      pairs = list(grads_and_vars)
      allowed = [observer(optimizer, pairs) for observer in _OBSERVERS.of_one]
      return original(pairs, *args, **kwargs) if all(allowed) else None

    return apply_gradients

  return announcing


_OF_CLASSES = [MethodPatch(cls, 'apply_gradients', _announcing) for cls in tf_internals.UPDATING_CLASSES]


@contextlib.contextmanager
def observed(observer: Observer) -> Iterator[None]:
  """A context in which an observer is called for every update of this thread, once, when it reaches the class.

  Updates that a `GradientTap` captures do not reach that.
  """
  before = _OBSERVERS.of_all
  with all_of(_OF_CLASSES):
    _OBSERVERS.of_all = (*before, observer)
    try:
      yield
    finally:
      _OBSERVERS.of_all = before


class CallsOf:
  """Watches the calls of one object's `apply_gradients`, a tap's too."""

  def __init__(self, optimizer: tf_keras.optimizers.Optimizer):
    self._patch = MethodPatch(optimizer, 'apply_gradients', _announcing_of(optimizer))

  @contextlib.contextmanager
  def observed(self, observer: Observer) -> Iterator[None]:
    """A context in which an observer is called for this thread's calls."""
    before = _OBSERVERS.of_one
    with self._patch:
      _OBSERVERS.of_one = (*before, observer)
      try:
        yield
      finally:
        _OBSERVERS.of_one = before


class _Calls(threading.local):
  """The state of one thread: the layers that it is in, and who sees or changes their results."""

  def __init__(self):
    self.stack: list[Any] = []
    self.followers: list[Callable[[str, Any], None]] = []
    self.changers: list[Callable[[str, Any], Any]] = []


_CALLS = _Calls()


def current_path() -> str:
  """The layers that this thread is in, from the outside in, joined by '/'; '' outside of `followed`, or in none.

  The paths of inner layers do not include the outermost, which is usually the model.
  """
  names = [layer.name for layer in _CALLS.stack]
  return '/'.join(names[1:] or names)


def current_root() -> Any:
  """The outermost layer that this thread is in, usually the model; None outside of `followed`, or in none."""
  return _CALLS.stack[0] if _CALLS.stack else None


def _following(original):
  @functools.wraps(original)  # By the name of its module, AutoGraph knows not to convert it.
  def call(self, *args, **kwargs):
    if not (_CALLS.followers or _CALLS.changers):
      return original(self, *args, **kwargs)
    _CALLS.stack.append(self)
    try:
      outputs = original(self, *args, **kwargs)
      for change in _CALLS.changers:
        outputs = change(current_path(), outputs)
      for follower in _CALLS.followers:
        follower(current_path(), outputs)
      return outputs
    finally:
      _CALLS.stack.pop()

  return call


_PATCH = MethodPatch(tf_keras.layers.Layer, '__call__', _following)


@contextlib.contextmanager
def followed(on_output: Callable[[str, Any], None] = lambda path, outputs: None) -> Iterator[None]:
  """A context in which the calls of Keras layers in this thread are followed.

  Args:
    on_output: called with the path and the result of each layer, when it returns.
  """
  with _PATCH:
    _CALLS.followers.append(on_output)
    try:
      yield
    finally:
      _CALLS.followers.remove(on_output)


@contextlib.contextmanager
def changed(change: Callable[[str, Any], object]) -> Iterator[None]:
  """A context in which layers that are called in this thread return something else.

  Args:
    change: a function from the path and the result of a layer to its replacement.
  """
  with _PATCH:
    _CALLS.changers.append(change)
    try:
      yield
    finally:
      _CALLS.changers.remove(change)


# Rows of a table that do not exist. TensorFlow's kernels for CPUs refuse such an index, those for GPUs return zeros,
# and XLA reads the last row instead (https://openxla.org/xla/operation_semantics#gather).


class IndexCheck:
  """Whether all indices are in range by which one step reads rows: of embeddings, by label, by position."""

  def __init__(self) -> None:
    self._graph = _current_graph()
    self._bad: list[tf.Tensor] = []

  def note(self, bad: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Takes the result of one read.

    Args:
      bad: whether an index is out of range, a bool scalar.
      rows: what was read, of any shape.

    Returns:
      `rows`; in a graph inside the step's, such as the body of a loop, from which `bad` cannot be taken, NaN instead
      of rows of floating point if `bad`.
    """
    if _current_graph() is self._graph:
      self._bad.append(bad)
      return rows
    return tf.where(bad, tf.constant(float('nan'), rows.dtype), rows) if rows.dtype.is_floating else rows

  def spoiled(self, loss: tf.Tensor) -> tf.Tensor:
    """The loss of the step; NaN if an index was out of range, and the loss is of floating point.

    The evaluation of Model Garden's Mask R-CNN has the integer 0 for a loss.
    """
    if not self._bad or not loss.dtype.is_floating:
      return loss
    # A sum, not a choice: of an index that is constant, the choice would remove the read, and its error on a CPU.
    nan, zero = (tf.constant(value, loss.dtype) for value in (float('nan'), 0.0))
    return loss + tf.where(tf.reduce_any(tf.stack(self._bad)), nan, zero)


def _current_graph() -> tf.Graph | None:
  return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


class _Checks(threading.local):
  """The check of one thread; None outside of `checked_indices`."""

  def __init__(self) -> None:
    self.current: IndexCheck | None = None


_CHECKS = _Checks()


def _out_of_range(indices, sizes):
  """Whether an index is out of range, a bool scalar. `sizes`: of the axis, or of those that the last axis indexes."""
  indices = tf.cast(indices, tf.int64)
  return tf.reduce_any((indices < 0) | (indices >= tf.cast(sizes, tf.int64)))


def _checked(shape_of: Callable[[Any], Any], is_nd: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
  """Makes the replacement of an operation that reads rows.

  Args:
    shape_of: a function from its first argument to the shape of the table.
    is_nd: whether the last axis of its indices indexes several axes.
  """

  def wrap(original):
    @functools.wraps(original)
    def read(params, indices, *args, **kwargs):
      rows = original(params, indices, *args, **kwargs)
      check = _CHECKS.current
      if check is None or (is_nd and kwargs.get('bad_indices_policy')):
        return rows
      shape = tf.cast(shape_of(params), tf.int64)
      if is_nd:
        sizes = shape[: tf.shape(indices)[-1]]
      else:  # Of a variable, the axis is that after those of the batch.
        sizes = shape[args[0] if args else kwargs.get('batch_dims', 0)]
      return check.note(_out_of_range(indices, sizes), rows)

    return read

  return wrap


_shape_of_variable = tf_internals.variable_ops.variable_shape
_READS = (
  MethodPatch(tf_internals.array_ops, 'gather_v2', _checked(tf.shape, is_nd=False)),
  MethodPatch(tf_internals.array_ops, 'gather_nd', _checked(tf.shape, is_nd=True)),
  MethodPatch(tf_internals.variable_ops, 'resource_gather', _checked(_shape_of_variable, is_nd=False)),
  MethodPatch(tf_internals.variable_ops, 'resource_gather_nd', _checked(_shape_of_variable, is_nd=True)),
)


@contextlib.contextmanager
def checked_indices() -> Iterator[IndexCheck]:
  """A context in which the indices of this thread's reads of rows are checked; it yields their check."""
  before, check = _CHECKS.current, IndexCheck()
  with all_of(_READS):
    _CHECKS.current = check
    try:
      yield check
    finally:
      _CHECKS.current = before


# Labels [n] and predictions [n, 1], or the reverse, whose difference or product has shape [n, n].

# Operations through which a tensor is still a part of the input.
_FORWARDING = ('Cast', 'Identity', 'Reshape', 'Squeeze', 'ExpandDims', 'StridedSlice')


class _Broadcasts(threading.local):
  """The broadcasts of one thread's trace; None outside of `noted_broadcasts`."""

  def __init__(self) -> None:
    self.found: list[str] | None = None


_BROADCASTS = _Broadcasts()


def _is_input(tensor: tf.Tensor) -> bool:
  """Whether a tensor is an argument of its graph, neither a variable nor another value from outside."""
  captures = getattr(tensor.graph, 'internal_captures', ())
  return tensor.op.type == 'Placeholder' and all(tensor is not captured for captured in captures)


def _is_part_of_input(tensor: tf.Tensor) -> bool:
  while tensor.op.type in _FORWARDING:
    tensor = tensor.op.inputs[0]
  return _is_input(tensor)


def _is_computed_from_inputs(tensor: tf.Tensor) -> bool:
  """Whether a tensor is computed from the input and from something else, such as weights."""
  seen, waiting = {tensor.ref()}, [tensor]
  kinds: set[bool] = set()
  while waiting and len(kinds) < 2:
    each = waiting.pop()
    if each.op.type == 'Placeholder':
      kinds.add(_is_input(each))
    for parent in each.op.inputs:
      if parent.ref() not in seen:
        seen.add(parent.ref())
        waiting.append(parent)
  return len(kinds) == 2


def _noting_broadcast(original):
  @functools.wraps(original)
  def operation(x, y, *args, **kwargs):
    if _BROADCASTS.found is not None and _is_loss_of_pairs(x, y):
      _BROADCASTS.found.append(f'{x.shape.as_list()} and {y.shape.as_list()}')
    return original(x, y, *args, **kwargs)

  return operation


def _is_loss_of_pairs(x: Any, y: Any) -> bool:
  if not (tf.is_tensor(x) and tf.is_tensor(y)) or not x.dtype.is_floating or tf.executing_eagerly():
    return False
  if {x.shape.rank, y.shape.rank} != {1, 2}:
    return False
  vector, column = sorted((x, y), key=lambda tensor: tensor.shape.rank)
  size = vector.shape[0]
  if size == 1 or column.shape.as_list() != [size, 1]:
    return False
  return any(
    _is_part_of_input(label) and _is_computed_from_inputs(prediction) for label, prediction in ((x, y), (y, x))
  )


# Keras calls tf.compat.v2.math.squared_difference, which is the generated function itself.
_OPERATIONS = [
  *(MethodPatch(tf_internals.math_ops, name, _noting_broadcast) for name in ('sub', 'squared_difference', 'mul')),
  *(MethodPatch(api.math, 'squared_difference', _noting_broadcast) for api in (tf, tf.compat.v2)),
]


@contextlib.contextmanager
def noted_broadcasts() -> Iterator[list[str]]:
  """A context in which a graph is traced. It yields a list for the shapes of labels and predictions that broadcast.

  A mean over the result compares each label with each prediction: the model learns the mean of the labels.
  """
  before = _BROADCASTS.found
  found: list[str] = []
  with all_of(_OPERATIONS):
    _BROADCASTS.found = found
    try:
      yield found
    finally:
      _BROADCASTS.found = before


def broadcast_warning(shapes: str) -> tuple[str, str]:
  """The fault in the shapes of a label and a prediction, in words, and its remedy.

  Args:
    shapes: an element of the list of `noted_broadcasts`.
  """
  return (
    f'label and prediction have the shapes {shapes}: their difference or product has one value for each pair of them, '
    'and the model learns the mean of the labels',
    'give both one shape, such as by tf.squeeze(prediction, -1)',
  )
