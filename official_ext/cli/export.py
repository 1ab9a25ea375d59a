"""official-ext export and --mode=export: writes the model of a run for other programs; with --to=csv, its events."""

import os
import sys
from typing import TYPE_CHECKING

from official_ext.base import terminal_row
from official_ext.base.files import paths
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import json_output
from official_ext.deployment import export_options
from official_ext.training.devices import signals

if TYPE_CHECKING:
  import tf_keras

  from official_ext.deployment import exporting
  from official_ext.training.config import definitions


def _parser() -> arguments_lib.Parser:
  found = arguments_lib.Parser(
    'official-ext export',
    'Writes the model of a run as a SavedModel, for LiteRT or for ONNX, and prints its signature. Then runs it in its '
    'own runtime on examples of the run, and compares it with the model: a difference beyond the tolerance is exit '
    'status 1. docs/how_to/export.md explains the inputs and outputs; official_ext.load does the same in Python.\n\n'
    'export RUN --to=csv writes the events of the run as a table instead: see `runs export`.',
  )
  kind = arguments_lib.tensorflow_folder
  found.add_argument('model_dir', metavar='RUN', type=kind, help='the folder of the run')
  output = 'a folder that does not exist yet; default: RUN/export/STEP, followed by -FORMAT and -QUANTIZATION'
  found.add_argument('--output_dir', metavar='DIR', type=kind, help=output)
  formats = 'saved_model (default): TensorFlow; litert: phones and boards; onnx: onnxruntime and others'
  found.add_argument('--format', choices=export_options.FORMATS, default=export_options.SAVED_MODEL, help=formats)
  quantization = (
    'the weights in 16 bits, in 8, or the computation in 8 bits, calibrated on data of the run; default: none'
  )
  found.add_argument('--quantize', choices=export_options.QUANTIZATIONS, default=export_options.NONE, help=quantization)
  inputs = 'the input of a SavedModel: tensors (default), encoded images, serialized tf.Examples, or texts'
  found.add_argument('--input', choices=export_options.INPUTS, default=export_options.TENSOR, help=inputs)
  examples = (
    f'examples to verify with; default: {export_options.DEFAULT_EXAMPLES} if the data are there; 0: no verification'
  )
  found.add_argument('--examples', type=arguments_lib.at_least(0), metavar='N', help=examples)
  defaults = ', '.join(f'{name} {value:g}' for name, value in export_options.TOLERANCES.items())
  tolerance = f'accepted difference, relative to the largest output; default: {defaults}'
  found.add_argument('--tolerance', type=float, metavar='SHARE', help=tolerance)
  arguments_lib.add_run_arguments(found)
  json_output.add_flag(found)
  return found


def run(arguments: list[str]) -> int:
  """Runs `official-ext export ARGUMENTS`.

  Returns:
    The exit status: 1 if the export differs from the model beyond the tolerance.
  """
  if any(argument == '--to' or argument.startswith('--to=') for argument in arguments):
    from official_ext.cli import runs  # pylint: disable=g-import-not-at-top

    runs.run(['export', *arguments])
    return 0
  known = _parser().parse_args(arguments)
  options = export_options.ExportOptions(known.format, known.quantize, known.input, known.examples, known.tolerance)
  options.check()
  from official_ext.cli import flags as ext_flags  # pylint: disable=g-import-not-at-top  # TensorFlow, as the next.

  ext_flags.define_for_command()
  with signals.interrupting():
    model_dir = paths.expanded(known.model_dir)
    from official_ext.training.trained import trained_model  # pylint: disable=g-import-not-at-top

    params = trained_model.read_params(model_dir, known.experiment, known.registry)
    found = export_run(params, model_dir, known.which, known.ema == 'true', known.output_dir, options)
  if known.json:
    json_output.print_document(found.as_dict())
  return 1 if found.verification is not None and found.verification.is_verified is False else 0


def export_run(
  params: 'definitions.ExperimentConfig',
  model_dir: str,
  which: str | int | None = None,
  ema: bool = True,
  output_dir: str | None = None,
  options: export_options.ExportOptions = export_options.UNVERIFIED,
) -> 'exporting.Exported':
  """Exports the model of a run, and prints its folder, its signatures and its verification.

  Args:
    params: the run's experiment.
    model_dir: its folder.
    which: see `load`.
    ema: see `load`.
    output_dir: a folder that does not exist yet; by default MODEL_DIR/export/STEP, with the format and quantization.
    options: the format, the quantization, the verification.
  """
  from official_ext.deployment import exporting  # pylint: disable=g-import-not-at-top  # TensorFlow, as the next.
  from official_ext.training.trained import trained_model  # pylint: disable=g-import-not-at-top

  dtype = None if options.format == export_options.SAVED_MODEL else 'float32'
  stages = ('loading the checkpoint', *exporting.STAGES)
  with terminal_row.ProgressRow(sys.stdout) as row:
    on_stage = lambda stage: row.stage(f'{stages.index(stage) + 1} of {len(stages)}: {stage}')
    on_stage(stages[0])
    trained = trained_model.load_model(params, model_dir, which, ema, dtype)
    output_dir = output_dir or os.path.join(model_dir, 'export', options.folder_name(trained.step))
    found = exporting.export(trained, output_dir, options, _base_of(trained.model), on_stage)
  print(f'Exported {trained.checkpoint} ({trained.weights} weights) to {found.folder}')
  for name, line in found.signatures.items():
    print(f'  {name}: {line}')
  if found.tensorflow_ops:
    print(f'  needs the Flex delegate, for operations that LiteRT lacks: {", ".join(found.tensorflow_ops)}')
  print(found.report(), flush=True)
  return found


def _base_of(model: 'tf_keras.Model') -> dict[str, object]:
  """{'base': how the weights below adapters are kept, and of which folder}; {} for a model without frozen weights."""
  from official_ext.language.modeling import decoder as decoder_lib  # pylint: disable=g-import-not-at-top
  from official_ext.language.modeling import model_weights  # pylint: disable=g-import-not-at-top
  from official_ext.language.modeling import peft_folders  # pylint: disable=g-import-not-at-top  # TensorFlow.

  decoder = model_weights.decoder_of(model)
  if not isinstance(decoder, decoder_lib.Decoder) or not decoder.is_frozen:
    return {}
  record = peft_folders.base_record_of(model, has_digest=False)
  return {'base': {'folder': record.folder, 'quantization': record.quantization, 'frozen_dtype': record.frozen_dtype}}
