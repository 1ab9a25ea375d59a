"""The options of an export, and the combinations that are refused. No TensorFlow."""

import dataclasses

from official_ext.base import errors
from official_ext.base import package_imports

SAVED_MODEL, LITERT, ONNX = FORMATS = ('saved_model', 'litert', 'onnx')
NONE, FLOAT16, DYNAMIC, INT8 = QUANTIZATIONS = ('none', 'float16', 'dynamic', 'int8')
TENSOR, IMAGE_BYTES, TF_EXAMPLE, TEXT = INPUTS = ('tensor', 'image_bytes', 'tf_example', 'text')

# The largest difference, relative to the largest absolute output of the model, that a verification accepts.
# docs/contributing/decisions/deployment.md has the measurements.
TOLERANCES = {NONE: 0.001, FLOAT16: 0.01, DYNAMIC: 0.05, INT8: 0.3}
DEFAULT_EXAMPLES = 64

_CLOSER = {INT8: DYNAMIC, DYNAMIC: FLOAT16, FLOAT16: NONE}

_EXTRAS = {LITERT: (('ai_edge_litert', 'litert'),), ONNX: (('tf2onnx', 'onnx'), ('onnxruntime', 'onnx'))}


@dataclasses.dataclass(frozen=True)
class ExportOptions:
  """How a model is exported.

  Attributes:
    format: one of `FORMATS`.
    quantization: one of `QUANTIZATIONS`.
    input: one of `INPUTS`.
    examples: the number of examples of a verification; 0 for none. None: `DEFAULT_EXAMPLES`, or no verification if
      the data of the run cannot be read.
    tolerance: the accepted difference; None: the default of the quantization.
  """

  format: str = SAVED_MODEL
  quantization: str = NONE
  input: str = TENSOR
  examples: int | None = None
  tolerance: float | None = None

  @property
  def accepted(self) -> float:
    """The accepted difference, relative to the largest absolute output."""
    return TOLERANCES[self.quantization] if self.tolerance is None else self.tolerance

  @property
  def closer(self) -> str:
    """The flag of the export that is the next closer to the model; '' for a SavedModel, which has its arithmetic."""
    if self.format == SAVED_MODEL:
      return ''
    if self.quantization == NONE:
      return f'--format={SAVED_MODEL}'
    return f'--quantize={_CLOSER[self.quantization]}'

  def check(self) -> None:
    """Refuses combinations that cannot work.

    Raises:
      UserError: with the flag, the reason and the replacement.
    """
    if self.format == SAVED_MODEL and self.quantization != NONE:
      raise errors.UserError(
        f'--quantize={self.quantization}: a SavedModel keeps the weights of the run; use --format={LITERT} or '
        f'--format={ONNX}'
      )
    if self.format != SAVED_MODEL and self.input != TENSOR:
      raise errors.UserError(
        f'--input={self.input}: {self.format} models take tensors, and cannot decode files, records or texts; use '
        f'--input={TENSOR} or --format={SAVED_MODEL}'
      )
    if self.tolerance is not None and not 0 <= self.tolerance <= 1:
      raise errors.UserError(f'--tolerance={self.tolerance:g}: expected a number from 0 to 1')
    for package, extra in _EXTRAS.get(self.format, ()):
      package_imports.require(package, extra, f'--format={self.format}')

  def folder_name(self, step: int) -> str:
    """The name of an export's folder: the step alone, as TensorFlow Serving names versions, or with its kind."""
    parts = [str(step)]
    if (self.format, self.input) != (SAVED_MODEL, TENSOR):
      parts.append(self.format)
    if self.input != TENSOR:
      parts.append(self.input)
    if self.quantization != NONE:
      parts.append(self.quantization)
    return '-'.join(parts)


UNVERIFIED = ExportOptions(examples=0)
