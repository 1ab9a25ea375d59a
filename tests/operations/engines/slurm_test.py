"""Tests of batch scripts: run by bash with the commands of SLURM in their place, and on a real SLURM."""

import json
import os
import pathlib
import signal
import subprocess
import time

import pytest

from official_ext.base.run_folder import run_status
from official_ext.cli import main
from tests.operations.engines import rendered
from tests.operations.engines import slurm_cluster
from tests.operations.engines import trainings

ROOT = pathlib.Path(__file__).resolve().parents[3]


def test_the_headers_are_those_of_the_options(capsys):
  lines = rendered.text(capsys, 'slurm', '--engine_arg=--qos=high', '--engine_arg=--exclusive').splitlines()
  assert lines[0] == '#!/bin/bash'
  headers = [line.removeprefix('#SBATCH ') for line in lines if line.startswith('#SBATCH ')]
  assert headers == [
    *('--job-name=a', '--nodes=2', '--ntasks-per-node=4', '--gpus-per-task=1', '--partition=gpu', '--time=4:00:00'),
    *('--requeue', '--signal=TERM@120', '--open-mode=append', f'--chdir={os.getcwd()}', '--output=/runs/a/run.log'),
    *('--qos=high', '--exclusive'),
  ]


@pytest.mark.parametrize(
  ('words', 'model_dir', 'expected'),
  [
    (['--engine_arg=--signal=KILL@1'], '/runs/a', 'is set here'),
    (['--engine_arg=high'], '/runs/a', 'expected an option of the engine'),
    (['--time=1\n#SBATCH --uid=0'], '/runs/a', 'has no way to say this'),
    ([], '/runs/a\\b', 'backslash'),
    (['--slots=2'], '/runs/a', '--array'),
    (['--name=A b'], '/runs/a', 'such as a-b'),
    (['--env=TF_CONFIG={}'], '/runs/a', 'set by an engine'),
    (['--env=WANDB_API_KEY=abcdefghij'], '/runs/a', 'docs/how_to/cluster.md'),
  ],
)
def test_what_cannot_be_expressed_is_refused(capsys, words, model_dir, expected):
  error = rendered.text(capsys, 'slurm', *words, model_dir=model_dir, status=2)
  assert expected in error and len(error.splitlines()) == 1 and 'abcdefghij' not in error


def _run(capsys, tmp_path, status, state='RUNNING', env=None, words=()):
  """Runs a script whose srun writes its words down, and ends so; returns (status, words of srun, of scontrol)."""
  script = rendered.text(capsys, 'slurm', f'--max_restarts={3}', *words, flags=rendered.ODD)
  folder = tmp_path / 'bin'
  rendered.fake(folder, 'srun', f'printf "%s\\0" "$@" > {folder}/srun.args; exit {status}')
  rendered.fake(folder, 'scontrol', f'echo "JobId=7 JobState={state} Reason=None"')
  variables = {'PATH': rendered.path_of(folder), 'SLURM_JOB_ID': '7', **(env or {})}
  done = subprocess.run(['bash', '-s'], input=script, env=variables, capture_output=True, text=True, timeout=60)
  requests = rendered.words_of(folder, 'scontrol').split() if (folder / 'scontrol.words').exists() else []
  return done, (folder / 'srun.args').read_text().split('\0')[:-1], requests


def test_every_word_reaches_train_py_as_it_was(capsys, tmp_path):
  done, words, requests = _run(capsys, tmp_path, 0)
  first = words.index(rendered.PYTHON)
  assert words[first:] == [rendered.PYTHON, '-u', str(ROOT / 'train.py'), '--model_dir=/runs/a', *rendered.ODD]
  assert words[:first] == ['--kill-on-bad-exit=0', '--wait=0', '--distribution=block']
  assert done.returncode == 0 and not requests
  assert not done.stdout


@pytest.mark.parametrize(
  ('status', 'state', 'env', 'requeued'),
  [
    (75, 'RUNNING', {}, '7'),
    (137, 'RUNNING', {'SLURM_RESTART_COUNT': '2'}, '7'),
    (75, 'RUNNING', {'SLURM_ARRAY_JOB_ID': '7', 'SLURM_ARRAY_TASK_ID': '2'}, '7_2'),  # 7 would be all of them.
    (75, 'RUNNING', {'SLURM_RESTART_COUNT': '3'}, ''),
    (75, 'COMPLETING', {}, ''),  # It was cancelled, or SLURM requeues it.
    (2, 'RUNNING', {}, ''),
    (3, 'RUNNING', {}, ''),
    (1, 'RUNNING', {}, ''),
  ],
)
def test_what_is_requeued(capsys, tmp_path, status, state, env, requeued):
  done, _, requests = _run(capsys, tmp_path, status, state, env)
  assert done.returncode == status, done.stderr
  assert requests[-2:] == (['requeue', requeued] if requeued else requests[-2:])
  assert ('requeue' in requests) == bool(requeued)


def test_a_signal_to_the_script_is_left_to_the_step(capsys, tmp_path):
  script = rendered.text(capsys, 'slurm')
  folder = tmp_path / 'bin'
  rendered.fake(folder, 'srun', f'echo began > {folder}/began; sleep 1; exit 75')
  rendered.fake(folder, 'scontrol', 'echo " JobState=COMPLETING "')
  env = {'PATH': rendered.path_of(folder), 'SLURM_JOB_ID': '7'}
  process = subprocess.Popen(['bash', '-c', script], env=env)
  while not (folder / 'began').exists():
    time.sleep(0.02)
  process.send_signal(signal.SIGTERM)
  assert process.wait(60) == 75


@pytest.mark.slow
def test_an_array_has_the_trials_of_a_sweep(capsys, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'lr.yaml').write_text(
    f'program: {ROOT}/train.py\nexperiment: digits_mlp\nmethod: grid\nmetric: {{name: accuracy, goal: maximize}}\n'
    'parameters: {learning_rate: {values: [0.1, 0.01, 1e-3]}}\n'
  )
  words = ['submit', '--engine=slurm', '--array=lr.yaml', '--slots=2']
  assert main.main([*words, '--render']) == 0
  script = capsys.readouterr().out
  assert '#SBATCH --array=1-3%2' in script
  assert not (tmp_path / 'runs').exists()  # It was only shown.
  folder = tmp_path / 'bin'
  rendered.fake(folder, 'sbatch', 'cat > "$0.input"; echo "12;cluster"')
  rendered.fake(folder, 'squeue', 'echo PENDING')
  monkeypatch.setenv('PATH', rendered.path_of(folder))
  assert main.main(words) == 0
  assert '3 runs' in capsys.readouterr().out
  assert (folder / 'sbatch.input').read_text() == script
  names = [f'{number:03d}-learning_rate={value}' for number, value in enumerate(('0.1', '0.01', '0.001'), 1)]
  assert main.main(['runs', 'list', 'runs', '--status=submitted']) == 0
  listed = capsys.readouterr().out
  assert all(f'lr/{name}' in listed for name in names)
  assert main.main(['sweep', 'show', 'runs', 'lr']) == 0
  assert capsys.readouterr().out.count('queued') >= 3
  assert main.main(words) == 4  # The array has them.
  assert 'slurm has it, as 12_1' in capsys.readouterr().err
  rendered.fake(folder, 'srun', f'printf "%s\\n" "$@" > {folder}/srun.args; echo told')
  env = {'PATH': str(folder), 'SLURM_JOB_ID': '14', 'SLURM_ARRAY_JOB_ID': '12', 'SLURM_ARRAY_TASK_ID': '2'}
  subprocess.run(['bash', '-s'], input=script, env=env, text=True, timeout=60, check=True)
  run = tmp_path / 'runs/lr' / names[1]
  assert (run / 'run.log').read_text() == 'told\n'
  assert (folder / 'srun.args').read_text().splitlines()[-2:] == [f'--model_dir={run}', '--set=learning_rate=0.01']
  rendered.fake(folder, 'squeue', '[[ "$*" == *12_2* ]] || echo PENDING')
  assert main.main(words) == 0  # The one that was cancelled there; it has the others.
  assert '1 run in' in capsys.readouterr().out
  (first,) = (line for line in (folder / 'sbatch.input').read_text().splitlines() if line.startswith('1) '))
  assert f'--model_dir={run} ' in first and '--array=1-1' in (folder / 'sbatch.input').read_text()


@pytest.mark.parametrize(
  ('text', 'expected'),
  [
    ('method: bayes\nmetric: {name: a}\nrun_cap: 3\n', 'bayes'),
    ('method: random\nmetric: {name: a}\n', 'run_cap'),
    ('method: random\nrun_cap: 3\nmetric: {name: a}\nearly_terminate: {type: hyperband, min_iter: 3}\n', 'early_'),
  ],
)
def test_sweeps_that_are_no_array_are_refused(capsys, tmp_path, text, expected):
  (tmp_path / 's.yaml').write_text(f'experiment: digits\n{text}parameters: {{learning_rate: {{min: 0.1, max: 0.2}}}}\n')
  assert main.main(['submit', '--engine=slurm', '--render', f'--array={tmp_path}/s.yaml']) == 2
  assert expected in capsys.readouterr().err


@pytest.mark.parametrize('words', [['--render'], ['--output=job.sh'], []])
@pytest.mark.parametrize(
  ('program', 'expected'),
  [
    ('train.py', 'experiment: is missing, and train.py is a driver'),
    ('other.py', 'program: other.py has no flag --model_dir'),
    ('none.py', '--program=none.py: no such file'),
  ],
)
def test_an_array_that_would_fail_for_every_point_is_not_shown_either(
  capsys, tmp_path, monkeypatch, program, expected, words
):
  monkeypatch.chdir(tmp_path)
  rendered.fake(tmp_path / 'bin', 'sbatch', 'echo 12')
  monkeypatch.setenv('PATH', rendered.path_of(tmp_path / 'bin'))
  (tmp_path / 'train.py').write_text('import official_ext\n')
  (tmp_path / 'other.py').write_text('print(1)\n')
  (tmp_path / 's.yaml').write_text(f'program: {program}\nmethod: grid\nparameters: {{x: {{values: [1, 2]}}}}\n')
  assert main.main(['submit', '--engine=slurm', '--array=s.yaml', *words]) == 2
  output, error = capsys.readouterr()
  assert expected in error and error.count('\n') == 1 and not output
  assert not (tmp_path / 'runs').exists() and not (tmp_path / 'job.sh').exists()


# A real SLURM.


@pytest.fixture(scope='module')
def cluster(tmp_path_factory, unused_ports):
  yield from _cluster(tmp_path_factory, unused_ports, 1)


@pytest.fixture(scope='module')
def three_nodes(tmp_path_factory, unused_ports):
  yield from _cluster(tmp_path_factory, unused_ports, 3)


def _cluster(tmp_path_factory, unused_ports, num_nodes):
  if reason := slurm_cluster.missing(num_nodes):
    pytest.skip(f'no SLURM here: {reason}')
  with slurm_cluster.running(tmp_path_factory.mktemp('slurm'), unused_ports(2), num_nodes) as found:
    yield found


def _call(cluster, *words, status=0):
  """Runs the command as a separate process, where SLURM is; returns its output."""
  return trainings.call([*cluster.inside, *trainings.COMMAND, *words], cluster.environment, 300, status)


def _submit(cluster, model_dir, *words, flags=trainings.FLAGS):
  """Submits a training; returns the number of the job."""
  return _number(_call(cluster, 'submit', '--engine=slurm', *words, '--', f'--model_dir={model_dir}', *flags))


def _number(output):
  return output.split()[4].rstrip(':')


def _wait_for_checkpoint(cluster, job, model_dir):
  return trainings.wait_for_checkpoint(model_dir, lambda: _refuse_ended(cluster, job, model_dir))


def _wait_for_step(cluster, job, model_dir, step):
  deadline = time.monotonic() + 900
  while ((run_status.read(str(model_dir)) or {}).get('step') or 0) < step:
    _refuse_ended(cluster, job, model_dir)
    assert time.monotonic() < deadline, trainings.log(model_dir)
    time.sleep(0.2)


def _refuse_ended(cluster, job, model_dir):
  assert cluster.state(job) not in ('FAILED', 'CANCELLED', 'COMPLETED'), trainings.log(model_dir)


def _finish(cluster, job, model_dir):
  assert cluster.wait(job, ['COMPLETED', 'FAILED']) == 'COMPLETED', trainings.log(model_dir)


def _train_twice(cluster, tmp_path, *words):
  """Trains straight, and with a requeue in the middle; both must end alike. Returns the second record."""
  straight, requeued = tmp_path / 'straight', tmp_path / "it's $requeued"
  _finish(cluster, _submit(cluster, straight, *words), straight)
  job = _submit(cluster, requeued, *words)
  _wait_for_checkpoint(cluster, job, requeued)
  cluster.run('scontrol', 'requeue', job)
  _finish(cluster, job, requeued)
  record = run_status.read(str(requeued))
  assert (record['status'], record['attempt'], record['step']) == ('finished', 2, trainings.STEPS)
  trainings.assert_same(trainings.weights(requeued), trainings.weights(straight))
  return record


@pytest.mark.soak
def test_a_real_slurm_trains_with_two_tasks_and_a_requeue_in_the_middle(cluster, tmp_path):
  _train_twice(cluster, tmp_path, '--tasks_per_node=2')


@pytest.mark.soak
def test_two_nodes_train_together_and_resume_after_a_requeue_and_when_one_is_lost(three_nodes, tmp_path):
  record = _train_twice(three_nodes, tmp_path, '--nodes=2')
  assert (_hosts(record), record['host']) == (['node1', 'node2'], 'node1')
  lost = tmp_path / 'lost'
  job = _submit(three_nodes, lost, '--nodes=2')
  _wait_for_checkpoint(three_nodes, job, lost)
  three_nodes.lose(2)
  _finish(three_nodes, job, lost)
  record = run_status.read(str(lost))
  assert (record['status'], record['step'], _hosts(record)) == ('finished', trainings.STEPS, ['node1', 'node3'])
  trainings.assert_same(trainings.weights(lost), trainings.weights(tmp_path / 'straight'))


def _hosts(record):
  workers = json.loads(record['environment']['TF_CONFIG'])['cluster']['worker']
  return [worker.partition(':')[0] for worker in workers]


@pytest.mark.soak
def test_a_real_slurm_runs_the_points_of_a_sweep(cluster, tmp_path, capsys):
  runs = tmp_path / 'runs'
  folders = trainings.write_sweep(tmp_path / 'all.yaml', runs, 4)
  array = ['submit', '--engine=slurm', f'--array={tmp_path}/all.yaml', f'--runs_dir={runs}']
  array += ['--slots=2', '--', *trainings.SWEEP_FLAGS]
  output = _call(cluster, *array)
  assert '4 runs' in output
  job = _number(output)
  _wait_for_checkpoint(cluster, f'{job}_2', folders[1])
  assert cluster.state(f'{job}_4') == 'PENDING'  # --slots.
  cluster.run('scontrol', 'requeue', f'{job}_2')
  pid = _wait_for_checkpoint(cluster, f'{job}_3', folders[2])['pid']
  os.kill(pid, signal.SIGKILL)
  _wait_for_checkpoint(cluster, f'{job}_4', folders[3])
  cluster.run('scancel', f'{job}_4')
  assert cluster.wait(f'{job}_4', ['CANCELLED', 'COMPLETED', 'FAILED']) == 'CANCELLED'
  # Only the cancelled one is left, wherever the others are.
  output = _call(cluster, *array)
  assert '1 run in' in output
  last = f'{_number(output)}_1'
  for number, folder in zip((f'{job}_1', f'{job}_2', f'{job}_3', last), folders):
    _finish(cluster, number, folder)
  found = trainings.points(capsys, runs, 'all')
  assert [point['status'] for point in found] == ['finished'] * 4
  assert len({point['value'] for point in found}) == 1 and found[0]['value'] > 0.8
  assert [run_status.read(str(folder))['attempt'] for folder in folders] == [1, 2, 2, 2]
  for folder in folders[1:]:
    trainings.assert_same(*(trainings.weights(each) for each in (folder, folders[0])))
  assert 'no point is left' in _call(cluster, *array, status=2)


@pytest.mark.soak
def test_a_real_slurm_saves_before_the_time_is_over_and_a_cancelled_job_stays_so(cluster, tmp_path):
  flags = ['--experiment=digits_mlp', '--mode=train', '--set=train_steps=1000000', '--set=steps_per_loop=5']
  # A minute is the least time there is; the signal comes up to a minute before the moment that is requested.
  job = _submit(cluster, tmp_path / 'a', '--time=1', '--signal_seconds=10', flags=flags)
  _wait_for_step(cluster, job, tmp_path / 'a', 1)
  deadline = time.monotonic() + 900
  while (run_status.read(str(tmp_path / 'a')) or {}).get('attempt', 0) < 2:
    assert time.monotonic() < deadline, (tmp_path / 'a/run.log').read_text()
    time.sleep(0.5)
  assert 'status 75: requeued' in (tmp_path / 'a/run.log').read_text()
  first_step = run_status.read(str(tmp_path / 'a'))['step'] or 0
  _wait_for_step(cluster, job, tmp_path / 'a', first_step + 1)
  cluster.run('scancel', job)
  assert cluster.wait(job, ['CANCELLED', 'PENDING', 'COMPLETED', 'FAILED']) == 'CANCELLED'
  time.sleep(8.0)  # Longer than a requeued job waits for its next start.
  assert cluster.state(job) == 'CANCELLED'
  assert run_status.read(str(tmp_path / 'a'))['status'] == 'preempted'  # It has saved.


@pytest.mark.soak
def test_a_real_sbatch_reads_every_header(cluster, tmp_path):
  folder = tmp_path / 'it\'s a "folder" 100% #1'
  job = _submit(cluster, folder, '--engine_arg=--comment=a "b" \\ c', flags=[*trainings.FLAGS, '--set=no_such_field=1'])
  assert cluster.wait(job, ['COMPLETED', 'FAILED']) == 'FAILED'
  assert 'no_such_field' in (folder / 'run.log').read_text()
  shown = cluster.run('scontrol', 'show', 'job', '-o', job)
  assert 'Comment=a "b" \\ c' in shown and 'Restarts=0' in shown and 'ExitCode=2:0' in shown
