"""The preview of texts from the form of a new run, in a real browser."""

import json
import urllib.parse

import pytest

from tests.language.fine_tuning import tiny_models
from tests.operations.console.browser import axe


@pytest.fixture(scope='module')
def console(runs_folder, start_console, driver):
  runs_folder.mkdir()
  return start_console(runs_folder, driver=driver)


@pytest.mark.slow
def test_special_tokens_are_shown_and_learned_ones_are_marked(new_page, console, tmp_path):
  tiny_models.write(tmp_path / 'base')
  (tmp_path / 'data.jsonl').write_text(json.dumps({'q': 'What is 1?', 'a': 'It is 1.'}) + '\n')
  data = {'input_path': tmp_path / 'data.jsonl', 'seq_length': 64, 'prompt_column': 'q', 'output_column': 'a'}
  sets = [f'task.model_path={tmp_path / "base"}', *(f'task.train_data.{name}={value}' for name, value in data.items())]
  page = new_page(reduced_motion='reduce')
  page.set_default_timeout(60_000)
  query = urllib.parse.urlencode([('experiment', 'sft'), ('mode', 'train'), *(('set', each) for each in sets)])
  page.goto(f'{console.url}/new?{query}')
  page.locator('.group').first.wait_for()
  page.wait_for_selector('main:not(.asking) .bar-below')
  assert page.locator('.field-error, .errors li').all_text_contents() == []
  page.get_by_role('button', name='Preview').click()
  page.locator('dialog .check-state', has_text='Done.').wait_for()
  output = page.locator('dialog .check-output')
  assert '<|user|>\nWhat is 1?<|end|>' in output.text_content()
  assert output.locator('mark').all_text_contents()[-1] == 'It is 1.<|endoftext|>'
  assert not axe.violations(page)
