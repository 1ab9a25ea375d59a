"""train.py, killed and started again with the same command, ends as an undisturbed one: bit for bit."""

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
