"""The modules that commands on a language model import: each runs in a new process, on a tiny model."""

import json
import subprocess
import sys

import pytest

from official_ext.language.modeling import lora
from official_ext.language.modeling import peft_folders
from official_ext.language.modeling import pretrained
from tests import tiers
from tests import train_processes
from tests.language.fine_tuning import tiny_models

# Runs a command, and writes its status and the names of all modules into the file that is named first.
PROGRAM = """
import json, sys
from official_ext.cli import main
report = sys.argv.pop(1)
status = main.main()
with open(report, 'w') as file:
  json.dump([status, sorted(sys.modules)], file)
"""
NEVER = {
  'googleapiclient',
  'keras',
  'matplotlib',
  'official.nlp',
  'official.vision',
  'pandas',
  'scipy',
  'sklearn',
  'tensorflow_models',
  'torch',
  'transformers',
}
# What `official.core` imports. Without it a command has no experiments, and needs none.
OF_EXPERIMENTS = {'cv2', 'gin', 'official.core', 'official.modeling.optimization', 'orbit', 'tensorflow_datasets'}
ON_FOLDERS = [
  ['generate', 'base', '--prompt=It returns', '--max_new_tokens=2'],
  ['chat', 'base', '--adapter=adapter', '--max_new_tokens=2'],
  ['convert', 'adapter', 'merged', '--base_model=base'],
]
SFT = ['sft', '--set=task.model_path=base', '--set=task.train_data.input_path=data.jsonl', '--set=max_seq_length=64']


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  """A folder with the folders `base` and `adapter`, and `data.jsonl`."""
  place = tmp_path_factory.mktemp('imports')
  model = pretrained.load(tiny_models.write(place / 'base'))
  lora.attach(model, lora.LoraConfig(r=2))
  peft_folders.save(model, str(place / 'adapter'))
  lines = [json.dumps({'prompt': f'What is {n}?', 'completion': f'It is {n}.'}) for n in range(30)]
  (place / 'data.jsonl').write_text('\n'.join(lines))
  return place


def modules_of(place, arguments):
  """Runs a command in a process; returns the modules that it has imported by its end, and its stdout."""
  root = {'PYTHONPATH': str(train_processes.ROOT), 'XDG_CACHE_HOME': str(place / 'cache')}
  done = subprocess.run(
    [sys.executable, '-c', PROGRAM, 'report.json', *arguments],
    cwd=place,
    env=train_processes.environment({**train_processes.UNOPTIMISED, **root}),
    input='What does the function return?\n',
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  status, modules = json.loads((place / 'report.json').read_text())
  assert status == 0, done.stderr
  return set(modules), done.stdout


@tiers.parametrize('arguments', ON_FOLDERS, fast=1, ids=lambda arguments: arguments[0])
def test_commands_on_a_folder_import_the_base_class_of_configurations_alone_of_model_garden(arguments, place):
  modules, out = modules_of(place, arguments)
  assert out and 'official_ext.language.modeling.decoder' in modules  # It has loaded the model.
  assert modules & (NEVER | OF_EXPERIMENTS) == set()
  of_model_garden = {name for name in modules if name.split('.')[0] == 'official'}
  hyperparams = {name for name in of_model_garden if name.startswith('official.modeling.hyperparams.')}
  assert of_model_garden - hyperparams == {'official', 'official.modeling', 'official.modeling.hyperparams'}


@pytest.mark.slow
@pytest.mark.parametrize('command', ['preview', 'check'])
def test_commands_on_an_experiment_import_model_gardens_registry_and_none_of_its_models(command, place):
  modules, out = modules_of(place, [command, *SFT])
  assert 'sft' in out.lower()
  assert modules & NEVER == set()
  assert 'official.core.exp_factory' in modules  # The experiments are registered there; its package imports the rest.
