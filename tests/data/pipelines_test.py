"""Changing the pipelines of a task from outside."""

import pytest
import tensorflow as tf

from official_ext.data import pipelines


@pytest.mark.parametrize('takes_context', [False, True])
def test_transformed_reaches_every_dataset(takes_context):
  context = tf.distribute.InputContext(num_input_pipelines=1, input_pipeline_id=0, num_replicas_in_sync=3)

  def build(params):
    return {'a': tf.data.Dataset.range(params), 'b': [tf.data.Dataset.range(2 * params)]}

  def build_with_context(params, input_context=None):
    assert input_context is context
    return build(params)

  inputs = pipelines.transformed(
    build_with_context if takes_context else build, lambda dataset, ctx: dataset.skip(ctx.num_replicas_in_sync)
  )
  datasets = inputs(4, input_context=context)
  assert list(datasets['a'].as_numpy_iterator()) == [3]
  assert list(datasets['b'][0].as_numpy_iterator()) == [3, 4, 5, 6, 7]


@pytest.mark.parametrize('given, expected', [(None, False), (True, True), (False, False)])
def test_without_autotune_leaves_what_was_chosen(given, expected):
  options = tf.data.Options()
  if given is not None:
    options.autotune.enabled = given
  options.deterministic = True
  dataset = pipelines.without_autotune(tf.data.Dataset.range(3).with_options(options))
  assert dataset.options().autotune.enabled is expected and dataset.options().deterministic
  assert list(dataset.as_numpy_iterator()) == [0, 1, 2]


def test_what_is_no_dataset_stays():
  assert pipelines.without_autotune('x') == 'x'
