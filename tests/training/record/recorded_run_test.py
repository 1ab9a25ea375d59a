"""The record of a run has every kind of end, and the folder is given back."""

import pytest

from official_ext.base import errors
from official_ext.base.run_folder import run_files
from official_ext.base.run_folder import run_lock
from official_ext.training.devices import hang_watch
from official_ext.training.devices import signals
from official_ext.training.record import run_record
from tests import tiers
from tests.training.loop import small_run


@pytest.mark.slow
def test_the_folder_is_given_back_if_the_record_cannot_be_made(tmp_path, monkeypatch):
  def fail(*args, **kwargs):
    raise RuntimeError('no record')

  with monkeypatch.context() as patch:
    patch.setattr(run_record, 'RunRecord', fail)
    with pytest.raises(RuntimeError, match='no record'):
      small_run.run(tmp_path, mode='train')
  run_lock.check_free(str(tmp_path))  # In the same process, such as a notebook's.
  assert not (tmp_path / run_lock.NAME).exists()
  small_run.run(tmp_path, mode='train')


def test_a_run_whose_step_cannot_be_read_any_more_is_recorded_as_failed(tmp_path, monkeypatch):
  def fail(*args):
    raise RuntimeError('the device is gone')

  def lose_a_worker(logs):
    raise errors.WorkerError('worker 1 is gone')

  class Task(small_run.SmallTask):
    def build_actions(self, trainer):
      return [lose_a_worker]

  monkeypatch.setattr(run_record.RecordedRun, '_note_progress', fail)
  with pytest.raises(errors.WorkerError, match='worker 1 is gone'):
    small_run.run(tmp_path, mode='train', task_cls=Task)
  record = small_run.record(tmp_path)
  assert (record['status'], record['error']) == ('failed', 'WorkerError: worker 1 is gone')
  assert small_run.events(tmp_path)[-1]['event'] == 'failed'
  run_lock.check_free(str(tmp_path))


@pytest.mark.slow
@tiers.parametrize('lost', [False, True], fast=1)
def test_reports_of_an_attempt_without_a_checkpoint_do_not_stand(lost, tmp_path, monkeypatch):
  """`lost`: a power loss has taken run.json; events.jsonl was synced."""

  class KilledError(BaseException):
    pass

  def die(logs):
    raise KilledError  # After the first loop, and before any checkpoint.

  class Task(small_run.SmallTask):
    def build_actions(self, trainer):
      return [die]

  intervals = {'summary_interval': 5, 'checkpoint_interval': 12, 'validation_interval': 12}
  with monkeypatch.context() as patch, pytest.raises(KilledError):
    patch.setattr(run_record.RecordedRun, '__exit__', lambda *args: None)  # kill -9 leaves no time.
    small_run.run(tmp_path, task_cls=Task, trainer=intervals)
  assert [line['step'] for line in small_run.events(tmp_path, 'train')] == [5]
  if lost:
    (tmp_path / 'run.json').unlink()
  small_run.run(tmp_path, trainer=intervals)
  standing = run_files.standing_events(small_run.events(tmp_path))
  assert [line['step'] for line in standing if line['event'] == 'train'] == [5, 10, 12]
  assert 'begins anew' in small_run.events(tmp_path, 'restored')[0]['checkpoint']


@pytest.mark.slow
def test_a_run_that_hangs_gives_the_folder_back_at_the_very_end(tmp_path, monkeypatch):
  # Before: seconds before its process ended, which could continue writing beside the next training.
  seen = []

  def look():
    status, event = small_run.record(tmp_path)['status'], small_run.events(tmp_path)[-1]['event']
    try:
      run_lock.check_free(str(tmp_path))
      seen.append((status, event, 'free'))
    except errors.UserError:
      seen.append((status, event, 'held'))

  class EndsHereError(BaseException):
    pass

  def end_thread(status):
    look()
    raise EndsHereError(status)

  class Watch(hang_watch.HangWatch):
    def __enter__(self):
      return self

    def __exit__(self, *args):  # The run hangs where it would have ended; this thread replaces the watch's.
      monkeypatch.setattr(signals.os, '_exit', end_thread)
      self._end(3.0)

    def _report_all(self, error):
      super()._report_all(error)
      look()  # All is reported, and the hung part may still continue.

  monkeypatch.setattr(hang_watch, 'HangWatch', Watch)
  with pytest.raises(EndsHereError):
    small_run.run(tmp_path, mode='train', params=small_run.make_params(runtime={'hang_seconds': 1}))
  assert seen == [('hung', 'hung', 'held'), ('hung', 'hung', 'free')]
