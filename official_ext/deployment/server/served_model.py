"""The model of a server: from a run, or from an export in any format."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import dataclasses
import os
from typing import Any

import numpy as np

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import package_imports
from official_ext.base.files import paths
from official_ext.base.run_folder import model_folders
from official_ext.deployment import export_options
from official_ext.deployment import runtime_script

Arrays = Mapping[str, np.ndarray]

_GPU_ROUNDING = 1e-2  # Products of TensorFloat-32 have 10 bits.


@dataclasses.dataclass(frozen=True)
class TensorSpec:
  """An input or output.

  Attributes:
    name: its name.
    dtype: such as 'float32'; 'string' for bytes.
    shape: None is any size; None in place of the tuple is any shape.
  """

  name: str
  dtype: str
  shape: tuple[int | None, ...] | None


@dataclasses.dataclass(frozen=True)
class OutputSpec(TensorSpec):
  """An output.

  Attributes:
    has_batch: whether its first dimension is the batch; None: unknown.
    is_joinable: whether it is the same for a request that shares a computation with others, as far as its shape shows.
  """

  has_batch: bool | None = None
  is_joinable: bool = False


@dataclasses.dataclass(frozen=True)
class ServedModel:
  """A model in memory.

  Attributes:
    name: in the addresses of the server.
    version: the step of its weights; 0 if it is unknown.
    inputs: by name.
    outputs: by name.
    runtime: its runtime, in words.
    compute: from arrays by name to arrays by name.
    rounding: the difference of values, relative to the largest of an output, that another batch size may cause.
  """

  name: str
  version: int
  inputs: Mapping[str, TensorSpec]
  outputs: Mapping[str, OutputSpec]
  runtime: str
  compute: Callable[[Arrays], Arrays]
  rounding: float = 1e-3

  @property
  def takes_batches(self) -> bool:
    """Whether one computation takes any number of examples."""
    return all(spec.shape is None or spec.shape[:1] == (None,) for spec in self.inputs.values())

  @property
  def takes_single_examples(self) -> bool:
    """Whether one computation takes one example."""
    return all(spec.shape is not None and spec.shape[:1] == (1,) for spec in self.inputs.values())

  @property
  def apart(self) -> str:
    """Why requests cannot share a computation, in words; '' if they can, as far as shapes show."""
    if not self.takes_batches and not self.takes_single_examples:
      return 'not every input has a batch dimension'
    names = [name for name, spec in self.outputs.items() if not spec.is_joinable]
    return f'the model does not show a row of {", ".join(names)} for each example' if names else ''


def load(
  folder: str,
  name: str | None = None,
  which: str | int | None = None,
  ema: bool = True,
  experiment: str | None = None,
  registry: tuple[str, ...] = (),
) -> ServedModel:
  """Loads the folder of a run, of an export, or of a SavedModel.

  Args:
    folder: its path.
    name: of the model; by default the name of the run's folder.
    which: see `official_ext.load`; for a run only, as the rest.
    ema: see `official_ext.load`.
    experiment: see `official_ext.load`.
    registry: see `official_ext.load`.

  Raises:
    UserError: the folder is of another kind, or cannot be loaded.
  """
  folder = paths.absolute(paths.expanded(folder))
  names = paths.names(folder)
  if model_folders.RUN_FILE in names:
    return _of_run(folder, name or os.path.basename(folder), which, ema, experiment, registry)
  note = model_folders.read_export(folder)
  export_format = str(note.get('format') or export_options.SAVED_MODEL)
  if (export_format == export_options.SAVED_MODEL and 'saved_model.pb' not in names) or (
    export_format not in export_options.FORMATS
  ):
    raise errors.UserError(
      f'{folder}: is not the folder of a run or of an export; `official-ext export RUN` writes one'
    )
  return _of_export(folder, name or _name_of(folder), export_format, note)


def _name_of(folder: str) -> str:
  """The name of the run: its exports are at RUN/export/STEP."""
  parent = os.path.dirname(folder)
  return os.path.basename(os.path.dirname(parent) if os.path.basename(parent) == 'export' else folder)


def _of_export(folder: str, name: str, export_format: str, note: json_values.JsonObject) -> ServedModel:
  if export_format == export_options.SAVED_MODEL:
    return _of_saved_model(folder, name, note)
  package = 'ai_edge_litert' if export_format == export_options.LITERT else 'onnxruntime'
  package_imports.require(package, export_format, f'serve: {folder}')
  runtime = 'litert_tensorflow' if note.get('tensorflow_ops') else export_format
  with _refused(folder):
    path = paths.local_copy(os.path.join(folder, str(note['file'])))
    run, version = runtime_script.LOADERS[runtime](path, len(os.sched_getaffinity(0)))
    return _served(name, _step_of(note), note['signature'], version, run)


def _of_saved_model(folder: str, name: str, note: json_values.JsonObject) -> ServedModel:
  import tensorflow as tf  # pylint: disable=g-import-not-at-top  # Other exports need none.

  with _refused(folder):
    loaded = tf.saved_model.load(folder)
  if not loaded.signatures:
    raise errors.UserError(f'{folder}: has no signature that could be called')
  default = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
  signature = loaded.signatures[default if default in loaded.signatures else next(iter(loaded.signatures))]
  # The function alone would not keep the variables alive.
  return _of_function(tf, name, _step_of(note), signature, keeps=loaded)


@contextlib.contextmanager
def _refused(folder: str) -> Iterator[None]:
  """Turns an error of a runtime into a UserError."""
  try:
    yield
  except Exception as error:  # pylint: disable=broad-except  # Its files may contain anything.
    reason = ' '.join(str(error).split())[:300]
    raise errors.UserError(f'{folder}: cannot be loaded: {type(error).__name__}: {reason}') from error


def _step_of(note: json_values.JsonObject) -> int:
  step = note.get('step')
  return step if json_values.is_int(step) else 0


def _of_run(
  folder: str,
  name: str,
  which: str | int | None,
  ema: bool,
  experiment: str | None,
  registry: tuple[str, ...],
) -> ServedModel:
  import tensorflow as tf  # pylint: disable=g-import-not-at-top  # Exports need none, as the next.

  from official_ext.deployment import tensor_functions  # pylint: disable=g-import-not-at-top
  from official_ext.training.trained import trained_model  # pylint: disable=g-import-not-at-top

  trained = trained_model.load_run(folder, which, ema, experiment, registry)
  function = tensor_functions.of_signature(trained)
  return _of_function(tf, name, trained.step, function.call, keeps=(trained, function))


def _of_function(tf: Any, name: str, step: int, function: Any, keeps: object) -> ServedModel:
  """A model that a concrete function of TensorFlow computes."""
  from official_ext.deployment import tensor_functions  # pylint: disable=g-import-not-at-top  # TensorFlow.

  def run(inputs: Arrays, _keeps: object = keeps) -> Arrays:
    tensors = {
      name: tf.constant(array.tolist(), tf.string) if array.dtype == object else tf.constant(array)
      for name, array in inputs.items()
    }
    outputs = function(**tensors)
    return {
      name: (tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor).numpy()
      for name, tensor in outputs.items()
    }

  found = _served(name, step, tensor_functions.signature_of(function), f'tensorflow {tf.__version__}', run)
  return dataclasses.replace(found, rounding=_GPU_ROUNDING) if tf.config.list_physical_devices('GPU') else found


def _served(name: str, step: int, signature: json_values.JsonMapping, runtime: str, run: Any) -> ServedModel:
  inputs = {
    each['name']: TensorSpec(each['name'], each['dtype'], None if each['shape'] is None else tuple(each['shape']))
    for each in signature['inputs']
  }
  outputs = {
    each['name']: OutputSpec(
      each['name'],
      each['dtype'],
      None if each['shape'] is None else tuple(each['shape']),
      each.get('has_batch'),
      each.get('is_joinable', False),
    )
    for each in signature['outputs']
  }
  return ServedModel(name, step, inputs, outputs, runtime, run)
