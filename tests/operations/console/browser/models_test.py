"""The page of models, in a real browser, with real models."""

import pytest

from tests.operations.console import models


@pytest.fixture(scope='module', autouse=True)
def runs(browser, runs_folder, train_server, tmp_path_factory):
  models.make(runs_folder, train_server(), tmp_path_factory.mktemp('script'))


@pytest.mark.slow
def test_a_saved_model_is_found_and_tried(page, console):
  page.goto(f'{console.url}/models')
  card = page.get_by_role('region', name='digits')
  card.get_by_text('export/100').wait_for()
  assert page.get_by_role('region', name='plain').count() == 0
  card.get_by_role('link', name='Try').click()
  field = page.get_by_label('pixels float32')
  field.wait_for(timeout=60_000)
  page.allowed.append('400')  # The answer to the next message.
  field.fill('[1, 2]')
  page.get_by_role('button', name='Compute').click()
  page.get_by_text('has the shape (1, 2), expected (None, 64)').wait_for()
  field.fill(str([0] * 63 + [5]))
  page.get_by_role('button', name='Compute').click()
  first = page.locator('.bars li').first
  first.wait_for()
  assert first.inner_text().split() == ['3', '5']  # 63 is 3 modulo 10.
  page.reload()
  field.wait_for(timeout=60_000)  # The link names the model.


def test_a_language_model_answers_token_by_token_and_stops(page, console):
  page.goto(f'{console.url}/models')
  page.get_by_role('region', name='writer').get_by_role('link', name='Chat').click()
  page.get_by_text('llama, 256 positions').wait_for(timeout=60_000)
  page.get_by_text('Settings').click()
  page.get_by_label('max_new_tokens').fill('200')
  message = page.get_by_label('Message', exact=True)
  message.fill('<b>hello</b>')
  message.press('Enter')
  page.get_by_text('stopped at max_new_tokens').wait_for(timeout=60_000)
  assert page.locator('.message.user').inner_text() == '<b>hello</b>'  # Text, not HTML.
  assert len(page.locator('.message.assistant').inner_text()) > 20
  page.get_by_label('temperature').fill('-1')
  page.allowed.append('400')
  message.fill('again')
  message.press('Enter')
  page.get_by_text('--temperature: -1.0 must be 0').wait_for()
  assert message.input_value() == 'again' and page.locator('.message.user').count() == 1


@pytest.mark.soak
def test_two_models_answer_side_by_side(page, console):
  page.goto(f'{console.url}/models?run=writer&result=model&run2=other&result2=model')
  page.get_by_text('llama, 256 positions').nth(1).wait_for(timeout=120_000)
  page.get_by_label('Message', exact=True).fill('hello')
  page.get_by_label('Message', exact=True).press('Enter')
  page.get_by_text('tokens,').nth(1).wait_for(timeout=120_000)
  answers = page.locator('.message.assistant').all_inner_texts()
  assert len(answers) == 2 and all(answers) and answers[0] != answers[1]
