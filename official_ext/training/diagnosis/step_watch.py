"""Watches the Python code of an eager step for effects that a compiled step lacks, and metrics for updates."""

import builtins
from collections.abc import Callable, Iterator, Sequence
import contextlib
import functools
import inspect
import random
import sys
import time
import types

import numpy as np
import tensorflow as tf
import tf_keras

from official_ext.base import protocols
from official_ext.base import tf_internals
from official_ext.base import tracebacks
from official_ext.training.diagnosis import findings
from official_ext.training.step import observers

_ONCE = 'a compiled step runs Python once, when it is traced, and never again'
_CLOCKS = (time.time, time.perf_counter, time.monotonic, time.time_ns, time.perf_counter_ns)
_MUTATORS = ('append', 'extend', 'insert', 'pop', 'remove', 'clear', 'add', 'update', 'setdefault', 'appendleft')
_HOST_CODES = frozenset(
  vars(cls)[name].__code__
  for cls in (tf_internals.EagerTensor, tf_internals.ResourceVariable)
  for name in ('numpy', '__array__')
  if hasattr(vars(cls).get(name), '__code__')
)
_ONE_HOT = inspect.unwrap(tf.one_hot).__code__
_IGNORED = 255  # The usual label of pixels that a segmentation ignores.
_TENSORFLOW = tuple(tf.__path__)
_PY_FUNCTIONS = 'script_ops.py'  # The place where TensorFlow calls the Python code of a tf.py_function, on the host.


class StepWatch:
  """Collects findings about the user's code that runs inside `watching`."""

  def __init__(self) -> None:
    self._found: dict[object, findings.Finding] = {}

  @property
  def found(self) -> list[findings.Finding]:
    """The findings in the order of discovery, each place once."""
    return list(self._found.values())

  @contextlib.contextmanager
  def watching(self, containers: dict[int, tuple[str, str]]) -> Iterator[None]:
    """Watches calls in this thread.

    Args:
      containers: (owner, name) of lists, dictionaries and sets that outlive a step, by their ids.
    """
    before = sys.getprofile()
    with self._watching_random():
      sys.setprofile(functools.partial(self._see, containers))
      try:
        yield
      finally:
        sys.setprofile(before)

  def _see(self, containers: dict[int, tuple[str, str]], frame: types.FrameType, event: str, argument: object) -> None:
    if event == 'c_call':
      if tracebacks.is_users(frame.f_code.co_filename):
        self._see_builtin(containers, frame, argument)
    elif event == 'call':
      code = frame.f_code
      if code in _HOST_CODES:
        self._see_host_call(frame)
      elif code.co_name == 'sparse_categorical_crossentropy':
        self._see_labels(frame)
      elif code is _ONE_HOT:
        self._see_one_hot(frame)
      elif (
        code.co_filename == random.__file__ and frame.f_back and tracebacks.is_users(frame.f_back.f_code.co_filename)
      ):
        self._report_random(frame.f_back, f'random.{code.co_name}')

  def _see_builtin(self, containers, frame, function):
    name = getattr(function, '__name__', '')
    owner = getattr(function, '__self__', None)
    if function is builtins.print:
      self._report(
        'warning', frame, f'print is called in the step: {_ONCE}', 'log the value from forward, or use tf.print'
      )
    elif function is builtins.open:
      self._report(
        'warning', frame, f'a file is opened in the step: {_ONCE}', 'open it in build_inputs or in an action'
      )
    elif function in _CLOCKS:
      self._report(
        'warning',
        frame,
        f'the clock is read in the step: {_ONCE}',
        'the logs have steps_per_second; self.step counts steps',
      )
    elif owner is random._inst:
      self._report_random(frame, f'random.{name}')
    elif name in _MUTATORS and id(owner) in containers:
      self._report(
        'warning',
        frame,
        f'{".".join(containers[id(owner)])}.{name} is called in the step: {_ONCE}',
        'log the value from forward, or keep it in a tf.Variable',
        containers[id(owner)],
      )

  def _see_host_call(self, frame):
    caller = frame.f_back
    while caller is not None and '/numpy/' in caller.f_code.co_filename:
      caller = caller.f_back
    if caller is None or not tracebacks.is_users(caller.f_code.co_filename) or _is_on_host(caller):
      return
    self._report(
      'error',
      caller,
      f'{frame.f_code.co_name} needs the value of a tensor, which a compiled step has not',
      "use TensorFlow's functions, or tf.numpy_function if it must be Python",
    )

  def _see_labels(self, frame):
    labels = frame.f_locals.get('y_true', frame.f_locals.get('target'))
    if not (tf.is_tensor(labels) and labels.dtype.is_floating):
      return
    caller = frame.f_back
    while caller is not None and not tracebacks.is_users(caller.f_code.co_filename):
      caller = caller.f_back
    where = 'task.train_data' if caller is None else _place(caller)
    self.add(float_labels(where, labels), 'labels')

  def _see_one_hot(self, frame):
    indices, depth = (frame.f_locals.get(name) for name in ('indices', 'depth'))
    caller = frame.f_back
    while caller is not None and caller.f_code.co_filename.startswith(_TENSORFLOW):
      caller = caller.f_back
    if caller is None or not tracebacks.is_users(caller.f_code.co_filename):
      return
    with contextlib.suppress(AttributeError, NotImplementedError, TypeError, ValueError):  # No value, in a graph.
      largest, places = int(np.max(np.asarray(indices))), int(depth)
      if largest >= places and largest != _IGNORED:
        self._report(
          'warning',
          caller,
          f'class numbers up to {largest} are one-hot encoded with {places} places: '
          f'those from {places} on become zeros, without an error',
          'count from 0, or raise the depth',
        )

  @contextlib.contextmanager
  def _watching_random(self):
    """Watches NumPy's random functions, which the profiler does not see as builtins."""
    originals = {
      name: function
      for name, function in vars(np.random).items()
      if name.islower() and callable(function) and name[0] != '_' and not isinstance(function, type)
    }
    for name, function in originals.items():
      setattr(np.random, name, self._watched(name, function))
    try:
      yield
    finally:
      for name, function in originals.items():
        setattr(np.random, name, function)

  def _watched(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
    def watched(*args, **kwargs):
      frame = sys._getframe(1)  # pylint: disable=protected-access
      if tracebacks.is_users(frame.f_code.co_filename) and not _is_on_host(frame):
        self._report_random(frame, f'np.random.{name}')
      return function(*args, **kwargs)

    return watched

  def _report_random(self, frame, name):
    self._report(
      'warning',
      frame,
      f'{name} is called in the step: {_ONCE}, so that every step has the same numbers',
      'use tf.random.stateless_uniform or the like with self.make_seed()',
    )

  def _report(self, level, frame, what, remedy, key=None):
    if not _is_on_host(frame):
      self.add(findings.Finding(level, _place(frame), what, remedy), key or (frame.f_code, frame.f_lineno))

  def add(self, finding: findings.Finding, key: object) -> None:
    """Adds a finding, unless this key has one already."""
    self._found.setdefault(key, finding)


def float_labels(where: str, labels: tf.Tensor) -> findings.Finding:
  """The finding about class numbers that come as floats."""
  whole = bool(np.all(np.asarray(labels) == np.floor(np.asarray(labels))))
  what = f'class numbers come as {labels.dtype.name}'
  if not whole:
    what += ', and not all of them are whole: the part behind the point is cut off'
  return findings.Finding(
    'warning' if whole else 'error', where, what, 'give labels as int32 in build_inputs, and do not scale them'
  )


def _place(frame: types.FrameType) -> str:
  return tracebacks.at_line(
    frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname.rpartition('<locals>.')[2]
  )


def _is_on_host(frame: types.FrameType | None) -> bool:
  """Whether TensorFlow has called this code for a tf.py_function or tf.numpy_function."""
  while frame is not None:
    if frame.f_code.co_filename.endswith(_PY_FUNCTIONS):
      return True
    frame = frame.f_back
  return False


class Metrics:
  """Metrics that count their updates.

  Attributes:
    all: the metrics that the task has built.
    float_labels: floats that a metric got instead of class numbers.
  """

  def __init__(self, metrics: Sequence[tf_keras.metrics.Metric] | None):
    self.all = list(metrics or ())
    self.float_labels: object = None
    self._updates = {id(metric): 0 for metric in self.all}
    self._before = {id(metric): _values(metric) for metric in self.all}

  @contextlib.contextmanager
  def watching(self) -> Iterator[None]:
    """A context that counts updates, and looks at their labels."""
    with contextlib.ExitStack() as stack:
      for metric in self.all:
        if hasattr(metric, 'update_state'):
          counting = functools.partial(self._counting, metric)
          stack.enter_context(observers.MethodPatch(metric, 'update_state', counting))
      yield

  def _counting(self, metric, update_state):

    def counting(*args, **kwargs):
      self._updates[id(metric)] += 1
      labels: tf.Tensor = args[0] if args else kwargs.get('y_true')
      if type(metric).__name__.startswith('Sparse') and tf.is_tensor(labels) and labels.dtype.is_floating:
        self.float_labels = labels
      return update_state(*args, **kwargs)

    return counting

  def unused(self, task: protocols.Task, step: str, logs: object) -> list[findings.Finding]:
    """The metrics that neither the step nor the task's aggregation of `logs` has updated."""
    unused = [metric for metric in self.all if not self._updates[id(metric)] and self._is_as_before(metric)]
    if unused and logs:
      with contextlib.suppress(Exception):  # It may need the logs of a whole evaluation.
        task.reduce_aggregated_logs(task.aggregate_logs(None, logs), global_step=0)
      unused = [metric for metric in unused if self._is_as_before(metric)]
    return [
      findings.Finding(
        'error',
        tracebacks.of_function(task.build_metrics),
        f'{step} never updates the metric {metric.name}',
        f'let forward log {metric.name!r}: (labels, predictions), or call its update_state',
      )
      for metric in unused
    ]

  def _is_as_before(self, metric) -> bool:
    before = self._before[id(metric)]
    return (
      bool(hasattr(metric, 'variables'))
      and len(before) == len(metric.variables)
      and all(np.array_equal(old, new, equal_nan=True) for old, new in zip(before, _values(metric)))
    )


def _values(metric: object) -> list[np.ndarray]:
  return [variable.numpy() for variable in tf_internals.variables_of(metric)]
