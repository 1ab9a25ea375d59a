"""docs/how_to/fine_tune.md, from its first line to a chat-style answer of the tuned model; its table explains names."""

import io
import re
import shlex
import sys
import types

import pytest

from official_ext.cli import main as cli
from official_ext.training.config import parser
from official_ext.training.config import short_names
import registry_imports  # noqa: F401
from tests import documents
from tests import train_processes

PAGE = documents.read('docs/how_to/fine_tune.md')


@pytest.fixture
def place(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.chdir(tmp_path)
  return tmp_path


def steps():
  """Blocks of Python, commands with their standard input, and the line behind a command that it is to print."""
  text = re.sub(r' \\\n +', ' ', PAGE)
  pattern = r"```python\n(.*?)^```|^    (?:echo '([^'\n]*)' \| )?((?:official-ext|python) [^\n]*)$"
  return [match.groups() for match in re.finditer(pattern, text, re.DOTALL | re.MULTILINE)]


@pytest.mark.slow
def test_the_page_runs_up_to_an_answer(place, run_train, capsys, monkeypatch):
  ran = []
  for code, piped, command in steps():
    capsys.readouterr()
    if code:
      exec(compile(code, 'docs/how_to/fine_tune.md', 'exec'), {'__name__': 'page'})  # pylint: disable=exec-used
      continue
    program, *arguments = shlex.split(command)
    ran.append(arguments[0])
    if program == 'python':
      env = {'XDG_CACHE_HOME': str(place / 'cache'), **train_processes.UNOPTIMISED}
      done = run_train([*arguments[1:], '--set=xla=false'], cwd=place, env=env)
      assert done.returncode == 0, done.stdout + done.stderr
    elif arguments[0] == 'check':
      assert cli.main([*arguments, '--set=xla=false']) == 0
      out = capsys.readouterr().out
      assert re.search(r'^result +adapter: \S+ MiB, saved and loaded, logits differ by at most \S+$', out, re.MULTILINE)
      assert 'mistakes       none found' in out, out
    else:
      monkeypatch.setattr(sys, 'stdin', io.StringIO(f'{piped}\n'))
      assert cli.main(arguments) == 0
      assert 'The opposite of hot is cold.' in capsys.readouterr().out
  assert ran == ['train.py', 'check', 'train.py', 'chat']
  assert capsys.readouterr().out.endswith('The opposite of big is small.\n')  # The last block's.


def test_the_table_explains_the_names():
  params = parser.parse_configuration(types.SimpleNamespace(experiment='sft', set=[]), print_return=False)
  rows = re.findall(r'^\| (`[^|]*) \| ([^|]*) \|[^|]*\|$', PAGE, re.MULTILINE)
  listed = set()
  for names, fields in rows:
    names, paths = re.findall(r'`(\w+)`', names), re.findall(r'`([\w.]+\.\w+)`', fields)
    listed.update(names)
    for number, name in enumerate(names):
      found = short_names.resolve(name, params, 'sft')[0]
      if paths and not paths[0].startswith('trainer.optimizer_config'):
        assert found == paths[min(number, len(paths) - 1)], name
      else:
        assert found.startswith('trainer.optimizer_config.'), name
  deep_extension = 'model_path dataset_path lora_rank load_in_4bit max_seq_length max_input_length max_content_length'
  deep_extension += ' max_samples max_grad_norm max_steps batch_size grad_accum_steps learning_rate warmup_steps'
  deep_extension += ' output_dir promptinputcolumn promptoutputcolumn'
  assert set(deep_extension.split()) <= listed
