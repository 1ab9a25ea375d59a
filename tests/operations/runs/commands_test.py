"""Tests for commands."""

import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

import pytest

from official_ext.base import errors
from official_ext.operations.runs import commands
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_processes
from tests.operations.runs import folders


def _command(*flags, program='train.py'):
  return shlex.join([sys.executable, program, *flags])


_FLAGS = ('--experiment=digits', '--mode=train_and_eval')


def test_a_resume_is_the_command_that_was_given(tmp_path):
  flags = (*_FLAGS, f'--model_dir={tmp_path}/a', "--set=task.name=it's", '--registry', 'my_tasks')
  run = folders.make(tmp_path, 'a', status='preempted', identity=folders.ended_process(), command=_command(*flags))
  found = commands.to_resume(run)
  assert found == commands.Command((sys.executable, 'train.py', *flags), '/tmp', run.path, 'train_and_eval')
  assert shlex.split(str(found)) == list(found.words)


def test_a_command_is_one_line_of_a_shell_whatever_is_in_it(tmp_path):
  word = 'a b\'c"d\\e\nf\tg\x1b[31mh\udcffü$(i)*'
  text = str(commands.Command(('printf', '%s.', word, "it's", ''), '/', '/'))
  assert text.isprintable()
  done = subprocess.run(['bash', '-c', text], capture_output=True, check=True)
  assert done.stdout == os.fsencode(f"{word}.it's..")


def test_a_resume_has_the_environment_that_matters(tmp_path, monkeypatch):
  for name, value in {'XLA_FLAGS': '--now', 'TF_NOW': '1', 'OTHER': 'now', 'HF_TOKEN': 'secret12'}.items():
    monkeypatch.setenv(name, value)
  monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
  then = {'XLA_FLAGS': "--then 'a b'", 'PYTHONPATH': str(tmp_path), 'CUDA_VISIBLE_DEVICES': '3', 'TF_ODD': 7}
  code = 'import json, os; print(json.dumps(dict(os.environ)))'
  command = shlex.join([sys.executable, '-S', '-c', code, '--model_dir=x'])
  values = {'status': 'preempted', 'identity': folders.ended_process(), 'command': command, 'cwd': str(tmp_path)}
  run = folders.make(tmp_path, 'a', **values, environment=then)
  found = commands.to_resume(run)
  assert commands.to_clone(run, str(tmp_path / 'b')).environment == found.environment
  given = [json.loads(subprocess.check_output(['bash', '-c', found.in_shell()]))]
  found.start()
  deadline = time.monotonic() + 60
  while not run.started()['ended'] and time.monotonic() < deadline:
    time.sleep(0.02)
  given.append(json.loads(run_processes.log_tail(run, 1)[0]))
  for variables in given:
    assert {**variables, **then, 'TF_ODD': None} == {**variables, 'TF_ODD': None}
    assert 'TF_NOW' not in variables
    assert (variables['OTHER'], variables['HF_TOKEN']) == ('now', 'secret12')
  assert run.started()['environment'].items() >= {name: then[name] for name in ('XLA_FLAGS', 'PYTHONPATH')}.items()
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '5')  # Who gives GPUs out says which.
  assert 'CUDA_VISIBLE_DEVICES' not in found.in_shell()
  older = folders.make(tmp_path, 'older', **values)
  assert commands.to_resume(older).in_shell() == f'cd {tmp_path} && {commands.to_resume(older)}'


def test_one_of_several_workers_is_not_started_alone(tmp_path):
  cluster = json.dumps({'cluster': {'chief': ['a:1'], 'worker': ['b:1']}, 'task': {'type': 'chief', 'index': 0}})
  values = {'status': 'failed', 'identity': folders.ended_process(), 'environment': {'TF_CONFIG': cluster}}
  run = folders.make(tmp_path, 'a', **values)
  with pytest.raises(errors.UserError, match='a: was one of 2 processes, which no launcher has started'):
    commands.to_resume(run)
  launcher = {**folders.ended_process().as_dict(), 'command': _command(*_FLAGS, '--model_dir=x'), 'environment': {}}
  assert commands.to_resume(folders.make(tmp_path, 'a', **values, launcher=launcher)).environment == {}


@pytest.mark.parametrize(
  'program',
  [['-m', 'my.train'], ['-X', 'dev', '-O', '-W', 'error', 'train.py'], ['-u', '-m', 'my.train'], ['launch.py', 'now']],
)
def test_the_program_of_a_command_is_what_python_takes_for_it(tmp_path, program):
  command = shlex.join([sys.executable, *program, *_FLAGS, '--model_dir=x'])
  run = folders.make(tmp_path, 'a', status='failed', identity=folders.ended_process(), command=command)
  expected = (sys.executable, *program, *_FLAGS, f'--model_dir={run.path}')
  assert commands.to_resume(run).words == expected


def test_a_run_that_was_moved_resumes_where_it_is(tmp_path):
  flags = (*_FLAGS, '--model_dir', 'old', '--set=train_steps=5')
  run = folders.make(
    tmp_path, 'new', status='failed', identity=folders.ended_process(), command=_command(*flags), cwd=str(tmp_path)
  )
  assert f'--model_dir={run.path}' in commands.to_resume(run).words
  os.symlink(run.path, tmp_path / 'old')  # The same folder by another name.
  assert '--model_dir' in commands.to_resume(run).words


def test_a_run_that_was_copied_takes_its_own_files(tmp_path):
  # Before: the command continued with the original's file, which may be another by now.
  flags = (*_FLAGS, '--model_dir=a', '--config_file=a/base.yaml', '--checkpoint', str(tmp_path / 'a/best/best_ckpt-4'))
  others = ('--config_file=ab/base.yaml', '--set=note=a/base.yaml')
  run = folders.make(
    tmp_path,
    'b',
    status='failed',
    identity=folders.ended_process(),
    command=_command(*flags, *others),
    cwd=str(tmp_path),
  )
  words = commands.to_resume(run).words
  own = (f'--model_dir={run.path}', f'--config_file={run.path}/base.yaml', f'--checkpoint={run.path}/best/best_ckpt-4')
  assert words[-5:] == (*own, *others)


def test_a_launcher_is_what_is_started_again(tmp_path):
  launch = shlex.join(
    [sys.executable, '/bin/official-ext', 'launch', '--num_workers=2', '--', *_FLAGS, '--model_dir=x']
  )
  launcher = {**folders.ended_process().as_dict(), 'command': launch}
  run = folders.make(tmp_path, 'a', status='failed', identity=folders.ended_process(), launcher=launcher)
  expected = shlex.split(launch.replace('--model_dir=x', f'--model_dir={run.path}'))
  assert list(commands.to_resume(run).words) == expected
  clone = commands.to_clone(run, str(tmp_path / 'b'), ['seed=2']).words
  assert clone[:5] == (sys.executable, '/bin/official-ext', 'launch', '--num_workers=2', '--')
  assert clone[5:8] == (*_FLAGS, f'--model_dir={tmp_path}/b')


@pytest.mark.parametrize('name', ['train_steps', 'trainer.train_steps', None])
def test_a_finished_run_is_extended_again_and_again(tmp_path, name):
  """Under the name that the command has: the driver refuses a field that is set twice."""
  ended, short_names = folders.ended_process(), {'train_steps': 'trainer.train_steps'}
  values = dict(status='finished', identity=ended, short_names=short_names)
  command = _command('--experiment=digits', '--set=seed=1', *([f'--set={name}=100'] if name else []))
  for steps in (150, 200):
    run = folders.make(tmp_path, 'a', step=steps - 50, command=command, **values)
    words = commands.to_resume(run, steps).words
    sets = [word.removeprefix('--set=') for word in words if word.startswith('--set=')]
    assert sorted(sets) == sorted(['seed=1', f'{name or "trainer.train_steps"}={steps}'])
    command = shlex.join(words)
  with pytest.raises(errors.UserError, match='--train_steps=150: a has done 150 steps'):
    commands.to_resume(run, 150)
  params = pathlib.Path(run.file('params.yaml'))
  params.write_text(params.read_text().replace('train_steps: 100', 'train_epochs: 3.0'))
  with pytest.raises(errors.UserError, match='is set by trainer.train_epochs'):
    commands.to_resume(run, 250)


def test_what_cannot_resume_is_refused(tmp_path):
  ended = folders.ended_process()
  living = folders.make(tmp_path, 'living')
  finished = folders.make(tmp_path, 'finished', status='finished', identity=ended)
  masked = folders.make(
    tmp_path, 'masked', status='failed', identity=ended, command=_command('--set=task.url=https://me:***@host/')
  )
  none = folders.make(tmp_path, 'none', record_values=False)
  broken = folders.make(tmp_path, 'broken', status='failed', identity=ended, command='python "train')
  for run, message in (
    (living, 'living: is running; wait for it, or stop it first'),
    (finished, 'finished: has finished; `official-ext runs resume --train_steps=N` extends it'),
    (masked, 'masked: its command had a password or the like, which is not kept: --set=task.url='),
    (none, 'none: there is no record of how it was started'),
    (broken, 'broken: its record does not contain its command'),
  ):
    with pytest.raises(errors.UserError, match=message):
      commands.to_resume(run)


def test_a_clone_is_the_resolved_configuration_with_changes(tmp_path):
  flags = ('-experiment', 'digits', '--mode=train', '--model_dir=a', '--set=seed=1', '--config_file=c.yaml', '--branch')
  flags += (
    '--params_override=a.b=1',
    '--gin_params=x.y=1',
    '--tpu',
    'local',
    '--profile_steps=1,2',
    '--registry=tasks',
  )
  run = folders.make(tmp_path, 'a', status='finished', identity=folders.ended_process(), command=_command(*flags))
  found = commands.make_clone(run, str(tmp_path), None, ['learning_rate=1e-2', "task.name=it's"])
  new = str(tmp_path / 'a-2')
  assert found.words[2:] == (
    '--experiment=digits',
    '--mode=train_and_eval',  # The record's: the last command.
    f'--model_dir={new}',
    '--gin_params=x.y=1',
    '--tpu=local',
    '--registry=tasks',
    f'--config_file={new}/base_params.yaml',
    '--set=learning_rate=1e-2',
    "--set=task.name=it's",
  )
  assert (found.cwd, found.model_dir) == ('/tmp', new)
  with open(f'{new}/base_params.yaml') as copy, open(run.file('params.yaml')) as original:
    assert copy.read() == original.read()
  assert not run_folders.is_run(new)


def test_a_clone_never_meets_another_folder(tmp_path):
  run = folders.make(tmp_path, 'a-2', status='finished', identity=folders.ended_process())
  (tmp_path / 'a-3').mkdir()
  (tmp_path / 'a-4').symlink_to('nowhere')
  assert commands.make_clone(run, str(tmp_path), None).model_dir == str(tmp_path / 'a-5')
  for name in ('a-3', 'a-4', 'a-2'):
    with pytest.raises(errors.UserError, match='exists already'):
      commands.make_clone(run, str(tmp_path), name)
  for name in ('../out', '/out', '.hidden', 'b/.trash/c', '.', 'b/..'):
    with pytest.raises(errors.UserError, match='must be a name in'):
      commands.make_clone(run, str(tmp_path), name)
  for name in ('a-2/train/b', 'a-2/ckpt-7'):
    with pytest.raises(errors.UserError, match='a-2 is a run, and in its folder'):
      commands.make_clone(run, str(tmp_path), name)
  with pytest.raises(errors.UserError, match='--set=seed: expected NAME=VALUE'):
    commands.make_clone(run, str(tmp_path), 'b', ['seed'])
  os.remove(run.file('params.yaml'))
  with pytest.raises(errors.UserError, match='has no params.yaml'):
    commands.make_clone(run, str(tmp_path), 'b')
  assert sorted(os.listdir(tmp_path)) == ['a-2', 'a-3', 'a-4', 'a-5']


def test_remote_paths_of_a_run_that_was_copied(tmp_path):
  # Before: `gs://` was joined to the folder, and became `gs:/`.
  def resumed(model_dir, *flags):
    command = _command(*_FLAGS, f'--model_dir={model_dir}', *flags)
    run = folders.make(
      tmp_path, 'b', status='failed', identity=folders.ended_process(), command=command, cwd=str(tmp_path)
    )
    return run.path, commands.to_resume(run).words[-3:]

  others = ('--checkpoint=gs://b/base/ckpt-4', '--config_file=a.yaml')
  path, words = resumed('a', *others)
  assert words == (f'--model_dir={path}', *others)
  path, words = resumed('.', *others)
  assert words == (f'--model_dir={path}', others[0], f'--config_file={path}/a.yaml')
  path, words = resumed('gs://b/a', '--checkpoint=gs://b/a/best/best_ckpt-4', '--config_file=a.yaml')
  assert words == (f'--model_dir={path}', f'--checkpoint={path}/best/best_ckpt-4', '--config_file=a.yaml')
