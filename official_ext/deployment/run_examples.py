"""Examples of a run's data, for the verification and the calibration of its exports."""

from collections.abc import Callable, Iterable, Iterator, Mapping
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.data import bad_examples
from official_ext.data import input_faults
from official_ext.training.trained import trained_model

SPLITS = ('validation_data', 'train_data')
CALIBRATION_EXAMPLES = 128

_MOST_BATCH = 16
# Of inputs and outputs that are held for a verification.
_MOST_BYTES = 1 << 29

Arrays = Mapping[str, np.ndarray]
OutputsOf = Callable[[Any, Arrays], Iterable[tuple[Arrays, Mapping[str, Any]]]]


@dataclasses.dataclass(frozen=True)
class RunExamples:
  """Examples of a run's data.

  Attributes:
    split: the field of the task that they are from.
    inputs: of the verification, by the names of the exported signature: arrays `[n, ...]`.
    expected: the model's own outputs for them, by name: arrays `[n, ...]`.
    calibration: further inputs, for quantization: arrays `[m, ...]`; those of the verification if the data have no
      others.
  """

  split: str
  inputs: dict[str, np.ndarray]
  expected: dict[str, np.ndarray]
  calibration: dict[str, np.ndarray]

  @property
  def number(self) -> int:
    """The number of examples of the verification."""
    return len(next(iter(self.inputs.values())))

  @property
  def calibration_number(self) -> int:
    """The number of examples of the calibration."""
    return len(next(iter(self.calibration.values())))


def read(
  trained: trained_model.TrainedModel,
  inputs_of: Callable[[Any], Mapping[str, np.ndarray]],
  outputs_of: OutputsOf,
  number: int,
  calibrates: bool,
) -> RunExamples:
  """Reads the first examples of the validation data, in their order; of the training data if there are no others.

  Training data are read as in an evaluation: without augmentation, in the order of the files.

  Args:
    trained: the model, its task and its experiment.
    inputs_of: from a batch to the inputs of the exported signature.
    outputs_of: from a batch and these inputs to the model's own outputs, in parts: (inputs, outputs) of some examples.
    number: of examples to verify with, at most; fewer if they are large.
    calibrates: whether examples for a calibration are needed too. They follow those of the verification.

  Raises:
    UserError: the data cannot be read, or are empty.
  """
  problems = []
  for split in SPLITS:
    data = getattr(trained.params.task, split, None)
    if data is None:
      continue
    try:
      return _read(trained, split, data, inputs_of, outputs_of, number, calibrates)
    except errors.UserError as error:
      problems.append(errors.lines_of(error)[0])
    except Exception as error:  # pylint: disable=broad-except  # The task's code and its files may raise anything.
      problems.append(f'task.{split}: {bad_examples.one_line(error)}')
  raise errors.UserError(problems[0] if problems else 'task.validation_data: is not set, nor is task.train_data')


def _read(trained, split, data, inputs_of, outputs_of, number, calibrates) -> RunExamples:
  missing = input_faults.unmatched(data)
  if missing is not None:
    raise errors.UserError(f'task.{split}.input_path: {missing}: No such file or directory')
  inputs: list[Mapping[str, np.ndarray]] = []
  expected: list[Mapping[str, np.ndarray]] = []
  calibration: list[Mapping[str, np.ndarray]] = []
  for batch in trained.task.build_inputs(_in_order(data)):
    found = dict(inputs_of(batch))
    if sum(map(_count, inputs)) < number:
      for part, outputs in outputs_of(batch, found):
        inputs.append(part)
        expected.append(_of_examples(outputs, _count(part)))
        number = min(number, max(1, _MOST_BYTES // _bytes_of_one(part, expected[-1])))
        if sum(map(_count, inputs)) >= number:
          break
    elif calibrates and sum(map(_count, calibration)) < CALIBRATION_EXAMPLES:
      calibration.append(found)
    else:
      break
  if not inputs:
    raise input_faults.no_examples(f'task.{split}', data)
  verified, answers = _joined(inputs, number), _joined(expected, number)
  rest = _joined(calibration, CALIBRATION_EXAMPLES) if calibration else verified
  return RunExamples(split, verified, answers, rest)


def _in_order(data: Any) -> Any:
  """A data configuration that yields its examples once, in order, in batches of moderate size."""
  size = min(data.global_batch_size or _MOST_BATCH, _MOST_BATCH)
  return data.replace(is_training=False, drop_remainder=False, global_batch_size=size)


def batches(inputs: Mapping[str, np.ndarray], size: int = 1) -> Iterator[dict[str, np.ndarray]]:
  """Yields inputs in batches."""
  for start in range(0, _count(inputs), size):
    yield {name: array[start : start + size] for name, array in inputs.items()}


def _count(arrays: Mapping[str, np.ndarray]) -> int:
  return len(next(iter(arrays.values())))


def _of_examples(outputs: Mapping[str, Any], number: int) -> dict[str, np.ndarray]:
  """The outputs that have a value for each of `number` examples, as arrays; bfloat16 becomes float32."""
  found = {}
  for name, value in outputs.items():
    value = tf.convert_to_tensor(value)
    if value.shape.rank and value.shape[0] == number:
      found[name] = (tf.cast(value, tf.float32) if value.dtype in (tf.bfloat16, tf.float16) else value).numpy()
  return found


def _bytes_of_one(*parts: Mapping[str, np.ndarray]) -> int:
  return sum(array.nbytes // max(1, len(array)) for arrays in parts for array in arrays.values()) or 1


def _joined(parts: list[Mapping[str, np.ndarray]], number: int) -> dict[str, np.ndarray]:
  return {name: np.concatenate([part[name] for part in parts])[:number] for name in parts[0]}
