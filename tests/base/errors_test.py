"""The origin of an error."""

import importlib
import sys

import pytest

from official_ext.base import errors

CODE = """
import sys


def leave():
  sys.exit(0)


leave()
"""


def test_the_place_of_an_exit_is_the_modules_whoever_has_wrapped_sys_exit(tmp_path, monkeypatch):
  (tmp_path / 'leaving.py').write_text(CODE)
  monkeypatch.syspath_prepend(tmp_path)
  exit_of_python = sys.exit

  def wrapped(status):
    exit_of_python(status)

  monkeypatch.setattr(sys, 'exit', wrapped)  # As W&B's hook does.
  with pytest.raises(SystemExit) as info:
    importlib.import_module('leaving')
  assert errors.origin(info.value) == f'module leaving ({tmp_path}/leaving.py, line 6)'


def test_checks_are_called_until_the_last_and_their_mistakes_raised_together():
  def refuse(field, why='is wrong'):
    raise errors.UserError(f'{field}: {why}')

  with pytest.raises(errors.UserErrors) as caught, errors.Mistakes() as mistakes:
    mistakes.check(refuse, 'a')
    mistakes.check(refuse, 'a', why='follows from the first')
    mistakes.check(refuse, 'b', why='is missing')
  assert list(caught.value.lines) == ['a: is wrong', 'b: is missing']
  with pytest.raises(ZeroDivisionError), errors.Mistakes() as mistakes:
    mistakes.check(lambda: 1 / 0)
