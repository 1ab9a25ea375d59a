"""Checks of memory, disk and ports, with planted faults."""

import os
import socket

import pytest

from official_ext.operations import doctor


def test_memory_is_compared_with_what_is_needed():
  assert doctor.check_memory(1).level == doctor.OK
  found = doctor.check_memory(1e15)
  assert found.level == doctor.PROBLEM and found.fix == 'end other programs: 1e+06 GB are needed'


def test_a_full_disk_is_a_problem(tmp_path):
  assert {found.level for found in doctor.check_disk(str(tmp_path), 1)} == {doctor.OK}
  first, *_ = doctor.check_disk(str(tmp_path / 'not/there/yet'), 1e18)
  assert first.level == doctor.PROBLEM and first.text.startswith(f'{tmp_path}: ') and first.fix.startswith('free 1e+09')


@pytest.mark.skipif(os.getuid() == 0, reason='root writes everywhere')
def test_a_folder_that_cannot_be_written_is_a_problem(tmp_path):
  (tmp_path / 'runs').mkdir(mode=0o500)
  first, *_ = doctor.check_disk(str(tmp_path / 'runs'))
  assert first.level == doctor.PROBLEM and first.text == f'{tmp_path}/runs: cannot be written'


def test_a_port_of_the_console_that_is_taken_is_a_note():
  with socket.create_server(('127.0.0.1', 0)) as taken:
    port = taken.getsockname()[1]
    found = doctor.check_ports(port)
    assert found.level == doctor.NOTE and found.text.startswith(f"{port}, the console's default, cannot be used: ")
    assert found.fix == 'official-ext console runs --port=0'
  assert doctor.check_ports(port).level == doctor.OK
