"""Exports the model of a run as a SavedModel: `official-ext export`, `--mode=export`."""

import os

import tf_keras

from official_ext.language.modeling import adapter_bases
from official_ext.language.modeling import decoder as decoder_lib
from official_ext.training.config import definitions
from official_ext.training.trained import serving
from official_ext.training.trained import trained_model

_EXPORTS = 'export'


def export_run(
  params: definitions.ExperimentConfig,
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
  trained = trained_model.load(params, model_dir, which, ema)
  output_dir = output_dir or os.path.join(model_dir, _EXPORTS, str(trained.step))
  signatures = serving.export(trained, output_dir, _base_of(trained.model))
  print(f'Exported {trained.checkpoint} ({trained.weights} weights) to {output_dir}')
  for name, line in signatures.items():
    print(f'  {name}: {line}', flush=True)
  return output_dir


def _base_of(model: tf_keras.Model) -> dict[str, object]:
  """{'base': how the weights below adapters are kept, and of which folder}; {} for a model without frozen weights."""
  decoder = getattr(model, 'decoder', model)
  if not isinstance(decoder, decoder_lib.Decoder) or not decoder.is_frozen:
    return {}
  record = adapter_bases.record_of(model, has_digest=False)
  return {'base': {'folder': record.folder, 'quantization': record.quantization, 'frozen_dtype': record.frozen_dtype}}
