"""The pages for users of Keras and Lightning: their scripts train as they say, the named fields exist."""

import importlib.util
import math
import re
import types

from official.core import exp_factory
import pytest

from official_ext.training.actions import keras_callbacks
from official_ext.training.config import overrides
from official_ext.training.config import parser
import registry_imports  # noqa: F401
from tests import documents
from tests.experiments import shrunk_run
from tests.training.loop import small_run

PAGES = ('docs/getting_started/from_keras.md', 'docs/getting_started/from_lightning.md')


def load(page, name, folder):
  """The script of a page, imported as a separate module."""
  (code,) = documents.code(documents.read(page))
  path = folder / f'{name}.py'
  path.write_text(code)
  spec = importlib.util.spec_from_file_location(name, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def promised(module, name):
  return float(re.search(r'Above ([\d.]+) %', getattr(module, name).__doc__).group(1)) / 100


def run(name, folder):
  params = exp_factory.get_exp_config(name)
  params.task.train_data.seed = 0
  params.runtime.enable_xla = False
  return shrunk_run.run(folder, params)


@pytest.mark.slow
def test_the_script_from_keras(tmp_path, capsys):
  module = load(PAGES[0], 'my_digits', tmp_path)
  logs = run('my_digits', tmp_path / 'run')
  assert logs['accuracy'] > promised(module, 'my_digits')
  evaluations = small_run.events(tmp_path / 'run', 'eval')
  # An epoch has 1347 / 32 updates; each end is rounded up by itself.
  ends = [math.ceil(epoch * 1347 / 32) for epoch in range(1, 21)]
  assert [line['step'] for line in evaluations] == ends[: len(evaluations)] and ends[-1] == 842
  out = capsys.readouterr().out
  for epoch, line in enumerate(evaluations, 1):
    assert f'epoch {epoch}: val_loss {line["validation_loss"]:.3f}, learning rate ' in out
  assert small_run.events(tmp_path / 'run', 'learning_rate_reduced')
  assert list((tmp_path / 'run/best').rglob('*.index'))


@pytest.mark.slow
def test_the_script_from_lightning(tmp_path):
  module = load(PAGES[1], 'wine', tmp_path)
  logs = run('wine', tmp_path)
  assert logs['accuracy'] > promised(module, 'wine')
  # 142 examples in updates of 2 x 16, an evaluation after each ten epochs: each end is rounded up by itself.
  ends = [math.ceil(epochs * 142 / 32) for epochs in (10, 20, 30, 40)]
  assert [line['step'] for line in small_run.events(tmp_path, 'eval')] == ends == [45, 89, 134, 178]


@pytest.mark.parametrize('page', PAGES)
def test_the_fields_that_are_named_exist(page):
  params = parser.parse_configuration(types.SimpleNamespace(experiment='digits'))
  paths = {field.path for field in overrides.leaves(params, selected=False)}
  sections = {path.rpartition('.')[0] for path in paths}
  sections |= {section.rpartition('.')[0] for section in sections}
  named = set(re.findall(r'`((?:trainer|runtime|task)\.[a-z_.]+[a-z])', documents.read(page)))
  named -= {'trainer.strategy.extended.should_checkpoint', 'trainer.fit'}  # Code.
  assert len(named) > 12
  assert not {path for path in named if path not in paths | sections and not path.startswith('task.train_data')}


def test_the_hooks_are_those_of_the_class():
  hooks = lambda text: set(re.findall(r'`?(on_(?:train|epoch|test)_\w+)`?', text))
  table = documents.read(PAGES[0]).partition('## Keras callbacks')[2]
  assert hooks(table) >= hooks(keras_callbacks.KerasCallback.__doc__)
