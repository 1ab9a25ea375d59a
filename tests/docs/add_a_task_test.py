"""docs/getting_started/add_a_task.md, from top to bottom: every file is written, every command run. The table of
docs/how_to/check.md."""

import importlib.util
import inspect
import json
import re
import shlex

import gin
import pytest
from tensorboard.backend.event_processing import event_accumulator

from official_ext.cli import flags as ext_flags
from official_ext.cli import main as cli
from official_ext.cli import train
from official_ext.training.diagnosis import task_checks
from tests import checkouts
from tests import documents
from tests.golden import golden_test

PAGE = documents.read('docs/getting_started/add_a_task.md')
MISTAKES = documents.read('docs/how_to/check.md')


@pytest.fixture
def checkout(tmp_path):
  with checkouts.current(tmp_path / 'checkout') as folder:
    yield folder
  gin.clear_config()


def load(path):
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def run(command, folder, monkeypatch):
  """A command of the page, in this process, which has TensorFlow imported; without XLA, which compiles for seconds."""
  program, *arguments = shlex.split(command)
  if program == 'official-ext':
    assert cli.main([*arguments, *(['--set=xla=false'] if arguments[0] == 'check' else [])]) == 0, command
  elif arguments[0] == 'train.py':
    gin.clear_config()
    ext_flags.define_flags()
    ext_flags.parse_flags([*arguments, '--set=xla=false'])
    assert train.run_main(train.main, arguments) == 0, command
  elif arguments[0] == 'tests/golden/golden_test.py':
    monkeypatch.setattr(golden_test, '_FOLDER', folder / 'tests/golden')
    golden_test.write()
  elif arguments[:2] == ['-m', 'pytest']:
    module = load(folder / arguments[2])
    tests = [function for name, function in vars(module).items() if name.startswith('test_')]
    assert len(tests) == 3
    for number, test in enumerate(tests):
      test(*([folder.parent / f'test-{number}'] if inspect.signature(test).parameters else []))
  else:
    assert program in ('tensorboard', 'pip'), command


def events(folder, event, name='events.jsonl'):
  lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
  return [line for line in lines if line['event'] == event]


@pytest.mark.slow
def test_the_page(checkout, monkeypatch, capsys):
  steps = documents.steps(PAGE)
  assert [name for name, _ in steps if name] == [
    'experiments/iris/configs.py',
    'experiments/iris/task.py',
    'tests/experiments/iris_test.py',
  ]
  assert len(steps) >= 13
  for name, text in steps:
    if name:
      assert (checkout / name).exists()
      (checkout / name).write_text(text)
      checkouts.forget('iris')
    else:
      if (checkout / 'experiments/iris').exists():
        importlib.import_module('experiments.iris')  # As registry_imports.py does in a separate process.
      run(text, checkout, monkeypatch)
  for name in documents.tables(PAGE)['file']:
    assert (checkout / name.strip('`')).exists(), name
  assert 'hidden_sizes' in (checkout / 'tests/golden/iris.yaml').read_text()
  printed = capsys.readouterr().out
  assert 'mistakes       none found' in printed
  assert 'trainer.optimizer_config.optimizer.sgd.momentum: float = 0.9  [momentum]' in printed
  # As it says: 200 steps, 200 more, and the docstring's result.
  runs = checkout / 'runs'
  assert [event['step'] for event in events(runs / 'iris', 'eval')] == [200, 400]
  assert [event['step'] for event in events(runs / 'iris', 'restored')] == [200]
  promise = re.search(r'Result: validation accuracy ([\d.]+) %', PAGE).group(1)
  last = events(runs / 'iris', 'eval')[-1]
  assert last['accuracy'] * 100 == pytest.approx(float(promise), abs=2.0)
  tags = event_accumulator.EventAccumulator(str(runs / 'iris/train')).Reload().Tags()['tensors']
  assert {'loss', 'accuracy', 'f1', 'confidence', 'learning_rate', 'grad_norm'} <= set(tags)
  (evaluated,) = events(runs / 'iris_400', 'eval', 'events.eval.jsonl')
  assert {name: evaluated[name] for name in ('accuracy', 'f1')} == {name: last[name] for name in ('accuracy', 'f1')}
  assert (checkout / 'petals/pyproject.toml').read_text().count('petals = "petals"') == 1


def test_the_table_of_mistakes_is_that_of_the_docstring():
  rows = dict(re.findall(r'^\| ([^|]*) \| (error|warning) \|$', MISTAKES, re.MULTILINE))
  assert len(rows) == 20
  documented = inspect.getdoc(task_checks)
  levels = {
    'error': documented[documented.index('Errors') : documented.index('Warnings')],
    'warning': documented[documented.index('Warnings') :],
  }
  words = (
    'scalar',
    'metric',
    'dtypes',
    'out of range',
    'the last batch',
    'not finite',
    'includes the model',
    '',
    'the value of a tensor',
    'training data',
    'validation data',
    'weight',
    'gradient',
    'Python',
    'shapes',
    'dropout',
    'a sum',
    'no mean over examples',
    'sorted',
    'validation examples',
  )
  for (row, level), word in zip(rows.items(), words, strict=True):
    assert word in levels[level].replace('\n', ' '), row
