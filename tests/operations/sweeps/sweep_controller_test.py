"""Tests of a sweep's controller, with real processes, real kills, and a program that only writes a run's files."""

import os
import random
import signal

import pytest

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.operations.queue import queued_jobs
from official_ext.operations.runs import trash
from official_ext.operations.sweeps import samplers
from official_ext.operations.sweeps import sweep_changes
from tests.operations.queue import queues
from tests.operations.sweeps import trials

BAYES = {'method': 'bayes', 'run_cap': 12, 'parameters': {'x': {'min': 0.0, 'max': 1.0}}}


@pytest.fixture
def make(tmp_path):
  made = []

  def make(name='a', **values):
    made.append(trials.SweepTrial(tmp_path / name, values))
    return made[-1]

  (tmp_path / 'a').mkdir()
  (tmp_path / 'b').mkdir()
  yield make
  for each in made:
    each.close()


def parameters(trial):
  return {number: point.record.proposal.parameters for number, point in trial.points().items()}


def check_outcomes(trial):
  """Each point equals the proposal of a controller with the same input that was asked once."""
  sweep, points = trial.sweep(), trial.points()
  for number, point in points.items():
    others = {other: points[other].record.proposal for other in points if other < number}
    assert samplers.propose(sweep, number, others, point.record.outcomes) == point.record.proposal


def check_kills(make, values, kills, seed):
  """Kills controllers at any moment; the points are those of a sweep that nobody has disturbed."""
  undisturbed, killed = make('a', **values), make('b', **values)
  undisturbed.dispatch()
  assert undisturbed.finish() == 0
  killed.dispatch()
  draw, died = random.Random(seed), 0
  while died < kills:
    if draw.random() < 0.5:  # Before a step that leaves a trace; these follow each other fast.
      died += killed.finish(dies_at=draw.randrange(1, 14)) == -signal.SIGKILL
    else:
      process, known = killed.controller(), len(killed.points())
      queues.until(lambda process=process, known=known: process.exitcode is not None or len(killed.points()) > known)
      trials.wait(draw.uniform(0, 0.2))
      process.kill()
      process.join()
      died += 1
    if len(killed.points()) == values['run_cap']:
      break
  print(f'{died} kills over {len(killed.points())} points')
  assert killed.finish() == 0
  assert parameters(killed) == parameters(undisturbed)
  assert set(killed.statuses().values()) == {'finished'}
  assert {killed.starts(number) for number in killed.points()} == {1}
  assert len(killed.queue.states()) == values['run_cap']
  check_outcomes(killed)
  return died


def test_a_controller_that_is_killed_proposes_what_an_undisturbed_one_does(make):
  assert check_kills(make, BAYES, kills=5, seed=1) >= 4


@pytest.mark.soak
def test_killed_50_times_it_proposes_what_an_undisturbed_one_does(make):
  assert check_kills(make, {**BAYES, 'run_cap': 60}, kills=50, seed=2) == 50


@pytest.mark.slow
def test_with_several_slots_each_point_follows_from_the_outcomes_known(make):
  trial = make(**{**BAYES, 'parameters': {**BAYES['parameters'], 'seconds': {'value': 0.1}}})
  trial.dispatch(slots=3)
  assert trial.finish(slots=3) == 0
  check_outcomes(trial)
  assert (
    max(sum(outcome.outcome == 'running' for outcome in point.record.outcomes) for point in trial.points().values())
    == 2
  )
  best = min(point.value for point in trial.points().values())
  assert best == pytest.approx(0.2, abs=0.05)  # The program's value at x = 0.3, after five steps.


@pytest.mark.slow
def test_a_controller_that_dies_before_any_of_its_steps_starts_nothing_twice_and_loses_nothing(make):
  trial = make(method='random', run_cap=14, parameters={'x': {'min': 0.0, 'max': 1.0}})
  trial.dispatch(slots=2)
  for dies_at in range(1, 28, 4):
    trial.finish(slots=2, dies_at=dies_at)
  assert trial.finish(slots=2) == 0
  assert set(trial.statuses().values()) == {'finished'}
  assert list(trial.statuses()) == list(range(1, 15))
  assert {trial.starts(number) for number in trial.points()} == {1}
  assert not [name for name in os.listdir(trial.folder.path) if name.startswith('.new')]


@pytest.mark.parametrize('cancelled', [False, True])
def test_a_job_that_was_ordered_and_not_started_gets_a_dispatcher(make, cancelled):
  """As a power cut leaves it, which takes the controller, the dispatcher and its runner at once."""
  trial = make(method='grid', parameters={'x': {'value': 0.3}})
  process = trial.controller()
  queues.until(trial.queue.states)
  process.kill()
  process.join()
  (state,) = trial.queue.states()
  queued_jobs.order_attempt(state.job, 1, 'a token', None)
  if cancelled:
    queued_jobs.write_json(os.path.join(state.job.folder, queued_jobs.CANCELLED), {'time': json_values.timestamp_now()})
  assert trial.finish(dispatches=True) == int(cancelled)
  assert trial.statuses() == {1: 'stopped' if cancelled else 'finished'}


def test_there_is_one_controller(make):
  trial = make(method='grid', parameters={'x': {'value': 0.1}})
  first = trial.controller()
  queues.until(trial.folder.controller)
  assert trial.finish() == 4
  assert f'error: search: process {first.pid} on' in trial.output()


@pytest.mark.slow
def test_a_run_that_is_ended_early_has_saved_is_shown_as_pruned_and_resumes(make):
  early = {'type': 'hyperband', 'min_iter': 1, 'eta': 3, 'strict': True}
  parameters = {'x': {'values': [0.3, 0.9]}, 'seconds': {'value': 2.5}}
  trial = make(method='grid', early_terminate=early, parameters=parameters)
  trial.dispatch()
  assert trial.finish() == 0
  point = trial.points()[2]
  assert trial.statuses() == {1: 'finished', 2: 'pruned'}
  assert point.reason == '0.86 at iteration 1, and 0.5 was needed'  # Of iteration 1, the second: 1 / 2 + (x - 0.3)^2.
  step = point.history.last_step
  assert 2 <= step < 5
  assert point.as_outcome().outcome == 'pruned'
  sweep_changes.resume(trial.folder, 2)
  assert trial.finish() == 0  # And is not ended again.
  point = trial.points()[2]
  assert point.status == 'finished'
  assert point.history.steps == (1, 2, 3, 4, 5)
  assert trial.starts(2) == 2


def test_failed_points_are_reported_as_failed_and_retried_on_demand(make, tmp_path):
  trial = make(method='grid', parameters={'x': {'value': 0.3}, 'do': {'values': ['fail', 'work', 'diverge', 'nan']}})
  trial.dispatch(slots=2)
  assert trial.finish(slots=2) == 0
  assert trial.statuses() == {1: 'failed', 2: 'finished', 3: 'diverged', 4: 'finished'}
  outcomes = {number: point.as_outcome().outcome for number, point in trial.points().items()}
  assert outcomes == {1: 'failed', 2: 'finished', 3: 'failed', 4: 'failed'}
  assert trial.points()[4].reason == 'loss is nan'
  assert 'the best is point 2' in trial.output()
  with pytest.raises(errors.UserError, match='^point 2: is finished: only failed points are retried'):
    sweep_changes.retry(trial.folder, [2])
  (tmp_path / 'a/runs/search/mended').touch()
  assert sweep_changes.retry(trial.folder) == [1]
  assert trial.finish() == 0
  assert trial.statuses()[1] == 'finished'
  assert [trial.starts(number) for number in (1, 2, 3, 4)] == [2, 1, 1, 1]


def test_it_ends_when_one_point_after_the_other_fails(make):
  trial = make(method='random', run_cap=50, parameters={'x': {'min': 0.0, 'max': 1.0}, 'do': {'value': 'fail'}})
  trial.dispatch()
  assert trial.finish() == 2
  assert trial.statuses() == dict.fromkeys(range(1, 6), 'failed')
  assert 'search: 5 points have failed one after the other, the last with: ended with status 1' in trial.output()


def test_a_metric_that_no_run_reports_is_an_error_that_names_those_there_are(make):
  trial = make(method='random', run_cap=9, parameters={'x': {'min': 0.0, 'max': 1.0}, 'do': {'value': 'rename'}})
  trial.dispatch()
  assert trial.finish() == 2
  assert 'error: metric.name: it has no metric loss; there are accuracy (point 1 has finished)' in trial.output()


def test_it_stops_resumes_and_ends_at_its_target(make):
  parameters = {'x': {'min': 0.29, 'max': 0.31}, 'seconds': {'value': 1.0}}
  trial = make(
    method='random', run_cap=9, parameters=parameters, metric={'name': 'loss', 'goal': 'minimize', 'target': 0.21}
  )
  trial.dispatch(slots=2)
  process = trial.controller(slots=2)
  queues.until(lambda: len(trial.points()) == 2 and all(point.history.values for point in trial.points().values()))
  assert sweep_changes.stop(trial.folder) == [1, 2]
  process.join(queues.PATIENCE)
  assert process.exitcode == 0
  queues.until(lambda: set(trial.statuses().values()) == {'stopped'})
  assert trial.finish(slots=2) == 0
  assert trial.statuses() == {1: 'finished', 2: 'finished'}
  assert [trial.starts(number) for number in (1, 2)] == [2, 2]
  assert 'has reached the target: loss 0.2' in trial.output()


def test_a_point_that_is_deleted_is_not_tried_again_and_can_be_restored(make):
  trial = make(method='grid', parameters={'x': {'values': [0.1, 0.2, 0.4]}})
  trial.dispatch()
  assert trial.finish() == 0
  sweep_changes.delete(trial.folder, 2)
  assert trial.finish() == 0
  assert trial.statuses() == {1: 'finished', 2: 'deleted', 3: 'finished'}
  with pytest.raises(errors.UserError, match='^point 2: there is none in search'):
    sweep_changes.delete(trial.folder, 2)
  trash.restore(trial.folder.runs_dir, trash.deleted(trial.folder.runs_dir)[0])
  assert trial.statuses()[2] == 'finished'


def test_between_two_points_the_queue_is_not_empty(make):
  trial = make(method='grid', parameters={'x': {'values': [0.1, 0.2, 0.4]}})
  with trial.queue.expecting_more('this test'):
    dispatcher = trial.dispatch(until_empty=True)
    process = trial.controller()
    queues.until(trial.points)
  process.join(queues.PATIENCE)
  assert set(trial.statuses().values()) == {'finished'}
  dispatcher.join(queues.PATIENCE)
  assert dispatcher.exitcode == 0
  assert not trial.queue.expects_more()
