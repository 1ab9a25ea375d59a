"""The result of word overlap alone on the built-in preferences: the reference of `preference` and `reward_model`.

usage: python benchmarks/preference.py

Of two answers that with more words of the question is taken; words are alike if their first five letters are. A draw
counts half.
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import official_ext as ext

_LETTERS = 5
_OF_EVERY_QUESTION = {'what', 'does'}


def accuracy(split: str) -> float:
  """The share of pairs of a split whose chosen answer is taken."""
  documents = ext.python_docstrings.preference_documents(split)
  return sum(map(_taken, documents)) / len(documents)


def _taken(document: dict[str, str]) -> float:
  question = _words(document['prompt']) - _OF_EVERY_QUESTION
  chosen, rejected = (len(question & _words(document[name])) for name in ('chosen', 'rejected'))
  return 0.5 if chosen == rejected else float(chosen > rejected)


def _words(text: str) -> set[str]:
  return {word[:_LETTERS] for word in re.findall('[a-z]{3,}', text.lower())}


if __name__ == '__main__':
  for name in ('train', 'validation'):
    print(f'{name}: {accuracy(name):.4f} of {len(ext.python_docstrings.preference_documents(name))} pairs')
