"""The result of a check."""

import dataclasses

OK, NOTE, PROBLEM = 'ok', 'note', 'problem'


@dataclasses.dataclass(frozen=True)
class Finding:
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
