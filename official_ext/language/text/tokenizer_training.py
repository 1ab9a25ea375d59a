"""Byte-level BPE, trained on a text: a tokenizer for experiments that bring none.

Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", 2016, over bytes as in GPT-2: every text
can be written, and is restored unchanged.
"""

from collections.abc import Sequence
import hashlib
import os

from official_ext.base import errors
from official_ext.base import package_imports
from official_ext.base.files import cache
from official_ext.language.text import tokenizer as tokenizer_lib

VERSION = 1  # To be raised when another tokenizer comes from the same texts.
END_OF_TEXT = '<|endoftext|>'
_NUM_BYTES = 256


def train(
  texts: Sequence[str],
  vocab_size: int,
  special_tokens: Sequence[str] = (),
  chat_template: str = '',
  min_frequency: int = 2,
  pad_token: str = END_OF_TEXT,
) -> tokenizer_lib.Tokenizer:
  """Trains a tokenizer. The same texts and settings give the same one, on any number of cores.

  Args:
    texts: to learn from.
    vocab_size: tokens in all, with the 256 bytes and the special tokens; fewer where the texts do not hold more.
    special_tokens: besides `<|endoftext|>`, which is the first token and ends sequences.
    chat_template: in Jinja; '' for none.
    min_frequency: the minimal count of a pair of tokens that becomes one.
    pad_token: for padding, a special token too.

  Raises:
    UserError: `vocab_size` has no room for the bytes, or `tokenizers` is not installed.
  """
  library = package_imports.import_optional('tokenizers', 'training a tokenizer')
  special = list(dict.fromkeys([END_OF_TEXT, *special_tokens, pad_token]))
  least = _NUM_BYTES + len(special)
  if vocab_size < least:
    raise errors.UserError(
      f'vocab_size: expected at least {least}, for {_NUM_BYTES} bytes and {len(special)} special tokens, got '
      f'{vocab_size}'
    )
  backend = library.Tokenizer(library.models.BPE())
  backend.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
  backend.decoder = library.decoders.ByteLevel()
  trainer = library.trainers.BpeTrainer(
    vocab_size=vocab_size,
    min_frequency=min_frequency,
    special_tokens=special,
    initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
    show_progress=False,
  )
  backend.train_from_iterator(texts, trainer)
  named = {'bos_token': END_OF_TEXT, 'eos_token': END_OF_TEXT, 'pad_token': pad_token}
  return tokenizer_lib.Tokenizer.from_backend(backend, named, chat_template)


def cached(
  texts: Sequence[str],
  vocab_size: int,
  special_tokens: Sequence[str] = (),
  chat_template: str = '',
  min_frequency: int = 2,
  folder: str = '',
  pad_token: str = END_OF_TEXT,
) -> tokenizer_lib.Tokenizer:
  """The tokenizer of `train`, which is trained at its first use and kept in the cache.

  Args:
    texts: see `train`.
    vocab_size: see `train`.
    special_tokens: see `train`.
    chat_template: see `train`.
    min_frequency: see `train`.
    folder: of the cache; '' for its usual place.
    pad_token: see `train`.

  Example:

    >>> tokenizer = ext.train_tokenizer(['the cat sat on the mat'] * 20, vocab_size=270, special_tokens=['<|user|>'])
    >>> len(tokenizer), tokenizer.special_tokens['eos_token']
    (270, '<|endoftext|>')
    >>> tokenizer.decode(tokenizer.encode('<|user|>the cat'), skip_special_tokens=True)
    'the cat'
  """
  library = package_imports.import_optional('tokenizers', 'training a tokenizer')
  total = hashlib.sha256()
  for text in texts:
    total.update(f'{len(text)} '.encode() + text.encode())
  settings = [vocab_size, list(special_tokens), chat_template, min_frequency, pad_token]
  key = cache.key_of([VERSION, library.__version__, total.hexdigest(), settings])
  make = lambda place: train(texts, vocab_size, special_tokens, chat_template, min_frequency, pad_token).save(place)
  return tokenizer_lib.Tokenizer.load(os.path.abspath(cache.entry('tokenizers', key, make, folder)))
