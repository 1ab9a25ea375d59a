"""Tests of official-ext submit: submission, notes, refusals and following."""

import base64
import contextlib
import json
import os
import stat
import subprocess
import sys
import threading
import time

import pytest
import yaml

from official_ext.base import processes
from official_ext.cli import main
from official_ext.cli import submit
from official_ext.operations.queue import queue_folder
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import statuses
from tests import tiers
from tests.operations.engines import rendered


@pytest.fixture
def engines(tmp_path, monkeypatch):
  """The folder of the commands of engines, which is all that there is in PATH."""
  folder = tmp_path / 'bin'
  monkeypatch.setenv('PATH', rendered.path_of(folder))
  return folder


def _submit(capsys, engine, *words, model_dir, flags=()):
  status = main.main(
    ['submit', f'--engine={engine}', *rendered.WORDS[engine], *words, '--', f'--model_dir={model_dir}', *flags]
  )
  return (status, *capsys.readouterr())


@pytest.mark.parametrize(
  ('engine', 'command'),
  [('slurm', 'sbatch'), ('ray', 'ray'), ('jobset', 'kubectl')],
)
def test_a_missing_command_is_one_line(capsys, engines, tmp_path, engine, command):
  status, out, err = _submit(capsys, engine, model_dir=tmp_path / 'a')
  assert (status, out, len(err.splitlines())) == (2, '', 1)
  assert f'{command}: no such command' in err
  assert not run_folders.is_run(str(tmp_path / 'a'))


@pytest.mark.parametrize(
  ('engine', 'command', 'answer', 'asked'),
  [
    ('slurm', 'sbatch', '12', '--parsable'),
    ('ray', 'ray', '', '--submission-id=a'),
    ('jobset', 'kubectl', '', '--filename=-'),
  ],
)
def test_a_job_is_handed_over_and_noted(capsys, engines, tmp_path, engine, command, answer, asked):
  text = rendered.text(capsys, engine, model_dir=tmp_path / 'a')
  rendered.fake(
    engines,
    command,
    'cat > "$0.input"; for word; do case $word in *.yaml) cat "${word#--config=}" > "$0.input" ;; esac; done; '
    f"echo '{answer}'",
  )
  status, out, err = _submit(capsys, engine, model_dir=tmp_path / 'a')
  assert status == 0, err
  assert f'{engine} has it' in out
  assert asked in rendered.words_of(engines, command).splitlines()
  handed = (engines / f'{command}.input').read_text()
  if engine == 'ray':
    handed = base64.urlsafe_b64decode(rendered.words_of(engines, command).splitlines()[-1]).decode()
  assert handed == text
  run = run_folders.get_run(str(tmp_path), 'a')
  found = statuses.of_run(run)
  assert found.status == 'submitted' and engine in found.reason
  note = run.started()
  assert note['engine'] == engine and note['job'] in ('12', 'a')


def test_a_refusal_is_one_line(capsys, engines, tmp_path):
  rendered.fake(engines, 'sbatch', 'echo "sbatch: error: invalid partition: gpu" >&2; exit 1')
  status, _, err = _submit(capsys, 'slurm', model_dir=tmp_path / 'a')
  assert status == 2 and err == 'error: sbatch: refuses the job: sbatch: error: invalid partition: gpu\n'


def test_a_run_that_is_under_way_is_not_submitted_again(capsys, engines, tmp_path):
  rendered.fake(engines, 'sbatch', 'cat > $0.input; echo 12')
  rendered.fake(engines, 'squeue', 'echo PENDING')
  run = tmp_path / 'a'
  assert _submit(capsys, 'slurm', model_dir=run)[0] == 0
  status, _, err = _submit(capsys, 'slurm', model_dir=run)
  assert status == 4 and 'slurm has it, as 12' in err and '--again' in err
  assert main.main(['runs', 'resume', str(tmp_path), 'a']) == 4  # Nor is it started here.
  assert 'was submitted' in capsys.readouterr().err
  assert 'cannot be asked' in _submit(capsys, 'jobset', model_dir=run)[2]
  record = {'status': 'preempted', 'step': 3, 'attempt': 1, 'pid': 1, 'host': 'elsewhere', 'mode': 'train'}
  (run / 'run.json').write_text(json.dumps(record))
  assert statuses.of_run(run_folders.Run(str(run), 'a')).status == 'preempted'  # It has begun since.
  assert _submit(capsys, 'slurm', model_dir=run)[0] == 4  # And is requeued.
  rendered.fake(engines, 'squeue', 'exit 1')  # SLURM has forgotten it.
  assert _submit(capsys, 'slurm', model_dir=run)[0] == 0
  assert statuses.of_run(run_folders.Run(str(run), 'a')).status == 'submitted'
  assert _submit(capsys, 'slurm', '--again', model_dir=run)[0] == 0


def test_a_run_that_lives_is_refused(capsys, engines, tmp_path):
  run = tmp_path / 'a'
  run.mkdir()
  with subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE) as process:
    identity = {**processes.own_identity().as_dict(), 'pid': process.pid}
    identity['pid_start'] = processes.start_of(process.pid)
    record = {'status': 'running', 'step': 3, 'attempt': 1, 'mode': 'train', 'heartbeat': '', **identity}
    (run / 'run.json').write_text(json.dumps(record))
    rendered.fake(engines, 'sbatch', 'echo 12')
    status, _, err = _submit(capsys, 'slurm', model_dir=run)
    process.communicate(b'\n')
  assert status == 4 and 'a run lives' in err


def test_passwords_are_masked_where_they_are_shown_and_whole_where_they_are_needed(capsys, engines, tmp_path):
  flags = ['--set=tracker.api_key=hunter2hunter2']
  rendered.fake(engines, 'sbatch', 'cat > $0.input; echo 12')
  for engine in rendered.WORDS:
    assert 'hunter2' not in rendered.text(capsys, engine, flags=flags, model_dir=tmp_path / 'a')
  path = tmp_path / 'job.sh'
  assert _submit(capsys, 'slurm', f'--output={path}', model_dir=tmp_path / 'a', flags=flags)[0] == 0
  assert 'hunter2hunter2' in path.read_text() and stat.S_IMODE(path.stat().st_mode) == 0o600
  assert not (tmp_path / 'a').exists()
  _, out, err = _submit(capsys, 'slurm', model_dir=tmp_path / 'a', flags=flags)
  assert 'hunter2hunter2' in (engines / 'sbatch.input').read_text()
  assert 'hunter2' not in out + err + (tmp_path / 'a/started.json').read_text()


@pytest.mark.parametrize(
  ('words', 'expected'),
  [
    (['--engine=lsf'], 'invalid choice'),
    ([], '--engine'),
    (['--engine=slurm'], 'must follow --'),
    (['--engine=slurm', '--', '--mode=train'], '--model_dir'),
    (['--engine=jobset', '--partition=a', '--', '--model_dir=/a'], '--partition'),
    (['--engine=jobset', '--array=a.yaml'], 'has none'),
  ],
)
def test_mistakes_are_one_line(capsys, words, expected):
  if words[:1] == ['--engine=jobset']:
    words = [words[0], *rendered.WORDS['jobset'], *words[1:]]
  assert main.main(['submit', *words]) == 2
  err = capsys.readouterr().err
  assert expected in err and len(err.splitlines()) == 1


def test_a_run_is_followed_to_its_end(capsys, engines, tmp_path):
  rendered.fake(engines, 'sbatch', 'cat > $0.input; echo 12')
  run = tmp_path / 'a'

  def finish():
    while not (run / 'started.json').exists():
      time.sleep(0.02)
    time.sleep(0.2)
    _write(run, status='finished')

  thread = threading.Thread(target=finish)
  thread.start()
  status, out, _ = _submit(capsys, 'slurm', '--follow', model_dir=run)
  thread.join()
  assert status == 0
  assert out.splitlines()[-2:] == ['a: submitted: slurm has it, as 12', 'a: finished at step 9']


def _write(run, **values):
  record = {'step': 9, 'attempt': 1, 'pid': 1, 'host': 'elsewhere', 'mode': 'train', **values}
  (run / 'run.json.new').write_text(json.dumps(record))
  os.rename(run / 'run.json.new', run / 'run.json')


@tiers.parametrize('is_tried_again', [True, False], fast=[False])
def test_a_run_that_has_failed_is_followed_while_its_engine_has_it(capsys, engines, tmp_path, is_tried_again):
  run, asked = tmp_path / 'a', engines / 'squeue.words'
  rendered.fake(engines, 'sbatch', 'cat > $0.input; echo 12')
  rendered.fake(engines, 'squeue', 'echo RUNNING' if is_tried_again else '')

  def train():
    while not (run / 'started.json').exists():
      time.sleep(0.02)
    _write(run, status='failed')  # One of its workers was lost.
    while is_tried_again and not asked.exists():
      time.sleep(0.02)
    if is_tried_again:
      _write(run, status='finished', attempt=2)

  thread = threading.Thread(target=train)
  thread.start()
  status, out, _ = _submit(capsys, 'slurm', '--follow', model_dir=run)
  thread.join()
  assert asked.exists()
  assert status == (0 if is_tried_again else 1)
  assert out.splitlines()[-1] == ('a: finished at step 9' if is_tried_again else 'a: failed at step 9')


def test_the_local_engine_is_the_queue(capsys, tmp_path):
  program = tmp_path / 'program.py'
  program.write_text('import json, sys; json.dump(sys.argv[1:], open(sys.argv[1][12:] + "/args", "w"))')
  run = tmp_path / 'runs/a'
  words = ['--nodes=1', f'--program={program}', '--env=A=b c']
  status, out, err = _submit(capsys, 'local', *words, model_dir=run, flags=rendered.ODD)
  with _finished(tmp_path / 'runs'):
    assert status == 0 and out == f'local has it, as 1: {run}\n', err
  assert json.loads((run / 'args').read_text()) == [f'--model_dir={run}', *rendered.ODD]


def test_a_worker_of_the_local_engine_that_is_killed_is_replaced(capsys, tmp_path):
  program = tmp_path / 'program.py'
  program.write_text(
    'import json, os, pathlib, signal, sys, time\n'
    'index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]\n'
    'folder = pathlib.Path(sys.argv[1][12:])\n'
    'is_first = not (folder / f"start-{index}").exists()\n'
    '(folder / f"start-{index}").touch()\n'
    'while is_first and not (folder / f"start-{1 - index}").exists():\n  time.sleep(0.05)\n'
    'if is_first:\n  os.kill(os.getpid(), signal.SIGKILL) if index else sys.exit(1)\n'  # The other one loses it.
    '(folder / f"end-{index}").touch()\n'
  )
  run = tmp_path / 'runs/a'
  status, _, err = _submit(capsys, 'local', '--nodes=2', f'--program={program}', model_dir=run)
  with _finished(tmp_path / 'runs'):
    assert status == 0, err
  assert (run / 'end-0').exists() and (run / 'end-1').exists()


@contextlib.contextmanager
def _finished(runs_dir):
  """A context behind which the first job of a queue has finished."""
  queue = queue_folder.Queue(str(runs_dir))
  try:
    yield
    deadline = time.monotonic() + 120
    while (state := queue.state(1)).status != 'finished':
      assert time.monotonic() < deadline and state.status != 'failed', state
      time.sleep(0.05)
  finally:
    dispatcher = queue.dispatcher()
    if dispatcher:
      os.kill(dispatcher['pid'], 15)


# Names of flags, and refusals.


def test_one_meaning_has_one_name_in_all_engines():
  options = {engine: set(submit._module(engine).OPTIONS) for engine in submit._ENGINES}
  for engine, names in options.items():
    assert 'nodes' in names and 'gpus' in names, engine
    assert not names & set(submit._OTHER_NAMES), engine


@pytest.mark.parametrize(
  ('engine', 'word', 'hint'),
  [
    ('slurm', '--num_workers=2', 'it is --nodes here'),
    ('jobset', '--num_workers=2', 'it is --nodes here'),
    ('jobset', '--gpus_per_task=1', 'it is --gpus here'),
    ('slurm', '--mem=4G', 'it is --memory here'),
    ('jobset', '--partition=a', '--engine=slurm has it'),
    ('ray', '--nodse=2', 'did you mean --nodes?'),
    ('local', '--folow', 'did you mean --follow?'),
    ('ray', '--tasks_per_node=2', '--engine=slurm has it'),
  ],
)
def test_an_unknown_flag_is_one_line_with_the_name_it_has_here(capsys, engine, word, hint):
  status, out, err = _submit(capsys, engine, word, model_dir='/runs/a')
  flag = word.partition('=')[0]
  expected = f'error: {flag}: --engine={engine} has no such flag; {hint}; `official-ext submit --help` lists all\n'
  assert (status, out, err) == (2, '', expected)


@pytest.mark.parametrize(('text', 'shown'), [('86400s', '1440:00'), ('30:00', '30:00'), ('2-12:00:00', '2-12:00:00')])
def test_a_time_limit(capsys, text, shown):
  assert f'#SBATCH --time={shown}\n' in rendered.text(capsys, 'slurm', f'--time={text}')


@pytest.mark.parametrize('mode', [0o644, 0o666, 0o400 | 0o200, None])
def test_the_file_of_output_is_for_its_owner_alone(capsys, tmp_path, mode):
  path = tmp_path / 'job.sh'
  if mode is not None:
    path.write_text('a longer text than that of the job' * 1000)
    path.chmod(mode)
  assert _submit(capsys, 'slurm', f'--output={path}', model_dir=tmp_path / 'a')[0] == 0
  assert stat.S_IMODE(path.stat().st_mode) == 0o600
  assert path.read_text() == rendered.text(capsys, 'slurm', model_dir=tmp_path / 'a')


@pytest.mark.parametrize(
  'name',
  ['TF_CONFIG', 'OFFICIAL_EXT_INDEX', 'SLURM_PROCID', 'JOBSET_NAME', 'UID', 'status'],
)
def test_a_variable_that_an_engine_or_its_script_sets_is_refused(capsys, name):
  for engine in rendered.WORDS:
    err = rendered.text(capsys, engine, f'--env={name}=1', status=2)
    assert err == f'error: --env={name}: is set by an engine or its script; leave it out, or choose another name\n'


@pytest.mark.parametrize('engine', ['slurm', 'ray', 'jobset', 'local'])
@pytest.mark.parametrize('output', [True, False])
def test_a_name_that_is_not_utf8_is_one_line(capsys, engines, tmp_path, engine, output):
  folder = tmp_path / os.fsdecode(b'caf\xe9')
  words = [f'--output={tmp_path}/job'] if output else []
  status, out, err = _submit(capsys, engine, *words, model_dir=folder)
  assert (status, out, err.count('\n')) == (2, '', 1)
  assert 'is not UTF-8' in err and not folder.exists() and not (tmp_path / 'job').exists()


@pytest.mark.parametrize('value', ['nan', 'inf', '-1', '1.5', ''])
def test_a_number_of_seconds_is_whole(capsys, value):
  err = rendered.text(capsys, 'jobset', f'--grace_seconds={value}', status=2)
  assert '--grace_seconds' in err and err.count('\n') == 1


@pytest.mark.parametrize(
  ('words', 'expected'),
  [
    ((), 'sbatch: no such command'),
    (('--env=TF_CONFIG=1',), 'is set by an engine'),
    (('--partition=a\nb',), 'no way to say this'),
    (('--name=A B',), '--name=A B'),
    (('--engine_arg=--nodes=3',), 'is set here'),
    (('--follow',), '--follow'),
    (('--num_workers=2',), 'it is --nodes here'),
    ('refused', 'sbatch: refuses the job'),
  ],
)
def test_a_refused_array_leaves_no_sweep_behind(capsys, engines, tmp_path, monkeypatch, words, expected):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'program.py').write_text('# reads --model_dir\n')
  values = {'program': 'program.py', 'method': 'grid', 'parameters': {'x': {'values': [1, 2]}}}
  (tmp_path / 'lr.yaml').write_text(yaml.safe_dump(values))
  if words == 'refused':
    rendered.fake(engines, 'sbatch', 'echo "sbatch: error: no" >&2; exit 1')
    words = ()
  command = ['submit', '--engine=slurm', '--array=lr.yaml', '--runs_dir=runs']
  assert main.main([*command, *words]) == 2
  err = capsys.readouterr().err
  assert expected in err and err.count('\n') == 1
  assert not (tmp_path / 'runs/lr').exists()
  # Nor does a refusal take one away that was there.
  rendered.fake(engines, 'sbatch', 'echo 12')
  assert main.main(command) == 0
  rendered.fake(engines, 'sbatch', 'exit 1')
  assert main.main([*command, '--again']) == 2
  assert sorted(path.name for path in (tmp_path / 'runs/lr').glob('0*')) == ['001-x=1', '002-x=2']
