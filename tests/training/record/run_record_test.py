"""Tests for run_record."""

import json
import os
import subprocess
import time

import pytest
import tensorflow as tf

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import processes
from official_ext.base.run_folder import run_status
from official_ext.training.config import definitions
from official_ext.training.record import run_record
from tests.operations.runs import folders


def _params(**trainer):
  params = definitions.ExperimentConfig()
  params.override({'trainer': trainer})
  return params


def _record(model_dir, mode='train', **kwargs):
  return run_record.RunRecord(str(model_dir), mode, train_steps=8, seed=3, devices='one CPU', **kwargs)


def _file(model_dir, name='run.json'):
  return json.loads((model_dir / name).read_text())


def test_record_states_what_runs(tmp_path):
  # Stock: records no seed, git commit or versions.
  record = _record(tmp_path)
  values = _file(tmp_path)
  assert values == record.values == run_status.read(str(tmp_path))
  assert values['status'] == 'running'
  assert values['pid'] == os.getpid()
  assert values['seed'] == 3 and values['devices'] == 'one CPU' and values['train_steps'] == 8
  assert values['versions']['tensorflow'] == tf.__version__ and values['versions']['tf-models-official']
  assert values['started'] <= values['updated'] and values['started'].endswith('Z')
  assert values['finished'] is None and values['error'] is None


def test_updates_and_end(tmp_path):
  record = _record(tmp_path)
  record.update(stage='train', step=4, step_shape='fused', step_shape_reason='one replica')
  values = _file(tmp_path)
  assert (values['stage'], values['step'], values['step_shape']) == ('train', 4, 'fused')
  record.update(step=6)
  assert _file(tmp_path)['stage'] == 'train'
  record.finish('failed', ValueError('no\ngood'))
  values = _file(tmp_path)
  assert (values['status'], values['error'], values['step']) == ('failed', 'ValueError: no\ngood', 6)
  assert values['finished'] == values['updated']
  assert os.listdir(tmp_path) == ['run.json']  # No temporary file stays behind.


@pytest.mark.parametrize('status', ['running', 'done'])
def test_only_an_end_finishes(tmp_path, status):
  with pytest.raises(AssertionError):
    _record(tmp_path).finish(status)


def test_a_run_that_hangs_has_a_new_heartbeat_and_an_old_update(tmp_path, monkeypatch):
  monkeypatch.setattr(run_status.Heartbeat.__init__, '__defaults__', (0.02,))
  record = _record(tmp_path)
  record.update(stage='train', step=4)
  first = _file(tmp_path)
  deadline = time.monotonic() + 60
  while _file(tmp_path)['heartbeat'] == first['heartbeat'] and time.monotonic() < deadline:
    time.sleep(0.01)
  later = _file(tmp_path)
  assert later['heartbeat'] > first['heartbeat'] and later['updated'] == first['updated'] and later['step'] == 4
  record.finish('finished')
  last = _file(tmp_path)
  time.sleep(0.1)
  assert _file(tmp_path) == last and last['status'] == 'finished'


def test_attempts_count_across_processes(tmp_path, start_script):
  code = """
    import sys
    from official_ext.training.record import run_record
    run_record.RunRecord(sys.argv[1], 'train_and_eval', 8, 0, '')
  """
  assert start_script(code, [str(tmp_path)]).finish().returncode == 0
  first = _file(tmp_path)
  _record(tmp_path, 'train_and_eval')
  second = _file(tmp_path)
  assert (first['attempt'], second['attempt']) == (1, 2)
  assert first['pid'] != second['pid'] == os.getpid()
  assert str(tmp_path) in first['command']


def test_a_broken_record_is_replaced(tmp_path):
  (tmp_path / 'run.json').write_text('{"status": "runn')
  assert run_status.read(str(tmp_path)) is None
  _record(tmp_path)
  assert _file(tmp_path)['attempt'] == 1


def test_other_processes_write_nothing(tmp_path):
  record = _record(tmp_path / 'run', is_chief=False)
  record.update(step=3)
  record.finish('finished')
  assert not (tmp_path / 'run').exists()
  assert record.values['step'] == 3


def test_an_evaluation_beside_a_training_has_its_own_record(tmp_path):
  _record(tmp_path, 'train')
  _record(tmp_path, 'continuous_eval').finish('finished')
  assert _file(tmp_path)['status'] == 'running'
  assert run_status.read(str(tmp_path), 'continuous_eval')['status'] == 'finished'


def test_a_watch_reports_when_training_has_ended(tmp_path):
  watch = run_status.TrainingWatch(str(tmp_path), train_steps=8)
  assert not watch.has_ended()  # It has not begun.
  record = _record(tmp_path)
  assert not watch.has_ended()
  record.update(step=3)
  record.finish('failed', ValueError('no good'))
  assert watch.has_ended()


def test_a_watch_sees_a_process_that_has_died(tmp_path):
  watch = run_status.TrainingWatch(str(tmp_path), train_steps=8)
  process = subprocess.Popen(['sleep', '60'])
  record = _record(tmp_path)
  record.update(pid=process.pid, pid_start=processes.start_of(process.pid))
  assert not watch.has_ended()
  process.kill()
  while not watch.has_ended():  # A process that nobody has waited for yet counts as dead too.
    time.sleep(0.01)
  process.wait()
  assert watch.has_ended()


@pytest.mark.parametrize('status', ['finished', 'preempted', 'running'])
def test_a_watch_waits_for_a_training_to_be_extended(tmp_path, capsys, status):
  earlier = _record(tmp_path)
  earlier.update(step=8)
  if status == 'running':  # Killed.
    process = subprocess.Popen(['true'])
    process.wait()
    earlier.update(pid=process.pid)
  else:
    earlier.finish(status)
  # There is nothing to wait for where the training has come as far as it should, or nobody knows how far.
  assert run_status.TrainingWatch(str(tmp_path), train_steps=8).has_ended()
  assert run_status.TrainingWatch(str(tmp_path)).has_ended()
  assert not capsys.readouterr().out
  watch = run_status.TrainingWatch(str(tmp_path), train_steps=12)
  assert not watch.has_ended() and not watch.has_ended()
  (line,) = capsys.readouterr().out.splitlines()
  assert f'{tmp_path} has ended at step 8 of 12' in line
  record = _record(tmp_path)
  assert not watch.has_ended()
  record.update(step=10)
  record.finish('failed', ValueError('no good'))  # Short of its end: nobody is said to start it again.
  assert watch.has_ended()


def test_a_training_that_stopped_early_is_complete(tmp_path):
  record = _record(tmp_path)
  record.update(step=8, early_stopped='accuracy has not risen')
  record.finish('finished')
  assert run_status.TrainingWatch(str(tmp_path), train_steps=12).has_ended()


def test_a_folder_that_has_gone_does_not_end_the_run(tmp_path, caplog):
  record = _record(tmp_path / 'run')
  (tmp_path / 'run/run.json').unlink()
  (tmp_path / 'run').rmdir()
  record.update(step=1)  # It is made again.
  assert run_status.read(str(tmp_path / 'run'))['step'] == 1
  (tmp_path / 'run/run.json').unlink()
  (tmp_path / 'run').rmdir()
  (tmp_path / 'run').write_text('in its place')
  record.update(step=2)
  record.update(step=3)
  assert sum('cannot be written' in message for message in caplog.messages) == 1


def test_git_commit(tmp_path):
  def git(*arguments):
    identity = ('-c', 'user.name=a', '-c', 'user.email=a@b.c')
    return subprocess.run(['git', *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)

  commit_of = run_record._git_commit.__wrapped__
  assert commit_of(str(tmp_path)) is None
  git('init', '--quiet')
  (tmp_path / 'a').write_text('1')
  git('add', 'a')
  git('commit', '--quiet', '--message', 'a')
  commit = git('rev-parse', 'HEAD').stdout.strip()
  assert commit_of(str(tmp_path)) == commit
  (tmp_path / 'untracked').write_text('1')
  assert commit_of(str(tmp_path)) == commit
  (tmp_path / 'a').write_text('2')
  assert commit_of(str(tmp_path)) == commit + '+changes'


def test_params_are_saved_once(tmp_path, capsys):
  params = _params(train_steps=100)
  assert run_record.save_params(params.masked_yaml(), str(tmp_path)) == []
  before = os.stat(tmp_path / 'params.yaml')
  assert run_record.save_params(_params(train_steps=100).masked_yaml(), str(tmp_path)) == []
  after = os.stat(tmp_path / 'params.yaml')
  assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)
  assert os.listdir(tmp_path) == ['params.yaml']
  assert capsys.readouterr().out == ''


def test_other_params_are_shown_and_the_old_ones_kept(tmp_path, capsys):
  # Stock: params.yaml is overwritten.
  run_record.save_params(_params(train_steps=100).masked_yaml(), str(tmp_path))
  old = (tmp_path / 'params.yaml').read_text()
  lines = run_record.save_params(_params(train_steps=200, nonfinite={'max_skips': 0}).masked_yaml(), str(tmp_path))
  assert lines == ['trainer.train_steps: 100 -> 200', 'trainer.nonfinite.max_skips: 10 -> 0']
  printed = capsys.readouterr().out.splitlines()
  assert [line.strip() for line in printed[1:]] == lines
  assert 'params.1.yaml' in printed[0]
  assert (tmp_path / 'params.1.yaml').read_text() == old
  middle = (tmp_path / 'params.yaml').read_text()
  assert run_record.save_params(_params(train_steps=300).masked_yaml(), str(tmp_path))
  assert (tmp_path / 'params.1.yaml').read_text() == old
  assert (tmp_path / 'params.2.yaml').read_text() == middle
  assert sorted(os.listdir(tmp_path)) == ['params.1.yaml', 'params.2.yaml', 'params.yaml']


def test_a_run_that_goes_back_and_forth_between_parameters_keeps_each_once(tmp_path):
  for number in range(20):
    run_record.save_params(_params(train_steps=[100, 200, 300][number % 3]).masked_yaml(), str(tmp_path))
  assert sorted(os.listdir(tmp_path)) == ['params.1.yaml', 'params.2.yaml', 'params.3.yaml', 'params.yaml']


def test_a_training_deletes_what_killed_processes_of_this_machine_were_writing(tmp_path):
  here, gone = os.uname().nodename, folders.ended_process().pid
  abandoned = f'rollbacks.json.tmp-{here}-{gone}'
  kept = {f'rollbacks.json.tmp-{here}-{os.getpid()}', f'rollbacks.json.tmp-far-{gone}', f'notes.tmp-{gone}'}
  for name in (abandoned, *kept):
    (tmp_path / name).write_text('')
  _record(tmp_path, 'eval').finish('finished')
  assert {abandoned, *kept} <= set(os.listdir(tmp_path))
  _record(tmp_path).finish('finished')
  assert {name for name in os.listdir(tmp_path) if '.tmp-' in name} == kept


@pytest.mark.parametrize(
  'writer, field', [('wandb', 'trainer.writers: wandb'), ('mlflow', 'trainer.mlflow.tracking_uri')]
)
def test_trackers_with_files_in_the_folder_are_refused_for_a_remote_one(writer, field, tmp_path, monkeypatch):
  monkeypatch.delenv('MLFLOW_TRACKING_URI', raising=False)
  trainer = _params(writers=[writer]).trainer
  run_record.check_places(str(tmp_path), 'train', trainer)
  with pytest.raises(errors.UserError, match=f'^{field}.*ram://b/run is'):
    run_record.check_places('ram://b/run', 'train', trainer)
  run_record.check_places('ram://b/run', 'train', _params(mlflow={'tracking_uri': 'http://server'}).trainer)


def test_an_old_file_that_is_no_yaml_is_kept(tmp_path):
  (tmp_path / 'params.yaml').write_text('a: [1,')
  (line,) = run_record.save_params(_params(train_steps=1).masked_yaml(), str(tmp_path))
  assert line.startswith('the old file cannot be read')
  assert (tmp_path / 'params.1.yaml').read_text() == 'a: [1,'
  assert config_text.load((tmp_path / 'params.yaml').read_text(), '')['trainer']['train_steps'] == 1


def test_params_read_back_equal(tmp_path):
  params = _params(train_steps=100, loss_upper_bound=1e-5, best_checkpoint_eval_metric='1e3')
  params.task.train_data.input_path = ['a', 'no', '012']
  run_record.save_params(params.masked_yaml(), str(tmp_path))
  values = config_text.load_file(str(tmp_path / 'params.yaml'), '--config_file')
  assert values == json.loads(json.dumps(params.as_dict()))  # Tuples as lists.
