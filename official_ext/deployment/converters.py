"""Converts a computation to LiteRT (.tflite) by TensorFlow's converter, or to ONNX by tf2onnx and onnxruntime.

`quiet_stderr` hides the output of the converters' C++ code, which bypasses Python's stderr.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import copy
import dataclasses
import logging
import os
import re
import sys
import tempfile
from typing import Any
import warnings

import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.deployment import export_options
from official_ext.deployment import run_examples


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
  """A context without output on the process's stderr, and without log records below errors."""
  sys.stderr.flush()
  kept = os.dup(2)
  nowhere = os.open(os.devnull, os.O_WRONLY)
  level = logging.root.manager.disable
  try:
    os.dup2(nowhere, 2)
    logging.disable(logging.CRITICAL)
    yield
  finally:
    logging.disable(level)
    sys.stderr.flush()
    os.dup2(kept, 2)
    os.close(kept)
    os.close(nowhere)


LITERT_FILE = 'model.tflite'


@dataclasses.dataclass(frozen=True)
class LitertModel:
  """A converted model.

  Attributes:
    content: of the file.
    tensorflow_ops: operations of TensorFlow that it contains, which LiteRT's Flex delegate runs; () usually.
  """

  content: bytes
  tensorflow_ops: tuple[str, ...] = ()


def convert_to_litert(
  concrete: Any,
  quantization: str,
  calibration: Mapping[str, np.ndarray] | None,
) -> LitertModel:
  """Converts a function. If LiteRT lacks an operation, TensorFlow's own is taken into the model.

  Args:
    concrete: the computation, a concrete function whose inputs have complete shapes.
    quantization: one of `export_options.QUANTIZATIONS`. 'float16' stores weights in 16 bits, see `_in_16_bits`,
      'dynamic' in 8. 'int8' computes in 8 bits if an operation can; inputs and outputs remain floats.
    calibration: inputs for 'int8': arrays `[n, ...]`.

  Raises:
    UserError: an operation has no counterpart in LiteRT; the message names it.
  """
  with quiet_stderr():
    return _convert_to_litert(concrete, quantization, calibration)


def _convert_to_litert(concrete: Any, quantization: str, calibration: Any) -> LitertModel:
  try:
    return LitertModel(_converted_to_litert(concrete, quantization, calibration, ()))
  except Exception as error:  # pylint: disable=broad-except  # The converter raises several types.
    missing = missing_litert_ops(str(error))
    if not missing:
      raise _litert_refusal(error) from error
  try:
    content = _converted_to_litert(concrete, quantization, calibration, (tf.lite.OpsSet.SELECT_TF_OPS,))
    return LitertModel(content, missing)
  except Exception as error:  # pylint: disable=broad-except  # As above.
    raise _litert_refusal(error) from error


def _converted_to_litert(concrete: Any, quantization: str, calibration: Any, more: Sequence[Any]) -> bytes:
  # With the model in place of its variables, the converter would trace and save each of its layers first.
  variables = tf.Module()
  variables.all = list(concrete.variables)
  converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], variables)
  operations = [tf.lite.OpsSet.TFLITE_BUILTINS, *more]
  if quantization in (export_options.DYNAMIC, export_options.INT8):
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
  if quantization == export_options.INT8:
    operations.insert(0, tf.lite.OpsSet.TFLITE_BUILTINS_INT8)

    def examples() -> Iterator[dict[str, np.ndarray]]:
      yield from run_examples.batches(calibration)

    converter.representative_dataset = examples
  converter.target_spec.supported_ops = operations
  with warnings.catch_warnings():
    warnings.filterwarnings('ignore', message='.*tf.lite.Interpreter is deprecated', category=UserWarning)
    content = converter.convert()
  return _in_16_bits(content) if quantization == export_options.FLOAT16 else content


def _in_16_bits(content: bytes) -> bytes:
  """Stores the weights of a LiteRT model in 16 bits, from which it computes float32.

  TensorFlow's converter does the same with every constant: an epsilon of 1e-9 becomes 0, and a weight of 100,000
  becomes 65,504. Single numbers, and constants that float16 does not hold, keep 32 bits here.
  """
  from tensorflow.lite.python import schema_py_generated as schema  # pylint: disable=g-import-not-at-top  # Slow.
  from tensorflow.lite.tools import flatbuffer_utils  # pylint: disable=g-import-not-at-top

  model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
  code = schema.OperatorCodeT()
  code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.DEQUANTIZE
  code.version = 1
  model.operatorCodes.append(code)
  stored: dict[int, int] = {}  # From the number of a buffer to that of its copy in 16 bits.
  for graph in model.subgraphs:
    replaced = {}
    for number, tensor in enumerate(list(graph.tensors)):
      data = model.buffers[tensor.buffer].data
      if tensor.type != schema.TensorType.FLOAT32 or data is None or number in graph.outputs:
        continue
      values = np.asarray(data, np.uint8).view(np.float32)
      if values.size < 2 or not _holds_in_16_bits(values):
        continue
      if tensor.buffer not in stored:
        stored[tensor.buffer] = len(model.buffers)
        buffer = schema.BufferT()
        buffer.data = values.astype(np.float16).view(np.uint8)
        model.buffers.append(buffer)
      computed = copy.copy(tensor)
      computed.buffer = 0
      tensor.type, tensor.buffer = schema.TensorType.FLOAT16, stored[tensor.buffer]
      replaced[number] = len(graph.tensors)
      graph.tensors.append(computed)
    for operator in graph.operators:
      operator.inputs = np.array([replaced.get(int(number), number) for number in operator.inputs], np.int32)
    for number, computed_number in replaced.items():
      operator = schema.OperatorT()
      operator.opcodeIndex = len(model.operatorCodes) - 1
      operator.inputs, operator.outputs = np.array([number], np.int32), np.array([computed_number], np.int32)
      graph.operators.insert(0, operator)
  used = {tensor.buffer for graph in model.subgraphs for tensor in graph.tensors}
  for number in stored.keys() - used:
    model.buffers[number].data = None
  return flatbuffer_utils.convert_object_to_bytearray(model)


def _holds_in_16_bits(values: np.ndarray) -> bool:
  """Whether float16 keeps numbers finite, and not all of them become 0."""
  with np.errstate(over='ignore'):
    rounded = values.astype(np.float16)
  return bool(np.array_equal(np.isfinite(rounded), np.isfinite(values)) and rounded.any() == values.any())


def missing_litert_ops(message: str) -> tuple[str, ...]:
  """The operations in a converter's message that LiteRT lacks: `TF Select ops: Erf, Svd` and `Custom ops: ...`."""
  lists = re.findall(r'(?:TF Select|Custom) ops: ([\w, ]+)', message)
  return tuple(dict.fromkeys(name.strip() for names in lists for name in names.split(',')))


def _litert_refusal(error: BaseException) -> errors.UserError:
  missing = missing_litert_ops(str(error)) or re.findall(
    r"'?(tf\.\w+)'? op is neither a custom op nor a flex op", str(error)
  )
  reason = ' '.join(str(error).split())[:200]
  which = (
    f'LiteRT has no operation {", ".join(dict.fromkeys(missing))}' if missing else f'cannot be converted: {reason}'
  )
  return errors.UserError(
    f'--format={export_options.LITERT}: {which}; use --format={export_options.SAVED_MODEL}, which has all operations'
  )


ONNX_FILE = 'model.onnx'
ONNX_OPSET = 17


def convert_to_onnx(concrete: Any, quantization: str, calibration: Mapping[str, np.ndarray] | None, path: str) -> None:
  """Converts a function, and writes the file.

  Args:
    concrete: the computation, a concrete function.
    quantization: one of `export_options.QUANTIZATIONS`. 'float16' computes in 16 bits, 'dynamic' stores weights in 8
      bits, 'int8' computes in 8 bits. Inputs and outputs remain floats.
    calibration: inputs for 'int8': arrays `[n, ...]`.
    path: of the file to write.

  Raises:
    UserError: an operation has no counterpart in ONNX, and the message names it; a quantization fails, or float16 does
      not hold a weight.
  """
  if quantization == export_options.FLOAT16:
    _check_weights(concrete.variables)
  with tempfile.TemporaryDirectory(prefix='official_ext-onnx-') as scratch:
    plain = os.path.join(scratch, ONNX_FILE) if quantization != export_options.NONE else path
    with quiet_stderr():
      _convert_to_onnx(concrete, plain)
    if quantization == export_options.NONE:
      return
    try:
      with quiet_stderr():
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


def _convert_to_onnx(concrete: Any, path: str) -> None:
  import onnx  # pylint: disable=g-import-not-at-top  # The extra `onnx`, as the next.
  import tf2onnx  # pylint: disable=g-import-not-at-top

  instead = f'use --format={export_options.SAVED_MODEL}, which has all operations'
  try:
    handlers = {name: (_floor, [name, name]) for name in _FLOORED}
    model, _ = tf2onnx.convert.from_function(
      _Traced(concrete), input_signature=(), opset=ONNX_OPSET, custom_op_handlers=handlers
    )
  except Exception as error:  # pylint: disable=broad-except  # The converter raises several types.
    reason = ' '.join(str(error).split())[:200]
    raise errors.UserError(
      f'--format={export_options.ONNX}: cannot be converted: {type(error).__name__}: {reason}; {instead}'
    ) from error
  missing = missing_onnx_ops(model.graph)
  if missing:
    raise errors.UserError(f'--format={export_options.ONNX}: ONNX has no operation {", ".join(missing)}; {instead}')
  onnx.save(model, path)


_FLOORED = ('FloorDiv', 'FloorMod')


def _floor(graph: Any, node: Any, name: str, arguments: Sequence[str]) -> None:
  """Converts a division that rounds down: tf2onnx rounds integers towards zero, as `Div` of ONNX does.

  The remainder of ONNX's `Mod` has the sign of the divisor for integers, as in TensorFlow.
  """
  del name
  (kind,) = arguments
  (dividend, divisor), (output,) = node.input, node.output
  shape, dtype = graph.get_shape(output), graph.get_dtype(output)
  is_float = dtype in (1, 10, 11)  # FLOAT, FLOAT16, DOUBLE.
  graph.remove_node(node.name)

  def add(operation: str, *inputs: str, **options: Any) -> str:
    return graph.make_node(operation, list(inputs), shapes=[shape], dtypes=[dtype], **options).output[0]

  if kind == 'FloorDiv' and is_float:
    add('Floor', add('Div', dividend, divisor), outputs=[output])
  elif kind == 'FloorDiv':
    add('Div', add('Sub', dividend, add('Mod', dividend, divisor)), divisor, outputs=[output])
  elif is_float:
    whole = add('Floor', add('Div', dividend, divisor))
    add('Sub', dividend, add('Mul', whole, divisor), outputs=[output])
  else:
    add('Mod', dividend, divisor, outputs=[output])


def missing_onnx_ops(graph: Any) -> list[str]:
  """The operations of an ONNX graph that ONNX does not define: tf2onnx leaves TensorFlow's in it."""
  import onnx  # pylint: disable=g-import-not-at-top  # The extra `onnx`.

  found: set[str] = set()
  for node in graph.node:
    if not node.domain and not onnx.defs.has(node.op_type):
      found.add(node.op_type)
    for attribute in node.attribute:
      for inner in (attribute.g, *attribute.graphs):
        found.update(missing_onnx_ops(inner))
  return sorted(found)


def _check_weights(variables: Sequence[tf.Variable]) -> None:
  """Refuses weights that float16 does not hold; the converter would clip them.

  Raises:
    UserError: with the weight.
  """
  limit = float(np.finfo(np.float16).max)
  for variable in variables:
    most = float(np.abs(variable.numpy()).max(initial=0.0)) if variable.dtype.is_floating else 0.0
    if most > limit:
      raise errors.UserError(
        f'--quantize={export_options.FLOAT16}: {variable.name} has the value {most:g}, and float16 holds {limit:g} at '
        f'most; use --quantize={export_options.NONE}'
      )


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
    """The next inputs; None after the last."""
    return next(self._batches, None)


_QUANTIZERS: Mapping[str, Callable[[str, str, Any], None]] = {
  export_options.FLOAT16: _to_float16,
  export_options.DYNAMIC: _to_dynamic,
  export_options.INT8: _to_int8,
}
