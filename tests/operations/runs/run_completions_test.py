"""The logs of completions of a run: those that stand, in order, with lists of one length."""

import math

from official_ext.operations.runs import event_log
from tests.operations.runs import folders


def _event(name, step, **values):
  return {'time': 1.0 + step, 'event': name, 'step': step, **values}


def test_logs_that_stand_are_read_in_order(tmp_path):
  logs = [
    _event('completions', step, prompts=['p'], completions=[f'c{step}'], advantages=['NaN']) for step in (0, 5, 10)
  ]
  events = [*logs, _event('restored', 5, checkpoint='ckpt-5'), _event('train', 6, training_loss=1.0)]
  run = folders.make(
    tmp_path, 'a', [*events, _event('completions', 10, prompts=['NaN', 'x'], completions=['y', 'z', 'w'])]
  )
  found = event_log.read_completions(run)
  assert [log['step'] for log in found] == [0, 5, 10]
  assert found[1]['columns']['completions'] == ['c5'] and math.isnan(found[1]['columns']['advantages'][0])
  assert found[2]['columns'] == {'prompts': ['NaN', 'x'], 'completions': ['y', 'z']}  # Texts beside others stay texts.
  assert [log['step'] for log in event_log.read_completions(run, 1)] == [10]


def test_a_run_without_completions_or_events_has_none(tmp_path):
  run = folders.make(tmp_path, 'a', [_event('train', 1, training_loss=1.0)])
  assert event_log.read_completions(run) == []
  (tmp_path / 'a/events.jsonl').unlink()
  assert event_log.read_completions(run) == []
