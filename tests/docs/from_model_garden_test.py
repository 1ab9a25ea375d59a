"""docs/getting_started/from_model_garden.md: its scripts train in both libraries; checkpoints, tags and defaults."""

import importlib.util
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys

from official.core import config_definitions
from official.core import train_lib
import pytest
from tensorboard.backend.event_processing import event_accumulator

import official_ext as ext
from official_ext.training.writers import tensorboard
from tests import documents

PAGE = documents.read('docs/getting_started/from_model_garden.md')
SCRIPT, PORTED, TRAINER, DRIVER = documents.code(PAGE)
# Model Garden's own loop, without this library.
STOCK = """
import sys
from official.core import exp_factory, task_factory, train_lib
import tensorflow as tf
import my_iris
folder, steps = sys.argv[1], int(sys.argv[2])
params = exp_factory.get_exp_config('my_iris')
params.override({'trainer': {'train_steps': steps}})
strategy = tf.distribute.OneDeviceStrategy('CPU:0')
with strategy.scope():
  task = task_factory.get_task(params.task, logging_dir=folder)
_, logs = train_lib.run_experiment(strategy, task, 'train_and_eval', params, folder, run_post_eval=True)
assert 'official_ext' not in sys.modules
print('accuracy', float(logs['accuracy']), 'step', tf.train.latest_checkpoint(folder).rpartition('-')[2])
"""


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  found = tmp_path_factory.mktemp('page')
  (found / 'my_iris.py').write_text(SCRIPT)
  (found / 'iris_ported.py').write_text(PORTED)
  (found / 'stock.py').write_text(STOCK)
  (found / 'driver.py').write_text(DRIVER)
  return found


def stock(folder, model_dir, steps):
  environment = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
  command = [sys.executable, 'stock.py', model_dir, str(steps)]
  process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
  assert process.returncode == 0, process.stderr[-3000:]
  accuracy, step = re.search(r'^accuracy ([\d.]+) step (\d+)', process.stdout, re.MULTILINE).groups()
  return float(accuracy), int(step)


def events(folder, name, event):
  lines = [json.loads(line) for line in (folder / name / 'events.jsonl').read_text().splitlines()]
  return [line for line in lines if line['event'] == event]


def promised(text):
  return float(re.search(r'Above ([\d.]+) %', text).group(1)) / 100


@pytest.mark.slow
def test_the_port_trains(run_train, folder):
  process = run_train(
    [
      '--registry=iris_ported',
      '--experiment=iris_ported',
      '--mode=train_and_eval',
      '--model_dir=ported',
      '--set=xla=false',
    ],
    cwd=folder,
  )
  assert process.returncode == 0, process.stderr
  assert events(folder, 'ported', 'eval')[-1]['accuracy'] > promised(PORTED)


@pytest.mark.slow
def test_checkpoints_pass_in_both_directions_and_tags_are_those_of_the_table(run_train, folder):
  accuracy, step = stock(folder, 'runs/my_iris', 200)
  assert accuracy > promised(SCRIPT) and step == 200
  tags = {part: tags_of(folder / 'runs/my_iris' / part) for part in ('train', 'validation')}
  assert {'training_loss', 'accuracy', 'learning_rate', 'steps_per_second'} <= tags['train']
  assert {'validation_loss', 'accuracy'} <= tags['validation']

  (command,) = re.findall(r'^    official-ext train (.*)$', PAGE, re.MULTILINE)
  process = run_train([*command.split(), '--set=train_steps=300', '--set=xla=false'], cwd=folder)
  assert process.returncode == 0, process.stderr
  assert [event['step'] for event in events(folder, 'runs/my_iris', 'restored')] == [200]
  assert (folder / 'runs/my_iris/ckpt-300.manifest.json').exists()
  before = tags['train']
  added = tags_of(folder / 'runs/my_iris/train') - before
  assert {'loss', 'grad_norm', 'progress/steps_per_second', 'progress/examples_per_second', 'progress/percent'} <= added
  assert 'progress/seconds' in tags_of(folder / 'runs/my_iris/validation')

  accuracy, step = stock(folder, 'runs/my_iris', 400)
  assert accuracy > promised(SCRIPT) and step == 400

  process = run_train([*command.split(), '--set=train_steps=500', '--set=xla=false'], cwd=folder)
  assert process.returncode == 0, process.stderr
  assert [event['step'] for event in events(folder, 'runs/my_iris', 'restored')] == [200, 400]
  (line,) = [line for line in process.stderr.splitlines() if 'has no manifest' in line]
  assert 'ckpt-400' in line and 'ckpt-300' in line


@pytest.mark.slow
def test_with_its_names_every_tag_of_model_garden_is_written_at_the_same_steps(run_train, folder):
  stock(folder, 'theirs', 200)
  (command,) = re.findall(r'^    official-ext train (.*)$', PAGE, re.MULTILINE)
  command = command.replace('runs/my_iris', 'ours').split()
  process = run_train(
    [*command, '--set=train_steps=200', '--set=xla=false', '--set=trainer.summary_names=model_garden'], cwd=folder
  )
  assert process.returncode == 0, process.stderr
  for part in ('train', 'validation'):
    theirs, ours = (steps_of(folder / name / part) for name in ('theirs', 'ours'))
    assert theirs and theirs == {tag: steps for tag, steps in ours.items() if tag in theirs}
    assert {tag for tag in ours if tag not in theirs and not tag.startswith('progress/')} <= {'grad_norm'}


def steps_of(folder):
  """Tag -> the steps of its values, each once: Model Garden's evaluation after the training repeats the last."""
  found = event_accumulator.EventAccumulator(str(folder)).Reload()
  return {tag: {event.step for event in found.Tensors(tag)} for tag in found.Tags()['tensors']}


def tags_of(folder):
  return set(event_accumulator.EventAccumulator(str(folder)).Reload().Tags()['tensors'])


def test_the_tags_of_the_losses():
  assert tensorboard.tag_of('training_loss', {}) == tensorboard.tag_of('validation_loss', {}) == 'loss'
  assert tensorboard.tag_of('steps_per_second', {}) == 'progress/steps_per_second'


def test_the_defaults():
  rows = re.findall(r'^\| `runtime\.(\w+)` \| `?(\w+)[^|]* \| `(\w+)`', PAGE, re.MULTILINE)
  assert [name for name, *_ in rows] == ['distribution_strategy', 'enable_xla', 'seed', 'deterministic']
  theirs, ours = config_definitions.RuntimeConfig(), ext.RuntimeConfig()
  for name, their, our in rows:
    assert str(getattr(theirs, name, 'no')).lower() == their, name
    assert str(getattr(ours, name)).lower() == our, name


def test_the_custom_trainer():
  names = {}
  exec(compile(TRAINER, 'from_model_garden.md', 'exec'), names)  # pylint: disable=exec-used
  assert names['LoggingTask'].trainer_cls is names['LoggingTrainer']
  assert issubclass(names['LoggingTrainer'], ext.Trainer) and hasattr(ext.Trainer, 'train_loop_end')


def drive(folder, steps):
  command = [sys.executable, 'driver.py', '--experiment=my_iris', '--mode=train_and_eval', '--model_dir=driven']
  command += [f'--params_override=trainer.train_steps={steps},runtime.distribution_strategy=one_device']
  environment = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(documents.ROOT), os.environ.get('PYTHONPATH', '')])}
  process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
  assert process.returncode == 0, process.stderr[-3000:]
  evaluation = events(folder, 'driven', 'eval')[-1]
  assert evaluation['step'] == steps and evaluation['error'] == pytest.approx(1 - evaluation['accuracy'], abs=1e-6)
  return events(folder, 'driven', 'train')


@pytest.mark.slow
def test_a_driver_with_its_own_trainer_trains_and_resumes(folder):
  assert [(event['step'], event['loops']) for event in drive(folder, 200)] == [(100, 1), (200, 2)]
  assert drive(folder, 300)[-1]['loops'] == 3
  assert [event['step'] for event in events(folder, 'driven', 'restored')] == [200]


LOAD = """
import sys
from official_ext.training.trained import trained_model
arguments = dict(experiment='my_iris', registry=['my_iris'])
found = trained_model.load_run(sys.argv[1], sys.argv[2], **arguments)
print('loaded', found.step, found.checkpoint)
"""


@pytest.mark.slow
def test_the_models_of_model_gardens_own_runs_load(folder):
  script = STOCK.replace(
    "{'train_steps': steps}",
    "{'train_steps': steps, 'best_checkpoint_export_subdir': 'best', 'best_checkpoint_eval_metric': 'accuracy'}",
  )
  script = script.replace('strategy = ', 'train_utils.serialize_config(params, folder)\nstrategy = ', 1)
  (folder / 'stock_best.py').write_text(f'from official.core import train_utils\n{script}')
  (folder / 'load.py').write_text(LOAD)
  environment = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(documents.ROOT), os.environ.get('PYTHONPATH', '')])}

  def run(*command):
    process = subprocess.run(
      [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout

  run('stock_best.py', 'kept', '200')
  assert 'loaded 200 kept/ckpt-200' in run('load.py', 'kept', 'latest')
  step, path = re.search(r'^loaded (\d+) (.*)$', run('load.py', 'kept', 'best'), re.MULTILINE).groups()
  assert step in ('100', '200') and path.startswith('kept/best/best_ckpt-')


@pytest.mark.slow
@pytest.mark.parametrize('part', ['vision', 'nlp'])
def test_model_gardens_drivers_run_with_one_changed_import(part, folder):
  (line,) = re.findall(r'^    (import official_ext as train_lib)', PAGE, re.MULTILINE)
  source = importlib.util.find_spec(f'official.{part}.train').origin
  text, number = re.subn(
    '^from official.core import train_lib$', line, pathlib.Path(source).read_text(), flags=re.MULTILINE
  )
  assert number == 1
  (folder / f'{part}_train.py').write_text(f'import my_iris  # The experiment.\n{text}')
  command = [sys.executable, f'{part}_train.py', '--experiment=my_iris', '--mode=train_and_eval', f'--model_dir={part}']
  command.append('--params_override=runtime.distribution_strategy=one_device,trainer.train_steps=200')
  environment = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(documents.ROOT), os.environ.get('PYTHONPATH', '')])}
  process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
  assert process.returncode == 0, process.stderr[-3000:]
  assert events(folder, part, 'eval')[-1]['accuracy'] > promised(SCRIPT)
  assert (folder / part / 'ckpt-200.manifest.json').exists() and 'no call used' not in process.stderr
  (folder / f'{part}.out').write_text(process.stdout + process.stderr)


def test_the_arguments_of_run_experiment():
  rows = re.search(r'argument of `run_experiment`.*?\n\n', PAGE, re.DOTALL).group(0)
  theirs = list(inspect.signature(train_lib.run_experiment).parameters)
  first_optional = theirs.index('run_post_eval')
  assert sorted(set(re.findall(r'`(\w+)`', rows)) & set(theirs)) == sorted(theirs[first_optional:])


def test_the_public_names_exist():
  assert set(re.findall(r'\bext\.(\w+)', PAGE)) <= set(ext.FACE)


def test_a_driver_with_a_stock_trainer_ends_in_one_line(folder):
  """The line of the page, and no traceback, although the driver calls `run_experiment` by itself."""
  (lines,) = re.findall(r'^(error: run_experiment: trainer: .*\n.*)$', PAGE, re.MULTILINE)
  line = lines.replace('\n', ' ')
  base = 'from official.core import base_trainer\n\n\nclass CustomTrainer(base_trainer.Trainer)'
  (folder / 'stock_driver.py').write_text(DRIVER.replace('class CustomTrainer(ext.Trainer)', base))
  command = [sys.executable, 'stock_driver.py', '--experiment=my_iris', '--mode=train', '--model_dir=refused']
  environment = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(documents.ROOT), os.environ.get('PYTHONPATH', '')])}
  process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
  assert (process.returncode, process.stderr.splitlines()[-1]) == (2, line)
  assert 'Traceback' not in process.stderr and not (folder / 'refused').exists()
