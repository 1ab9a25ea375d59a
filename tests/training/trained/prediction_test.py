"""`model.predict` of a loaded model equals a forward pass, for each kind of data."""

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import tf_keras

import official_ext as ext
from official_ext.training.trained import prediction

NUM_EXAMPLES = 37  # Neither Keras' batch size nor a multiple of those below.
RNG = np.random.default_rng(0)
FEATURES = {
  'a': RNG.normal(size=[NUM_EXAMPLES, 2]).astype(np.float32),
  'b': RNG.normal(size=[NUM_EXAMPLES, 1]).astype(np.float32),
}
LABELS = np.arange(NUM_EXAMPLES, dtype=np.float32)
WITH_LABELS = {'features': FEATURES, 'labels': LABELS}


def batches(value):
  return tf.data.Dataset.from_tensor_slices(value).batch(10)


class Made(ext.Source):
  """A custom source, which makes its examples."""

  def __len__(self):
    return NUM_EXAMPLES

  def fetch(self, indices):
    return [{'features': {name: value[index] for name, value in FEATURES.items()}} for index in indices]


@pytest.fixture(scope='module')
def models():
  """A model that is extended, and the same as a function of arrays."""
  tf_keras.utils.set_random_seed(0)
  inputs = {'a': tf_keras.Input((2,), name='a'), 'b': tf_keras.Input((1,), name='b')}
  hidden = tf_keras.layers.Dense(4, 'tanh')(tf_keras.layers.Concatenate()([inputs['a'], inputs['b']]))
  model = tf_keras.Model(inputs, tf_keras.layers.Dense(1)(tf_keras.layers.Dropout(0.5)(hidden)))
  prediction.extend(model)
  expected = model({name: tf.constant(value) for name, value in FEATURES.items()}, training=False).numpy()
  return model, expected


DATA = {
  'arrays by name': lambda: FEATURES,
  'arrays in order': lambda: [FEATURES['a'], FEATURES['b']],
  'source': lambda: ext.ArraySource(WITH_LABELS),
  'source without labels': Made,
  'batches of the task': lambda: batches(WITH_LABELS),
  'batches without labels': lambda: batches({'features': FEATURES}),
  'batches by name': lambda: batches(FEATURES),
  'batches of pairs': lambda: batches((FEATURES, LABELS)),
  'batches with weights': lambda: batches((FEATURES, LABELS, LABELS)),
}


@pytest.mark.parametrize('kind', DATA)
def test_predictions_equal_a_forward_pass(models, kind):
  model, expected = models
  np.testing.assert_allclose(model.predict(DATA[kind](), verbose=0), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('size', [1, 8, 100])
def test_the_batch_size_of_a_source(models, size):
  model, expected = models
  sizes = []
  callback = tf_keras.callbacks.LambdaCallback(
    on_predict_batch_end=lambda batch, logs: sizes.append(len(logs['outputs']))
  )
  found = model.predict(ext.ArraySource(WITH_LABELS), batch_size=size, verbose=0, callbacks=[callback])
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
  assert sizes[0] == min(size, NUM_EXAMPLES) and sum(sizes) == NUM_EXAMPLES


def test_a_table_and_one_array():
  model = tf_keras.Sequential([tf_keras.Input((2,)), tf_keras.layers.Dense(1)])
  prediction.extend(model)
  expected = model(FEATURES['a'], training=False).numpy()
  for data in (FEATURES['a'], pd.DataFrame(FEATURES['a']), ext.ArraySource({'features': FEATURES['a']})):
    np.testing.assert_allclose(model.predict(data, verbose=0), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('kind', ['arrays by name', 'source'])
def test_arguments_have_the_order_of_keras(models, kind, capsys):
  model, expected = models
  capsys.readouterr()
  np.testing.assert_allclose(model.predict(DATA[kind](), 8, 0), expected, rtol=1e-5, atol=1e-6)
  assert not capsys.readouterr().out  # No progress bar.
  assert len(model.predict(DATA[kind](), 8, 0, 2)) == 16  # Two steps.


def test_keras_gets_the_arguments_of_batches():
  calls = []

  class Recording(tf_keras.Sequential):
    def predict(self, x, *args, **options):
      calls.append((args, options))

  model = Recording([tf_keras.Input((2,)), tf_keras.layers.Dense(1)])
  prediction.extend(model)
  model.predict(batches({'features': FEATURES['a']}), 8, 0)
  model.predict(batches(FEATURES['a']), batch_size=8, verbose=0)
  assert calls == [((8, 0), {}), ((), {'batch_size': 8, 'verbose': 0})]


def test_an_input_named_features_beside_others():
  inputs = {'features': tf_keras.Input((2,), name='features'), 'b': tf_keras.Input((1,), name='b')}
  model = tf_keras.Model(inputs, tf_keras.layers.Concatenate()([inputs['features'], inputs['b']]))
  prediction.extend(model)
  features = {'features': FEATURES['a'], 'b': FEATURES['b']}
  expected = np.concatenate([FEATURES['a'], FEATURES['b']], axis=1)
  for data in (batches(features), batches({'features': features, 'labels': LABELS}), ext.ArraySource(features)):
    np.testing.assert_array_equal(model.predict(data, verbose=0), expected)


def test_one_input_named_features():
  inputs = tf_keras.Input((2,), name='features')
  model = tf_keras.Model(inputs, tf_keras.layers.Activation('linear')(inputs))
  prediction.extend(model)
  data = batches({'features': FEATURES['a'], 'labels': LABELS})
  np.testing.assert_array_equal(model.predict(data, verbose=0), FEATURES['a'])
