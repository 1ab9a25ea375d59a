"""The parameters of DeepExtension's training methods, in lower case, as short names for `--set`.

Not listed here are standard names with the same meaning: learning_rate, warmup_steps, max_steps, max_grad_norm,
grad_accum_steps; and batch_size, which counts the examples of a micro-batch of all replicas together.

Example:

  >>> import types
  >>> @ext.register_experiment('toy_fine_tuning')
  ... def toy():
  ...   return ext.ExperimentConfig(task=ext.FineTuningConfig(), trainer=ext.TrainerConfig({'train_steps': 10}))
  >>> ext.parameter_names.register('toy_fine_tuning')
  >>> flags = types.SimpleNamespace(experiment='toy_fine_tuning', set=['max_seq_length=64', 'max_samples=1000'])
  >>> task = ext.parse_configuration(flags).task
  >>> task.train_data.seq_length, task.validation_data.seq_length, task.train_data.max_samples
  (64, 64, 1000)
"""

from collections.abc import Mapping

from official_ext.training.config import short_names


def _of_data(field: str) -> short_names.Meaning:
  """A field of both data configurations."""
  return short_names.Meaning((f'task.train_data.{field}',), ((f'task.validation_data.{field}',),))


_COMMON = {
  'model_path': short_names.Meaning(('task.model_path',)),
  'dataset_path': short_names.Meaning(('task.train_data.input_path',)),
  'lora_rank': short_names.Meaning(('task.lora.r',)),
  'lora_alpha': short_names.Meaning(('task.lora.lora_alpha',)),
  'load_in_4bit': short_names.Meaning(('task.load_in_4bit',)),
  'max_seq_length': _of_data('seq_length'),
  'max_input_length': _of_data('max_input_length'),
  'max_content_length': _of_data('max_content_length'),
  'max_samples': short_names.Meaning(('task.train_data.max_samples',)),
  'num_generations': short_names.Meaning(('task.num_generations',)),
  'output_dir': short_names.Meaning(('task.output_dir',)),
  **dict.fromkeys(('prompt_input_column', 'promptinputcolumn'), _of_data('prompt_column')),
  **dict.fromkeys(('prompt_output_column', 'promptoutputcolumn'), _of_data('output_column')),
}

# Why methods use some of them not: for `refused`.
SAMPLES_NONE = {'num_generations': 'it learns from the answers of the data, and samples none'}
HAS_TWO_ANSWERS = dict.fromkeys(
  ('prompt_output_column', 'promptoutputcolumn'),
  'it has two answers: set task.train_data.chosen_column and task.train_data.rejected_column',
)


def register(
  experiment: str,
  refused: Mapping[str, str] | None = None,
  changed: Mapping[str, short_names.Meaning | str] | None = None,
) -> None:
  """Gives an experiment these short names.

  Args:
    experiment: the name that it is registered under; its task's configuration is a `FineTuningConfig`.
    refused: parameters that the method does not use -> why, for its user.
    changed: parameters that mean another field, as patterns or a `Meaning` (see `training/config/short_names.py`), and
      further short names.
  """
  refusals = {name: short_names.Meaning(refusal=reason) for name, reason in (refused or {}).items()}
  short_names.register(experiment, {**_COMMON, **(changed or {}), **refusals})


Meaning = short_names.Meaning
