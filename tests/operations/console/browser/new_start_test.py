"""The start of TensorFlow, as the page of a new run shows it: in a real browser, with a real process."""

import pytest

from tests.operations.console.browser import axe


@pytest.mark.slow
def test_the_steps_of_the_start_are_shown_with_their_seconds(new_page, console):
  page = new_page(reduced_motion='reduce')
  page.set_default_timeout(120_000)
  page.goto(f'{console.url}/new')
  try:
    steps = page.locator('.start-steps')
    steps.get_by_text('importing TensorFlow').wait_for()
    page.get_by_text('The process that checks the form is importing').wait_for()
    assert 's so far' in page.locator('.start-progress').inner_text()
    assert not axe.violations(page)
    page.locator('.start-steps li', has_text='importing experiments').wait_for()
    page.get_by_label('Search experiments').wait_for()
    assert page.locator('.start-progress').count() == 0
  finally:
    console.context.driver.close()
