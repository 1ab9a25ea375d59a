"""Texts as tokens, computed once and mapped into memory from then on.

The tokens of all texts are in one array, with a mark on learned tokens. They are kept in the cache under a key of all
that they depend on: the records' content, the tokenizer, the settings.

`CachedEncoder` gives the same tokens as the tokenizer in less time. A text is cut where the tokenizer cuts it too,
whatever comes before and after, such as between a word and a blank. Each piece then has the same tokens in every text.
Most pieces of a corpus occur many times, so a look-up replaces pre-tokenization and merges. It knows byte-level BPE
with the patterns of GPT-2, Llama 3 and Qwen 2. No TensorFlow.
"""

import array
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import json
import os
import random
import re
from typing import Any

import numpy as np

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import package_imports
from official_ext.base.files import cache
from official_ext.base.files import paths
from official_ext.data import bad_examples
from official_ext.data import numbered_records
from official_ext.data import record_report
from official_ext.language.text import chat_templates
from official_ext.language.text import text_formats
from official_ext.language.text import tokenizer as tokenizer_lib

# The patterns of pre-tokenizers below which `_PIECE` was shown to cut. In none of them a match extends from a letter or
# a digit to an ASCII character that is neither, or from anything but whitespace to a blank.
_PATTERNS = tuple(
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
  + digits
  + r'| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
  for digits in ('', '{1,3}')
)
# Letters and digits of every version of Unicode: libraries for regular expressions have different versions.
_LETTERS = 'A-Za-z0-9\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0391-\u03a1\u03a3-\u03c9\u0400-\u0481\u048a-\u052f'
_JOINING = '\x80-\U0010ffff'  # May belong to the word in front of them.
_PIECE = re.compile(
  rf' ?[{_LETTERS}]++(?![{_JOINING}])'  # A word: most pieces. The rest finds the same end for everything else.
  rf'|(?!\Z) *+(?:[^ {_LETTERS}]++(?:(?<=\s) ++)?+|[{_LETTERS}]++(?=[{_JOINING}]))*+(?:[{_LETTERS}]++)?+'
)
_SEPARATOR = '\ue000\uf8ff\ue000'  # Private characters, as a token that only the copy of the tokenizer here has.
_PROBE = 'a'
_PIECES_PER_CALL = 4096
_GENERATION = 2**18  # Pieces.
_MAX_CHARACTERS = 64  # Of a piece that is kept.
_MOST_MISSED = 0.25  # Of the pieces of a batch; with more, whole texts take less time.
_BATCHES_WITHOUT = 16
_COMPARED = 64  # Texts of the first batch; then one of each.


def cached_encoder(tokenizer: tokenizer_lib.Tokenizer) -> 'CachedEncoder | None':
  """An encoder for a tokenizer; None of a tokenizer that may cut texts elsewhere."""
  definition = tokenizer.definition()
  if not _is_known(definition):
    return None
  library = package_imports.import_optional('tokenizers', 'tokenizing')
  backend = library.Tokenizer.from_str(json.dumps(definition))
  highest = max(backend.get_vocab(with_added_tokens=True).values())
  backend.no_truncation()
  backend.no_padding()
  backend.add_special_tokens([library.AddedToken(_SEPARATOR, special=True, normalized=False)])
  separator = backend.token_to_id(_SEPARATOR)
  if separator <= highest:  # A vocabulary with holes: the number may be another token's.
    return None
  plain, whole = tokenizer.encode(_PROBE, False), tokenizer.encode(_PROBE, True)
  starts = [start for start in range(len(whole)) if whole[start : start + len(plain)] == plain]
  if len(starts) != 1:
    return None
  added = [token['content'] for token in definition.get('added_tokens', [])]
  ends = [_as_bytes(whole[: starts[0]]), _as_bytes(whole[starts[0] + len(plain) :])]
  return CachedEncoder(tokenizer, backend, separator, (*added, _SEPARATOR), ends)


def _is_known(definition: Mapping[str, Any]) -> bool:
  """Whether the tokens of a piece do not depend on the text around it."""
  model, normalizer, added = definition['model'], definition['normalizer'], definition.get('added_tokens', [])
  if model.get('type') != 'BPE' or model.get('dropout'):
    return False
  if normalizer and normalizer['type'] != 'NFC':  # A blank is never composed with the character in front of it.
    return False
  if normalizer and any(token['normalized'] for token in added):
    return False
  return _is_known_pattern(definition['pre_tokenizer']) and _adds_only(definition['post_processor'])


def _is_known_pattern(pre_tokenizer: Mapping[str, Any] | None) -> bool:
  if not pre_tokenizer:
    return False
  parts = pre_tokenizer['pretokenizers'] if pre_tokenizer['type'] == 'Sequence' else [pre_tokenizer]
  if parts[-1]['type'] != 'ByteLevel' or parts[-1]['add_prefix_space']:
    return False
  if len(parts) == 1:
    return parts[0].get('use_regex', True)
  split = parts[0]
  return (
    len(parts) == 2
    and not parts[1].get('use_regex', True)
    and split['type'] == 'Split'
    and split['pattern'].get('Regex') in _PATTERNS
    and split['behavior'] == 'Isolated'
    and not split['invert']
  )


def _adds_only(post_processor: Mapping[str, Any] | None) -> bool:
  """Whether a post-processor changes nothing but the two ends of a text."""
  if not post_processor:
    return True
  if post_processor['type'] == 'Sequence':
    return all(map(_adds_only, post_processor['processors']))
  return post_processor['type'] in ('ByteLevel', 'TemplateProcessing')


class CachedEncoder:
  """Encodes texts by their pieces. For one thread.

  Pieces are kept in two generations of bounded size: the older one is dropped when the newer one is full.
  """

  def __init__(
    self,
    tokenizer: tokenizer_lib.Tokenizer,
    backend: Any,
    separator: int,
    added: Sequence[str],
    ends: Sequence[bytes],
  ):
    """Takes what `cached_encoder` has found.

    Args:
      tokenizer: encodes whole texts.
      backend: a `tokenizers.Tokenizer` with the same tokens and a separator.
      separator: the number of this one.
      added: contents of tokens; a text in which one may be is encoded whole.
      ends: the tokens that begin and end a text with special tokens, int32.
    """
    self._tokenizer = tokenizer
    self._backend = backend
    self._separator = separator
    # Whether a text is cut between two characters depends on these alone: an added token is cut at the same places in
    # every text, and its first part ends a piece.
    parts = [_PIECE.findall(content) for content in added if content]
    self._first_parts = list(dict.fromkeys(part[0] for part in parts))
    self._added = re.compile('|'.join(re.escape(part[0]) + (r'\Z' if len(part) > 1 else '') for part in parts))
    self._ends = ends
    self._young = _Generation()
    self._old = _Generation()
    self._without = 0  # Batches that are to be encoded whole.
    self._num_batches = 0

  def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[np.ndarray]:
    """The numbers of each text's tokens, int32: see `Tokenizer.encode_batch`, which gives the same.

    Raises:
      UserError: it does not, of a text of this batch that is encoded in both ways.
    """
    if self._without:
      self._without -= 1
      return self._tokenizer.encode_batch(texts, add_special_tokens)
    if len(self._young) > _GENERATION:
      self._old, self._young = self._young, _Generation()
    get, pieces_of = self._young.__getitem__, _PIECE.findall
    # The pieces of one text at a time: the pieces of all texts would not fit into the processor's cache.
    found = [[*map(get, pieces_of(text))] for text in texts]
    missing, self._young.missing = self._young.missing, {}
    if len(missing) > _MOST_MISSED * sum(map(len, found)):
      self._without = _BATCHES_WITHOUT
    flagged = self._fill(missing)
    first, last = self._ends if add_special_tokens else (b'', b'')
    arrays = [np.frombuffer(b''.join([first, *tokens, last]), np.int32) for tokens in found]
    if flagged:
      numbers = [n for n, text in enumerate(texts) if not flagged.isdisjoint(pieces_of(text))]
      for n, ids in zip(numbers, self._tokenizer.encode_batch([texts[n] for n in numbers], add_special_tokens)):
        arrays[n] = ids
    self._compare(texts, arrays, add_special_tokens)
    return arrays

  def _compare(self, texts, arrays, add_special_tokens):
    """Encodes some texts in the usual way too: wrong tokens would be seen nowhere else."""
    of_batch = random.Random(self._num_batches)
    numbers = of_batch.sample(range(len(texts)), min(len(texts), 1 if self._num_batches else _COMPARED))
    self._num_batches += 1
    wanted = self._tokenizer.encode_batch([texts[n] for n in numbers], add_special_tokens)
    for n, ids in zip(numbers, wanted):
      if not np.array_equal(arrays[n], ids):
        raise errors.UserError(
          f'tokenizer: the cache of words gives other tokens than the tokenizer for the text {texts[n][:40]!r}; '
          f'report it, and set the environment variable RAYON_NUM_THREADS=8, with which there is no cache'
        )

  def _fill(self, missing: Mapping[str, bytearray]) -> set[str]:
    """Fills the tokens of pieces in, int32, and keeps them.

    Returns:
      the pieces in which an added token may be; they have no tokens.
    """
    young, old = self._young, self._old
    new = []
    for piece, tokens in missing.items():
      if piece in old:
        tokens += old[piece]
        young[piece] = old[piece]
      else:
        new.append(piece)
    flagged: set[str] = set()
    text = '\n'.join(new)
    if any(part in text for part in self._first_parts):
      flagged.update(piece for piece in new if self._added.search(piece))
      new = [piece for piece in new if piece not in flagged]
    groups = [new[start : start + _PIECES_PER_CALL] for start in range(0, len(new), _PIECES_PER_CALL)]
    joined = [_SEPARATOR.join(group) for group in groups]
    for group, encoding in zip(groups, self._backend.encode_batch_fast(joined, add_special_tokens=False)):
      ids = np.array(encoding.ids, np.int32)
      ends = 4 * np.flatnonzero(ids == self._separator)
      content = ids.tobytes()
      for piece, start, end in zip(group, [0, *(ends + 4).tolist()], [*ends.tolist(), len(content)]):
        missing[piece].extend(content[start:end])
        if len(piece) <= _MAX_CHARACTERS:
          young[piece] = content[start:end]
    return flagged


class _Generation(dict[str, bytes]):
  """Pieces and their tokens, int32. The tokens of a piece that is missing are an array to be filled in later."""

  def __init__(self):
    super().__init__()
    self.missing: dict[str, bytearray] = {}

  def __missing__(self, piece: str) -> bytearray:
    return self.missing.setdefault(piece, bytearray())


def _as_bytes(ids: Sequence[int]) -> bytes:
  return np.array(ids, np.int32).tobytes()


STORE_VERSION = 2  # To be raised when other tokens come from the same texts, or other records are refused.
_RECORDS_PER_BLOCK = 512

EncodeBatch = Callable[[Sequence[str], bool], list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Limits:
  """How long texts may be, in tokens; 0: no limit.

  Attributes:
    prompt: of a prompt, whose end is kept, and the token that begins all texts.
    content: of the text after it, or of a text without prompt; its beginning is kept.
    text: of both.
  """

  prompt: int
  content: int
  text: int


_PART = 2**22  # Tokens that are summed at once.


@dataclasses.dataclass(frozen=True)
class TokenStore:
  """Texts as tokens.

  Attributes:
    tokens: int32 `[tokens]`, of all texts.
    learned: uint8 `[tokens]`, 1 on learned ones.
    bounds: int64 `[texts + 1]`, where each text begins in them.
    records: int64 `[examples]`, the record that each example is from. An example has one text, or two that belong
      together.
    report: counts of the records.
    desirable: uint8 `[texts]`, 1 on answers to give, 0 on rejected ones; None of texts without labels.
    date: the day on which a chat template wrote the present date into them, such as 2026-11-29; '' if none did.
  """

  tokens: np.ndarray
  learned: np.ndarray
  bounds: np.ndarray
  records: np.ndarray
  report: record_report.RecordReport
  desirable: np.ndarray | None = None
  date: str = ''

  @property
  def lengths(self) -> np.ndarray:
    """In tokens, int64 `[texts]`."""
    return np.diff(self.bounds)

  def example_digests(self) -> np.ndarray:
    """A number for each example, equal for examples of the same tokens: uint64 `[examples]`."""
    factors = np.random.default_rng(0).integers(1, 2**63, int(self.lengths.max(initial=0)) + 1, np.uint64) * 2 + 1
    found = np.zeros(len(self.lengths), np.uint64)
    first = 0
    while first < len(found):  # In parts, which bounds the memory that this takes. Sums are modulo 2**64.
      last = max(first + 1, int(np.searchsorted(self.bounds, self.bounds[first] + _PART, side='right')) - 1)
      start, lengths = int(self.bounds[first]), self.lengths[first:last]
      ends = np.cumsum(lengths)
      position = np.arange(int(ends[-1])) - np.repeat(ends - lengths, lengths)
      tokens = np.asarray(self.tokens[start : start + int(ends[-1])]).astype(np.uint64) + np.uint64(1)
      sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(tokens * factors[position])])
      found[first:last] = sums[ends] - sums[ends - lengths] + factors[lengths] * lengths.astype(np.uint64)
      first = last
    each = max(1, len(found) // max(1, len(self.records)))  # Texts of an example.
    weights = factors[0] ** np.arange(1, each + 1, dtype=np.uint64)
    return (found.reshape(-1, each) * weights).sum(axis=1, dtype=np.uint64)


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
    tokenizer: makes tokens of these.
    settings: JSON values that identify the result of `text_format`.
    limits: of lengths.
    leaves_out: whether bad records are left out.
    folder: of the cache; '' for its usual place.

  Raises:
    BadExampleError: a record is bad, and none is left out.
    StorageError: there is no room for the tokens.
  """
  key = cache.key_of(
    [
      STORE_VERSION,
      records.digest,
      tokenizer.digest,
      text_format.name,
      settings,
      dataclasses.asdict(limits),
      leaves_out,
    ]
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
  """Writes the tokens of records into an empty folder, and returns them: `open_store` without the cache.

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
  report = record_report.RecordReport(**json_values.load_file(os.path.join(place, 'report.json'), max_bytes=None))
  arrays = {name: _mapped(os.path.join(place, name), dtype) for name, dtype in _ARRAYS.items()}
  desirable = os.path.join(place, _DESIRABLE)
  return TokenStore(
    report=report,
    desirable=_mapped(desirable, np.uint8) if os.path.exists(desirable) else None,
    date=''.join(paths.lines(os.path.join(place, _DATE))),
    **arrays,
  )


_ARRAYS: dict[str, object] = {'tokens': np.int32, 'learned': np.uint8, 'bounds': np.int64, 'records': np.int64}


_DESIRABLE, _DATE = 'desirable', 'date'


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
    if self._format.writes_date:
      arrays[_DATE] = chat_templates.present_date().encode()
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
      message = str(error) if isinstance(error, ValueError) else bad_examples.one_line(error)
      if not isinstance(error, bad_examples.BadExampleError):
        message = f'{self._records.place(number)}: {message}'
      if not self._leaves_out:
        raise bad_examples.BadExampleError(message) from error
      self._report.bad_records += 1
      if len(self._report.named) < record_report.MAX_NAMED:
        self._report.named.append(message)
      return None

  def _encoded(self, texts: Sequence[text_formats.Text]) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """For each text its tokens, the marks on learned ones, and how many of them are the prompt's."""
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
