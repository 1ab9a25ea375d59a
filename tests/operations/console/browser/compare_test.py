"""The page of several runs, in a real browser."""

import pytest

from tests.operations.runs import folders
from tests.operations.runs.folders import event


@pytest.fixture(scope='module', autouse=True)
def runs(runs_folder):
  for number in range(3):
    events = [event('start', 0, effective_batch_size=8)]
    events += [event('train', step, training_loss=(number + 1) / step) for step in range(1, 60)]
    events += [event('eval', step, accuracy=0.5 + number / 10) for step in (20, 40)]
    commit = 'ab'[number % 2] * 40
    folders.make(
      runs_folder,
      f'sweep/{number}',
      events,
      rate=10.0**-number,
      identity=folders.ended_process(),
      status='finished',
      git_commit=commit,
    )


def _colours(page):
  return dict(
    page.locator('.compare-chip').evaluate_all(
      '(chips) => chips.map((chip) => [chip.dataset.run, chip.querySelector("line").style.stroke])'
    )
  )


def _curves(page):
  page.locator('.plot[aria-label="loss"][data-ready]').wait_for()
  return page.evaluate('document.querySelector(".plot").plot.series.length - 1')


def test_runs_side_by_side_in_a_link(page, console, new_page):
  page.goto(f'{console.url}/compare?run=sweep/0&run=sweep/2')
  assert _curves(page) == 2
  row = page.get_by_role('row', name='trainer.optimizer_config.learning_rate.cosine.initial_learning_rate')
  row.wait_for()  # The table is drawn after the curves.
  assert row.get_by_role('cell').all_inner_texts() == ['1', '0.01']
  assert page.get_by_role('row', name='trainer.train_steps').count() == 0
  page.get_by_label('Only differences').uncheck()
  page.get_by_role('row', name='trainer.train_steps').wait_for()
  before = _colours(page)
  # Another run: the earlier ones keep their colours, also when one of them goes.
  page.get_by_label('Add a run').fill('sweep/1')
  page.keyboard.press('Enter')
  page.wait_for_function('() => document.querySelector(".plot")?.plot?.series.length === 4')
  page.get_by_label('Leave sweep/0 out').click()
  page.wait_for_function('() => document.querySelector(".plot")?.plot?.series.length === 3')
  after = _colours(page)
  assert list(after) == ['sweep/2', 'sweep/1'] and after['sweep/2'] == before['sweep/2']
  assert len(set(after.values())) == 2
  page.get_by_role('row', name='git_commit').wait_for()
  # Whoever gets the link sees the same.
  page.get_by_label('Log y').check()
  page.get_by_label('Smoothing').fill('0.5')
  page.wait_for_function('() => document.querySelector(".plot").plot.series.length === 5')  # Raw and smooth.
  other = new_page()
  other.goto(page.url)
  assert _curves(other) == 4
  assert other.get_by_label('Log y').is_checked()
  assert other.evaluate('document.querySelector(".plot").plot.scales.y.distr') == 3
  other.get_by_role('row', name='trainer.train_steps').wait_for()


@pytest.mark.slow
def test_a_phone_has_room_for_all(new_page, console):
  page = new_page(viewport={'width': 390, 'height': 800})
  page.goto(f'{console.url}/compare?run=sweep/0&run=sweep/1&run=sweep/2&run=none')
  assert _curves(page) == 3
  page.get_by_text('none: no run of that name').wait_for()
  view = page.locator('#view')
  assert view.evaluate('(node) => node.scrollWidth <= node.clientWidth')
  assert page.evaluate('document.documentElement.scrollWidth') == 390


@pytest.mark.slow
def test_smoothing_is_that_of_tensorboard(page, console):
  """An EMA without bias: with weight w the n-th is the mean of all before, each weighed w to the power of its age."""
  page.goto(f'{console.url}/compare')
  values, weight = [3.0, 1.0, None, 4.0, 1.0, 5.0], 0.6
  found = page.evaluate(
    'async ([values, weight]) => (await import("/static/plot.js")).smooth(values, weight)', [values, weight]
  )
  seen = []
  for value, smoothed in zip(values, found):
    if value is None:
      assert smoothed is None
      continue
    seen.append(value)
    weights = [weight**age for age in reversed(range(len(seen)))]
    assert smoothed == pytest.approx(sum(w * v for w, v in zip(weights, seen)) / sum(weights))
  page.get_by_text('No runs are chosen').wait_for()
