"""The examples in the docstrings of public names run, and print what they show."""

import dataclasses
import doctest
import inspect
import tempfile

import numpy as np
from official.core import exp_factory
from official.core import task_factory
import pytest
import tensorflow as tf
import tf_keras

import experiments.digits_mlp  # noqa: F401  Registered once, before the tables are copied.
import official_ext as ext
from official_ext.data import collators
from official_ext.language.fine_tuning import rewards
from official_ext.training.config import short_names
from official_ext.training.writers import registry

NAMES = {name: getattr(ext, name) for name in ext.FACE}
EXAMPLES = {
  name: doctest.DocTestParser().get_examples(inspect.cleandoc(found.__doc__ or '')) for name, found in NAMES.items()
}
GLOBALS = {'dataclasses': dataclasses, 'ext': ext, 'np': np, 'tf': tf, 'tf_keras': tf_keras}


@pytest.fixture(autouse=True)
def _temporary_folders(monkeypatch, tmp_path):
  """The folders that an example makes are removed."""
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
  """What an example registers is forgotten."""
  tables = [(exp_factory, '_REGISTERED_CONFIGS'), (task_factory, '_REGISTERED_TASK_CLS'), (short_names, '_registered')]
  for each in (registry.WRITERS, collators._REGISTRY, rewards.REWARDS):
    tables += [(each, '_values'), (each, '_functions')]
  for owner, name in tables:
    monkeypatch.setattr(owner, name, dict(getattr(owner, name)))


@pytest.mark.parametrize('name', EXAMPLES)
def test_it_prints_what_it_shows(name):
  if name == 'HuggingFaceSource':
    pytest.importorskip('datasets', reason="needs: pip install 'official-ext[huggingface]'")
  text = inspect.cleandoc(NAMES[name].__doc__)
  test = doctest.DocTestParser().get_doctest(text, dict(GLOBALS), name, None, 0)
  output = []
  runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS, verbose=False)
  runner.run(test, out=output.append)
  assert runner.failures == 0, ''.join(output)


def test_every_name_has_one():
  assert [name for name in sorted(EXAMPLES) if not EXAMPLES[name]] == []
