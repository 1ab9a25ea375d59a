"""Checks of Python, packages and the import of TensorFlow, with planted faults."""

import json
import sys

import pytest

from official_ext.operations import doctor


def test_a_python_that_is_not_supported_is_a_problem():
  assert doctor.check_python().level == doctor.OK
  found = doctor.check_python('>=3.11,<3.14', (3, 14, 0))
  assert found.level == doctor.PROBLEM
  assert (found.text, found.fix) == ('3.14.0 is not supported', 'install a Python >=3.11,<3.14')


def test_packages_that_are_missing_or_of_another_version_are_problems():
  required = ['numpy>=1', 'numpy<1', 'no-such-package>=2', 'no-such-extra; extra == "console"']
  levels = [(found.level, found.text, found.fix) for found in doctor.check_packages(required)]
  import numpy as np

  assert levels == [
    (doctor.PROBLEM, f'numpy {np.__version__} is not in <1', "pip install 'numpy<1'"),
    (doctor.PROBLEM, 'no-such-package is not installed', "pip install 'no-such-package>=2'"),
  ]
  (found,) = doctor.check_packages(['numpy>=1'])
  assert found.level == doctor.OK and found.text == 'all 1 required packages'


def test_every_extra_is_listed_once():
  found = list(doctor.check_extras())
  assert {each.level for each in found} <= {doctor.OK, doctor.NOTE}
  assert found[-1].level == doctor.OK


@pytest.fixture
def planted(tmp_path, monkeypatch):
  """`planted(code)` makes a module `tensorflow` of that code, which processes started from here import."""

  def plant(code):
    (tmp_path / 'tensorflow.py').write_text(code)
    monkeypatch.setenv('PYTHONPATH', f'{tmp_path}:{":".join(sys.path)}')

  return plant


_TENSORFLOW = """
import types
__version__ = '2.20.0'
config = types.SimpleNamespace(list_physical_devices=lambda kind: ['GPU:0'])
info = {'cuda_version': '12.5.1', 'cuda_compute_capabilities': ['sm_60', 'compute_90']}
sysconfig = types.SimpleNamespace(get_build_info=lambda: info)
print('some output of its import')
"""


def test_an_import_that_succeeds_describes_tensorflow(planted):
  planted(_TENSORFLOW)
  found, values = doctor.probe_tensorflow(60)
  assert found.level == doctor.OK and found.text.startswith('2.20.0, imported in ')
  assert values['cuda'] == '12.5.1' and values['capabilities'] == ['sm_60', 'compute_90'] and values['gpus'] == 1
  json.dumps(values)


@pytest.mark.parametrize(
  ('code', 'seconds', 'text'),
  [
    ('import no_such_library', 60, "cannot be imported: ModuleNotFoundError: No module named 'no_such_library'"),
    ('import os; os.abort()', 60, 'cannot be imported: the process was ended by signal 6'),
    ('import threading; threading.Event().wait()', 1, 'its import takes more than 1 s'),
  ],
)
def test_an_import_that_fails_or_hangs_is_a_problem(planted, code, seconds, text):
  planted(code)
  found, values = doctor.probe_tensorflow(seconds)
  assert (found.level, found.text, values) == (doctor.PROBLEM, text, None)
  assert found.fix
