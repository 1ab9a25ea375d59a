"""Describes ascending numbers, such as steps, by their ranges."""

from collections.abc import Sequence


def describe(starts: Sequence[int], length: int = 1, most: int | None = None) -> str:
  """Ranges of numbers, in words.

  Args:
    starts: where each range begins, ascending.
    length: of each.
    most: how many joined ranges to list, at least 2; `...` is in place of those between the first and the last ones.

  Example:

    >>> describe([1, 3, 4, 5]), describe([64, 128], 64), describe([1, 3, 5, 7], most=3)
    ('1, 3 to 5', '64 to 191', '1, 3, ..., 7')
  """
  found: list[list[int]] = []
  for start in starts:
    if found and found[-1][1] + 1 == start:
      found[-1][1] = start + max(1, length) - 1
    else:
      found.append([start, start + max(1, length) - 1])
  texts = [str(first) if first == last else f'{first} to {last}' for first, last in found]
  if most is not None and len(texts) > most:
    texts = [*texts[: most - 1], '...', texts[-1]]
  return ', '.join(texts)


def describe_with_noun(noun: str, starts: Sequence[int], length: int = 1, most: int | None = None) -> str:
  """`describe` after a noun in the singular, or in the plural for several numbers.

  Example:

    >>> describe_with_noun('step', [7]), describe_with_noun('step', [1, 3, 4, 5])
    ('step 7', 'steps 1, 3 to 5')
  """
  is_one = len(starts) == 1 and length <= 1
  return f'{noun}{"" if is_one else "s"} {describe(starts, length, most)}'
