"""Tensors in the JSON of TensorFlow Serving's REST interface.

https://www.tensorflow.org/tfx/serving/api_rest describes it: `instances` is a list of examples, `inputs` holds whole
batches by name; bytes are `{"b64": TEXT}`.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.deployment.server import served_model

DEFAULT_SIGNATURE = 'serving_default'


def decode(
  request: json_types.Json, inputs: Mapping[str, served_model.TensorSpec]
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
  if ('instances' in request) == ('inputs' in request):
    raise errors.UserError('request: expected either "instances", a list of examples, or "inputs", tensors by name')
  has_instances = 'instances' in request
  columns = _of_instances(request['instances'], inputs) if has_instances else _of_inputs(request['inputs'], inputs)
  arrays = {name: _array(columns[name], spec) for name, spec in inputs.items()}
  sizes = {name: len(array) for name, array in arrays.items()}
  if len(set(sizes.values())) > 1:
    raise errors.UserError(f'inputs: the numbers of examples differ: {sizes}')
  if not next(iter(sizes.values())):
    raise errors.UserError('inputs: have no examples')
  return arrays, has_instances


def encode(outputs: Mapping[str, np.ndarray], has_instances: bool) -> json_types.JsonObject:
  """The answer: `predictions`, an entry for each example, or `outputs`. A single output has no name."""
  values = {name: _plain(array) for name, array in outputs.items()}
  if not has_instances:
    return {'outputs': values if len(values) > 1 else next(iter(values.values()))}
  if len(values) == 1:
    return {'predictions': next(iter(values.values()))}
  return {'predictions': [dict(zip(values, row)) for row in zip(*values.values())]}


def _of_instances(instances: json_types.Json, inputs: Mapping[str, Any]) -> dict[str, list[json_types.Json]]:
  """The values of each input, by rows that are objects, or values of the only input."""
  if not isinstance(instances, list):
    raise errors.UserError('instances: expected a list of examples')
  if not instances:
    raise errors.UserError('instances: is empty; expected one example at least')
  columns: dict[str, list[json_types.Json]] = {name: [] for name in inputs}
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


def _of_inputs(values: json_types.Json, inputs: Mapping[str, Any]) -> dict[str, json_types.Json]:
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


def _array(values: json_types.Json, spec: served_model.TensorSpec) -> np.ndarray:
  """A batch of a tensor.

  Raises:
    UserError: it has another dtype or shape.
  """
  if spec.dtype == 'string':
    array = _bytes_array(values, spec.name)
  else:
    try:
      array = np.array(values)
    except ValueError:
      raise errors.UserError(
        f'{spec.name}: its lists have different lengths; the examples of a request have one shape'
      ) from None
    if array.dtype.kind not in 'biuf' or (array.dtype.kind == 'f' and np.dtype(spec.dtype).kind in 'iu'):
      raise errors.UserError(f'{spec.name}: expected numbers ({spec.dtype}) in nested lists')
    if np.dtype(spec.dtype).kind in 'iu' and array.size:
      limits = np.iinfo(spec.dtype)
      if array.min() < limits.min or array.max() > limits.max:
        raise errors.UserError(f'{spec.name}: expected numbers from {limits.min} to {limits.max} ({spec.dtype})')
    array = array.astype(spec.dtype)
  if spec.shape is not None:
    expected = (None, *spec.shape[1:])
    if array.ndim != len(expected) or any(
      size not in (None, found) for size, found in zip(expected[1:], array.shape[1:])
    ):
      sizes = ', '.join('any' if size is None else str(size) for size in expected[1:])
      raise errors.UserError(f'{spec.name}: an example has the shape {array.shape[1:]}, expected ({sizes})')
  return array


def _bytes_array(values: json_types.Json, name: str) -> np.ndarray:
  if not isinstance(values, list):
    values = [values]
  found = np.empty(len(values), object)
  for number, value in enumerate(values):
    if isinstance(value, dict) and isinstance(value.get('b64'), str):
      try:
        found[number] = base64.b64decode(value['b64'], validate=True)
      except binascii.Error:
        raise errors.UserError(f'{name}: b64 is not base 64') from None
    elif isinstance(value, str):
      found[number] = value.encode()
    else:
      raise errors.UserError(f'{name}: expected texts, or bytes as {{"b64": TEXT}}')
  return found


def _plain(array: np.ndarray) -> json_types.Json:
  if array.dtype == object or array.dtype.kind == 'S':
    flat = [value.decode() if _is_utf8(value) else {'b64': base64.b64encode(value).decode()} for value in array.ravel()]
    return np.array(flat, object).reshape(array.shape).tolist()
  return json_types.json_values(array.tolist())


def _is_utf8(value: bytes) -> bool:
  try:
    value.decode()
  except UnicodeDecodeError:
    return False
  return True
