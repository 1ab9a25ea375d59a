"""Conversion to ONNX by tf2onnx, and quantization by onnxruntime."""

from collections.abc import Callable, Iterator, Mapping
import os
import tempfile
from typing import Any

import numpy as np

from official_ext.base import errors
from official_ext.deployment import export_options
from official_ext.deployment import quiet_stderr
from official_ext.deployment import run_examples

FILE = 'model.onnx'
OPSET = 17


def convert(concrete: Any, quantization: str, calibration: Mapping[str, np.ndarray] | None, path: str) -> None:
  """Converts a function, and writes the file.

  Args:
    concrete: the computation, a concrete function.
    quantization: one of `export_options.QUANTIZATIONS`. 'float16' computes in 16 bits, 'dynamic' stores weights in 8
      bits, 'int8' computes in 8 bits. Inputs and outputs remain floats.
    calibration: inputs for 'int8': arrays `[n, ...]`.
    path: of the file to write.

  Raises:
    UserError: an operation has no counterpart in ONNX, and the message names it; or a quantization fails.
  """
  with tempfile.TemporaryDirectory(prefix='official_ext-onnx-') as scratch:
    plain = os.path.join(scratch, FILE) if quantization != export_options.NONE else path
    with quiet_stderr.hidden():
      _convert(concrete, plain)
    if quantization == export_options.NONE:
      return
    try:
      with quiet_stderr.hidden():
        _QUANTIZERS[quantization](plain, path, calibration)
    except Exception as error:  # pylint: disable=broad-except  # The quantizers raise several types.
      reason = ' '.join(str(error).split())[:200]
      raise errors.UserError(
        f'--quantize={quantization}: onnxruntime cannot quantize this model: {type(error).__name__}: {reason}; use '
        f'--quantize={export_options.NONE}'
      ) from error


class _Traced:
  """Gives tf2onnx a concrete function in place of a tf.function, which it would trace again."""

  def __init__(self, concrete: Any):
    self._concrete = concrete

  def get_concrete_function(self, *specs: object) -> Any:
    """The function."""
    del specs
    return self._concrete


def _convert(concrete: Any, path: str) -> None:
  import onnx  # pylint: disable=g-import-not-at-top  # The extra `onnx`, as the next.
  import tf2onnx  # pylint: disable=g-import-not-at-top

  instead = f'use --format={export_options.SAVED_MODEL}, which has all operations'
  try:
    model, _ = tf2onnx.convert.from_function(_Traced(concrete), input_signature=(), opset=OPSET)
  except Exception as error:  # pylint: disable=broad-except  # The converter raises several types.
    reason = ' '.join(str(error).split())[:200]
    raise errors.UserError(
      f'--format={export_options.ONNX}: cannot be converted: {type(error).__name__}: {reason}; {instead}'
    ) from error
  missing = missing_ops(model.graph)
  if missing:
    raise errors.UserError(f'--format={export_options.ONNX}: ONNX has no operation {", ".join(missing)}; {instead}')
  onnx.save(model, path)


def missing_ops(graph: Any) -> list[str]:
  """The operations of an ONNX graph that ONNX does not define: tf2onnx leaves those of TensorFlow in it."""
  import onnx  # pylint: disable=g-import-not-at-top  # The extra `onnx`.

  found: set[str] = set()
  for node in graph.node:
    if not node.domain and not onnx.defs.has(node.op_type):
      found.add(node.op_type)
    for attribute in node.attribute:
      for inner in (attribute.g, *attribute.graphs):
        found.update(missing_ops(inner))
  return sorted(found)


def _to_float16(plain: str, path: str, calibration: object) -> None:
  import onnx  # pylint: disable=g-import-not-at-top  # The extra `onnx`, as the next.
  from onnxruntime.transformers import float16  # pylint: disable=g-import-not-at-top

  del calibration
  model = onnx.load(plain)
  _compute_constant_outputs(model.graph)
  # The converter fills the empty `scales` of a Resize with `sizes`, and loses what a Loop reads from outside.
  blocked = [*float16.DEFAULT_OP_BLOCK_LIST, 'Resize', 'Loop']
  onnx.save(float16.convert_float_to_float16(model, keep_io_types=True, op_block_list=blocked), path)


def _compute_constant_outputs(graph: Any) -> None:
  """Lets an operation compute each output that is a constant, of which the converter would make two of one name."""
  import onnx  # pylint: disable=g-import-not-at-top  # The extra `onnx`.

  outputs = {output.name for output in graph.output}
  for constant in graph.initializer:
    if constant.name in outputs:
      name, constant.name = constant.name, f'{constant.name}_constant'
      graph.node.append(onnx.helper.make_node('Identity', [constant.name], [name]))


def _to_dynamic(plain: str, path: str, calibration: object) -> None:
  from onnxruntime import quantization  # pylint: disable=g-import-not-at-top  # The extra `onnx`.

  del calibration
  # Convolutions of onnxruntime take unsigned weights only.
  quantization.quantize_dynamic(plain, path, weight_type=quantization.QuantType.QUInt8)


def _to_int8(plain: str, path: str, calibration: Mapping[str, np.ndarray]) -> None:
  from onnxruntime import quantization  # pylint: disable=g-import-not-at-top  # The extra `onnx`, as the next.
  from onnxruntime.quantization import shape_inference  # pylint: disable=g-import-not-at-top

  prepared = f'{plain}.prepared'
  shape_inference.quant_pre_process(plain, prepared, skip_symbolic_shape=True)  # The symbolic one needs sympy.
  quantization.quantize_static(
    prepared,
    path,
    _Examples(run_examples.batches(calibration)),
    quant_format=quantization.QuantFormat.QDQ,
    per_channel=True,
    activation_type=quantization.QuantType.QInt8,
    weight_type=quantization.QuantType.QInt8,
  )


class _Examples:
  """A `CalibrationDataReader` of onnxruntime, which cannot be a base class: onnxruntime is optional."""

  def __init__(self, batches: Iterator[Mapping[str, np.ndarray]]):
    self._batches = batches

  def get_next(self) -> Mapping[str, np.ndarray] | None:
    """The next inputs; None behind the last."""
    return next(self._batches, None)


_QUANTIZERS: Mapping[str, Callable[[str, str, Any], None]] = {
  export_options.FLOAT16: _to_float16,
  export_options.DYNAMIC: _to_dynamic,
  export_options.INT8: _to_int8,
}
