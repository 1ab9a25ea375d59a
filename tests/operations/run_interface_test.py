"""ext.runs: the same runs, values and refusals as the commands have."""

import math
import threading
import time

import pytest

import official_ext as ext
from official_ext.base import json_values
from official_ext.operations.queue import queue_changes
from official_ext.operations.queue import queue_folder
from tests.operations.runs import folders
from tests.operations.runs.folders import event


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))


def make(root, name, events=(), **values):
  folders.make(root, name, events, identity=folders.ended_process(), status='finished', **values)


def test_runs_are_chosen_and_sorted_as_in_the_list(tmp_path):
  for name, accuracy, rate in (('a', 0.5, 0.1), ('b', 0.75, 0.01), ('c', math.nan, 0.001)):
    make(tmp_path, name, [event('eval', 10, accuracy=json_values.as_strict(accuracy))], rate=rate)
  names = lambda **kwargs: [run.name for run in ext.runs.list(str(tmp_path), **kwargs)]
  assert names() == ['a', 'b', 'c'] and names(sort='accuracy') == ['b', 'a', 'c']
  assert names(filters=['learning_rate<0.05']) == ['b', 'c'] and names(status=['running']) == []
  with pytest.raises(ext.UserError, match='^--sort=acuracy: no run has a metric or a field of that name'):
    names(sort='acuracy')
  with pytest.raises(ext.UserError, match='none: no such folder; name the one that has your runs'):
    ext.runs.list(str(tmp_path / 'none'))


def test_values_that_stand(tmp_path):
  events = [
    event('train', 10, training_loss=1.0, loss=0.5),
    event('eval', 10, accuracy=0.5, loss=2.0),
    event('train', 20, training_loss='NaN'),
    event('restored', 10),
    event('train', 20, training_loss=0.25),
    event('eval', 20, accuracy=0.25),
  ]
  make(tmp_path, 'a', events)
  run = ext.runs.get(str(tmp_path / 'a'))
  assert run.metrics('train/training_loss') == [(10, 1.0), (20, 0.25)] == run.metrics('training_loss')
  assert run.metrics('loss') == [(10, 2.0)] and run.metrics('train/loss') == [(10, 0.5)] and run.metrics('other') == []
  assert run.best('accuracy') == ext.runs.Best('accuracy', 0.5, 10) == run.best() and run.best('other') is None
  assert run.params()['learning_rate'] == 0.001 and run.summary().step == 20
  assert (run.name, run.status, run.is_alive) == ('a', 'finished', False)
  assert run == ext.runs.list(str(tmp_path))[0] and len({run, ext.runs.get(run.path)}) == 1
  with pytest.raises(ext.UserError, match='b: no run; name the folder that has its run.json'):
    ext.runs.get(str(tmp_path / 'b'))


def test_waiting_for_an_end_a_value_or_a_time(tmp_path):
  make(tmp_path, 'over', [event('eval', 10, accuracy=0.5)])
  over = ext.runs.get(str(tmp_path / 'over'))
  assert over.wait() and over.wait('accuracy>=0.5') and not over.wait('accuracy>0.5') and not over.wait('other>0')
  folders.make(tmp_path, 'alive', [event('train', 10, training_loss=1.0)])  # This process is its own.
  alive = ext.runs.get(str(tmp_path / 'alive'))
  begin = time.monotonic()
  assert not alive.wait(timeout=0.2) and time.monotonic() - begin < 60

  def log():
    with open(tmp_path / 'alive/events.jsonl', 'a') as file:
      file.write('{"time": 2, "event": "eval", "step": 20, "accuracy": 0.9}\n')

  threading.Timer(0.3, log).start()
  assert alive.wait('accuracy>0.8', timeout=60) and alive.summary().step == 20
  with pytest.raises(ext.UserError, match='expected NAME=VALUE'):
    alive.wait('accuracy')


def test_clones_and_new_runs_wait_in_a_queue(tmp_path):
  make(tmp_path, 'a')
  clone = ext.runs.get(str(tmp_path / 'a')).clone(changes={'learning_rate': 0.5, 'task.name': '1'}, queue=True)
  new = ext.runs.start('digits', str(tmp_path / 'new'), {'train_steps': 5}, queue=True)
  jobs = [state.job for state in queue_folder.Queue(str(tmp_path)).states()]
  assert [job.model_dir for job in jobs] == [clone.path, new.path] and clone.name == 'a-2'
  assert list(jobs[0].command[-2:]) == ['--set=learning_rate=0.5', '--set=task.name="1"']
  assert [word for word in jobs[1].command if word.startswith('--')] == [
    '--experiment=digits',
    '--mode=train_and_eval',
    f'--model_dir={new.path}',
    '--set=train_steps=5',
  ]
  assert new.status == 'unknown' and not new.wait(timeout=0)
  queue_changes.cancel(queue_folder.Queue(str(tmp_path)), 2)
  assert new.wait(timeout=60)  # It will not begin.


def test_what_does_not_run_is_not_stopped_and_what_is_over_not_resumed(tmp_path):
  make(tmp_path, 'a')
  run = ext.runs.get(str(tmp_path / 'a'))
  with pytest.raises(ext.UserError, match='^a: does not run: finished'):
    run.stop()
  with pytest.raises(ext.UserError, match='^a: has finished; '):
    run.resume()
