"""`official-ext preview` of text: prints examples as the input pipeline of an experiment yields them."""

import dataclasses
import os
from typing import Any

from official.core import task_factory

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths
from official_ext.data import config_fields
from official_ext.language.text import example_texts
from official_ext.language.text import text_task
from official_ext.training.config import definitions
from official_ext.training.devices import distribute
from official_ext.training.diagnosis import data_checks
from official_ext.training.tasks import model_garden

ENDINGS = ('.txt', '.html')
_Shown = list[tuple[str, example_texts.Example]]  # Headings and examples.


@dataclasses.dataclass(frozen=True)
class Options:
  """How a preview is shown.

  Attributes:
    rows: examples.
    split: 'train' or 'validation'.
    output: a file to write besides, .txt or .html; '' for none.
    is_terminal: whether stdout takes ANSI's escapes.
  """

  rows: int = 5
  split: str = 'train'
  output: str = ''
  is_terminal: bool = False


def is_for(params: definitions.ExperimentConfig) -> bool:
  """Whether an experiment's examples are texts."""
  return issubclass(task_factory.get_task_cls(type(params.task)), text_task.TextTask)


def run(params: definitions.ExperimentConfig, experiment: str, options: Options) -> json_values.JsonObject:
  """Prints the first examples of an experiment.

  Args:
    params: the experiment; `is_for` holds.
    experiment: its name.
    options: how.

  Returns:
    {experiment, split, examples, lines, output}: for a program.

  Raises:
    UserError: the input is damaged, or has no rows of tokens.
  """
  output = options.output if not options.output or os.path.splitext(options.output)[1] else f'{options.output}.txt'
  if output and os.path.splitext(output)[1].lower() not in ENDINGS:
    raise errors.UserError(f'--output: {output}: is for texts; expected a name that ends with {" or ".join(ENDINGS)}')
  distribute.configure(params.runtime)
  data, path = data_checks.data_of(params.task, options.split)
  task = model_garden.make_task(params.task)
  examples, layout = task.first_examples(data, path, options.rows)
  if not examples:
    raise errors.UserError(f'{path}: the input of {type(task).__name__} has no rows of tokens to show')
  title = f'{experiment}: {len(examples)} {options.split} examples'
  lines = [layout, *_settings(task, data)]
  if not options.is_terminal:
    lines += [_legend(examples)]
  print('\n'.join(_as_text(title, lines, examples, options.is_terminal)), flush=True)
  if output:
    content = '\n'.join(_as_text(title, lines, examples, False)) + '\n'
    if output.lower().endswith('.html'):
      content = example_texts.marked_page(title, lines[:2], examples)
    paths.make_folder(os.path.dirname(os.path.abspath(output)))
    paths.write_atomically(output, content.encode())
    print(f'\nsaved: {output}')
  plain = _as_text(title, lines, examples, False)
  values = {'experiment': experiment, 'split': options.split, 'examples': len(examples)}
  return {**values, 'lines': list(plain), 'output': output}


def _legend(examples: _Shown) -> str:
  if any(example.num_learned for _, example in examples):
    return f'learned tokens: {example_texts.OPEN}like this{example_texts.CLOSE}'
  return 'learned tokens: none'


def _settings(task: Any, data: Any) -> list[str]:
  """A line about the tokenizer and the chat template."""
  tokenizer = task.tokenizer
  named = task.named_tokenizer or 'made by the task'
  fields = config_fields.of_data(data)
  template = fields.chat_template_path
  if not template:
    template = "the tokenizer's" if tokenizer.has_chat_template else 'none'
    if tokenizer.has_chat_template and fields.use_chat_template is False:
      template += ', for messages only (use_chat_template=false)'
  return [f'tokenizer: {named}, {len(tokenizer)} tokens; chat template: {template}']


def _as_text(title: str, lines: list[str], examples: _Shown, is_terminal: bool) -> list[str]:
  found = [title, *lines]
  shown = example_texts.marked_for_terminal if is_terminal else example_texts.marked_plain
  for heading, example in examples:
    found += ['', heading]
    for number, text in enumerate(example.texts, 1):
      caption = example_texts.caption_of(example, number)
      found += [f'--- {caption}'] if caption else []
      found.append(shown(text.runs))
  return found
