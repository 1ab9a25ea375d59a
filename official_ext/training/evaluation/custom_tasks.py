"""The evaluation of custom regression and classification tasks, whose `forward` logs labels and outputs for metrics."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import inspect
import re
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.data import config_fields
from official_ext.data import input_faults
from official_ext.data import input_files
from official_ext.training.config import definitions
from official_ext.training.evaluation import classifier_result
from official_ext.training.evaluation import evaluated_data
from official_ext.training.evaluation import results
from official_ext.training.step import step_random
from official_ext.training.tasks import supervised_task
from official_ext.training.trained import trained_model

_MAX_VALUES = 6  # Of one feature in the table of mistakes.
_MAX_COLUMNS = 8
_MAX_TEXT = 60
_TOLERANCE = 1e-3  # Of sums of probabilities.
_TOLERANCE_OF_HALVES = 3e-2
_WITH_LOGITS = '_with_logits'  # The end of the name of a function.
# Losses, by the names of functions: classes in snake case, and without the version of a function.
_ONE_HOT_LOSSES = {
  'categorical_crossentropy',
  'categorical_focal_crossentropy',
  'categorical_hinge',
  'softmax_cross_entropy_with_logits',
}
_NUMBER_LOSSES = {'sparse_categorical_crossentropy', 'sparse_softmax_cross_entropy_with_logits'}
_BINARY_LOSSES = {
  'binary_crossentropy',
  'binary_focal_crossentropy',
  'sigmoid_cross_entropy_with_logits',
  'weighted_cross_entropy_with_logits',
}
_OTHER_CLASS_LOSSES = {'hinge', 'squared_hinge'}  # Their labels are -1 and 1, their outputs no logits.
_REGRESSION_LOSSES = {'huber', 'log_cosh', 'poisson', 'cosine_similarity'}  # And all names that end with `error`.


@dataclasses.dataclass(frozen=True)
class Predicted:
  """Labels and outputs of all examples, in the order of the data.

  Attributes:
    labels: `[n, ...]`.
    outputs: `[n, ...]`.
    features: by name, `[n, ...]`.
    task: the name of its class.
    loss: the result of `build_loss`; None if the task has none.
    are_halves: whether the model has computed the outputs in bfloat16 or float16.
  """

  labels: np.ndarray
  outputs: np.ndarray
  features: Mapping[str, np.ndarray]
  task: str
  loss: Any = None
  are_halves: bool = False


@dataclasses.dataclass(frozen=True)
class _Classes:
  """Classified examples.

  Attributes:
    probabilities: `[n, classes]`.
    labels: int `[n]`.
    examples: `[n]`: their numbers in the data.
    num_ignored: the number of other examples, whose label is the loss's `ignore_class`.
  """

  probabilities: np.ndarray
  labels: np.ndarray
  examples: np.ndarray
  num_ignored: int = 0


def find_data(params: definitions.ExperimentConfig, on: str = '', split: str = '') -> evaluated_data.EvaluatedData:
  """The validation data of a run.

  Args:
    params: of the run.
    on: the value of --on, which is refused.
    split: the value of --split, which is refused.

  Raises:
    UserError: other data are named, or the run has no validation data.
  """
  for flag, value in (('--on', on), ('--split', split)):
    if value:
      raise errors.UserError(f'{flag}: {type(params.task).__name__} reads no prepared folder; leave the flag out')
  data = params.task.validation_data
  if data is None:
    raise errors.UserError('task.validation_data: the run has none; set it in the experiment')
  config = data.replace(**config_fields.known(data, {'is_training': False, 'drop_remainder': False}))
  title = 'validation data of the run'
  return evaluated_data.EvaluatedData(config, 'task.validation_data', input_files.ClassNames({}), '', title, '')


def evaluate(
  trained: trained_model.TrainedModel, data: evaluated_data.EvaluatedData, num_mistakes: int
) -> results.Result:
  """Evaluates a regression or a classification.

  It is a classification if the labels are class numbers for outputs `[b, classes]`, or are one-hot, or if the loss is a
  binary cross-entropy of one output. It is a regression if labels and outputs have one shape, and the loss is a
  regression's, or is unknown and the labels are not all 0 and 1.

  Args:
    trained: a run of an `ext.Task` whose `forward` logs (labels, outputs), such as an `ext.SupervisedTask`.
    data: the data.
    num_mistakes: how many of the greatest errors, or of the most confident wrong predictions, to list.

  Raises:
    UserError: the task logs no labels and outputs, they or the loss are of neither kind, or there are no examples.
  """
  found = _predicted(trained, data)
  if found.labels.dtype.kind not in 'fiub':
    raise _neither(found)
  classes = _as_classes(found)
  if classes is None:
    return _regression(found, num_mistakes)
  probabilities, labels = classes.probabilities, classes.labels
  known, number = list(trained.task.class_names), max(probabilities.shape[1], int(labels.max()) + 1)
  names = known if len(known) == number else [str(each) for each in range(number)]
  probabilities = np.pad(probabilities, ((0, 0), (0, number - probabilities.shape[1])))
  result = classifier_result.of_probabilities(probabilities, labels, names)
  if classes.num_ignored:
    result.figures['ignored'] = classes.num_ignored
  confidences, predictions = probabilities.max(-1), probabilities.argmax(-1)
  order = np.argsort(-np.nan_to_num(confidences, nan=np.inf), kind='stable')
  wrong = [int(index) for index in order if predictions[index] != labels[index] or np.isnan(confidences[index])]
  rows = [
    [names[labels[index]], names[predictions[index]], classifier_result.rounded(confidences[index])] for index in wrong
  ]
  examples = classes.examples[wrong[:num_mistakes]].tolist()
  _add_mistakes(result, found, examples, ('class', 'predicted', 'confidence'), rows)
  return result


def _predicted(trained: trained_model.TrainedModel, data: evaluated_data.EvaluatedData) -> Predicted:
  task = trained.task
  key = step_random.StepKey(seed=trained.params.runtime.seed, step=tf.constant(0, tf.int64))

  @tf.function(autograph=False)
  def predict(batch: Any) -> tuple[Any, Any]:
    with step_random.step_key(key):
      return _pair(task, task.forward(batch, trained.model, training=False)[1])

  labels, outputs, features, are_halves = [], [], [], False
  with input_faults.explained(data.path, data.config, task.build_inputs):
    for batch in task.build_inputs(data.config):
      pair = predict(batch)
      labels.append(pair[0].numpy())
      outputs.append(tf.cast(pair[1], tf.float32).numpy())
      are_halves = pair[1].dtype in (tf.bfloat16, tf.float16)
      features.append(_features(batch, len(labels[-1])))
  if not labels:
    raise input_faults.no_examples(data.path, data.config, data.config.global_batch_size)
  named = {name: np.concatenate([each[name] for each in features]) for name in features[0]}
  name = type(task).__name__
  return Predicted(np.concatenate(labels), np.concatenate(outputs), named, name, _loss_of(task), are_halves)


def _loss_of(task: Any) -> Any:
  """The result of the task's `build_loss`; None if it has none, or one with arguments, which is another method."""
  build = getattr(task, 'build_loss', None)
  if build is None or getattr(type(task), 'build_loss', None) is supervised_task.SupervisedTask.build_loss:
    return None
  try:
    inspect.signature(build).bind()
  except TypeError:
    return None
  return build()


def _pair(task: Any, logs: Mapping[str, Any]) -> tuple[Any, Any]:
  """Labels and outputs in the logs of `forward`: those for all metrics, or else for the first that takes both."""
  tuples = [logs.get(supervised_task.PREDICTIONS), *logs.values()]
  for value in tuples:
    if isinstance(value, tuple) and len(value) in (2, 3):
      labels, outputs = (tf.convert_to_tensor(each) for each in value[:2])
      if outputs.dtype.is_floating and labels.shape.rank and outputs.shape.rank:
        return supervised_task.aligned(labels, outputs), outputs
  raise errors.UserError(
    f'{type(task).__name__}.forward: logs no tuple (labels, outputs) for a metric, which evaluate needs; log one'
  )


def _features(batch: Any, size: int) -> dict[str, np.ndarray]:
  """The parts of a batch that a table can show, by name."""
  if not isinstance(batch, Mapping):
    return {}
  inner = batch.get(supervised_task.FEATURES)
  if tf.is_tensor(inner):
    inner = {'features': inner}
  parts = inner if isinstance(inner, Mapping) else batch
  skipped = (supervised_task.LABELS, supervised_task.WEIGHTS)
  return {
    name: value.numpy()
    for name, value in parts.items()
    if name not in skipped and isinstance(value, tf.Tensor) and value.shape.rank in (1, 2) and value.shape[0] == size
  }


def _as_classes(found: Predicted) -> _Classes | None:
  """The examples of a classification; None for a regression."""
  labels, outputs, losses = found.labels, found.outputs, _names_of(found.loss)
  is_regression = bool(losses & _REGRESSION_LOSSES) or any(name.endswith('error') for name in losses)
  is_binary, is_one_hot = bool(losses & _BINARY_LOSSES), bool(losses & _ONE_HOT_LOSSES)
  has_numbers = bool(losses & _NUMBER_LOSSES)
  has_one_output = outputs.ndim == 1 or outputs.shape[1:] == (1,)
  has_unsupported_loss = is_one_hot or has_numbers if has_one_output else is_binary
  if has_unsupported_loss or losses & _OTHER_CLASS_LOSSES:
    number = 1 if outputs.ndim == 1 else outputs.shape[-1]
    raise errors.UserError(
      f'{found.task}.build_loss: {_shown_name(found.loss)} of {number} output{"s" * (number != 1)} is unsupported; '
      'evaluate supports a binary cross-entropy of one output, and a categorical cross-entropy of several'
    )
  if has_one_output and is_binary:
    return _of_two_classes(found)
  if outputs.ndim == 2 and not has_one_output:
    if labels.shape == outputs.shape and (is_one_hot or (not is_regression and _is_one_hot(labels))):
      return _Classes(_distributions(found), labels.argmax(-1), np.arange(len(labels)))
    if labels.size == len(outputs) and (labels.dtype.kind in 'iub' or has_numbers):
      return _of_class_numbers(found)
  if not is_regression and labels.shape == outputs.shape and np.isin(labels, (0, 1)).all():
    raise errors.UserError(
      f'{found.task}: labels are 0 and 1, and the loss is unknown; let build_loss return a loss of tf_keras.losses: '
      'BinaryCrossentropy for two classes and one output, MeanSquaredError for a regression'
    )
  return None


def _of_two_classes(found: Predicted) -> _Classes:
  labels, outputs = found.labels.reshape(-1), found.outputs.reshape(-1)
  is_wrong = ~((labels >= 0) & (labels <= 1))
  if is_wrong.any():
    raise errors.UserError(
      f'{found.task}: label {labels[is_wrong][0]:g} is no class; {_shown_name(found.loss)} requires 0 and 1'
    )
  finite = outputs[np.isfinite(outputs)]
  positive = (
    outputs if _are_probabilities(found, finite, (finite >= 0) & (finite <= 1)) else tf.sigmoid(outputs).numpy()
  )
  return _Classes(np.stack([1 - positive, positive], -1), (labels > 0.5).astype(int), np.arange(len(labels)))


def _of_class_numbers(found: Predicted) -> _Classes:
  labels = found.labels.reshape(-1)
  ignored = _setting(found.loss, 'ignore_class')
  kept = np.flatnonzero(labels != ignored) if ignored is not None else np.arange(len(labels))
  if not len(kept):
    raise errors.UserError(
      f'{found.task}: all {len(labels)} labels are {ignored}, the ignore_class of the loss: there is nothing to '
      'evaluate; set labels'
    )
  is_wrong = ~(labels[kept] >= 0)  # NaN too.
  if is_wrong.any():
    label = labels[kept][is_wrong][0]
    raise errors.UserError(
      f'{found.task}: label {label:g} is no class; remove the example, or set ignore_class of the loss'
    )
  return _Classes(_distributions(found)[kept], labels[kept].astype(int), kept, len(labels) - len(kept))


def _names_of(loss: Any) -> set[str]:
  """The names of a loss and of its base classes, in snake case; {} for None."""
  if isinstance(loss, functools.partial):
    return _names_of(loss.func)
  functions = [loss, getattr(loss, 'fn', None)]  # Keras' losses have a function.
  names = [getattr(each, '__name__', '') for each in functions]
  if isinstance(loss, tf_keras.losses.Loss):
    names += [cls.__name__ for cls in type(loss).__mro__]
  return {re.sub(r'(?<=[a-z])(?=[A-Z])', '_', re.sub(r'_v2$', '', name)).lower() for name in names if name}


def _shown_name(loss: Any) -> str:
  loss = loss.func if isinstance(loss, functools.partial) else loss
  return re.sub(r'_v2$', '', getattr(loss, '__name__', type(loss).__name__))


def _setting(loss: Any, name: str) -> Any:
  """An argument of a loss, such as `from_logits`; None if it has none."""
  if isinstance(loss, functools.partial):
    return loss.keywords.get(name)
  # Only some of Keras' losses have it as an attribute.
  config = loss.get_config() if isinstance(loss, tf_keras.losses.Loss) else {}
  return config.get(name, getattr(loss, name, None))


def _is_one_hot(labels: np.ndarray) -> bool:
  return bool(np.isin(labels, (0, 1)).all() and (labels.sum(-1) == 1).all())


def _distributions(found: Predicted) -> np.ndarray:
  """Probabilities `[n, classes]`, of which each finite row sums to 1."""
  outputs = found.outputs
  finite = outputs[np.isfinite(outputs).all(-1)]
  tolerance = _TOLERANCE_OF_HALVES if found.are_halves else _TOLERANCE
  # Keras' losses divide by the sum, such as the sum of sigmoids.
  sums_to_one = (np.abs(finite.sum(-1) - 1) <= tolerance) | (_setting(found.loss, 'from_logits') is False)
  if not _are_probabilities(found, finite, (finite >= 0).all(-1) & sums_to_one):
    return tf.nn.softmax(outputs).numpy()
  with np.errstate(invalid='ignore'):  # Rows that are not finite.
    return outputs / outputs.sum(-1, keepdims=True)


def _are_probabilities(found: Predicted, finite: np.ndarray, fits: np.ndarray) -> bool:
  """Whether outputs are probabilities and not logits: by the loss, or else by the outputs that are finite.

  Raises:
    UserError: by the loss they are, and the outputs are none.
  """
  from_logits = _setting(found.loss, 'from_logits')
  if from_logits is None and any(name.endswith(_WITH_LOGITS) for name in _names_of(found.loss)):
    from_logits = True
  if from_logits is False and not fits.all():
    raise errors.UserError(
      f'{found.task}.build_loss: from_logits is False, and the outputs, {finite.min():.3g} to {finite.max():.3g}, are '
      'no probabilities; set from_logits=True'
    )
  return bool(fits.all()) if from_logits is None else not from_logits


def _neither(found: Predicted) -> errors.UserError:
  return errors.UserError(
    f'{found.task}: labels {list(found.labels.shape)} of {found.labels.dtype} and outputs {list(found.outputs.shape)} '
    'are neither a regression nor a classification; evaluate supports [n] and [n, k], and class numbers for '
    '[n, classes]'
  )


def _regression(found: Predicted, num_mistakes: int) -> results.Result:
  """Figures of errors, which are predictions minus labels; with several outputs, over all of them, and of each."""
  from sklearn import metrics  # pylint: disable=g-import-not-at-top  # It takes a second.

  if found.labels.shape != found.outputs.shape or found.outputs.ndim > 2:
    raise _neither(found)
  num_examples = len(found.labels)
  labels, outputs = (values.reshape(num_examples, -1).astype(np.float64) for values in (found.labels, found.outputs))
  is_finite = (np.isfinite(outputs) & np.isfinite(labels)).all(-1)
  classifier_result.check_finite(int(is_finite.sum()), num_examples, 'examples')
  true, predicted = labels[is_finite], outputs[is_finite]

  def figures_of(true: np.ndarray, predicted: np.ndarray) -> json_values.JsonObject:
    difference = (predicted - true).reshape(-1)
    score = metrics.r2_score(true, predicted) if len(true) > 1 and np.ptp(true, axis=0).all() else np.nan
    return {
      'mae': classifier_result.rounded(np.abs(difference).mean()),
      'rmse': classifier_result.rounded(np.sqrt(np.square(difference).mean())),
      'r2': classifier_result.rounded(score),
      'median_absolute_error': classifier_result.rounded(np.median(np.abs(difference))),
      'mean_error': classifier_result.rounded(difference.mean()),
      'max_error': classifier_result.rounded(np.abs(difference).max()),
    }

  figures: json_values.JsonObject = {'examples': num_examples, **figures_of(true, predicted)}
  tables = []
  if labels.shape[1] > 1:
    each = [figures_of(true[:, number], predicted[:, number]) for number in range(labels.shape[1])]
    figures['outputs'] = each
    rows = [[number, *values.values()] for number, values in enumerate(each)]
    tables.append(results.Table('Outputs', ('output', *each[0]), rows))
  if not is_finite.all():
    figures['not_finite'] = int((~is_finite).sum())
  result = results.Result(figures, tables, {'predictions': _draw_predictions(true, predicted, figures)})
  differences = np.where(np.isfinite(outputs - labels), outputs - labels, np.inf)
  worst = np.argsort(-np.abs(differences).max(-1), kind='stable')[:num_mistakes].tolist()
  rows = [[_cell(found.labels[index]), _cell(found.outputs[index]), _cell(differences[index])] for index in worst]
  _add_mistakes(result, found, worst, ('label', 'predicted', 'error'), rows)
  return result


def _add_mistakes(
  result: results.Result, found: Predicted, indices: Sequence[int], header: Sequence[str], rows: list[list[object]]
) -> None:
  """Adds the table of the worst examples: number in the data from 0, values and features."""
  names = list(found.features)[:_MAX_COLUMNS]
  listed = [[index, *row, *(_cell(found.features[name][index]) for name in names)] for index, row in zip(indices, rows)]
  if listed:
    result.tables.append(results.Table('Mistakes', ('example', *header, *names), listed))


def _cell(value: Any) -> str:
  """A number, a text or a vector in a table."""
  values = np.atleast_1d(value)
  texts = [_text(each) for each in values[:_MAX_VALUES]]
  return ' '.join([*texts, *(['...'] if len(values) > _MAX_VALUES else [])])[:_MAX_TEXT]


def _text(value: Any) -> str:
  if isinstance(value, bytes):
    return value.decode('utf-8', 'replace')
  return f'{value:.4g}' if isinstance(value, np.floating) else str(value)


def _draw_predictions(labels: np.ndarray, outputs: np.ndarray, figures: json_values.JsonMapping) -> np.ndarray:
  """Draws predictions over labels, with the diagonal: uint8 `[480, 480, 3]`."""
  ends = [min(labels.min(), outputs.min()), max(labels.max(), outputs.max())]

  def draw(axes):
    for number in range(labels.shape[1]):
      name = f'output {number}' if labels.shape[1] > 1 else None
      axes.scatter(labels[:, number], outputs[:, number], s=8, alpha=0.5, linewidths=0, label=name)
    axes.plot(ends, ends, '--', color='grey')
    axes.set(xlabel='label', ylabel='predicted', title=f'mae {figures["mae"]:.4g}, rmse {figures["rmse"]:.4g}')
    if 1 < labels.shape[1] <= _MAX_COLUMNS:
      axes.legend()

  return classifier_result.drawn(draw)
