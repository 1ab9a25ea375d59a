"""train.py, with a mark where each part of its start ends: imports, building, planning the step, tracing the loop."""

import runpy
import sys

from benchmarks.peers.starts import marks


def main(arguments: list[str]) -> None:
  """Runs train.py with these arguments."""
  from absl import app

  run = app.run

  def marked_run(*args, **kwargs):
    marks.mark('imported')
    _mark_training()
    return run(*args, **kwargs)

  app.run = marked_run
  sys.argv = ['train.py', *arguments]
  runpy.run_path('train.py', run_name='__main__')


def _mark_training() -> None:
  """Marks the first calls of a training's stages."""
  import tensorflow as tf

  from official_ext.training.loop import base_trainer

  trainer_cls = base_trainer.Trainer
  plan_step, run, marked = trainer_cls.plan_step, trainer_cls.run_steps, set()

  def mark(name):
    if name not in marked:
      marks.mark(name)
    marked.add(name)

  def marked_plan_step(self):
    mark('built')
    plan_step(self)
    mark('planned')

  def marked_run(self, num_steps, *args, **kwargs):
    if 'traced' not in marked:
      self.train_loop_fn.get_concrete_function(self.train_iterator, tf.constant(num_steps, tf.int32))
      mark('traced')
    seconds = run(self, num_steps, *args, **kwargs)
    mark('first_step')  # Which XLA has compiled in between.
    return seconds

  trainer_cls.plan_step, trainer_cls.run_steps = marked_plan_step, marked_run


if __name__ == '__main__':
  main(sys.argv[1:])
