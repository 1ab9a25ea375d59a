"""Texts as tokens, computed once and mapped into memory from then on.

The tokens of all texts are in one array, with a mark on those that are learned. They are kept in the cache under a
key of all that they depend on: the records' content, the tokenizer, the settings.
"""

import array
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import json
import os
from typing import Any

import numpy as np

from official_ext.base.files import cache
from official_ext.data import bad_examples
from official_ext.data import numbered_records
from official_ext.data import record_report
from official_ext.language.text import text_formats
from official_ext.language.text import tokenizer as tokenizer_lib

VERSION = 2  # To be raised when other tokens come from the same texts, or other records are refused.
_RECORDS_PER_BLOCK = 512

EncodeBatch = Callable[[Sequence[str], bool], list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Limits:
  """How long texts may be, in tokens; 0: no limit.

  Attributes:
    prompt: of a prompt, whose end is kept, and the token that begins all texts.
    content: of the text behind it, or of a text without prompt; its beginning is kept.
    text: of both.
  """

  prompt: int
  content: int
  text: int


@dataclasses.dataclass(frozen=True)
class TokenStore:
  """Texts as tokens.

  Attributes:
    tokens: int32 `[tokens]`, those of all texts.
    learned: uint8 `[tokens]`, 1 on those that are learned.
    bounds: int64 `[texts + 1]`, where each text begins in them.
    records: int64 `[examples]`, the record that each example is from. An example has one text, or two that belong
      together.
    report: counts of the records.
    desirable: uint8 `[texts]`, 1 on those that are answers to give, 0 on rejected ones; None of texts without labels.
  """

  tokens: np.ndarray
  learned: np.ndarray
  bounds: np.ndarray
  records: np.ndarray
  report: record_report.RecordReport
  desirable: np.ndarray | None = None

  @property
  def lengths(self) -> np.ndarray:
    """In tokens, int64 `[texts]`."""
    return np.diff(self.bounds)


def open_store(
  records: numbered_records.Records,
  text_format: text_formats.TextFormat,
  tokenizer: tokenizer_lib.Tokenizer,
  settings: Mapping[str, object],
  limits: Limits,
  leaves_out: bool,
  folder: str = '',
) -> TokenStore:
  """The tokens of records, from the cache if they exist.

  Args:
    records: where texts are from.
    text_format: makes texts of them.
    tokenizer: makes tokens of those.
    settings: JSON values that identify the result of `text_format`.
    limits: of lengths.
    leaves_out: whether bad records are left out.
    folder: of the cache; '' for its usual place.

  Raises:
    BadExampleError: a record is bad, and none is left out.
    StorageError: there is no room for the tokens.
  """
  key = cache.key_of(
    [VERSION, records.digest, tokenizer.digest, text_format.name, settings, dataclasses.asdict(limits), leaves_out]
  )
  make = lambda place: _Writer(records, text_format, tokenizer, limits, leaves_out).write(place)
  return _read(cache.entry('tokens', key, make, folder))


def write_store(
  place: str,
  records: numbered_records.Records,
  text_format: text_formats.TextFormat,
  tokenizer: tokenizer_lib.Tokenizer,
  limits: Limits,
  leaves_out: bool,
  encode_batch: EncodeBatch | None = None,
) -> TokenStore:
  """Writes the tokens of records into an empty folder, and returns them; beside `open_store`, without the cache.

  Args:
    place: the folder.
    records: see `open_store`.
    text_format: see `open_store`.
    tokenizer: see `open_store`.
    limits: of lengths.
    leaves_out: whether bad records are left out.
    encode_batch: gives the same as `Tokenizer.encode_batch`; None: that one.

  Raises:
    BadExampleError: see `open_store`.
    OSError: there is no room for the tokens.
  """
  _Writer(records, text_format, tokenizer, limits, leaves_out, encode_batch).write(place)
  return _read(place)


def _read(place: str) -> TokenStore:
  with open(os.path.join(place, 'report.json'), encoding='utf-8') as f:
    report = record_report.RecordReport(**json.load(f))
  arrays = {name: _mapped(os.path.join(place, name), dtype) for name, dtype in _ARRAYS.items()}
  desirable = os.path.join(place, _DESIRABLE)
  return TokenStore(
    report=report, desirable=_mapped(desirable, np.uint8) if os.path.exists(desirable) else None, **arrays
  )


_ARRAYS: dict[str, object] = {'tokens': np.int32, 'learned': np.uint8, 'bounds': np.int64, 'records': np.int64}


_DESIRABLE = 'desirable'


def _mapped(path: str, dtype: Any) -> np.ndarray:
  return np.memmap(path, dtype, 'r') if os.path.getsize(path) else np.zeros(0, dtype)


class _Writer:
  """Turns records into tokens, block by block."""

  def __init__(self, records, text_format, tokenizer, limits, leaves_out, encode_batch=None):
    self._records = records
    self._format = text_format
    self._tokenizer = tokenizer
    self._encode_batch = encode_batch or tokenizer.encode_batch
    self._limits = limits
    self._leaves_out = leaves_out
    self._report = record_report.RecordReport(records=len(records))

  def write(self, place: str) -> None:
    """Writes the arrays and the report into a folder."""
    bounds, kept = array.array('q', [0]), array.array('q')
    desirable = bytearray()
    with open(os.path.join(place, 'tokens'), 'wb') as tokens, open(os.path.join(place, 'learned'), 'wb') as learned:
      for number, texts, labels in self._examples():
        kept.append(number)
        desirable += labels
        for ids, marks in texts:
          tokens.write(ids.tobytes())
          learned.write(marks.tobytes())
          bounds.append(bounds[-1] + len(ids))
          self._report.tokens += len(ids)
          self._report.learned_tokens += int(marks.sum())
    self._report.examples = len(kept)
    arrays = {'bounds': bounds.tobytes(), 'records': kept.tobytes()}
    if self._format.is_unpaired:
      arrays[_DESIRABLE] = bytes(desirable)
    for name, content in arrays.items():
      with open(os.path.join(place, name), 'wb') as f:
        f.write(content)
    with open(os.path.join(place, 'report.json'), 'w', encoding='utf-8') as f:
      json.dump(dataclasses.asdict(self._report), f)

  def _examples(self) -> Iterator[tuple[int, list[tuple[np.ndarray, np.ndarray]], bytes]]:
    """For each example its record, its texts, and the label of each."""
    for start in range(0, len(self._records), _RECORDS_PER_BLOCK):
      found = []
      for number in range(start, min(start + _RECORDS_PER_BLOCK, len(self._records))):
        texts = self._texts(number)
        if texts is not None:
          found.append((number, texts))
      encoded = iter(self._encoded([text for _, texts in found for text in texts]))
      for number, texts in found:
        example = [self._cut(*next(encoded)) for _ in texts]
        if self._format.name == 'prompt':
          is_used = all(len(ids) for ids, _ in example)
        else:  # The first token of a text is learned from nothing.
          is_used = all(marks[1:].any() for _, marks in example)
        if is_used:
          yield number, example, bytes(text.is_desirable for text in texts)
        else:
          self._report.without_loss += 1

  def _texts(self, number: int) -> list[text_formats.Text] | None:
    """The texts of a record; None where it is left out."""
    try:
      texts = self._format.texts(self._records.read(number))
      if any(text.text for text in texts):
        self._report.text_bytes += sum(len(text.text.encode()) for text in texts)
        return texts
      self._report.without_loss += 1
      return None
    except (ValueError, RecursionError) as error:  # Of lists in lists in lists, in the text of a column.
      told = str(error) if isinstance(error, ValueError) else bad_examples.one_line(error)
      if not isinstance(error, bad_examples.BadExampleError):
        told = f'{self._records.place(number)}: {told}'
      if not self._leaves_out:
        raise bad_examples.BadExampleError(told) from error
      self._report.bad_records += 1
      if len(self._report.named) < record_report.MAX_NAMED:
        self._report.named.append(told)
      return None

  def _encoded(self, texts: Sequence[text_formats.Text]) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """For each text its tokens, the marks on those that are learned, and how many of them are the prompt's."""
    found: list[Any] = [None] * len(texts)
    for adds in (False, True):
      plain = [n for n, text in enumerate(texts) if text.add_special_tokens == adds and _is_plain(text)]
      other = [n for n, text in enumerate(texts) if text.add_special_tokens == adds and not _is_plain(text)]
      for n, ids in zip(plain, self._encode_batch([texts[n].text for n in plain], adds)):
        is_prompt = not texts[n].learned
        found[n] = ids, np.full(len(ids), not is_prompt, np.uint8), len(ids) if is_prompt else 0
      for n, (ids, offsets) in zip(
        other, self._tokenizer.encode_batch_with_offsets([texts[n].text for n in other], adds)
      ):
        prompt_end = texts[n].prompt_end
        found[n] = ids, _marks(offsets, texts[n].learned), _prompt_length(offsets, prompt_end)
        self._report.joined_ends += bool(((offsets[:, 0] < prompt_end) & (prompt_end < offsets[:, 1])).any())
    return [self._ended(*values) if text.append_eos else values for text, values in zip(texts, found)]

  def _ended(self, ids, marks, prompt_length):
    end = self._tokenizer.eos_token_id
    if end is None:
      return ids, marks, prompt_length
    if len(ids) and ids[-1] == end:
      return ids, np.append(marks[:-1], np.uint8(1)), prompt_length
    return np.append(ids, np.int32(end)), np.append(marks, np.uint8(1)), prompt_length

  def _cut(self, ids, marks, prompt_length):
    """(tokens, marks), no longer than they may be."""
    limits, report = self._limits, self._report
    prompt = np.arange(prompt_length)
    if limits.prompt and prompt_length > limits.prompt:
      report.cut_prompts += 1
      report.cut_prompt_tokens += prompt_length - limits.prompt
      prompt = prompt[prompt_length - limits.prompt :]
      if ids[0] == self._tokenizer.bos_token_id:
        prompt[0] = 0
    content = np.arange(prompt_length, len(ids))
    if limits.content and len(content) > limits.content:
      report.cut_contents += 1
      report.cut_content_tokens += len(content) - limits.content
      content = content[: limits.content]
    kept = np.concatenate([prompt, content])
    if limits.text and len(kept) > limits.text:
      report.cut_texts += 1
      report.cut_text_tokens += len(kept) - limits.text
      kept = kept[-limits.text :] if self._format.name == 'prompt' else kept[: limits.text]
    return ids[kept], marks[kept]


def _is_plain(text: text_formats.Text) -> bool:
  """Whether all of it is learned, or all of it is a prompt: then it need not be known where tokens are."""
  if not text.learned:
    return text.prompt_end == len(text.text)
  return text.prompt_end == 0 and text.learned == ((0, len(text.text)),)


def _marks(offsets: np.ndarray, spans: Sequence[text_formats.Span]) -> np.ndarray:
  """1 on tokens that have a character in one of the spans."""
  marks = np.zeros(len(offsets), np.uint8)
  for start, end in spans:
    marks |= (offsets[:, 1] > start) & (offsets[:, 0] < end) & (offsets[:, 1] > offsets[:, 0])
  return marks


def _prompt_length(offsets: np.ndarray, prompt_end: int) -> int:
  """How many tokens there are in front of the first that reaches beyond the prompt."""
  beyond = np.flatnonzero(offsets[:, 1] > prompt_end)
  return int(beyond[0]) if len(beyond) else len(offsets)
