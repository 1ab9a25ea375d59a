"""Configuration of the experiment `contrastive`."""

import dataclasses

from official.modeling.hyperparams import base_config

import official_ext as ext


@dataclasses.dataclass
class ContrastiveModelConfig(base_config.Config):
  """Encoder and projection head, two multi-layer perceptrons.

  Attributes:
    encoder_sizes: Units of the encoder's layers; the last are the features.
    head_sizes: Units of the projection head's layers; the loss compares the last, the probe never sees them.
  """

  RANGES = {'encoder_sizes': '[1, inf)', 'head_sizes': '[1, inf)'}

  encoder_sizes: tuple[int, ...] = (512, 256)
  head_sizes: tuple[int, ...] = (256, 64)


@dataclasses.dataclass
class AugmentationConfig(base_config.Config):
  """The differences of two views of an image. Each is drawn uniformly from [-value, value].

  Attributes:
    rotation: In degrees.
    zoom: A fraction of the size, for each axis by itself.
    shear: A fraction of the size.
    translation: In pixels, of which an image has 8 x 8.
    contrast: A fraction of the brightness of the ink.
    erased: The fraction of the pixels that are erased.
  """

  RANGES = {
    **dict.fromkeys(('rotation', 'shear', 'translation'), '[0, inf)'),
    'zoom': '[0, 1)',
    'contrast': '[0, 1]',
    'erased': '[0, 1]',
  }

  rotation: float = 15.0
  zoom: float = 0.2
  shear: float = 0.2
  translation: float = 1.0
  contrast: float = 0.2
  erased: float = 0.05


@dataclasses.dataclass
class ContrastiveTaskConfig(ext.TaskConfig):
  """SimCLR: an image's two views shall resemble each other more than any other image of the batch.

  Attributes:
    model: The networks.
    augmentation: The differences of the views.
    temperature: By which similarities, from -1 to 1, are divided.
    probe_l2: The regularisation of the linear probe, per example.
    train_data: 1,437 of scikit-learn's images. An image's negatives are the other images of the global batch, on all
      replicas.
    validation_data: All 1,797 images: the probe is fitted to the features of the 1,437, and tested on the 360 others.
  """

  RANGES = {'temperature': '(0, inf)', 'probe_l2': '[0, inf)'}

  model: ContrastiveModelConfig = dataclasses.field(default_factory=ContrastiveModelConfig)
  augmentation: AugmentationConfig = dataclasses.field(default_factory=AugmentationConfig)
  temperature: float = 0.2
  probe_l2: float = 1e-3
  train_data: ext.InMemoryDataConfig = dataclasses.field(
    default_factory=lambda: ext.InMemoryDataConfig(global_batch_size=256, is_training=True)
  )
  validation_data: ext.InMemoryDataConfig = dataclasses.field(
    default_factory=lambda: ext.InMemoryDataConfig(global_batch_size=600, is_training=False)
  )


@ext.register_experiment('contrastive')
def contrastive() -> ext.ExperimentConfig:
  """SimCLR on scikit-learn's handwritten digits, judged by a linear probe.

  Command: python train.py --experiment=contrastive --mode=train_and_eval --model_dir=runs/contrastive
  Hardware and time: 2 CPU cores, 34 seconds, start-up included.
  Result: accuracy of the linear probe 97.8 %, 98.6 % and 98.6 % with seeds 0, 1 and 2.
  Reference: the network before training 96.7 %, 95.6 % and 96.9 %; the raw pixels 93.6 %.
  """
  num_steps = 1500
  return ext.ExperimentConfig(
    task=ContrastiveTaskConfig(),
    trainer=ext.TrainerConfig(
      train_steps=num_steps,
      steps_per_loop=100,
      summary_interval=100,
      validation_interval=500,
      checkpoint_interval=500,
      best_checkpoint_export_subdir='best',
      best_checkpoint_eval_metric='probe_accuracy',
      best_checkpoint_metric_comp='higher',
      optimizer_config=ext.OptimizationConfig(
        {
          'optimizer': {'type': 'adamw_experimental', 'adamw_experimental': {'weight_decay': 1e-4}},
          'learning_rate': {
            'type': 'cosine',
            'cosine': {'initial_learning_rate': 1e-3, 'decay_steps': num_steps},
          },
          'warmup': {'type': 'linear', 'linear': {'warmup_steps': 100}},
        }
      ),
    ),
  )
