"""Questions about Python's library: the same in every process, and no answer on both sides."""

import subprocess
import sys

import pytest

from official_ext.language.text import python_docstrings


def test_the_splits_share_no_function_and_no_answer():
  splits = {name: python_docstrings.documents(name) for name in ('train', 'validation')}
  assert len(splits['train']) > 1000 and len(splits['validation']) > 100
  for column in ('prompt', 'completion'):
    values = {name: [document[column] for document in documents] for name, documents in splits.items()}
    assert not set(values['train']) & set(values['validation'])
    assert len(set(values['train'])) == len(values['train'])
  found = {document['prompt']: document['completion'] for documents in splits.values() for document in documents}
  assert found['What does math.modf do?'] == 'Return the fractional and integer parts of x.'


def test_the_worse_answer_is_that_of_another_function():
  answers = {document['completion'] for document in python_docstrings.documents('train')}
  pairs = python_docstrings.preference_documents('train')
  assert len(pairs) == len(answers)
  assert all(pair['chosen'] != pair['rejected'] and pair['rejected'] in answers for pair in pairs)


@pytest.mark.tensorflow
def test_what_else_is_imported_changes_nothing():
  """TensorFlow, Keras and absl add methods to the library's classes."""
  code = 'from official_ext.language.text import python_docstrings as p; print(p.records("train").digest)'
  alone = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout.strip()
  import tensorflow  # noqa: F401

  assert alone == python_docstrings.records('train').digest


def test_functions_that_libraries_replace_in_a_run_are_left_out(monkeypatch):
  expected = python_docstrings._answers()
  for name in ('exit', 'excepthook', 'displayhook'):
    monkeypatch.setattr(sys, name, lambda *_: None)
  assert python_docstrings._answers.__wrapped__() == expected and len(expected) > 1000
