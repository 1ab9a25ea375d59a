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

__version__ = '0.1.0'

# Name: module, or module:attribute.
FACE = {
  # Tasks and configurations.
  'Task': 'core.base_task:Task',
  'TextTask': 'core.text_task:TextTask',
  'TaskConfig': 'config.definitions:TaskConfig',
  'ExperimentConfig': 'config.definitions:ExperimentConfig',
  'TrainerConfig': 'config.definitions:TrainerConfig',
  'RuntimeConfig': 'config.definitions:RuntimeConfig',
  'OptimizationConfig': 'config.definitions:OptimizationConfig',
  'DataConfig': 'config.definitions:DataConfig',
  'InMemoryDataConfig': 'config.definitions:InMemoryDataConfig',
  'TextDataConfig': 'config.text_data:TextDataConfig',
  'register_experiment': 'core.registration:register_experiment',
  'register_task': 'core.registration:register_task',
  # Input.
  'build_dataset': 'data.step_indexed:build_dataset',
  'Source': 'data.sources:Source',
  'ArraySource': 'data.sources:ArraySource',
  'TfdsSource': 'data.sources:TfdsSource',
  'ArrayRecordSource': 'data.sources:ArrayRecordSource',
  'HuggingFaceSource': 'data.sources:HuggingFaceSource',
  'PreparedRows': 'data.prepared_rows:PreparedRows',
  'cached_source': 'data.sources:cached',
  'text_source': 'data.text_sources:open_source',
  'TextRecords': 'data.text_records:ListRecords',
  'python_topics': 'data.python_topics',
  'python_docstrings': 'data.python_docstrings',
  'handwritten_digits': 'data.handwritten_digits',
  'Tokenizer': 'data.tokenizer:Tokenizer',
  'train_tokenizer': 'data.tokenizer_training:cached',
  'register_collator': 'data.collators:register',
  'Share': 'data.share:Share',
  'take_start': 'data.position:take_start',
  'class_weights': 'data.class_weights',
  # Steps of your own.
  'Trainer': 'core.base_trainer:Trainer',
  'LoopTask': 'core.owned_loop:LoopTask',
  'LoopRun': 'core.owned_loop:LoopRun',
  'build_optimizer': 'step.gradient_tap:build',
  'keyed_uniform': 'step.step_random:uniform',
  'keyed_normal': 'step.step_random:normal',
  'load_weights': 'checkpoints.warm_start:load_weights',
  'Optimizer': 'optimization.base_optimizer:Optimizer',
  'metrics': 'metrics',
  # Language models.
  'pretrained': 'modeling.pretrained',
  'LanguageModel': 'modeling.decoder:LanguageModel',
  'SequenceClassifier': 'modeling.sequence_classifier:SequenceClassifier',
  'DecoderConfig': 'modeling.decoder_config:DecoderConfig',
  'Decoder': 'modeling.decoder:Decoder',
  'DecoderBlock': 'modeling.decoder:Block',
  'packing': 'modeling.packing',
  'generation': 'modeling.generation',
  'GenerationConfig': 'modeling.sampling:GenerationConfig',
  'lora': 'modeling.lora',
  'LoraConfig': 'modeling.lora:LoraConfig',
  'peft_folders': 'modeling.peft_folders',
  'QuantizationConfig': 'modeling.quantized_linear:QuantizationConfig',
  'nf4': 'modeling.nf4',
  'int8': 'modeling.int8',
  'losses': 'modeling.losses',
  'weighted_losses': 'modeling.weighted_losses',
  'LossesConfig': 'modeling.weighted_losses:LossesConfig',
  # Fine-tuning.
  'FineTuningConfig': 'fine_tuning.configs:FineTuningConfig',
  'FineTuningTask': 'fine_tuning.task:FineTuningTask',
  'parameter_names': 'fine_tuning.parameter_names',
  'whole_folders': 'files.whole_folders',
  'rewards': 'fine_tuning.rewards',
  'register_reward': 'fine_tuning.reward_registry:register',
  # Actions and writers.
  'Trigger': 'actions.triggers:Trigger',
  'EveryNSteps': 'actions.triggers:EveryNSteps',
  'EveryTSeconds': 'actions.triggers:EveryTSeconds',
  'OnEvent': 'actions.triggers:OnEvent',
  'OnBest': 'actions.triggers:OnBest',
  'AtEnd': 'actions.triggers:AtEnd',
  'EarlyStopping': 'actions.early_stopping:EarlyStopping',
  'ReduceLROnPlateau': 'actions.reduce_lr_on_plateau:ReduceLROnPlateau',
  'KerasCallback': 'actions.keras_callbacks:KerasCallback',
  'Writer': 'monitoring.writers:Writer',
  'flatten_logs': 'monitoring.writers:flatten',
  'register_writer': 'monitoring.writer_registry:register',
  # Running.
  'parse_configuration': 'config.parser:parse_configuration',
  'get_strategy': 'runtime.distribute:get_strategy',
  'run_experiment': 'core.train_lib:run_experiment',
  'RunOptions': 'core.train_lib:RunOptions',
  'find_mistakes': 'checks.task_checks:find',
  'load': 'cli.trained_runs:load',
  'UserError': 'errors:UserError',
  'UserErrors': 'errors:UserErrors',
  'StopTraining': 'errors:StopTraining',
}


def __getattr__(name: str) -> Any:
  if name not in FACE:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  module, _, attribute = FACE[name].partition(':')
  found = importlib.import_module(f'{__name__}.{module}')
  return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
  return sorted({*globals(), *FACE})
