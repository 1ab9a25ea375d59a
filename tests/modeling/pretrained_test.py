"""What a Hugging Face folder describes is what runs here, and what is saved here is what transformers runs."""

import json

import numpy as np
import pytest
import tensorflow as tf

from official_ext.modeling import pretrained

pytest.importorskip('transformers', reason="needs the test extra: pip install 'official-ext[test]'")
from tests.modeling import checkpoints

IDS = np.random.default_rng(0).integers(3, 67, (2, 21)).astype(np.int32)
SHORT = IDS[:, :9]


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """A function: name of a case -> (folder, transformers' model), made once."""
  found = {}

  def make(name):
    if name not in found:
      folder = tmp_path_factory.mktemp(name)
      model = checkpoints.random_model(checkpoints.config(name))
      model.save_pretrained(folder)
      found[name] = str(folder), model
    return found[name]

  return make


def difference(first, second):
  return float(np.max(np.abs(np.asarray(first) - np.asarray(second))))


def edited(folder, target, remove=(), **fields):
  """A copy of a folder with another configuration."""
  target.mkdir()
  for name in ('model.safetensors', 'config.json'):
    (target / name).write_bytes((pytest.importorskip('pathlib').Path(folder) / name).read_bytes())
  config = json.loads((target / 'config.json').read_text())
  config.update(fields)
  for name in remove:
    config.pop(name, None)
  (target / 'config.json').write_text(json.dumps(config))
  return str(target)


@pytest.mark.parametrize('name', checkpoints.CASES)
def test_logits_are_those_of_transformers(made, tmp_path, name):
  folder, theirs = made(name)
  model = pretrained.load(folder)
  logits = model(tf.constant(IDS))
  assert logits.dtype == tf.float32 and logits.shape == (2, 21, 67)
  expected = checkpoints.logits(theirs, IDS)
  assert np.std(expected) > 0.3  # Logits of nothing would agree with anything.
  assert difference(logits, expected) < 1e-5
  assert difference(tf.function(model, jit_compile=True)(tf.constant(IDS)), expected) < 1e-5
  # Up to the original context dynamic and longrope have other frequencies.
  fresh = checkpoints.reloaded(folder) if 'dynamic' in name else theirs
  assert difference(model(tf.constant(SHORT)), checkpoints.logits(fresh, SHORT)) < 1e-5

  pretrained.save(model, str(tmp_path / 'saved'))
  again = checkpoints.reloaded(str(tmp_path / 'saved'))
  assert difference(checkpoints.logits(again, IDS), expected) == 0.0
