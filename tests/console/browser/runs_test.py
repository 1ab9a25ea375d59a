"""The page of runs, in a real browser."""

import pytest

from tests.runs import folders


@pytest.fixture(scope='module', autouse=True)
def runs(runs_folder):
  folders.make(runs_folder, 'digits', [folders.event('train', 50, accuracy=0.5)], step=50)


def test_runs_are_listed(page, console):
  page.goto(f'{console.url}/runs')
  page.get_by_role('link', name='digits').wait_for()
