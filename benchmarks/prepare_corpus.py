"""A corpus of generated words for `benchmarks.prepare`, of any size, the same at each call. Without TensorFlow.

Words are drawn from two million by Zipf's law with the two exponents of large corpora (Ferrer i Cancho and Sole, "Two
regimes in the frequency of words", 2001), so that new ones appear until the end:
95 % in Latin letters, some of these with accents, the rest in Cyrillic, Greek, Arabic, Chinese and emoji. Numbers are
random. Sentences have punctuation, quotes and parentheses, documents have paragraphs and a log-normal length.
"""

from collections.abc import Iterator
import json
import pathlib

import numpy as np

_WORDS = 2_000_000
# The exponent of the law up to a rank, and behind it, where a larger corpus finds its new words.
_EXPONENT, _SHIFT, _RANK, _TAIL_EXPONENT = 1.0, 2.7, 8000, 1.6
_DRAWN = 2**20  # Words that are drawn at once.
_SYLLABLES = (
  'a an ar ba be bi bo ca ce co con da de di do e en er es fa fi fo ga ge go ha he ho i in ing ion is it ja jo ka ke '
  'ki la le li lo ly ma me mi mo na ne ni no o of on or pa pe po pre qua ra re ri ro sa se sh so st ta te th ti tion '
  'to tra u un ur va ve vi wa we wi y ya ze zo'
).split()
_ALPHABETS = (
  [chr(code) for code in range(0x430, 0x450)],
  [chr(code) for code in range(0x3B1, 0x3CA)],
  [chr(code) for code in range(0x627, 0x64B)],
  [chr(code) for code in range(0x4E00, 0x5600)],
  [chr(code) for code in range(0x1F600, 0x1F640)],
)
_ACCENTS = str.maketrans({'a': 'ä', 'e': 'é', 'o': 'ö', 'u': 'ü', 'i': 'î'})
# The part behind a word, and how often it is there: sentences of 17 words, paragraphs of 100.
_ENDS = {
  ' ': 0.82,
  ', ': 0.07,
  '. ': 0.055,
  '.\n\n': 0.01,
  '\n': 0.005,
  ' (': 0.007,
  ') ': 0.007,
  '; ': 0.008,
  ' "': 0.009,
  '" ': 0.009,
}


def _vocabulary(draws: np.random.Generator) -> np.ndarray:
  """Distinct words, objects `[_WORDS]`, the frequent ones first and shorter."""
  found: dict[str, None] = {}
  while len(found) < _WORDS:
    length = 1 + min(5, int(np.log(1 + len(found)) / np.log(60)))
    kinds, cased, counts = draws.random(4096), draws.random(4096), draws.integers(1, length + 1, 4096)
    parts = draws.integers(0, 2**31, [4096, 8])
    for kind, case, count, numbers in zip(kinds.tolist(), cased.tolist(), counts.tolist(), parts.tolist()):
      syllables = _SYLLABLES if kind < 0.95 else _ALPHABETS[numbers[7] % len(_ALPHABETS)]
      word = ''.join(syllables[number % len(syllables)] for number in numbers[: count + (kind > 0.95)])
      word = word.translate(_ACCENTS) if kind < 0.04 else word
      found.setdefault(word.capitalize() if case < 0.12 else word)
  return np.array(list(found)[:_WORDS], object)


def texts(megabytes: float, seed: int = 0) -> Iterator[str]:
  """Documents, of 3 kB in the median, until they have so many megabytes of UTF-8."""
  draws = np.random.default_rng(seed)
  words = _vocabulary(draws)
  ranks = np.arange(_WORDS) + _SHIFT
  shares = np.cumsum(ranks**-_EXPONENT * np.maximum(1, ranks / _RANK) ** (_EXPONENT - _TAIL_EXPONENT))
  ends, end_shares = np.array(list(_ENDS), object), np.cumsum(list(_ENDS.values()))
  left = megabytes * 1e6
  while True:
    drawn = words[np.searchsorted(shares, draws.random(_DRAWN) * shares[-1])]
    is_number = draws.random(_DRAWN) < 0.015
    drawn[is_number] = [str(number) for number in (10 ** (6 * draws.random(int(is_number.sum())))).astype(int)]
    behind = ends[np.searchsorted(end_shares, draws.random(_DRAWN) * end_shares[-1])]
    start = 0
    while start < _DRAWN - 10_000:
      end = start + int(min(10_000, max(10, draws.lognormal(6.2, 0.9))))
      text = ''.join((drawn[start:end] + behind[start:end]).tolist())
      yield text
      start, left = end, left - len(text.encode())
      if left <= 0:
        return


def write(path: pathlib.Path, megabytes: float) -> None:
  """Writes the documents as JSON lines, `{"text": ...}` each."""
  with open(path, 'w', encoding='utf-8') as f:
    for text in texts(megabytes):
      f.write(json.dumps({'text': text}, ensure_ascii=False) + '\n')
