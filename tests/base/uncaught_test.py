"""`tracebacks.shorten_uncaught`: an error of this library that ends a script is its line; others are unchanged."""

import sys

import pytest

from official_ext.base import errors
from official_ext.base import tracebacks


@pytest.fixture
def hook(monkeypatch):
  """(the hook, the errors that reach the earlier one)."""
  earlier = []
  monkeypatch.setattr(sys, 'excepthook', lambda kind, error, trace: earlier.append(error))
  monkeypatch.delattr(sys, 'ps1', raising=False)
  tracebacks.shorten_uncaught()
  found = sys.excepthook
  tracebacks.shorten_uncaught()
  assert sys.excepthook is found  # Once.
  return found, earlier


@pytest.mark.parametrize(
  ('error', 'status', 'lines'),
  [
    (errors.UserError('a: is wrong; mend it'), 2, ['error: a: is wrong; mend it']),
    (errors.UserErrors(['a: is wrong', 'b: too']), 2, ['error: a: is wrong', 'error: b: too']),
    (errors.UserError('--url=https://me:abcd@host'), 2, ['error: --url=https://me:***@host']),
    (errors.PreemptedError('stopped at step 7'), 75, ['preempted: stopped at step 7']),
    (errors.DivergedError('11 updates'), 3, ['error: 11 updates']),
  ],
)
def test_an_error_of_the_library_is_its_lines(hook, capsys, error, status, lines):
  show, earlier = hook
  with pytest.raises(SystemExit) as info:
    show(type(error), error, None)
  assert (info.value.code, capsys.readouterr().err.splitlines(), earlier) == (status, lines, [])


def test_other_errors_and_interactive_interpreters_are_unchanged(hook, monkeypatch, capsys):
  show, earlier = hook
  other, foreseen = ValueError('x'), errors.UserError('a: is wrong')
  show(ValueError, other, None)
  monkeypatch.setattr(sys, 'ps1', '>>> ', raising=False)
  show(errors.UserError, foreseen, None)
  assert earlier == [other, foreseen] and capsys.readouterr().err == ''
