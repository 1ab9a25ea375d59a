"""Runs an export in its own runtime and a fresh process, and compares its outputs with the model's."""

from collections.abc import Mapping
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.files import paths
from official_ext.deployment import box_matching
from official_ext.deployment import comparing
from official_ext.deployment import run_examples

_SCRIPT = os.path.join(os.path.dirname(__file__), 'runtime_script.py')
_LATENCY_SECONDS = 2.0
_MOST_SECONDS = 1800.0
_MEGABYTE = 1e6


@dataclasses.dataclass(frozen=True)
class Verification:
  """The result of a verification.

  Attributes:
    comparison: with the model's outputs.
    tolerance: the accepted relative difference.
    examples: the number of examples.
    split: the field of the task that they are from.
    megabytes: the size of the export, 1 MB being 10^6 bytes.
    latency_ms: the median time of one example; 0 if the runtime cannot run the export.
    threads: the number of CPU threads.
    runtime: its name and version.
  """

  comparison: comparing.Comparison
  tolerance: float
  examples: int
  split: str
  megabytes: float
  latency_ms: float
  threads: int
  runtime: str

  @property
  def is_verified(self) -> bool:
    """Whether the export is within the tolerance."""
    return self.comparison.is_within(self.tolerance)

  def as_json(self) -> json_types.JsonObject:
    """The entry of export.json."""
    found = dataclasses.asdict(self)
    return json_types.json_values({**found.pop('comparison'), **found})

  def table(self) -> str:
    """The figures, in lines of text."""
    compared = self.comparison
    if compared.reason:
      return f'  {compared.reason}'
    names = {'classes': 'of examples', 'pixels': 'of pixels', 'boxes': 'of boxes'}
    agreement = '-' if compared.agreement is None else f'{compared.agreement:.2%} {names.get(compared.kind, "")}'
    if compared.overlap is not None:
      agreement += f', {compared.compared} of the model, with an overlap of at least {compared.overlap:.4f}'
    return '\n'.join(
      f'  {name:<20}{value}'
      for name, value in (
        ('largest difference', f'{compared.difference:.2g}, {compared.relative:.2g} of the largest output'),
        ('agreement', agreement),
        *(('borderline', f'{number}: {reason}') for reason, number in compared.borderline.items()),
        ('size', f'{self.megabytes:.2f} MB'),
        ('latency', f'{self.latency_ms:.2f} ms for one example, {self.threads} CPU threads'),
        ('examples', f'{self.examples} of task.{self.split}'),
        ('runtime', self.runtime),
      )
    )


def verify(
  folder: str,
  file: str,
  runtime: str,
  kind: str,
  examples: run_examples.RunExamples,
  tolerance: float,
  thresholds: box_matching.Thresholds = box_matching.UNKNOWN,
) -> Verification:
  """Runs an export and compares it. An export that its runtime cannot run is not verified.

  Args:
    folder: of the export.
    file: the model's file in it; '' for a SavedModel.
    runtime: a format of `runtime_script`.
    kind: one of `tensor_kinds.KINDS`.
    examples: inputs with the model's outputs.
    tolerance: see `Verification`.
    thresholds: of a detector.
  """
  path = os.path.join(folder, file) if file else folder
  try:
    outputs, facts = run(path, runtime, examples.inputs)
  except errors.UserError as error:
    comparison, facts = comparing.incomparable(kind, str(error)), {}
  else:
    expected = examples.expected
    found = {name: _of_shape(array, expected[name]) for name, array in outputs.items() if name in expected}
    comparison = comparing.compare(kind, expected, found, tolerance, thresholds)
  return Verification(
    comparison=comparison,
    tolerance=tolerance,
    examples=examples.number,
    split=examples.split,
    megabytes=paths.folder_size(folder) / _MEGABYTE,
    latency_ms=facts.get('latency_ms', 0.0),
    threads=facts.get('threads', 0),
    runtime=facts.get('runtime', runtime),
  )


def run(
  path: str, runtime: str, inputs: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], json_types.JsonObject]:
  """Runs a model on single examples in a fresh process.

  Args:
    path: of the model.
    runtime: a format of `runtime_script`.
    inputs: arrays `[n, ...]` by name; of dtype object for bytes.

  Returns:
    (the outputs of each example, stacked; the facts that the script reports).

  Raises:
    UserError: the process fails; the message has its last line.
  """
  with tempfile.TemporaryDirectory(prefix='official_ext-verify-') as scratch:
    input_path, output_path = (os.path.join(scratch, f'{name}.npz') for name in ('inputs', 'outputs'))
    request = {
      'format': runtime,
      'model': os.path.abspath(path),
      'inputs': input_path,
      'outputs': output_path,
      'threads': len(os.sched_getaffinity(0)),
      'seconds': _LATENCY_SECONDS,
    }
    np.savez(input_path, **_storable(inputs))
    with open(os.path.join(scratch, 'request.json'), 'w', encoding='utf-8') as file:
      json.dump(request, file)
    # -I: neither the current folder nor PYTHONPATH may bring this library into the process.
    command = [sys.executable, '-I', _SCRIPT, file.name]
    environment = {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3', 'CUDA_VISIBLE_DEVICES': '-1'}
    try:
      done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=scratch, env=environment, timeout=_MOST_SECONDS
      )
    except subprocess.TimeoutExpired:
      raise errors.UserError(f'{runtime}: the runtime has not ended after {_MOST_SECONDS:g} s') from None
    if done.returncode:
      lines = done.stderr.strip().splitlines() or [f'exit status {done.returncode}']
      raise errors.UserError(f'{runtime}: the runtime cannot run the export: {lines[-1][:300]}')
    facts = json.loads(done.stdout.strip().splitlines()[-1])
    with np.load(output_path, allow_pickle=False) as arrays:
      return {name: arrays[name] for name in arrays.files}, facts


def _storable(inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
  """Arrays that .npz can hold without pickle: see `runtime_script`."""
  found = {}
  for name, array in inputs.items():
    if array.dtype == object:
      found[f'{name}:bytes'] = np.frombuffer(b''.join(array), np.uint8)
      found[f'{name}:lengths'] = np.array([len(each) for each in array])
    else:
      found[name] = array
  return found


def _of_shape(array: np.ndarray, expected: np.ndarray) -> np.ndarray:
  """Outputs of single examples `[n, 1, ...]` as those of a batch `[n, ...]`."""
  return array[:, 0] if array.ndim == expected.ndim + 1 and array.shape[1] == 1 else array
