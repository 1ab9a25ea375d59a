"""The fixtures of the tests of Model Garden's registered experiments."""

import gc

import pytest
import tensorflow as tf
import tf_keras


@pytest.fixture(scope='module', autouse=True)
def registered():
  """Registers Model Garden's experiments; a fixture, so that collecting the tests does not take seconds."""
  from official.common import registry_imports

  return registry_imports


@pytest.fixture
def no_random_weights(monkeypatch):
  make_weights_of_zeros(monkeypatch)


def make_weights_of_zeros(monkeypatch):
  """Half of the time of building a large model goes into random numbers that nobody looks at."""
  generator_class = type(tf_keras.initializers.GlorotUniform()._random_generator)
  zeros = lambda generator, shape, *args, dtype=None, **kwargs: tf.zeros(shape, dtype or 'float32')
  for name in ('random_normal', 'random_uniform', 'truncated_normal'):
    monkeypatch.setattr(generator_class, name, zeros)


@pytest.fixture
def release_memory():
  yield
  tf_keras.backend.clear_session()
  gc.collect()
