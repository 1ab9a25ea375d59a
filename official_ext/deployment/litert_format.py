"""Conversion to LiteRT (.tflite) by TensorFlow's converter."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import re
from typing import Any
import warnings

import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.deployment import export_options
from official_ext.deployment import quiet_stderr
from official_ext.deployment import run_examples

FILE = 'model.tflite'


@dataclasses.dataclass(frozen=True)
class LitertModel:
  """A converted model.

  Attributes:
    content: of the file.
    tensorflow_ops: operations of TensorFlow that it contains, which LiteRT's Flex delegate runs; () usually.
  """

  content: bytes
  tensorflow_ops: tuple[str, ...] = ()


def convert(
  concrete: Any,
  quantization: str,
  calibration: Mapping[str, np.ndarray] | None,
) -> LitertModel:
  """Converts a function. If LiteRT lacks an operation, TensorFlow's own is taken into the model.

  Args:
    concrete: the computation, a concrete function whose inputs have complete shapes.
    quantization: one of `export_options.QUANTIZATIONS`. 'float16' stores weights in 16 bits, 'dynamic' in 8. 'int8'
      computes in 8 bits if an operation can; inputs and outputs remain floats.
    calibration: inputs for 'int8': arrays `[n, ...]`.

  Raises:
    UserError: an operation has no counterpart in LiteRT; the message names it.
  """
  with quiet_stderr.hidden():
    return _convert(concrete, quantization, calibration)


def _convert(concrete: Any, quantization: str, calibration: Any) -> LitertModel:
  try:
    return LitertModel(_converted(concrete, quantization, calibration, ()))
  except Exception as error:  # pylint: disable=broad-except  # The converter raises several types.
    missing = missing_ops(str(error))
    if not missing:
      raise _refusal(error) from error
  try:
    content = _converted(concrete, quantization, calibration, (tf.lite.OpsSet.SELECT_TF_OPS,))
    return LitertModel(content, missing)
  except Exception as error:  # pylint: disable=broad-except  # As above.
    raise _refusal(error) from error


def _converted(concrete: Any, quantization: str, calibration: Any, more: Sequence[Any]) -> bytes:
  # With the model in place of its variables, the converter would trace and save each of its layers first.
  variables = tf.Module()
  variables.all = list(concrete.variables)
  converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], variables)
  operations = [tf.lite.OpsSet.TFLITE_BUILTINS, *more]
  if quantization != export_options.NONE:
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
  if quantization == export_options.FLOAT16:
    converter.target_spec.supported_types = [tf.float16]
  if quantization == export_options.INT8:
    operations.insert(0, tf.lite.OpsSet.TFLITE_BUILTINS_INT8)

    def examples() -> Iterator[dict[str, np.ndarray]]:
      yield from run_examples.batches(calibration)

    converter.representative_dataset = examples
  converter.target_spec.supported_ops = operations
  with warnings.catch_warnings():
    warnings.filterwarnings('ignore', message='.*tf.lite.Interpreter is deprecated', category=UserWarning)
    return converter.convert()


def missing_ops(message: str) -> tuple[str, ...]:
  """The operations in a converter's message that LiteRT lacks: `TF Select ops: Erf, Svd` and `Custom ops: ...`."""
  lists = re.findall(r'(?:TF Select|Custom) ops: ([\w, ]+)', message)
  return tuple(dict.fromkeys(name.strip() for names in lists for name in names.split(',')))


def _refusal(error: BaseException) -> errors.UserError:
  missing = missing_ops(str(error)) or re.findall(r"'?(tf\.\w+)'? op is neither a custom op nor a flex op", str(error))
  reason = ' '.join(str(error).split())[:200]
  which = (
    f'LiteRT has no operation {", ".join(dict.fromkeys(missing))}' if missing else f'cannot be converted: {reason}'
  )
  return errors.UserError(
    f'--format={export_options.LITERT}: {which}; use --format={export_options.SAVED_MODEL}, which has all operations'
  )
