"""A new run from the page: the driver's mistakes, the command as a shell takes it, starting and queueing it."""

import itertools
import json
import os
import random
import shlex
import subprocess
import sys
import time

import pytest
import yaml

from official_ext.base import config_text
from official_ext.operations.queue import queue_folder
from official_ext.operations.runs import commands
from official_ext.operations.runs import new_runs
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import statuses
from tests.operations.console import bad_values
from tests.operations.runs import folders


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  return tmp_path_factory.mktemp('runs')


@pytest.fixture(scope='module')
def console(root, start_console, driver):
  return start_console(root, driver=driver)


def _form(name='new', edits=(), **values):
  return {'experiment': 'digits', 'mode': 'train', 'name': name, 'edits': list(edits), **values}


def _text(key, text):
  return {'key': key, 'text': text}


def _argv(command):
  """A shell's parsing of a command, without the program: the arguments of train.py."""
  program = shlex.quote(sys.executable)
  assert program in command
  shown = subprocess.run(
    ['bash', '-c', command.replace(program, "printf '%s\\0'", 1)], capture_output=True, check=True, cwd='/'
  )
  words = shown.stdout.decode().split('\0')[:-1]
  return words[next(place for place, word in enumerate(words) if word.endswith('train.py')) + 1 :]


def test_bad_values_are_reported_as_by_the_driver(console, root, run_train):
  # As many mistakes at once as the driver can distinguish: one for each field.
  for cases in bad_values.batches():
    found = console.post('/api/new/form', **_form('bad', [_text(*case) for case in cases]))
    assert not found['name_errors']
    done = run_train(_argv(found['command']))
    assert done.returncode == 2
    expected = [line.removeprefix('error: ') for line in done.stderr.splitlines() if line.startswith('error: ')]
    assert [line['text'] for line in found['lines']] == expected
    assert len(expected) >= len(cases)
    at = {line['field'] for line in found['lines']}
    assert {key for key, _ in cases} <= at
    assert os.listdir(root) == []


_WORDS = (*'a"\\\n\t #[{*\u2028', "it's", '$HOME', '`id`', '!!', ': ', '日本', '👩‍🔬', '10', 'null')
_FIT = 'trainer.optimizer_config'
_STRINGS = (
  *('task.name', 'trainer.mlflow.run_name', 'trainer.wandb.project', 'trainer.wandb.entity', 'trainer.wandb.run_name'),
  *(f'{_FIT}.{name}.name' for name in ('learning_rate.cosine', 'warmup.linear', 'optimizer.adamw_experimental')),
)
_NULL = ('task.train_data.prefetch_buffer_size', 'runtime.tpu_enable_xla_dynamic_padder')
_LISTS = ('task.init_checkpoint_may_miss', 'trainer.inspect.layers')


def _random_edit(draw, key):
  """An edit as the page sends it, and the value that it means."""
  if key in _LISTS:
    strings = [''.join(draw.choices(_WORDS, k=draw.randrange(4))) for _ in range(draw.randrange(4))]
    return _text(key, config_text.argument_of(strings)), strings
  if key in _STRINGS and draw.random() < 0.9:
    string = ''.join(draw.choices(_WORDS, k=draw.randrange(5)))
    return {'key': key, 'string': string}, string
  value = draw.choice([1e-7, 3600.0, draw.uniform(1, 9)]) if key == 'runtime.hang_seconds' else None
  return (
    ({'key': key, 'string': ''}, '') if key in _STRINGS[1:] else (_text(key, config_text.argument_of(value)), value)
  )


def _random_forms():
  """10 forms with 10 edits each."""
  draw = random.Random(11)
  keys = (*_STRINGS, *_LISTS, 'runtime.hang_seconds', *_NULL)
  for _ in range(10):
    yield [_random_edit(draw, key) for key in draw.sample(keys, 10)]


def test_the_command_means_the_same_in_a_shell(console, driver, root):
  for number, edits in enumerate(_random_forms()):
    name = ('x', "it's new", 'ä/b c')[number % 3]
    body = _form(name, [edit for edit, _ in edits])
    found = console.post('/api/new/form', **body)
    assert (found['lines'], found['name_errors']) == ([], [])
    argv = _argv(found['command'])
    wanted = new_runs.NewRun(str(root), name, 'digits', 'train', tuple(map(new_runs.set_text, body['edits'])))
    assert argv == list(wanted.command(driver).words[3:])  # The start's input for the process.
    params = yaml.safe_load(driver.check(argv, params=True)['params'])
    for edit, value in edits:
      at = params
      for part in edit['key'].split('.'):
        at = at[part]
      assert (at, type(at)) == (value, type(value))


def test_a_run_is_started_as_its_command_states(console, root, tmp_path):
  body = _form('sub/started', [_text('train_steps', '2')], base='trainer:\n  steps_per_loop: 2\n')
  command = console.post('/api/new/form', **body)['command']
  assert console.post('/api/new/start', **body) == {'run': 'sub/started'}
  run = run_folders.Run(str(root / 'sub/started'), 'sub/started')
  started = run.started()
  assert started['command'] == command.splitlines()[-1].partition(' && ')[2]
  assert (root / 'sub/started/base_params.yaml').read_text() == body['base']
  status_, answer = console.try_post('/api/new/start', **body)
  assert (status_, 'exists already; choose another name' in answer['errors'][0]) == (400, True)
  os.kill(started['pid'], 9)  # Its training is the driver's matter.


def test_a_pasted_text_gives_the_same_file_in_a_shell(console, root, tmp_path):
  base = "trainer:\n  # it's 'odd' $HOME `x` \\\n  train_steps: 5\nEND_OF_FILE:\n"
  found = console.post('/api/new/form', **_form('pasted', base=base))
  assert found['lines'][0]['text'].endswith(f'(in {root}/pasted/base_params.yaml)')
  found = console.post('/api/new/form', **_form('pasted', base=base.replace('END_OF_FILE:', '# END_OF_FILE')))
  assert found['lines'] == []
  assert found['values']['trainer.train_steps'] == '5'
  assert not (root / 'pasted').exists()
  assert f'--config_file={root}/pasted/base_params.yaml' in _argv(found['command'])
  assert (root / 'pasted/base_params.yaml').read_text() == base.replace('END_OF_FILE:', '# END_OF_FILE')


def test_a_clone_keeps_a_copy_and_changes_by_set(console, root):
  original = folders.make(root, "it's", identity=folders.ended_process(), status='finished')
  found = console.get('/api/new/clone', run="it's")
  assert found == {'experiment': 'digits', 'mode': 'train_and_eval', 'name': "it's-2"}
  body = {'clone': "it's", 'name': "it's-2", 'edits': [_text('seed', '3')]}
  form = console.post('/api/new/form', **body)
  assert (form['lines'], form['values']['trainer.train_steps']) == ([], '100')
  argv = _argv(form['command'])
  base = root / "it's-2" / commands.BASE_PARAMS
  assert base.read_text() == (root / "it's" / 'params.yaml').read_text()
  assert argv == list(commands.to_clone(original, str(root / "it's-2"), ['seed=3'], str(base)).words[2:])
  wrong = console.post('/api/new/form', clone="it's", name='../x', edits=[_text('seed', 'x')])
  assert wrong['lines'][0]['text'] == "runtime.seed: expected int, got 'x' (str)"
  assert '--name=../x: must be a name' in wrong['name_errors'][0]


def test_a_clone_of_a_run_that_failed_before_its_configuration_is_a_form_of_its_command(console, root):
  folder = root / 'mistaken'
  folder.mkdir()
  words = ['python', 'train.py', '--experiment=digits', '--mode', 'train_and_eval', f'--model_dir={folder}']
  words += [
    '--set=learning_rat=1e-3',
    '--config_file=own.yaml',
    '--params_override=trainer.train_steps=7,task.sizes=[1,2],runtime.seed=2',
  ]
  started = {
    **folders.ended_process().as_dict(),
    'command': shlex.join(words),
    'cwd': '/work',
    'exit_status': 2,
    'started': '2026-01-01T00:00:00+00:00',
    'last_line': 'error: learning_rat: no such field',
  }
  (folder / 'started.json').write_text(json.dumps(started))
  found = console.get('/api/new/clone', run='mistaken')
  assert found == {
    'form': [
      ['experiment', 'digits'],
      ['mode', 'train_and_eval'],
      ['config', '/work/own.yaml'],
      ['set', 'trainer.train_steps=7'],
      ['set', 'task.sizes=[1,2]'],
      ['set', 'runtime.seed=2'],
      ['set', 'learning_rat=1e-3'],
      ['name', 'mistaken-2'],
      ['from', 'mistaken'],
    ]
  }


def test_a_run_is_queued_once_and_nothing_of_a_wrong_one_is(console, root):
  answer = console.post('/api/new/queue', **_form('queued', [_text('train_steps', '2')]), gpus=0)
  assert (answer['run'], answer['has_dispatcher']) == ('queued', False)
  (state,) = queue_folder.Queue(str(root)).states()
  assert f'--model_dir={root}/queued' in state.job.command
  for what, values in itertools.product(
    ('start', 'queue'), (_form('queued'), _form('wrong', [_text('train_steps', 'x')]), _form('a/../b'), _form('.a'))
  ):
    assert console.try_post(f'/api/new/{what}', **values)[0] == 400
  for edit in ({}, {'key': 'a'}, {'key': 1, 'text': 'a'}, {'key': 'task.name', 'string': 'a\ud83d'}, 1):
    assert console.try_post('/api/new/form', **_form('x', [edit]))[0] == 400
  assert not (root / 'wrong').exists()
  assert len(queue_folder.Queue(str(root)).states()) == 1


def test_a_script_has_a_form_of_what_it_reads(console, tmp_path):
  script = tmp_path / 'mine.py'
  script.write_text('model = tokenizer = None\nprint(TEMPERATURE, LEARNING_RATE, callback, Unknown)\ntrainer = model\n')
  body = {'experiment': 'script', 'edits': [{'key': 'script', 'string': str(script)}]}
  found = console.post('/api/new/form', **_form(**body), fields=True)
  assert found['lines'] == []
  fields = {field['path']: field for field in found['fields']}
  assert fields['task.lora_rank']['unread'] == f'{script} never reads LORA_RANK'
  assert not fields['task.learning_rate']['unread']
  own = [path for path in fields if path.startswith('task.parameters.')]
  assert own == ['task.parameters.temperature']
  wrong = [_text('task.parameters.heat', '1'), _text('lora_rank', '4'), _text(own[0], '0.7')]
  found = console.post('/api/new/form', **_form(**{**body, 'edits': [*body['edits'], *wrong]}))
  assert {(line['field'], line['text']) for line in found['lines']} == {
    ('task.parameters.heat', f'task.parameters.heat: {script} never reads HEAT'),
    ('task.lora_rank', f'lora_rank: {script} never reads LORA_RANK'),
  }
  assert found['values'][own[0]] == '0.7'
  script.write_text(script.read_text().replace('TEMPERATURE', 'from_here'))
  later = console.post('/api/new/form', **_form(**body))
  assert later['shape'] != found['shape']  # The page requests the fields again.


def test_a_name_is_proposed_and_unknown_experiments_are_reported(console, root):
  (root / 'digits').mkdir(exist_ok=True)
  assert console.post('/api/new/form', **_form(''))['name'] == 'digits-2'
  found = console.post('/api/new/form', **_form(experiment='digitz'))
  assert found['lines'][0]['field'] == '--experiment'
  assert 'did you mean digits' in found['lines'][0]['text']
  assert [line['field'] for line in console.post('/api/new/form', **_form(mode='trai'))['lines']] == ['--mode']


@pytest.mark.soak
def test_a_pasted_command_trains_to_the_same_params_as_a_start(console, root):
  """Real processes; 100 edits."""
  for number, edits in enumerate(_random_forms()):
    edits = [_text('train_steps', '2'), *(edit for edit, _ in edits)]
    texts = []
    for how in ('pasted', 'started'):
      body = _form(f'{how}-{number}', edits)
      if how == 'pasted':
        command = console.post('/api/new/form', **body)['command']
        # Values that TensorFlow refuses, such as the name of an optimizer, fail after the file exists.
        subprocess.run(['bash', '-c', command], cwd='/', capture_output=True, check=False)
      else:
        console.post('/api/new/start', **body)
        run = run_folders.Run(str(root / body['name']), body['name'])
        while statuses.is_alive(run):
          time.sleep(0.2)
      texts.append((root / body['name'] / 'params.yaml').read_bytes())
    assert texts[0] == texts[1]


@pytest.mark.soak
def test_a_check_is_shown_as_it_goes_and_can_be_stopped(console, root):
  started = console.post('/api/new/check', **_form('checked', [_text('train_steps', '2')]))
  found = {'lives': True}
  while found['lives']:
    time.sleep(0.2)
    found = console.get('/api/new/check', id=started['id'])
  assert (found['exit_status'], 'mistakes       none found' in found['lines']) == (0, True)
  other = console.post('/api/new/check', **_form('checked'))
  console.post('/api/new/stop_check', id=other['id'])
  while console.get('/api/new/check', id=other['id'])['lives']:
    time.sleep(0.2)
  assert console.try_get('/api/new/check', id='../../etc')[0] == 400
  assert 'checked' not in os.listdir(root)


@pytest.mark.slow
def test_a_preview_draws_examples_and_a_form_without_images_reports_it(console, root):
  def preview(*form):
    started = console.post('/api/new/preview', **_form('drawn', *form))
    found = {'lives': True}
    while found['lives']:
      time.sleep(0.2)
      found = console.get('/api/new/check', id=started['id'])
    return started['id'], found

  name, found = preview()
  assert found['exit_status'] == 0 and found['has_picture'] and '15 train examples of digits' in found['lines'][-2]
  picture = (root / '.checks' / name / 'preview.png').read_bytes()
  assert console.request('GET', f'/api/new/picture?id={name}')[2] == picture and picture.startswith(b'\x89PNG')
  name, found = preview([_text('task.train_data.global_batch_size', '0')])
  assert found['exit_status'] == 2 and console.try_get('/api/new/picture', id=name)[0] == 400
  assert not found['has_picture'] and console.try_get('/api/new/picture', id='../../etc')[0] == 400
  assert 'drawn' not in os.listdir(root)
