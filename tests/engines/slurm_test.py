"""Tests of batch scripts: run by bash with the commands of SLURM in their place, and on a real SLURM of one node."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from official_ext.cli import main
from official_ext.runtime import run_status
from tests.engines import rendered
from tests.engines import slurm_cluster

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_headers_are_those_of_the_options(capsys):
  lines = rendered.text(capsys, 'slurm', '--engine_arg=--qos=high', '--engine_arg=--exclusive').splitlines()
  assert lines[0] == '#!/bin/bash'
  headers = [line.removeprefix('#SBATCH ') for line in lines if line.startswith('#SBATCH ')]
  assert headers == [
    *('--job-name=a', '--nodes=2', '--ntasks-per-node=4', '--gpus-per-task=1', '--time=4:00:00', '--partition=gpu'),
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
    (['--env=TF_CONFIG={}'], '/runs/a', 'set by the engine'),
    (['--env=WANDB_API_KEY=abcdefghij'], '/runs/a', 'docs/submit.md'),
  ],
)
def test_what_cannot_be_said_is_refused(capsys, words, model_dir, expected):
  error = rendered.text(capsys, 'slurm', *words, model_dir=model_dir, status=2)
  assert expected in error and len(error.splitlines()) == 1 and 'abcdefghij' not in error


def _run(capsys, tmp_path, status, state='RUNNING', env=None, words=()):
  """Runs a script whose srun writes its words down, and ends so; returns (status, words of srun, of scontrol)."""
  script = rendered.text(capsys, 'slurm', f'--max_restarts={3}', *words, flags=rendered.ODD)
  folder = tmp_path / 'bin'
  rendered.fake(folder, 'srun', f'printf "%s\\0" "$@" > {folder}/srun.args; echo "$OFFICIAL_EXT_SECRET"; exit {status}')
  rendered.fake(folder, 'scontrol', f'echo "JobId=7 JobState={state} Reason=None"')
  variables = {'PATH': rendered.path_of(folder), 'SLURM_JOB_ID': '7', **(env or {})}
  done = subprocess.run(['bash', '-s'], input=script, env=variables, capture_output=True, text=True, timeout=60)
  told = rendered.words_of(folder, 'scontrol').split() if (folder / 'scontrol.words').exists() else []
  return done, (folder / 'srun.args').read_text().split('\0')[:-1], told


def test_every_word_reaches_train_py_as_it_was(capsys, tmp_path):
  done, words, told = _run(capsys, tmp_path, 0)
  first = words.index(rendered.PYTHON)
  assert words[first:] == [rendered.PYTHON, '-u', str(ROOT / 'train.py'), '--model_dir=/runs/a', *rendered.ODD]
  assert words[:first] == ['--kill-on-bad-exit=0', '--wait=0', '--distribution=block']
  assert done.returncode == 0 and not told
  assert len(done.stdout.strip()) == 64  # 32 random bytes.


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
  done, _, told = _run(capsys, tmp_path, status, state, env)
  assert done.returncode == status, done.stderr
  assert told[-2:] == (['requeue', requeued] if requeued else told[-2:])
  assert ('requeue' in told) == bool(requeued)


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


def test_an_array_has_the_trials_of_a_sweep(capsys, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'lr.yaml').write_text(
    f'program: {ROOT}/train.py\nmethod: grid\nmetric: {{name: accuracy, goal: maximize}}\n'
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
  assert main.main(words) == 2  # The array has them.
  assert 'slurm has it, as 12_1' in capsys.readouterr().err
  rendered.fake(folder, 'srun', f'printf "%s\\n" "$@" > {folder}/srun.args; echo told')
  env = {'PATH': str(folder), 'SLURM_JOB_ID': '14', 'SLURM_ARRAY_JOB_ID': '12', 'SLURM_ARRAY_TASK_ID': '2'}
  subprocess.run(['bash', '-s'], input=script, env=env, text=True, timeout=60, check=True)
  run = tmp_path / 'runs/lr' / names[1]
  assert (run / 'run.log').read_text() == 'told\n'
  assert (folder / 'srun.args').read_text().splitlines()[-2:] == [f'--model_dir={run}', '--set=learning_rate=0.01']


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


# A real SLURM.

STEPS = 60
FLAGS = [
  *('--experiment=digits_mlp', '--mode=train', f'--set=train_steps={STEPS}', '--set=steps_per_loop=5'),
  *('--set=checkpoint_interval=20', '--set=runtime.enable_xla=false', '--set=trainer.summary_interval=5'),
]


@pytest.fixture(scope='module')
def cluster(tmp_path_factory, unused_ports):
  if reason := slurm_cluster.missing():
    pytest.skip(f'no SLURM here: {reason}')
  with slurm_cluster.running(tmp_path_factory.mktemp('slurm'), unused_ports(2)) as found:
    yield found


def _submit(cluster, model_dir, *words, flags=FLAGS):
  """Submits a training by the command as a process of its own; returns the number of the job."""
  command = ['submit', '--engine=slurm', *words, '--', f'--model_dir={model_dir}', *flags]
  done = subprocess.run(
    [sys.executable, '-m', 'official_ext.cli.main', *command],
    cwd=ROOT,
    env={**cluster.environment, 'CUDA_VISIBLE_DEVICES': '', 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout.split()[4].rstrip(':')


def _wait_for_step(cluster, job, model_dir, step):
  deadline = time.monotonic() + 900
  while ((run_status.read(str(model_dir)) or {}).get('step') or 0) < step:
    is_over = cluster.state(job) in ('FAILED', 'CANCELLED', 'COMPLETED')
    assert not is_over and time.monotonic() < deadline, (model_dir / 'run.log').read_text()
    time.sleep(0.2)


def _weights(model_dir):
  reader = tf.train.load_checkpoint(f'{model_dir}/ckpt-{STEPS}')
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if 'save_counter' not in name}


@pytest.mark.soak
def test_a_real_slurm_trains_with_two_tasks_and_a_requeue_in_the_middle(cluster, tmp_path):
  straight, requeued = tmp_path / 'straight', tmp_path / "it's $requeued"
  job = _submit(cluster, straight, '--tasks_per_node=2')
  assert cluster.wait(job, ['COMPLETED', 'FAILED']) == 'COMPLETED', (straight / 'run.log').read_text()
  job = _submit(cluster, requeued, '--tasks_per_node=2')
  _wait_for_step(cluster, job, requeued, 20)
  cluster.run('scontrol', 'requeue', job)
  assert cluster.wait(job, ['COMPLETED', 'FAILED']) == 'COMPLETED', (requeued / 'run.log').read_text()
  record = run_status.read(str(requeued))
  assert (record['status'], record['attempt'], record['step']) == ('finished', 2, STEPS)
  expected, found = _weights(straight), _weights(requeued)
  assert expected.keys() == found.keys() and len(expected) > 4
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.soak
def test_a_real_slurm_saves_before_the_time_is_over_and_a_cancelled_job_stays_so(cluster, tmp_path):
  flags = ['--experiment=digits_mlp', '--mode=train', '--set=train_steps=1000000', '--set=steps_per_loop=5']
  # A minute is the least time there is; the signal comes up to a minute before the moment that is asked for.
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
  job = _submit(cluster, folder, '--engine_arg=--comment=a "b" \\ c', flags=[*FLAGS, '--set=no_such_field=1'])
  assert cluster.wait(job, ['COMPLETED', 'FAILED']) == 'FAILED'
  assert 'no_such_field' in (folder / 'run.log').read_text()
  shown = cluster.run('scontrol', 'show', 'job', '-o', job)
  assert 'Comment=a "b" \\ c' in shown and 'Restarts=0' in shown and 'ExitCode=2:0' in shown
