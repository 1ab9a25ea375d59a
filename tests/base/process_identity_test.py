"""Which process is meant, and whether it lives: numbers that are used again, containers, other machines."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import pytest

from official_ext.base import processes

_OTHER = '00000000-0000-4000-8000-000000000000'
_PRINT = 'import json; from official_ext.base import processes as p; print(json.dumps(p.own_identity().as_dict()))'


def test_this_process_is_alive():
  own = processes.own_identity()
  assert own.pid == os.getpid() and own.pid_start and own.boot_id and own.pid_namespace
  assert processes.is_alive(own)
  assert processes.parse_identity(json.loads(json.dumps({**own.as_dict(), 'more': 1}))) == own


def test_a_number_that_is_used_again_is_another_process():
  own = processes.own_identity()
  assert processes.is_alive(dataclasses.replace(own, pid_start=own.pid_start - 1)) is False
  assert processes.is_alive(dataclasses.replace(own, pid_start=None))  # As older files have it.


def test_a_process_that_has_ended_is_dead_before_and_after_it_was_waited_for():
  process = subprocess.Popen(['cat'], stdin=subprocess.PIPE)
  child = processes.identity_of(process.pid)
  assert processes.is_alive(child)
  process.stdin.close()
  os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
  assert processes.is_alive(child) is False
  process.wait()
  assert processes.is_alive(child) is False


def test_of_another_machine_or_container_nothing_is_known():
  own = processes.own_identity()
  assert processes.is_alive(dataclasses.replace(own, boot_id=_OTHER, host='elsewhere')) is None
  assert processes.is_alive(dataclasses.replace(own, boot_id=None, host='elsewhere')) is None
  assert processes.is_alive(dataclasses.replace(own, pid_namespace='pid:[1]')) is None
  # Containers of two machines may have one name.
  assert processes.is_alive(dataclasses.replace(own, boot_id=_OTHER, pid_namespace='pid:[1]')) is None


def test_what_ran_before_this_machine_was_started_is_dead(monkeypatch):
  own = dataclasses.replace(processes.own_identity(), pid_namespace='pid:[4026531836]')
  monkeypatch.setattr(processes, 'own_identity', lambda: own)  # Tests may themselves be in a container.
  assert processes.is_alive(dataclasses.replace(own, boot_id=_OTHER)) is False
  assert processes.is_alive(dataclasses.replace(own, boot_id=_OTHER, machine_id='another')) is None


def test_a_process_in_another_pid_namespace_is_not_taken_for_one_of_ours():
  command = ['unshare', '--map-root-user', '--user', '--pid', '--fork', '--mount-proc']
  if not shutil.which('unshare') or subprocess.run([*command, 'true'], check=False, capture_output=True).returncode:
    pytest.skip('this system makes no namespaces')
  output = subprocess.run([*command, sys.executable, '-c', _PRINT], check=True, capture_output=True, text=True).stdout
  process = processes.parse_identity(json.loads(output))
  own = processes.own_identity()
  assert process.boot_id == own.boot_id and process.host == own.host
  assert processes.is_alive(process) is None  # Its number is one here too, of init or a shell.


@pytest.mark.parametrize(
  'values',
  [
    {},
    {'pid': 1},
    {'host': 'h'},
    {'pid': 'x', 'host': 'h'},
    {'pid': True, 'host': 'h'},
    {'pid': -1, 'host': 'h'},
  ],
)
def test_a_file_that_names_no_process(values):
  assert processes.parse_identity(values) is None


def test_wrong_types_count_as_unknown():
  own = processes.own_identity()
  assert processes.parse_identity({**own.as_dict(), 'pid_start': 'x', 'boot_id': 3}) == dataclasses.replace(
    own, pid_start=None, boot_id=None
  )
  huge = processes.parse_identity({**own.as_dict(), 'pid': 10**30})
  assert processes.is_alive(huge) is False


def test_identity_lock_and_status_need_no_tensorflow():
  code = (
    'import sys; from official_ext.base import processes; '
    'from official_ext.base.run_folder import run_lock, run_status; '
    'sys.exit("tensorflow" in sys.modules)'
  )
  assert subprocess.run([sys.executable, '-c', code], check=False).returncode == 0
