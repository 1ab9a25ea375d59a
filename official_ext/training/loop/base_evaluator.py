"""Evaluates exactly: every example counts once, on any number of replicas, and the training weights come back.

`EvaluationLength` notices an evaluation of all examples that runs past its end, because its input repeats.
`EvaluationState` counts the batches of an evaluation, and its examples that are not finite. `Evaluator` is the part of
`ext.Trainer` that evaluates.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import functools
import json
from typing import Any

from absl import logging
from official.core import base_task as official_base_task
import orbit
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import protocols
from official_ext.base import tracebacks
from official_ext.base.run_folder import run_files
from official_ext.data import bad_examples
from official_ext.data import batch_axes
from official_ext.data import config_fields
from official_ext.data import pipelines
from official_ext.training.checkpoints import best as best_lib
from official_ext.training.config import definitions
from official_ext.training.devices import workers
from official_ext.training.loop import garden
from official_ext.training.loop import training_input
from official_ext.training.optimization import ema_optimizer
from official_ext.training.step import keras_version
from official_ext.training.step import observers
from official_ext.training.step import step_plan
from official_ext.training.step import step_random
from official_ext.training.tasks import base_task
from official_ext.training.tasks import model_garden
from official_ext.training.writers import tensorboard
from official_ext.training.writers import writers

_MARGIN = 10  # An evaluation may be this many times as long as expected before its batches no longer count as progress.
_MANY = 10_000  # Batches after which an evaluation of unknown length is reported; again at each doubling.


class EvaluationLength:
  """The number of batches of the present evaluation, compared with the number that it should have.

  Attributes:
    is_exceeded: whether the present evaluation has taken more than 10 times the expected number of batches. Its
      further batches do not count as progress.
  """

  def __init__(self):
    self.is_exceeded = False
    self._expected: int | None = None
    self._before: int | None = None
    self._report_at: int | None = None
    self._takes_all = False

  def begin(self, expected: int | None, takes_all: bool) -> None:
    """Starts an evaluation.

    Args:
      expected: how many batches it has at most; None if that is not known.
      takes_all: whether it ends with its input, not after a number of steps.
    """
    self.is_exceeded = False
    self._expected = self._before if expected is None else expected
    self._report_at = None
    self._takes_all = takes_all
    if takes_all:
      self._report_at = _MANY if self._expected is None else self._expected + 1

  def count(self, batches: int) -> None:
    """Warns if an evaluation has taken more batches than it should have, and whenever that number doubles."""
    if self._takes_all and self._expected is not None:
      self.is_exceeded = batches > _MARGIN * max(self._expected, 1)
    if self._report_at is None or batches < self._report_at:
      return
    self._report_at = 2 * batches
    known = 'its number of examples is not known' if self._expected is None else f'expected {self._expected} at most'
    logging.warning(
      'task.validation_data: the evaluation has taken %d batches (%s), and continues; if the input repeats, set '
      'trainer.validation_steps.',
      batches,
      known,
    )

  def end(self, batches: int) -> None:
    """Ends an evaluation that has taken its input to the end: the next one has not much more batches."""
    if self._report_at is not None:
      self._before = 2 * batches  # An input without a known length may have another one each time.
    self.is_exceeded = False


NUM_REMEMBERED_BATCHES = 8


class EvaluationState(tf.Module):
  """The counters of the present evaluation. No checkpoint holds them.

  Attributes:
    batch: int64 scalar variable, the number of the present batch, from 0.
    num_not_finite: float32 scalar variable, how many of this worker's examples were not finite.
    num_bad_batches: int64 scalar variable, how many batches they were in.
    bad_batches: int64 variable of shape [8], the numbers of the first of these.
  """

  def __init__(self):
    super().__init__(name='evaluation_state')
    kwargs = dict(trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    self.batch = tf.Variable(0, dtype=tf.int64, name='batch', **kwargs)
    self.num_not_finite = tf.Variable(0.0, dtype=tf.float32, name='num_not_finite', **kwargs)
    self.num_bad_batches = tf.Variable(0, dtype=tf.int64, name='num_bad_batches', **kwargs)
    self.bad_batches = tf.Variable([0] * NUM_REMEMBERED_BATCHES, dtype=tf.int64, name='bad_batches', **kwargs)

  def begin(self) -> None:
    """Counts from 0 again."""
    self.batch.assign(0)
    self.num_not_finite.assign(0.0)
    self.num_bad_batches.assign(0)

  def end_batch(self, num_not_finite: tf.Tensor) -> None:
    """Advances to the next batch. Cross-replica context.

    Args:
      num_not_finite: float32 scalar, the number in the present batch.
    """
    is_bad = num_not_finite > 0
    slot = tf.range(NUM_REMEMBERED_BATCHES, dtype=tf.int64) == self.num_bad_batches
    self.bad_batches.assign(tf.where(tf.logical_and(slot, is_bad), self.batch, self.bad_batches))
    self.num_bad_batches.assign_add(tf.cast(is_bad, tf.int64))
    self.num_not_finite.assign_add(num_not_finite)
    self.batch.assign_add(1)

  def bad_batch_numbers(self) -> list[int]:
    """The numbers of the first batches in which examples were not finite, 8 at most."""
    return self.bad_batches.numpy()[: int(self.num_bad_batches.numpy())].tolist()


def count_not_finite(inputs: Any, logs: Mapping[str, Any], axes: batch_axes.BatchAxes) -> tf.Tensor:
  """Counts a replica's examples that are not finite: in an input, or in a result of the step.

  Some kernels, such as that of ReLU, turn NaN into a number, so that the loss alone does not show it. If a loss or a
  log that is a mean over examples is not finite, the number of examples at fault is not known, and counts as one.

  Args:
    inputs: of the step, a structure of tensors.
    logs: of the step.
    axes: the axes of `inputs` that count examples.

  Returns:
    A float32 scalar; 0 if there are no examples.
  """
  counts = [tf.constant(0.0)]
  for axis, part in zip(axes.axes, tf.nest.flatten(inputs)):
    for tensor in tf.nest.flatten(part, expand_composites=True):
      if not tf.is_tensor(tensor) or not tensor.dtype.is_floating or not tensor.shape.rank:
        continue
      is_bad = tf.logical_not(tf.math.is_finite(tensor))
      if axis is None:  # Of all examples, such as anchors.
        counts.append(tf.cast(tf.reduce_any(is_bad), tf.float32))
        continue
      rows = tf.reduce_any(is_bad, axis=[other for other in range(tensor.shape.rank) if other != axis])
      counts.append(tf.reduce_sum(tf.cast(rows, tf.float32)))
  for value in logs.values():
    if step_plan.is_number(value) and value.dtype.is_floating:
      counts.append(tf.cast(tf.logical_not(tf.math.is_finite(value)), tf.float32))
  return tf.where(axes.num_examples(inputs) > 0, tf.reduce_max(tf.stack(counts)), 0.0)


_NUM_EXAMPLES = '_num_examples'
_NOT_FINITE = '_not_finite'
_AGREE = '_axes_agree'
NOT_FINITE = 'validation_not_finite'  # A log: the number of examples of an evaluation that were not finite.


class _AxesDisagreeError(Exception):
  """Parts of a batch whose first dimensions have seemed to count its examples have different lengths."""


class Evaluator(garden.ModelGardenTrainer):
  """The evaluating half of the trainer: see base class."""

  def __init__(
    self,
    config: object,
    task: protocols.Task,
    model: tf_keras.Model,
    optimizer: tf_keras.optimizers.Optimizer,
    **kwargs: object,
  ):
    keras_version.check_model(task, model)
    keras_version.check_optimizer(task, optimizer)
    config = definitions.upgrade(config)
    zero_start = getattr(config.trainer.optimizer_config, 'ema_zero_start', None)
    self._ema = ema_optimizer.adopt(optimizer, zero_start)
    self._eval_sums: dict[str, Any] = {}
    self._pictures: dict[str, tf.Tensor] = {}
    self._trains, self._evaluates = kwargs.get('train', True), kwargs.get('evaluate', True)
    self._num_eval_batches = 0
    self._num_evaluated: Any = 0.0  # The examples of the present evaluation, of this worker.
    self._evaluated_is_reported = False
    self._num_sent_bytes = 0  # In the present evaluation, by this worker to each other one.
    self._batch_axes: batch_axes.BatchAxes | None = None  # Of the input of evaluations; found in the first one.
    self.length = EvaluationLength()
    self.stop_requested: Callable[[], bool] = lambda: False  # Called after every batch; a caller may replace it.
    makes_averages = self._ema is not None and not self._ema.has_shadow_copy  # The base class makes an incomplete one.
    task = model_garden.adapt_task(task)
    super().__init__(config, task, model, optimizer, **kwargs)
    if makes_averages:
      self._make_averages()
    keras_version.check_metrics(task, self.train_metrics if self._trains else ())
    keras_version.check_metrics(task, self.validation_metrics if self._evaluates else ())
    self._evaluation_state = EvaluationState()
    self._named_not_finite = False
    self._assumed_is_reported = self._sent_bytes_are_reported = False
    self._have_disagreed = False  # Parts of a batch, by the axes found first.

  def _make_averages(self) -> None:
    """Makes the averages of all weights, those too that the model makes at its first call."""
    assert self._ema is not None
    self._ema.shadow_copy(self.model)
    if any(not layer.built for layer in self.model.submodules if isinstance(layer, tf_keras.layers.Layer)):
      self._call_model()
      self._ema.shadow_copy(self.model)  # Adds those of new weights.
    self._ema.check_covers(self.model)

  def _call_model(self) -> None:
    """Calls the model on symbolic inputs, so that it makes its variables; runs nothing.

    No iterator is made. The second iterator over a dataset may draw other random numbers than the first one, as it does
    for Model Garden's detection data. A resumed run builds another dataset, and trains by its first iterator.
    """
    if not (self._trains or self._evaluates) or self._is_async:  # Parameter servers trace no step.
      return
    dataset = self.train_dataset if self._trains else self.eval_dataset

    def one_step(inputs):
      first = lambda inputs: inputs[0] if isinstance(inputs, tuple) else inputs
      self.strategy.run(lambda inputs: self.model(first(inputs), training=True), args=(inputs,))

    try:
      tf.function(one_step).get_concrete_function(dataset.element_spec)
    except Exception as error:  # pylint: disable=broad-except  # The task's step may call its model differently.
      logging.info('The model makes variables at its first call, and cannot be called on a batch: %s', error)

  def data_identity(self) -> dict[str, Any]:
    """The identities of this trainer's data, as JSON values, by the name of the input: see data_identity.py."""
    found = {name: report.identity() for name, report in self.inputs.items()}
    return json.loads(json.dumps({name: identity for name, identity in found.items() if identity}, default=str))

  def data_balance(self) -> dict[str, list[dict[str, Any]]]:
    """The accounts of this trainer's data by the name of the input: found, used, left out, not read."""
    return {name: found for name, report in self.inputs.items() if (found := report.balance())}

  def data_summary(self) -> list[str]:
    """A line for each input: how many records train or evaluate, how many were dropped, and why."""
    lines = []
    for name, verb in (('train_data', 'Training data'), ('validation_data', 'Evaluation data')):
      text = self.inputs[name].summary(drops_rest=name == 'train_data' or self._drops_rest())
      if text and name == 'validation_data' and self.config.trainer.validation_steps > 0:
        text += f'; at most {self.config.trainer.validation_steps} batches of them: trainer.validation_steps'
      lines += [f'{verb} (task.{name}): {text}'] if text else []
    return lines

  def _drops_rest(self) -> bool:
    """Whether all batches of an evaluation have one size, by the shapes of its input; true if they are not known."""
    shapes = [each.shape for each in tf.nest.flatten(self._evaluation_spec) if isinstance(each, tf.TensorSpec)]
    return all(shape.rank is not None and (not shape.rank or shape[0] is not None) for shape in shapes)

  def eval_begin(self):
    """Sets up metrics: see base class."""
    self._eval_sums = {}
    self._pictures = {}
    for metric in self.validation_metrics + [self.validation_loss]:
      metric.reset_states()
    model_garden.reset_kept_metrics(self.task)
    self._begin_averages()
    self._use_averaged_weights(True)

  def eval_step(self, iterator):
    """Evaluates one batch. A replica's loss is weighted by `micro_batch_weight`, or by its number of examples."""

    def step_fn(inputs):
      with step_random.step_key(self._evaluation_key('evaluation')), observers.checked_indices() as check:
        logs = dict(self.task.validation_step(inputs, model=self.model, metrics=self.validation_metrics))
      if self.task.loss in logs:
        logs[self.task.loss] = check.spoiled(tf.convert_to_tensor(logs[self.task.loss]))
      axes = self._axes_of(inputs)
      not_finite = count_not_finite(inputs, logs, axes)
      num_examples, weight = self._weights(inputs, axes)
      if self.task.loss in logs:
        loss = tf.cast(logs[self.task.loss], tf.float32)
        self._validation_loss.update_state(tf.where(weight > 0, tf.reduce_mean(loss), 0.0), sample_weight=weight)
      if not axes.is_checked:
        logs[_AGREE] = axes.agree(inputs)
      logs[_NUM_EXAMPLES] = num_examples
      logs[_NOT_FINITE] = not_finite
      return logs

    inputs, passthrough_logs = self._next_keyed_eval_inputs(iterator)
    logs = tf.nest.map_structure(self.strategy.experimental_local_results, self.strategy.run(step_fn, args=(inputs,)))
    self._evaluation_state.end_batch(tf.add_n(logs.pop(_NOT_FINITE)))
    in_both = set(logs) & set(passthrough_logs)
    if in_both:
      logging.warning('next_eval_inputs and validation_step both log %s: the latter is kept.', sorted(in_both))
    return {**passthrough_logs, **logs}

  @tf.autograph.experimental.do_not_convert
  def _weights(self, inputs, axes):
    """The weights of a replica's batch in means of scalars and in the mean loss: float32 scalars, 0 if it is empty."""
    num_examples = axes.num_examples(inputs)
    weight = self.task.micro_batch_weight(inputs) if isinstance(self.task, base_task.Task) else None
    if weight is None:
      self._warn_of_assumed(axes)
      return num_examples, num_examples
    weight = tf.where(num_examples > 0, tf.cast(weight, tf.float32), 0.0)
    return weight if axes.assumed else num_examples, weight

  def _warn_of_assumed(self, axes):
    if axes.assumed and not self._assumed_is_reported:
      self._assumed_is_reported = True
      logging.warning(
        'task.validation_data: the number of examples in a batch is not clear from the shapes of its parts; assumed: '
        '%s. validation_loss and logged means are weighted by it; if it is another number, return it from '
        '%s.micro_batch_weight(inputs)',
        axes.assumed,
        type(self.task).__name__,
      )

  @tf.autograph.experimental.do_not_convert
  def _axes_of(self, inputs) -> batch_axes.BatchAxes:
    """The axes of a replica's batch that count its examples."""
    if self._batch_axes is None:
      self._find_axes()
    if self._batch_axes is not None and len(self._batch_axes.axes) == len(tf.nest.flatten(inputs)):
      return self._batch_axes
    found = batch_axes.of_spec(inputs)  # `next_eval_inputs` returns something else than the input's batches.
    return batch_axes.assumed(inputs) if found is None or self._have_disagreed and not found.is_checked else found

  def _find_axes(self) -> None:
    """Finds the axes of the input. If its shapes leave a doubt, only a batch whose parts disagree leads to a second
    look, with another batch size: most inputs have none. A loop in a graph, or one worker alone, cannot begin again.
    """
    is_final = self._have_disagreed or self.config.trainer.eval_tf_while_loop or workers.are_several(self.strategy)
    spec = self._evaluation_spec
    if spec is None:
      return
    size = self._eval_batch_size // self.strategy.num_replicas_in_sync
    found = batch_axes.of_spec(spec, size)
    if found is None or is_final and not found.is_checked:
      found = batch_axes.find(spec, size, self._spec_of_batches)
    self._batch_axes = found

  def _spec_of_batches(self, size: int) -> Any:
    """The type specs of the evaluation's input for one replica and another batch size; None if it cannot be built."""
    try:
      with tf.init_scope(), bad_examples.logged_in(bad_examples.ExampleLog()):
        params = self.config.task.validation_data.replace(global_batch_size=size, drop_remainder=True)
        datasets = pipelines.transformed(self.task.build_inputs, lambda dataset, context: dataset)(params)
        return tf.nest.map_structure(lambda dataset: dataset.element_spec, datasets)
    except Exception as error:  # pylint: disable=broad-except  # Each task fails in its own way: then it is not known.
      logging.info('The input of an evaluation cannot be built with batches of %d: %s', size, error)
      return None

  @tf.autograph.experimental.do_not_convert
  def _evaluation_key(self, purpose: str) -> step_random.StepKey:
    """The key of an evaluation's step, with the number of its batch. Replica context, or one for all replicas."""
    context = None if tf.distribute.in_cross_replica_context() else tf.distribute.get_replica_context()
    return step_random.StepKey(
      seed=self.config.runtime.seed,
      step=self.global_step.read_value(),
      replica=0 if context is None else context.replica_id_in_sync_group,
      num_replicas=1 if context is None else self.strategy.num_replicas_in_sync,
      batch=self._evaluation_state.batch.read_value(),
      purpose=purpose,
    )

  def _next_keyed_eval_inputs(self, iterator):
    with step_random.step_key(self._evaluation_key('evaluation inputs')):
      return self.next_eval_inputs(iterator)

  def eval_reduce(self, state=None, step_outputs=None):
    """Sums the scalars that the step logs, and hands the logs of all workers to the task's `aggregate_logs`.

    Raises:
      EvaluationInterruptedError: `stop_requested` returns true.
    """
    if self.stop_requested() and tf.executing_eagerly():
      raise errors.EvaluationInterruptedError
    self._num_eval_batches += 1
    if tf.executing_eagerly():
      self.length.count(self._num_eval_batches)
    if step_outputs and _NUM_EXAMPLES in step_outputs:
      step_outputs = dict(step_outputs)
      weights = step_outputs.pop(_NUM_EXAMPLES)
      agree = step_outputs.pop(_AGREE, ())
      if tf.executing_eagerly() and not all(map(bool, agree)):
        raise _AxesDisagreeError
      if tf.executing_eagerly():  # A loop inside a graph (trainer.eval_tf_while_loop) cannot keep the sums.
        self._num_evaluated += tf.cast(tf.add_n(weights), tf.float64)
        self._sum_scalars(step_outputs, weights)
        self._keep_pictures(step_outputs)
    if not tf.executing_eagerly():
      return super().eval_reduce(state, step_outputs)
    with self._naming('aggregate_logs'):
      if self._aggregates:
        step_outputs, num_bytes = workers.gather(self.strategy, step_outputs)
        self._num_sent_bytes += num_bytes
      return super().eval_reduce(state, step_outputs)

  @property
  def _aggregates(self) -> bool:
    """Whether the task uses the logs of every step in Python, and so needs the logs of all workers."""
    return type(self.task).aggregate_logs is not official_base_task.Task.aggregate_logs

  @contextlib.contextmanager
  def _naming(self, method: str) -> Iterator[None]:
    """A context for the call of one of the task's methods, for errors without a line of the user's code.

    Raises:
      UserError: instead of such an error, such as that of a missing argument.
    """
    try:
      yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
      function = getattr(self.task, method)
      if (
        isinstance(error, errors.UserError) or tracebacks.place_of(error) or not tracebacks.is_users_function(function)
      ):
        raise
      place = tracebacks.of_function(function, with_name=False)
      raise errors.UserError(f'{place}: {type(self.task).__name__}.{method}: {tracebacks.message_of(error)}') from error

  def _sum_scalars(self, logs, weights):
    known = {metric.name for metric in self.validation_metrics} | {self.task.loss}
    for name, values in logs.items():
      if name in run_files.LOOP_LOGS:
        owner = f'{type(self.task).__name__}.validation_step'
        raise errors.UserError(f'{owner} logs {name!r}, which is the name of a value that the loop logs; rename it')
      if name in known or not isinstance(values, tuple) or len(values) != len(weights):
        continue
      if not all(step_plan.is_number(value) for value in values):
        continue
      for value, weight in zip(values, weights):
        dtype = step_plan.dtype_of_log(value)
        zero, weight = tf.zeros([], dtype), tf.cast(weight, dtype)
        total, count = self._eval_sums.get(name, (zero, zero))
        value = tf.where(weight > 0, tf.cast(value, dtype) * weight, zero)
        self._eval_sums[name] = (total + value, count + weight)

  def _keep_pictures(self, logs):
    """Keeps the images that the first replica logs for the first batch. Model Garden's tasks handle their own."""
    if not isinstance(self.task, base_task.Task):
      return
    for name, values in logs.items():
      if name not in self._pictures and isinstance(values, tuple) and values and _are_pictures(values[0]):
        self._pictures[name] = values[0]

  def _means_of_scalars(self) -> dict[str, tf.Tensor]:
    """The means, over the examples of all workers, of the sums of `_sum_scalars`."""
    means: dict[str, tf.Tensor] = {}
    for dtype in (tf.float32, tf.float64):
      names = sorted(name for name, (total, _) in self._eval_sums.items() if total.dtype == dtype)
      if names:
        sums = workers.sum_over(self.strategy, tf.stack([tf.stack(self._eval_sums[name]) for name in names]))
        means |= {name: total / count for name, (total, count) in zip(names, tf.unstack(sums)) if count > 0}
    return means

  def eval_end(self, aggregated_logs=None):
    """The logs of the evaluation.

    Returns:
      The validation metrics, validation_loss, the means over examples of every scalar that the step logs,
      validation_not_finite if some examples are not finite (they count in the loss and the metrics), the images that
      the step logs for the first batch, the results of the task's `reduce_aggregated_logs` and `evaluation_end`, and
      best_<metric> if the best checkpoint is exported.
    """
    self.join()
    if not self._num_eval_batches and self._counts_batches():
      raise self.inputs['validation_data'].no_examples()
    logs = {metric.name: metric.result() for metric in self.validation_metrics}
    if self.validation_loss.count.numpy():
      logs[self.validation_loss.name] = self.validation_loss.result()
    task, reduced = type(self.task).__name__, self._reduced(aggregated_logs)
    # A scalar that the task aggregates is its raw material.
    means = {name: value for name, value in self._means_of_scalars().items() if name not in reduced}
    for added in (means, self._not_finite(), self._pictures):
      logs = writers.merge_logs(logs, added, f'{task}.validation_step')
    if isinstance(self.task, base_task.Task):
      logs = writers.merge_logs(logs, reduced, f'{task}.reduce_aggregated_logs')
    else:  # Model Garden's replace its metrics.
      logs = {**logs, **reduced}
    logs = writers.merge_logs(logs, self.task.evaluation_end(self.model), f'{task}.evaluation_end')
    if self._checkpoint_exporter:  # While the averaged weights are in place, because they were evaluated.
      self._checkpoint_exporter.maybe_export_checkpoint(self.checkpoint, logs, self.global_step.numpy())
      metric_name = self.config.trainer.best_checkpoint_eval_metric
      best = best_lib.value_in(self._checkpoint_exporter.best_ckpt_logs, metric_name.split('|'))
      if best is not None:  # An evaluation beside the training may precede any best one.
        logs['best_' + metric_name] = best
    self._use_averaged_weights(False)
    return logs

  def _reduced(self, aggregated_logs: Any) -> Mapping[str, Any]:
    """The result of the task's `reduce_aggregated_logs`; {} if it aggregates nothing."""
    if not aggregated_logs:
      return {}
    with self._naming('reduce_aggregated_logs'):
      reduced = self.task.reduce_aggregated_logs(aggregated_logs, global_step=self.global_step)
      if not isinstance(reduced, Mapping):
        raise TypeError(f'must return a dictionary of logs; it returned {reduced!r}')
      return reduced

  def _not_finite(self) -> dict[str, int]:
    """The number of examples of all workers that were not finite, as a log; {} if none was. Reports this worker's."""
    total_here = int(self._evaluation_state.num_not_finite.numpy())
    total = int(workers.sum_over(self.strategy, tf.constant(float(total_here))))
    numbers = self._evaluation_state.bad_batch_numbers()
    if numbers:
      place = ''
      if not self._named_not_finite and self._counts_batches():  # Reading it again takes time.
        self._named_not_finite = True
        place = self.inputs['validation_data'].examine(numbers[:1], self.model)
      more = ', ...' if int(self._evaluation_state.num_bad_batches.numpy()) > len(numbers) else ''
      logging.warning(
        'task.validation_data: at least %d examples are not finite in the evaluation at step %d, in its batches %s%s '
        '(from 0)%s. Loss and metrics include them',
        total_here,
        int(self.global_step.numpy()),
        ', '.join(map(str, numbers)),
        more,
        f': {place}' if place else '',
      )
    return {NOT_FINITE: total} if total else {}

  def create_variables(self) -> bool:
    """Lets a model that makes variables at its first call make them: traces the steps, runs nothing.

    Returns:
      Whether all variables that the steps use exist now; false if the steps cannot be traced.
    """
    if self._evaluates:
      self.validation_log_names()
    if self._ema is not None:
      self._ema.check_covers(self.model)
    return True

  def validation_log_names(self) -> list[str]:
    """The names of all scalars that the task's validation step logs. Traces it, but runs nothing."""
    names: list[str] = []

    def step_fn(inputs):
      with step_random.step_key(self._evaluation_key('evaluation')):
        logs = self.task.validation_step(inputs, model=self.model, metrics=self.validation_metrics)
      names.extend(name for name, value in logs.items() if tf.is_tensor(value) and value.shape.rank == 0)

    def one_step(iterator):
      self.strategy.run(step_fn, args=(self._next_keyed_eval_inputs(iterator)[0],))

    tf.function(one_step).get_concrete_function(tf.nest.map_structure(iter, self.eval_dataset))
    return sorted({name for name in names if name != self.task.loss})

  def evaluate(self, num_steps: tf.Tensor) -> orbit.runner.Output | None:
    """Evaluates, with averaged weights if there are any; the training weights come back even if it fails.

    Raises:
      UserError: there are no examples, one of them is broken, or all of a dataset that repeats are to be evaluated.
    """
    self.check_evaluation_ends(int(num_steps))
    report = self.inputs['validation_data']
    try:
      logs = self._evaluate(num_steps)
    except (tf.errors.OpError, UnicodeDecodeError) as error:
      if isinstance(error, tf.errors.OutOfRangeError):  # A loop inside a graph; others end without an error.
        raise errors.UserError(
          f'trainer.validation_steps: {int(num_steps)} are more than task.validation_data has batches; set '
          'trainer.eval_tf_while_loop=false to evaluate all there are'
        ) from error
      numbers = [self._num_eval_batches] if self._counts_batches() else []
      explained = report.explain(error, int(self.global_step.numpy()), self.model, numbers)
      if explained is None:
        raise
      raise explained from error
    else:
      self.length.end(self._num_eval_batches)
      if self._num_sent_bytes and self.strategy.extended.should_checkpoint and not self._sent_bytes_are_reported:
        self._sent_bytes_are_reported = True
        print(
          f'{type(self.task).__name__}.aggregate_logs: in an evaluation, the chief sends {self._num_sent_bytes:,} '
          'bytes to each other worker.',
          flush=True,
        )
      num_examples = self._num_eval_batches * self._eval_batch_size
      logs = self.with_skips(logs, report, num_examples if self._counts_batches() else None)
      if int(num_steps) == -1:
        self._report_evaluated(int((logs or {}).get(training_input.SKIPS, 0)))
      return logs
    finally:
      self._use_averaged_weights(False)

  def _evaluate(self, num_steps):
    """Evaluates; once more if the parts of a batch have shown that their first dimensions do not count its examples."""
    self.inputs['validation_data'].skips_up_to(None)
    self._num_eval_batches = self._num_sent_bytes = 0
    self._num_evaluated = tf.constant(0.0, tf.float64)
    self._evaluation_state.begin()
    self.length.begin(self._expected_batches if int(num_steps) == -1 else None, int(num_steps) == -1)
    try:
      return super().evaluate(num_steps)
    except _AxesDisagreeError:
      self._have_disagreed = True
      self._find_axes()
      self._eval_loop_fn = None  # It has the axes found before.
      return self._evaluate(num_steps)

  def _report_evaluated(self, num_skipped: int) -> None:
    """Prints how many examples an evaluation of all has had, once, if it is another number than was expected."""
    known = [each.get('num_examples') for each in self.inputs['validation_data'].identity()]
    is_clear = self._batch_axes is not None and not self._batch_axes.assumed and self._counts_batches()
    if self._evaluated_is_reported or len(known) != 1 or known[0] is None or not is_clear:
      return
    self._evaluated_is_reported = True
    found = int(workers.sum_over(self.strategy, tf.cast(self._num_evaluated, tf.float32)))
    if found + num_skipped != known[0] and self.strategy.extended.should_checkpoint:
      print(
        f'Evaluation data (task.validation_data): {found} examples were evaluated, and {known[0]} were expected',
        flush=True,
      )

  def check_evaluation_ends(self, num_steps: int) -> None:
    """Refuses to evaluate all of a dataset that repeats for ever, or a part of the logs that the task aggregates.

    Args:
      num_steps: how many batches are evaluated; -1 for all.

    Raises:
      UserError: names the task's method and the fix.
    """
    if self._aggregates and self.config.trainer.eval_tf_while_loop and workers.are_several(self.strategy):
      raise errors.UserError(
        f'trainer.eval_tf_while_loop: {type(self.task).__name__}.aggregate_logs needs the logs of all workers, which '
        'only Python can gather; set it to false'
      )
    if num_steps == -1 and self._evaluation_repeats:
      raise errors.UserError(
        f'task.validation_data: the dataset of {type(self.task).__name__}.build_inputs repeats for ever, and '
        'trainer.validation_steps=-1 evaluates all of it; do not repeat if params.is_training is false, or set '
        'trainer.validation_steps'
      )

  @property
  def _eval_batch_size(self) -> int:
    """The examples of a batch of all replicas; 0 if the configuration does not say."""
    return config_fields.of_data(config_fields.of_task(self.config.task).validation_data).global_batch_size or 0

  @functools.cached_property
  def _expected_batches(self) -> int | None:
    """How many batches an evaluation of all examples has at most; None if the number of examples is not known."""
    size = self._eval_batch_size
    report = self.inputs['validation_data']
    num_examples = next((each.get('num_examples') for each in report.identity()), None)
    if not size or num_examples is None or len(report.identity()) > 1:
      return None
    batches = -(-num_examples // size)
    # Workers share the files of an ordinary pipeline unevenly, and each file may end with a smaller batch.
    return batches if report.log.summaries else 2 * batches + self.strategy.num_replicas_in_sync

  def _counts_batches(self) -> bool:
    """Whether Python in this process sees every batch of an evaluation."""
    return not self.config.trainer.eval_tf_while_loop

  def with_skips(self, logs: Any, report: training_input.InputReport, end: int | None) -> Any:
    """The logs, with the number of examples that all workers have skipped, if the task skips any.

    Args:
      logs: of a loop or an evaluation.
      report: of its input.
      end: the position up to which examples have been used; None: all.
    """
    skips = report.skips_up_to(end)
    if not skips:
      return logs
    total = workers.sum_over(self.strategy, tf.constant(float(skips[training_input.SKIPS])))
    return {**(logs or {}), training_input.SKIPS: int(total)}

  def _begin_averages(self, for_good: bool = False) -> None:
    """Puts the averages at the weights, if nothing was trained yet. `for_good`: training begins now."""
    if self._ema is None or self._ema.has_begun:
      return
    with self.strategy.scope():
      self._ema.begin()
    self._ema.has_begun = for_good

  def _use_averaged_weights(self, averaged: bool):
    if self._ema is not None and averaged != self._ema.is_swapped:
      with self.strategy.scope():
        self._ema.swap_weights()


def _are_pictures(value: Any) -> bool:
  return tf.is_tensor(value) and value.shape.rank == 4 and value.shape[-1] in tensorboard.CHANNELS
