"""The requests of a run's page, and the processes that it may start."""

import dataclasses
import json
import pathlib
import subprocess
import sys
import time

import pytest

from official_ext.base import processes as processes_lib
from official_ext.cli import main as cli
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_index
from tests.operations.imports import run_images_test
from tests.operations.imports import sources
from tests.operations.runs import folders
from tests.operations.runs import run_checkpoints_test
from tests.operations.runs.folders import event

_SECRET = 'hunter2-hunter2'


@pytest.fixture(scope='module')
def console(tmp_path_factory, start_console, driver):
  return start_console(tmp_path_factory.mktemp('runs'), driver=driver)


def _make(console, name, events=(), **values):
  return folders.make(console.context.root, name, events, **values)


def test_all_about_a_run(console):
  events = [event('train', 10, training_loss='NaN', accuracy=0.5)]
  run = _make(console, 'a b/ü', events, identity=folders.ended_process(), status='failed', error='no data')
  found = console.get('/api/run', run=run.name)
  expected = json.loads(json.dumps(run_index.summary_of(run).as_dict()))
  del expected['path']
  assert found['summary'] == expected
  assert found['summary']['train'] == {'training_loss': 'NaN', 'accuracy': 0.5}
  assert found['record']['git_commit'] == 'a' * 40
  assert [(each['mode'], each['status'], each['reason']) for each in found['modes']] == [('train', 'failed', 'no data')]
  assert (found['can_resume'], found['tensorboard'], found['profile']) == ('', None, None)
  assert console.try_get('/api/run', run='none')[0] == 400
  table = {'first': 3, 'last': 4, 'programs': 1, 'seconds': 0.5, 'rows': {'compute': 0.25, 'host': 0.25}}
  pathlib.Path(run.path, 'profile.json').write_text(json.dumps(table))
  assert console.get('/api/run', run=run.name)['profile'] == table


def test_the_parts_that_a_run_has(console):
  run = _make(console, 'parts', identity=folders.ended_process(), status='failed')
  assert console.get('/api/run', run=run.name)['parts'] == ['config']
  assert console.get('/api/run/media', run=run.name) == {'completions': False, 'images': False}
  events = [event('train', 1), event('completions', 1, prompts=['a'], completions=['b'])]
  pathlib.Path(run.file('events.jsonl')).write_text(''.join(f'{json.dumps(each)}\n' for each in events))
  pathlib.Path(run.log_path('eval')).write_text('one\n')
  pathlib.Path(run.file('run.eval.json')).write_text(json.dumps(folders.record(folders.ended_process())))
  run_checkpoints_test._save(pathlib.Path(run.path), 'ckpt-1')
  run_images_test._write(
    run, 'validation/events.out.tfevents.1', run_images_test.record('digits', 4, [run_images_test.png(8, 8, 99)])
  )
  assert console.get('/api/run', run=run.name)['parts'] == ['log', 'config', 'checkpoints', 'events']
  assert console.get('/api/run/media', run=run.name) == {'completions': True, 'images': True}


def test_an_imported_run_is_shown_and_not_started(console, tmp_path):
  sources.write_tensorboard(tmp_path / 'logs/imported', [(1, {'train/loss': 1.0}), (2, {'train/loss': 0.5})])
  sources.imported(tmp_path / 'logs', console.context.root)
  found = console.get('/api/run', run='imported')
  assert (found['summary']['status'], found['summary']['train']) == ('finished', {'loss': 0.5})
  assert found['can_resume'] == (
    'imported: was imported from tensorboard, and cannot be resumed; train a new run in another folder'
  )
  (curve,) = console.get('/api/curves', run='imported', name='train/loss')['curves']
  assert (curve['x'], curve['y']) == ([1, 2], [1.0, 0.5])
  status, answer = console.try_post('/api/runs/resume', runs=['imported'], train_steps=100)
  assert status == 200 and 'cannot be resumed' in json.dumps(answer), answer
  assert not (pathlib.Path(console.context.root) / 'imported/started.json').exists()


def test_the_log_continues_where_it_was(console):
  run = _make(console, 'log')
  path = pathlib.Path(run.path, 'run.log')
  assert console.get('/api/run/log', run='log') == {'lines': [], 'place': 0, 'follows': False}
  path.write_text(f'one <b>\x1b[31m\npassword={_SECRET}\nhalf')
  found = console.get('/api/run/log', run='log')
  assert found['lines'][0] == 'one <b>\\x1b[31m' and _SECRET not in found['lines'][1] and len(found['lines']) == 2
  with path.open('a') as file:
    file.write(' a line\n')
  again = console.get('/api/run/log', run='log', **{'from': found['place']})
  assert (again['lines'], again['follows'], again['place']) == (['half a line'], True, path.stat().st_size)
  path.write_text('new\n')  # Begun anew.
  found = console.get('/api/run/log', run='log', **{'from': again['place']})
  assert (found['lines'], found['follows']) == (['new'], False)
  path.write_text('x' * (3 << 20) + '\nlast\n')
  assert console.get('/api/run/log', run='log')['lines'] == ['last']
  path.write_text('y' * (3 << 20))
  assert len(console.get('/api/run/log', run='log')['lines'][0]) == 10_000
  for wrong in ({'mode': '../x'}, {'from': '-1'}, {'from': 'x'}):
    assert console.try_get('/api/run/log', run='log', **wrong)[0] == 400


def test_the_configuration_shows_what_its_command_gives(console):
  command = '--set=learning_rate=0.5 --params_override=trainer.train_steps=100 --config_file=own.yaml'
  run = _make(
    console,
    'config',
    command=f'{sys.executable} train.py --experiment=digits --mode=train --model_dir=x {command}',
    cwd=str(pathlib.Path(console.context.root, 'config')),
  )
  pathlib.Path(run.path, 'own.yaml').write_text('trainer:\n  best_checkpoint_eval_metric: accuracy\n')
  found = console.get('/api/run/config', run='config')
  rate = 'trainer.optimizer_config.learning_rate.cosine.initial_learning_rate'
  assert found['short_names'] == {'learning_rate': rate}
  assert found['values'][rate] == 0.001
  assert sorted(found['given']) == ['trainer.best_checkpoint_eval_metric', rate, 'trainer.train_steps']
  pathlib.Path(run.path, 'params.yaml').write_text(f'task:\n  password: {_SECRET}\n')
  assert _SECRET not in json.dumps(console.get('/api/run/config', run='config'))


def test_what_is_other_than_the_experiments_own_is_named_by_the_driver(console):
  driver = console.context.driver
  flags = ['--experiment=digits_mlp', '--mode=train', f'--model_dir={console.context.root}/none']
  own = driver.check(flags, params=True)['params']
  run = _make(console, 'changed', experiment='digits_mlp')
  path = pathlib.Path(run.path, 'params.yaml')
  path.write_text(own)
  assert console.get('/api/run/config', run='changed', defaults=1)['defaults'] == {}
  steps = next(line for line in own.splitlines() if line.startswith('  train_steps:'))
  path.write_text(own.replace(steps, '  train_steps: 12345\n  gone: 1'))
  found = console.get('/api/run/config', run='changed', defaults=1)
  assert found['defaults'] == {'trainer.train_steps': int(steps.split()[1]), 'trainer.gone': '-'}
  _make(console, 'unknown', experiment='no_such_experiment')
  assert not pathlib.Path(f'{run.path}.defaults').exists()
  status, answer = console.try_get('/api/run/config', run='unknown', defaults=1)
  assert status == 400 and 'no_such_experiment' in answer['errors'][0]


def test_checkpoints_have_the_metrics_of_their_step_and_wall_time_has_parts(console):
  events = [event('start', 0), event('train', 4, steps_per_second=2.0), event('eval', 4, accuracy=0.5, seconds=1.0)]
  folder = pathlib.Path(_make(console, 'timed', [*events, event('train', 8, steps_per_second=2.0)]).path)
  for name in ('ckpt-4', 'ckpt-8'):
    run_checkpoints_test._save(folder, name)
  found = console.get('/api/run/checkpoints', run='timed')['checkpoints']
  assert [(each['name'], each['logs'].get('accuracy')) for each in found] == [('ckpt-4', 0.5), ('ckpt-8', None)]
  spent = console.get('/api/run/goodput', run='timed')['goodput']
  assert (spent['seconds'], spent['training'], spent['evaluation'], spent['other']) == (8, 4, 1, 3)
  _make(console, 'untimed', events[:1])
  assert console.get('/api/run/goodput', run='untimed')['goodput'] is None


def test_checkpoints_events_and_images(console):
  run = _make(console, 'made', [event('start', 0), event('train', 1, loss=1.0), event('eval', 1, accuracy=0.5)])
  folder = pathlib.Path(run.path)
  run_checkpoints_test._save(folder, 'ckpt-1')
  (found,) = console.get('/api/run/checkpoints', run='made')['checkpoints']
  assert (found['name'], found['step'], found['damage']) == ('ckpt-1', 1, '')
  found = console.get('/api/run/timeline', run='made')
  assert [each['event'] for each in found['events']] == ['start', 'eval']
  image = run_images_test.png(3, 2, 7)
  name = 'validation/events.out.tfevents.1'
  run_images_test._write(run, name, run_images_test.record('digits', 4, [image]))
  (found,) = console.get('/api/run/images', run='made')['images']
  assert (found['tag'], found['step'], found['file']) == ('digits', 4, name)
  status, headers, content = console.request('GET', f'/api/run/image?run=made&file={name}&offset=0&number=0')
  assert (status, headers['content-type'], content) == (200, 'image/png', image)
  for wrong in ('params.yaml', '../log/run.log', '/etc/passwd', ''):
    assert console.try_get('/api/run/image', run='made', file=wrong)[0] == 400


def test_an_evaluation_is_started_with_the_runs_own_program_into_files_of_its_own(console, tmp_path):
  """The program is a script that writes down its arguments."""
  program = tmp_path / 'train.py'
  program.write_text('import json, sys\nprint(json.dumps(sys.argv[1:]))\n')
  flags = '--experiment=digits --mode=train_and_eval --model_dir=old --set=seed=1 --checkpoint=other --registry=mine'
  run = _make(
    console,
    'evaluated',
    identity=folders.ended_process(),
    status='finished',
    command=f'{sys.executable} {program} {flags}',
    cwd=str(tmp_path),
  )
  folder = pathlib.Path(run.path)
  run_checkpoints_test._save(folder / 'best', 'best_ckpt-7')
  before = {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}
  status, answer = console.try_post('/api/run/evaluate', run='evaluated', checkpoint='best/best_ckpt-8')
  assert (status, 'it has best/best_ckpt-7' in answer['errors'][0]) == (400, True)
  assert console.post('/api/run/evaluate', run='evaluated', checkpoint='best/best_ckpt-7') == {'mode': 'eval'}
  log = run.log_path('eval')
  deadline = time.monotonic() + 60
  while not (run.started('eval') or {}).get('ended'):
    assert time.monotonic() < deadline
    time.sleep(0.02)
  given = json.loads(pathlib.Path(log).read_text().splitlines()[-1])
  assert given == [
    '--experiment=digits',
    '--mode=eval',
    f'--model_dir={run.path}',
    '--registry=mine',
    f'--config_file={run.path}/params.yaml',
    f'--checkpoint={run.path}/best/best_ckpt-7',
  ]
  assert pathlib.Path(log).name == 'run.eval.log'
  assert {path: path.read_bytes() for path in before} == before
  assert run_folders.get_run(console.context.root, 'evaluated').modes() == ['train', 'eval']
  # Its output is shown beside that of the training.
  assert console.get('/api/run/log', run='evaluated', mode='eval')['lines']


def test_an_evaluation_is_stopped_and_the_training_beside_it_continues(console):
  processes = [subprocess.Popen(['sleep', '600']) for _ in range(2)]
  try:
    own = processes_lib.own_identity()
    training, evaluation = (
      dataclasses.replace(own, pid=each.pid, pid_start=processes_lib.start_of(each.pid)) for each in processes
    )
    run = _make(console, 'both', identity=training)
    pathlib.Path(run.path, 'run.eval.json').write_text(json.dumps(folders.record(evaluation, mode='eval')))
    assert console.try_post('/api/run/stop', run='both', mode='export')[0] == 400
    console.post('/api/run/stop', run='both', mode='eval')
    assert processes[1].wait(30) == -15
    assert processes[0].poll() is None
    found = {each['mode']: each['status'] for each in console.get('/api/run', run='both')['modes']}
    assert found == {'train': 'running', 'eval': 'dead'}
    assert cli.main(['runs', 'stop', console.context.root, 'both', '--mode=eval']) == 4  # It has ended.
    assert processes[0].poll() is None
  finally:
    for each in processes:
      each.kill()
      each.wait()


def test_a_get_starts_nothing(console):
  _make(console, 'still', identity=folders.ended_process(), status='finished')
  for path in ('/api/run/evaluate', '/api/run/stop', '/api/run/tensorboard', '/api/run/tensorboard/stop'):
    assert console.request('GET', f'{path}?run=still')[0] == 404 or console.request('GET', path)[0] == 405
  assert not pathlib.Path(console.context.root, 'still', 'started.eval.json').exists()
