"""Tests of official-ext sweep."""

import json
import pathlib
import shlex
import subprocess
import sys

import pytest
import yaml

from official_ext.cli import main
from official_ext.cli import sweep_check
from official_ext.operations.queue import queue_folder
from official_ext.operations.sweeps import sweep_folder
from tests.operations.queue import queues
from tests.operations.sweeps import trials


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
  """run(command line) -> (status, stdout, stderr) of `official-ext sweep`, in a folder with a program."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'program.py').write_text(trials.PROGRAM)

  def run(line):
    status = main.main(['sweep', *shlex.split(line)])
    return (status, *capsys.readouterr())

  yield run
  if (tmp_path / 'runs').is_dir():  # A dispatcher that the command has started ends by itself.
    queues.until(lambda: queue_folder.Queue('runs').dispatcher() is None)


def write(values, name='lr.yaml'):
  pathlib.Path(name).write_text(yaml.safe_dump({'program': 'program.py', 'method': 'grid', **values}))


def test_the_goal_of_an_unknown_metric_is_assumed(run):
  write({'metric': {'name': 'x'}, 'parameters': {'x': {'values': [0.5, 0.3]}}})
  stderr = run('lr.yaml')[2]
  assert 'warning: metric.goal: the name x does not imply whether higher or lower is better, and minimize is' in stderr


@pytest.mark.slow
def test_a_file_is_run_shown_and_grows(run):
  write({'metric': {'name': 'loss'}, 'parameters': {'x': {'values': [0.5, 0.3]}}})
  text = pathlib.Path('lr.yaml').read_text()
  status, stdout, _ = run('lr.yaml')
  assert status == 0
  assert stdout.endswith('sweep lr: 2 points: 2 finished\nsweep lr: the best is point 2 (002-x=0.3): loss 0.2\n')
  assert pathlib.Path('runs/lr/sweep.yaml').read_text() == text
  assert sorted(path.name for path in pathlib.Path('runs/lr').glob('0*')) == ['001-x=0.5', '002-x=0.3']
  shown = run('show runs/lr')[1]
  rows = [line.split() for line in shown.splitlines()]
  assert rows[5:8] == [['POINT', 'STATUS', 'STEP', 'loss', 'x'], ['2', 'finished', '5', '0.2', '0.3'],
                       ['1', 'finished', '5', '0.24', '0.5']]  # fmt: skip
  assert run('runs/lr --set=x=0.3,0.5,0.4')[1].splitlines()[-2] == 'sweep lr: 3 points: 3 finished'
  assert run('lr.yaml')[::2] == (
    2,
    'error: parameters.x.values: [0.3, 0.5, 0.4] -> [0.5, 0.3]\nerror: the points in '
    f'{pathlib.Path("runs/lr").resolve()} are of another search; only run_cap may grow, and a grid; --name=NAME begins '
    'anew\n',
  )
  listed = json.loads(run('list --json')[1])
  assert [(each['name'], each['status'], each['counts'], each['best']['value']) for each in listed] == [
    ('lr', 'finished', {'finished': 3}, 0.2)
  ]
  values = json.loads(run('show runs lr --json --histories')[1])
  assert values['points'][1]['history'][-1] == [5, 0.2]
  assert values['points'][1]['run'] == 'lr/002-x=0.3'


@pytest.mark.slow
def test_without_a_file_parameters_make_a_grid(run):
  write({'name': 'b c', 'parameters': {'x': {'value': 1.0}}}, 'a.yaml')
  status, stdout, _ = run('a.yaml some/runs --set=x=0.1,0.2 --metric=loss --slots=2')
  assert (status, stdout.splitlines()[-2]) == (0, 'sweep b c: 2 points: 2 finished')
  written = yaml.safe_load(pathlib.Path('some/runs/b c/sweep.yaml').read_text())
  assert written['parameters'] == {'x': {'values': [0.1, 0.2]}}
  assert run('show some/runs/b\\ c')[0] == 0
  queues.until(lambda: queue_folder.Queue('some/runs').dispatcher() is None)


@pytest.mark.slow
def test_points_are_stopped_deleted_and_resume_in_the_background(run):
  write({'metric': {'name': 'loss'}, 'parameters': {'x': {'values': [0.5, 0.3]}, 'seconds': {'value': 5}}})
  status, stdout, _ = run('lr.yaml runs --slots=2 --start')
  assert status == 0
  assert stdout.startswith('sweep lr: its controller is process ')
  folder = sweep_folder.SweepFolder('runs', 'lr')
  assert run('runs/lr')[::2] == (4, f'error: lr: {folder.controller()} controls it already\n')
  queues.until(lambda: len(list(pathlib.Path('runs/lr').glob('0*/events.jsonl'))) == 2)
  assert run('stop runs lr')[1] == 'sweep lr: is stopped; points 1, 2 save and end\n'
  queues.until(lambda: folder.controller() is None)
  counts = lambda: json.loads(run('show runs lr --json')[1])['counts']
  queues.until(lambda: counts() == {'stopped': 2})
  assert run('delete runs lr 1')[0] == 0
  assert run('resume runs lr 2')[1].splitlines()[0] == 'sweep lr: points 2 are queued, and continue'
  status, stdout, _ = run('runs/lr')
  assert stdout.splitlines()[-2] == 'sweep lr: 2 points: 1 finished, 1 deleted'
  assert status == 0


@pytest.mark.parametrize(
  ('line', 'expected'),
  [
    ('', 'name the file of a sweep, or give --set=NAME=VALUE,VALUE'),
    ('none.yaml', 'none.yaml: no such file'),
    ('--set=x', '--set=x: expected NAME=VALUE,VALUE'),
    ('--set=x=1,2', 'experiment: name the one to run, as --experiment does, or a program'),
    ('bad.yaml', "method: 'gird' is invalid; choose one of grid, random, bayes"),
    ('list nowhere', 'nowhere: no such folder; name that of your runs'),
    ('show runs', 'runs: is not a sweep; name the folder of the runs and the sweep'),
    ('show runs x', 'x: no such sweep in'),
    ('stop . ../x', '--name=../x: must be a name in'),
    ('bad.yaml --slots=0', "sweep: argument --slots: invalid integer of 1 or more value: '0'"),
    ('bad.yaml a b', 'b: expected a file and the folder of the runs, and no more'),
  ],
)
def test_a_mistake_is_one_line(run, line, expected):
  write({'method': 'gird', 'parameters': {'x': {'value': 1}}}, 'bad.yaml')
  status, stdout, stderr = run(line)
  assert (status, stdout) == (2, '')
  assert stderr.startswith(f'error: {expected}')
  assert stderr.count('\n') == 1
  assert not pathlib.Path('runs').exists()


_WANDB = """program: train.py
method: bayes
metric: {name: validation_loss, goal: minimize}
parameters:
  learning_rate: {min: 0.0001, max: 0.1}
  optimizer: {values: [adam, sgd]}
"""
_WANDB_COMMAND = 'command:\n- ${env}\n- ${interpreter}\n- ${program}\n- ${args}\n'
_DRIVER = 'import official_ext\nfrom official_ext.cli import train\ntrain.run()\n'
_SCRIPT = 'import argparse\nimport wandb\nparser = argparse.ArgumentParser()\nparser.add_argument("--learning_rate")\n'


@pytest.mark.parametrize(
  ('program', 'file', 'expected'),
  [
    (None, _WANDB, 'experiment: is missing, and train.py is a driver; add `experiment: NAME` to the file'),
    (_DRIVER, _WANDB, 'experiment: is missing, and train.py is a driver; add `experiment: NAME` to the file'),
    (_SCRIPT, _WANDB, 'program: train.py has no flag --model_dir; add a `command` with ${args} and ${model_dir}'),
    (_SCRIPT, _WANDB + _WANDB_COMMAND, 'command: must have ${model_dir}'),
  ],
  ids=['no program', 'a driver', 'a script', 'a script with a command'],
)
def test_an_example_of_weights_and_biases_is_refused_before_anything_starts(run, program, file, expected):
  if program:
    pathlib.Path('train.py').write_text(program)
  pathlib.Path('wandb.yaml').write_text(file)
  status, stdout, stderr = run('wandb.yaml')
  assert (status, stdout) == (2, '')
  assert stderr.startswith(f'error: {expected}') and stderr.count('\n') == 1
  assert not pathlib.Path('runs').exists()


def test_the_driver_checks_points_by_short_names_and_paths(monkeypatch):
  monkeypatch.chdir(queues.ROOT)
  flags = ['--experiment=digits_mlp', '--mode=train_and_eval', '--set=train_steps=9']
  good = [['--set=learning_rate=0.0001'], ['--set=batch_size=64']]
  bad = [['--set=learning_rat=0.1'], ['--set=batch_size=1.5'], ['--set=batch_size=1.5', '--set=task.modle.x=1']]
  found = sweep_check.mistakes_in(flags, [*good, *bad])
  assert [line.partition(': ')[0] for line in found] == [
    'learning_rat',
    'task.train_data.global_batch_size',
    'task.modle',
  ]
  assert 'did you mean learning_rate' in found[0]


def test_nothing_of_it_imports_tensorflow_or_optuna_before_it_is_needed():
  code = 'import sys, official_ext.cli.sweep\nassert not {"tensorflow", "optuna", "scipy"} & sys.modules.keys()'
  subprocess.run([sys.executable, '-c', code], cwd=queues.ROOT, check=True)
