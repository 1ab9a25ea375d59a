"""A finding of a check: the error, its place, and the fix."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Finding:
  """One mistake.

  Attributes:
    level: 'error': training cannot be right; 'warning': it may be intended.
    where: a dotted path of the configuration, or file, line and function.
    what: the error.
    remedy: the fix.
  """

  level: str
  where: str
  what: str
  remedy: str

  def __str__(self) -> str:
    return f'{self.where}: {self.what}; {self.remedy}'
