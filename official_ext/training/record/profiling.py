"""--profile_steps: writes a trace of some steps for TensorBoard, and prints a table of where their time went.

`cut` cuts a training loop into parts: at programs that compile, and at programs that are watched. A loop runs whole
programs of some steps, then the remaining steps: one by one, or by the same program if it can run any number of steps.
In the first case it is cut only between programs, so that it runs the same programs on the same batches.
"""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import os
import time

import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import storage


@dataclasses.dataclass(frozen=True)
class Part:
  """Steps that are run together.

  Attributes:
    steps: their number.
    compiles: whether this is the first run of a program, which compiles it. Then it is one program.
    alone: whether this is one program that must be a part by itself.
  """

  steps: int
  compiles: bool = False
  alone: bool = False


def cut(
  first_step: int,
  num_steps: int,
  length: int,
  programs_run: set[int],
  is_alone: Callable[[int, int], bool] = lambda step, num_steps: False,
  any_number: bool = False,
) -> Iterator[Part]:
  """Cuts a loop.

  Args:
    first_step: the number of steps done before it.
    num_steps: its length.
    length: the number of steps in one program; the remaining steps are run by a program of one step.
    programs_run: the lengths of the programs that have run in this process. The ones that run here are added.
    is_alone: of (step, num_steps): whether the program of `num_steps` steps after `step` must be a separate part.
    any_number: whether the program runs any number of steps up to `length`: then it compiles for a single one.

  Yields:
    The parts, in order.
  """
  pending = done = 0
  while done < num_steps:
    left = num_steps - done
    if any_number:
      compiles = length not in programs_run
      program = 1 if compiles else min(length, left)
    else:
      program = length if left >= length else 1
      compiles = program not in programs_run
    alone = is_alone(first_step + done, program)
    if compiles or alone:
      if pending:
        yield Part(pending)
      yield Part(program, compiles, alone)
      programs_run.add(length if any_number else program)
      pending = 0
    else:
      pending += program
    done += program
  if pending:
    yield Part(pending)


NAME = 'profile.json'
SAVE, EVALUATION = 'save', 'evaluation'
_COMPUTE, _INPUT_WAIT, _COMPILATION, _HOST = 'compute', 'input wait', 'compilation', 'host'
_ROWS = (_COMPUTE, _INPUT_WAIT, _COMPILATION, SAVE, EVALUATION, _HOST)


class Profiler:
  """Profiles the whole programs that run the steps of a range.

  Attributes:
    steps: (first, last), counted from 1; None profiles nothing.
  """

  def __init__(self, steps: tuple[int, int] | None = None, model_dir: str = ''):
    """Makes a profiler.

    Args:
      steps: see above.
      model_dir: the traces go to `plugins/profile` in it, the table to `profile.json`.
    """
    self.steps = steps
    self._model_dir = model_dir
    self._done = steps is None
    self._start: float | None = None
    self._seconds: dict[str, float] = {}
    self._first = self._last = self._num_programs = 0

  def covers(self, step: int, num_steps: int) -> bool:
    """Whether to profile the program of `num_steps` steps after `step`."""
    return not self._done and self.steps is not None and step < self.steps[1] and step + num_steps >= self.steps[0]

  @contextlib.contextmanager
  def tracing(self, step: int, num_steps: int) -> Iterator[None]:
    """A context in which a program runs, with arguments as for `covers`."""
    if not self.covers(step, num_steps):
      yield
      return
    if self._start is None:
      tf.profiler.experimental.start(self._model_dir)
      self._start, self._first = time.perf_counter(), step + 1
    # TensorBoard reads the time of a step from these.
    with tf.profiler.experimental.Trace('train', step_num=step + num_steps, _r=1):
      yield

  def add_program(self, step: int, part: Part, seconds: float, data_wait_seconds: float) -> None:
    """Counts a program, and ends the profile after the last one.

    Args:
      step: the number of steps done before it.
      part: the program.
      seconds: wall time of its steps.
      data_wait_seconds: the part of these seconds spent waiting for input.
    """
    if self._start is None or not self.covers(step, part.steps):
      return
    self.add(_INPUT_WAIT, data_wait_seconds)
    self.add(_COMPILATION if part.compiles else _COMPUTE, max(0.0, seconds - data_wait_seconds))
    self._last, self._num_programs = step + part.steps, self._num_programs + 1
    assert self.steps is not None
    if self._last >= self.steps[1]:
      self.close()

  def add(self, kind: str, seconds: float) -> None:
    """Counts seconds that the run has spent on `SAVE` or `EVALUATION`; other time between programs is 'host'."""
    if self._start is not None and not self._done:
      self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds

  def close(self) -> None:
    """Ends the profile, if there is one, and prints its table, or that none of its steps was run."""
    if self._done:
      return
    self._done = True
    assert self.steps is not None
    if self._start is None:
      print(f'No profile: the steps {self.steps[0]} to {self.steps[1]} were not run.', flush=True)
      return
    seconds = time.perf_counter() - self._start
    lines = self._lines(seconds)
    self._write(seconds)
    try:
      tf.profiler.experimental.stop()
    except storage.FAILURES as error:
      lines[-1] += f' (the trace could not be written: {storage.reason_of(error)})'
    print('\n'.join(lines), flush=True)

  def _rows(self, seconds: float) -> dict[str, float]:
    return {**self._seconds, _HOST: max(0.0, seconds - sum(self._seconds.values()))}

  def _write(self, seconds: float) -> None:
    """Writes the table as JSON, for later display; without room for it, it is only printed."""
    rows = {name: value for name in _ROWS if (value := self._rows(seconds).get(name)) is not None}
    table = {'first': self._first, 'last': self._last, 'programs': self._num_programs, 'seconds': seconds, 'rows': rows}
    try:
      storage.write_bytes(os.path.join(self._model_dir, NAME), json_values.encode(table))
    except errors.StorageError:
      pass

  def _lines(self, seconds: float) -> list[str]:
    num_steps = self._last - self._first + 1
    rows = self._rows(seconds)
    lines = [
      f'Profile of steps {self._first} to {self._last}, {self._num_programs} programs, '
      f'{seconds / max(1, num_steps) * 1e3:.3g} ms a step:'
    ]
    for name in _ROWS:
      if name in rows and (rows[name] or name not in (_COMPILATION, EVALUATION)):
        lines.append(f'  {name:<12} {rows[name]:10.4f} s  {rows[name] / seconds:6.1%}')
    lines.append(f'  {"all":<12} {seconds:10.4f} s  in {os.path.join(self._model_dir, "plugins", "profile")}')
    return lines
