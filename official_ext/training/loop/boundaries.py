"""Computes where the loops of a training end, and the actions due there. Arithmetic of steps, without TensorFlow."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Boundaries:
  """The boundaries of a run's loops. They are the multiples of every interval, wherever the run starts.

  Attributes:
    train_steps: the step at which training ends, for percent and ETA; 0 if it is not known.
    steps_per_loop: the most steps between logs.
    checkpoint_interval: the steps between checkpoints; 0 for none before the end.
    intervals: further intervals, in steps; those that are not positive are ignored.
    saves_at_start: whether the step at which training starts is saved too, so that there is always a checkpoint to roll
      back to.
  """

  train_steps: int = 0
  steps_per_loop: int = 1
  checkpoint_interval: int = 0
  intervals: tuple[int, ...] = ()
  saves_at_start: bool = False

  def steps_to_next(self, step: int, also: int = 0) -> int:
    """The number of steps from `step` to the next boundary; `also` is one more interval."""
    intervals = (self.steps_per_loop, self.checkpoint_interval, *self.intervals, also)
    return min(interval - step % interval for interval in intervals if interval > 0)

  def saves_at(self, step: int) -> bool:
    """Whether a step is a multiple of the interval of checkpoints."""
    return self.checkpoint_interval > 0 and step % self.checkpoint_interval == 0


@dataclasses.dataclass(frozen=True)
class Course:
  """The course of a training: its end and its evaluations.

  Attributes:
    train_steps: the step at which it ends.
    saves_at_end: whether that step is saved.
    eval_interval: the steps between evaluations; 0 for none.
    eval_steps: the batches of an evaluation; -1 for all.
  """

  train_steps: int
  saves_at_end: bool = True
  eval_interval: int = 0
  eval_steps: int = -1
