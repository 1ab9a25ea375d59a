"""official-ext export and --mode=export: the model of a run as a SavedModel; with --to, its values in a tracker."""

import os
from typing import TYPE_CHECKING

from official_ext.cli import arguments as arguments_lib
from official_ext.training.devices import preemption

if TYPE_CHECKING:
  import tf_keras

  from official_ext.training.config import definitions


def _parser() -> arguments_lib.Parser:
  found = arguments_lib.Parser(
    'official-ext export',
    'Writes the model of a run as a SavedModel, and prints its signature. docs/how_to/export.md explains '
    'the inputs and outputs; official_ext.load does the same in Python.\n\n'
    'export RUN --to=mlflow|wandb|csv fills in a tracker from the files of the run instead: see `runs export`.',
  )
  kind = arguments_lib.tensorflow_folder
  found.add_argument('model_dir', metavar='RUN', type=kind, help='the folder of the run')
  output = 'a folder that does not exist yet; default: RUN/export/STEP'
  found.add_argument('--output_dir', metavar='DIR', type=kind, help=output)
  arguments_lib.add_run_arguments(found)
  return found


def run(arguments: list[str]) -> None:
  """Runs `official-ext export ARGUMENTS`."""
  if any(argument == '--to' or argument.startswith('--to=') for argument in arguments):
    from official_ext.cli import runs  # pylint: disable=g-import-not-at-top

    runs.run(['export', *arguments])
    return
  known = _parser().parse_args(arguments)
  from official_ext.cli import flags  # pylint: disable=g-import-not-at-top  # TensorFlow, as the next.

  flags.define_for_command()
  with preemption.interrupting():
    model_dir = os.path.expanduser(known.model_dir)
    from official_ext.training.trained import trained_run  # pylint: disable=g-import-not-at-top

    params = trained_run.read_params(model_dir, known.experiment, known.registry)
    export_run(params, model_dir, known.which, known.ema == 'true', known.output_dir)


def export_run(
  params: 'definitions.ExperimentConfig',
  model_dir: str,
  which: str | int | None = None,
  ema: bool = True,
  output_dir: str | None = None,
) -> str:
  """Writes the model of a run as a SavedModel, and prints its folder and its signatures.

  Args:
    params: the run's experiment.
    model_dir: its folder.
    which: see `load`.
    ema: see `load`.
    output_dir: a folder that does not exist yet; by default MODEL_DIR/export/STEP.

  Returns:
    The folder.
  """
  from official_ext.training.trained import serving  # pylint: disable=g-import-not-at-top  # TensorFlow.
  from official_ext.training.trained import trained_model  # pylint: disable=g-import-not-at-top

  trained = trained_model.load(params, model_dir, which, ema)
  output_dir = output_dir or os.path.join(model_dir, 'export', str(trained.step))
  signatures = serving.export(trained, output_dir, _base_of(trained.model))
  print(f'Exported {trained.checkpoint} ({trained.weights} weights) to {output_dir}')
  for name, line in signatures.items():
    print(f'  {name}: {line}', flush=True)
  return output_dir


def _base_of(model: 'tf_keras.Model') -> dict[str, object]:
  """{'base': how the weights below adapters are kept, and of which folder}; {} for a model without frozen weights."""
  from official_ext.language.modeling import adapter_bases  # pylint: disable=g-import-not-at-top  # TensorFlow.
  from official_ext.language.modeling import decoder as decoder_lib  # pylint: disable=g-import-not-at-top

  decoder = getattr(model, 'decoder', model)
  if not isinstance(decoder, decoder_lib.Decoder) or not decoder.is_frozen:
    return {}
  record = adapter_bases.record_of(model, has_digest=False)
  return {'base': {'folder': record.folder, 'quantization': record.quantization, 'frozen_dtype': record.frozen_dtype}}
