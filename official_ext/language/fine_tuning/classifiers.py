"""Models that score texts, which begin as `model_path` says, and become whole folders again."""

from collections.abc import Callable, Mapping

from absl import logging

from official_ext.base.run_folder import base_records
from official_ext.base.run_folder import model_folders
from official_ext.language.fine_tuning import fine_tuning_config
from official_ext.language.modeling import adapter_bases
from official_ext.language.modeling import lora
from official_ext.language.modeling import peft_folders
from official_ext.language.modeling import pretrained
from official_ext.language.modeling import sequence_classifier


def build(
  config: fine_tuning_config.FineTuningConfig,
  base: model_folders.ModelFolders | None,
  num_labels: int,
  settings: Mapping[str, object],
  warn: Callable[[str], None] = logging.warning,
) -> sequence_classifier.SequenceClassifier:
  """A classifier, with new adapters if they are trained: those of a folder are added to its weights.

  Args:
    config: of the task.
    base: the folders of its `model_path`; None for a new decoder.
    num_labels: how many scores a text gets.
    settings: see `pretrained.load`.
    warn: see `peft_folders.load`.

  Raises:
    UserError: as `pretrained.load_classifier` does.
  """
  model = _plain(config, base, num_labels, settings, warn)
  if config.trains_adapters:
    lora.attach(model.decoder, config.lora, config.frozen_kernels(), config.frozen_dtype or None)
  return model


def merged(
  model: sequence_classifier.SequenceClassifier,
  config: fine_tuning_config.FineTuningConfig,
  base: model_folders.ModelFolders | None,
  settings: Mapping[str, object],
) -> sequence_classifier.SequenceClassifier:
  """A model without adapters that scores as one of `build` does; that one is unchanged.

  Args: those of `build`.
  """
  if not config.trains_adapters:
    return model
  settings = {**settings, 'dtype': 'float32'}
  return lora.merged_copy(model, lambda: build(config, base, model.num_labels, settings, warn=lambda line: None))


def _plain(config, base, num_labels, settings, warn):
  if base is None:
    return sequence_classifier.SequenceClassifier(config.model, num_labels)
  if not base.adapter:
    return pretrained.load_classifier(base.model, num_labels, **settings)
  how = adapter_bases.options(base_records.read(base.adapter))
  language_model = pretrained.load(base.model, **how, **settings)
  peft_folders.load(language_model, base.adapter, warn=warn)
  lora.merge(language_model)
  return sequence_classifier.of_language_model(language_model, num_labels)
