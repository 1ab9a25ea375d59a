"""The start of the process with the driver's answers, without TensorFlow."""

import subprocess
import sys
import threading
import time

import pytest

from official_ext.operations.runs import driver as driver_lib

_SLOW = """
import json, sys, time
for stage in ('importing TensorFlow', 'importing experiments'):
  print(json.dumps({'stage': stage}), flush=True)
  time.sleep(0.3)
print(json.dumps({'ready': True}), flush=True)
for line in sys.stdin:
  print(json.dumps({'id': json.loads(line)['id'], 'answered': True}), flush=True)
"""
_FAILING = """
print('{"stage": "importing TensorFlow"}', flush=True)
raise SystemExit(3)
"""


class _Driver(driver_lib.Driver):
  """Has a program without TensorFlow."""

  def __init__(self, code):
    super().__init__()
    self._code = code

  def _launch(self):
    return subprocess.Popen([sys.executable, '-c', self._code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_the_steps_of_a_start_are_seen_while_somebody_waits_for_it():
  with _Driver(_SLOW) as driver:
    assert driver.stages == []
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(driver.ask('list', [])))
    waiting.start()
    seen = {}
    while waiting.is_alive():
      stages = driver.stages
      if stages:
        assert sum(stage.seconds for stage in stages) < 60
        seen[stages[-1].name] = [stage.name for stage in stages]
      time.sleep(0.01)
    assert answers[0]['answered'] and driver.is_ready and driver.stages == []
  assert seen['importing experiments'] == ['starting Python', 'importing TensorFlow', 'importing experiments']


def test_a_start_that_fails_names_its_step():
  with _Driver(_FAILING) as driver:
    with pytest.raises(driver_lib.DriverError, match='importing TensorFlow, it has ended with status 3'):
      driver.ask('list', [])
    assert driver.stages == []
