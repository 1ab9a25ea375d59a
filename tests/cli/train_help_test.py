"""The help of train.py: its groups, and a reader that closes the pipe."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from official_ext.cli import main as cli
from official_ext.cli import train_flags
from official_ext.cli import train_help

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_flags_needed_first_come_first(capsys, monkeypatch):
  monkeypatch.setenv('COLUMNS', '100')
  for arguments in (['train', '--help'], ['help', 'train'], ['train', '--mode=train', '-h']):
    assert cli.main(arguments) == 0
    out, err = capsys.readouterr()
    assert out == train_help.text('official-ext train') and not err
  assert out.startswith('Usage: official-ext train --experiment=NAME --mode=MODE --model_dir=FOLDER ')
  titles = re.findall(r'^(\w.*):$', out, re.MULTILINE)
  assert titles == ['needed first', 'modules and checkpoints', 'checks', 'of Model Garden', 'output']
  flags = re.findall(r'^  --(\w+)', out, re.MULTILINE)
  assert flags[:5] == ['experiment', 'mode', 'model_dir', 'set', 'config_file']
  assert all(len(line) <= 100 for line in out.splitlines()[1:])


@pytest.mark.tensorflow
def test_it_has_every_flag_that_something_reads_and_absl_has_the_same_texts():
  from absl import flags

  from official_ext.cli import flags as ext_flags

  ext_flags.define_flags()
  texts = {name: text for group in train_flags.GROUPS.values() for name, (_, text) in group.items()}
  assert set(texts) == set(ext_flags._NAMES) - set(ext_flags._UNREAD)
  assert {name: flags.FLAGS[name].help for name in texts} == texts
  assert all(mode in texts['mode'] for mode in ext_flags.MODES)
  for group in train_flags.GROUPS.values():
    for name, (value, _) in group.items():
      assert flags.FLAGS[name].boolean == (value == ''), name


@pytest.mark.parametrize('words', [['train', '--help'], ['runs', '--help']])
def test_a_reader_that_closes_the_pipe_is_no_error(words):
  script = '"$@" | head -n 0; sleep 0.1'
  command = [sys.executable, '-m', 'official_ext.cli.main', *words]
  done = subprocess.run(['sh', '-c', script, 'sh', *command], cwd=ROOT, capture_output=True, text=True, check=True)
  assert (done.stdout, done.stderr) == ('', '')


@pytest.mark.slow
@pytest.mark.parametrize('flag', ['--help', '--helpfull'])
def test_train_py_too(flag):
  script = f'"$1" train.py {flag} | head -n 1'
  environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
  done = subprocess.run(
    ['sh', '-c', script, 'sh', sys.executable], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
  )
  assert done.stdout and done.stderr == ''
