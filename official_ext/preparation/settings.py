"""What a preparation is asked to do: values that go to other processes and machines as JSON. No TensorFlow."""

import dataclasses
from typing import Any

from official_ext.data import text_formats


@dataclasses.dataclass(frozen=True)
class TextSettings:
  """How texts become rows of tokens: fields of `ext.TextDataConfig`, with its defaults."""

  example_format: str = 'auto'
  text_column: str = 'text'
  messages_column: str = 'messages'
  tools_column: str = 'tools'
  prompt_column: str = 'prompt'
  output_column: str = 'completion'
  chosen_column: str = 'chosen'
  rejected_column: str = 'rejected'
  use_chat_template: bool = False
  system_prompt: str = ''
  append_eos: bool = True
  loss_on: str = 'completions'
  seq_length: int = 1024
  max_input_length: int = 0
  max_content_length: int = 0
  packing: str = 'none'


# Of fields that are not any text, any number from 0 on, or true and false.
CHOICES = {
  'example_format': tuple(name for name in text_formats.FORMATS if name != 'prompt'),
  'loss_on': text_formats.LOSS_ON,
  'packing': text_formats.PACKINGS,
}


@dataclasses.dataclass(frozen=True)
class Settings:
  """What is written, but for where it is from.

  Attributes:
    split: which part of a folder with several.
    shard_bytes: how much input makes a shard, about.
    on_bad_example: 'error' or 'skip'.
    text: how texts become rows; None: records are written as they are.
  """

  split: str = ''
  shard_bytes: int = 64 * 10**6
  on_bad_example: str = 'error'
  text: TextSettings | None = None

  def as_json(self) -> dict[str, Any]:
    """By name, without nesting."""
    found = dataclasses.asdict(self)
    return {**found.pop('text'), **found} if self.text else {name: found[name] for name in found if name != 'text'}
