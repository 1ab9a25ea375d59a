"""Measures the speed of training."""

import dataclasses


@dataclasses.dataclass
class TrainingSpeed:
  """The speed of the last training loop.

  Attributes:
    steps: the number of steps that were timed.
    seconds: the wall time of these steps.
    data_wait_seconds: the part of these seconds spent waiting for input.
    compile_seconds: wall time of the first run of each program in this process, which compiles it.
    examples_per_step: examples in one update, 0 if `global_batch_size` is not set.
    examples_per_epoch: examples in the training data, 0 if the task does not know.
  """

  steps: int = 0
  seconds: float = 0.0
  data_wait_seconds: float = 0.0
  compile_seconds: float = 0.0
  examples_per_step: int = 0
  examples_per_epoch: int = 0

  def start_loop(self) -> None:
    """Forgets the loop before."""
    self.steps, self.seconds, self.data_wait_seconds = 0, 0.0, 0.0

  def add(self, steps: int, seconds: float, data_wait_seconds: float) -> None:
    """Adds steps of the present loop."""
    self.steps += steps
    self.seconds += seconds
    self.data_wait_seconds += data_wait_seconds
