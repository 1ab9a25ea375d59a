"""English text that comes with Python: the topics of its language reference, which `help()` shows.

About 460 kB in 79 texts. They differ from one version of Python to the next, and with them the trained models: the
digest of the records, which is part of the identity of the data, distinguishes them.

Example:

  >>> documents = ext.python_topics.documents('validation')
  >>> sorted(documents[0])
  ['text', 'topic']
  >>> len(documents) < len(ext.python_topics.documents('train'))
  True
"""

import functools
import hashlib
from pydoc_data import topics

from official_ext.data import numbered_records
from official_ext.language.text import tokenizer as tokenizer_lib
from official_ext.language.text import tokenizer_training

_VALIDATION_PART = 8  # One topic in 8.


def documents(split: str) -> list[dict[str, str]]:
  """The topics of a split, in the order of their names: `{'topic': ..., 'text': ...}` each.

  Args:
    split: 'train' or 'validation'. A topic is in the one or the other by its name alone.
  """
  assert split in ('train', 'validation'), split
  return [
    {'topic': name, 'text': topics.topics[name]}
    for name in sorted(topics.topics)
    if (_number(name) % _VALIDATION_PART == 0) == (split == 'validation')
  ]


@functools.cache
def records(split: str) -> numbered_records.Records:
  """`documents` as records, for `ext.text_source`."""
  return numbered_records.ListRecords(documents(split), f'topic of pydoc_data.topics ({split})')


def tokenizer(vocab_size: int) -> tokenizer_lib.Tokenizer:
  """Byte-level BPE of `vocab_size` tokens, trained on the topics of 'train' at its first use."""
  return tokenizer_training.cached([document['text'] for document in documents('train')], vocab_size)


def _number(name: str) -> int:
  return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], 'big')
