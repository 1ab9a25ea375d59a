"""docs/how_to/callbacks.md and docs/how_to/metrics.md are correct: their code runs, their tables are complete."""

import pathlib
import re

import pytest
from tensorboard.backend.event_processing import event_accumulator

from experiments.digits_mlp import configs
from official_ext.base.run_folder import run_files
from official_ext.training import metrics
from official_ext.training.actions import triggers
from official_ext.training.config import definitions
from official_ext.training.loop import train_lib
from official_ext.training.metrics import classification
from official_ext.training.writers import builtin
from official_ext.training.writers import registry
from tests.training.loop import harness
from tests.training.loop import small_run

DOCS = pathlib.Path(__file__).resolve().parent.parent.parent / 'docs'


def _run_code(name):
  """The definitions of a page's Python code."""
  namespace = {'__name__': name}
  for code in re.findall(r'```python\n(.*?)```', (DOCS / name).read_text(), re.DOTALL):
    exec(compile(code, name, 'exec'), namespace)  # pylint: disable=exec-used
  return namespace


def _train(task_cls, folder, **trainer):
  """digits_mlp, shorter, by another task."""
  params = small_run.make_params(
    **{'train_steps': 400, 'steps_per_loop': 100, 'validation_interval': 100, 'checkpoint_interval': 400, **trainer}
  )
  params.task = configs.DigitsMlpTaskConfig(model=configs.DigitsMlpModelConfig(hidden_sizes=(32,)))
  strategy = harness.strategy('one')
  with strategy.scope():
    task = task_cls(params.task, logging_dir=str(folder))
  return train_lib.run_experiment(strategy, task, 'train_and_eval', definitions.upgrade(params), str(folder))


@pytest.fixture
def callbacks():
  yield _run_code('how_to/callbacks.md')
  del registry.WRITERS._values['log_file']


def test_the_action_the_triggers_and_the_writer(callbacks, tmp_path, capsys):
  _, logs = _train(callbacks['MyTask'], tmp_path, writers=('tensorboard', 'log_file'))
  record = small_run.record(tmp_path)
  assert record['early_stopped'] == f'accuracy is {logs["accuracy"]:.2f}' and logs['accuracy'] >= 0.85
  assert record['step'] < 400, record
  printed = re.findall(r'^step (\d+): loss [\d.]+$', capsys.readouterr().out, re.MULTILINE)
  assert [int(step) for step in printed] == list(range(100, record['step'] + 1, 100))
  assert (tmp_path / 'weights.h5').exists()
  lines = (tmp_path / 'log.txt').read_text().splitlines()
  loss = small_run.events(tmp_path, 'train')[0]['training_loss']
  assert f'train 100 {loss}' in lines and lines[-1].startswith('finished')


@pytest.mark.slow
def test_metrics(tmp_path):
  _, logs = _train(_run_code('how_to/metrics.md')['MyTask'], tmp_path, train_steps=100)
  (event,) = small_run.events(tmp_path, 'eval')
  listed = set(classification._METRICS) - {'confusion_matrix'}
  assert all(0.5 < event[name] <= 1 for name in listed)
  matrix = logs['confusion_matrix']
  assert matrix.sum() == 360 and matrix.trace() / 360 == pytest.approx(event['accuracy'])
  tags = event_accumulator.EventAccumulator(str(tmp_path / 'validation')).Reload().Tags()['tensors']
  assert 'confusion_matrix' in tags


def test_tables_are_complete():
  page = (DOCS / 'how_to/callbacks.md').read_text()
  listed = page[page.index('The events are') : page.index('- The logs are')]
  assert set(re.findall(r'`(\w+)`', listed)) == set(run_files.EVENTS)
  rows = re.findall(r'^\| `(\w+)', page, re.MULTILINE)
  assert set(rows) == {'EveryNSteps', 'EveryTSeconds', 'OnBest', 'OnEvent', 'AtEnd', *registry.WRITERS}
  assert all(hasattr(triggers, name) or name in registry.WRITERS for name in rows)
  builtin.check(list(registry.WRITERS))
  page = (DOCS / 'how_to/metrics.md').read_text()
  table = page[page.index('| name') : page.index('`num_classes=1`')]
  assert set(re.findall(r'`(\w+)`', ' '.join(re.findall(r'^\|[^|]*\|', table, re.MULTILINE)))) == set(
    classification._METRICS
  )
  assert len(metrics.build(list(classification._METRICS), 3)) == len(classification._METRICS)
