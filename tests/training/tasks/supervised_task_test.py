"""SupervisedTask: losses, weights and metrics by closed forms; data as arrays, dictionaries and sources."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import official_ext as ext
from official_ext.training.tasks import supervised_task

X = np.arange(6, dtype=np.float32)[:, np.newaxis]
Y = np.array([0, 1, 0, 3, 0, 5], np.float32)
ERRORS = X[:, 0] - Y


class Identity(ext.SupervisedTask):
  """A model that returns its feature."""

  given = (X, Y)

  def examples(self, is_training):
    return self.given

  def build_model(self):
    return tf_keras.Sequential([tf_keras.Input((1,)), tf_keras.layers.Dense(1, kernel_initializer='ones')])

  def build_loss(self):
    return tf_keras.losses.MeanSquaredError()

  def build_metrics(self, training=True):
    return [tf_keras.metrics.MeanAbsoluteError('mae'), tf_keras.metrics.RootMeanSquaredError('rmse')]


def make(cls=Identity, **members):
  return type('Task', (cls,), members)(ext.SupervisedConfig())


def evaluate(task, batch_size=4):
  """(the mean loss over the examples, the metrics)."""
  model, metrics = task.build_model(), task.build_metrics(training=False)
  total = count = 0.0
  for batch in task.build_inputs(task.config.validation_data.replace(global_batch_size=batch_size)):
    logs = task.validation_step(batch, model, metrics)
    size = len(tf.nest.flatten(batch)[0])
    total, count = total + float(logs[task.loss]) * size, count + size
  return total / count, {metric.name: float(metric.result()) for metric in metrics}


@pytest.mark.parametrize('labels', [Y, Y[:, np.newaxis]], ids=['[b]', '[b, 1]'])
@pytest.mark.parametrize('loss', [tf_keras.losses.MeanSquaredError(), tf_keras.losses.mean_squared_error])
def test_labels_of_both_ranks_have_the_mean_over_the_examples(labels, loss):
  found, metrics = evaluate(make(given=(X, labels), build_loss=lambda self: loss))
  assert found == pytest.approx(np.mean(ERRORS**2))
  assert metrics == pytest.approx({'mae': np.mean(np.abs(ERRORS)), 'rmse': np.sqrt(np.mean(ERRORS**2))})


def test_weights_count_in_the_loss_and_in_metrics():
  weights = np.array([1, 0, 2, 1, 1, 0], np.float32)
  found, metrics = evaluate(make(given=(X, Y, weights)))
  assert found == pytest.approx(np.sum(weights * ERRORS**2) / 6)  # As in Keras: over the number of examples.
  assert metrics['mae'] == pytest.approx(np.sum(weights * np.abs(ERRORS)) / weights.sum())


def test_classes_and_several_labels_of_an_example():
  logits = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]], np.float32))
  through = lambda self: tf_keras.Sequential([tf_keras.layers.Activation('linear')])
  loss = lambda self: tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  metrics = lambda self, training=True: [tf_keras.metrics.SparseCategoricalAccuracy('accuracy')]
  members = dict(build_model=through, build_loss=loss, build_metrics=metrics)
  found, values = evaluate(make(given=(logits, np.array([0, 0])), **members))
  assert found == pytest.approx(-np.mean(np.log([0.5, 0.1]))) and values == {'accuracy': 0.5}
  tags = np.array([[0, 1], [1, 2]])  # Two words in each example.
  found, values = evaluate(make(given=(np.stack([logits, logits[::-1]]), tags), **members))
  assert found == pytest.approx(-np.mean(np.log([0.5, 0.8, 0.8, 0.25]))) and values == {'accuracy': 0.75}


def test_features_by_name_from_a_source_and_without_an_input_layer():
  class Sum(Identity):
    def build_model(self):
      a, b = tf_keras.Input((1,), name='a'), tf_keras.Input((1,), name='b')
      return tf_keras.Model({'a': a, 'b': b}, a + b)

  features = {'a': X - 1, 'b': np.ones_like(X)}
  expected = pytest.approx(np.mean(ERRORS**2))
  assert evaluate(make(Sum, given=(features, Y)))[0] == expected
  assert evaluate(make(Sum, given=ext.ArraySource({'features': features, 'labels': Y})))[0] == expected

  class Unbuilt(Identity):
    def build_model(self):
      return tf_keras.Sequential([tf_keras.layers.Dense(1, kernel_initializer='ones')])

  assert [tuple(weight.shape) for weight in make(Unbuilt).build_model().weights] == [(1, 1), (1,)]
  assert evaluate(make(Unbuilt))[0] == expected


def test_other_logs_go_to_the_metrics_of_their_names():
  class Two(Identity):
    def forward(self, inputs, model, training):
      loss, logs = super().forward(inputs, model, training)
      return loss, {**logs, 'rmse': (tf.zeros([1]), tf.ones([1])), 'share': 0.5}

  _, metrics = evaluate(make(Two))
  assert metrics == pytest.approx({'mae': np.mean(np.abs(ERRORS)), 'rmse': 1.0})


@pytest.mark.parametrize(
  'members, message',
  [
    ({'given': X}, 'Task.examples: returned ndarray; expected .features, labels.'),
    ({'given': (X, Y[:3])}, 'Task.examples: arrays: need one leading dimension'),
    ({'build_loss': lambda self: lambda y, x: tf.reduce_mean(x)}, 'Task.build_loss: returns a scalar for a batch'),
    (
      {'build_model': lambda self: tf_keras.Sequential([tf_keras.layers.Lambda(lambda x: {'a': x})])},
      'Task.forward: the model has several outputs, and build_loss takes one; override forward',
    ),
  ],
)
def test_mistakes_are_named(members, message):
  with pytest.raises(ext.UserError, match=f'^{message}'):
    evaluate(make(**members))


def test_ranks_that_are_unknown_or_right_stay():
  for labels, outputs in (((4,), (4,)), ((4, 3), (4, 3)), ((4,), (4, 3)), ((4, 1), (4, 3))):
    assert supervised_task.aligned(tf.zeros(labels), tf.zeros(outputs)).shape == labels


def test_a_lookup_layer_trains_saves_and_loads(tmp_path, capfd, monkeypatch):
  """XLA would print a stack trace of C++: the reason is one line."""
  from official.core import exp_factory
  from official.core import task_factory

  for owner, name in ((exp_factory, '_REGISTERED_CONFIGS'), (task_factory, '_REGISTERED_TASK_CLS')):
    monkeypatch.setattr(owner, name, dict(getattr(owner, name)))
  words = np.array([['a'], ['b'], ['c'], ['a'], ['b'], ['c']])

  @dataclasses.dataclass
  class WordsConfig(ext.SupervisedConfig):
    pass

  @ext.register_task(WordsConfig)
  class Words(Identity):
    given = (words, np.array([1, 2, 3, 1, 2, 3], np.float32))

    def build_model(self):
      lookup = tf_keras.layers.StringLookup(output_mode='one_hot')
      lookup.adapt(words)
      return tf_keras.Sequential([tf_keras.Input((1,), dtype='string'), lookup, tf_keras.layers.Dense(1)])

  @ext.register_experiment('words_of_a_test')
  def words_of_a_test():
    return ext.supervised_experiment(WordsConfig(), epochs=30, learning_rate=0.1, optimizer='sgd_experimental')

  folder = str(tmp_path / 'run')
  logs = ext.train('words_of_a_test', folder, batch_size=6)
  out, err = capfd.readouterr()
  assert 'no XLA: XLA cannot compile the step: it reads a lookup table' in out and 'stack trace' not in err
  assert logs['mae'] < 0.5 and ext.evaluate(folder)['mae'] == logs['mae']
  model = ext.load(folder)
  np.testing.assert_allclose(model.predict(words, verbose=0)[:3, 0], [1, 2, 3], atol=1)
  of_source = model.predict(ext.ArraySource({'features': words, 'labels': np.zeros(6)}), verbose=0)
  np.testing.assert_allclose(of_source, model(words).numpy(), rtol=1e-5)
