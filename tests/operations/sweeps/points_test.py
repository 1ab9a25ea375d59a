"""The states of points: by their jobs, their runs and their early ends."""

import pathlib

import pytest

from official_ext.operations.queue import queued_jobs
from official_ext.operations.runs import child_process
from official_ext.operations.sweeps import sweep_points
from tests.operations.runs import folders as run_folders
from tests.operations.sweeps import folders

_PRUNED = {'reason': '0.5 at iteration 1'}


def _job(status, exit_status):
  return queued_jobs.JobState(1, status, f'ended with status {exit_status}', exit_status=exit_status)


@pytest.mark.parametrize('exit_status', [1, 2, 3, 75, -15])
@pytest.mark.parametrize('record', ['preempted', 'failed', 'diverged', None])
def test_a_point_that_was_ended_early_is_pruned_however_its_program_ends(tmp_path, exit_status, record):
  values = {'status': record, 'identity': run_folders.ended_process()} if record else {'record_values': False}
  run = run_folders.make(tmp_path, 'a', [], **values)
  job = _job('failed' if exit_status in (1, 2, 3) else 'cancelled', exit_status)
  assert sweep_points.point_status(job, run, _PRUNED) == ('pruned', _PRUNED['reason'])
  assert sweep_points.point_status(job, run, None)[0] in ('failed', 'diverged', 'stopped')


def test_a_failed_point_has_the_last_line_of_its_log(tmp_path):
  folder = folders.make(tmp_path, count=3, failed=(2,))
  record = folders.points(folder)[2].record
  log = pathlib.Path(record.folder, 'run.log')
  log.write_text('Traceback\n  File "train.py"\nValueError: \x1b[31mno such layer\n')
  reader, sweep = sweep_points.PointReader(folder), folder.load()
  reasons = {point.number: point.reason for point in reader.read(sweep)}
  assert reasons[2].startswith('it has failed: ValueError: ') and 'no such layer' in reasons[2]
  assert '\x1b' not in reasons[2] and not reasons[1]
  with log.open('a') as file:
    file.write('another line\n')
  assert {point.number: point.reason for point in reader.read(sweep)}[2] == 'it has failed: another line'


def test_a_reason_has_the_last_line_once(tmp_path, monkeypatch):
  folder = folders.make(tmp_path, count=3, failed=(2,))
  log = pathlib.Path(folders.points(folder)[2].record.folder, 'run.log')
  log.write_text('ValueError: token=abcd ' + 'x' * 1000 + '\n')
  line = child_process.last_line(str(log), 1)['last_line']
  assert line == ('ValueError: token=*** ' + 'x' * 1000)[:300]
  monkeypatch.setattr(sweep_points, 'point_status', lambda *_: ('failed', f'ended with status 1: {line}'))
  reasons = {point.number: point.reason for point in sweep_points.PointReader(folder).read(folder.load())}
  assert reasons[2] == f'ended with status 1: {line}'


def test_a_repeated_step_is_one_iteration(tmp_path):
  """A program with its own loop, killed after the evaluation at 30 and restarted from 10."""
  events = [(10, 0.5), (20, 0.4), (30, 0.3), (20, 0.41), (30, 0.31)]
  run_folders.make(tmp_path, 'a', [run_folders.event('eval', step, loss=value) for step, value in events])
  found = sweep_points.read_history(str(tmp_path / 'a/events.jsonl'), 'loss')
  assert (found.steps, found.values) == ((10, 20, 30), (0.5, 0.41, 0.31))
