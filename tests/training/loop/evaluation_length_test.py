"""Evaluations that would never end are refused, or reported and ended as runs that hang."""

import re

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.training.config import checks
from official_ext.training.loop import base_evaluator
from tests import own_tasks
from tests import tiers
from tests.training.loop import small_run


@pytest.mark.parametrize('mode', ['eval', 'train_and_eval', 'continuous_eval', 'train_and_post_eval'])
def test_all_of_data_that_repeat_is_refused(mode):
  params = small_run.make_params()
  params.task.validation_data.is_training = True
  with pytest.raises(errors.UserError, match=r'^task\.validation_data\.is_training: is true, so that the data repeat'):
    checks.check(params, mode)
  checks.check(params, 'train')
  params.trainer.validation_steps = 3
  checks.check(params, mode)


class RepeatingTask(small_run.SmallTask):
  """Its validation data repeat for ever."""

  def build_inputs(self, params, input_context=None):
    dataset = super().build_inputs(params, input_context)
    return dataset if params.is_training else dataset.repeat().map(lambda *batch: batch)


class GeneratedTask(small_run.SmallTask):
  """Its validation data repeat three times, where nothing shows it."""

  def build_inputs(self, params, input_context=None):
    dataset = super().build_inputs(params, input_context)
    if params.is_training:
      return dataset
    return tf.data.Dataset.from_generator(
      lambda: (batch for _ in range(3) for batch in dataset), output_signature=dataset.element_spec
    )


@tiers.parametrize('replicas', ['one', 'two'], fast=['two'])
def test_a_dataset_that_repeats_is_refused_before_training(tmp_path, replicas):
  with pytest.raises(
    errors.UserError, match=r'^task\.validation_data: the dataset of RepeatingTask.build_inputs repeat'
  ):
    small_run.run(tmp_path / 'run', task_cls=RepeatingTask, replicas=replicas)
  assert not (tmp_path / 'run').exists()
  small_run.run(tmp_path / 'run', task_cls=RepeatingTask, replicas=replicas, trainer={'validation_steps': 3})


def test_an_evaluation_past_its_end_is_reported_once(tmp_path, caplog):
  # 8 examples in batches of 8, three times; the task takes them for 64, of which the first source has said 8.
  small_run.run(tmp_path, task_cls=GeneratedTask, trainer={'train_steps': 6})
  logged = [line for line in caplog.messages if 'the evaluation has taken' in line]
  assert logged == [
    'task.validation_data: the evaluation has taken 2 batches (expected 1 at most), and continues; if the input '
    'repeats, set trainer.validation_steps.'
  ]
  caplog.clear()
  small_run.run(tmp_path, 'eval')
  assert not [line for line in caplog.messages if 'the evaluation has taken' in line]


def test_batches_past_the_expected_number_are_a_sign_of_life_up_to_ten_times_as_many():
  length = base_evaluator.EvaluationLength()
  length.begin(3, takes_all=True)
  exceeded = []
  for batches in range(1, 33):
    length.count(batches)
    exceeded.append(length.is_exceeded)
  assert exceeded == [batches > 30 for batches in range(1, 33)]
  length.begin(3, takes_all=False)
  length.count(31)
  assert not length.is_exceeded


ENDLESS = own_tasks.TASK.replace(
  "    return ext.build_dataset(ext.ArraySource({'x': x}), params, input_context)",
  """    dataset = ext.build_dataset(ext.ArraySource({'x': x}), params, input_context)
    if params.is_training:
      return dataset
    import itertools
    import tensorflow as tf
    spec = {'x': tf.TensorSpec([None, 1], tf.float32)}
    return tf.data.Dataset.from_generator(lambda: (batch for _ in itertools.count() for batch in dataset),
                                          output_signature=spec)""",
)


@pytest.mark.slow
def test_an_evaluation_without_end_is_ended_as_one_that_hangs(run_train, tmp_path):
  place = own_tasks.write(tmp_path / 'code')
  (place / 'own_package' / 'task.py').write_text(ENDLESS)

  np.save(tmp_path / 'data.npy', np.ones([8, 1], np.float32))
  flags = [*own_tasks.FLAGS, '--mode=train_and_eval', f'--model_dir={tmp_path / "run"}', '--set=runtime.hang_seconds=1']
  env = {'PYTHONPATH': str(place), 'OWN_DATA': str(tmp_path / 'data.npy')}
  done = run_train(flags, env=env, cwd=tmp_path, timeout=200)
  assert done.returncode == errors.HungError.exit_status, done.stdout + done.stderr
  assert re.search(r'the evaluation has taken 3 batches \(expected 2 at most\), and continues', done.stderr)
