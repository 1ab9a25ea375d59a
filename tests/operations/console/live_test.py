"""Live updates: nothing missing, nothing doubled, soon, and cheap."""

import json
import os
import pathlib
import random
import shutil
import threading
import time

import pytest

from official_ext.operations.console import live
from official_ext.operations.runs import run_folders
from tests.operations.runs import folders


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  root = tmp_path_factory.mktemp('live') / 'runs'
  folders.make(root, 'one', [folders.event('train', 1, loss=1.0)])
  folders.make(root, 'two', [folders.event('train', 1, loss=1.0)])
  return root


@pytest.fixture(scope='module')
def console(root, start_console):
  return start_console(root)


def _append(path, *steps):
  with open(path, 'a') as file:
    for step in steps:
      file.write(json.dumps(folders.event('train', step, loss=1.0 / step)) + '\n')


def test_a_list_comes_first_and_then_what_has_changed(console, root):
  with console.stream() as stream:
    kind, values = stream.next()
    assert kind == 'runs' and {run['name'] for run in values['all']} >= {'one', 'two'}
    taken = []
    for step in (2, 3, 4):
      started = time.monotonic()
      _append(root / 'one' / 'events.jsonl', step)
      _, values = stream.next('runs')
      taken.append(time.monotonic() - started)
      assert [(run['name'], run['step']) for run in values['changed']] == [('one', step)]
    assert min(taken) < 1  # Another test may have the processor.
    new = folders.make(root, 'new', [])
    assert [run['name'] for run in stream.next('runs')[1]['changed']] == ['new']
    shutil.rmtree(new.path)
    assert stream.next('runs')[1]['removed'] == ['new']


def test_an_event_of_a_watched_run_comes_within_a_second(console, root):
  path = root / 'two' / 'events.jsonl'
  with console.stream(topics='', run='two') as stream:
    kind, values = stream.next()
    assert kind == 'events' and values['events'] == [] and values['offset'] == path.stat().st_size
    taken = []
    for step in (50, 51, 52):
      started = time.monotonic()
      _append(path, step)
      _, values = stream.next()
      taken.append(time.monotonic() - started)
      assert [event['step'] for event in values['events']] == [step]
    assert min(taken) < 1
    assert values['offset'] == path.stat().st_size and values['run'] == 'two'


def test_who_comes_back_misses_no_event_and_gets_none_twice(console, root):
  """A browser whose line is cut at any moment, again and again, while two runs write."""
  names = ['a', 'b']
  paths = [root / name / 'events.jsonl' for name in names]
  for name in names:
    folders.make(root, name, [])
  count, draw = 400, random.Random(0)
  got = {name: [] for name in names}

  def write():
    for step in range(1, count + 1):
      for path in paths:
        text = json.dumps(folders.event('train', step)) + '\n'
        with open(path, 'a') as file:  # In two parts: a line is sent when it is whole.
          file.write(text[:20])
          file.flush()
          file.write(text[20:])
      time.sleep(0.005)

  writer = threading.Thread(target=write)
  writer.start()
  last, cuts, deadline = '', 0, time.monotonic() + 60
  while any(not got[name] or got[name][-1] < count for name in names):
    assert time.monotonic() < deadline
    with console.stream(topics='', run=names, last=last, **({} if last else {'from': [0, 0]})) as stream:
      for _ in range(draw.randint(1, 4)):
        values = stream.next('events')[1]
        assert not values['restarted']
        got[values['run']] += [event['step'] for event in values['events']]
        last = stream.last_id
        if all(got[name] and got[name][-1] == count for name in names):
          break
    cuts += 1
  writer.join()
  assert got == {name: list(range(1, count + 1)) for name in names}
  assert cuts > 3


@pytest.mark.parametrize('change', ['truncated', 'replaced', 'rewritten in place', 'deleted and written again'])
def test_a_file_that_was_begun_again_is_reported_from_its_beginning(console, root, change):
  run = folders.make(root, f'anew-{change}', [folders.event('train', step) for step in range(1, 20)])
  path = run.file('events.jsonl')
  with console.stream(topics='', run=run.name, **{'from': 0}) as stream:
    assert len(stream.next('events')[1]['events']) == 19
    place = stream.last_id
    new = ''.join(json.dumps(folders.event('train', step, other=True)) + '\n' for step in range(100, 130))
    if change == 'truncated':
      new = ''.join(json.dumps(folders.event('train', step)) + '\n' for step in range(1, 5))
      os.truncate(path, len(new))
    elif change == 'replaced':
      with open(f'{path}.new', 'w') as file:
        file.write(new)
      os.replace(f'{path}.new', path)
    elif change == 'rewritten in place':
      with open(path, 'r+') as file:
        file.write(new)
        file.truncate()
    else:
      os.remove(path)
      time.sleep(0.6)
      with open(path, 'w') as file:
        file.write(new)
    _, values = stream.next('events')
    assert values['restarted']
    num_reported = len(values['events'])
    while values['offset'] < len(new):  # Writing in place takes two steps: the server may look between them.
      _, values = stream.next('events')
      if values['restarted']:  # It saw the end of the old file until it was cut off.
        assert change == 'rewritten in place'
        num_reported = 0
      num_reported += len(values['events'])
    assert num_reported == new.count('\n') and values['offset'] == len(new)
  with console.stream(topics='', run=run.name, last=place) as stream:  # The same for who was away meanwhile.
    _, values = stream.next('events')
    assert values['restarted'] and len(values['events']) == new.count('\n')


def test_lines_that_are_no_events_are_passed_over(console, root):
  run = folders.make(root, 'odd', [])
  path = run.file('events.jsonl')
  with open(path, 'wb') as file:
    file.write(b'{"event": "train", "step": 1, "loss": NaN}\nnot json\n\xff\xfe\n[1]\n' + b'[' * 100_000 + b'\n')
    file.write(b'{"event": "train", "step": 2}\n' + b'x' * (5 << 20) + b'\n{"event": "train", "step": 3}\n')
  with console.stream(topics='', run='odd', **{'from': 0}) as stream:
    found = []
    while len(found) < 3:
      found += stream.next('events')[1]['events']
  assert [event['step'] for event in found] == [1, 2, 3]
  assert found[0]['loss'] == 'NaN'


def test_a_place_that_is_none_is_the_beginning(console):
  for query in ({'last': 'x.y'}, {'last': '999999.5'}, {'from': 999_999}, {'from': 3}):
    with console.stream(topics='', run='one', **query) as stream:
      values = stream.next('events')[1]
      assert values['offset'] and (values['events'] or not values['restarted'])


def test_an_unknown_topic_and_the_name_of_no_run_are_refused(console):
  assert console.try_get('/api/stream', topics='none')[0] == 400
  assert console.try_get('/api/stream', topics='runs', run='../none')[0] == 400


@pytest.mark.slow
def test_a_folder_that_is_away_for_a_while_is_reported_and_found_again(root, start_console):
  own = root.parent / 'away'
  folders.make(own, 'run', [])
  console = start_console(own)
  with console.stream() as stream:
    stream.next('runs')
    os.rename(own, f'{own}-moved')
    assert str(own) in stream.next('problem')[1]['errors'][0]
    status, values = console.try_get('/api/runs')
    assert status == 400 and str(own) in values['errors'][0]
    with console.stream() as other:  # Who comes now is reported as well.
      assert other.next('problem', 'runs')[1]
    os.rename(f'{own}-moved', own)
    assert stream.next('problem')[1]['errors'] == []
    _append(own / 'run' / 'events.jsonl', 7)
    assert stream.next('runs')[1]['changed'][0]['step'] == 7


@pytest.mark.slow
def test_nobody_looks_at_the_folder_if_nobody_listens(root, start_console):
  class Counting:
    """The index of the runs, and how often it was asked."""

    def __init__(self, index):
      self.index, self.count = index, 0

    def summaries(self):
      self.count += 1
      return self.index.summaries()

    def summaries_of(self, names):
      self.count += 1
      return self.index.summaries_of(names)

  console = start_console(root)
  counting = Counting(console.context.index)
  object.__setattr__(console.context, 'index', counting)
  console.context.recent.__init__(counting)
  with console.stream() as first, console.stream() as second:
    first.next('runs')
    second.next('runs')
    before = counting.count
    time.sleep(2)
    assert 1 <= counting.count - before <= 2 / live._POLL_SECONDS + 1  # One for both.
  deadline = time.monotonic() + live._PING_SECONDS + 5
  while True:
    before = counting.count
    time.sleep(1.5)
    if counting.count == before:
      break
    assert time.monotonic() < deadline


@pytest.mark.slow
def test_who_is_far_behind_gets_all_anew(root, start_console, monkeypatch):
  monkeypatch.setattr(live, '_MAX_CHANGES', 2)
  many = root.parent / 'many'
  runs = [folders.make(many, f'run{number}', []) for number in range(120)]
  console = start_console(many)
  with console.stream(timeout=60, buffer=4096) as slow, console.stream(timeout=60) as quick:
    slow.next('runs')
    quick.next('runs')
    for change in range(8):  # 1.2 MB each: more than a connection holds that nobody reads.
      for run in runs:
        tags = [f'{number}{"x" * 95}' for number in range(100)]
        pathlib.Path(run.file(run_folders.NOTES)).write_text(json.dumps({'tags': tags, 'note': str(change)}))
      _until(quick, str(change))
    kinds = _until(slow, '7')
  assert 'all' in kinds and len(kinds) < 8


def _until(stream, note):
  """Reads until the last run has a note that begins with a letter; returns the kinds of messages."""
  kinds = []
  while True:
    values = stream.next('runs')[1]
    kinds.append('all' if 'all' in values else 'changed')
    if any(run['name'] == 'run119' and run['note'] == note for run in values[kinds[-1]]):
      return kinds
