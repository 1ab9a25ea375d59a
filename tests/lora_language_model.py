"""An experiment `lora_language_model`: adapters over a folder's model, packed, learn sequences from memory."""

import dataclasses

import numpy as np
from official.core import exp_factory
from official.core import task_factory

import official_ext as ext
from official_ext.language.modeling import lora as lora_lib
from official_ext.language.modeling import pretrained
from official_ext.language.modeling import quantized_linear
from official_ext.language.modeling import weighted_losses


@dataclasses.dataclass
class LoraLanguageModelConfig(ext.TaskConfig):
  """A model of a folder, and adapters.

  Attributes:
    model_path: The folder.
    scan_layers: Whether the weights of layers are stacked.
    lora: The adapters.
    quantization: How the kernels are kept.
    losses: How much each counts.
    train_data: 64 sequences of 12 numbers.
  """

  model_path: str = ''
  scan_layers: bool = False
  lora: lora_lib.LoraConfig = dataclasses.field(
    default_factory=lambda: lora_lib.LoraConfig(r=4, lora_dropout=0.1, target_modules=('q_proj', 'up_proj'))
  )
  quantization: quantized_linear.QuantizationConfig = dataclasses.field(
    default_factory=lambda: quantized_linear.QuantizationConfig(method='nf4')
  )
  losses: weighted_losses.LossesConfig = dataclasses.field(
    default_factory=lambda: weighted_losses.LossesConfig(
      label=weighted_losses.LossConfig(weight=1.0), z_loss=weighted_losses.LossConfig(weight=1e-3)
    )
  )
  train_data: ext.InMemoryDataConfig = dataclasses.field(
    default_factory=lambda: ext.InMemoryDataConfig(global_batch_size=8, is_training=True)
  )


@task_factory.register_task_cls(LoraLanguageModelConfig)
class LoraLanguageModelTask(ext.Task):
  def build_model(self):
    model = pretrained.load(self.config.model_path, scan_layers=self.config.scan_layers)
    lora_lib.attach(model, self.config.lora, self.config.quantization)
    return model

  def build_inputs(self, params, input_context=None):
    starts = np.random.default_rng(0).integers(0, 8, [64, 1])
    source = ext.ArraySource({'ids': ((starts + 3 * np.arange(12)) % 31).astype(np.int32)})
    return ext.build_dataset(source, params, input_context)

  def build_metrics(self, training=True):
    return []

  def forward(self, inputs, model, training):
    logits, labels = model(inputs['ids'][:, :-1], training=training), inputs['ids'][:, 1:]
    return weighted_losses.total(
      self.config.losses, {'label': {'logits': logits, 'labels': labels}, 'z_loss': {'logits': logits}}
    )


@exp_factory.register_config_factory('lora_language_model')
def lora_language_model() -> ext.ExperimentConfig:
  return ext.ExperimentConfig(
    task=LoraLanguageModelConfig(),
    trainer=ext.TrainerConfig(
      train_steps=12,
      steps_per_loop=3,
      summary_interval=3,
      checkpoint_interval=6,
      optimizer_config=ext.OptimizationConfig(
        {
          'optimizer': {'type': 'adamw_experimental'},
          'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.02}},
        }
      ),
    ),
  )
