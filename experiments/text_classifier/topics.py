"""Paragraphs of Python's language reference, and which part of it each is from."""

import functools
import hashlib
import re

import official_ext as ext

_VALIDATION_PART = 4  # One paragraph in 4.
_LEAST_LETTERS = 60

# The class of paragraphs -> the topics of pydoc_data.topics that they are from.
CLASSES = {
  'classes': 'specialnames customization attribute-access callable-types context-managers numeric-types',
  'containers': 'typesseq typesmapping typesseq-mutable sequence-types typesmethods dict lists slicings subscriptions',
  'debugger': 'debugger',
  'expressions': 'atom-identifiers atom-literals attribute-references await binary bitwise booleans calls comparisons '
  'conversions exprlists lambda operator-summary power shifting unary yield in truth',
  'formatting': 'formatstrings',
  'statements': 'assert assignment augassign break continue del global import nonlocal pass raise return compound for '
  'if try with while function class async else',
  'strings': 'string-methods strings',
  'types': 'types objects bltin-code-objects',
}


@functools.cache
def paragraphs(split: str) -> tuple[dict[str, str], ...]:
  """The paragraphs of a split, in the order of their texts: `{'text': ..., 'label': ...}` each.

  A paragraph that topics of several classes share is in neither split, duplicates are removed.

  Args:
    split: 'train' or 'validation'. Its text alone says which of them a paragraph is in: three in four are to learn.
  """
  class_of_topic = {topic: label for label, topics in CLASSES.items() for topic in topics.split()}
  classes_of: dict[str, set[str]] = {}
  for document in [*ext.python_topics.documents('train'), *ext.python_topics.documents('validation')]:
    if document['topic'] not in class_of_topic:
      continue
    for paragraph in re.split(r'\n\s*\n', document['text']):
      words = ' '.join(paragraph.split())
      if len(words) >= _LEAST_LETTERS:
        classes_of.setdefault(words, set()).add(class_of_topic[document['topic']])
  return tuple(
    {'text': text, 'label': min(labels)}
    for text, labels in sorted(classes_of.items())
    if len(labels) == 1 and (_number(text) % _VALIDATION_PART == 0) == (split == 'validation')
  )


@functools.cache
def records(split: str) -> ext.TextRecords:
  """The same as records for `ext.text_source`."""
  return ext.TextRecords(paragraphs(split), f'paragraph of pydoc_data.topics ({split})')


def _number(text: str) -> int:
  return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], 'big')
