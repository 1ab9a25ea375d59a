"""The number of examples in a step is the configured one, or the run is refused or reports both numbers."""

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.data import batch_axes
from tests.training.loop import harness
from tests.training.loop import small_run


def task_with(make_dataset):
  """A task whose training input is `make_dataset(x, y, params, input_context)`."""

  class Task(harness.LinearTask):
    def num_examples(self, params):
      return 64

    def build_inputs(self, params, input_context=None):
      if not params.is_training:
        return super().build_inputs(params, input_context)
      return make_dataset(tf.data.Dataset.from_tensor_slices(self.data).repeat(), params, input_context)

  return Task


def of_size(size, drop_remainder):
  return lambda dataset, params, input_context: dataset.batch(size, drop_remainder=drop_remainder)


@pytest.mark.parametrize(
  ('replicas', 'size', 'drop_remainder', 'found'),
  [
    ('two', 8, True, '16 examples, 8 on each of 2 replicas'),
    ('two', 8, False, '16 examples, 8 on each of 2 replicas'),
    ('two', 2, True, '4 examples, 2 on each of 2 replicas'),
    ('one', 16, True, 'has 16 examples'),
    ('one', 5, True, 'has 5 examples'),
  ],
)
def test_another_number_is_refused(replicas, size, drop_remainder, found, tmp_path):
  """8 are configured. Without `drop_remainder` only the first batch shows it: nothing is saved."""
  with pytest.raises(errors.UserError) as caught:
    small_run.run(tmp_path / 'run', 'train', task_with(of_size(size, drop_remainder)), replicas)
  assert str(caught.value).startswith('task.train_data.global_batch_size: is 8, and ') and found in str(caught.value)
  assert not list(tmp_path.glob('run/ckpt-*')) and (tmp_path / 'run').exists() != drop_remainder


@pytest.mark.parametrize('size', [5, 16])
def test_another_number_in_batches_that_may_differ_is_printed(size, tmp_path, capsys):
  """As of buckets of lengths, whose batches have different numbers of examples."""
  small_run.run(tmp_path, 'train', task_with(of_size(size, False)))
  line = f'Training data (task.train_data): the first batch has {size} examples, and global_batch_size is 8\n'
  assert capsys.readouterr().out.count(line) == 1


@pytest.mark.parametrize('drop_remainder', [True, False])
@pytest.mark.parametrize(('replicas', 'size'), [('one', 8), ('two', 4)])
def test_the_configured_number_trains(replicas, size, drop_remainder, tmp_path):
  small_run.run(tmp_path, 'train', task_with(of_size(size, drop_remainder)), replicas)
  assert small_run.record(tmp_path)['status'] == 'finished'


def by_time(dataset, params, input_context):
  """Time first: [4 features, 8 examples] and [8 labels]."""
  return dataset.batch(8, drop_remainder=True).map(lambda x, y: (tf.transpose(x), y))


class ByTime(task_with(by_time)):
  def forward(self, inputs, model, training):
    x, y = inputs
    return super().forward((tf.transpose(x) if training else x, y), model, training)


def test_a_batch_may_have_another_first_dimension(tmp_path):
  small_run.run(tmp_path, 'train', ByTime)
  assert small_run.record(tmp_path)['status'] == 'finished'


def test_a_resume_may_begin_with_the_last_batch_of_a_pass(tmp_path):
  """Twenty examples in batches of 8, 8 and 4, over and over; step 3 takes 4."""
  pipeline = lambda dataset, params, input_context: dataset.take(20).batch(8).repeat()
  for steps in (2, 4):
    small_run.run(tmp_path, 'train', task_with(pipeline), trainer={'train_steps': steps, 'checkpoint_interval': 2})
  assert small_run.record(tmp_path)['status'] == 'finished'


SPEC = tf.TensorSpec


@pytest.mark.parametrize(
  ('spec', 'replicas', 'expected'),
  [
    ([SPEC([4, 7]), SPEC([4])], 2, 4),
    ([SPEC([8, 7]), SPEC([8])], 2, 8),
    ([SPEC([8, 4])], 2, 8),  # A whole global batch of 4 features.
    ([SPEC([16, 4])], 2, 0),  # 16 times of 4 examples, or 16 examples of 4 features.
    ([SPEC([16, 4]), SPEC([16])], 2, 16),
    ([SPEC([100, 4]), SPEC([3])], 2, 0),  # Anchors and something else.
    ([SPEC([None, 7]), SPEC([4])], 2, 4),
    ([SPEC([None, 7])], 1, None),
    ([SPEC([])], 1, 4),
  ],
)
def test_shapes_decide_or_leave_it_open(spec, replicas, expected):
  assert batch_axes.FullBatch(spec, 4, replicas).by_shapes() == expected


@pytest.mark.parametrize(
  ('shapes', 'replicas', 'expected'),
  [
    ([(4, 7), (4,)], 2, 4),
    ([(8, 7), (8,)], 2, 8),
    ([(8, 4), (8,)], 2, 8),
    ([(16, 4), (16,)], 2, 16),
    ([(16, 4)], 2, 0),
    ([(9, 7), (5,)], 2, 0),  # As of graphs, whose nodes and edges are joined.
  ],
)
def test_a_first_batch_decides_or_leaves_it_open(shapes, replicas, expected):
  spec = [SPEC([None] * len(shape)) for shape in shapes]
  batch = [np.zeros(shape, np.float32) for shape in shapes]
  assert batch_axes.FullBatch(spec, 4, replicas).by_batch(batch).numpy() == expected


def test_an_evaluation_prints_how_many_examples_it_had(tmp_path, capsys):
  """A pipeline that drops the last two of ten, and a task that knows ten."""

  class Task(small_run.SmallTask):
    def num_examples(self, params):
      return 64 if params.is_training else 10

    def build_inputs(self, params, input_context=None):
      if params.is_training:
        return super().build_inputs(params, input_context)
      return tf.data.Dataset.from_tensor_slices(harness.make_data(10)).batch(8, drop_remainder=True)

  small_run.run(tmp_path, task_cls=Task)
  line = 'Evaluation data (task.validation_data): 8 examples were evaluated, and 10 were expected\n'
  assert capsys.readouterr().out.count(line) == 1
