"""Files params.yaml of older versions, read by --config_file and found by a resume.

`older_params/EXPERIMENT.VERSION.yaml` are as that release wrote them, `EXPERIMENT.DATE.yaml` as the code of that date
did, one for each change of the fields.
"""

import pathlib
import shutil
import types

import pytest

import official_ext  # noqa: F401
from official_ext.base import config_text
from official_ext.operations.runs import run_folders
from official_ext.training.config import parser
import registry_imports  # noqa: F401
from tests import tiers

FILES = sorted((pathlib.Path(__file__).parent / 'older_params').glob('*.yaml'))


def _flat(text):
  return config_text.flatten(config_text.load(text, 'params.yaml'))


@tiers.parametrize('path', FILES, ids=lambda path: path.stem, fast=1)
def test_a_config_file_of_an_older_version_keeps_its_meaning(path):
  flags = types.SimpleNamespace(experiment=path.name.partition('.')[0], config_file=[str(path)])
  params = parser.parse_configuration(flags, print_return=False)
  old, new = _flat(path.read_text()), _flat(config_text.dump(params.as_dict()))
  assert len(old) > 60
  assert {name: new.get(name, 'is gone') for name in old} == old
  fresh = _flat(
    config_text.dump(
      parser.parse_configuration(types.SimpleNamespace(experiment=flags.experiment), print_return=False).as_dict()
    )
  )
  added = new.keys() - old.keys()
  assert added or path.stem.endswith('.0.1.0')  # Which had all of today's fields.
  assert {name: new[name] for name in added} == {name: fresh[name] for name in added}


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_tools_read_it(path, tmp_path):
  shutil.copy(path, tmp_path / run_folders.PARAMS)
  assert run_folders.read_params(run_folders.Run(str(tmp_path), 'a')) == _flat(path.read_text())


@pytest.mark.slow
def test_a_run_of_an_older_version_resumes_and_keeps_its_file(run_train, tmp_path):
  path = next(path for path in FILES if path.name.startswith('digits_mlp.2026'))
  flags = ['--experiment=digits_mlp', '--mode=train', f'--model_dir={tmp_path}', '--set=runtime.enable_xla=false']
  assert run_train([*flags, '--set=train_steps=4', '--set=checkpoint_interval=4']).returncode == 0
  shutil.copy(path, tmp_path / 'params.yaml')
  again = run_train([*flags, '--set=train_steps=8', '--set=checkpoint_interval=4'])
  assert again.returncode == 0, again.stderr
  assert f'  trainer.train_steps: {_flat(path.read_text())["trainer.train_steps"]} -> 8' in again.stdout
  assert again.stdout.count(': unset -> ') == 0 and ' fields that it did not have: ' in again.stdout  # Not 50 lines.
  assert (tmp_path / 'params.1.yaml').read_text() == path.read_text()
  assert (tmp_path / 'ckpt-8.manifest.json').exists()
  assert 'Traceback' not in again.stderr
