"""A step compiles once for each shape: no program takes weights or batches as constants, with which it would again."""

import json

import pytest

from tests import train_processes

CODE = """
import json, pathlib, sys
import tensorflow as tf
import tf_keras
from official_ext.training.devices import device_types
from official_ext.training.step import step_plan, updates
from tests.training.loop import gathering_test, harness
from tests.training.step import training_step_test

cpu = tf.config.list_physical_devices('CPU')[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

class Gathered(training_step_test.EmbeddingTask, gathering_test.GatheredTask):
  def forward(self, inputs, model, training):
    return super().forward((inputs['x'], inputs['y']), model, training)

def num_programs():
  return len(list(pathlib.Path(sys.argv[1]).glob('*before_optimizations.txt')))

def compile(task, **settings):
  trainer = harness.make_trainer(
    task, training_step_test.tokens_and_labels(), optimizer=lambda: tf_keras.optimizers.AdamW(0.1), **settings
  )
  harness.train(trainer, 8)
  first = num_programs()
  for _ in range(3):
    harness.train(trainer, 8)
  return {'plan': trainer.plan.execution, 'first': first, 'later': num_programs() - first}

def programs_of_shapes(max_shapes):
  step_plan.MAX_SHAPES, before = max_shapes, num_programs()
  trainer = harness.make_trainer(training_step_test.VaryingTask, enable_xla='auto')
  harness.train(trainer, 10)
  return num_programs() - before

def cases():
  fed = training_step_test.EmbeddingTask
  yield from (compile(task, steps_per_execution=steps) for task in (fed, Gathered) for steps in (1, 4))
  yield compile(fed, accumulation=2)
  yield compile(fed, replicas='two')
  updates.GuardedUpdate._commit_in_loop = updates.GuardedUpdate._commit_and_select  # As on a GPU.
  yield compile(fed)

compiled = list(cases())
device_types.device_type = lambda strategy: 'GPU'
print(json.dumps([compiled, [programs_of_shapes(number) for number in (1, 3, 16)]]))
"""


@pytest.mark.slow
def test_a_step_compiles_once_for_each_shape(start_script, tmp_path):
  done = start_script(CODE, [str(tmp_path)], env=train_processes.dumping_programs(tmp_path)).finish(timeout=300)
  assert done.returncode == 0, done.stderr
  found, of_shapes = json.loads(done.stdout.splitlines()[-1])
  assert [each['plan'] for each in found] == ['fused'] * 5 + ['split', 'fused']
  firsts = [each['first'] for each in found]
  assert firsts[0] > 0 and firsts == sorted(set(firsts))  # Each case compiled something.
  assert [each['later'] for each in found] == [0] * len(found)
  one, three, all_five = of_shapes
  assert (three - one, all_five - one) == (2, 4)  # A program for each shape of a batch, up to the limit.
