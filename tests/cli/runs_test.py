"""official-ext runs."""

import functools
import json
import os
import shlex
import signal
import time

import pytest

from official_ext.base.run_folder import run_files
from official_ext.cli import main as cli
from official_ext.cli import runs_common
from official_ext.operations.queue import queue_folder
from official_ext.operations.runs import driver as driver_lib
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import statuses as statuses_lib
from tests import driver_processes
from tests.operations.runs import folders
from tests.operations.runs import run_checkpoints_test
from tests.operations.runs.folders import event


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))


@pytest.fixture
def runs(capsys):
  """runs(command, ...) -> (status, stdout, stderr)."""

  def run(*arguments):
    code = cli.main(['runs', *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err

  return run


def _wait(condition, seconds=300):
  deadline = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.05)


def test_the_list_is_a_table_or_json(tmp_path, runs):
  events = [event('train', 40, training_loss=0.5), event('eval', 40, accuracy=0.75)]
  folders.make(tmp_path, 'sweep/a', events)
  folders.make(
    tmp_path, 'sweep/b', status='failed', error='no\x1b[31m data', identity=folders.ended_process(), rate=0.5
  )
  _, out, _ = runs('list', tmp_path)
  header, a, b = (line.split() for line in out.splitlines())
  assert header == ['RUN', 'STATUS', 'STEP', '%', 'LEFT', 'EXPERIMENT', 'TAGS', 'METRICS']
  assert a == ['sweep/a', 'running', '40/100', '40', 'digits', 'accuracy', '0.75']
  assert b == ['sweep/b', 'failed', '10/100', '10', 'digits', 'no\\x1b[31m', 'data']
  found = json.loads(runs('list', tmp_path, '--filter=learning_rate=.5', '--json')[1])
  assert [(each['name'], each['reason']) for each in found] == [('sweep/b', 'no\x1b[31m data')]
  assert 'None of 2 runs' in runs('list', tmp_path, '--status=dead')[1]
  assert runs('list', tmp_path, '--status=bad')[0] == 2
  assert runs('list', tmp_path / 'none') == (
    2,
    '',
    f'error: {tmp_path}/none: cannot be read: No such file or directory; name the folder that has your runs\n',
  )


def test_a_run_counts_as_hung_after_the_minutes_that_are_given(tmp_path, runs):
  now = time.monotonic()
  folders.make(tmp_path, 'a', monotonic={'heartbeat': now - 5, 'updated': now - 2000})
  statuses = [
    json.loads(runs('list', tmp_path, f'--hung_minutes={minutes}', '--json')[1])[0]['status'] for minutes in (30, 60)
  ]
  assert statuses == ['hung', 'running']


def _rows(out):
  """The rows of `runs show`: name -> text."""
  return {line[:14].strip(): line[15:].strip() for line in out.splitlines()[1:]}


def test_a_run_is_shown_with_its_best_evaluation_and_its_checkpoints(tmp_path, runs):
  accuracies = {8: 0.5, 16: 0.96875, 24: float('nan'), 30: 0.875}
  events = [event('eval', step, validation_loss=1 / step, accuracy=value) for step, value in accuracies.items()]
  folders.make(tmp_path, 'a b', events, status='finished', step=30, train_steps=30, skipped_updates=9)
  beside = json.dumps(event('eval', 30, accuracy=1.0))  # Of an evaluation beside the training, such as of one batch.
  (tmp_path / 'a b/events.eval.jsonl').write_text(beside + '\n')
  run_checkpoints_test._save(tmp_path / 'a b', 'ckpt-8')
  run_checkpoints_test._save(tmp_path / 'a b', 'ckpt-30')
  (tmp_path / 'a b/ckpt-24.index').touch()  # Without a manifest.
  code, out, _ = runs('show', tmp_path, 'a b')
  rows = _rows(out)
  assert code == 0 and rows['status'] == 'finished' and rows['step'] == '30 of 30'
  assert rows['validation'] == 'validation_loss 0.03333  accuracy 0.875  (step 30)'
  assert rows['best'] == 'accuracy 0.9688 (step 16)' and rows['checkpoints'] == 'ckpt-8, ckpt-30'
  assert rows['skipped'].startswith('9 updates') and rows['devices'] == '1 replica on CPU:0'
  assert rows['TensorBoard'] == f"tensorboard --logdir='{tmp_path}/a b'"
  found = json.loads(runs('show', tmp_path, 'a b', '--json')[1])
  assert found['best'] == ['accuracy', 0.96875, 16] and found['checkpoints'] == ['ckpt-8', 'ckpt-30']


def test_the_last_completions_are_shown(tmp_path, runs):
  texts = dict(prompts=['p', 'p', 'q'], completions=['one\n', 'two', 'x' * 999])
  events = [event('completions', 5, **texts), event('completions', 10, **texts, advantages=[1.0, -1.0, 'NaN'])]
  folders.make(tmp_path, 'a', [*events, event('train', 10, training_loss=1.0)])
  lines = runs('show', tmp_path, 'a')[1].splitlines()
  assert lines[lines.index('  completions at step 10') :] == [
    '  completions at step 10',
    '    p',
    '      -> one\\n',
    '         advantages 1',
    '      -> two',
    '         advantages -1',
    '    q',
    f'      -> ...{"x" * 300}',
    '         advantages nan',
  ]
  found = json.loads(runs('show', tmp_path, 'a', '--json')[1])
  assert found['completions']['step'] == 10 and found['completions']['columns']['prompts'] == texts['prompts']
  folders.make(tmp_path, 'b', [])
  assert json.loads(runs('show', tmp_path, 'b', '--json')[1])['completions'] is None


def test_the_lowest_is_the_best_if_the_run_declares_it(tmp_path, runs):
  losses = {8: 0.5, 16: 0.75, 30: float('nan')}
  run = folders.make(tmp_path, 'a', [event('eval', step, validation_loss=loss) for step, loss in losses.items()])
  text = (tmp_path / 'a/params.yaml').read_text().replace('accuracy', 'validation_loss').replace('higher', 'lower')
  (tmp_path / 'a/params.yaml').write_text(text)
  assert _rows(runs('show', run.path)[1])['best'] == 'validation_loss 0.5 (step 8)'


def test_a_run_that_failed_at_its_start_is_shown(tmp_path, runs):
  run = folders.make(tmp_path, 'a', status='failed', error='OSError: no data', identity=folders.ended_process())
  (tmp_path / 'a/params.yaml').unlink()
  (tmp_path / 'a/events.jsonl').unlink()
  rows = _rows(runs('show', run.path)[1])
  assert rows['status'] == 'failed: OSError: no data'
  assert 'TensorBoard' in rows and not {'best', 'checkpoints', 'skipped', 'validation'} & set(rows)


def test_a_run_is_named_in_the_folder_or_by_its_path(tmp_path, runs):
  folders.make(tmp_path, 'a', status='finished', identity=folders.ended_process())
  folders.make(tmp_path, 'b', status='finished', identity=folders.ended_process(), rate=0.5)
  for arguments in ((tmp_path, 'a'), (tmp_path, tmp_path / 'a'), (tmp_path / 'a',)):
    code, out, _ = runs('show', *arguments)
    assert (code, out.splitlines()[:2]) == (0, [f'{tmp_path}/a', '  status       finished'])
  for arguments in ((tmp_path, 'a', 'b'), (tmp_path / 'a', tmp_path / 'b')):
    code, out, _ = runs('compare', *arguments, '--json')
    assert json.loads(out)['names'] == ['a', 'b']
    assert json.loads(out)['params'] == {
      'trainer.optimizer_config.learning_rate.cosine.initial_learning_rate': [0.001, 0.5]
    }
  assert 'initial_learning_rate  0.001     0.5' in runs('compare', tmp_path, 'a', 'b')[1]
  code, _, err = runs('show', tmp_path, 'aa')
  assert (code, err) == (2, f'error: aa: no run of that name in {tmp_path}; did you mean a?\n')
  assert runs('compare', tmp_path, 'a')[0] == 2
  assert runs('compare', tmp_path, 'a', tmp_path / 'a')[0] == 2
  assert [each['name'] for each in json.loads(runs('show', tmp_path, 'a', 'b', '--json')[1])] == ['a', 'b']
  for flag in ('list --hung_minutes=nan', 'list --hung_minutes=-1', 'stop --wait=inf'):
    assert 'expected a number from 0' in runs(flag.split()[0], tmp_path, flag.split()[1])[2]
  assert "invalid integer of 0 or more value: '-1'" in runs('log', tmp_path, '--lines=-1')[2]
  for command in ('list --trash', 'restore a', 'delete a --forever'):
    first, *others = command.split()
    assert f'{tmp_path}/none: ' in runs(first, tmp_path / 'none', *others)[2]
  assert runs('stop', tmp_path)[0] == 2
  assert 'did you mean delete?' in runs('delet', tmp_path)[2]


def test_what_is_wrong_with_several_runs_is_reported_of_each(tmp_path, runs):
  folders.make(tmp_path, 'living')
  folders.make(tmp_path, 'ended', status='failed', identity=folders.ended_process())
  code, out, err = runs('delete', tmp_path, 'living', 'ended')
  assert (code, len(err.splitlines())) == (4, 1)
  assert err.startswith('error: living: is running')
  assert out.startswith('ended: is in the trash')
  assert [each['name'] for each in json.loads(runs('list', tmp_path, '--trash', '--json')[1])] == ['ended']
  assert runs('restore', tmp_path, 'ended', '--name=again')[0] == 0
  assert 'again' in runs('list', tmp_path)[1]
  assert runs('delete', tmp_path, 'again')[0] == 0
  assert runs('delete', tmp_path, 'ended', '--forever')[0] == 2  # It was deleted by its other name.
  assert 'name runs in the trash' in runs('delete', tmp_path, '--forever')[2]
  assert runs('delete', tmp_path, 'again', '--forever')[1] == 'again: is deleted, and cannot be brought back\n'
  assert runs('list', tmp_path, '--trash')[1] == 'The trash is empty.\n'


def test_whatever_a_name_has_stays_in_one_line_and_harmless(tmp_path, runs):
  odd = 'a\nb\x1b[31m\udcff'
  shown = 'a\\nb\\x1b[31m\\udcff'
  folders.make(tmp_path, odd, status='failed', error='no\ndata', identity=folders.ended_process())
  folders.make(tmp_path, '-dash', status='failed', identity=folders.ended_process())
  assert runs('stop', tmp_path, odd)[2] == f'error: {shown}: does not run: failed (no\\ndata)\n'
  assert runs('stop', tmp_path, odd, '-dash/')[0] == 2
  assert runs('stop', tmp_path, odd, tmp_path / '-dash')[2].count('error: ') == 2
  assert f'did you mean {shown}?' in runs('show', tmp_path, 'a\nb\x1b[31m')[2]
  for command in (('resume', odd, '--print'), ('clone', odd), ('delete', odd), ('list',), ('list', '--trash')):
    code, out, err = runs(command[0], tmp_path, *command[1:])
    assert (code, err) == (0, '')
    assert out.replace('\n', '').isprintable()
  assert runs('restore', tmp_path, odd)[1] == f'{shown}: is in the list again\n'
  assert runs('show', tmp_path, '--', '-dash')[0] == 0


@pytest.mark.slow
def test_changes_of_a_clone_are_checked_before_a_folder_is_made(tmp_path, runs, monkeypatch, train_server):
  monkeypatch.setattr(driver_lib, 'Driver', functools.partial(driver_processes.ForkedDriver, train_server()))
  folders.make(tmp_path, 'a', status='finished', identity=folders.ended_process())
  before = os.listdir(tmp_path)
  code, out, err = runs('clone', tmp_path, 'a', '--set=train_steps=ten', '--set=seed=x', '--start')
  assert (code, out) == (2, '')
  assert err.splitlines() == [
    "error: trainer.train_steps: expected int, got 'ten' (str)",
    "error: runtime.seed: expected int, got 'x' (str)",
  ]
  assert runs('clone', tmp_path, 'a', '--name=a', '--set=seed=1')[0] == 2
  assert runs('clone', tmp_path, 'a', '--start', '--queue')[2] == 'error: --queue: not together with --start\n'
  assert os.listdir(tmp_path) == before
  assert runs('clone', tmp_path, 'a', '--set=seed=1', '--queue')[:2] == (0, 'a-2: job 1 is queued\n')
  (state,) = queue_folder.Queue(str(tmp_path)).states()
  assert state.job.command[-2:] == (f'--config_file={tmp_path}/a-2/base_params.yaml', '--set=seed=1')
  assert (state.job.model_dir, state.job.cwd) == (str(tmp_path / 'a-2'), '/tmp')


def test_tags_notes_and_the_archive(tmp_path, runs):
  folders.make(tmp_path, 'a', status='finished', identity=folders.ended_process())
  assert runs('tag', tmp_path, 'a', '--tag=good,old', '--note=see\nbelow')[1] == 'a: good, old; see\\nbelow\n'
  assert json.loads(runs('tag', tmp_path, 'a', '--untag=old', '--json')[1])['tags'] == ['good']
  assert 'good' in runs('list', tmp_path, '--tag=good')[1]
  assert runs('archive', tmp_path, 'a')[0] == 0
  assert 'no runs, but 1 archived: --archived shows them; train.py' in runs('list', tmp_path)[1]
  assert runs('list', tmp_path, '--archived')[1].splitlines()[1].startswith('a')
  assert runs('restore', tmp_path, 'a', '--name=b')[2] == 'error: --name=b: a is archived, and keeps its name\n'
  assert runs('restore', tmp_path, tmp_path / 'a')[1] == 'a: is in the list again\n'
  assert runs('list', tmp_path)[1].splitlines()[1].startswith('a')
  assert 'no archived runs' in runs('list', tmp_path, '--archived')[1]


def test_the_log_of_a_run_is_shown_from_its_end(tmp_path, runs):
  run = folders.make(tmp_path, 'a', identity=folders.ended_process())
  assert 'has no run.log: a driver that is neither train.py nor started detached' in runs('log', tmp_path, 'a')[2]
  with open(run.log_path(), 'w') as file:
    file.write(''.join(f'line {number}\n' for number in range(100)))
  assert runs('log', tmp_path, 'a', '--lines=2')[1] == 'line 98\nline 99\n'
  assert runs('log', tmp_path, 'a', '--lines=1', '--follow')[1] == 'line 99\n'
  with open(run.log_path(), 'a') as file:
    file.write('no end')
  assert runs('log', tmp_path, 'a', '--lines=1', '--follow')[1] == 'line 99\nno end\n'
  assert 'line 99' in runs('show', tmp_path, 'a')[1]
  os.remove(run.log_path())
  with open(run.file('events.jsonl'), 'w') as file:
    file.write('{"event": "start"}\n' * 9 + '{"event": "torn')  # Not written by a run.
  assert 'process' in runs('show', tmp_path, 'a')[1]


def test_checkpoints_events_and_the_command_of_an_evaluation(tmp_path, runs):
  events = [event('start', 0), event('train', 5, loss=1.0), event('eval', 5, accuracy=0.5, note='\x1b[31m')]
  run = folders.make(tmp_path, 'a', events, identity=folders.ended_process(), status='finished')
  assert runs('checkpoints', tmp_path, 'a')[1] == 'No checkpoints.\n'
  assert runs('config', tmp_path, 'a')[1].splitlines()[-1] == 'trainer.train_steps: 100'
  assert runs('config', tmp_path, 'a', '--given')[1] == ''  # Its command has --set=seed=1, and no such short name.
  assert runs('evaluate', tmp_path, 'a') == (
    2,
    '',
    'error: a: has no checkpoint to evaluate; --checkpoint=NAME names one of another kind\n',
  )
  run_checkpoints_test._save(tmp_path / 'a', 'ckpt-5')
  run_checkpoints_test._save(tmp_path / 'a', 'ckpt-7')
  (tmp_path / 'a' / 'ckpt-7.index').unlink()
  _, out, _ = runs('checkpoints', tmp_path, 'a')
  assert [line.split()[:3] for line in out.splitlines()] == [
    ['CHECKPOINT', 'STEP', 'FOR'],
    ['ckpt-5', '5', 'training'],
    ['ckpt-7', '7', 'ckpt-7.index'],
  ]
  assert json.loads(runs('checkpoints', tmp_path, 'a', '--json')[1])[1]['damage'] == 'ckpt-7.index is missing'
  _, out, _ = runs('events', tmp_path, 'a')
  assert [line.split()[2:4] for line in out.splitlines()[1:]] == [['start', '0'], ['eval', '5']]
  assert '\x1b' not in out and 'accuracy 0.5' in out
  assert json.loads(runs('events', tmp_path, 'a', '--json')[1])[1]['values']['accuracy'] == 0.5
  _, out, _ = runs('evaluate', tmp_path, 'a', '--print')
  assert f'--mode=eval --model_dir={run.path}' in out and out.endswith(f'--checkpoint={run.path}/ckpt-5\n')
  assert runs('evaluate', tmp_path, 'a', '--checkpoint=7')[2] == 'error: --checkpoint=7: ckpt-7.index is missing\n'
  assert not os.path.exists(run.file('started.eval.json'))


def test_show_ends_with_the_last_events_in_words(runs, tmp_path):
  events = [
    {'event': 'start', 'step': 0, 'mode': 'train'},
    {'event': 'train', 'step': 5, 'training_loss': 0.0009952910477295518, 'percent': 50.0},
    {'event': 'update_skipped', 'step': 6, 'total': 2, 'cause': 'x is not finite'},
    {'event': 'update_skipped', 'step': 8, 'total': 2},
    {'event': 'update_skipped', 'step': 19, 'total': 3},
    {'event': 'restored', 'step': 8, 'checkpoint': '/runs/a/ckpt-8'},
    {'event': 'eval', 'step': 8, 'accuracy': 'NaN', 'validation_loss': 1e-9 / 3},
    {'event': 'rollback', 'step': 4, 'from_step': 8, 'reason': 'the loss {x}\x1b[31m'},
    {'event': 'mine', 'step': 9, 'value': 2.0},
  ]
  at = lambda number: time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(1700000000 + number))
  folder = tmp_path / 'a'
  folder.mkdir()
  (folder / 'params.yaml').write_text('{}')
  lines = [json.dumps({'time': 1700000000.5 + number, **each}) for number, each in enumerate(events)]
  (folder / 'events.jsonl').write_text('\n'.join(lines) + '\n{"time": 1')
  _, out, _ = runs('show', tmp_path, 'a')
  found = out.splitlines()
  assert found[found.index('  events') + 1 :] == [
    f'    {at(0)}  started: train',
    f'    {at(7)}  rolled back from step 8 to 4: the loss {{x}}\\x1b[31m',
    f'    {at(8)}  mine at step 9: value 2',
  ]
  (folder / 'events.jsonl').write_text('\n'.join(lines[:-2]) + '\n')
  found = runs('show', tmp_path, 'a')[1].splitlines()
  assert found[found.index('  events') + 2 :] == [
    f'    {at(1)}  trained to step 5: training_loss 0.0009953',
    f'    {at(3)}  skipped 2 updates, of steps 6, 8: x is not finite',
    f'    {at(5)}  restored ckpt-8',
    f'    {at(6)}  evaluated step 8: accuracy nan  validation_loss 3.333e-10',
  ]
  assert set(run_files.EVENTS) <= set(runs_common._HAPPENED)
  assert 'validation_loss 3.333e-10' in runs('events', tmp_path, 'a')[1]


def _train(folder, train_steps=1_000_000):
  """Arguments of a training that ends on request."""
  arguments = ['--experiment=digits_mlp', '--mode=train', f'--model_dir={folder}', f'--set=train_steps={train_steps}']
  return arguments + ['--set=steps_per_loop=20', '--set=summary_interval=20', '--set=checkpoint_interval=100000']


@pytest.mark.slow
def test_a_training_is_stopped_resumes_and_is_killed(tmp_path, runs, start_train):
  start_train(_train(tmp_path / 'a'))
  run = run_folders.Run(str(tmp_path / 'a'), 'a')
  _wait(lambda: (run.record() or {}).get('stage') == 'train' and os.path.getsize(run.file('events.jsonl')) > 2000)
  (found,) = json.loads(runs('list', tmp_path, '--json', '--filter=train_steps=1000000')[1])
  assert (found['status'], found['experiment'], found['train_steps']) == ('running', 'digits_mlp', 1000000)
  assert found['step'] > 0
  assert found['train']['training_loss'] > 0
  assert run.record()['cwd'] == os.getcwd()
  assert run.record()['short_names']['train_steps'] == 'trainer.train_steps'
  assert runs('resume', tmp_path, 'a')[2] == 'error: a: is running; wait for it, or stop it first\n'
  assert runs('stop', tmp_path, 'a')[1].startswith('a: stopping')
  assert runs('stop', tmp_path, 'a', '--wait=300')[0] == 0 or statuses_lib.of_run(run).status == 'preempted'
  _wait(lambda: not statuses_lib.is_alive(run))
  assert statuses_lib.of_run(run).status == 'preempted'
  step = run.record()['step']

  arguments = shlex.split(runs('resume', tmp_path, 'a', '--print')[1].partition('train.py ')[2])
  assert arguments == _train(tmp_path / 'a')
  start_train(arguments)
  _wait(lambda: statuses_lib.of_run(run).status == 'running' and run.record()['stage'] == 'train')
  assert run.record()['attempt'] == 2
  assert json.loads(runs('list', tmp_path, '--json')[1])[0]['step'] >= step
  pid = run.record()['pid']
  os.kill(pid, signal.SIGKILL)
  _wait(lambda: not statuses_lib.is_alive(run))
  code, out, _ = runs('show', tmp_path, 'a')
  assert (code, out.splitlines()[1]) == (0, f'  status       dead: process {pid} is gone')
  assert any('restored' in line for line in out.splitlines()[-6:])  # The end of its events, as it has no log.
  command = runs('clone', tmp_path, 'a', '--set=train_steps=5')[1]
  assert command.endswith(f'--config_file={tmp_path}/a-2/base_params.yaml --set=train_steps=5\n')
  assert runs('delete', tmp_path, 'a')[0] == 0


@pytest.mark.soak
def test_a_best_checkpoint_is_evaluated_as_it_was_and_stays_as_it_is(tmp_path, runs, run_train):
  flags = ['--set=train_steps=60', '--set=validation_interval=20', '--set=steps_per_loop=20']
  flags += [f'--set=trainer.best_checkpoint_{name}' for name in ('export_subdir=best', 'eval_metric=accuracy')]
  done = run_train(['--experiment=digits_mlp', '--mode=train_and_eval', f'--model_dir={tmp_path}/a', *flags])
  assert done.returncode == 0, done.stderr
  (best,) = [each for each in json.loads(runs('checkpoints', tmp_path, 'a', '--json')[1]) if each['is_best']]
  before = {path: path.read_bytes() for path in (tmp_path / 'a').rglob('*') if path.is_file()}
  assert runs('evaluate', tmp_path, 'a', f'--checkpoint={best["name"]}')[0] == 0
  run = run_folders.get_run(str(tmp_path), 'a')
  _wait(lambda: (run.started('eval') or {}).get('ended'))
  assert run.started('eval')['exit_status'] == 0, (tmp_path / 'a/run.eval.log').read_text()
  events = [json.loads(line) for line in (tmp_path / 'a/events.eval.jsonl').read_text().splitlines()]
  (found,) = [each for each in events if each['event'] == 'eval']
  assert found['step'] == best['step'] and found['accuracy'] == pytest.approx(best['logs']['accuracy'])
  assert {path: path.read_bytes() for path in before} == before


@pytest.mark.soak
def test_a_training_that_was_resumed_detached_reports_how_it_has_ended(tmp_path, runs, run_train):
  assert run_train(_train(tmp_path / 'a', train_steps=20)).returncode == 0
  run = run_folders.Run(str(tmp_path / 'a'), 'a')
  assert 'a-2: started as process' in runs('clone', tmp_path, 'a', '--set=train_steps=1000000', '--start')[1]
  clone = run_folders.Run(str(tmp_path / 'a-2'), 'a-2')
  _wait(lambda: statuses_lib.of_run(clone).status == 'running' and clone.record()['stage'] == 'train')
  assert runs('stop', tmp_path, 'a-2', '--wait=300')[1].startswith('a-2: preempted')
  _wait(lambda: clone.started()['ended'])
  assert clone.started()['exit_status'] == 75
  assert 'a-2: started as process' in runs('resume', tmp_path, 'a-2')[1]
  _wait(lambda: statuses_lib.of_run(clone).status == 'running' and clone.record()['stage'] == 'train')
  os.kill(clone.record()['pid'], signal.SIGKILL)
  _wait(lambda: clone.started()['ended'])
  code, out, _ = runs('show', tmp_path, 'a-2')
  assert (code, out.splitlines()[1]) == (0, '  status       dead: killed by SIGKILL')
  assert any('restored' in line for line in out.splitlines()[-10:])  # The end of its log.
  assert statuses_lib.of_run(run).status == 'finished'


def _finished(tmp_path, name, rate, seed, accuracy):
  record = {'status': 'finished', 'identity': folders.ended_process()}
  folders.make(tmp_path, name, [event('eval', 100, accuracy=accuracy)], rate=rate, seed=seed, **record)


def test_a_table_has_mean_and_deviation_over_seeds(tmp_path, runs):
  for seed, accuracy in enumerate((0.90, 0.94)):
    _finished(tmp_path, f's/{seed}', 0.1, seed, accuracy)
  _finished(tmp_path, 'other_1', 0.2, 0, 0.91)
  folders.make(tmp_path, 'running', [event('eval', 50, accuracy=0.99)], rate=0.2)
  _, out, err = runs('table', tmp_path, '--metric=accuracy')
  assert '3 of 4 runs' in err
  header, first, second = (line.split() for line in out.splitlines())
  assert header == ['learning_rate', 'runs', 'accuracy']
  assert first == ['0.2', '1', '0.91'] and second == ['0.1', '2', '0.920', '±', '0.028', '*']
  words = ('table', tmp_path, '--metric=accuracy', '--group=folder')
  assert r'**0.920 ± 0.028**' in runs(*words, '--format=markdown')[1].splitlines()[3]
  assert r's & 2 & \textbf{0.920 $\pm$ 0.028} \\' in runs(*words, '--format=latex')[1].splitlines()
  csv = runs(*words, '--format=csv')[1].splitlines()
  assert csv[0] == 'folder,runs,accuracy_mean,accuracy_std,accuracy_count' and csv[1].startswith(',1,0.91,,1')
  found = json.loads(runs(*words, '--format=json')[1])
  assert found[1]['runs'] == ['s/0', 's/1'] and found[1]['metrics']['accuracy']['is_best']
  code, _, err = runs('table', tmp_path, '--metric=accuracy', '--status=dead')
  assert code == 2 and '0 of 4 runs match --status=dead' in err
  assert runs('table', tmp_path)[0] == 2


def test_a_report_is_one_file(tmp_path, runs):
  _finished(tmp_path, 'a', 0.1, 0, 0.9)
  _finished(tmp_path, 'b', 0.2, 0, 0.8)
  output = tmp_path / 'report.html'
  code, out, _ = runs('report', tmp_path, 'a', 'b', f'--output={output}')
  assert code == 0 and '2 runs' in out
  text = output.read_text()
  assert '<h1>' in text and '0.9 (step 100)' in text and '<svg' in text
  code, _, err = runs('report', tmp_path, 'a', f'--output={tmp_path}/none/report.html')
  assert code == 1 and len(err.splitlines()) == 1
  code, _, err = runs('report', tmp_path, 'a', '--metric=eval/acuracy', f'--output={output}')
  assert code == 2 and 'did you mean eval/accuracy?' in err


def test_values_of_fields_cannot_leave_their_cells(tmp_path, runs):
  for number, tag in enumerate(('=1+1', '[8, 8]', '-x', 'a|b*')):
    _finished(tmp_path, f'r{number}', 0.1, 0, 0.9)
    (tmp_path / f'r{number}' / 'notes.json').write_text(json.dumps({'tags': [tag], 'note': ''}))
  words = ('table', tmp_path, '--metric=accuracy', '--group=tag')
  cells = [line.split(',')[0] for line in runs(*words, '--format=csv')[1].splitlines()]
  assert "'=1+1" in cells and "'-x" in cells and '=1+1' not in cells
  latex = runs(*words, '--format=latex')[1]
  assert '\n{[}8, 8{]} & 1' in latex and '\n[' not in latex and r'a\textbar{}b{*}' in latex
  assert r'| a\|b\* |' in runs(*words, '--format=markdown')[1]


@pytest.mark.parametrize(
  'reason, cause',
  [
    ('ended with status 2 before it began to train: error: learning_rat: no such field', 'learning_rat: no such field'),
    ('ended with status 1: ValueError: bad', 'bad'),
    ('DivergedError: the loss was not finite', 'the loss was not finite'),
    ('killed by SIGKILL', 'killed by SIGKILL'),
    ('my_tasks.py:33: ValueError: bad', 'my_tasks.py:33: ValueError: bad'),
  ],
)
def test_a_narrow_column_begins_with_the_cause(reason, cause):
  assert runs_common._cause(reason) == cause


def test_a_state_that_forbids_a_command_is_status_4_and_a_mistake_2(runs, tmp_path):
  """The same command may succeed later, or only after it was corrected."""
  folders.make(tmp_path, 'over', identity=folders.ended_process(), status='finished')
  folders.make(tmp_path, 'alive')
  for words in (['stop', 'over'], ['resume', 'over'], ['resume', 'alive'], ['delete', 'alive'], ['archive', 'alive']):
    status, _, err = runs(words[0], tmp_path, words[1])
    assert status == 4 and err.startswith(f'error: {words[1]}: '), (words, err)
  for words in (['stop', 'none'], ['delete'], ['resume', 'over', '--train_stps=3']):
    assert runs(words[0], tmp_path, *words[1:])[0] == 2, words
  assert json.loads(runs('stop', tmp_path, 'over', '--json')[2])['error']['code'] == 'state'
