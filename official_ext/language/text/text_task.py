"""A task whose model reads tokens, and its data configuration.

The configuration names a tokenizer, or the task makes one, which stays with the run.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import os
from typing import Any, ClassVar

import tensorflow as tf

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.base.files import whole_folders
from official_ext.base.run_folder import model_folders
from official_ext.data import config_fields
from official_ext.data import input_faults
from official_ext.language.text import example_texts
from official_ext.language.text import text_formats
from official_ext.language.text import text_sources
from official_ext.language.text import tokenizer as tokenizer_lib
from official_ext.training.checkpoints import manifests
from official_ext.training.checkpoints import warm_start
from official_ext.training.config import definitions
from official_ext.training.devices import workers as workers_lib
from official_ext.training.diagnosis import data_checks
from official_ext.training.tasks import base_task

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
    max_content_length: Tokens after the prompt, or of a text without one; their beginning is kept. 0: all.
    max_samples: Records that are used, from the first one on. -1: all.
    packing: How rows are filled. 'none': a text in each. 'best_fit': as many whole texts as go into it. 'wrapped': all
      texts as one stream that is cut into rows. Texts that share a row do not see each other.
    cache_dir: Where tokens are kept between runs. Empty: ~/.cache/official_ext, or below XDG_CACHE_HOME.

  Example:

    >>> data = ext.TextDataConfig({'input_path': 'texts.jsonl', 'seq_length': 512, 'global_batch_size': 8})
    >>> data.seq_length
    512
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


_FOLDER = 'tokenizer'  # In the folder of a run.
_MAX_LINE, _MAX_TEXTS = 700, 4  # Of the first example in a log: characters of a text, and texts.


class TextTask(base_task.Task):
  """A task on texts.

  If the configuration names no tokenizer, the task makes one. The tokenizer depends on more than the configuration,
  such as texts that come with Python, and weights mean nothing with another one. So a run keeps it from its start on,
  in its folder `tokenizer`. Everything that starts from its checkpoints uses that one: the run itself, an evaluation,
  `ext.load`, another run by `--checkpoint` or `task.init_checkpoint`.

  The configuration has a field `tokenizer_path`, or a subclass overrides `named_tokenizer`.

  Example:

    >>> @dataclasses.dataclass
    ... class NotesConfig(ext.TaskConfig):
    ...   tokenizer_path: str = ''
    >>> class Notes(ext.TextTask):
    ...   def make_tokenizer(self):
    ...     return ext.train_tokenizer(['one two three'] * 50, vocab_size=300)
    ...
    ...   def build_inputs(self, params, input_context=None):
    ...     return ext.build_dataset(ext.text_source(params, self.tokenizer), params, input_context)
    >>> task = Notes(NotesConfig())
    >>> task.tokenizer.decode(task.tokenizer.encode('two'))
    'two'
    >>> task.check_vocabulary(100)  # In `build_model`.
    Traceback (most recent call last):
      ...
    official_ext.base.errors.UserError: task.model.vocab_size: ...
  """

  def __init__(self, params: Any, *args: object, **kwargs: object):
    """See base class."""
    super().__init__(params, *args, **kwargs)
    self._workers = workers_lib.get(tf.distribute.get_strategy())

  @property
  def named_tokenizer(self) -> str:
    """The folder of the tokenizer that the configuration names; '' if it names none."""
    return paths.expanded(self.config.tokenizer_path)

  def make_tokenizer(self) -> tokenizer_lib.Tokenizer:
    """Makes the tokenizer of a new run, if none is named: the same on all workers."""
    raise NotImplementedError(f'{type(self).__name__} must implement make_tokenizer: no tokenizer is named.')

  @property
  def model_type(self) -> str:
    """The family of the model under Hugging Face's name, with which the tokenizer will be read; '' if it has none."""
    return getattr(config_fields.of_task(self.config).model, 'model_type', '')

  @property
  def learns_tokens(self) -> bool:
    """Whether the loss is on the tokens with labels, which previews mark; false for scores of whole texts."""
    return True

  @functools.cached_property
  def tokenizer(self) -> tokenizer_lib.Tokenizer:
    """The one that is named, or from the run whose weights the task starts from, or a new one."""
    folder = self.named_tokenizer or self._kept_tokenizer
    if folder:
      return tokenizer_lib.Tokenizer.load(folder).beside(self.model_type)
    found = self.make_tokenizer().beside(self.model_type)
    hint = 'they make it of other texts; name one for all: task.tokenizer_path'
    self._workers.check_same(
      'tokenizers', found.digest, lambda one, other: [] if one == other else [f'{one}, {other}; {hint}']
    )
    return found

  @functools.cached_property
  def _kept_tokenizer(self) -> str:
    """The folder of the tokenizer that a run has kept and this one continues with; '' for none."""
    return self._workers.from_chief('tokenizer of the run', self._find_kept)

  def _find_kept(self) -> str:
    folder = self.weights_folder
    if not folder and self.config.init_checkpoint:
      folder = manifests.folder_of(warm_start.find(self.config.init_checkpoint))
    if not folder:
      return ''
    for run in (folder, os.path.dirname(folder)):  # Checkpoints in `best` are one below.
      if model_folders.RUN_FILE in paths.names(run):
        place = os.path.join(run, _FOLDER)
        return place if model_folders.TOKENIZER_FILE in paths.names(place) else ''
    return ''

  def check_vocabulary(self, vocab_size: int) -> None:
    """Refuses a model without room for all tokens: part of `build_model`.

    Args:
      vocab_size: of the model.

    Raises:
      UserError: there are more.
    """
    number = len(self.tokenizer)
    if number <= vocab_size:
      return
    if self._kept_tokenizer and not self.named_tokenizer:
      raise errors.UserError(
        f'task.model.vocab_size: {vocab_size} is less than the {number} tokens of {self._kept_tokenizer}, which the '
        'weights were trained with: set it to the earlier value, or start a new run in another --model_dir'
      )
    field = 'task.tokenizer_path' if self.named_tokenizer else 'task.model.vocab_size'
    where = f' of {self.named_tokenizer}' if self.named_tokenizer else ''
    raise errors.UserError(
      f'{field}: the tokenizer{where} has {number} tokens, and the model has room for {vocab_size} (vocab_size)'
    )

  def first_examples(
    self, params: Any, path: str, count: int
  ) -> tuple[Sequence[tuple[str, example_texts.Example]], str]:
    """The first examples of an input as a model sees them, with a heading each, and the layout of rows, in words.

    An input without rows of tokens has none.

    Args:
      params: `task.train_data` or `task.validation_data`.
      path: its dotted path, for messages.
      count: examples, at most.

    Raises:
      UserError: the input is damaged, or has no examples.
    """
    params = params.replace(
      **config_fields.known(params, {'enable_tf_data_service': False})
    )  # This process makes them.
    found: list[tuple[str, example_texts.Example]] = []
    with data_checks.open_batches(self, params, path) as (dataset, log):
      for batch in dataset:
        arrays = tf.nest.map_structure(lambda part: part.numpy(), batch)
        if not example_texts.has_texts(arrays):
          return (), ''
        for example in example_texts.examples_of_batch(arrays, self.tokenizer, self.learns_tokens):
          place = log.describe(len(found)).partition(' at position ')[0] if log.describe else ''
          found.append((_heading(len(found) + 1, place, example), example))
        if len(found) >= count:
          break
    if not found:
      raise input_faults.no_examples(path, params)
    return found[:count], _layout(next(iter(log.identities), {}))

  def example_lines(self) -> Sequence[str]:
    """The first training example, in a few lines of bounded length: see base class."""
    data, path = data_checks.data_of(self.config, 'train')
    examples, _ = self.first_examples(data, path, 1)
    if not examples:
      return ()
    heading, example = examples[0]
    marks = f'; learned between {example_texts.OPEN} and {example_texts.CLOSE}' if example.num_learned else ''
    lines = [f'First {heading.replace(" 1:", ":", 1)}{marks}']
    for number, text in enumerate(example.texts[:_MAX_TEXTS], 1):
      caption = example_texts.caption_of(example, number)
      lines.append(f'  {caption and caption + ": "}{example_texts.marked_line(text.runs, _MAX_LINE)}')
    if len(example.texts) > _MAX_TEXTS:
      lines.append(f'  and {len(example.texts) - _MAX_TEXTS} more texts in the row')
    return lines

  def code_files(self) -> Mapping[str, object]:
    """The tokenizer: see base class."""
    return {'tokenizer': self.tokenizer.digest.encode()}

  def keep_files(self, model_dir: str) -> None:
    """Keeps the tokenizer, if the configuration names none: see base class."""
    folder = os.path.join(model_dir, _FOLDER)
    if not self.named_tokenizer and os.path.abspath(self._kept_tokenizer) != os.path.abspath(folder):
      whole_folders.write(folder, self.tokenizer.save)


def _heading(number: int, place: str, example: example_texts.Example) -> str:
  """The line above an example."""
  counts = example_texts.token_counts(example.num_tokens, example.num_learned)
  padding = example.num_places - example.num_tokens
  return f'example {number}: {place}{place and "; "}{counts}, {padding} of padding'


def _layout(identity: Mapping[str, Any]) -> str:
  """The layout of a source's rows."""
  named = identity.get('format') or identity.get('example_format') or 'unknown'
  return (
    f'format: {named}; rows of {identity.get("seq_length", "?")} tokens; packing: {identity.get("packing", "none")}'
  )
