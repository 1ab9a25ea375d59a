"""Experiments on TensorFlow Model Garden that survive, bend and run fast.

    import official_ext as ext

is all that the author of a task needs; docs/reference/api.md lists the names. Importing it selects `tf_keras`, the
Keras that Model Garden is written for: import it before `tensorflow`. It imports nothing else until a name is used.
"""

import contextlib
import importlib
import os
import sys
from typing import TYPE_CHECKING
import warnings

from official_ext.base import __version__ as __version__
from official_ext.base import package_imports

# Model Garden is Keras 2 code. Without this TensorFlow loads Keras 3 too, for nothing.
os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')
# TensorFlow's C++ code logs every missing GPU and every end of a data set. What fails is raised in Python.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
# Of tensorflow_hub and tensorboard; setup.py takes a setuptools that has it.
warnings.filterwarnings('ignore', 'pkg_resources is deprecated as an API', UserWarning)
# Before anything imports TensorFlow.
package_imports.defer_imports()


# Name: module, or module:attribute.
FACE = {
  # Tasks and configurations.
  'Task': 'training.tasks.base_task:Task',
  'SupervisedTask': 'training.tasks.supervised_task:SupervisedTask',
  'SupervisedConfig': 'training.tasks.supervised_task:SupervisedConfig',
  'supervised_experiment': 'training.tasks.supervised_task:supervised_experiment',
  'TextTask': 'language.text.text_task:TextTask',
  'TaskConfig': 'training.config.definitions:TaskConfig',
  'ExperimentConfig': 'training.config.definitions:ExperimentConfig',
  'TrainerConfig': 'training.config.definitions:TrainerConfig',
  'RuntimeConfig': 'training.config.definitions:RuntimeConfig',
  'OptimizationConfig': 'training.config.definitions:OptimizationConfig',
  'DataConfig': 'training.config.definitions:DataConfig',
  'InMemoryDataConfig': 'training.config.definitions:InMemoryDataConfig',
  'TextDataConfig': 'language.text.text_task:TextDataConfig',
  'register_experiment': 'training.tasks.base_task:register_experiment',
  'register_task': 'training.tasks.base_task:register_task',
  # Input.
  'build_dataset': 'data.step_indexed:build_dataset',
  'Source': 'data.sources:Source',
  'ArraySource': 'data.sources:ArraySource',
  'TfdsSource': 'data.sources:TfdsSource',
  'ArrayRecordSource': 'data.sources:ArrayRecordSource',
  'HuggingFaceSource': 'data.sources:HuggingFaceSource',
  'PreparedRows': 'data.sources:PreparedRows',
  'ImagePreprocessing': 'data.image_preprocessing:ImagePreprocessing',
  'cached_source': 'data.sources:cached',
  'text_source': 'language.text.text_sources:open_source',
  'TextRecords': 'data.numbered_records:ListRecords',
  'python_topics': 'language.text.python_topics',
  'python_docstrings': 'language.text.python_docstrings',
  'handwritten_digits': 'data.handwritten_digits',
  'Tokenizer': 'language.text.tokenizer:Tokenizer',
  'train_tokenizer': 'language.text.tokenizer_training:cached',
  'register_collator': 'data.collators:register',
  'Share': 'data.batch_reader:Share',
  'take_start': 'data.pipelines:take_start',
  'class_weights': 'data.class_weights',
  # Custom steps.
  'Trainer': 'training.loop.base_trainer:Trainer',
  'LoopTask': 'training.tasks.loop_task:LoopTask',
  'LoopRun': 'training.tasks.loop_task:LoopRun',
  'build_optimizer': 'training.step.gradient_tap:build_optimizer',
  'keyed_uniform': 'training.step.step_random:uniform',
  'keyed_normal': 'training.step.step_random:normal',
  'load_weights': 'training.checkpoints.warm_start:load_weights',
  'Optimizer': 'training.optimization.optimizers:Optimizer',
  'metrics': 'training.metrics',
  'model_size': 'training.model_parts.model_size',
  # Language models.
  'pretrained': 'language.modeling.pretrained',
  'LanguageModel': 'language.modeling.decoder:LanguageModel',
  'SequenceClassifier': 'language.modeling.decoder:SequenceClassifier',
  'DecoderConfig': 'language.modeling.decoder_config:DecoderConfig',
  'Decoder': 'language.modeling.decoder:Decoder',
  'DecoderBlock': 'language.modeling.decoder:Block',
  'packing': 'language.modeling.packed_documents',
  'generation': 'language.modeling.generation',
  'GenerationConfig': 'language.modeling.generation:GenerationConfig',
  'lora': 'language.modeling.lora',
  'LoraConfig': 'language.modeling.lora:LoraConfig',
  'peft_folders': 'language.modeling.peft_folders',
  'adapter_sets': 'language.modeling.adapter_sets',
  'QuantizationConfig': 'language.modeling.quantized_linear:QuantizationConfig',
  'nf4': 'language.modeling.nf4',
  'int8': 'language.modeling.int8',
  'losses': 'language.modeling.losses',
  'token_metrics': 'language.modeling.token_metrics',
  'activation_memory': 'language.modeling.activation_memory',
  'weighted_losses': 'language.modeling.weighted_losses',
  'LossesConfig': 'language.modeling.weighted_losses:LossesConfig',
  # Fine-tuning.
  'FineTuningConfig': 'language.fine_tuning.fine_tuning_config:FineTuningConfig',
  'PairsConfig': 'language.fine_tuning.fine_tuning_config:PairsConfig',
  'FineTuningTask': 'language.fine_tuning.task:FineTuningTask',
  'completions': 'language.fine_tuning.completions',
  'parameter_names': 'language.fine_tuning.parameter_names',
  'Sampler': 'language.fine_tuning.samplers:Sampler',
  'ModelSampler': 'language.fine_tuning.samplers:ModelSampler',
  'whole_folders': 'base.files.whole_folders',
  'rewards': 'language.fine_tuning.rewards',
  'register_reward': 'language.fine_tuning.rewards:register',
  # Actions and writers.
  'Trigger': 'training.actions.triggers:Trigger',
  'EveryNSteps': 'training.actions.triggers:EveryNSteps',
  'EveryTSeconds': 'training.actions.triggers:EveryTSeconds',
  'OnEvent': 'training.actions.triggers:OnEvent',
  'OnBest': 'training.actions.triggers:OnBest',
  'AtEnd': 'training.actions.triggers:AtEnd',
  'EarlyStopping': 'training.actions.plateau:EarlyStopping',
  'ReduceLROnPlateau': 'training.actions.plateau:ReduceLROnPlateau',
  'KerasCallback': 'training.actions.keras_callbacks:KerasCallback',
  'Writer': 'training.writers.writers:Writer',
  'flatten_logs': 'training.writers.writers:flatten',
  'register_writer': 'training.writers.registry:register',
  # Running.
  'train': 'cli.train:train',
  'evaluate': 'cli.train:evaluate',
  'parse_configuration': 'training.config.parser:parse_configuration',
  'get_strategy': 'training.devices.distribute:get_strategy',
  'run_experiment': 'training.loop.train_lib:run_experiment',
  'RunOptions': 'training.loop.train_lib:RunOptions',
  'find_mistakes': 'training.diagnosis.task_checks:find_in_task',
  'load': 'training.trained.trained_model:load',
  'runs': 'operations.run_interface',
  'UserError': 'base.errors:UserError',
  'UserErrors': 'base.errors:UserErrors',
  'StopTraining': 'base.errors:StopTraining',
}


if TYPE_CHECKING:  # The names of FACE for type checkers and editors: a name of another target is assigned.
  from official_ext.base.errors import StopTraining as StopTraining
  from official_ext.base.errors import UserError as UserError
  from official_ext.base.errors import UserErrors as UserErrors
  from official_ext.base.files import whole_folders as whole_folders
  from official_ext.cli.train import evaluate as evaluate
  from official_ext.cli.train import train as train
  from official_ext.data import class_weights as class_weights
  from official_ext.data import collators as _collators
  from official_ext.data import handwritten_digits as handwritten_digits
  from official_ext.data import numbered_records as _numbered_records
  from official_ext.data import sources as _sources
  from official_ext.data.batch_reader import Share as Share
  from official_ext.data.image_preprocessing import ImagePreprocessing as ImagePreprocessing
  from official_ext.data.pipelines import take_start as take_start
  from official_ext.data.sources import ArrayRecordSource as ArrayRecordSource
  from official_ext.data.sources import ArraySource as ArraySource
  from official_ext.data.sources import HuggingFaceSource as HuggingFaceSource
  from official_ext.data.sources import PreparedRows as PreparedRows
  from official_ext.data.sources import Source as Source
  from official_ext.data.sources import TfdsSource as TfdsSource
  from official_ext.data.step_indexed import build_dataset as build_dataset
  from official_ext.language.fine_tuning import completions as completions
  from official_ext.language.fine_tuning import parameter_names as parameter_names
  from official_ext.language.fine_tuning import rewards as rewards
  from official_ext.language.fine_tuning.fine_tuning_config import FineTuningConfig as FineTuningConfig
  from official_ext.language.fine_tuning.fine_tuning_config import PairsConfig as PairsConfig
  from official_ext.language.fine_tuning.samplers import ModelSampler as ModelSampler
  from official_ext.language.fine_tuning.samplers import Sampler as Sampler
  from official_ext.language.fine_tuning.task import FineTuningTask as FineTuningTask
  from official_ext.language.modeling import activation_memory as activation_memory
  from official_ext.language.modeling import adapter_sets as adapter_sets
  from official_ext.language.modeling import decoder as _decoder
  from official_ext.language.modeling import generation as generation
  from official_ext.language.modeling import int8 as int8
  from official_ext.language.modeling import lora as lora
  from official_ext.language.modeling import losses as losses
  from official_ext.language.modeling import nf4 as nf4
  from official_ext.language.modeling import packed_documents as _packed_documents
  from official_ext.language.modeling import peft_folders as peft_folders
  from official_ext.language.modeling import pretrained as pretrained
  from official_ext.language.modeling import token_metrics as token_metrics
  from official_ext.language.modeling import weighted_losses as weighted_losses
  from official_ext.language.modeling.decoder import Decoder as Decoder
  from official_ext.language.modeling.decoder import LanguageModel as LanguageModel
  from official_ext.language.modeling.decoder import SequenceClassifier as SequenceClassifier
  from official_ext.language.modeling.decoder_config import DecoderConfig as DecoderConfig
  from official_ext.language.modeling.generation import GenerationConfig as GenerationConfig
  from official_ext.language.modeling.lora import LoraConfig as LoraConfig
  from official_ext.language.modeling.quantized_linear import QuantizationConfig as QuantizationConfig
  from official_ext.language.modeling.weighted_losses import LossesConfig as LossesConfig
  from official_ext.language.text import python_docstrings as python_docstrings
  from official_ext.language.text import python_topics as python_topics
  from official_ext.language.text import text_sources as _text_sources
  from official_ext.language.text import tokenizer_training as _tokenizer_training
  from official_ext.language.text.text_task import TextDataConfig as TextDataConfig
  from official_ext.language.text.text_task import TextTask as TextTask
  from official_ext.language.text.tokenizer import Tokenizer as Tokenizer
  from official_ext.operations import run_interface as _run_interface
  from official_ext.training import metrics as metrics
  from official_ext.training.actions.keras_callbacks import KerasCallback as KerasCallback
  from official_ext.training.actions.plateau import EarlyStopping as EarlyStopping
  from official_ext.training.actions.plateau import ReduceLROnPlateau as ReduceLROnPlateau
  from official_ext.training.actions.triggers import AtEnd as AtEnd
  from official_ext.training.actions.triggers import EveryNSteps as EveryNSteps
  from official_ext.training.actions.triggers import EveryTSeconds as EveryTSeconds
  from official_ext.training.actions.triggers import OnBest as OnBest
  from official_ext.training.actions.triggers import OnEvent as OnEvent
  from official_ext.training.actions.triggers import Trigger as Trigger
  from official_ext.training.checkpoints.warm_start import load_weights as load_weights
  from official_ext.training.config.definitions import DataConfig as DataConfig
  from official_ext.training.config.definitions import ExperimentConfig as ExperimentConfig
  from official_ext.training.config.definitions import InMemoryDataConfig as InMemoryDataConfig
  from official_ext.training.config.definitions import OptimizationConfig as OptimizationConfig
  from official_ext.training.config.definitions import RuntimeConfig as RuntimeConfig
  from official_ext.training.config.definitions import TaskConfig as TaskConfig
  from official_ext.training.config.definitions import TrainerConfig as TrainerConfig
  from official_ext.training.config.parser import parse_configuration as parse_configuration
  from official_ext.training.devices.distribute import get_strategy as get_strategy
  from official_ext.training.diagnosis import task_checks as _task_checks
  from official_ext.training.loop.base_trainer import Trainer as Trainer
  from official_ext.training.loop.train_lib import RunOptions as RunOptions
  from official_ext.training.loop.train_lib import run_experiment as run_experiment
  from official_ext.training.model_parts import model_size as model_size
  from official_ext.training.optimization.optimizers import Optimizer as Optimizer
  from official_ext.training.step import gradient_tap as _gradient_tap
  from official_ext.training.step import step_random as _step_random
  from official_ext.training.tasks.base_task import Task as Task
  from official_ext.training.tasks.base_task import register_experiment as register_experiment
  from official_ext.training.tasks.base_task import register_task as register_task
  from official_ext.training.tasks.loop_task import LoopRun as LoopRun
  from official_ext.training.tasks.loop_task import LoopTask as LoopTask
  from official_ext.training.tasks.supervised_task import SupervisedConfig as SupervisedConfig
  from official_ext.training.tasks.supervised_task import SupervisedTask as SupervisedTask
  from official_ext.training.tasks.supervised_task import supervised_experiment as supervised_experiment
  from official_ext.training.trained.trained_model import load as load
  from official_ext.training.writers import registry as _writer_registry
  from official_ext.training.writers import writers as _writers
  from official_ext.training.writers.writers import Writer as Writer

  cached_source = _sources.cached
  text_source = _text_sources.open_source
  TextRecords = _numbered_records.ListRecords
  train_tokenizer = _tokenizer_training.cached
  register_collator = _collators.register
  build_optimizer = _gradient_tap.build_optimizer
  keyed_uniform = _step_random.uniform
  keyed_normal = _step_random.normal
  DecoderBlock = _decoder.Block
  packing = _packed_documents
  register_reward = rewards.register
  flatten_logs = _writers.flatten
  register_writer = _writer_registry.register
  find_mistakes = _task_checks.find_in_task
  runs = _run_interface
else:

  def _registering() -> contextlib.AbstractContextManager[object]:
    """A context for imports that register with gin: a script may have read its bindings, which locks gin, before."""
    gin = sys.modules.get('gin')
    return gin.unlock_config() if gin is not None else contextlib.nullcontext()

  def __getattr__(name: str) -> object:
    if name not in FACE:
      raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    module, _, attribute = FACE[name].partition(':')
    with _registering():
      found = importlib.import_module(f'{__name__}.{module}')
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
  return sorted({*globals(), *FACE})
