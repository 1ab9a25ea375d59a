"""Every planted fault still has its place in the code, and its tests are among those of `make test`."""

import ast

import pytest

from tools import planted
from tools import planted_faults

FAULTS = {fault.name: fault for fault in planted_faults.FAULTS}


def test_there_are_enough():
  assert len(FAULTS) == len(planted_faults.FAULTS) >= 40


@pytest.mark.parametrize('name', FAULTS)
def test_a_fault_can_be_planted(name):
  found = planted.plant(FAULTS[name])
  assert found.content != (planted.ROOT / found.path).read_text(encoding='utf-8')
  ast.parse(found.content)


@pytest.mark.parametrize('name', FAULTS)
def test_the_tests_that_should_notice_it_exist(name):
  assert FAULTS[name].tests and set(FAULTS[name].tests) <= set(planted.tests_by_name())


def test_code_that_has_changed_is_an_error():
  fault = planted_faults.Fault('gone', '', 'Share.positions', 'no such text', '', ())
  with pytest.raises(planted.PlantError, match='gone: 0 functions Share.positions have once'):
    planted.plant(fault)
