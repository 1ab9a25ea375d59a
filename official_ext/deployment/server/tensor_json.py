"""Tensors in the JSON of TensorFlow Serving's REST interface.

https://www.tensorflow.org/tfx/serving/api_rest describes it: `instances` is a list of examples, `inputs` holds whole
batches by name; bytes are `{"b64": TEXT}`. Numbers that are not finite are the tokens NaN, Infinity and -Infinity, in
requests and answers ("JSON conformance" there): a text in their place would make a tensor of texts.
"""

import base64
import binascii
from collections.abc import Mapping
import json
from typing import Any

import numpy as np

from official_ext.base import errors
from official_ext.base import file_fields
from official_ext.base import json_values
from official_ext.deployment.server import served_model

DEFAULT_SIGNATURE = 'serving_default'
# The fields of a request.
FIELDS = file_fields.FileFields('request', ('signature_name', 'instances', 'inputs'), effect='may change the answer')


def decode(
  request: json_values.Json, inputs: Mapping[str, served_model.TensorSpec]
) -> tuple[dict[str, np.ndarray], bool]:
  """The tensors of a request.

  Args:
    request: the JSON of its body.
    inputs: the inputs of the model by name.

  Returns:
    (arrays `[n, ...]` by name, whether the request has `instances`).

  Raises:
    UserError: something is missing or wrong.
  """
  if not isinstance(request, dict):
    raise errors.UserError('request: expected a JSON object with "instances" or "inputs"')
  signature = request.get('signature_name', DEFAULT_SIGNATURE)
  if signature != DEFAULT_SIGNATURE:
    raise errors.UserError(f'signature_name: {signature}: this server has {DEFAULT_SIGNATURE} alone')
  FIELDS.check(request, 'request')
  if ('instances' in request) == ('inputs' in request):
    raise errors.UserError('request: expected either "instances", a list of examples, or "inputs", tensors by name')
  has_instances = 'instances' in request
  for name, spec in inputs.items():
    if has_instances and spec.shape == ():
      raise errors.UserError(f'instances: {name} is one value for all examples; send "inputs"')
  columns = _of_instances(request['instances'], inputs) if has_instances else _of_inputs(request['inputs'], inputs)
  arrays = {name: _array(columns[name], spec) for name, spec in inputs.items()}
  sizes = {name: len(array) for name, array in arrays.items() if array.ndim}
  if sizes and not any(sizes.values()):
    raise errors.UserError('inputs: have no examples')
  return arrays, has_instances


def check_rows(outputs: Mapping[str, served_model.OutputSpec]) -> None:
  """Refuses predictions for each example by a model that has other outputs, as TensorFlow Serving does.

  Raises:
    UserError: an output has no batch dimension.
  """
  for name, spec in outputs.items():
    if spec.has_batch is False:
      raise errors.UserError(
        f'instances: {name} has no batch dimension, and predictions have an entry for each example; send "inputs"'
      )


def rows(name: str, array: np.ndarray, number: int) -> np.ndarray:
  """The output of a computation of some examples, `[number, ...]`; a scalar is the row of a single one.

  Raises:
    UserError: it has another number of rows.
  """
  if number == 1 and not array.ndim:
    return array[np.newaxis]
  if not array.ndim or len(array) != number:
    raise errors.UserError(
      f'instances: {name} has the shape {array.shape} for {number} {"example" if number == 1 else "examples"}, and '
      'predictions have an entry for each example; send "inputs"'
    )
  return array


def encode(outputs: Mapping[str, np.ndarray], has_instances: bool) -> json_values.JsonObject:
  """The answer: `predictions`, an entry for each example, or `outputs`. A single output has no name."""
  values = {name: _plain(array) for name, array in outputs.items()}
  if not has_instances:
    return {'outputs': values if len(values) > 1 else next(iter(values.values()))}
  if len(values) == 1:
    return {'predictions': next(iter(values.values()))}
  return {'predictions': [dict(zip(values, row)) for row in zip(*values.values())]}


def dump(answer: json_values.Json) -> bytes:
  """An answer as JSON, with the tokens of TensorFlow Serving for numbers that are not finite."""
  return json.dumps(answer, ensure_ascii=False, separators=(',', ':')).encode()


def _of_instances(instances: json_values.Json, inputs: Mapping[str, Any]) -> dict[str, list[json_values.Json]]:
  """The values of each input, by rows that are objects, or values of the only input."""
  if not isinstance(instances, list):
    raise errors.UserError('instances: expected a list of examples')
  if not instances:
    raise errors.UserError('instances: is empty; expected one example at least')
  columns: dict[str, list[json_values.Json]] = {name: [] for name in inputs}
  for number, instance in enumerate(instances):
    row = instance if isinstance(instance, dict) and set(instance) != {'b64'} else None
    if row is None:
      if len(inputs) > 1:
        raise errors.UserError(f'instances[{number}]: expected an object with {", ".join(inputs)}')
      row = {next(iter(inputs)): instance}
    _check_names(row, inputs, f'instances[{number}]')
    for name, value in row.items():
      columns[name].append(value)
  return columns


def _of_inputs(values: json_values.Json, inputs: Mapping[str, Any]) -> dict[str, json_values.Json]:
  if not isinstance(values, dict) or set(values) == {'b64'}:
    if len(inputs) > 1:
      raise errors.UserError(f'inputs: expected an object with {", ".join(inputs)}')
    values = {next(iter(inputs)): values}
  _check_names(values, inputs, 'inputs')
  return values


def _check_names(values: Mapping[str, object], inputs: Mapping[str, Any], where: str) -> None:
  missing, unknown = [name for name in inputs if name not in values], [name for name in values if name not in inputs]
  if missing or unknown:
    wrong = f'{unknown[0]} is unknown' if unknown else f'{missing[0]} is missing'
    raise errors.UserError(f'{where}: {wrong}; the model takes {", ".join(inputs)}')


def _array(values: json_values.Json, spec: served_model.TensorSpec) -> np.ndarray:
  """A batch of a tensor.

  Raises:
    UserError: it has another dtype or shape.
  """
  if spec.dtype == 'string':
    is_one = spec.shape != () and not isinstance(values, list)
    array = _bytes_array([values] if is_one else values, spec.name)
  else:
    try:
      array = np.array(values)
    except ValueError:
      raise _different_lengths(spec.name) from None
    is_fraction = array.dtype.kind == 'f' and np.dtype(spec.dtype).kind in 'iu' and array.size
    if array.dtype.kind not in 'biuf' or is_fraction:
      raise errors.UserError(f'{spec.name}: expected numbers ({spec.dtype}) in nested lists')
    if np.dtype(spec.dtype).kind in 'iu' and array.size:
      limits = np.iinfo(spec.dtype)
      if array.min() < limits.min or array.max() > limits.max:
        raise errors.UserError(f'{spec.name}: expected numbers from {limits.min} to {limits.max} ({spec.dtype})')
    with np.errstate(over='ignore'):
      array, given = array.astype(spec.dtype), array
    if array.dtype.kind == 'f' and not np.array_equal(np.isfinite(array), np.isfinite(given)):
      raise errors.UserError(f'{spec.name}: expected numbers up to {np.finfo(spec.dtype).max:g} ({spec.dtype})')
  if spec.shape is not None:
    _check_shape(array, spec)
  return array


def _check_shape(array: np.ndarray, spec: served_model.TensorSpec) -> None:
  """Refuses an array of another shape. A model of single examples computes several one by one."""
  assert spec.shape is not None
  if not spec.shape or spec.shape[0] not in (None, 1):
    if array.ndim != len(spec.shape) or any(size not in (None, n) for size, n in zip(spec.shape, array.shape)):
      raise errors.UserError(f'{spec.name}: has the shape {array.shape}, expected {_listed(spec.shape)}')
    return
  expected = spec.shape[1:]
  if array.ndim != len(spec.shape) or any(size not in (None, n) for size, n in zip(expected, array.shape[1:])):
    raise errors.UserError(f'{spec.name}: an example has the shape {array.shape[1:]}, expected {_listed(expected)}')


def _listed(shape: tuple[int | None, ...]) -> str:
  return f'({", ".join("any" if size is None else str(size) for size in shape)})'


def _bytes_array(values: json_values.Json, name: str) -> np.ndarray:
  if isinstance(values, list):
    parts = [_bytes_array(value, name) for value in values]
    if len({part.shape for part in parts}) > 1:
      raise _different_lengths(name)
    return np.stack(parts) if parts else np.empty(0, object)
  found = np.empty((), object)
  if isinstance(values, dict) and isinstance(values.get('b64'), str):
    try:
      found[()] = base64.b64decode(values['b64'], validate=True)
    except binascii.Error:
      raise errors.UserError(f'{name}: b64 is not base 64') from None
  elif isinstance(values, str):
    found[()] = values.encode()
  else:
    raise errors.UserError(f'{name}: expected texts, or bytes as {{"b64": TEXT}}')
  return found


def _different_lengths(name: str) -> errors.UserError:
  return errors.UserError(f'{name}: its lists have different lengths; the examples of a request have one shape')


def _plain(array: np.ndarray) -> json_values.Json:
  if array.dtype == object or array.dtype.kind == 'S':
    flat = [value.decode() if _is_utf8(value) else {'b64': base64.b64encode(value).decode()} for value in array.ravel()]
    return np.array(flat, object).reshape(array.shape).tolist()
  return array.tolist()


def _is_utf8(value: bytes) -> bool:
  try:
    value.decode()
  except UnicodeDecodeError:
    return False
  return True
