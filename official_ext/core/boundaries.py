"""Where the loops of a training end, and what is due there. Arithmetic of steps; no TensorFlow."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Boundaries:
  """What cuts a run into loops. They end on the multiples of every interval, wherever the run starts.

  Attributes:
    train_steps: where training ends, for percent and ETA; 0: nobody knows.
    steps_per_loop: at most this many steps between logs.
    checkpoint_interval: steps between checkpoints; 0 for none before the end.
    intervals: further intervals, in steps; those that are not positive are none.
    saves_at_start: whether the step at which training starts is saved too, so that there is a checkpoint to roll back
      to from the first step on.
  """

  train_steps: int = 0
  steps_per_loop: int = 1
  checkpoint_interval: int = 0
  intervals: tuple[int, ...] = ()
  saves_at_start: bool = False

  def steps_to_next(self, step: int, also: int = 0) -> int:
    """Steps from `step` to the next boundary; `also` is one more interval."""
    intervals = (self.steps_per_loop, self.checkpoint_interval, *self.intervals, also)
    return min(interval - step % interval for interval in intervals if interval > 0)

  def saves_at(self, step: int) -> bool:
    """Whether a step is a multiple of the interval of checkpoints."""
    return self.checkpoint_interval > 0 and step % self.checkpoint_interval == 0


@dataclasses.dataclass(frozen=True)
class Course:
  """How far a training is to come.

  Attributes:
    train_steps: where it ends.
    saves_at_end: whether the step at which it ends is saved.
    eval_interval: steps between evaluations; 0 for none.
    eval_steps: batches of an evaluation; -1 for all.
  """

  train_steps: int
  saves_at_end: bool = True
  eval_interval: int = 0
  eval_steps: int = -1
