"""Tokens of texts from a cache of their pieces: the same tokens as the tokenizer's, in less time.

A text is cut where the tokenizer cuts it too, whatever comes before and after: behind a word in front of a blank, for
example. Each piece then has the same tokens in every text. Most pieces of a corpus occur many times, so a look-up in a
dictionary replaces pre-tokenization and merges. No TensorFlow.

Known are byte-level BPE with the patterns of GPT-2, Llama 3 and Qwen 2. For other tokenizers there is no encoder.
"""

from collections.abc import Mapping, Sequence
import json
import random
import re
from typing import Any

import numpy as np

from official_ext.base import errors
from official_ext.data import extras
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


def encoder(tokenizer: tokenizer_lib.Tokenizer) -> 'Encoder | None':
  """An encoder for a tokenizer; None of a tokenizer that may cut texts elsewhere."""
  definition = tokenizer.definition()
  if not _is_known(definition):
    return None
  library = extras.load('tokenizers', 'tokenizing')
  backend = library.Tokenizer.from_str(json.dumps(definition))
  highest = max(backend.get_vocab(with_added_tokens=True).values())
  backend.no_truncation()
  backend.no_padding()
  backend.add_special_tokens([library.AddedToken(_SEPARATOR, special=True, normalized=False)])
  separator = backend.token_to_id(_SEPARATOR)
  if separator <= highest:  # A vocabulary with holes: the number may be that of another token.
    return None
  plain, whole = tokenizer.encode(_PROBE, False), tokenizer.encode(_PROBE, True)
  starts = [start for start in range(len(whole)) if whole[start : start + len(plain)] == plain]
  if len(starts) != 1:
    return None
  added = [token['content'] for token in definition.get('added_tokens', [])]
  ends = [_as_bytes(whole[: starts[0]]), _as_bytes(whole[starts[0] + len(plain) :])]
  return Encoder(tokenizer, backend, separator, (*added, _SEPARATOR), ends)


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


class Encoder:
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
    """Takes what `encoder` has found.

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
    # The pieces of one text at a time: those of all texts would not fit into the processor's cache.
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
