"""The result of a check."""

import dataclasses

OK, NOTE, PROBLEM = 'ok', 'note', 'problem'


@dataclasses.dataclass(frozen=True)
class Result:
  """One line of `official-ext doctor`.

  Attributes:
    name: the subject, such as `gpu`.
    level: `OK`; `NOTE`, such as an extra that is not installed; or `PROBLEM`.
    text: the result.
    fix: how to fix it; '' if there is nothing to fix.
  """

  name: str
  level: str
  text: str
  fix: str = ''

  def __str__(self) -> str:
    return f'{self.level:<8} {self.name:<11} {self.text}' + (f'; {self.fix}' if self.fix else '')


def ok(name: str, text: str) -> Result:
  """A check that found what it expects."""
  return Result(name, OK, text)


def note(name: str, text: str, fix: str = '') -> Result:
  """A result that limits nothing, but is worth a line."""
  return Result(name, NOTE, text, fix)


def problem(name: str, text: str, fix: str = '') -> Result:
  """A result that must be fixed."""
  return Result(name, PROBLEM, text, fix)
