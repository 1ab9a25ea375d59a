"""--json: one document on stdout, errors as JSON on stderr, statuses that tell a mistake from a state."""

import json
import os
import pathlib
import re
import sys

import numpy as np
import pytest

from official_ext.base import errors
from official_ext.cli import arguments
from official_ext.cli import json_output
from official_ext.cli import main as cli
from official_ext.cli import runs
from tests import own_tasks
from tests.operations.runs import folders
from tests.operations.runs.folders import event

PAGE = pathlib.Path(__file__).resolve().parents[2] / 'docs/reference/json_output.md'


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))


@pytest.fixture
def run(capsys):
  """run(words...) -> (status, document or None, stderr)."""

  def call(*words):
    status = cli.main([*map(str, words), '--json'])
    out, err = capsys.readouterr()
    return status, json.loads(out) if out else None, err

  return call


@pytest.fixture
def root(tmp_path):
  events = [event('train', 10, training_loss=0.5), event('eval', 10, accuracy=0.75)]
  folders.make(tmp_path, 'a', events, identity=folders.ended_process(), status='finished')
  folders.make(tmp_path, 'b', events, identity=folders.ended_process(), status='failed', error='no data')
  return tmp_path


def rows_of_page(head):
  lines = PAGE.read_text().partition(f'| {head} |')[2].splitlines()[2:]
  return [[cell.strip() for cell in line.strip('|').split(' | ')] for line in lines[: lines.index('')]]


def fields_of(command):
  (cell,) = [row[1] for row in rows_of_page('command | fields') if f'`{command}`' in row[0].split(', ')]
  return re.findall(r'`(\w+)`', cell.partition(';')[0])


def test_the_codes_of_the_page():
  assert PAGE.read_text().count(f'version {json_output.SCHEMA_VERSION}') == 1
  found = [(row[0].strip('`'), row[2]) for row in rows_of_page('code | exit status | meaning')]
  assert found == [(code, meaning) for code, (_, meaning) in json_output.CODES.items()]


@pytest.mark.parametrize(
  'command, words',
  [
    ('runs tag', ['a', '--tag=x']),
    ('runs export', ['a', '--to=csv']),
    ('runs compare', ['a', 'b']),
    ('runs wait', ['a']),
    ('runs resume', ['b', '--print']),
    ('runs clone', ['a']),
    ('runs delete', ['a']),
    ('queue list', []),
  ],
)
def test_a_document_has_the_fields_of_the_page(run, root, command, words):
  status, document, err = run(*command.split(), root, *words)
  assert status == 0 and 'error' not in err
  expected = {'runs clone': 'runs resume', 'runs delete': 'runs archive'}.get(command, command)
  if command == 'runs delete':
    assert set(document) == {'name', 'state'}
  elif command == 'runs clone':
    assert list(document) == ['name', 'path', 'command', 'pid', 'log']
  else:
    assert list(document) == fields_of(expected)


def test_the_list_has_the_best_value(run, root):
  status, document, _ = run('runs', 'list', root)
  assert status == 0 and list(document[0]) == fields_of('runs list')
  assert [each['best'] for each in document] == [{'metric': 'accuracy', 'value': 0.75, 'step': 10}] * 2


def test_one_run_is_an_object_and_several_are_a_list(run, root):
  assert run('runs', 'archive', root, 'a', 'b')[1] == [
    {'name': name, 'state': 'is archived, and stays where it is'} for name in ('a', 'b')
  ]


def test_a_state_that_did_not_come_is_no_mistake(run, root):
  assert run('runs', 'wait', root, 'a')[0] == 0
  status, document, _ = run('runs', 'wait', root, 'a', 'b')
  assert (status, [each['status'] for each in document]) == (4, ['finished', 'failed'])
  status, document, _ = run('runs', 'wait', root, 'b', '--until=accuracy>0.9', '--timeout=0')
  assert (status, document['reached'], document['reason']) == (4, False, 'no data')
  assert run('runs', 'wait', root, 'b', '--until=accuracy>0.7')[0] == 0
  folders.make(root, 'alive')
  status, document, err = run('runs', 'wait', root, 'alive', '--timeout=0')
  assert (status, document['reached']) == (4, False) and 'the time is over' in err


def test_an_error_is_one_line_of_json(run, root):
  status, document, err = run('runs', 'show', root, 'c')
  assert (status, document) == (2, None)
  error = json.loads(err)['error']
  assert (
    error['code'] == 'mistake'
    and error['where']
    and error['what']
    and set(error) == {*('code', 'where', 'what', 'hint')}
  )
  status, document, err = run('runs', 'stop', root, 'a', 'b')  # Neither runs.
  error = json.loads(err)['error']
  assert error['code'] == error['others'][0]['code'] == 'state'
  assert (status, error['where'], error['others'][0]['where']) == (4, 'a', 'b')
  assert json.loads(run('runs', 'lst', root)[2])['error']['code'] == 'mistake'


def test_a_flag_is_the_place_of_its_error(run, root):
  for words, where, what in (
    (['--sorted=x'], '--sorted', 'no such flag'),
    (['--lines'], '--lines', 'expected one argument'),
  ):
    error = json.loads(run('runs', 'log', root, 'a', *words)[2])['error']
    assert (error['where'], error['what']) == (where, what)
    assert error['hint'].endswith('`official-ext runs log --help` lists all flags')


@pytest.mark.parametrize(
  'note, shown',
  [
    ('password="ab cd" x', 'password="***" x'),
    ("--set=token='abcd", "--set=token='***"),
    ('secret="', 'secret="'),
    ('https://me:abcd@host/"x"', 'https://me:***@host/"x"'),
  ],
)
def test_secrets_are_masked_and_the_document_is_valid(run, root, note, shown):
  status, document, err = run('runs', 'tag', root, 'a', f'--note={note}')
  assert (status, document) == (0, {'name': 'a', 'tags': [], 'note': shown})
  assert 'abcd' not in err and 'ab cd' not in err


@pytest.mark.tensorflow
@pytest.mark.parametrize(
  'error, status, expected',
  [
    (errors.DivergedError('trainer.nonfinite: 9 updates; lower the rate'), 3, ('diverged', 'trainer.nonfinite')),
    (errors.CheckpointError('ckpt-1: no space'), 1, ('storage', 'ckpt-1')),
    (KeyboardInterrupt(), 1, ('failed', '')),
  ],
)
def test_other_errors_have_codes_too(run, root, monkeypatch, error, status, expected):
  def fail(arguments):
    del arguments
    raise error

  monkeypatch.setattr(runs, 'run', fail)
  found, document, err = run('runs', 'list', root)
  values = json.loads(err)['error']
  assert (found, document, values['code'], values['where']) == (status, None, *expected)


@pytest.mark.tensorflow
def test_a_current_folder_that_is_gone_is_a_mistake(run, tmp_path, monkeypatch):
  def fail(arguments):
    del arguments
    os.getcwd()

  monkeypatch.setattr(runs, 'run', fail)
  gone = tmp_path / 'gone'
  gone.mkdir()
  monkeypatch.chdir(gone)
  gone.rmdir()
  status, _, err = run('runs', 'list')
  assert (status, json.loads(err)['error']['code']) == (2, 'mistake')


def test_a_job_is_added_listed_waited_for_and_cancelled(capsys, root):
  def call(*words):
    status = cli.main([*map(str, words)])
    out, err = capsys.readouterr()
    return status, json.loads(out), err

  status, job, err = call('queue', 'add', root, f'--model_dir={root}/new', '--json', '--', 'true')
  assert (status, job['job'], job['status']) == (0, 1, 'queued') and 'job 1 is queued' in err
  assert set(job) == set(fields_of('queue add')) | {'job'}
  status, found, _ = call('queue', 'wait', root, '--timeout=0', '--json')
  assert (status, found['status']) == (4, 'queued')
  assert call('queue', 'cancel', root, '1', '--json')[1]['status'] == 'cancelled'
  assert call('queue', 'list', root, '--json')[1]['num_over'] == 1


@pytest.mark.tensorflow
def test_experiments_and_their_fields(run):
  status, document, _ = run('list')
  assert status == 0 and 'digits_mlp' in [each['name'] for each in document]
  assert all(list(each) == fields_of('list') for each in document)
  status, document, _ = run('describe', 'digits_mlp', '--set=batch_size=32')
  (size,) = [each for each in document if 'batch_size' in each['short_names']]
  assert status == 0 and list(size) == fields_of('describe') and size['value'] == 32
  status, document, err = run('describe', 'digits_mlp', '--yaml')
  assert (status, document) == (2, None) and 'not allowed with argument' in json.loads(err)['error']['what']


# They serve until they are ended, or talk.
WITHOUT = {f'official-ext {name}' for name in ('serve', 'console', 'mcp', 'data_service', 'queue run', 'chat')}


def parsers_of(command, monkeypatch):
  """The parsers without subcommands that a command makes for its help."""
  made = []
  make = arguments.Parser.__init__

  def making(self, *args, **kwargs):
    make(self, *args, **kwargs)
    made.append(self)

  with monkeypatch.context() as patch:
    patch.setattr(arguments.Parser, '__init__', making)
    assert cli.main([command, '--help']) == 0
  return {parser.prog: parser for parser in made if not parser._commands and parser.usage is None}


def test_every_command_that_prints_has_the_flag(monkeypatch, capsys):
  without = set()
  for command in set(cli._COMMANDS) - {'train'}:  # The driver's flags are absl's: see below.
    found = parsers_of(command, monkeypatch)
    assert found, command
    flags = {prog: {text for each in parser._actions for text in each.option_strings} for prog, parser in found.items()}
    without |= {prog for prog, names in flags.items() if json_output.FLAG not in names}
  assert without == WITHOUT


def test_every_command_with_the_flag_is_on_the_page():
  named = re.findall(r'`([a-z_]+)', ' '.join(row[0] for row in rows_of_page('command | fields')))
  whole = {name for name in cli._COMMANDS if f'official-ext {name}' not in WITHOUT}
  assert whole <= set(named)


def test_other_lines_of_a_report_stay_on_stderr_before_the_error(capsys):
  def report(error):
    print(f'Traceback\n  a line\nerror: {error}', file=sys.stderr)
    return 1

  assert json_output.report(report, RuntimeError('task.py:3: broken\u2028here')) == 1
  out, err = capsys.readouterr()
  assert not out and err.splitlines()[:2] == ['Traceback', '  a line']
  assert json.loads(err.splitlines()[2])['error'] == {
    'code': 'failed',
    'where': 'task.py:3',
    'what': 'broken\u2028here',
    'hint': '',
  }


@pytest.mark.tensorflow
def test_arrays_among_the_metrics_of_the_driver_are_left_out(tmp_path):
  from official_ext.cli import train

  logs = {'loss': np.float32(0.5), 'image': np.zeros([1, 2, 2, 1]), 'of': {'class': [1, 2], 'best': 'cat', 'n': 3}}
  document = train._document('digits', 'eval', str(tmp_path), logs)
  assert document['metrics'] == {'loss': 0.5, 'of/best': 'cat', 'of/n': 3} and document['step'] is None


def last_line(err):
  return json.loads(err.splitlines()[-1])['error']


@pytest.mark.tensorflow
def test_new_shards(run, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'in.jsonl').write_text('{"x": 1}\n{"x": 2}\n')
  status, document, err = run('prepare', 'in.jsonl', 'out')
  assert status == 0 and list(document) == fields_of('prepare') and 'To train on them' in err
  assert (document['rows'], document['output'], document['kind']) == (2, 'out', 'records')
  status, document, err = run('prepare', 'none.jsonl', 'out')
  assert (status, document, last_line(err)['code']) == (2, None, 'mistake')
  status, document, err = run('predict', 'out')
  assert (status, document, last_line(err)['where']) == (2, None, 'out')


@pytest.mark.tensorflow
def test_a_package_and_its_check(run, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  status, document, err = run('new', 'rings_of_json', '--package')
  assert status == 0 and list(document) == fields_of('new') and 'wrote' in err
  assert all((tmp_path / name).exists() for name in document['files']) and len(document['commands']) == 4
  status, document, err = run('check', 'digits_mlp', '--set=runtime.enable_xla=false')
  assert (status, document) == (0, {'experiment': 'digits_mlp', 'errors': [], 'warnings': []}) and 'none found' in err
  status, document, err = run('check', 'digits_mlp', '--set=learning_rate=0', '--set=task.train_data.seed=1')
  assert status == 2 and list(document) == fields_of('check')
  assert ['learning rate is 0' in each['what'] for each in document['errors']] == [True]
  assert last_line(err)['what'] == document['errors'][0]['what'] and last_line(err)['code'] == 'mistake'


@pytest.mark.tensorflow
def test_the_driver(run_train, tmp_path):
  settings = [f'--set={name}' for name in ('train_steps=2', 'steps_per_loop=2', 'validation_interval=2')]
  command = ['--experiment=digits_mlp', '--mode=train_and_eval', '--model_dir=run', '--json', *settings]
  process = run_train([*command, '--set=runtime.enable_xla=false'], cwd=tmp_path, fresh=True)
  assert process.returncode == 0, process.stderr
  document = json.loads(process.stdout)
  assert list(document) == ['experiment', 'mode', 'model_dir', 'step', 'metrics']
  assert (document['step'], document['model_dir']) == (2, str(tmp_path / 'run'))
  assert set(document['metrics']) == {'accuracy', 'validation_loss'} and 'train 2/2' in process.stderr
  for mistake in ('--set=trainer.train_step=3', '--no_such_flag'):
    process = run_train([*command, mistake], cwd=tmp_path, fresh=True)
    assert (process.returncode, process.stdout) == (2, '')
    assert last_line(process.stderr)['where'] == mistake.removeprefix('--set=').partition('=')[0]


@pytest.mark.tensorflow
def test_a_run_that_hangs(run_train, tmp_path):
  place = own_tasks.write(tmp_path / 'code')
  batches = "ext.build_dataset(ext.ArraySource({'x': x}), params, input_context)"
  assert batches in own_tasks.TASK
  blocks = f"""import time, tensorflow as tf
    batches = {batches}
    return tf.data.Dataset.from_generator(lambda: time.sleep(1000), output_signature=batches.element_spec)"""
  (place / 'own_package' / 'task.py').write_text(own_tasks.TASK.replace(f'return {batches}', blocks))
  np.save(tmp_path / 'data.npy', np.ones([8, 1], np.float32))
  flags = [*own_tasks.FLAGS, '--mode=train', '--model_dir=run', '--set=runtime.hang_seconds=0.5', '--json']
  env = {'PYTHONPATH': str(place), 'OWN_DATA': str(tmp_path / 'data.npy')}
  process = run_train(flags, env=env, cwd=tmp_path, timeout=60)
  assert (process.returncode, process.stdout) == (75, ''), process.stderr
  error = last_line(process.stderr)
  assert (error['code'], error['where']) == ('hung', 'runtime.hang_seconds')
  assert error['what'].startswith('no progress for ') and 'hung.worker-0.txt' in error['hint']


@pytest.mark.parametrize(
  'words, expected',
  [
    (['train', '--json'], True),
    (['train', '--json=true', '--mode=train'], True),
    (['train', '-json'], True),
    (['train', '--json=false'], False),
    (['train', '--nojson'], False),
    (['launch', '--', '--json'], False),
  ],
)
def test_forms_of_the_flag_that_absl_takes_divert_the_output_too(words, expected):
  assert json_output.is_wanted(words) == expected
