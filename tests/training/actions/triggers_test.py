"""When actions are taken, by the logs that they are given."""

import math

import numpy as np
import pytest

from official_ext.base import errors
from official_ext.training.actions import triggers


def taken(trigger, all_logs):
  """The steps of the logs at which the trigger's action is taken."""
  steps = []
  trigger.action = lambda logs: steps.append(logs['step'])
  for logs in all_logs:
    trigger(logs)
  return steps


def scores(*values):
  return [{'event': 'eval', 'step': 10 * number, 'score': value} for number, value in enumerate(values, 1)]


def test_every_n_steps():
  trigger = triggers.EveryNSteps(4, print)
  assert taken(trigger, [{'step': step} for step in range(1, 14)]) == [4, 8, 12]
  assert (trigger.events, trigger.interval) == (('train',), 4)


def test_every_t_seconds():
  now = [100.0]
  trigger = triggers.EveryTSeconds(10, print, clock=lambda: now[0])
  steps = []
  trigger.action = lambda logs: steps.append(now[0])
  for now[0] in (105, 109.9, 110, 119, 121, 131, 160, 165):
    trigger({})
  assert steps == [110, 121, 131, 160]  # Counted from the last time, not caught up.


@pytest.mark.parametrize(
  'mode, min_delta, expected',
  [('max', 0.0, [10, 30, 60]), ('min', 0.0, [10, 20, 70]), ('max', 0.3, [10, 60]), ('min', 0.3, [10, 20])],
)
def test_on_best(mode, min_delta, expected):
  logs = scores(0.5, 0.1, 0.6, 0.6, math.nan, 0.9, 0.05, math.inf)
  assert taken(triggers.OnBest('score', print, mode, min_delta), logs) == expected


def test_the_direction_is_that_of_the_name(caplog):
  logs = [
    {'event': 'eval', 'step': step, 'validation_loss': loss, 'x': loss} for step, loss in ((1, 3), (2, 2), (3, 4))
  ]
  known, unknown = triggers.OnBest('validation_loss', print), triggers.OnBest('x', print)
  assert (taken(known, logs), taken(unknown, logs)) == ([1, 2], [1, 3])
  with caplog.at_level('WARNING', 'absl'):
    known.prepare('train')
    assert not caplog.messages
    unknown.prepare('train')
  assert len(caplog.messages) == 1 and 'the name x does not imply whether higher or lower' in caplog.messages[0]
  with pytest.raises(errors.UserError, match='^build_actions: OnBest: max contradicts the name validation_loss'):
    triggers.OnBest('validation_loss', print, 'max')


def test_what_is_not_finite_is_never_best():
  assert taken(triggers.OnBest('score', print), scores(math.nan, math.inf, 0.1)) == [30]


def test_a_metric_that_is_no_number_is_refused():
  with pytest.raises(errors.UserError, match='score: is not a single number at step 10'):
    triggers.OnBest('score', print)(scores(np.eye(2))[0])


def test_nested_metrics():
  trigger = triggers.OnBest('set1|f1', print)
  assert taken(trigger, [{'step': 1, 'set1': {'f1': 0.5}}, {'step': 2, 'set1': {'f1': 0.4}}]) == [1]


def test_the_best_resumes_from_its_state():
  """Also where the step of the state is evaluated once more."""
  logs = scores(0.5, 0.4, 0.6, 0.55, 0.7)
  first, second = triggers.OnBest('score', print), triggers.OnBest('score', print)
  assert taken(first, logs[:3]) == [10, 30]
  second.restore(first.state())
  assert taken(second, logs[2:]) == [50]
  second.restore({})
  assert taken(second, logs[3:]) == [40, 50]


def test_a_step_that_is_evaluated_again_counts_once():
  best = triggers.Best('score')
  first, second = scores(0.5, 0.4)
  assert best.update(first)
  assert not any(best.update(logs) for logs in (second, second, {**second, 'score': 0.9}))
  assert (best.num_since, best.value, best.step) == (1, 0.5, 10)


def test_several_actions_in_a_row():
  done = []
  triggers.OnEvent(('eval', 'checkpoint'), [lambda logs: done.append(1), lambda logs: done.append(2)])({'step': 1})
  assert done == [1, 2]


def test_mistakes():
  with pytest.raises(ValueError, match="no event 'checkpont'; did you mean 'checkpoint'"):
    triggers.OnEvent('checkpont', print)
  with pytest.raises(ValueError, match='num_steps: expected at least 1, got 0'):
    triggers.EveryNSteps(0, print)
  with pytest.raises(ValueError, match="mode: expected 'max' or 'min', got 'higher'"):
    triggers.OnBest('score', print, mode='higher')
  with pytest.raises(errors.UserError, match='f1: is not among the metrics of step 10: score'):
    triggers.OnBest('f1', print)(scores(0.5)[0])
