"""Compares the loss of a batch with the losses of its examples, each computed alone, in inference mode.

The loss of a batch must be a mean of them. It is not if labels `[b]` meet outputs `[b, 1]`, or if an example changes
the output of another: statistics of a batch, a softmax over the batch axis, a wrong reshape. Weighted means are means
too, such as means over tokens: the weights come from `Task.micro_batch_weight`, or follow from pairs of examples.
"""

from collections.abc import Callable
import dataclasses
import math
import time
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from official_ext.base import protocols
from official_ext.base import tracebacks
from official_ext.data import batch_axes
from official_ext.training.diagnosis import findings
from official_ext.training.step import observers
from official_ext.training.tasks import base_task

MIXES_EXAMPLES = 'mixes_examples'  # The attribute of a task.

_NUM_EXAMPLES = 8
_SECONDS = 10.0  # The longest step: some ten follow.
_TOLERANCE = 1e-3
_TOLERANCE_OF_HALVES = 3e-2
_MOST_UNEQUAL = 1e5  # Of two weights.

# Returns the loss of a batch. The second argument numbers the batch: random numbers depend on it.
LossOf = Callable[[object, int], float]


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Losses of a batch and of its examples.

  Attributes:
    of_batch: the loss of the batch.
    alone: the losses of its examples, each in a batch of one.
    weights: the declared weights of the examples.
  """

  of_batch: float
  alone: np.ndarray
  weights: np.ndarray

  @property
  def mean(self) -> float:
    """The mean of the losses of the examples by the declared weights."""
    return float(np.average(self.alone, weights=self.weights))


def find(
  task: protocols.Task,
  model: Any,
  loss_of: LossOf,
  batch: object,
  size: int,
  owns_loss: bool = True,
  validates: bool = True,
) -> list[findings.Finding] | None:
  """Looks for a loss of a batch that is not a mean over its examples.

  Args:
    task: a task. One with a true `mixes_examples` is not checked.
    model: its model, built.
    loss_of: its loss in an evaluation.
    batch: a batch of `size` examples.
    size: at least 2; else nothing is checked.
    owns_loss: whether the loss is the user's. Model Garden's detectors divide by the objects of a batch plus 1: of its
      tasks, only layers are reported.
    validates: whether `loss_of` calls `validation_step`; else it calls `forward`. The finding names it.

  Returns:
    The findings; None if the losses cannot be compared, such as the losses of a task that needs whole batches, or
    take long, as an evaluation that generates texts.
  """
  if getattr(task, MIXES_EXAMPLES, False):
    return []
  if size < 2:
    return None
  axes = batch_axes.of_spec(batch, size)
  if axes is None or set(axes.axes) <= {None}:
    return None
  examples = [_taken(batch, axes, [number]) for number in range(min(size, _NUM_EXAMPLES))]
  batch = _taken(batch, axes, list(range(len(examples))))
  begin = time.monotonic()
  try:
    whole = loss_of(batch, 0)
    if time.monotonic() - begin > _SECONDS:
      return None
    other = loss_of(batch, 1)
    alone = np.array([loss_of(example, 0) for example in examples])
    weights = _declared_weights(task, examples)
  except Exception:  # pylint: disable=broad-except  # The task needs whole batches, or has no loss.
    return None
  tolerance = _tolerance(model)
  if not _is_close(whole, other, abs(whole), tolerance):  # The loss is random.
    return None
  if _is_close(whole, Comparison(whole, alone, weights).mean, float(np.abs(alone).max()), tolerance):
    return []
  # An example without a label has no loss alone: a mean over nothing.
  kept = [number for number, loss in enumerate(alone) if math.isfinite(loss) and loss]
  if not kept and not alone.any():
    kept = list(range(len(alone)))
  if len(kept) < 2 or not weights[kept].any():
    return None
  compared = Comparison(loss_of(_taken(batch, axes, kept), 0), alone[kept], weights[kept])

  def of_pair(first: int, second: int) -> float:
    return loss_of(_taken(batch, axes, [kept[first], kept[second]]), 0)

  if is_mean(compared, of_pair, tolerance):
    return []
  layer = _mixing_layer(loss_of, batch, examples, tolerance)
  return [_finding(task, compared, layer, validates)] if layer or owns_loss else []


def is_mean(compared: Comparison, of_pair: Callable[[int, int], float], tolerance: float = _TOLERANCE) -> bool:
  """Whether the loss of a batch is a weighted mean of its examples' losses, or their sum, which others report.

  The declared weights are tried first. If they do not fit, each weight w_i follows from the loss of two examples,
  (w_i l_i + w_j l_j) / (w_i + w_j), of which j has the smallest or the greatest loss.

  Args:
    compared: the losses.
    of_pair: the loss of two examples, by their positions in `compared.alone`.
    tolerance: of losses, as a share of the greatest.

  Example:

    >>> import itertools
    >>> losses, weights = np.array([1.0, 2.0, 4.0]), np.array([5.0, 1.0, 2.0])
    >>> def mean(*chosen):
    ...   return np.average(losses[list(chosen)], weights=weights[list(chosen)])
    >>> is_mean(Comparison(mean(0, 1, 2), losses, np.ones(3)), mean)
    True
    >>> is_mean(Comparison(losses.max(), losses, np.ones(3)), lambda *chosen: losses[list(chosen)].max())
    False
  """
  alone = compared.alone
  scale = float(np.abs(alone).max())
  if any(_is_close(compared.of_batch, expected, scale, tolerance) for expected in (compared.mean, alone.sum())):
    return True
  least, greatest = int(alone.argmin()), int(alone.argmax())
  if _is_close(alone[least], alone[greatest], scale, tolerance):
    return False

  def ratio(first: int, second: int) -> float:
    """The weight of the second over the weight of the first; 0 if there is none."""
    loss = of_pair(first, second)
    over, under = alone[first] - loss, loss - alone[second]
    return over / under if over * under > 0 and 1 / _MOST_UNEQUAL < over / under < _MOST_UNEQUAL else 0.0

  found = {least: 1.0, greatest: ratio(least, greatest)}
  middle = (alone[least] + alone[greatest]) / 2
  for number, loss in enumerate(alone):
    reference = least if loss > middle else greatest
    if number not in found:
      found[number] = found[reference] * ratio(reference, number)
  weights = np.array([found[number] for number in range(len(alone))])
  return bool(weights.all()) and _is_close(compared.of_batch, np.average(alone, weights=weights), scale, tolerance)


def _taken(batch: object, axes: batch_axes.BatchAxes, numbers: list[int]) -> Any:
  """Some examples of a batch; parts that do not count examples are unchanged."""
  parts = [
    part if axis is None else _rows(part, numbers, axis) for part, axis in zip(tf.nest.flatten(batch), axes.axes)
  ]
  return tf.nest.pack_sequence_as(batch, parts)


def _rows(part, numbers, axis):
  if isinstance(part, tf.SparseTensor):
    raise TypeError('sparse')
  return tf.gather(part, numbers, axis=axis)


def _declared_weights(task: Any, examples: list[Any]) -> np.ndarray:
  declared = [task.micro_batch_weight(each) if isinstance(task, base_task.Task) else None for each in examples]
  return np.array([1.0 if weight is None else float(weight) for weight in declared])


def _tolerance(model: Any) -> float:
  layers = [part for part in getattr(model, 'submodules', ()) if isinstance(part, tf_keras.layers.Layer)]
  dtypes = {layer.compute_dtype for layer in layers}
  return _TOLERANCE_OF_HALVES if dtypes & {'float16', 'bfloat16'} else _TOLERANCE


def _is_close(first: float, second: float, scale: float, tolerance: float) -> bool:
  return bool(abs(first - second) <= tolerance * scale)


def _mixing_layer(loss_of: LossOf, batch: object, examples: list[Any], tolerance: float) -> str:
  """The first layer whose output for the first example differs from its output for this example alone; '' for none."""
  together, alone = (_outputs_of_layers(loss_of, each) for each in (batch, examples[0]))
  for (path, many), (other_path, one) in zip(together, alone):
    if path != other_path:
      break
    for outputs, single in zip(many, one):
      if outputs.shape[:1] != (len(examples),) or single.shape != (1, *outputs.shape[1:]):
        continue
      scale = float(np.abs(outputs).max(initial=0.0))
      if float(np.abs(outputs[0] - single[0]).max(initial=0.0)) > tolerance * scale:
        return path
  return ''


def _outputs_of_layers(loss_of: LossOf, batch: object) -> list[tuple[str, list[np.ndarray]]]:
  found = []

  def note(path: str, outputs: Any) -> None:
    tensors = [each for each in tf.nest.flatten(outputs) if isinstance(each, tf.Tensor) and hasattr(each, 'numpy')]
    found.append((path, [tf.cast(each, tf.float32).numpy() for each in tensors if each.dtype.is_floating]))

  with observers.followed(note):
    loss_of(batch, 0)
  return found


def _finding(task: Any, compared: Comparison, layer: str, validates: bool) -> findings.Finding:
  figures = (
    f'the loss of {len(compared.alone)} examples is {compared.of_batch:.4g}, and the mean of their losses, each '
    f'computed alone, {compared.mean:.4g}'
  )
  declare = f'set {MIXES_EXAMPLES} = True in the task if that is intended'
  inherits_step = isinstance(task, base_task.Task) and type(task).validation_step is base_task.Task.validation_step
  uses_forward = inherits_step or not validates
  place = tracebacks.of_function(task.forward if uses_forward else task.validation_step)
  if layer:
    what = f'the output of the layer {layer} for an example depends on the others of its batch: {figures}'
    return findings.Finding('warning', place, what, f'compute it from each example alone, or {declare}')
  what = f'labels and outputs broadcast, or examples mix in the loss: {figures}'
  return findings.Finding('warning', place, what, f'give labels and outputs one shape, or {declare}')
