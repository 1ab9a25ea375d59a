"""Tests for last_events."""

import json
import math
import random

import pytest

from official_ext.base.run_folder import run_files
from official_ext.operations.runs import event_log
from tests.operations.runs.folders import event


def _write(path, events, torn=''):
  path.write_text(''.join(json.dumps(each) + '\n' for each in events) + torn)
  return str(path)


def test_the_end_of_a_long_file_is_enough(tmp_path):
  events = [event('train', step, training_loss=1 / step) for step in range(1, 3_000)]
  events.insert(1_500, event('eval', 1_500, accuracy=0.5))
  found = event_log.read_last(_write(tmp_path / 'events.jsonl', events))
  assert found.last == found.train == events[-1]
  assert found.evaluation == event('eval', 1_500, accuracy=0.5)


def test_a_megabyte_of_lines_after_the_evaluation_is_looked_through_and_no_more(tmp_path):
  long = [event('train', step, text='x' * 1000) for step in range(1, 4_000)]
  found = event_log.read_last(_write(tmp_path / 'events.jsonl', [event('eval', 0, accuracy=0.5), *long]))
  assert found.evaluation is None
  assert found.train['step'] == 3_999


def test_what_a_restore_has_superseded_does_not_count(tmp_path):
  """Against the rule itself, read forwards, for random histories."""
  draw = random.Random(7)
  for history in range(200):
    events, step = [], 0
    for _ in range(draw.randrange(1, 40)):
      kind = draw.choice(['train', 'train', 'eval', 'checkpoint', 'restored', 'rollback'])
      if kind in run_files.GO_BACK:
        step = draw.randrange(0, step + 1)
        pending = {'evaluation_pending': True} if draw.random() < 0.3 else {}
        events.append(event(kind, step, **pending))
      else:
        step += kind == 'train'
        events.append(event(kind, step, number=len(events)))
    found = event_log.read_last(_write(tmp_path / f'{history}.jsonl', events))
    standing = run_files.standing_events(events)
    assert found.last == events[-1]
    for kind, value in (('train', found.train), ('eval', found.evaluation)):
      assert value == next((each for each in reversed(standing) if each['event'] == kind), None), events


@pytest.mark.parametrize(
  'torn', ['{"time": 1, "event": "train", "st', '\n\n', '[1, 2]\n', 'null', '\0\0\0\0', '{"a": 1}\n']
)
def test_a_damaged_end_is_passed_over(tmp_path, torn):
  events = [event('eval', 1, accuracy=0.5), event('train', 2, training_loss=0.25)]
  found = event_log.read_last(_write(tmp_path / 'events.jsonl', events, torn))
  assert (found.last, found.train, found.evaluation) == (events[1], events[1], events[0])


def test_a_text_that_looks_like_an_event_is_none(tmp_path):
  events = [event('eval', 1, accuracy=0.5), event('failed', 2, error='"event": "eval", "step": 9')]
  found = event_log.read_last(_write(tmp_path / 'events.jsonl', events))
  assert found.evaluation == events[0]


def test_numbers_that_are_not_finite_are_floats_and_progress_is_no_metric(tmp_path):
  line = event('train', 3, training_loss='NaN', grad_norm='Infinity', percent=5.0, eta_seconds=1.0, note='a', flag=True)
  found = event_log.read_last(_write(tmp_path / 'events.jsonl', [line]))
  metrics = event_log.metrics_of(found.train)
  assert sorted(metrics) == ['grad_norm', 'training_loss']
  assert math.isnan(metrics['training_loss'])
  assert metrics['grad_norm'] == math.inf


def test_no_file_and_no_event_are_none(tmp_path):
  assert event_log.read_last(str(tmp_path / 'none')) == event_log.LastEvents()
  assert event_log.read_last(str(tmp_path)) == event_log.LastEvents()
  assert event_log.read_last(_write(tmp_path / 'empty', [])) == event_log.LastEvents()
