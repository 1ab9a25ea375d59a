"""Configuration of the experiment `script`."""

from collections.abc import Collection, Mapping
import dataclasses
import os
from typing import Any, ClassVar

from official.modeling.hyperparams import base_config

import official_ext as ext

from . import parameters
from . import source

_ITS_OWN = 'the script brings its own'
_READ_BY_RUNS = ('train_steps', 'summary_interval', 'progress_bar', 'writers', 'mlflow', 'wandb', 'notifications')


def _unread(config_class: Any, read: Collection[str]) -> Mapping[str, str]:
  return {field.name: _ITS_OWN for field in dataclasses.fields(config_class) if field.name not in read}


@dataclasses.dataclass
class ScriptTaskConfig(ext.TaskConfig):
  """A Python file that trains, and the parameters that it finds as variables: LORA_RANK, MAX_SEQ_LENGTH, ...

  Which of them mean something is the script's to know: one that is set, and that it does not read, is refused.

  Attributes:
    script: The path of the file.
    model_path: MODEL_PATH: the model that training begins with.
    dataset_path: DATASET_PATH: the data.
    output_dir: OUTPUT_DIR: where the result and the trainer's checkpoints are; empty: the folder of the run.
    max_seq_length: MAX_SEQ_LENGTH: tokens of a row.
    lora_rank: LORA_RANK: the rank of adapters.
    load_in_4bit: LOAD_IN_4BIT: whether weights that are not trained are kept in 4 bits.
    max_input_length: MAX_INPUT_LENGTH: tokens of a prompt.
    max_content_length: MAX_CONTENT_LENGTH: tokens of an answer.
    max_samples: MAX_SAMPLES: the most records; -1 for all.
    num_generations: NUM_GENERATIONS: answers to a prompt that are compared, as in GRPO.
    max_grad_norm: MAX_GRAD_NORM: the norm to which gradients are clipped.
    batch_size: BATCH_SIZE: examples of a batch.
    grad_accum_steps: GRAD_ACCUM_STEPS: batches of an update.
    learning_rate: LEARNING_RATE: the learning rate, at its highest.
    warmup_steps: WARMUP_STEPS: updates until the full learning rate.
    prompt_input_column: PROMPT_INPUT_COLUMN, PromptInputColumn: the column of the prompts.
    prompt_output_column: PROMPT_OUTPUT_COLUMN, PromptOutputColumn: the column of the answers.
    parameters: Parameters of the script's own, by their names: task.parameters.temperature is TEMPERATURE.
  """

  UNREAD_FIELDS: ClassVar[Mapping[str, str]] = _unread(ext.TaskConfig, ())
  RANGES: ClassVar[Mapping[str, str]] = {
    **dict.fromkeys(
      (
        'max_seq_length',
        'lora_rank',
        'max_input_length',
        'max_content_length',
        'num_generations',
        'batch_size',
        'grad_accum_steps',
      ),
      '[1, inf)',
    ),
    'max_samples': '[-1, inf)',
    'max_grad_norm': '[0, inf)',
    'learning_rate': '[0, inf)',
    'warmup_steps': '[0, inf)',
  }

  train_data: Any = None
  validation_data: Any = None
  script: str = ''
  model_path: str = ''
  dataset_path: str = ''
  output_dir: str = ''
  max_seq_length: int = 1024
  lora_rank: int = 8
  load_in_4bit: bool = True
  max_input_length: int = 1024
  max_content_length: int = 1024
  max_samples: int = 1000
  num_generations: int = 4
  max_grad_norm: float = 0.5
  batch_size: int = 2
  grad_accum_steps: int = 2
  learning_rate: float = 2e-5
  warmup_steps: int = 2
  prompt_input_column: str = 'prompt'
  prompt_output_column: str = 'completion'
  parameters: dict[str, Any] = dataclasses.field(default_factory=base_config.Config)

  def check_given(self, path: str, params: object, given: Collection[str]) -> None:
    """See `config/checks.py`: the script reads all set values."""
    del path
    if not (self.script and os.path.exists(self.script)):  # `check_run` reports it.
      return
    lines = list(parameters.mistakes(source.Script(self.script), params, script(), given))
    if lines:
      raise ext.UserErrors(lines)

  def check_run(self, path: str, params: object, mode: str | None) -> None:
    """See `config/checks.py`: there is a script, and the mode trains."""
    del params
    if not self.script:
      raise ext.UserError(f'{path}.script: must be set, such as --set=script=custom01.py')
    source.Script(self.script)
    if mode not in (None, 'train', 'train_and_eval'):
      raise ext.UserError(f'--mode={mode}: a script trains and evaluates by itself; use --mode=train')

  def unread_now(self, path: str, params: object) -> Mapping[str, str]:
    """See `config/checks.py`: the parameters that the script does not read."""
    del path, params
    script = self._source()
    return parameters.unread(script) if script else {}

  def unset_entries(self, path: str, params: object) -> list[str]:
    """See `config/checks.py`: the custom parameters that the script reads."""
    del path
    script = self._source()
    return parameters.unset(script, params) if script else []

  def _source(self) -> source.Script | None:
    try:
      return source.Script(self.script) if self.script else None
    except ext.UserError:  # `check_run` reports it.
      return None


@dataclasses.dataclass
class ScriptTrainerConfig(ext.TrainerConfig):
  """The run around a custom loop.

  Attributes:
    train_steps: MAX_STEPS: the number of updates.
    summary_interval: Steps between events of a Keras model; trainers of Hugging Face have logging_steps.
  """

  UNREAD_FIELDS: ClassVar[Mapping[str, str]] = _unread(ext.TrainerConfig, _READ_BY_RUNS)

  train_steps: int = 100
  summary_interval: int = 10


@dataclasses.dataclass
class ScriptRuntimeConfig(ext.RuntimeConfig):
  """The process; devices and precision are the script's.

  Attributes:
    seed: SEED. Python, NumPy and TensorFlow are seeded by it, too; PyTorch is not.
    hang_seconds: How long training may hang, without a step, before the run ends with the stacks of all threads
      and exit status 75. Ten times as long until the first step is done. 0: for ever.
  """

  UNREAD_FIELDS: ClassVar[Mapping[str, str]] = _unread(ext.RuntimeConfig, ('seed', 'hang_seconds'))

  distribution_strategy: str = 'off'


@ext.register_experiment('script')
def script() -> ext.ExperimentConfig:
  """A custom Python file that trains, with a trainer of Hugging Face, Keras or its own: docs/how_to/script.md.

  The command trains the file that `official-ext new NAME --like=script` writes: 1,438 handwritten digits, two layers.

  Command: python train.py --experiment=script --mode=train --model_dir=runs/script
    --set=script=experiments/script/template.py --set=batch_size=32 --set=learning_rate=2e-3 --set=max_steps=400
  Hardware and time: 2 CPU cores that others used too; about 15 seconds of their time, start-up included.
  Result: accuracy 96.4 % of 360 other digits with seed 0.
  Reference: logistic regression (scikit-learn) on the same digits, 96.4 %.
  """
  return ext.ExperimentConfig(task=ScriptTaskConfig(), trainer=ScriptTrainerConfig(), runtime=ScriptRuntimeConfig())


ext.parameter_names.register(
  'script',
  changed={
    'script': 'task.script',
    'output_dir': 'task.output_dir',
    **{parameter.name: parameter.path for parameter in parameters.PARAMETERS},
    'promptinputcolumn': 'task.prompt_input_column',
    'promptoutputcolumn': 'task.prompt_output_column',
    'train_steps': 'trainer.train_steps',
  },
  refused={'lora_alpha': 'a script that reads LORA_ALPHA gets it by --set=task.parameters.lora_alpha=16'},
)
