"""Integers in requests: one check with one message, in a body and in an address."""

import pytest

from tests.operations.runs import folders
from tests.operations.runs.folders import event


@pytest.fixture(scope='module')
def console(tmp_path_factory, start_console):
  root = tmp_path_factory.mktemp('runs')
  folders.make(root, 'run', [event('train', 1, training_loss=1.0)], identity=folders.ended_process(), status='finished')
  return start_console(root)


_SWEEP = {'experiment': 'digits', 'name': 'search', 'parameters': [{'name': 'seed', 'values': '1, 2'}]}
_CURVE = {'run': 'run', 'name': 'train/training_loss'}


@pytest.mark.parametrize(
  'path, values, name',
  [
    ('/api/queue/start', {}, 'slots'),
    ('/api/queue/cancel', {}, 'job'),
    ('/api/queue/move', {'place': 'first'}, 'job'),
    ('/api/new/sweep/start', _SWEEP, 'slots'),
    ('/api/new/sweep/start', {**_SWEEP, 'method': 'random'}, 'count'),
    ('/api/new/sweep/start', _SWEEP, 'min_iter'),
  ],
)
@pytest.mark.parametrize('wrong', [0, -1, 1.5, '2', True, [1]])
def test_integers_of_a_body(console, path, values, name, wrong):
  status, answer = console.try_post(path, **values, **{name: wrong})
  assert (status, answer['errors']) == (400, [f'{name}: expected an integer of 1 or more, got {wrong!r}'])


@pytest.mark.parametrize(
  'path, values, name, least',
  [
    ('/api/curves', _CURVE, 'buckets', 1),
    ('/api/curves/values', _CURVE, 'count', 1),
    ('/api/run/log', {'run': 'run'}, 'from', 0),
    ('/api/run/image', {'run': 'run', 'file': 'a'}, 'offset', 0),
    ('/api/stream', {'topics': 'runs', 'run': 'run'}, 'from', 0),
  ],
)
@pytest.mark.parametrize('wrong', ['-1', '1.5', 'x', '', '\u00b2', '1_000'])
def test_integers_of_an_address(console, path, values, name, least, wrong):
  status, answer = console.try_get(path, **values, **{name: wrong})
  assert (status, answer['errors']) == (400, [f'{name}: expected an integer of {least} or more, got {wrong!r}'])


def test_a_required_integer_is_missing(console):
  status, answer = console.try_post('/api/queue/cancel')
  assert (status, answer['errors']) == (400, ['job: expected an integer of 1 or more, got nothing'])


def test_an_integer_that_a_browser_cannot_hold_is_refused(console):
  for number in (1 << 53, 10**90):
    status, answer = console.try_get('/api/run/log', run='run', **{'from': number})
    expected = f'from: expected an integer of 9007199254740991 or less, got {number}'
    assert (status, answer['errors']) == (400, [expected])
  assert console.get('/api/run/log', run='run', **{'from': (1 << 53) - 1})['lines'] == []
