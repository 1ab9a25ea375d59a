"""Runs an export in its own runtime and a fresh process, and compares its outputs with the model's."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths
from official_ext.deployment import comparing
from official_ext.deployment import run_examples
from official_ext.deployment import runtime_script
from official_ext.deployment import tensor_functions

_SCRIPT = runtime_script.__file__
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
    files: the comparison on image files; None if there was none.
    unchecked: why there was none; '' if the export takes no images.
    is_inside: whether the export resizes images, and not its caller.
  """

  comparison: comparing.Comparison
  tolerance: float
  examples: int
  split: str
  megabytes: float
  latency_ms: float
  threads: int
  runtime: str
  files: 'FileComparison | None' = None
  unchecked: str = ''
  is_inside: bool = False

  @property
  def is_verified(self) -> bool | None:
    """Whether the export is within the tolerance; None if it resizes images, and no files were compared."""
    if not self.comparison.is_within(self.tolerance):
      return False
    if self.files is not None:
      return self.files.comparison.is_within(self.tolerance)
    return None if self.is_inside else True

  def as_json(self) -> json_values.JsonObject:
    """The entry of export.json."""
    found = dataclasses.asdict(self)
    files, unchecked = found.pop('files'), found.pop('unchecked')
    del found['is_inside']
    if files:
      found['files'] = {**files.pop('comparison'), **files}
    elif unchecked:
      found['files'] = {'reason': unchecked}
    return json_values.as_strict({**found.pop('comparison'), **found})

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
        *(
          (('files', self.files.line() if self.files else f'not verified: {self.unchecked}'),)
          if self._has_files
          else ()
        ),
      )
    )

  @property
  def _has_files(self) -> bool:
    return self.files is not None or bool(self.unchecked)


@dataclasses.dataclass(frozen=True)
class FileComparison:
  """The comparison of an export with the task on image files of other sizes, orientations and modes.

  Attributes:
    comparison: of the answers; or of the model's inputs, if a quantization changes answers.
    compared: 'answers' or 'inputs'.
    number: of files.
    farthest: the file with the largest difference; ''.
  """

  comparison: comparing.Comparison
  compared: str
  number: int
  farthest: str

  def line(self) -> str:
    """The figures, in one line of text."""
    if self.comparison.reason:
      return self.comparison.reason
    agreement, borderline = self.comparison.agreement, sum(self.comparison.borderline.values())
    return (
      f'{self.number} of other sizes, orientations and modes: largest difference of {self.compared} '
      f'{self.comparison.relative:.2g} of the largest ({self.farthest})'
      + (f', agreement {agreement:.2%}' if agreement is not None and agreement < 1 else '')
      + (f', {borderline} borderline' if borderline else '')
    )


def verify(
  folder: str,
  file: str,
  runtime: str,
  function: tensor_functions.TensorFunction,
  examples: run_examples.RunExamples,
  tolerance: float,
  files: run_examples.FileExamples | None = None,
  unchecked: str = '',
) -> Verification:
  """Runs an export and compares it. An export that its runtime cannot run is not verified.

  Args:
    folder: of the export.
    file: the model's file in it; '' for a SavedModel.
    runtime: a format of `runtime_script`.
    function: the computation that was exported.
    examples: inputs with the model's outputs.
    tolerance: see `Verification`.
    files: image files with the model's outputs; None for none.
    unchecked: why there are no files.
  """
  path = os.path.join(folder, file) if file else folder
  has_answers = files is not None and files.expected is not None
  inputs = {
    name: [*array, *([each[name] for each in files.inputs] if files is not None and has_answers else [])]
    for name, array in examples.inputs.items()
  }
  compared: FileComparison | None = None
  try:
    outputs, facts = run(path, runtime, inputs)
  except errors.UserError as error:
    comparison, facts = comparing.incomparable(function.kind, str(error)), {}
  else:
    own, of_files = ({name: array[part] for name, array in outputs.items()} for part in _parts(examples.number))
    found = {name: _rows(array) if function.has_rows else array for name, array in own.items()}
    comparison = comparing.compare(function.kind, examples.expected, found, tolerance, function.thresholds)
    if files is not None:
      compared = _compare_files(function, files, {name: _rows(array) for name, array in of_files.items()}, tolerance)
  return Verification(
    comparison=comparison,
    tolerance=tolerance,
    examples=examples.number,
    split=examples.split,
    megabytes=paths.folder_size(folder) / _MEGABYTE,
    latency_ms=facts.get('latency_ms', 0.0),
    threads=facts.get('threads', 0),
    runtime=facts.get('runtime', runtime),
    files=compared,
    unchecked=unchecked,
    is_inside=function.files is not None and function.files.is_inside,
  )


def _parts(number: int) -> tuple[slice, slice]:
  return slice(number), slice(number, None)


def _compare_files(
  function: tensor_functions.TensorFunction,
  files: run_examples.FileExamples,
  outputs: Mapping[str, np.ndarray],
  tolerance: float,
) -> FileComparison:
  """Compares the answers to files; without answers the inputs of the model that the caller of the export makes."""
  expected: Mapping[str, np.ndarray]
  if files.expected is None:
    expected, found = files.made, _columns(files.inputs)
    comparison = comparing.compare(comparing.VALUES, expected, found, tolerance)
  else:
    expected, found = files.expected, dict(outputs)
    comparison = comparing.compare(function.kind, expected, found, tolerance, function.thresholds)
  farthest = ''
  if not comparison.reason:
    differences = [
      comparing.compare(comparing.VALUES, _row(expected, expected, row), _row(found, expected, row)).difference
      for row in range(len(files.names))
    ]
    farthest = files.names[int(np.argmax(differences))]
  compared = 'inputs' if files.expected is None else 'answers'
  return FileComparison(comparison, compared, len(files.names), farthest)


def _row(arrays: Mapping[str, np.ndarray], names: Iterable[str], row: int) -> dict[str, np.ndarray]:
  return {name: arrays[name][row : row + 1] for name in names}


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
  return {name: run_examples.stacked([np.asarray(row[name]) for row in rows]) for name in rows[0]}


def run(
  path: str, runtime: str, inputs: Mapping[str, Sequence[Any] | np.ndarray]
) -> tuple[dict[str, np.ndarray], json_values.JsonObject]:
  """Runs a model on single examples in a fresh process.

  Args:
    path: of the model.
    runtime: a format of `runtime_script`.
    inputs: arrays `[n, ...]` by name, of dtype object for bytes; or n arrays of several shapes.

  Returns:
    (the outputs of each example, stacked, or an array of objects if their shapes differ; the facts that the script
    reports).

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
    names, columns = list(inputs), list(inputs.values())
    runtime_script.store(
      input_path, [{name: _with_batch(row) for name, row in zip(names, rows)} for rows in zip(*columns)]
    )
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
    outputs = runtime_script.load(output_path)
    return {name: run_examples.stacked([each[name] for each in outputs]) for name in outputs[0]}, facts


def _with_batch(row: Any) -> np.ndarray:
  """A value without the dimension of the batch, with it."""
  if isinstance(row, bytes):
    found = np.empty(1, object)
    found[0] = row
    return found
  return np.asarray(row)[np.newaxis]


def _rows(array: np.ndarray) -> np.ndarray:
  """The outputs of computations of one example, `[n, 1, ...]`, as rows; other ones unchanged."""
  return array[:, 0] if array.shape[1:2] == (1,) else array
