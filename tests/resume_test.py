"""train.py, killed and started again with the same command, ends as an undisturbed one: bit for bit."""

import os
import pathlib
import signal

import numpy as np
import pytest

from tests.soak import cases
from tests.soak import comparison
from tests.soak import damage
from tests.soak import processes


def kill(runner, folder, moment, which=None):
  """Starts the command, and kills it at a moment, which must come before its end."""
  attempt = runner.start(folder)
  alive = attempt.kill_at(moment, which)
  statuses = attempt.wait()
  assert alive, f'it ended with {statuses} before {moment.name}: {runner.log(folder)}'


def finish(runner, folder, num_restored):
  statuses = runner.start(folder).wait()
  assert not any(statuses), runner.log(folder)
  assert comparison.differences(folder, runner.straight()) == []
  text = (folder / 'events.jsonl').read_text()
  assert text.count('"event": "restored"') == num_restored


@pytest.mark.slow
def test_killed_in_an_evaluation_and_in_a_save_with_its_newest_checkpoint_damaged(tmp_path, train_server):
  runner = cases.Runner(cases.BY_NAME['float16, moving average'], tmp_path, train_server())
  folder = runner.new_folder()
  kill(runner, folder, processes.in_stage('eval', 30))  # Before ckpt-30.
  assert damage.complete_checkpoints(folder)[-1] in (10, 20)  # 20 may still have been on its way to the disk.
  kill(runner, folder, processes.in_writing(50))
  damage.damage(folder, np.random.default_rng(0))
  finish(runner, folder, num_restored=2)
  assert list(folder.glob('ckpt-*.broken*'))


# Whether the next megabyte is certainly needed: a checkpoint is written from memory that the process has already.
@pytest.mark.soak
@pytest.mark.parametrize(
  ('moment', 'ends'),
  [
    (processes.in_stage('train', 10), True),
    (processes.in_stage('eval', 15), True),
    (processes.in_stage('save', 20), False),
    (processes.in_writing(20), False),
  ],
  ids=lambda value: getattr(value, 'name', None),
)
def test_memory_that_runs_out_costs_nothing_that_was_saved(moment, ends, tmp_path, train_server):
  runner = cases.Runner(cases.BY_NAME['plain'], tmp_path, train_server())
  folder = runner.new_folder()
  attempt = runner.start(folder)
  assert attempt.starve_at(moment)
  assert attempt.wait() != [0] or not ends  # TensorFlow aborts where an allocation fails.
  assert not any(runner.start(folder).wait()), runner.log(folder)
  assert comparison.differences(folder, runner.straight()) == []


@pytest.fixture
def memory_limit():
  """The folder of a control group that gives its processes 1 MiB more; no swap helps them."""
  root = pathlib.Path('/sys/fs/cgroup')
  first = root / 'memory' if (root / 'memory').is_dir() else root
  name = 'memory.limit_in_bytes' if first != root else 'memory.max'
  group = first / f'resume-test-{os.getpid()}'
  try:
    group.mkdir()
    (group / name).write_text(str(2**20))
  except OSError as error:
    group.exists() and group.rmdir()
    pytest.skip(f'no control group of memory can be made: {error}')
  yield group
  group.rmdir()


@pytest.mark.soak
@pytest.mark.parametrize(
  'moment', [processes.in_stage('train', 10), processes.in_stage('eval', 15)], ids=lambda moment: moment.name
)
def test_killed_by_the_kernel_at_its_limit_of_memory(moment, memory_limit, tmp_path, train_server):
  runner = cases.Runner(cases.BY_NAME['plain'], tmp_path, train_server())
  folder = runner.new_folder()
  attempt = runner.start(folder)
  attempt.move_at(moment, memory_limit)
  assert attempt.wait() == [-signal.SIGKILL]
  finish(runner, folder, num_restored=1)


@pytest.mark.soak
def test_memory_that_runs_out_before_a_checkpoint_is_loaded_costs_nothing(tmp_path, train_server):
  runner = cases.Runner(cases.BY_NAME['plain'], tmp_path, train_server())
  folder = runner.new_folder()
  kill(runner, folder, processes.in_stage('train', 30))
  kept = damage.complete_checkpoints(folder)
  attempt = runner.start(folder)
  assert kept and attempt.starve_at(processes.in_stage('start'))
  assert attempt.wait() != [0]
  assert damage.complete_checkpoints(folder) == kept
  finish(runner, folder, num_restored=1)


@pytest.mark.soak
@pytest.mark.parametrize('case', cases.CASES, ids=lambda case: case.name)
def test_killed_at_four_moments(case, tmp_path):
  """At the start, in an evaluation, while a checkpoint is written, and while training."""
  runner = cases.Runner(case, tmp_path)
  straight = runner.straight()
  evaluations = [event['step'] for event in comparison.history(straight) if event['event'] == 'eval']
  folder = runner.new_folder()
  workers = iter([(0,), (1,), (0, 1), (0,)] if case.num_workers > 1 else [None] * 4)
  kill(runner, folder, processes.after(np.random.default_rng().uniform(0, 8)), next(workers))
  kill(runner, folder, processes.in_stage('eval', evaluations[0]), next(workers))
  kill(runner, folder, processes.in_writing(evaluations[1]), next(workers))
  kill(runner, folder, processes.in_stage('train', evaluations[1], delay=0.01), next(workers))
  assert not any(runner.start(folder).wait()), runner.log(folder)
  assert comparison.differences(folder, straight) == []
