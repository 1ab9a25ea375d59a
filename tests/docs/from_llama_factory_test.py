"""The pages for users of LLaMA-Factory and TRL: the file trains on its records, the named fields exist."""

import re
import shlex
import types

import pytest

from official_ext.training.config import overrides
from official_ext.training.config import parser
import registry_imports  # noqa: F401
from tests import documents
from tests.docs import how_to_pages_test
from tests.training.loop import small_run

PAGES = ('from_trl', 'from_llama_factory')


@pytest.mark.parametrize('page', PAGES)
def test_the_fields_that_are_named_exist(page):
  text = documents.read(f'docs/getting_started/{page}.md')
  paths = set()
  for name in ('sft', 'preference'):
    params = parser.parse_configuration(types.SimpleNamespace(experiment=name, set=[]), print_return=False)
    paths |= {field.path for field in overrides.leaves(params, selected=False)}
  sections = {path.rpartition('.')[0] for path in paths}
  named = set(re.findall(r'[`=]((?:trainer|runtime|task)\.[a-z_.0-9]+[a-z])', text))
  named -= {'trainer.train', 'trainer.save_model'}  # TRL's.
  assert len(named) > 10
  assert not {path for path in named if path not in paths | sections}


@pytest.mark.slow
def test_the_file_trains(run_train, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  (tmp_path / 'runs/small').mkdir(parents=True)
  how_to_pages_test.small_model(tmp_path / 'runs/small/model')
  page = documents.read('docs/getting_started/from_llama_factory.md')
  for code in documents.code(page):
    exec(compile(code, 'page', 'exec'), {})  # pylint: disable=exec-used
  (settings,) = re.findall(r'^```yaml\n(.*?)^```', page, re.DOTALL | re.MULTILINE)
  (tmp_path / 'sums.yaml').write_text(settings)
  (command,) = how_to_pages_test.commands(page)
  process = run_train([*shlex.split(command)[2:], '--set=xla=false'], cwd=tmp_path)
  assert process.returncode == 0, process.stderr
  evaluations = small_run.events(tmp_path / 'runs/sums', 'eval')
  assert [line['step'] for line in evaluations] == [20, 40]
  assert evaluations[1]['token_loss'] < evaluations[0]['token_loss']
  assert (tmp_path / 'runs/sums/adapter/adapter_config.json').exists()
