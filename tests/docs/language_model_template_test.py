"""experiments/language_model/README.md: its steps, taken from top to bottom, make a classifier of a copy."""

import ast
import importlib
import json
import pathlib
import re
import shlex
import sys

import gin
import pytest

import official_ext as ext
from official_ext.cli import flags as ext_flags
from official_ext.cli import main as cli
from official_ext.cli import train
from tests import checkouts
from tests.golden import golden_test

README = 'experiments/language_model/README.md'


@pytest.fixture
def checkout(tmp_path):
  with checkouts.current(tmp_path / 'checkout') as folder:
    yield folder
  gin.clear_config()


def source_of(node):
  """The lines of a definition, with its decorators: (first, behind the last), from 0."""
  first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, 'decorator_list', []))])
  return first - 1, node.end_lineno


def name_of(node):
  if isinstance(node, (ast.Import, ast.ImportFrom)):
    return None
  return node.target.id if isinstance(node, ast.AnnAssign) else getattr(node, 'name', None)


def replaced(text, body, node, own):
  """The text with the definition of this name in `body` replaced; None if there is none."""
  same = [old for old in body if name_of(old) == name_of(node)]
  if not same:
    return None
  lines = text.splitlines()
  start, end = source_of(same[0])
  return '\n'.join([*lines[:start], *own, *lines[end:]])


def added(text, body, own, followers):
  """The text with a new definition: before the one that follows it in the block, or at the end of `body`."""
  lines = text.splitlines()
  names = [name_of(follower) for follower in followers]
  later = [source_of(old)[0] for old in body if name_of(old) and name_of(old) in names]
  place = later[0] if later else body[-1].end_lineno
  return '\n'.join([*lines[:place], *([] if later else ['', '']), *own, *(['', ''] if later else []), *lines[place:]])


def with_block(text, block):
  """A file as a reader changes it: definitions of the block replace those of the same name."""
  block_lines = block.splitlines()
  nodes = ast.parse(block).body
  for number, node in enumerate(nodes):
    body = ast.parse(text).body
    own = block_lines[slice(*source_of(node))]
    old = next((old for old in body if name_of(old) == name_of(node)), None)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
      lines = text.splitlines()
      place = next(old for old in body if isinstance(old, (ast.Import, ast.ImportFrom))).lineno - 1
      text = '\n'.join([*lines[:place], *(line for line in own if line not in lines), *lines[place:]])
    elif isinstance(node, ast.ClassDef) and old is not None:
      for part in node.body:
        (found,) = [old for old in ast.parse(text).body if name_of(old) == node.name]
        own = block_lines[slice(*source_of(part))]
        text = replaced(text, found.body, part, own) or added(text, found.body, own, ())
    else:
      text = replaced(text, body, node, own) or added(text, body, own, nodes[number + 1 :])
  return text + '\n'


def steps(text):
  """('', script), (file, block) and (None, command), in the order of the page."""
  pattern = r'(?:`(experiments/[^`]+\.py)`:\n\n)?^```python\n(.*?)^```|^    ((?:official-ext|python) [^\n]*)$'
  for match in re.finditer(pattern, text, re.DOTALL | re.MULTILINE):
    yield (None, match[3]) if match[3] else (match[1] or '', match[2])


def run(command, checkout, monkeypatch):
  program, *arguments = shlex.split(command)
  if program == 'official-ext':
    assert cli.main([*arguments, '--set=xla=false', *SMALL]) == 0, command
  elif arguments[0] == 'train.py':
    gin.clear_config()
    ext_flags.define_flags()
    ext_flags.parse_flags([*arguments, '--set=xla=false', *SMALL])
    assert train.run_main(train.main, arguments) == 0, command
  else:
    assert arguments == ['tests/golden/golden_test.py'], command
    monkeypatch.setattr(golden_test, '_FOLDER', checkout / 'tests/golden')
    golden_test.write()


# The smallest one; the page's own decoder is that of the experiment.
SMALL = (
  '--set=task.model.hidden_size=32',
  '--set=task.model.intermediate_size=48',
  '--set=task.model.num_hidden_layers=1',
)


@pytest.mark.slow
def test_a_copy_becomes_a_classifier_by_the_steps_of_its_page(checkout, monkeypatch, capsys):
  (command,) = re.findall(r'^    (official-ext new .*)$', (checkouts.ROOT / README).read_text(), re.MULTILINE)
  assert cli.main(shlex.split(command)[1:]) == 0
  page = (checkout / README.replace('language_model', 'my_model')).read_text()
  assert page.count('\n## ') == 10
  taken = 0
  for file, text in steps(page):
    taken += 1
    if file is None and text == command:
      continue  # It has made this copy.
    if file is None:
      importlib.import_module('experiments.my_model')  # As registry_imports.py does in a separate process.
      run(text, checkout, monkeypatch)
    elif file:
      path = checkout / file
      path.write_text(with_block(path.read_text(), text))
      checkouts.forget('my_model')
    else:
      exec(compile(text, README, 'exec'), {'__name__': 'page'})  # pylint: disable=exec-used
  assert taken == 11
  events = [json.loads(line) for line in (checkout / 'runs/my_model/events.jsonl').read_text().splitlines()]
  (evaluated,) = [event for event in events if event['event'] == 'eval']
  assert evaluated['accuracy'] > 0.9
  assert 'mistakes       none found' in capsys.readouterr().out
  assert 'label_column' in (checkout / 'tests/golden/my_model.yaml').read_text()
  # Step 8: out to Hugging Face's files, and in from there.
  model_lib = sys.modules['experiments.my_model.model']
  model = ext.load(str(checkout / 'runs/my_model'))
  model_lib.save(model, str(checkout / 'saved'))
  again = ext.pretrained.load(str(checkout / 'saved'), block_class=model_lib.MyModelBlock).decoder
  for found, wanted in zip(again.weights, model.decoder.weights, strict=True):
    assert (found.numpy() == wanted.numpy()).all()


def test_the_table_of_files_is_that_of_the_folder():
  folder = (checkouts.ROOT / README).parent
  listed = set(re.findall(r'^\| `(\w+\.py)` \|', (folder / 'README.md').read_text(), re.MULTILINE))
  assert listed == {path.name for path in pathlib.Path(folder).glob('*.py')} - {'__init__.py'}
