"""Tests of which job gets a slot, and which GPUs."""

import pytest

from official_ext.operations.queue import dispatcher
from official_ext.operations.queue import queued_jobs


def state(number, gpus=None, status='queued', held=None):
  job = queued_jobs.Job(number, '', ('true',), '', '', 'train', '', {}, {}, gpus, 3, '')
  attempt = None if status == 'queued' else queued_jobs.Attempt(1, '', 'token', held)
  return queued_jobs.JobState(number, status, '', job, attempt, has_slot=attempt is not None)


def chosen(waiting, holders, count, gpus, **options):
  found = dispatcher.choose_job(waiting, holders, dispatcher.Slots(count, gpus), **options)
  return None if found is None else (found[0].number, found[1])


@pytest.mark.parametrize(
  ('needs', 'held', 'count', 'gpus', 'expected'),
  [
    ([None], [], 1, None, (1, None)),  # No GPUs that are known: the variable is left alone.
    ([0], [], 1, None, (1, ())),  # None is requested.
    ([None], [], 1, (), (1, ())),  # None is given.
    ([None], [], 1, ('0', '1'), (1, ('0',))),
    ([None], [('0',)], 2, ('0', '1'), (1, ('1',))),
    ([None], [('0',)], 1, ('0', '1'), None),  # No slot.
    ([None], [('0',), ('1',)], 3, ('0', '1'), None),  # No GPU.
    ([0], [('0',), ('1',)], 3, ('0', '1'), (1, ())),
    ([2], [], 1, ('GPU-b', 'GPU-a'), (1, ('GPU-b', 'GPU-a'))),
    ([2, 1], [('0',)], 2, ('0', '1'), None),  # The order is kept, or the first would wait for ever.
    ([3, 1], [('0',)], 2, ('0', '1'), (2, ('1',))),  # The first can never run here.
    ([None], [('0',)], 3, ('0', '0'), (1, ('0',))),  # Handed out twice, as requested.
    ([None], [('0',), ('0',)], 3, ('0', '0'), None),
    ([None], [('7',)], 2, ('0',), (1, ('0',))),  # The slots of another dispatcher.
  ],
)
def test_slots_and_gpus_are_handed_out_in_order(needs, held, count, gpus, expected):
  waiting = [state(number, need) for number, need in enumerate(needs, 1)]
  holders = [state(10 + number, status='running', held=names) for number, names in enumerate(held)]
  assert chosen(waiting, holders, count, gpus) == expected


def test_a_job_whose_folder_is_not_free_is_passed_over():
  assert chosen([state(1), state(2)], [], 1, None, is_free=lambda job: job.number != 1) == (2, None)
