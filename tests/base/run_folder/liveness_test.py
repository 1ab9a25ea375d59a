"""Who is dead: by the process, its launcher, and its heartbeat if it is out of sight."""

import dataclasses

import pytest

from official_ext.base import processes
from official_ext.base.run_folder import run_status

_OWN = processes.own_identity()
_GONE = dataclasses.replace(_OWN, pid_start=(_OWN.pid_start or 0) - 1)  # Its number is another process's by now.
_FAR = dataclasses.replace(_OWN, host='far', boot_id='another', machine_id='another')
_UNKNOWN_START = dataclasses.replace(_OWN, pid_start=None)


def _record(process, launcher=None, status='running'):
  launched = {} if launcher is None else {'launcher': launcher.as_dict()}
  return {'status': status, **process.as_dict(), **launched}


@pytest.mark.parametrize(
  ('process', 'silence', 'expected'),
  [
    (_OWN, 1e9, False),  # It is seen to live: its heartbeat does not matter.
    (_GONE, 0.0, True),
    (_FAR, 59.0, False),
    (_FAR, 61.0, True),
    (_FAR, None, False),  # Versions without heartbeats.
    (_UNKNOWN_START, 59.0, False),
    (_UNKNOWN_START, 61.0, True),
  ],
  ids=['living', 'gone', 'beating', 'silent', 'without heartbeat', 'beating number', 'silent number'],
)
def test_a_process_is_seen_or_judged_by_its_heartbeat(process, silence, expected):
  assert run_status.is_dead(_record(process), silence) is expected


def test_a_run_whose_launcher_lives_is_not_dead():
  assert not run_status.is_dead(_record(_GONE, launcher=_OWN), 0.0)
  assert run_status.is_dead(_record(_GONE, launcher=_GONE), 0.0)
  assert run_status.living_launcher(_record(_GONE, launcher=_OWN)) == _OWN


def test_only_a_run_with_the_status_running_is_out_of_sight():
  assert run_status.is_out_of_sight(_record(_FAR)) and not run_status.is_out_of_sight(_record(_FAR, status='finished'))
  assert not run_status.is_out_of_sight(_record(_OWN)) and run_status.is_out_of_sight({'status': 'running'})
