"""The experiment `script`: valid scripts, their trainers' reports, stops, saved results."""

import json
import pathlib
import re
import signal
import sys
import textwrap
import time
import types

import numpy as np
from official.core import task_factory
import pytest
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tensor_util
import tf_keras

from experiments.script import callback as callback_lib
from experiments.script import parameters
from experiments.script import source
from official_ext.base import errors
from official_ext.cli import main as cli
from official_ext.training.config import parser
from official_ext.training.tasks import loop_task
from official_ext.training.writers import writers
import registry_imports  # noqa: F401
from tests import documents

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / 'experiments/script/template.py'

# A trainer without a framework, which calls its callbacks as one of Hugging Face's does.
PLAIN = """
import json, os, time, types

class Model:
  def __init__(self, weight=0.0):
    self.weight = weight

  def save_pretrained(self, folder):
    with open(os.path.join(folder, 'weight.json'), 'w') as file:
      json.dump(self.weight, file)

  @classmethod
  def from_pretrained(cls, folder):
    with open(os.path.join(folder, 'weight.json')) as file:
      return cls(json.load(file))

  def state_dict(self):
    return {'weight': self.weight}

class Tokenizer(list):
  def save_pretrained(self, folder):
    with open(os.path.join(folder, 'tokens.json'), 'w') as file:
      json.dump(self, file)

  @classmethod
  def from_pretrained(cls, folder):
    with open(os.path.join(folder, 'tokens.json')) as file:
      return cls(json.load(file))

class Trainer:
  def __init__(self, model, callbacks, seconds=0.0):
    self.own_model, self.callbacks, self.seconds = model, callbacks, seconds
    self.args = types.SimpleNamespace(output_dir=OUTPUT_DIR)

  def train(self, resume_from_checkpoint=None):
    state = types.SimpleNamespace(global_step=0, max_steps=MAX_STEPS)
    control = types.SimpleNamespace(should_training_stop=False, should_save=False)
    if resume_from_checkpoint:
      with open(os.path.join(resume_from_checkpoint, 'trainer_state.json')) as file:
        state.global_step = json.load(file)

    def call(event, **named):
      for each in self.callbacks:
        getattr(each, event)(self.args, state, control, **named)

    call('on_init_end')
    call('on_train_begin')
    while state.global_step < MAX_STEPS and not control.should_training_stop:
      call('on_step_begin')
      time.sleep(self.seconds)
      self.own_model.weight += LEARNING_RATE
      state.global_step += 1
      call('on_step_end')
      if state.global_step % 2 == 0:
        logs = {'loss': 1 / state.global_step, 'learning_rate': LEARNING_RATE, 'grad_norm': 2.0, 'reward': 0.5}
        call('on_log', logs=logs)
      if state.global_step % 4 == 0:
        call('on_log', logs={'eval_loss': 0.25, 'eval_runtime': 0.1, 'epoch': 0.5})
        call('on_evaluate', metrics={})
      if control.should_save:
        folder = os.path.join(OUTPUT_DIR, f'checkpoint-{state.global_step}')
        os.makedirs(folder)
        with open(os.path.join(folder, 'trainer_state.json'), 'w') as file:
          json.dump(state.global_step, file)
        call('on_save')
    call('on_log', logs={'train_runtime': 1.0, 'train_loss': 0.3})
    call('on_train_end')

model, tokenizer = Model(), Tokenizer(['a', 'b'])
trainer = Trainer(model, callbacks=[callback])
"""


def write(folder, code, name='custom01.py'):
  path = folder / name
  path.write_text(textwrap.dedent(code))
  return path


def flags(script, folder, *settings, mode='train'):
  return [
    '--experiment=script',
    f'--mode={mode}',
    f'--model_dir={folder}',
    f'--set=script={script}',
    *(f'--set={setting}' for setting in settings),
  ]


def parse(script, *settings, **more):
  return parser.parse_configuration(
    types.SimpleNamespace(experiment='script', set=[f'script={script}', *settings], **{'mode': 'train', **more}),
    print_return=False,
  )


def refusals(script, *settings, **more):
  with pytest.raises(errors.UserError) as info:
    parse(script, *settings, **more)
  return list(errors.lines_of(info.value))


def record_of(folder):
  return json.loads((folder / 'run.json').read_text())


# Valid scripts.


@pytest.fixture(autouse=True)
def no_script_stays(monkeypatch):
  """A script is a module of its process from its start on, and its folder is searched: the next test's is another."""
  monkeypatch.setattr(sys, 'path', list(sys.path))
  yield
  sys.modules.pop('custom01', None)


@pytest.fixture
def here(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  return tmp_path


def test_a_parameter_that_the_script_never_reads_is_an_error(here):
  write(here, PLAIN)
  assert refusals('custom01.py', 'lora_rank=16') == ['lora_rank: custom01.py never reads LORA_RANK']
  # The default is an expectation too, if somebody sets it.
  assert refusals('custom01.py', 'lora_rank=8') == ['lora_rank: custom01.py never reads LORA_RANK']
  assert refusals('custom01.py', params_override='task.load_in_4bit=true,task.model_path=base') == [
    'model_path: custom01.py never reads MODEL_PATH',
    'load_in_4bit: custom01.py never reads LOAD_IN_4BIT',
  ]
  # A file with all values may hold those that were never set.
  (here / 'all.yaml').write_text('{task: {lora_rank: 8, learning_rate: 0.5}}')
  assert parse('custom01.py', 'max_steps=3', config_file=['all.yaml']).task.learning_rate == 0.5
  (here / 'all.yaml').write_text('{task: {lora_rank: 9}}')
  assert refusals('custom01.py', config_file=['all.yaml']) == ['lora_rank: custom01.py never reads LORA_RANK']


@pytest.mark.parametrize(
  'line',
  [
    'rank = LORA_RANK',
    'def build():\n  def inside():\n    return [LORA_RANK for _ in range(2)]\n  return inside()',
    'class Config:\n  rank = LORA_RANK',
    "rank = globals().get('LORA_RANK', 4)",
    'LORA_RANK = min(LORA_RANK, 64)',
    "if 'LORA_RANK' not in globals():\n  LORA_RANK = 8\nrank = LORA_RANK",
  ],
)
def test_a_variable_is_read_wherever_python_would_read_it(line, tmp_path):
  script = source.Script(str(write(tmp_path, f'{PLAIN}\n{line}\n')))
  assert script.reads('LORA_RANK') and script.line_that_replaces('LORA_RANK') is None


@pytest.mark.parametrize(
  'line', ['def build(LORA_RANK):\n  return LORA_RANK', '# LORA_RANK', "print('LORA_RANK')", 'x = model.LORA_RANK']
)
def test_another_thing_of_the_same_name_is_no_parameter(line, tmp_path):
  assert not source.Script(str(write(tmp_path, f'{PLAIN}\n{line}\n'))).reads('LORA_RANK')


def test_what_would_make_a_run_another_than_it_states_is_refused(here):
  write(here, f'LORA_RANK = 4\n{PLAIN}\nrank = LORA_RANK\ntrainer.train()\n')
  last = len((here / 'custom01.py').read_text().splitlines())
  assert refusals('custom01.py') == [
    'script: custom01.py:1: replaces LORA_RANK, which the script is given; remove the line',
    f'script: custom01.py:{last}: calls trainer.train(), which is done for it, with the saving; remove the line',
  ]
  write(here, 'trainer = 3\n')
  assert refusals('custom01.py', 'max_steps=3')[0] == 'max_steps: custom01.py never reads MAX_STEPS'
  assert refusals('custom01.py') == [
    'script: custom01.py: never reads `callback`, so its training cannot be followed; hand it to the '
    'trainer: callbacks=[callback]',
    'script: custom01.py: sets no `model`, `tokenizer`, of which a script sets all three: `model`, `tokenizer` and '
    '`trainer`',
  ]
  write(here, 'model = trainer = callback\n')
  assert 'sets no `tokenizer`' in refusals('custom01.py')[0]
  write(here, 'def make():\n  global model, tokenizer, trainer\n  model = tokenizer = trainer = callback\nmake()\n')
  assert parse('custom01.py').task.script == 'custom01.py'


def test_a_file_that_is_no_script_is_reported_before_anything(here):
  write(here, 'x = (\n')
  assert refusals('custom01.py') == ["script: custom01.py:1: SyntaxError: '(' was never closed"]
  for content in (b'x = "\xff"\n', b'# coding: none\n', b'x = 1\0', b'  x = 1\n'):
    (here / 'custom01.py').write_bytes(content)
    with pytest.raises(errors.UserError, match=r'^script: custom01\.py(:1)?: \w+: '):
      source.Script('custom01.py')
  for path in ('other.py', 'custom01.txt', '.', ''):
    with pytest.raises(errors.UserError, match=f'^script: {path}: '):
      source.Script(path)
  write(here, PLAIN)
  assert refusals('custom01.py', mode='eval') == [
    '--mode=eval: a script trains and evaluates by itself; use --mode=train'
  ]
  with pytest.raises(errors.UserError, match='task.script: must be set, such as --set=script=custom01.py'):
    parser.parse_configuration(types.SimpleNamespace(experiment='script', mode='train'))


def test_fields_of_this_librarys_loop_are_refused_and_not_listed(here, capsys):
  write(here, PLAIN)
  assert refusals('custom01.py', 'trainer.steps_per_loop=5') == [
    'trainer.steps_per_loop: nothing reads this field: the script brings its own'
  ]
  assert refusals('custom01.py', 'optimizer=adamw')[0].startswith('trainer.optimizer_config: nothing reads this field')
  assert refusals('custom01.py', 'lora_alpha=16') == [
    'lora_alpha: script has no such parameter: a script that reads LORA_ALPHA gets it by '
    '--set=task.parameters.lora_alpha=16'
  ]
  assert cli.main(['describe', 'script']) == 0
  lines = capsys.readouterr().out.splitlines()
  assert 'task.load_in_4bit: bool = true  [load_in_4bit]' in lines
  assert 'trainer.train_steps: int = 100  [train_steps, max_steps]' in lines
  listed = [line.partition(':')[0] for line in lines if re.match(r'(task|trainer|runtime)\.[\w.]+: ', line)]
  assert not [
    path for path in listed if path.startswith(('trainer.optimizer_config', 'task.train_data', 'runtime.num'))
  ]


def test_parameters_arrive_as_what_they_are(here):
  """DeepExtension's names, defaults and types; `False` is false."""
  write(here, f'{PLAIN}\nx = LOAD_IN_4BIT, TEMPERATURE, PromptInputColumn, MAX_SAMPLES\n')
  params = parse(
    'custom01.py', 'load_in_4bit=false', 'task.parameters.temperature=0.5', 'promptinputcolumn=q', 'max_samples=-1'
  )
  found = parameters.variables(params)
  expected = {
    'LOAD_IN_4BIT': False,
    'TEMPERATURE': 0.5,
    'PromptInputColumn': 'q',
    'PROMPT_INPUT_COLUMN': 'q',
    'PromptOutputColumn': 'completion',
    'MAX_SAMPLES': -1,
    'LORA_RANK': 8,
    'MAX_SEQ_LENGTH': 1024,
    'BATCH_SIZE': 2,
    'LEARNING_RATE': 2e-5,
    'MAX_STEPS': 100,
  }
  assert {name: found[name] for name in expected} == expected
  assert all(type(found[name]) is type(value) for name, value in expected.items())
  assert parse('custom01.py', 'load_in_4bit=False').task.load_in_4bit is False
  assert refusals('custom01.py', 'load_in_4bit=no')[0].startswith('task.load_in_4bit: expected bool')
  assert refusals('custom01.py', 'task.parameters.top_k=1') == ['task.parameters.top_k: custom01.py never reads TOP_K']
  assert 'choose another name' in refusals('custom01.py', 'task.parameters.seed=1')[0]


# A run.


@pytest.fixture(scope='module')
def finished(run_train, tmp_path_factory):
  """A run of the plain trainer: its folder, its output, its command."""
  folder = tmp_path_factory.mktemp('finished')
  command = flags(write(folder, PLAIN), folder / 'run', 'max_steps=6', 'learning_rate=0.5')
  process = run_train(command)
  assert process.returncode == 0, process.stderr
  return folder / 'run', process, command


def test_a_run_leaves_what_every_run_leaves(finished):
  folder, process, _ = finished
  record = record_of(folder)
  assert (record['status'], record['step'], record['train_steps'], record['error']) == ('finished', 6, 6, None)
  assert record['experiment'] == 'script' and record['parameters']['learning_rate'] == 0.5
  assert (folder / 'script.py').read_text() == PLAIN
  assert 'learning_rate: 0.5' in (folder / 'params.yaml').read_text()
  # The source of a clone: it is read back, with changes, and held against the script as before.
  again = parse(folder.parent / 'custom01.py', 'max_steps=7', config_file=[str(folder / 'params.yaml')])
  assert (again.task.learning_rate, again.trainer.train_steps) == (0.5, 7)
  refused = refusals(
    folder.parent / 'custom01.py',
    'trainer.inspect.every=3',
    'lora_rank=4',
    config_file=[str(folder / 'params.yaml')],
  )
  assert [line.partition(':')[0] for line in refused] == ['trainer.inspect', 'lora_rank']
  assert not (folder / 'training.lock').exists()
  events = writers.read_events(str(folder / 'events.jsonl'))
  assert [event['event'] for event in events] == ['start', 'train', 'train', 'eval', 'train', 'finished']
  trained = [event for event in events if event['event'] == 'train']
  assert [(event['step'], event['loss'], event['reward'], event['grad_norm']) for event in trained] == [
    (step, 1 / step, 0.5, 2.0) for step in (2, 4, 6)
  ]
  assert [event['percent'] for event in trained] == pytest.approx([100 * step / 6 for step in (2, 4, 6)])
  assert trained[-1]['eta_seconds'] == 0 and all(event['steps_per_second'] > 0 for event in trained)
  (evaluated,) = (event for event in events if event['event'] == 'eval')
  assert (evaluated['step'], evaluated['loss'], evaluated['seconds']) == (4, 0.25, 0.1)
  assert 'train 6/6  100%' in process.stdout.replace('6/6 100%', '6/6  100%')
  assert 'train_loss 0.3' in process.stdout.partition('Final metrics:')[2]
  accumulator = event_accumulator.EventAccumulator(str(folder / 'train'), size_guidance={'tensors': 0}).Reload()
  losses = {event.step: tensor_util.make_ndarray(event.tensor_proto).item() for event in accumulator.Tensors('loss')}
  assert losses == {step: np.float32(1 / step) for step in (2, 4, 6)}


def test_the_model_and_the_tokenizer_are_saved_for_the_script(finished):
  folder, process, _ = finished
  assert json.loads((folder / 'model/weight.json').read_text()) == 3.0  # Six steps of 0.5.
  assert json.loads((folder / 'model/tokens.json').read_text()) == ['a', 'b']
  assert f'Saved: {folder}/model' in process.stdout and record_of(folder)['result'] == f'{folder}/model'


def test_a_finished_run_stays_what_it_is(finished, run_train, tmp_path):
  folder, _, command = finished
  before = (folder / 'events.jsonl').read_bytes()
  process = run_train(command)
  assert process.returncode == 0 and 'finished before, at step 6: nothing to do' in process.stdout
  process = run_train([*command[:-1], '--set=learning_rate=0.25'])
  assert process.returncode == 2
  assert 'which other parameters have made (learning_rate: 0.5 -> 0.25); name another folder' in process.stderr
  with pytest.raises(errors.UserError, match=r'other parameters have made \(the script\); name another folder'):
    params = parse(write(tmp_path, f'{PLAIN}\n# Changed.\n'), 'max_steps=6', 'learning_rate=0.5')
    task_factory.get_task(params.task).check_loop(params, str(folder), record_of(folder))
  assert record_of(folder)['status'] == 'finished' and (folder / 'events.jsonl').read_bytes() == before


def test_a_fault_of_the_script_is_named_by_its_line(run_train, tmp_path):
  # It goes elsewhere before, and the run stays where it is.
  code = f"{PLAIN}\nos.chdir('/')\n\n\ndef load():\n  raise KeyError('no such column')\n\n\nload()\n"
  script = write(tmp_path, code)
  line = code.splitlines().index("  raise KeyError('no such column')") + 1
  process = run_train(flags('custom01.py', 'run'), cwd=tmp_path)
  assert process.returncode == 1
  message = f"custom01.py:{line}: KeyError: 'no such column'"
  assert process.stderr.splitlines()[-1] == f'error: {message}; the traceback is in run/traceback.txt'
  assert f'File "{script}", line {line}, in load' in process.stderr and 'task.py' not in process.stderr
  record = record_of(tmp_path / 'run')
  assert (record['status'], record['stage'], record['error']) == ('failed', 'load', f'ScriptError: {message}')


def test_sigterm_lets_the_trainer_save_and_the_same_command_resumes(start_train, run_train, tmp_path):
  script = write(tmp_path, PLAIN.replace('callbacks=[callback])', 'callbacks=[callback], seconds=BATCH_SIZE / 100)'))
  command = flags(script, tmp_path / 'run', 'learning_rate=0.5')
  process = start_train([*command, '--set=max_steps=100000'])
  path, end = tmp_path / 'run/events.jsonl', time.monotonic() + 120
  while not (path.exists() and '"event": "train"' in path.read_text()):
    assert process.poll() is None and time.monotonic() < end
    time.sleep(0.05)
  process.send_signal(signal.SIGTERM)
  output, _ = process.communicate(timeout=60)
  assert process.returncode == 75, output
  record = record_of(tmp_path / 'run')
  step = record['step']
  assert record['status'] == 'preempted' and f'SIGTERM: stopped at step {step}, and saved' in output
  assert (tmp_path / f'run/checkpoint-{step}/trainer_state.json').exists()
  assert json.loads((tmp_path / 'run/model/weight.json').read_text()) == step / 2
  (tmp_path / script).write_text((tmp_path / script).read_text() + '# Changed.\n')
  process = run_train([*command, f'--set=max_steps={step + 2}'])
  assert process.returncode == 0, process.stderr
  assert f'{tmp_path / "run"}: other code than before: custom01.py\n' in process.stdout
  # Its weights are not in the checkpoint of this trainer: two steps of 0.5 show that it resumed from there.
  assert json.loads((tmp_path / 'run/model/weight.json').read_text()) == 1.0
  restored = [json.loads(line) for line in path.read_text().splitlines() if '"restored"' in line]
  assert [(event['step'], pathlib.Path(event['checkpoint']).name) for event in restored] == [
    (step, f'checkpoint-{step}')
  ]
  assert record_of(tmp_path / 'run')['step'] == step + 2


def test_a_result_gets_no_place_that_is_taken(tmp_path):
  script = write(tmp_path, PLAIN)
  for name in ('model/config.json', 'checkpoint-3/trainer_state.json'):
    taken = tmp_path / 'out' / name
    taken.parent.mkdir(parents=True)
    taken.touch()
    task = _task(script, f'output_dir={tmp_path}/out')
    with pytest.raises(errors.UserError, match=f'task.output_dir: .*{taken.parent.name}.* name another folder'):
      task.check_loop(None, str(tmp_path / 'run'), None)
    taken.unlink()
    taken.parent.rmdir()
  task.check_loop(None, str(tmp_path / 'run'), None)


def test_a_remote_folder_is_refused_for_the_result(tmp_path):
  script = write(tmp_path, PLAIN)  # Before: it went to a folder `ram:` of the current one.
  with pytest.raises(errors.UserError, match='^--model_dir: ram://b/run: is remote, .* set task.output_dir to a local'):
    _task(script).check_loop(None, 'ram://b/run', None)
  with pytest.raises(errors.UserError, match='^task.output_dir: ram://b/out: is remote'):
    _task(script, 'output_dir=ram://b/out').check_loop(None, str(tmp_path / 'run'), None)
  _task(script, f'output_dir={tmp_path}/out').check_loop(None, 'ram://b/run', None)


def _task(script, *settings):
  return task_factory.get_task(parse(script, *settings).task)


# official-ext check.


def check(capsys, script, *settings):
  status = cli.main(['check', 'script', f'--set=script={script}', *(f'--set={setting}' for setting in settings)])
  captured = capsys.readouterr()
  return status, captured.out, captured.err


def test_check_trains_two_steps_as_a_run_does_and_loads_what_it_saves(here, capsys):
  write(here, PLAIN)
  status, out, err = check(capsys, 'custom01.py', 'max_steps=1000', f'output_dir={here}/out')
  assert status == 0, err
  assert re.search(r'^train 2 +loss 0\.5  learning_rate 2e-05  grad_norm 2', out, re.MULTILINE)
  assert re.search(r'^result +model: 0\.0 MiB, saved and loaded, 1 arrays equal$', out, re.MULTILINE)
  assert re.search(r'^result +tokenizer: saved and loaded, 2 tokens$', out, re.MULTILINE)
  assert 'would          train 1000 steps' in out and 'mistakes       none found' in out
  assert sorted(path.name for path in here.iterdir()) == ['custom01.py']


@pytest.mark.parametrize(
  'before, after, message',
  [
    (
      'not control.should_training_stop',
      'True',
      'the trainer still runs at step 5, after a stop request: a run of it could not be stopped',
    ),
    ('callbacks=[callback]', 'callbacks=[][:len([callback]) - 1]', 'its trainer has never called `callback`'),
    ('cls(json.load(file))', 'cls(json.load(file) + 1)', 'model: saved and loaded again, weight has other values'),
    ('self.weight += LEARNING_RATE', 'self.weight += LEARNING_RATE', None),
    ('model.weight += LEARNING_RATE', 'model.wait += LEARNING_RATE', "'Model' object has no attribute 'wait'"),
    ('def save_pretrained', 'def save_it', 'has no `save_pretrained`'),
    ('trainer = Trainer(model, callbacks=[callback])', 'trainer = callback', 'which has no method `train`'),
  ],
)
def test_check_finds_what_a_run_would_end_with(before, after, message, here, capsys):
  write(here, PLAIN.replace(before, after))
  status, _, err = check(capsys, 'custom01.py')
  assert (status, message in err if message else err == '') == ((2, True) if message else (0, True))


@pytest.mark.slow
def test_the_template_is_a_script_that_checks(capsys):
  status, out, err = check(capsys, TEMPLATE, 'batch_size=32', 'learning_rate=2e-3')
  assert status == 0, err
  assert 'saved and loaded, 4 arrays equal' in out


# Callbacks of frameworks.


def callback_of(**trainer):
  params = types.SimpleNamespace(trainer=types.SimpleNamespace(train_steps=100, summary_interval=2, **trainer))
  events = []

  class Run(loop_task.LoopRun):
    def report(self, event, values):
      events.append((event, self.step, dict(values)))

  run = Run(params, '')
  return callback_lib.Callback(run), run, events


@pytest.mark.slow
def test_keras_calls_it_as_its_own():
  callback, run, events = callback_of()
  model = tf_keras.Sequential([tf_keras.Input((3,)), tf_keras.layers.Dense(1)])
  model.compile(tf_keras.optimizers.SGD(0.125), 'mse', metrics=['mae'])
  data = np.ones((20, 3), np.float32), np.ones((20, 1), np.float32)
  model.fit(*data, batch_size=4, epochs=2, validation_data=data, callbacks=[callback], verbose=0)
  assert [(event, step) for event, step, _ in events] == [
    *(('train', step) for step in (2, 4, 5)),
    ('eval', 5),
    *(('train', step) for step in (7, 9, 10)),
    ('eval', 10),
  ]
  assert run.train_steps == 10 and events[-2][2]['percent'] == 100
  assert events[0][2]['learning_rate'] == 0.125 and {'loss', 'mae'} <= events[0][2].keys()
  assert {'loss', 'mae'} == events[-1][2].keys() and callback.last['validation_loss'] == events[-1][2]['loss']
  assert all(type(events[-2][2][name]) is float for name in ('loss', 'mae'))

  callback, run, _ = callback_of()
  run._stop_after = 3
  model.fit(*data, batch_size=4, epochs=2, callbacks=[callback], verbose=0)
  assert run.step == 3


def test_a_loop_of_ones_own_logs_and_asks():
  callback, run, events = callback_of()
  run._stop_after = 3
  for step in range(1, 10):
    callback.log(step, {'loss': np.float32(0.5), 'eval_accuracy': 0.25})
    if callback.should_stop:
      break
  assert step == 3 and run.step == 3
  assert [(event, step) for event, step, _ in events] == [(event, n) for n in (1, 2, 3) for event in ('train', 'eval')]
  assert events[0][2]['loss'] == 0.5 and events[0][2]['percent'] == 1 and events[1][2] == {'accuracy': 0.25}


@pytest.mark.parametrize('is_beside', [True, False])
def test_a_copied_run_takes_its_own_best_checkpoint(is_beside, tmp_path):
  # Before: Hugging Face's trainer loaded that of the original, whose path is in trainer_state.json.
  callback, _, _ = callback_of()
  best = tmp_path / 'original/checkpoint-4'
  if is_beside:
    (tmp_path / 'copy/checkpoint-4').mkdir(parents=True)
  args = types.SimpleNamespace(output_dir=str(tmp_path / 'copy'))
  state = types.SimpleNamespace(global_step=8, max_steps=100, best_model_checkpoint=str(best))
  callback.on_train_begin(args, state, types.SimpleNamespace())
  assert state.best_model_checkpoint == str(tmp_path / 'copy/checkpoint-4' if is_beside else best)


HUGGING_FACE = """
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
import torch

model = LlamaForCausalLM(
  LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
)
tokenizer = None
rows = [{'input_ids': torch.arange(8) % 32, 'labels': torch.arange(8) % 32} for _ in range(64)]
trainer = Trainer(
  model=model,
  args=TrainingArguments(
    output_dir=OUTPUT_DIR, max_steps=MAX_STEPS, logging_steps=2, eval_strategy='steps', eval_steps=4, use_cpu=True,
    learning_rate=LEARNING_RATE, report_to='none', disable_tqdm=True, save_strategy='no', warmup_steps=WARMUP_STEPS,
    per_device_train_batch_size=BATCH_SIZE,
  ),
  train_dataset=rows,
  eval_dataset=rows[:4],
  callbacks=[callback],
)
"""


@pytest.mark.soak
def test_a_trainer_of_hugging_face_stops_resumes_and_is_saved(start_train, run_train, tmp_path, capsys):
  script = write(tmp_path, HUGGING_FACE)
  assert check(capsys, script)[0] == 0
  folder = tmp_path / 'run'
  command = flags(script, folder, 'learning_rate=1e-2')
  process = start_train([*command, '--set=max_steps=100000'])
  path, end = folder / 'events.jsonl', time.monotonic() + 300
  while not (path.exists() and '"eval"' in path.read_text()):
    assert process.poll() is None and time.monotonic() < end
    time.sleep(0.1)
  process.send_signal(signal.SIGTERM)
  output, _ = process.communicate(timeout=120)
  assert process.returncode == 75, output
  step = record_of(folder)['step']
  process = run_train([*command, f'--set=max_steps={step + 4}'])
  assert process.returncode == 0, process.stderr
  events = writers.read_events(str(path))
  trained = [event for event in events if event['event'] == 'train']
  assert [event['step'] for event in trained] == list(range(2, step + 5, 2))
  assert all({'loss', 'learning_rate', 'grad_norm', 'percent'} <= event.keys() for event in trained)
  assert trained[-1]['loss'] < trained[0]['loss']
  assert record_of(folder)['status'] == 'finished' and (folder / 'model/model.safetensors').exists()


@pytest.mark.soak
def test_the_loop_of_the_page_checks(here, capsys):
  (code,) = documents.code(documents.read('docs/how_to/script.md'))
  write(here, code)
  status, out, err = check(capsys, 'custom01.py', 'learning_rate=0.5')
  assert status == 0, err
  assert 'model: 0.0 MiB, saved and loaded, 2 arrays equal' in out


@pytest.mark.soak
def test_what_peft_has_put_around_a_model_is_saved_as_adapters(here, capsys):
  write(here, HUGGING_FACE.replace('tokenizer = None', PEFT))
  status, out, err = check(capsys, 'custom01.py', 'lora_rank=2')
  assert status == 0, err
  # A and B of query and value.
  assert 'adapter: 0.0 MiB, saved and loaded, 4 arrays equal' in out


PEFT = """
from peft import LoraConfig, get_peft_model
model = get_peft_model(model, LoraConfig(r=LORA_RANK, target_modules=['q_proj', 'v_proj']))
tokenizer = None
"""
