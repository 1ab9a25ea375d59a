"""Tests of official-ext queue."""

import json
import os
import shlex
import sys

import pytest

from official_ext.cli import main
from official_ext.operations.runs import driver
from tests.operations.queue import queues


@pytest.fixture
def trial(tmp_path):
  made = queues.Trial(tmp_path / 'runs')
  yield made
  made.close()


@pytest.fixture
def run(capsys, trial):
  """run(command line without RUNS_DIR) -> (status, stdout, stderr) of `official-ext queue`."""

  def run(line, *more):
    command, *words = [*shlex.split(line), *more]
    status = main.main(['queue', command, str(trial.folder), *words])
    return (status, *capsys.readouterr())

  return run


def test_jobs_are_added_listed_moved_and_cancelled(run, trial):
  assert run('add --model_dir=', '--', 'true')[:2] == (
    0,
    f'job 1 is queued\nno dispatcher runs; `official-ext queue run {trial.folder} --slots=N` starts queued jobs\n',
  )
  run('add --max_restarts=0 --gpus=0 -- sh -c "exit 3" --model_dir=' + str(trial.folder / 'b'))
  run('add -- echo password=secret_1 --help')
  assert run('move b --first')[0] == 0
  run('pause 1')
  lines = run('list')[1].splitlines()
  assert [line.split() for line in lines[1:]] == [
    ['job', 'place', 'status', 'attempt', 'run'],
    ['2', '1', 'queued', '0', 'b'],
    ['1', '2', 'paused', '0', 'true'],
    ['3', '3', 'queued', '0', 'echo', "'password=***'", '--help'],
  ]
  assert run('cancel 3')[1] == 'job 3: is cancelled\n'
  run('resume 1')
  run('pause')
  listed = json.loads(run('list --json')[1])
  assert listed['paused'] is True
  assert listed['dispatcher'] is None
  assert [(job['job'], job['position'], job['status']) for job in listed['jobs']] == [
    (3, None, 'cancelled'),
    (2, 1, 'queued'),
    (1, 2, 'queued'),
  ]
  run('resume')
  assert run('run --until_empty --slots=2')[0] == 1  # One has failed.
  jobs = {job['job']: job for job in json.loads(run('list --json')[1])['jobs']}
  assert (jobs[2]['status'], jobs[2]['exit_status'], jobs[2]['reason']) == (
    'failed',
    3,
    'ended with status 3 (diverged)',
  )
  assert (jobs[1]['status'], jobs[1]['attempt'], jobs[3]['attempt']) == ('finished', 1, 0)
  assert run('run --until_empty')[0] == 0


def test_flags_alone_are_those_of_train_py(run, trial):
  run('add --no_check -- --experiment=digits --model_dir=' + str(trial.folder / 'a'))
  job = trial.states()[1].job
  assert job.command[:3] == (sys.executable, '-u', str(queues.ROOT / 'train.py'))
  assert job.command[3:] == ('--experiment=digits', f'--model_dir={trial.folder}/a')


@pytest.mark.tensorflow
def test_a_configuration_with_mistakes_is_refused_at_once(run, trial, monkeypatch):
  monkeypatch.chdir(queues.ROOT)
  flags = f'--experiment=digits_mlp --mode=train --model_dir={trial.folder}/a'
  status, out, err = run(f'add -- {flags} --set=learning_rat=1 --set=task.no_such=2')
  assert (status, out) == (2, '')
  assert [line.partition(';')[0] for line in err.splitlines()] == [
    'error: task.no_such: no such field',
    'error: learning_rat: no such field or short name',
  ]
  assert not trial.states()
  status, out, _ = run(f'add -- {sys.executable} train.py {flags} --set=learning_rate=1')
  assert status == 0 and list(trial.states()) == [1]
  # Its checkpoint is the first job's, and the GPUs may be of another machine.
  status, _, err = run(f'add -- {flags.replace("=train ", "=eval ")} --set=runtime.num_gpus=9')
  assert status == 0 and 'error' not in err and len(trial.states()) == 2


@pytest.mark.parametrize(
  ('words', 'expected'),
  [
    ('python -u train.py --experiment=a --set=b=1', ('{root}/train.py', ['--experiment=a', '--set=b=1'])),
    ('/usr/bin/python3.11 train.py', ('{root}/train.py', [])),
    ('official-ext train --experiment=a', (driver.INSTALLED_PROGRAM, ['--experiment=a'])),
    ('python -u -m official_ext.cli.train --mode=eval', (driver.INSTALLED_PROGRAM, ['--mode=eval'])),
    ('python -m my.train --experiment=a', ('', [])),
    ('python none.py --experiment=a', ('', [])),
    ('python setup.cfg --experiment=a', ('', [])),
    ('sh train.py --experiment=a', ('', [])),
    ('official-ext launch --num_workers=2 -- --experiment=a', ('', [])),
    ('--experiment=a', ('', [])),
    ('', ('', [])),
  ],
)
def test_the_driver_in_a_command(words, expected, monkeypatch):
  monkeypatch.chdir(queues.ROOT)
  program, flags = expected
  assert driver.split_command(words.split()) == (program.format(root=queues.ROOT), flags)


@pytest.mark.parametrize(
  ('line', 'expected'),
  [
    ('add', 'queue add: a command, or the flags of train.py, must follow --'),
    ('add -- --experiment=digits', 'queue add: --model_dir: name the folder of the run, among the flags'),
    ('add --gpus=-1 -- true', "queue add: argument --gpus: invalid integer of 0 or more value: '-1'"),
    ('add --slots=2 -- true', '--slots: is for the dispatcher that --start starts'),
    ('run --slots=0', "queue run: argument --slots: invalid integer of 1 or more value: '0'"),
    ('move 1', 'queue move: one of the arguments --first --last --before --after is required'),
    ('move 7 --first', '7: no such job in'),
    ('cancel 7', '7: no such job in'),
    ('walk', 'walk: queue has no such command; there are add, list, move, pause, resume, cancel, wait, run, stop;'),
  ],
)
def test_a_mistake_is_one_line(run, line, expected):
  status, _, stderr = run(line)
  assert status == 2
  assert stderr.startswith(f'error: {expected}')
  assert stderr.count('\n') == 1


def test_a_folder_that_is_not_there_is_reported(capsys, tmp_path):
  assert main.main(['queue', 'list', str(tmp_path / 'none')]) == 2
  assert 'no such folder' in capsys.readouterr().err
  assert os.listdir(tmp_path) == []


def test_a_dispatcher_starts_in_the_background_and_is_the_only_one(run, trial):
  status, stdout, _ = run('add --start --slots=2 -- sleep 600')
  assert status == 0
  found = trial.queue.dispatcher()
  assert f'a dispatcher has started: process {found["pid"]}; ' in stdout
  assert found['slots'] == 2
  assert os.getsid(found['pid']) == found['pid'] != os.getsid(0)
  assert run('add --start -- true')[1] == 'job 2 is queued\n'
  status, _, stderr = run('add --start --slots=3 -- true')
  assert status == 4 and stderr.startswith('error: --slots=3: a dispatcher with 2 slots runs already; ')
  status, _, stderr = run('run')
  assert status == 4
  assert f'process {found["pid"]} on' in stderr
  queues.until(lambda: trial.statuses() == {1: 'running', 2: 'finished'})
  assert 'of 2 slots are in use; dispatched by process' in run('list')[1]
  run('cancel 1')
  queues.until(lambda: trial.statuses()[1] == 'cancelled')
  status, stdout, _ = run('stop')
  assert status == 0 and stdout.endswith('has ended; running jobs: none\n') and trial.queue.dispatcher() is None
  assert run('stop')[0] == 4


def test_the_list_leaves_out_old_jobs_and_reports_it(run, trial):
  for _ in range(12):
    trial.add()
  run('cancel ' + ' '.join(map(str, range(1, 13))))
  assert run('list')[1].splitlines()[-1] == '2 more are over; --all lists them'
  assert len(run('list --all')[1].splitlines()) == 14


@pytest.mark.soak
def test_a_training_that_is_preempted_is_tried_again_and_resumes(run, trial):
  model_dir = trial.folder / 'digits'
  flags = f'--experiment=digits --mode=train --model_dir={model_dir} --set=train_steps=1000 --set=steps_per_loop=10'
  run(f'add -- {flags} --set=checkpoint_interval=100')
  process = trial.dispatch()
  queues.until(
    lambda: (model_dir / 'run.json').exists() and (json.loads((model_dir / 'run.json').read_text())['step'] or 0)
  )
  os.kill(trial.states()[1].attempt.process.pid, 15)
  queues.until(lambda: trial.states()[1].restarts == 1)
  assert process.wait(10 * queues.PATIENCE) == 0
  attempts = [json.loads(path.read_text()) for path in sorted(trial.folder.glob('.queue/jobs/1/attempt-*.ended.json'))]
  assert [attempt['status'] for attempt in attempts] == [75, 0]
  events = [json.loads(line) for line in (model_dir / 'events.jsonl').read_text().splitlines()]
  preempted = next(event['step'] for event in events if event['event'] == 'preempted')
  restored = next(event['step'] for event in events if event['event'] == 'restored')
  assert 0 < restored == preempted < 1000
  assert events[-1]['event'] == 'finished'
  assert events[-1]['step'] == 1000
