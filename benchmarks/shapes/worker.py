"""The process of one experiment: `python -m benchmarks.shapes.worker ROUNDS SECONDS [train.py's flags ...]`.

It prints the record: see records.py. The last line of its output is the JSON.
"""

from collections.abc import Callable
import dataclasses
import functools
import json
import statistics
import sys
import time
from typing import Any
from unittest import mock

import official_ext  # noqa: F401  Before tensorflow.

# isort: split
from absl import flags
from absl.testing import flagsaver
from official.core import task_factory
import tensorflow as tf

from benchmarks.shapes import records
from official_ext.base import errors
from official_ext.cli import flags as ext_flags
from official_ext.training.config import parser
from official_ext.training.config import registries
from official_ext.training.devices import distribute
from official_ext.training.loop import train_lib
from official_ext.training.step import step_plan

_LOOPS = (128, 8)  # Steps of a loop: of quick steps, and of slow ones.
_SLOW = 0.02  # Seconds.
_LENGTHS = ('steps_per_loop', 'summary_interval', 'checkpoint_interval', 'validation_interval')
# Execution -> runtime.enable_xla, trainer.steps_per_execution (None: the experiment's own), whether products are kept
# outside of XLA.
_EXECUTIONS: dict[str, tuple[bool | str, int | None, bool | None]] = {
  records.RULE: ('auto', None, None),
  'graph': (False, None, None),
  'xla': (True, 1, None),
  'xla, 8 steps': (True, 8, None),
  'xla, 64 steps': (True, 64, None),
  'xla between products': ('auto', None, True),
  'xla around products': ('auto', None, False),
}


@dataclasses.dataclass
class Subject:
  """A trainer that was made for one execution.

  Attributes:
    strategy: its strategy.
    trainer: it.
    seen: the rule's inputs and outputs: (traits, arguments, plan), once it was.
    milliseconds: of a step, for each turn.
  """

  strategy: tf.distribute.Strategy
  trainer: Any
  seen: list[tuple[step_plan.StepTraits, dict[str, Any], step_plan.StepPlan]]
  milliseconds: list[float] = dataclasses.field(default_factory=list)

  def run(self, num_steps: int) -> float:
    """Runs one loop; returns the seconds of a step."""
    start = time.perf_counter()
    with self.strategy.scope():
      self.trainer.train(tf.constant(num_steps))
    return (time.perf_counter() - start) / num_steps


def make(loop: int, enable_xla: bool | str, steps_per_execution: int | None, mixes: bool | None) -> Subject:
  """Makes the trainer of the experiment that the flags name, in loops of `loop` steps, and runs its first step."""
  fields = [f'runtime.enable_xla={str(enable_xla).lower()}', *(f'trainer.{name}={loop}' for name in _LENGTHS)]
  if steps_per_execution is not None:
    fields.append(f'trainer.steps_per_execution={steps_per_execution}')
  with flagsaver.flagsaver(set=[*(flags.FLAGS.set or ()), *fields]):
    params = parser.parse_configuration(flags.FLAGS)
  distribute.configure(params.runtime)
  strategy = distribute.get_strategy(params.runtime)
  with strategy.scope():
    task = task_factory.get_task(params.task)
  seen: list[Any] = []
  choose_plan = step_plan.choose_plan

  @functools.wraps(choose_plan)
  def noting(traits, **arguments):
    plan = choose_plan(traits, **arguments)
    seen.append((traits, arguments, plan))
    return plan

  trainer = train_lib.build_trainer(strategy, task, params, None, train=True, evaluate=False)
  subject = Subject(strategy, trainer, seen)
  with mock.patch.object(step_plan, 'choose_plan', noting), _mixing(mixes):
    subject.run(1)
  return subject


def _mixing(mixes: bool | None) -> Any:
  answer: Callable[..., bool] = step_plan._is_mixed if mixes is None else lambda *_: mixes
  return mock.patch.object(step_plan, '_is_mixed', answer)


def measure(rounds: int, seconds: float) -> dict[str, Any]:
  """The record of the experiment that the flags name.

  Args:
    rounds: turns of each execution.
    seconds: of a turn, at least.
  """
  subject = make(_LOOPS[0], *_EXECUTIONS[records.RULE])
  subject.run(1)  # May compile the program of a single step.
  loop = _LOOPS[subject.run(1) > _SLOW]
  subjects: dict[str, Subject] = {}
  plans: list[tuple[Any, ...]] = []
  for name, settings in _EXECUTIONS.items():
    if (settings[1] or 0) > loop:
      continue
    try:
      subject = make(loop, *settings)
    except errors.UserError:  # The experiment allows no such execution.
      continue
    plan = subject.seen[0][2]
    fields = (plan.execution, plan.jit_compile, plan.steps_per_execution, plan.clusters, plan.gathers)
    if fields not in plans:  # That of the rule comes under its own name alone.
      plans.append(fields)
      subjects[name] = subject
  for subject in subjects.values():  # The first compilation.
    subject.run(loop)
  for _ in range(rounds):
    for subject in subjects.values():
      start, times = time.perf_counter(), []
      while not times or time.perf_counter() - start < seconds:
        times.append(1e3 * subject.run(loop))
      subject.milliseconds.append(statistics.fmean(times))
  traits, arguments, plan = subjects[records.RULE].seen[0]
  arguments['fast_products'] = sorted(arguments['fast_products'])
  return {
    'traits': dataclasses.asdict(traits),
    'arguments': arguments,
    'plan': str(plan).partition(':')[0],
    'milliseconds': {name: round(statistics.median(s.milliseconds), 3) for name, s in subjects.items()},
    'range': {name: [round(f(s.milliseconds), 3) for f in (min, max)] for name, s in subjects.items()},
  }


def main() -> None:
  """Prints the record."""
  rounds, seconds, *arguments = sys.argv[1:]
  ext_flags.define_flags()
  flags.FLAGS(['shapes', '--mode=train', '--model_dir=unused', *arguments])
  registries.import_experiments(flags.FLAGS.registry, flags.FLAGS.experiment)
  print(f'\n{json.dumps(measure(int(rounds), float(seconds)))}', flush=True)


if __name__ == '__main__':
  main()
