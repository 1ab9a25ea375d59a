"""Evaluates exactly: every example counts once, on any number of replicas; the training weights come back."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import functools
import json
from typing import Any

from absl import logging
import orbit
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import protocols
from official_ext.training.checkpoints import best_history
from official_ext.training.config import definitions
from official_ext.training.devices import failures
from official_ext.training.devices import workers
from official_ext.training.loop import base_task
from official_ext.training.loop import evaluation_length
from official_ext.training.loop import evaluation_state
from official_ext.training.loop import input_report
from official_ext.training.loop import model_garden_trainer
from official_ext.training.optimization import ema_optimizer
from official_ext.training.step import keras_version
from official_ext.training.step import step_plan
from official_ext.training.step import step_random
from official_ext.training.writers import tensorboard

_NUM_EXAMPLES = '_num_examples'
_NOT_FINITE = '_not_finite'
NOT_FINITE = 'validation_not_finite'  # A log: the number of examples of an evaluation that were not finite.


class Evaluator(model_garden_trainer.ModelGardenTrainer):
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
    self._ema = ema_optimizer.adopt(optimizer)
    self._eval_sums: dict[str, Any] = {}
    self._pictures: dict[str, tf.Tensor] = {}
    self._num_eval_batches = 0
    self.length = evaluation_length.EvaluationLength()
    self.stop_requested: Callable[[], bool] = lambda: False  # Called after every batch; a caller may replace it.
    makes_averages = self._ema is not None and not self._ema.has_shadow_copy  # The base class makes an incomplete one.
    super().__init__(definitions.upgrade(config), task, model, optimizer, **kwargs)
    if makes_averages:
      self._make_averages()
    for part in ('train_metrics', 'validation_metrics'):  # Of what it does: it trains, evaluates, or both.
      keras_version.check_metrics(task, getattr(self, part, ()))
    self._evaluation_state = evaluation_state.EvaluationState()
    self._named_not_finite = False

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
    dataset = getattr(self, '_train_dataset', None) or getattr(self, '_eval_dataset', None)
    if dataset is None or self._is_async:  # Parameter servers trace no step.
      return

    def one_step(inputs):
      first = lambda inputs: inputs[0] if isinstance(inputs, tuple) else inputs
      self.strategy.run(lambda inputs: self.model(first(inputs), training=True), args=(inputs,))

    try:
      tf.function(one_step).get_concrete_function(dataset.element_spec)
    except Exception as error:  # pylint: disable=broad-except  # The task's step may call its model differently.
      logging.info('The model makes variables at its first call, and cannot be called on a batch: %s', error)

  def data_identity(self) -> dict[str, Any]:
    """The identities of this trainer's data, as JSON values, by the name of the input: see identity.py."""
    found = {name: report.identity() for name, report in self.inputs.items()}
    return json.loads(json.dumps({name: identity for name, identity in found.items() if identity}, default=str))

  def data_summary(self) -> list[str]:
    """A line for each input: how many records train or evaluate, how many were dropped, and why."""
    lines = []
    for name, verb in (('train_data', 'Training data'), ('validation_data', 'Evaluation data')):
      text = self.inputs[name].summary()
      if text and name == 'validation_data' and self.config.trainer.validation_steps > 0:
        text += f'; at most {self.config.trainer.validation_steps} batches of them: trainer.validation_steps'
      lines += [f'{verb} (task.{name}): {text}'] if text else []
    return lines

  def eval_begin(self):
    """Sets up metrics: see base class."""
    self._eval_sums = {}
    self._pictures = {}
    for metric in self.validation_metrics + [self.validation_loss]:
      metric.reset_states()
    self._use_averaged_weights(True)

  def eval_step(self, iterator):
    """Evaluates one batch. A replica's loss is weighted by its number of examples, which may be zero."""

    def step_fn(inputs):
      with step_random.step_key(self._evaluation_key('evaluation')):
        logs = dict(self.task.validation_step(inputs, model=self.model, metrics=self.validation_metrics))
      not_finite = evaluation_state.count_not_finite(inputs, logs)
      num_examples = base_task.num_examples_in(inputs)
      if self.task.loss in logs:
        loss = tf.cast(logs[self.task.loss], tf.float32)
        self._validation_loss.update_state(
          tf.where(num_examples > 0, tf.reduce_mean(loss), 0.0), sample_weight=num_examples
        )
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
    """Sums the scalars that the step logs, and hands the logs to the task's `aggregate_logs`.

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
      if tf.executing_eagerly():  # A loop inside a graph (trainer.eval_tf_while_loop) cannot keep the sums.
        self._sum_scalars(step_outputs, weights)
        self._keep_pictures(step_outputs)
    if not tf.executing_eagerly():
      return super().eval_reduce(state, step_outputs)
    with self._naming('aggregate_logs'):
      return super().eval_reduce(state, step_outputs)

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
      if isinstance(error, errors.UserError) or failures.place_of(error) or not failures.is_users_function(function):
        raise
      place = failures.of_function(function, with_name=False)
      raise errors.UserError(f'{place}: {type(self.task).__name__}.{method}: {failures.message_of(error)}') from error

  def _sum_scalars(self, logs, weights):
    known = {metric.name for metric in self.validation_metrics} | {self.task.loss}
    for name, values in logs.items():
      if name in known or not isinstance(values, tuple) or len(values) != len(weights):
        continue
      if not all(step_plan.is_number(value) for value in values):
        continue
      for value, weight in zip(values, weights):
        total, count = self._eval_sums.get(name, (0.0, 0.0))
        value = tf.where(weight > 0, tf.cast(value, tf.float32) * weight, 0.0)
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
    if not self._eval_sums:
      return {}
    names = sorted(self._eval_sums)
    sums = workers.sum_over(self.strategy, tf.stack([tf.stack(self._eval_sums[name]) for name in names]))
    return {name: total / count for name, (total, count) in zip(names, tf.unstack(sums)) if count > 0}

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
    logs.update(self._means_of_scalars())
    logs.update(self._not_finite())
    logs.update(self._pictures)
    if aggregated_logs:
      with self._naming('reduce_aggregated_logs'):
        reduced = self.task.reduce_aggregated_logs(aggregated_logs, global_step=self.global_step)
        if not isinstance(reduced, Mapping):
          raise TypeError(f'must return a dictionary of logs; it returned {reduced!r}')
        logs.update(reduced)
    if hasattr(self.task, 'evaluation_end'):
      logs.update(self.task.evaluation_end(self.model))
    if self._checkpoint_exporter:  # While the averaged weights are in place, because they were evaluated.
      self._checkpoint_exporter.maybe_export_checkpoint(self.checkpoint, logs, self.global_step.numpy())
      metric_name = self.config.trainer.best_checkpoint_eval_metric
      best = best_history.value_in(self._checkpoint_exporter.best_ckpt_logs, metric_name.split('|'))
      if best is not None:  # An evaluation beside the training may precede any best one.
        logs['best_' + metric_name] = best
    self._use_averaged_weights(False)
    return logs

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
    if hasattr(self, '_eval_dataset'):
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
    report.skips_up_to(None)
    self._num_eval_batches = 0
    self._evaluation_state.begin()
    self.length.begin(self._expected_batches if int(num_steps) == -1 else None, int(num_steps) == -1)
    try:
      logs = super().evaluate(num_steps)
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
      num_examples = self._num_eval_batches * self._eval_batch_size
      return self.with_skips(logs, report, num_examples if self._counts_batches() else None)
    finally:
      self._use_averaged_weights(False)

  def check_evaluation_ends(self, num_steps: int) -> None:
    """Refuses to evaluate all of a dataset that repeats for ever.

    Args:
      num_steps: how many batches are evaluated; -1 for all.

    Raises:
      UserError: names the task's method and the fix.
    """
    if num_steps == -1 and self._evaluation_repeats:
      raise errors.UserError(
        f'task.validation_data: the dataset of {type(self.task).__name__}.build_inputs repeats for ever, and '
        'trainer.validation_steps=-1 evaluates all of it; do not repeat if params.is_training is false, or set '
        'trainer.validation_steps'
      )

  @property
  def _eval_batch_size(self) -> int:
    """The examples of a batch of all replicas; 0 if the configuration does not say."""
    return getattr(getattr(self.config.task, 'validation_data', None), 'global_batch_size', 0) or 0

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

  def with_skips(self, logs: Any, report: input_report.InputReport, end: int | None) -> Any:
    """The logs, with the number of examples that all workers have skipped, if the task skips any.

    Args:
      logs: of a loop or an evaluation.
      report: of its input.
      end: the position up to which examples have been used; None: all.
    """
    skips = report.skips_up_to(end)
    if not skips:
      return logs
    total = workers.sum_over(self.strategy, tf.constant(float(skips[input_report.SKIPS])))
    return {**(logs or {}), input_report.SKIPS: int(total)}

  def _use_averaged_weights(self, averaged: bool):
    if self._ema is not None and averaged != self._ema.is_swapped:
      with self.strategy.scope():
        self._ema.swap_weights()


def _are_pictures(value: Any) -> bool:
  return tf.is_tensor(value) and value.shape.rank == 4 and value.shape[-1] in tensorboard.CHANNELS
