"""Tests of the dispatcher when its files are damaged, not safe, or gone, and when the disk is full."""

import os
import pathlib
import time

import pytest

from tests import disks
from tests.operations.queue import queues


@pytest.fixture
def trial(tmp_path):
  made = queues.Trial(tmp_path / 'runs')
  yield made
  made.close()


def test_a_full_disk_loses_nothing_and_is_reported(trial, tmp_path):
  with disks.small(tmp_path / 'disk') as disk:
    full = queues.Trial(disk.folder / 'runs', outputs=tmp_path)
    full.add('true', held=True)
    full.add()
    process = full.dispatch()
    queues.until(full.starts)
    disk.fill()
    with pytest.raises(Exception, match='No space left on device'):
      full.add()
    attempt = full.states()[1].attempt
    full.let_go()
    queues.until(lambda: not os.path.exists(f'/proc/{attempt.process.pid}'))
    time.sleep(0.5)
    assert full.statuses() == {1: 'running', 2: 'queued'}  # Its end cannot be written down yet.
    disk.free()
    process.wait()
    output = process.output()
    assert full.statuses() == {1: 'finished', 2: 'finished'}, output
    disk.fill()
    disk.free()
    full.add()
    disk.fill()
    process = full.dispatch()
    queues.until(lambda: 'No space left on device' in process.output())
    disk.free()
    assert process.wait() == 0
    assert full.starts() == [1, 2, 3]


def test_a_damaged_job_is_reported_and_the_others_continue(trial):
  for _ in range(3):
    trial.add()
  (pathlib.Path(trial.queue.job_folder(2)) / 'job.json').write_text('{')
  os.mkdir(trial.queue.job_folder(4))  # Whoever was adding it was killed.
  output = trial.finish()
  assert 'job 2: unreadable' in output
  assert trial.statuses() == {1: 'finished', 2: 'unreadable', 3: 'finished'}


def test_a_run_whose_files_are_damaged_keeps_its_slot(trial):
  trial.add(held=True)
  trial.add()
  process = trial.dispatch()
  queues.until(trial.starts)
  (pathlib.Path(trial.queue.job_folder(1)) / 'attempt-1.json').write_text('{')
  queues.until(lambda: 'job 1: unreadable' in process.output())
  time.sleep(0.3)
  assert trial.starts() == [1]
  trial.let_go()
  assert process.wait() == 0
  assert trial.statuses() == {1: 'unreadable', 2: 'finished'}
  assert trial.most_at_once() == 1


def test_a_folder_that_others_may_write_is_refused(trial):
  trial.add()
  os.chmod(trial.queue.folder, 0o777)
  process = trial.dispatch()
  assert process.wait() == 2
  assert 'others may write into it' in process.output()
  assert trial.starts() == []


def test_it_ends_when_its_folder_is_gone(trial):
  trial.add()
  process = trial.dispatch(until_empty=False)
  queues.until(lambda: trial.statuses()[1] == 'finished')
  os.rename(trial.queue.folder, f'{trial.queue.folder}.gone')  # At once: the dispatcher may be writing into it.
  process.wait()
  output = process.output()
  assert 'is gone' in output
