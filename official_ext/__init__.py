"""Experiments on TensorFlow Model Garden that survive, bend and run fast.

    import official_ext as ext

is all that the author of a task needs; docs/api.md says a line about each name. Importing it selects `tf_keras`, the
Keras that Model Garden is written for: import it before `tensorflow`. It imports nothing else until a name is used.
"""

import importlib
import os
from typing import Any
import warnings

# Model Garden is Keras 2 code. Without this TensorFlow loads Keras 3 too, for nothing.
os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')
# TensorFlow's C++ code tells of every missing GPU and every end of a data set. What fails is raised in Python.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
# Of tensorflow_hub and tensorboard; setup.py takes a setuptools that has it.
warnings.filterwarnings('ignore', 'pkg_resources is deprecated as an API', UserWarning)

__version__ = '0.2.0'

# Name: module, or module:attribute.
FACE = {
  # Tasks and configurations.
  'Task': 'training.loop.base_task:Task',
  'TextTask': 'language.text.text_task:TextTask',
  'TaskConfig': 'training.config.definitions:TaskConfig',
  'ExperimentConfig': 'training.config.definitions:ExperimentConfig',
  'TrainerConfig': 'training.config.definitions:TrainerConfig',
  'RuntimeConfig': 'training.config.definitions:RuntimeConfig',
  'OptimizationConfig': 'training.config.definitions:OptimizationConfig',
  'DataConfig': 'training.config.definitions:DataConfig',
  'InMemoryDataConfig': 'training.config.definitions:InMemoryDataConfig',
  'TextDataConfig': 'language.text.text_data:TextDataConfig',
  'register_experiment': 'training.loop.registration:register_experiment',
  'register_task': 'training.loop.registration:register_task',
  # Input.
  'build_dataset': 'data.step_indexed:build_dataset',
  'Source': 'data.sources:Source',
  'ArraySource': 'data.sources:ArraySource',
  'TfdsSource': 'data.sources:TfdsSource',
  'ArrayRecordSource': 'data.sources:ArrayRecordSource',
  'HuggingFaceSource': 'data.sources:HuggingFaceSource',
  'PreparedRows': 'data.prepared_rows:PreparedRows',
  'cached_source': 'data.sources:cached',
  'text_source': 'language.text.text_sources:open_source',
  'TextRecords': 'data.numbered_records:ListRecords',
  'python_topics': 'language.text.python_topics',
  'python_docstrings': 'language.text.python_docstrings',
  'handwritten_digits': 'data.handwritten_digits',
  'Tokenizer': 'language.text.tokenizer:Tokenizer',
  'train_tokenizer': 'language.text.tokenizer_training:cached',
  'register_collator': 'data.collators:register',
  'Share': 'data.batch_share:Share',
  'take_start': 'data.position:take_start',
  'class_weights': 'data.class_weights',
  # Steps of your own.
  'Trainer': 'training.loop.base_trainer:Trainer',
  'LoopTask': 'training.loop.loop_task:LoopTask',
  'LoopRun': 'training.loop.loop_task:LoopRun',
  'build_optimizer': 'training.step.gradient_tap:build',
  'keyed_uniform': 'training.step.step_random:uniform',
  'keyed_normal': 'training.step.step_random:normal',
  'load_weights': 'training.checkpoints.warm_start:load_weights',
  'Optimizer': 'training.optimization.base_optimizer:Optimizer',
  'metrics': 'training.metrics',
  # Language models.
  'pretrained': 'language.modeling.pretrained',
  'LanguageModel': 'language.modeling.decoder:LanguageModel',
  'SequenceClassifier': 'language.modeling.sequence_classifier:SequenceClassifier',
  'DecoderConfig': 'language.modeling.decoder_config:DecoderConfig',
  'Decoder': 'language.modeling.decoder:Decoder',
  'DecoderBlock': 'language.modeling.decoder:Block',
  'packing': 'language.modeling.packed_documents',
  'generation': 'language.modeling.generation',
  'GenerationConfig': 'language.modeling.token_sampling:GenerationConfig',
  'lora': 'language.modeling.lora',
  'LoraConfig': 'language.modeling.lora:LoraConfig',
  'peft_folders': 'language.modeling.peft_folders',
  'QuantizationConfig': 'language.modeling.quantized_linear:QuantizationConfig',
  'nf4': 'language.modeling.nf4',
  'int8': 'language.modeling.int8',
  'losses': 'language.modeling.losses',
  'weighted_losses': 'language.modeling.weighted_losses',
  'LossesConfig': 'language.modeling.weighted_losses:LossesConfig',
  # Fine-tuning.
  'FineTuningConfig': 'language.fine_tuning.fine_tuning_config:FineTuningConfig',
  'FineTuningTask': 'language.fine_tuning.task:FineTuningTask',
  'parameter_names': 'language.fine_tuning.parameter_names',
  'whole_folders': 'base.files.whole_folders',
  'rewards': 'language.fine_tuning.rewards',
  'register_reward': 'language.fine_tuning.reward_registry:register',
  # Actions and writers.
  'Trigger': 'training.actions.triggers:Trigger',
  'EveryNSteps': 'training.actions.triggers:EveryNSteps',
  'EveryTSeconds': 'training.actions.triggers:EveryTSeconds',
  'OnEvent': 'training.actions.triggers:OnEvent',
  'OnBest': 'training.actions.triggers:OnBest',
  'AtEnd': 'training.actions.triggers:AtEnd',
  'EarlyStopping': 'training.actions.early_stopping:EarlyStopping',
  'ReduceLROnPlateau': 'training.actions.reduce_lr_on_plateau:ReduceLROnPlateau',
  'KerasCallback': 'training.actions.keras_callbacks:KerasCallback',
  'Writer': 'training.writers.writers:Writer',
  'flatten_logs': 'training.writers.writers:flatten',
  'register_writer': 'training.writers.writer_registry:register',
  # Running.
  'parse_configuration': 'training.config.parser:parse_configuration',
  'get_strategy': 'training.devices.distribute:get_strategy',
  'run_experiment': 'training.loop.train_lib:run_experiment',
  'RunOptions': 'training.loop.train_lib:RunOptions',
  'find_mistakes': 'training.diagnosis.task_checks:find',
  'load': 'cli.trained_runs:load',
  'UserError': 'base.errors:UserError',
  'UserErrors': 'base.errors:UserErrors',
  'StopTraining': 'base.errors:StopTraining',
}


def __getattr__(name: str) -> Any:
  if name not in FACE:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  module, _, attribute = FACE[name].partition(':')
  found = importlib.import_module(f'{__name__}.{module}')
  return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
  return sorted({*globals(), *FACE})
