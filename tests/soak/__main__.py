"""Kills trainings over and over, damages their checkpoints, and compares their results with undisturbed runs.

    make soak MINUTES=10

or `python -m tests.soak --minutes=10 [--case=NAME]... [--seed=N]`. Ends with a table; the exit status is 0 where every
run has ended bit-identical to its undisturbed one.
"""

import argparse
import collections
import contextlib
import dataclasses
import pathlib
import shutil
import sys
import tempfile
import time

import numpy as np

from tests import train_processes
from tests.soak import cases
from tests.soak import comparison
from tests.soak import damage
from tests.soak import processes

_MAX_KILLS = 8


@dataclasses.dataclass
class Row:
  """The counts of one configuration.

  Attributes:
    runs: runs that were killed at least once and continued to their end.
    identical: of these, how many ended as the undisturbed run, bit for bit.
    kills: how often a run was killed.
    where: of these, in what moment: 'start' (before the first training loop), 'train', 'eval', 'save', 'writing' (files
      of a checkpoint were there, and its manifest was not).
    resumes: how often a killed run resumed from a checkpoint; otherwise there was none yet.
    damaged: files of newest checkpoints that were damaged in between.
    again: steps that were done more than once.
    failures: what went wrong.
  """

  runs: int = 0
  identical: int = 0
  kills: int = 0
  where: collections.Counter = dataclasses.field(default_factory=collections.Counter)
  resumes: int = 0
  damaged: int = 0
  again: int = 0
  failures: list = dataclasses.field(default_factory=list)


def _random_moment(rng: np.random.Generator, duration: float, last_step: int) -> processes.Moment:
  """Half at any time of a run, half where it matters."""
  step = int(rng.integers(last_step))
  kind = rng.integers(8)
  if kind == 0:
    return processes.in_stage('eval', step, rng.uniform(0, 0.05))
  if kind == 1:
    return processes.in_stage('save', step, rng.uniform(0, 0.005))
  if kind == 2:
    return processes.in_writing(step)
  if kind == 3:
    return processes.in_stage('train', step, rng.uniform(0, 0.05))
  return processes.after(rng.uniform(0, duration))


def _where_it_was(folder: pathlib.Path, attempt_began: float) -> str:
  record = processes.read_record(folder)
  if processes.started(record) < attempt_began or not record.get('stage'):
    return 'start'
  return 'writing' if processes.unfinished(folder) else str(record['stage'])


def kill_and_finish(
  runner: cases.Runner,
  straight: pathlib.Path,
  duration: float,
  rng: np.random.Generator,
  row: Row,
  damages: bool = True,
) -> list[str]:
  """One run: killed up to eight times, then left to its end.

  Args:
    runner: starts it.
    straight: the folder of the undisturbed run.
    duration: seconds that the undisturbed run took.
    rng: chooses the moments.
    row: is added to.
    damages: whether newest checkpoints are damaged in between.

  Returns:
    How it differs from the undisturbed run.
  """
  folder = runner.new_folder()
  last_step = comparison.history(straight)[-1]['step']
  num_kills = int(rng.integers(1, _MAX_KILLS + 1))
  killed, story = 0, []
  for _ in range(num_kills):
    moment = _random_moment(rng, duration, last_step)
    which = None if runner.case.num_workers == 1 else [(0,), (1,), (0, 1)][rng.integers(3)]
    began = time.time()
    attempt = runner.start(folder)
    alive = attempt.kill_at(moment, which)
    statuses = attempt.wait()
    if not alive:
      if any(status > 0 for status in statuses):
        return [f'ended with {statuses} before {moment.name}: {runner.log(folder)}']
      break  # It has ended before that moment.
    killed += 1
    row.where[_where_it_was(folder, began)] += 1
    story.append(f'{moment.name}{"" if which is None else f", workers {which}"}')
    done = damage.damage(folder, rng) if damages and rng.integers(2) else None
    if done:
      row.damaged += 1
      story.append(done)
  row.kills += killed
  statuses = runner.start(folder).wait()
  if not killed:
    shutil.rmtree(folder.parent)
    return []
  row.runs += 1
  if any(statuses):
    return [f'{story}: ended with {statuses}: {runner.log(folder)}']
  row.again += comparison.steps_done_again(folder)
  row.resumes += sum('"restored"' in line for line in (folder / 'events.jsonl').read_text().splitlines())
  found = comparison.differences(folder, straight)
  if found:
    return [f'{story}: {line}' for line in found]
  row.identical += 1
  shutil.rmtree(folder.parent)
  return []


def _print_table(rows) -> None:
  columns = [
    'configuration',
    'runs',
    'bit-identical',
    'kills',
    'start',
    'train',
    'eval',
    'save',
    'writing',
    'resumes',
    'damaged files',
    'steps done again',
  ]
  lines = []
  for name, row in rows.items():
    lines.append(
      [
        name,
        row.runs,
        row.identical,
        row.kills,
        *(row.where[where] for where in ('start', 'train', 'eval', 'save', 'writing')),
        row.resumes,
        row.damaged,
        row.again,
      ]
    )
  lines.append(['all', *(sum(line[column] for line in lines) for column in range(1, len(columns)))])
  texts = [[str(value) for value in line] for line in [columns, *lines]]
  widths = [max(len(line[column]) for line in texts) for column in range(len(columns))]
  for line in texts:
    print('  '.join([line[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(line[1:], widths[1:]))]))


def soak(minutes: float, names: list[str], seed: int, folder: pathlib.Path) -> bool:
  """Runs the cases in turn until the time is over.

  Returns:
    Whether every run was bit-identical to its undisturbed one.
  """
  end = time.monotonic() + 60 * minutes
  rng = np.random.default_rng(seed)
  rows: dict[str, Row] = {}
  started: dict[str, tuple] = {}
  with contextlib.ExitStack() as stack:
    server = train_processes.Server()
    stack.callback(server.close)
    turn = 0
    while turn < len(names) or time.monotonic() < end:
      name = names[turn % len(names)]
      turn += 1
      row = rows.setdefault(name, Row())
      try:
        if name not in started:
          runner = cases.Runner(cases.BY_NAME[name], folder / str(turn), server)
          began = time.monotonic()
          straight = runner.straight()
          started[name] = runner, straight, time.monotonic() - began
        if time.monotonic() < end:
          failures = kill_and_finish(*started[name], rng, row)
        else:
          failures = []
      except (RuntimeError, TimeoutError) as error:
        failures = [f'{type(error).__name__}: {error}']
      for failure in failures:
        print(f'{name}: {failure}', flush=True)
      row.failures += failures
      print(f'{name}: {row.kills} kills, {row.identical} of {row.runs} runs bit-identical', flush=True)
  print()
  _print_table(rows)
  return not any(row.failures for row in rows.values())


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--minutes', type=float, default=10)
  parser.add_argument('--seed', type=int, default=None, help='chooses the moments; by default another every time')
  parser.add_argument('--case', action='append', choices=sorted(cases.BY_NAME), help='by default all')
  arguments = parser.parse_args()
  seed = time.time_ns() % 2**32 if arguments.seed is None else arguments.seed
  print(f'seed {seed}', flush=True)
  folder = pathlib.Path(tempfile.mkdtemp(prefix='soak-'))
  ok = soak(arguments.minutes, arguments.case or list(cases.BY_NAME), seed, folder)
  if ok:
    shutil.rmtree(folder)
  else:
    print(f'Runs that differ are left in {folder}.')
  sys.exit(0 if ok else 1)


if __name__ == '__main__':
  main()
