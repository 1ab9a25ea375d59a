"""How a training loop is cut into parts: at programs that compile, and at those that somebody watches.

A loop runs whole programs of some steps, then what is left over step by step. Cuts fall between programs only, so that
a loop runs the same programs on the same batches however it is cut.
"""

from collections.abc import Callable, Iterator
import dataclasses


@dataclasses.dataclass(frozen=True)
class Part:
  """Steps that are run together.

  Attributes:
    steps: their number.
    compiles: whether this is the first run of a program, and so compiles it. It is one program then.
    alone: whether this is one program that was asked for by itself.
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
) -> Iterator[Part]:
  """Cuts a loop.

  Args:
    first_step: the number of steps done before it.
    num_steps: its length.
    length: steps in one program; what is left over is run by a program of one step.
    programs_run: the lengths of the programs that have run in this process. Those that run here are added.
    is_alone: whether the program that runs so many steps after so many is to be a part by itself.

  Yields:
    The parts, in order.
  """
  pending = done = 0
  while done < num_steps:
    program = length if num_steps - done >= length else 1
    compiles, alone = program not in programs_run, is_alone(first_step + done, program)
    if compiles or alone:
      if pending:
        yield Part(pending)
      yield Part(program, compiles, alone)
      programs_run.add(program)
      pending = 0
    else:
      pending += program
    done += program
  if pending:
    yield Part(pending)
