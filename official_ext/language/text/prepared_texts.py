"""Rows of tokens that `official-ext prepare` has written, as a source: training on them starts at once."""

from collections.abc import Sequence
import json
from typing import Any

from absl import logging
import numpy as np

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.data import collators
from official_ext.data import data_identity
from official_ext.data import input_files
from official_ext.data import record_report
from official_ext.data import row_encoding
from official_ext.data import sources
from official_ext.language.text import text_formats
from official_ext.language.text import token_rows
from official_ext.language.text import tokenizer as tokenizer_lib


class PreparedTexts(sources.Source):
  """The rows of a prepared folder, with the features of `ext.text_source`.

  Attributes:
    report: counts of the records when they were prepared.
    tokenizer: the model's, which made the tokens.
  """

  reads_in_blocks = True

  def __init__(
    self,
    found: input_files.PreparedFolder,
    params: Any,
    tokenizer: tokenizer_lib.Tokenizer,
    path: str,
  ):
    """Opens the files.

    Args:
      found: the folder.
      params: a `TextDataConfig`, whose fields must equal the settings that the rows were made with.
      tokenizer: of the model, with the chat template that `params` names.
      path: the dotted path of `params`, for messages.

    Raises:
      UserErrors: a setting, or the tokenizer, is another one; the folder holds no rows of tokens.
    """
    _check(found, params, tokenizer, path)
    self.report = record_report.RecordReport(**found.report)
    self._balance = found.balance or [self.report.balance(found.folder).values()]
    for line in self.report.warnings(path):
      logging.warning('%s', line)
    self.tokenizer = tokenizer
    self._files = sources.RecordFiles([(file, count) for file, count, _, _ in found.files])
    self._paths = [file for file, _, _, _ in found.files]
    self._settings = found.settings
    self._content = found.content
    self._seq_length = int(found.settings['seq_length'])
    self._is_preference = found.settings['example_format'] == 'preference'
    self._is_unpaired = found.settings['example_format'] == 'unpaired'

  def __len__(self) -> int:
    return len(self._files)

  @property
  def bytes_per_example(self) -> int:
    """See base class: at most, which is two rows of four features."""
    return 8 * np.dtype(np.int32).itemsize * self._seq_length

  def fetch(self, indices: Sequence[int]) -> list[collators.Example]:
    records = list(self._files.read(indices))
    labels = [record[-1] for record in records] if self._is_unpaired else []
    decoded = [row_encoding.decode_texts(record[:-1] if self._is_unpaired else record) for record in records]
    ends = np.cumsum(np.concatenate([lengths for lengths, _, _ in decoded])).tolist()
    bounds = list(zip([0, *ends], ends))
    tokens = np.concatenate([ids for _, ids, _ in decoded])
    learned = np.concatenate([marks for _, _, marks in decoded])
    parts: list[list[token_rows.Part]] = []
    start = 0
    for lengths, _, _ in decoded:
      of_row = bounds[start : start + len(lengths)]
      start += len(lengths)
      parts += [[part] for part in of_row] if self._is_preference else [of_row]
    rows = token_rows.lay_out(tokens, learned, parts, self._seq_length, self.tokenizer.fill_token_id)
    if self._is_unpaired:
      return [{**row, 'is_desirable': np.int32(label)} for row, label in zip(rows, labels)]
    return list(token_rows.preference_row(rows) if self._is_preference else rows)

  def summary(self) -> str:
    num_rows = len(self) * (1 + self._is_preference)
    return f'{self.report.summary(len(self))}; {self.report.token_summary(num_rows * self._seq_length)}'

  def describe(self, index: int) -> str:
    return f'row {index} ({self._files.place(index)})'

  def balance(self) -> list[json_values.JsonObject]:
    """The accounts of the input of `official-ext prepare`."""
    return self._balance

  def identity(self) -> data_identity.Identity:
    report = self.report
    return {
      **super().identity(),
      **data_identity.of_files(self._paths),
      'content': self._content,
      'tokenizer': self.tokenizer.digest,
      'num_records': report.records,
      'num_records_left_out': report.bad_records + report.without_loss,
      'num_tokens': report.tokens,
      'num_tokens_cut': report.lost_tokens,
      **{name: self._settings[name] for name in text_formats.OF_ROWS},
    }


def _check(found, params, tokenizer, path) -> None:
  """Compares a configuration with the rows' settings."""
  if found.kind != 'texts':
    raise errors.UserError(
      f'{path}.input_path: {found.folder}: holds {found.kind}; prepare it with --tokenizer for rows of tokens'
    )
  made = found.settings
  with errors.Mistakes() as mistakes:
    if tokenizer.digest != made['tokenizer']:
      with mistakes.noted():
        raise errors.UserError(
          f'{path}.input_path: {found.folder} was prepared with another tokenizer or chat template than the model '
          f'has; the one it was made with is {found.folder}/tokenizer (task.tokenizer_path)'
        )
    for name in text_formats.OF_ROWS:
      value = getattr(params, name)
      if name == 'use_chat_template' and value is None:
        value = tokenizer.has_chat_template
      if value != made[name] and (name, value) != ('example_format', 'auto'):
        with mistakes.noted():
          raise errors.UserError(
            f'{path}.{name}: is {_shown(value)}, and {found.folder} was prepared with {_shown(made[name])}; set it so, '
            'or prepare another folder'
          )
    for name, unset in (('split', ''), ('max_samples', -1)):
      if getattr(params, name) != unset:
        with mistakes.noted():
          raise errors.UserError(f'{path}.{name}: has no meaning for rows that were prepared; leave it alone')


def _shown(value: object) -> str:
  return json.dumps(value) if value is None or value == '' or isinstance(value, bool) else str(value)
