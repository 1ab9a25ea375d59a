"""One training step: forward and backward, accumulate, all-reduce, test for finite, clip, apply.

The order is a contract and the same in every shape (see step_plan.py). A step is one update: it takes
`gradient_accumulation_steps` batches and applies their mean once.

A step whose loss or reduced gradient is not finite, or whose loss is a spike where that rule is on, changes nothing
but `global_step`: weights, slots, `optimizer.iterations`, the model's own state (batch normalisation) and the metrics
stay as they were, on all replicas.
"""

import threading
from typing import Any, Callable, Dict, List, Optional, Sequence

import tensorflow as tf, tf_keras

from official_ext.core import gradient_tap
from official_ext.core import step_plan
from official_ext.core import step_state
from official_ext.core import step_trace

do_not_convert = tf.autograph.experimental.do_not_convert


class TrainingStep:
  """Traces a task's train_step, and runs it in the planned shape."""

  def __init__(
      self,
      *,
      task: Any,
      model: Any,
      optimizer: Any,
      metrics: List[Any],
      train_loss: tf_keras.metrics.Metric,
      global_step: tf.Variable,
      state: step_state.StepState,
      strategy: tf.distribute.Strategy,
      seed: int = 0,
      gradient_accumulation_steps: int = 1,
      loss_spike_factor: float = 0.0,
      loss_spike_window: int = 1,
  ):
    self._trace = step_trace.StepTrace(
        task=task,
        model=model,
        optimizer=optimizer,
        metrics=metrics,
        global_step=global_step,
        strategy=strategy,
        seed=seed,
        num_micro_steps=gradient_accumulation_steps,
    )
    self._model = model
    self._optimizer = optimizer
    self._metrics = metrics
    self._train_loss = train_loss
    self._global_step = global_step
    self._state = state
    self._strategy = strategy
    self._num_micro_steps = gradient_accumulation_steps
    self._loss_spike_factor = loss_spike_factor
    self._loss_spike_window = loss_spike_window
    self._plan: Optional[step_plan.StepPlan] = None
    self._program: Callable[..., Any] = self._update
    self._program_of_many: Callable[..., Any] = self._update_stacked
    self._hopeful_program: Callable[..., Any] = self._update_hopefully
    self._shapes: Optional[tf.lookup.experimental.MutableHashTable] = None
    self.log_means: Dict[str, tf_keras.metrics.Mean] = {}
    with strategy.scope():
      self.grad_norm = tf_keras.metrics.Mean('grad_norm', dtype=tf.float32)
      # The loss of the steps that were left out: what is reported where all of them were.
      self.skipped_loss = tf_keras.metrics.Mean('skipped_loss', dtype=tf.float32)

  @property
  def plan(self) -> step_plan.StepPlan:
    assert self._plan is not None
    return self._plan

  @property
  def planned(self) -> bool:
    return self._plan is not None

  @property
  def probe(self) -> Callable[..., step_plan.StepTraits]:
    """See `StepTrace.probe`."""
    return self._trace.probe

  @property
  def single_trace(self) -> bool:
    """Whether replica code may hold the update: one replica without a thread of its own, or TPU."""
    if isinstance(self._strategy, (tf.distribute.OneDeviceStrategy, tf.distribute.TPUStrategy)):
      return True
    with self._strategy.scope():
      return not tf.distribute.has_strategy()  # The default strategy.

  def set_plan(self, plan: step_plan.StepPlan, static_shapes: bool = True) -> None:
    """Fixes the shape and makes what it needs."""
    self._plan = plan
    self._trace.set_plan(plan, self.single_trace)
    with self._strategy.scope():
      if not plan.manual_optimization:
        gradient_tap.build(self._optimizer, self._trace.variables)
      elif callable(getattr(gradient_tap.inner_optimizer(self._optimizer), 'logs', None)):
        gradient_tap.build(self._optimizer, self._model.trainable_variables)
      names = [*self._trace.log_names, *gradient_tap.logs_of(self._optimizer)]
      self.log_means = {name: tf_keras.metrics.Mean(name, dtype=tf.float32) for name in names}
    self._program = self._update
    if plan.shape == 'fused':
      self._program = tf.function(self._update, jit_compile=True, autograph=False)
      self._program_of_many = tf.function(self._update_stacked, jit_compile=True, autograph=False)
      self._hopeful_program = tf.function(self._update_hopefully, jit_compile=True, autograph=False)
    if plan.jit_compile and not static_shapes:
      self._shapes = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)

  def update_error(self) -> str:
    """Why XLA cannot compile a whole step in the fused shape; '' where it can. Runs nothing."""
    specs = [self._trace.input_specs] * self._num_micro_steps
    errors: List[str] = []
    of_replica = lambda: errors.append(step_trace.compiler_error(self._update, specs))
    tf.function(lambda: self._strategy.run(of_replica), autograph=False).get_concrete_function()
    return errors[0]

  # Running. `micro_batches` is a list of `gradient_accumulation_steps` inputs.

  @do_not_convert
  def run(self, micro_batches: Sequence[Any]) -> None:
    """One update. Cross-replica context."""
    if self._shapes is not None:
      self._note_shapes(micro_batches)
    if self.single_trace:
      self._strategy.run(self._program, args=(list(micro_batches),))
    elif self.plan.manual_optimization:
      self._strategy.run(self._manual_update, args=(micro_batches[0],))
      self._global_step.assign_add(1)
    else:
      self._update_replicas(list(micro_batches))

  @do_not_convert
  def run_many(self, batches: Sequence[Sequence[Any]]) -> None:
    """`plan.steps_per_execution` updates in one program. Cross-replica context, one replica.

    Args:
      batches: for each step its micro-batches.
    """
    flat = [micro_batch for micro_batches in batches for micro_batch in micro_batches]
    stacked = tf.nest.map_structure(lambda *tensors: tf.stack(tensors), *flat)
    if self.plan.manual_optimization:
      self._strategy.run(self._program_of_many, args=(stacked,))
      return
    ok = self._strategy.experimental_local_results(self._strategy.run(self._hopeful_program, args=(stacked,)))[0]

    def one_by_one():
      self._strategy.run(self._program_of_many, args=(stacked,))
      return 0

    tf.cond(ok, lambda: 0, one_by_one)

  def _update_hopefully(self, stacked):
    """`steps_per_execution` updates, or none of them where one is not finite. Replica context.

    Guarding every step costs a fifth of a small step. Here one select guards all of them; it needs a copy of what they
    write. Where it undoes them, they are done once more, each guarded by itself.

    Returns:
      Whether all were finite: bool scalar.
    """
    guarded = [*self._guarded_variables(), self._global_step]
    if self._loss_spike_factor:
      guarded += self._state.loss_variables
    before = [variable.read_value() for variable in guarded]

    def update(micro_batches, ok):
      out = self._reduced_gradients(*micro_batches)
      self._commit(out)
      if self._loss_spike_factor:
        self._state.record_loss(out['mean_loss'], out['ok'])
      self._global_step.assign_add(1)
      return tf.logical_and(ok, out['ok'])

    ok = self._for_each_step(stacked, update, tf.constant(True))
    for variable, value in zip(guarded, before):
      variable.assign(tf.where(ok, variable.read_value(), value))
    return ok

  def _update_stacked(self, stacked):
    """`steps_per_execution` updates, each guarded by itself. Replica context."""

    def update(micro_batches, state):
      self._update(micro_batches)
      return state

    self._for_each_step(stacked, update, tf.constant(0))

  def _for_each_step(self, stacked, update, state):
    """Runs `state = update(micro_batches, state)` on inputs stacked along a new first dimension."""
    micro_steps = self._num_micro_steps

    def body(step, state):
      micro_batches = [
          tf.nest.map_structure(lambda tensor, i=i: tensor[step * micro_steps + i], stacked)
          for i in range(micro_steps)
      ]
      return [step + 1, update(micro_batches, state)]

    if self.plan.unroll:
      for step in range(self.plan.steps_per_execution):
        _, state = body(step, state)
      return state
    return tf.while_loop(lambda step, _: step < self.plan.steps_per_execution, body, [tf.constant(0), state])[1]

  @do_not_convert
  def _update(self, micro_batches):
    """One whole step. Replica context, where that may hold the update."""
    if self.plan.manual_optimization:
      self._manual_update(micro_batches[0])
    else:
      self._guarded_update(micro_batches)
    self._global_step.assign_add(1)

  def _guarded_update(self, micro_batches):
    """The update, or nothing where it is not finite. Replica context.

    In an XLA program all is written, and then undone by a select, which becomes part of the loop that writes; a
    condition around the update would copy weights and slots.
    """
    is_fused = self.plan.shape == 'fused'
    guarded = self._guarded_variables() if is_fused else []
    before = [variable.read_value() for variable in guarded]
    out = self._reduced_gradients(*micro_batches)
    if not is_fused:
      tf.cond(out['ok'], lambda: self._commit(out), lambda: self._roll_back(out))
    else:
      self._commit(out)
      for variable, value in zip(guarded, before):
        variable.assign(tf.where(out['ok'], variable.read_value(), value))
    self._note_skipped_loss(out)
    self._record(out['ok'], out['mean_loss'])

  def _record(self, ok, mean_loss):
    """Notes what became of a step. Cross-replica context, or a single replica."""
    self._state.record_skip(ok, self._global_step + 1)
    if self._loss_spike_factor:
      self._state.record_loss(mean_loss, ok)

  def _guarded_variables(self):
    """All that a step writes, but for its own counters."""
    means = [self._train_loss, self.grad_norm, *self.log_means.values()]
    variables = [*self._trace.variables, *gradient_tap.variables_of(self._optimizer), *self._step_local_variables(),
                 *(variable for mean in means for variable in mean.variables)]
    return list({id(variable): variable for variable in variables}.values())

  def _update_replicas(self, micro_batches):
    """One whole step, where replicas have threads of their own: only the cross-replica context can hold a condition."""
    out = self._strategy.run(self._reduced_gradients, args=tuple(micro_batches))
    ok, mean_loss = (self._strategy.experimental_local_results(out[name])[0] for name in ('ok', 'mean_loss'))

    def commit():
      self._strategy.run(self._commit, args=(out,))
      return 0

    def roll_back():
      self._strategy.run(self._roll_back, args=(out,))
      return 0

    tf.cond(ok, commit, roll_back)
    self._strategy.run(self._note_skipped_loss, args=(out,))
    self._record(ok, mean_loss)
    self._global_step.assign_add(1)

  def _reduced_gradients(self, *micro_batches):
    """Forward and backward of every micro-batch, accumulated and summed over the replicas. Replica context."""
    before = [variable.read_value() for variable in self._step_local_variables()]
    outputs = [self._trace.forward_backward(inputs, tf.constant(i, tf.int64)) for i, inputs in enumerate(micro_batches)]
    gradients = list(outputs[0]['gradients'])
    for output in outputs[1:]:
      gradients = [gradient_tap.accumulate(t, g) for t, g in zip(gradients, output['gradients'])]
    if len(outputs) > 1:
      gradients = [gradient_tap.scale(g, 1 / len(outputs)) for g in gradients]
    logs = {name: tf.add_n([o['logs'][name] for o in outputs]) / len(outputs) for name in outputs[0]['logs']}
    loss = tf.add_n([output['loss'] for output in outputs]) / len(outputs)
    num_bad_losses = 1.0 - tf.cast(tf.math.is_finite(loss), tf.float32)
    mean_loss = loss / self._strategy.num_replicas_in_sync
    if self._strategy.num_replicas_in_sync > 1:
      context = tf.distribute.get_replica_context()
      *gradients, num_bad_losses, mean_loss = context.all_reduce(
          tf.distribute.ReduceOp.SUM, [*gradients, num_bad_losses, mean_loss])
    gradients = [gradient_tap.without_duplicates(g) for g in gradients]
    norm = self._trace.tap.global_norm(gradients)
    # Finite only where every gradient is; so large that it overflows, it could not be clipped nor squared.
    finite = tf.math.is_finite(norm)
    ok = tf.logical_and(tf.equal(num_bad_losses, 0.0), tf.logical_or(finite, self._loss_scaling_handles_overflow()))
    if self._loss_spike_factor:
      is_spike = self._state.is_spike(mean_loss, self._loss_spike_factor, self._loss_spike_window)
      ok = tf.logical_and(ok, tf.logical_not(is_spike))
    return dict(ok=ok, gradients=gradients, norm=norm, loss=loss, mean_loss=mean_loss, logs=logs, before=before)

  def _loss_scaling_handles_overflow(self):
    """Whether an infinite gradient only means that the dynamic loss scale is too high: bool."""
    optimizer = self._optimizer
    if isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer) and optimizer.dynamic:
      return tf.convert_to_tensor(optimizer.loss_scale) > 1.0  # It never falls below 1.
    return tf.constant(False)

  def _step_local_variables(self):
    """Variables that a forward pass may write: metrics and the model's own state, not frozen weights."""
    variables = [variable for metric in self._metrics for variable in getattr(metric, 'variables', ())]
    variables += [v for v in getattr(self._model, 'non_trainable_variables', ()) if not v.trainable]
    return list({id(variable): variable for variable in variables}.values())

  def _commit(self, out):
    self._trace.tap.apply_reduced(out['gradients'], self._trace.variables)
    self._update_means(out['loss'], out['logs'])
    # An overflow that loss scaling handles has no norm.
    norm = out['norm']
    finite = tf.math.is_finite(norm)
    weight = tf.cast(finite, tf.float32)
    self.grad_norm.update_state(tf.where(finite, norm, 0.0), sample_weight=weight)
    self._update_optimizer_means(weight)
    return 0

  def _roll_back(self, out):
    for variable, value in zip(self._step_local_variables(), out['before']):
      variable.assign(value)
    return 0

  def _note_skipped_loss(self, out):
    self.skipped_loss.update_state(
        tf.where(out['ok'], 0.0, out['loss']), sample_weight=1.0 - tf.cast(out['ok'], tf.float32))

  def _update_means(self, loss, logs):
    self._train_loss.update_state(loss)
    for name, value in logs.items():
      self.log_means[name].update_state(value)

  def _update_optimizer_means(self, weight):
    for name, value in gradient_tap.logs_of(self._optimizer).items():
      self.log_means[name].update_state(value, sample_weight=weight)

  def _manual_update(self, inputs):
    """The step of a task that owns its updates: its gradients are applied where it applies them."""
    out = self._trace.whole_step(inputs)
    self._update_means(out['loss'], out['logs'])
    self._update_optimizer_means(1.0)

  @do_not_convert
  def rehearse(self, micro_batches: Sequence[Any], new_view: Callable[[], Any]) -> Any:
    """One update, neither guarded nor compiled, whose inside is looked at. Cross-replica context.

    Args:
      micro_batches: as for `run`.
      new_view: makes what looks at one replica: `watch()`, a context, is held around the task's step; `of_update` is
        called with the weights, their values before the update, and a dict: 'loss', and 'gradients', summed over the
        replicas, or None where the task owns its updates.

    Returns:
      What `of_update` has returned on the first replica: a structure of tensors.
    """

    local = threading.local()  # Replicas that meet in the forward pass run in threads of their own.

    def of_replica(*micro_batches):
      local.view = new_view()
      if self.plan.manual_optimization:
        variables = self._model.trainable_variables
        before = [variable.read_value() for variable in variables]
        out = {**self._trace.whole_step(micro_batches[0]), 'gradients': None}
      else:
        out = self._reduced_gradients(*micro_batches)
        variables = self._trace.variables
        before = [variable.read_value() for variable in variables]
        self._trace.tap.apply_reduced(out['gradients'], variables)
      return local.view.of_update(variables, before, out)

    with self._trace.watched(lambda: local.view.watch()):
      outputs = self._strategy.run(of_replica, args=tuple(micro_batches))
    return tf.nest.map_structure(lambda output: self._strategy.experimental_local_results(output)[0], outputs)

  # Recompilation.

  def _note_shapes(self, micro_batches):
    """Remembers the shapes of the inputs: XLA compiles once for each."""
    for inputs in micro_batches:
      local = tf.nest.map_structure(lambda x: self._strategy.experimental_local_results(x)[0], inputs)
      shapes = [tf.strings.join(['(', tf.strings.reduce_join(tf.strings.as_string(tf.shape(t)), separator=', '), ')'])
                for t in tf.nest.flatten(local, expand_composites=True)]
      self._shapes.insert(tf.strings.reduce_join(shapes, separator=' '), tf.constant(1, tf.int64))

  def input_shapes(self) -> List[str]:
    """The shapes seen so far, one string for each combination; [] where shapes are fixed or nothing is compiled."""
    if self._shapes is None:
      return []
    return sorted(key.decode() for key in self._shapes.export()[0].numpy())
