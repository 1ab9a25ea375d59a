"""The prompts of validation data with their answers, as a model gets them."""

from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.language.text import text_sources


@dataclasses.dataclass(frozen=True)
class Prompt:
  """A prompt of validation data.

  Attributes:
    tokens: of the prompt, without padding.
    text: of these tokens, special tokens included.
    answer: the text of the answer in the data, without special tokens: of several turns the first one that is learned,
      of a pair the chosen one; '' if the data have none.
    record: its record.
  """

  tokens: list[int]
  text: str
  answer: str
  record: json_types.JsonMapping


def read(source: Any, params: Any, path: str, at_most: int) -> list[Prompt]:
  """The first prompts of a source, those with an answer if tokens are learned; of labeled answers the desirable ones.

  Args:
    source: of `text_sources.open_source`.
    params: its data configuration.
    path: the dotted path of `params`, for messages.
    at_most: prompts; -1 for all.

  Raises:
    UserError: the source has no records, or none of them has a prompt.
  """
  if not isinstance(source, text_sources.TextSource):
    raise errors.UserError(f'{path}.input_path: prompts are read from records; name those that the rows were made of')
  store = source.store
  found: list[Prompt] = []
  each = max(1, (len(store.bounds) - 1) // max(1, len(store.records)))  # Texts of an example: a pair has two.
  for number, record in enumerate(store.records):
    if len(found) == at_most:
      break
    if store.desirable is not None and not store.desirable[number * each]:
      continue
    start, end = store.bounds[number * each], store.bounds[number * each + 1]
    prompt = _prompt(source, np.asarray(store.tokens[start:end]), np.asarray(store.learned[start:end]), int(record))
    if prompt is not None:
      found.append(_with_column(prompt, params) if isinstance(source, text_sources.Prompts) else prompt)
  if not found:
    raise errors.UserError(
      f'{path}: none of the records has a prompt in front of its answer; texts without prompts, and '
      f'{path}.loss_on=all, have none; of labeled answers the desirable ones are taken'
    )
  return found


def _prompt(source: text_sources.TextSource, ids: np.ndarray, learned: np.ndarray, record: int) -> Prompt | None:
  """The prompt of a text; None if the text begins with its answer."""
  places = np.flatnonzero(learned)
  begin = int(places[0]) if len(places) else len(ids)
  if not begin or (not len(places) and not isinstance(source, text_sources.Prompts)):
    return None
  gaps = np.flatnonzero(np.diff(places) > 1)
  end = int(places[gaps[0]]) + 1 if len(gaps) else int(places[-1]) + 1 if len(places) else begin
  decode = source.tokenizer.decode
  answer = decode(ids[begin:end].tolist(), skip_special_tokens=True)
  return Prompt(ids[:begin].tolist(), decode(ids[:begin].tolist()), answer, source.record(record))


def _with_column(prompt: Prompt, params: Any) -> Prompt:
  """A prompt alone, with the answer of its record's column."""
  answer = prompt.record.get(params.output_column, '')
  if isinstance(answer, Sequence) and not isinstance(answer, str):
    answer = answer[-1]['content'] if answer else ''
  return dataclasses.replace(prompt, answer=str(answer))
