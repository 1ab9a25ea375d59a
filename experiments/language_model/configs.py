"""Configuration of the experiment `language_model`."""

import dataclasses

import official_ext as ext


@dataclasses.dataclass
class LanguageModelTaskConfig(ext.TaskConfig):
  """Next tokens of text, by a decoder that starts from nothing.

  Attributes:
    model: The decoder. It has room for `vocab_size` tokens.
    tokenizer_path: A folder with a tokenizer in Hugging Face's files. Empty: byte-level BPE with `model.vocab_size`
      tokens, trained on the topics of Python's language reference at its first use.
    losses: The losses to minimize: label, z_loss, or both.
    train_data: Text. Without an `input_path`: seven in eight of the topics.
    validation_data: Text. Without an `input_path`: the other topics.
  """

  model: ext.DecoderConfig = dataclasses.field(default_factory=ext.DecoderConfig)
  tokenizer_path: str = ''
  losses: ext.LossesConfig = dataclasses.field(default_factory=ext.LossesConfig)
  train_data: ext.TextDataConfig = dataclasses.field(
    default_factory=lambda: ext.TextDataConfig(
      is_training=True, global_batch_size=16, seq_length=128, example_format='text', packing='wrapped'
    )
  )
  validation_data: ext.TextDataConfig = dataclasses.field(
    default_factory=lambda: ext.TextDataConfig(
      is_training=False, global_batch_size=16, seq_length=128, example_format='text', packing='wrapped'
    )
  )

  def check_values(self, path: str) -> None:
    """Refuses losses that this task cannot compute, and text of the user's without a tokenizer."""
    ext.weighted_losses.check(self.losses, ('label', 'z_loss'), f'{path}.losses')
    for name in ('train_data', 'validation_data'):
      if getattr(self, name).input_path and not self.tokenizer_path:
        raise ext.UserError(
          f'{path}.tokenizer_path: needed with {path}.{name}.input_path: a folder with tokenizer.json, such as '
          'ext.train_tokenizer(texts, vocab_size).save(folder) writes'
        )


@ext.register_experiment('language_model')
def language_model() -> ext.ExperimentConfig:
  """A decoder of four layers learns the topics of Python's language reference, in tokens of byte-level BPE.

  Command: python train.py --experiment=language_model --mode=train_and_eval --model_dir=runs/language_model
  Hardware and time: 2 CPU cores, which others used too, 27 minutes, start-up included; 1.3 steps a second at best.
  Result: 1.38 bits per byte of the validation topics, and 46.9 % of its tokens the likeliest; Python 3.11, seed 0.
  Reference: 6-grams of bytes reach 1.58, and xz -9e 1.28 if it has packed the training topics before.

  The text comes with Python and differs from one version to the next, and the figures with it. Topics have paragraphs
  from each other word by word, which xz finds over any distance. benchmarks/language_model.py trains the same decoder
  in PyTorch, from the same weights.
  """
  task = LanguageModelTaskConfig()
  task.losses.label.weight = 1.0
  return ext.ExperimentConfig(
    task=task,
    runtime=ext.RuntimeConfig(mixed_precision_dtype='auto'),
    trainer=ext.TrainerConfig(
      train_steps=800,
      steps_per_loop=50,
      summary_interval=50,
      validation_interval=200,
      checkpoint_interval=200,
      best_checkpoint_eval_metric='bits_per_byte',
      best_checkpoint_metric_comp='lower',
      best_checkpoint_export_subdir='best',
      optimizer_config=ext.OptimizationConfig(
        {
          'optimizer': {
            'type': 'adamw_experimental',
            'adamw_experimental': {'weight_decay': 0.1, 'beta_2': 0.95, 'global_clipnorm': 1.0},
          },
          'learning_rate': {
            'type': 'cosine',
            'cosine': {'initial_learning_rate': 2e-3, 'decay_steps': 800, 'alpha': 0.1},
          },
          'warmup': {'type': 'linear', 'linear': {'warmup_steps': 40}},
        }
      ),
    ),
  )
