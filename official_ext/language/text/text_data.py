"""The configuration of text data."""

from collections.abc import Mapping
import dataclasses
from typing import ClassVar

from official_ext.base import errors
from official_ext.language.text import text_formats
from official_ext.language.text import text_sources
from official_ext.training.config import definitions

_NO_TFDS = 'texts are read from files'


@dataclasses.dataclass
class TextDataConfig(text_formats.TextFields, definitions.DataConfig):
  """Texts from files of JSON lines, JSON, Parquet or Arrow, or from a folder that Hugging Face's `datasets` wrote.

  Attributes:
    input_path: Files and folders.
    weights: The share of the rows of each path of `input_path`, in its order, in training; empty: every row once. An
      epoch has every row at least once, so that rows of small files with large shares are repeated.
    split: Which part of a folder that has several, such as 'train'.
    seq_length: Tokens in a row. Losses ignore padding.
    example_format: The form of a record. 'text' is learned whole; 'messages' is a conversation; 'prompt_output' a
      prompt and its answer; 'preference' a prompt, a chosen and a rejected answer; 'unpaired' a prompt, its answer and
      a label, or a pair, which makes two such examples; 'prompt' has no answer. 'auto': messages, prompt_output or
      text, by the columns of the first record.
    text_column: The column of the text.
    messages_column: The column of the messages, each with `role` and `content`.
    tools_column: The column of the tools that the assistant may call, if there is one.
    prompt_column: The column of the prompt: a text, or messages.
    output_column: The column of the answer: a text, or messages.
    chosen_column: The column of the better answer.
    rejected_column: The column of the worse answer.
    label_column: The column of the label of unpaired answers: true if the answer is desirable.
    use_chat_template: Whether a prompt and an answer that are texts become turns of the user and the assistant; null:
      if the tokenizer has a chat template. Messages always go through it.
    chat_template_path: A file with a chat template in Jinja, in the place of the tokenizer's own.
    system_prompt: The system message of a conversation that has none.
    append_eos: Whether a text that no chat template has made ends with the token that ends sequences.
    loss_on: The tokens to learn: 'completions', all that the assistant says; 'last_completion', its last turn; 'all'.
    max_input_length: Tokens of a prompt; its end is kept. 0: all.
    max_content_length: Tokens behind the prompt, or of a text without one; their beginning is kept. 0: all.
    max_samples: Records that are used, from the first one on. -1: all.
    packing: How rows are filled. 'none': a text in each. 'best_fit': as many whole texts as go into it. 'wrapped': all
      texts as one stream that is cut into rows. Texts that share a row do not see each other.
    cache_dir: Where tokens are kept between runs. Empty: ~/.cache/official_ext, or below XDG_CACHE_HOME.
  """

  UNREAD_FIELDS: ClassVar[Mapping[str, str]] = {
    **definitions.DataConfig.UNREAD_FIELDS,
    **dict.fromkeys(('tfds_name', 'tfds_split', 'tfds_data_dir'), _NO_TFDS),
  }
  CHOICES: ClassVar[Mapping[str, tuple[object, ...]]] = {
    'example_format': text_formats.FORMATS,
    'loss_on': text_formats.LOSS_ON,
    'packing': text_sources.PACKINGS,
  }
  RANGES: ClassVar[Mapping[str, str]] = {
    'seq_length': '[2, 16777216]',
    **dict.fromkeys(('max_input_length', 'max_content_length'), '[0, inf)'),
    'max_samples': '[-1, inf)',
    'weights': '(0, inf)',
  }

  weights: tuple[float, ...] = ()

  def check_values(self, path: str) -> None:
    """See `checks.check`."""
    super().check_values(path)
    if self.max_samples == 0:
      raise errors.UserError(f'{path}.max_samples: expected -1 for all, or at least 1, got 0')
    if self.weights and (not self.is_training or self.max_samples >= 0):
      field = f'{path}.max_samples' if self.is_training else f'{path}.weights'
      raise errors.UserError(f'{field}: weights are for training on all records; unset {field}')
    if self.packing != 'none' and self.example_format in text_formats.ONE_EACH:
      raise errors.UserError(
        f'{path}.packing: {self.packing}: rows of {path}.example_format={self.example_format} hold one example each'
      )
