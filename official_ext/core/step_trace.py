"""A task's step, traced: from a function that updates to a function from inputs to gradients."""

import contextlib
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional

import tensorflow as tf, tf_keras

from official_ext.core import distribute
from official_ext.core import gradient_tap
from official_ext.core import step_plan
from official_ext.core import step_random

do_not_convert = tf.autograph.experimental.do_not_convert


def _converted(function: Callable[..., Any]) -> Callable[..., Any]:
  """`function` as AutoGraph converts it inside a tf.function, to be traced into the graph at hand."""
  contexts = []
  tf.function(lambda: contexts.append(tf.__internal__.autograph.control_status_ctx())).get_concrete_function()
  return tf.__internal__.autograph.tf_convert(function, contexts[0])


class StepTrace:
  """The task's step on one replica's inputs. Replica context, everywhere.

  Attributes:
    tap: what stands between the task and the optimizer.
    forward_backward: `forward_backward(inputs, micro_step)` runs the step up to its update. Returns a dict: 'loss', a
      float32 scalar; 'logs', the float32 scalars that the step logs; 'gradients', one for each of `variables`.
    whole_step: `whole_step(inputs)` runs the step with its updates, and returns the same without gradients.
    variables: what the gradients belong to, without the unused.
    num_updates: how often the step called `apply_gradients` on the optimizer.
    num_other_updates: how often it called that of other optimizers.
    num_traces: how often Python ran the task's step.
    input_specs: type specs of one replica's inputs.
    log_names: the names in 'logs'.
  """

  def __init__(
      self,
      *,
      task: Any,
      model: tf_keras.Model,
      optimizer: Any,
      metrics: List[Any],
      global_step: tf.Variable,
      strategy: tf.distribute.Strategy,
      seed: int = 0,
      num_micro_steps: int = 1,
  ):
    self._task = task
    self._model = model
    self._optimizer = optimizer
    self._metrics = metrics
    self._global_step = global_step
    self._strategy = strategy
    self._seed = seed
    self._num_micro_steps = num_micro_steps
    self._xla_error: Optional[str] = None
    self._merge_calls = False
    self._sparse_gradients = False
    self.tap = gradient_tap.GradientTap(optimizer, on_cpu=distribute.device_type(strategy) == 'CPU')
    self.variables: List[tf.Variable] = []
    self.num_updates = 0
    self.num_other_updates = 0
    self.num_traces = 0
    self.input_specs: Any = None
    self.log_names: List[str] = []
    self._function = tf.function(self._forward_backward)
    self.forward_backward: Callable[..., Dict[str, Any]] = self._function
    self.whole_step: Callable[..., Dict[str, Any]] = self._whole_step

  def _forward_backward(self, inputs, micro_step):
    key = step_random.step_key(self._key(micro_step))
    with key, self.tap.capture() as calls, gradient_tap.other_updates() as others:
      logs = self._task.train_step(inputs, model=self._model, optimizer=self._optimizer, metrics=self._metrics)
    self.num_other_updates = len(others)
    return self._traced(inputs, logs, calls)

  def _whole_step(self, inputs):
    with step_random.step_key(self._key(0)):
      logs = self._task.train_step(inputs, model=self._model, optimizer=self._optimizer, metrics=self._metrics)
    return self._traced(inputs, logs, ())

  @do_not_convert
  def _key(self, micro_step):
    return step_random.StepKey(
        seed=self._seed,
        step=self._global_step.read_value(),
        replica=tf.distribute.get_replica_context().replica_id_in_sync_group,
        num_replicas=self._strategy.num_replicas_in_sync,
        micro_step=micro_step,
        num_micro_steps=self._num_micro_steps,
    )

  @do_not_convert
  def _traced(self, inputs, logs, calls):
    """Notes what the trace showed, returns what the update needs."""
    self.num_traces += 1
    self.num_updates = len(calls)
    self.input_specs = tf.nest.map_structure(_spec_of, inputs)
    pairs = [(g, v) for g, v in (calls[0] if len(calls) == 1 else ()) if g is not None]
    self.variables = [v for _, v in pairs]
    self._sparse_gradients = any(isinstance(g, tf.IndexedSlices) for g, _ in pairs)
    reported = {self._task.loss, 'training_loss', *(metric.name for metric in self._metrics)}
    scalars = {}
    for name, value in logs.items():
      value = tf.convert_to_tensor(value) if isinstance(value, (int, float)) else value
      if name not in reported and step_plan.is_number(value):
        scalars[name] = tf.cast(value, tf.float32)
    self.log_names = sorted(scalars)
    loss = tf.cast(logs[self._task.loss], tf.float32)
    return {'loss': tf.reduce_mean(loss), 'logs': scalars, 'gradients': [g for g, _ in pairs]}

  def probe(self, next_inputs: Callable[[Any], Any], iterator: Any, check_xla: bool) -> step_plan.StepTraits:
    """Traces one step without running it. Cross-replica context.

    Args:
      next_inputs: the trainer's `next_train_inputs`.
      iterator: the training iterator, not consumed.
      check_xla: whether to ask XLA if it can compile the step.

    Returns:
      What the trace shows.
    """
    graph = self._trace_graph(next_inputs, iterator, check_xla)
    if graph is None:  # Replicas meet in the forward pass: only their threads' own graph can hold it.
      self._merge_calls = True
      self.forward_backward = _converted(self._forward_backward)
      graph = self._trace_graph(next_inputs, iterator, False)
    static_shapes, input_bytes = step_plan.input_traits(self.input_specs)
    return step_plan.StepTraits(
        num_updates=self.num_updates,
        num_other_updates=self.num_other_updates,
        convolutions=step_plan.has_convolutions(graph),
        merge_calls=self._merge_calls,
        static_shapes=static_shapes,
        sparse_gradients=self._sparse_gradients,
        input_bytes=input_bytes,
        xla_error=self._xla_error or '',
    )

  def _trace_graph(self, next_inputs, iterator, check_xla):
    """The graph of one step up to its update; None where replicas meet inside it."""

    def of_replica(inputs):
      self.forward_backward(inputs, tf.constant(0, tf.int64))
      if check_xla and self._xla_error is None and step_plan.input_traits(self.input_specs)[0]:
        self._xla_error = self._compiler_error()  # Once, on the first replica.

    def one_step(iterator):
      self._strategy.run(of_replica, args=(next_inputs(iterator),))

    try:
      return tf.function(one_step, autograph=False).get_concrete_function(iterator).graph
    except RuntimeError as error:
      if 'merge_call' in str(error) and self.forward_backward is self._function:
        return None
      raise

  def _compiler_error(self) -> str:
    """Why XLA cannot turn the traced step into HLO; '' where it can. Runs nothing."""
    return compiler_error(lambda inputs: self._function(inputs, tf.constant(0, tf.int64)), self.input_specs)

  def set_plan(self, plan: step_plan.StepPlan, single_trace: bool) -> None:
    """Makes the two functions what `plan` says.

    Args:
      plan: the shape of the step.
      single_trace: whether the strategy traces one function for its (only) replica.
    """
    if plan.eager:
      self.forward_backward, self.whole_step = self._forward_backward, self._whole_step
      return
    # Updates meet other replicas, as the forward pass may: no function of its own can hold them then.
    owns_function = single_trace and not self._merge_calls
    self.whole_step = tf.function(self._whole_step) if owns_function else _converted(self._whole_step)
    if plan.shape == 'split':
      function = self._function
      self.forward_backward = tf.function(lambda *args: function(*args), jit_compile=True, autograph=False)

  @contextlib.contextmanager
  def watched(self, watch: Callable[[], ContextManager[None]]) -> Iterator[None]:
    """Within, the two functions are traced anew into the graph at hand, the task's step inside of `watch()`.

    Outside of a graph Python runs them.
    """

    def under_watch(function):
      def run(*args):
        with watch():
          return function(*args)

      return run if tf.executing_eagerly() else _converted(run)

    before = self.forward_backward, self.whole_step
    self.forward_backward, self.whole_step = under_watch(self._forward_backward), under_watch(self._whole_step)
    try:
      yield
    finally:
      self.forward_backward, self.whole_step = before


def compiler_error(function: Callable[[Any], Any], specs: Any) -> str:
  """Why XLA cannot turn a function into HLO; '' where it can. Runs nothing.

  Args:
    function: takes a structure of tensors.
    specs: the type specs of that structure.
  """
  flat = lambda *tensors: function(tf.nest.pack_sequence_as(specs, tensors))
  compiled = tf.function(flat, jit_compile=True, autograph=False)
  try:
    with tf.init_scope():
      compiled.experimental_get_compiler_ir(*tf.nest.flatten(specs))(stage='hlo')
  except (ValueError, TypeError, RuntimeError, tf.errors.OpError) as error:
    return compiler_message(error)
  return ''


def compiler_message(error: Exception) -> str:
  """What XLA says about a graph that it cannot compile, on one line of at most 200 characters."""
  text = ' '.join(str(error).split())
  start = max(0, text.find('Detected unsupported operations'))
  return text[start:start + 200] or type(error).__name__


def _spec_of(value: Any) -> Any:
  """The type spec of a tensor; None for what is none."""
  try:
    return tf.type_spec_from_value(value)
  except TypeError:
    return None
