"""Curves as one SVG picture, for files that are read without the console. No TensorFlow."""

from collections.abc import Sequence
import dataclasses
import html
import math

from official_ext.base.harmless_text import harmless

COLOURS = ('#1f5fd6', '#c2570c', '#1a7f45', '#b8326b', '#7a4fc9', '#0b7a7d', '#8a6d00', '#505b69')
_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 68, 28, 12, 34
_TICKS = 5
_LARGEST = 1e300  # Of a number that is drawn: sums and differences of two are finite.


@dataclasses.dataclass(frozen=True)
class Line:
  """One curve.

  Attributes:
    name: shown when the pointer is on it.
    colour: a CSS colour.
    x: places on the axis, ascending.
    y: values of the same number; one that is not finite, or beyond 1e300, interrupts the curve.
    is_dotted: whether it has points without lines.
  """

  name: str
  colour: str
  x: Sequence[float]
  y: Sequence[float]
  is_dotted: bool = False


def ticks(first: float, last: float, count: int = _TICKS) -> list[float]:
  """About `count` round numbers (1, 2 or 5 times a power of ten apart) from `first` to `last`, both finite."""
  if not last > first:
    return [first]
  rough = (last - first) / count
  power = 10.0 ** math.floor(math.log10(rough))
  step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
  begin = math.ceil(first / step - 1e-9)
  return [number * step for number in range(begin, math.floor(last / step + 1e-9) + 1)]


def draw(title: str, lines: Sequence[Line], x_title: str = 'step') -> str:
  """An SVG element with axes, a grid and the lines; '' if no line has a finite point.

  Args:
    title: of the picture, for screen readers.
    lines: the curves.
    x_title: name of the horizontal axis.
  """
  points = [point for line in lines for piece in _pieces(line) for point in piece]
  if not points:
    return ''
  x_ends = _ends([x for x, _ in points], 0.0)
  y_ends = _ends([y for _, y in points], 0.04)

  def place(x: float, y: float) -> str:
    across = _LEFT + (_WIDTH - _LEFT - _RIGHT) * (x - x_ends[0]) / (x_ends[1] - x_ends[0])
    down = _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (y - y_ends[0]) / (y_ends[1] - y_ends[0])
    return f'{across:.1f},{down:.1f}'

  parts = [
    f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg" font-size="12">',
    f'<title>{_text(title)}</title>',
  ]
  y_ticks = ticks(*y_ends)
  for y, label in zip(y_ticks, _labels(y_ticks)):
    _, down = place(x_ends[0], y).split(',')
    parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{down}" y2="{down}" stroke="#8886"/>')
    parts.append(
      f'<text x="{_LEFT - 6}" y="{float(down) + 4:.1f}" text-anchor="end" fill="currentColor">{label}</text>'
    )
  for x in ticks(*x_ends):
    across, _ = place(x, y_ends[0]).split(',')
    parts.append(
      f'<text x="{across}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle" fill="currentColor">{x:,.10g}</text>'
    )
  middle = (_LEFT + _WIDTH - _RIGHT) / 2
  title_text = _text(x_title)
  parts.append(f'<text x="{middle}" y="{_HEIGHT - 3}" text-anchor="middle" fill="currentColor">{title_text}</text>')
  for line in lines:
    name = f'<title>{_text(line.name)}</title>'
    for piece in _pieces(line):
      if len(piece) == 1 or line.is_dotted:
        for point in piece:
          across, down = place(*point).split(',')
          parts.append(f'<circle cx="{across}" cy="{down}" r="2.5" fill="{line.colour}">{name}</circle>')
      else:
        text = ' '.join(place(x, y) for x, y in piece)
        parts.append(
          f'<polyline points="{text}" fill="none" stroke="{line.colour}" stroke-width="1.5">{name}</polyline>'
        )
  return '\n'.join([*parts, '</svg>'])


def _pieces(line: Line) -> list[list[tuple[float, float]]]:
  """The parts of a curve between values that are not finite."""
  pieces: list[list[tuple[float, float]]] = [[]]
  for x, y in zip(line.x, line.y):
    if math.isfinite(x) and abs(y) <= _LARGEST:
      pieces[-1].append((x, y))
    elif pieces[-1]:
      pieces.append([])
  return [piece for piece in pieces if piece]


def _ends(values: Sequence[float], margin: float) -> tuple[float, float]:
  low, high = min(values), max(values)
  least = max(1e-300, 1e-12 * max(abs(low), abs(high)))  # Between closer numbers there are no ticks.
  if high - low < least:
    middle, span = (low + high) / 2, abs(low) or 1.0
    return middle - max(least, span / 2), middle + max(least, span / 2)
  return low - margin * (high - low), high + margin * (high - low)


def _labels(values: Sequence[float]) -> list[str]:
  """The shortest texts of ticks of which no two are the same."""
  for digits in range(4, 17):
    found = [f'{value:.{digits}g}' for value in values]
    if len(set(found)) == len(found):
      return found
  return found


def _text(value: str) -> str:
  """Escaped text, without characters that cannot be written."""
  return html.escape(harmless(value))
