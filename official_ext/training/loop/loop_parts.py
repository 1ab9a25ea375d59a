"""Cuts a training loop into parts: at programs that compile, and at those that are watched.

A loop runs whole programs of some steps, then the remaining steps: one by one, or, if one program can run any number of
steps, by that. In the first case, cuts are only between programs, so that a loop runs the same programs on the same
batches however it is cut.
"""

from collections.abc import Callable, Iterator
import dataclasses


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
    programs_run: the lengths of the programs that have run in this process. Those that run here are added.
    is_alone: whether the program that runs so many steps after so many must be a part by itself.
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
