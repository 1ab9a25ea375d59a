"""A run whose number of replicas changes from start to start: the same batches, and the same result but rounding."""

import numpy as np
import pytest
import tensorflow as tf

from official_ext.data import sources
from official_ext.data import step_indexed
from tests.training.loop import small_run

STEPS_PER_PART = 5
PARTS = ('one', 'two', 'four', 'two')
STEPS = STEPS_PER_PART * len(PARTS)
# Each step rounds its loss, gradient and update in another order, by some eps: four a step, 1e-5 in all. Found: 2e-7.
TOLERANCE = 4 * STEPS * np.finfo(np.float32).eps


class NumberedTask(small_run.SmallTask):
  """Logs the identity of a global batch: the means of its examples' numbers, and of their squares.

  Both are whole numbers divided by a power of two, which float32 holds without rounding.
  """

  def build_inputs(self, params, input_context=None):
    x, y = self.data if params.is_training else self.validation_data
    source = sources.ArraySource({'x': x, 'y': y, 'number': np.arange(len(y), dtype=np.float32)})
    return step_indexed.build_dataset(source, params, input_context)

  def forward(self, inputs, model, training):
    loss, logs = super().forward((inputs['x'], inputs['y']), model, training)
    number = inputs['number']
    return loss, {**logs, 'number': tf.reduce_mean(number), 'square': tf.reduce_mean(tf.square(number))}


def run(folder, train_steps, replicas):
  params = small_run.make_params(
    train_steps=train_steps, steps_per_loop=1, summary_interval=1, checkpoint_interval=STEPS_PER_PART
  )
  small_run.run(folder, 'train', NumberedTask, replicas, params)


@pytest.mark.slow
def test_one_two_four_and_two_replicas_do_what_one_does(tmp_path):
  run(tmp_path / 'straight', STEPS, 'one')
  for part, replicas in enumerate(PARTS, 1):
    run(tmp_path / 'elastic', part * STEPS_PER_PART, replicas)
  straight, elastic = (small_run.events(tmp_path / name, 'train') for name in ('straight', 'elastic'))
  assert [event['step'] for event in elastic] == list(range(1, STEPS + 1))
  batches = [(event['number'], event['square']) for event in straight]
  assert [(event['number'], event['square']) for event in elastic] == batches and len(set(batches)) == STEPS
  losses = [[event['training_loss'] for event in events] for events in (straight, elastic)]
  np.testing.assert_allclose(losses[1], losses[0], rtol=TOLERANCE)
  expected, found = (tf.train.load_checkpoint(f'{tmp_path}/{name}/ckpt-{STEPS}') for name in ('straight', 'elastic'))
  for name, dtype in expected.get_variable_to_dtype_map().items():
    if dtype.is_floating:
      value = expected.get_tensor(name)
      atol = TOLERANCE * np.abs(value).max(initial=0)
      np.testing.assert_allclose(found.get_tensor(name), value, rtol=0, atol=atol, err_msg=name)
