"""A finding of a check: what is wrong, where, and what to do about it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Finding:
  """One mistake.

  Attributes:
    level: 'error': training cannot be right; 'warning': it may be intended.
    where: a dotted path of the configuration, or file, line and function.
    what: what is wrong.
    remedy: what to do about it.
  """

  level: str
  where: str
  what: str
  remedy: str

  def __str__(self) -> str:
    return f'{self.where}: {self.what}; {self.remedy}'
