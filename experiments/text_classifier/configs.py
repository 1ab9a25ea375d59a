"""Configuration of the experiment `text_classifier`."""

import dataclasses

import official_ext as ext

from . import topics


@dataclasses.dataclass
class TextClassifierDataConfig(ext.TextDataConfig):
  """Texts with a label each.

  Attributes:
    label_column: The column of the label, which is one of `task.class_names`.
  """

  seq_length: int = 96
  example_format: str = 'prompt'
  prompt_column: str = 'text'
  label_column: str = 'label'

  def check_values(self, path: str) -> None:
    """Refuses formats other than a single text."""
    super().check_values(path)
    if self.example_format != 'prompt':
      raise ext.UserError(f'{path}.example_format: a classifier reads the format prompt, got {self.example_format}')


@dataclasses.dataclass
class TextClassifierTaskConfig(ext.TaskConfig):
  """Classes of texts, by a decoder whose last token is looked at.

  Attributes:
    model: The decoder. It has room for `vocab_size` tokens.
    model_path: A folder with a model in Hugging Face's files, to begin with its weights; of `model` dropout, remat and
      scan_layers count then.
    tokenizer_path: A folder with a tokenizer in Hugging Face's files. Empty: from `model_path`, or without one
      byte-level BPE with `model.vocab_size` tokens, trained on the topics of Python's language reference.
    class_names: The classes, in the order of their numbers.
    losses: The loss to minimize: label.
    train_data: Texts. Without an `input_path`: three in four of the paragraphs of Python's topics.
    validation_data: Texts. Without an `input_path`: the other paragraphs.
  """

  model: ext.DecoderConfig = dataclasses.field(default_factory=ext.DecoderConfig)
  model_path: str = ''
  tokenizer_path: str = ''
  class_names: tuple[str, ...] = tuple(topics.CLASSES)
  losses: ext.LossesConfig = dataclasses.field(default_factory=ext.LossesConfig)
  train_data: TextClassifierDataConfig = dataclasses.field(
    default_factory=lambda: TextClassifierDataConfig(is_training=True, global_batch_size=16)
  )
  validation_data: TextClassifierDataConfig = dataclasses.field(
    default_factory=lambda: TextClassifierDataConfig(is_training=False, global_batch_size=32)
  )

  def check_values(self, path: str) -> None:
    """Refuses losses that this task cannot compute, invalid classes, and files without a tokenizer."""
    ext.weighted_losses.check(self.losses, ('label',), f'{path}.losses')
    if len(set(self.class_names)) != len(self.class_names) or len(self.class_names) < 2:
      raise ext.UserError(f'{path}.class_names: expected two different names or more, got {list(self.class_names)}')
    for name in ('train_data', 'validation_data'):
      if getattr(self, name).input_path and not (self.tokenizer_path or self.model_path):
        raise ext.UserError(
          f'{path}.tokenizer_path: needed with {path}.{name}.input_path: a folder with tokenizer.json, such as '
          'ext.train_tokenizer(texts, vocab_size).save(folder) writes'
        )


@ext.register_experiment('text_classifier')
def text_classifier() -> ext.ExperimentConfig:
  """A decoder classifies paragraphs by the eight parts of Python's language reference.

  Command: python train.py --experiment=text_classifier --mode=train_and_eval --model_dir=runs/text_classifier \\
    --set=init_checkpoint=runs/language_model
  Hardware and time: 2 CPU cores, a quarter of one in the mean: 29 minutes, start-up included.
  Result: accuracy 55.2 % on 357 paragraphs (54.6 % at the end), with Python 3.11 and seed 0.
  Reference: the largest class has 26.3 %; scikit-learn's logistic regression on TF-IDF of words reaches 78.4 %.

  936 paragraphs are few for a decoder, which after five epochs knows 91 % of them by heart; words alone suffice for
  most. The decoder of `language_model` has seen many of the validation paragraphs, without their labels.
  """
  num_steps = 300
  task = TextClassifierTaskConfig(init_checkpoint_may_miss=('*score*',))
  task.losses.label.weight = 1.0
  task.model.residual_dropout = 0.1
  return ext.ExperimentConfig(
    task=task,
    runtime=ext.RuntimeConfig(mixed_precision_dtype='auto'),
    trainer=ext.TrainerConfig(
      train_steps=num_steps,
      steps_per_loop=50,
      summary_interval=50,
      validation_interval=100,
      checkpoint_interval=100,
      best_checkpoint_export_subdir='best',
      best_checkpoint_eval_metric='accuracy',
      best_checkpoint_metric_comp='higher',
      optimizer_config=ext.OptimizationConfig(
        {
          'optimizer': {
            'type': 'adamw_experimental',
            'adamw_experimental': {'weight_decay': 0.1, 'beta_2': 0.95, 'global_clipnorm': 1.0},
          },
          'learning_rate': {
            'type': 'cosine',
            'cosine': {'initial_learning_rate': 5e-4, 'decay_steps': num_steps},
          },
          'warmup': {'type': 'linear', 'linear': {'warmup_steps': 20}},
        }
      ),
    ),
  )
