"""The evaluation of custom regression and classification tasks, whose `forward` logs labels and outputs for metrics."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

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
_ONE_HOT_LOSSES = ('CategoricalCrossentropy', 'CategoricalFocalCrossentropy', 'CategoricalHinge')
_BINARY_LOSSES = ('BinaryCrossentropy', 'BinaryFocalCrossentropy')


@dataclasses.dataclass(frozen=True)
class Predicted:
  """Labels and outputs of all examples, in the order of the data.

  Attributes:
    labels: `[n, ...]`.
    outputs: `[n, ...]`.
    features: by name, `[n, ...]`.
    loss: the result of `build_loss`; None if the task has none.
  """

  labels: np.ndarray
  outputs: np.ndarray
  features: Mapping[str, np.ndarray]
  loss: Any = None


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
  binary cross-entropy; else labels and outputs have one shape, and it is a regression.

  Args:
    trained: a run of an `ext.Task` whose `forward` logs (labels, outputs), such as an `ext.SupervisedTask`.
    data: the data.
    num_mistakes: how many of the greatest errors, or of the most confident wrong predictions, to list.

  Raises:
    UserError: the task logs no labels and outputs, their shapes are of neither kind, or there are no examples.
  """
  found = _predicted(trained, data)
  classes = _as_classes(found)
  if classes is None:
    return _regression(found, num_mistakes, type(trained.task).__name__)
  probabilities, labels = classes
  known, number = list(trained.task.class_names), max(probabilities.shape[1], int(labels.max()) + 1)
  names = known if len(known) == number else [str(each) for each in range(number)]
  probabilities = np.pad(probabilities, ((0, 0), (0, number - probabilities.shape[1])))
  result = classifier_result.of_probabilities(probabilities, labels, names)
  confidences, predictions = probabilities.max(-1), probabilities.argmax(-1)
  order = np.argsort(-np.nan_to_num(confidences, nan=np.inf), kind='stable')
  wrong = [int(index) for index in order if predictions[index] != labels[index] or np.isnan(confidences[index])]
  rows = [
    [names[labels[index]], names[predictions[index]], classifier_result.rounded(confidences[index])] for index in wrong
  ]
  _add_mistakes(result, found, wrong[:num_mistakes], ('class', 'predicted', 'confidence'), rows)
  return result


def _predicted(trained: trained_model.TrainedModel, data: evaluated_data.EvaluatedData) -> Predicted:
  task = trained.task
  key = step_random.StepKey(seed=trained.params.runtime.seed, step=tf.constant(0, tf.int64))

  @tf.function(autograph=False)
  def predict(batch: Any) -> tuple[Any, Any]:
    with step_random.step_key(key):
      return _pair(task, task.forward(batch, trained.model, training=False)[1])

  labels, outputs, features = [], [], []
  with input_faults.explained(data.path, data.config, task.build_inputs):
    for batch in task.build_inputs(data.config):
      pair = predict(batch)
      labels.append(pair[0].numpy())
      outputs.append(pair[1].numpy())
      features.append(_features(batch, len(labels[-1])))
  if not labels:
    raise input_faults.no_examples(data.path, data.config, data.config.global_batch_size)
  named = {name: np.concatenate([each[name] for each in features]) for name in features[0]}
  loss = task.build_loss() if isinstance(task, supervised_task.SupervisedTask) and _has_loss(task) else None
  return Predicted(np.concatenate(labels), np.concatenate(outputs), named, loss)


def _has_loss(task: supervised_task.SupervisedTask) -> bool:
  return type(task).build_loss is not supervised_task.SupervisedTask.build_loss


def _pair(task: Any, logs: Mapping[str, Any]) -> tuple[Any, Any]:
  """Labels and outputs in the logs of `forward`: those for all metrics, or else for the first that takes both."""
  tuples = [logs.get(supervised_task.PREDICTIONS), *logs.values()]
  for value in tuples:
    if isinstance(value, tuple) and len(value) in (2, 3):
      labels, outputs = (tf.convert_to_tensor(each) for each in value[:2])
      if outputs.dtype.is_floating and labels.shape.rank and outputs.shape.rank:
        return supervised_task.aligned(labels, outputs), tf.cast(outputs, tf.float32)
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


def _as_classes(found: Predicted) -> tuple[np.ndarray, np.ndarray] | None:
  """(probabilities `[n, classes]`, labels `[n]`) of a classification; None for a regression."""
  labels, outputs, loss = found.labels, found.outputs, type(found.loss).__name__
  from_logits = getattr(found.loss, 'from_logits', None)
  if outputs.ndim == 1 or outputs.shape[1:] == (1,):
    if loss not in _BINARY_LOSSES:
      return None
    positive = outputs.reshape(-1)
    is_probability = not from_logits if from_logits is not None else bool(((positive >= 0) & (positive <= 1)).all())
    positive = positive if is_probability else tf.sigmoid(positive).numpy()
    return np.stack([1 - positive, positive], -1), (labels.reshape(-1) > 0.5).astype(int)
  if outputs.ndim != 2:
    return None
  if labels.shape == outputs.shape and (
    loss in _ONE_HOT_LOSSES or (not loss.endswith('Error') and _is_one_hot(labels))
  ):
    numbers = labels.argmax(-1)
  elif labels.size == len(outputs) and (labels.dtype.kind in 'iub' or loss.startswith('SparseCategorical')):
    numbers = labels.reshape(-1).astype(int)
  else:
    return None
  is_distribution = not from_logits if from_logits is not None else _are_distributions(outputs)
  return (outputs if is_distribution else tf.nn.softmax(outputs).numpy()), numbers


def _is_one_hot(labels: np.ndarray) -> bool:
  return bool(np.isin(labels, (0, 1)).all() and (labels.sum(-1) == 1).all())


def _are_distributions(outputs: np.ndarray) -> bool:
  return bool((outputs >= 0).all() and np.allclose(outputs.sum(-1), 1, atol=1e-3))


def _regression(found: Predicted, num_mistakes: int, task: str) -> results.Result:
  """Figures of errors, which are predictions minus labels; with several outputs, over all of them, and of each."""
  from sklearn import metrics  # pylint: disable=g-import-not-at-top  # It takes a second.

  if found.labels.shape != found.outputs.shape or found.outputs.ndim > 2 or found.labels.dtype.kind not in 'fiub':
    raise errors.UserError(
      f'{task}: labels {list(found.labels.shape)} of {found.labels.dtype} and outputs {list(found.outputs.shape)} are '
      'neither a regression nor a classification; evaluate supports [n] and [n, k], and class numbers for [n, classes]'
    )
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
