"""Tests for model_garden.py, the border to Model Garden's tasks and Orbit's trainers."""

import copy

from official.core import base_task as official_task
from official.nlp.tasks import tagging
from official.vision.configs import semantic_segmentation as segmentation_configs
from official.vision.tasks import semantic_segmentation
import orbit
import pytest
import tensorflow as tf

from official_ext.training.config import definitions
from official_ext.training.loop import base_trainer
from official_ext.training.tasks import base_task
from official_ext.training.tasks import model_garden


class Stock(official_task.Task):
  """A task of Model Garden that has one of the optional members."""

  def build_inputs(self, params, input_context=None):
    return tf.data.Dataset.range(3)

  def num_examples(self, params):
    return 3


class Own(base_task.Task):
  def build_inputs(self, params, input_context=None):
    return tf.data.Dataset.range(3)


class Steps(orbit.AbstractTrainer):
  def train(self, num_steps):
    return {}


@pytest.fixture
def adapted():
  return model_garden.adapt_task(Stock(definitions.TaskConfig()))


def test_a_task_of_model_garden_has_the_defaults_of_this_librarys(adapted):
  own = Own(definitions.TaskConfig())
  for name in model_garden._OF_TASKS:
    assert hasattr(adapted, name)
  assert (adapted.class_names, adapted.trainer_cls) == (own.class_names, own.trainer_cls)
  assert adapted.evaluation_end(None) == own.evaluation_end(None) == {}
  assert adapted.least_weights() is None and list(adapted.build_actions(None)) == []
  assert adapted.num_examples(None) == 3


def test_it_stays_a_task_of_model_garden(adapted):
  assert type(adapted) is Stock and not isinstance(adapted, base_task.Task)
  assert adapted.micro_batch_weight is None
  assert model_garden.adapt_task(adapted) is adapted
  assert adapted.submodules == () and adapted.variables == ()


def test_it_can_be_copied(adapted):
  copied = copy.deepcopy(adapted)
  assert copied.evaluation_end.__self__ is copied


def test_a_task_of_this_library_is_returned_unchanged():
  task = Own(definitions.TaskConfig())
  before = set(vars(task))
  assert model_garden.adapt_task(task) is task and set(vars(task)) == before


def test_a_trainer_of_orbit_has_what_the_loop_reads():
  trainer = model_garden.adapt_trainer(Steps())
  assert trainer.speed is trainer.plan is trainer.profiler is None
  assert not trainer.steps_are_done and not trainer.stop_requested()
  trainer.prepare_training()
  trainer.checkpoint_restored(data_offset=3)
  assert model_garden.adapt_trainer(None) is None


def test_the_librarys_trainer_has_all_of_them():
  # Made in its constructor: profiler, speed, steps_are_done, and of the evaluator length and stop_requested.
  made = {'profiler', 'speed', 'steps_are_done', 'length', 'stop_requested'}
  assert all(hasattr(base_trainer.Trainer, name) for name in set(model_garden._OF_TRAINERS) - made)


def test_tags_are_evaluated_by_sentence():
  """An entity at the end of one sentence, and one at the beginning of the next, are two in any batch."""
  labels = tf.constant([[-1, 0, 1, -1], [-1, 1, 0, -1], [-1, 1, -1, -1]])
  found = []
  for batch_size in (1, 3):
    config = tagging.TaggingConfig(class_names=['O', 'I-LOC'])
    task = model_garden.adapt_task(tagging.TaggingTask(config))
    task.inference_step = lambda inputs, model: {'logits': tf.one_hot(inputs, 2), 'predict_ids': inputs}
    state = None
    for start in range(0, 3, batch_size):
      tags = labels[start : start + batch_size]
      predicted = tf.where(tf.equal(tags, -1), 0, tags) if start else tf.concat([tags[:1] * 0, tags[1:]], 0)
      logs = task.validation_step((predicted, tags), None)
      state = task.aggregate_logs(state, {name: (logs[name],) for name in ('predict_ids', 'label_ids')})
    found.append(task.reduce_aggregated_logs(state)['f1'])
  assert found == [0.8, 0.8]  # Two of three entities are found, and no other.


def test_the_first_batch_counts_in_the_iou():
  config = segmentation_configs.SemanticSegmentationTask()
  config.model.num_classes = 2
  config.validation_data.resize_eval_groundtruth = True
  task = model_garden.adapt_task(semantic_segmentation.SemanticSegmentationTask(config))
  task.build_metrics(training=False)
  masks = tf.constant([[0, 0, 0, 1], [1, 1, 1, 1]])  # Two batches; 1 is predicted everywhere.
  for _ in range(2):  # Evaluations.
    model_garden.reset_kept_metrics(task)
    state = None
    for mask in masks:
      mask = tf.reshape(mask, [1, 2, 2, 1])
      labels = {'masks': mask, 'valid_masks': tf.ones_like(mask, tf.bool), 'image_info': tf.zeros([1, 4, 2])}
      task.iou_metric.update_state(labels, tf.one_hot(tf.ones([1, 2, 2], tf.int32), 2))
      state = task.aggregate_logs(state, {})
      assert state  # Else the loop reads no metric.
    assert float(task.reduce_aggregated_logs(state)['mean_iou']) == pytest.approx((0 + 5 / 8) / 2)
