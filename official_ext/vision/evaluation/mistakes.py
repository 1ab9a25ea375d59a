"""The worst examples of an evaluation, as one picture."""

from collections.abc import Sequence
import dataclasses
import heapq

import numpy as np

from official_ext.data import class_names
from official_ext.vision.preview import batch_pictures
from official_ext.vision.preview import drawing

_COLUMNS, _TILE, _GAP, _LINE = 4, 224, 8, 18
_BACKGROUND, _TEXT = (255, 255, 255), (30, 30, 30)


@dataclasses.dataclass(frozen=True)
class Mistake:
  """A wrong example.

  Attributes:
    words: its caption.
    pictures: the example, or the truth and the prediction.
  """

  words: str
  pictures: Sequence[batch_pictures.Picture]


class Worst:
  """Keeps the worst examples. Of equally bad ones the earlier are kept."""

  def __init__(self, number: int):
    """Keeps `number` examples."""
    self._number = number
    self._heap: list[tuple[float, int, Mistake]] = []

  def accepts(self, badness: float) -> bool:
    """Whether a next example that is so bad would be kept; saves drawing others."""
    return len(self._heap) < self._number or bool(self._number) and badness > self._heap[0][0]

  def add(self, badness: float, index: int, mistake: Mistake) -> None:
    """Adds an example: its badness, its place in the data."""
    entry = badness, -index, mistake
    if len(self._heap) < self._number:
      heapq.heappush(self._heap, entry)
    elif self._number:
      heapq.heappushpop(self._heap, entry)

  @property
  def found(self) -> list[Mistake]:
    """The examples, the worst first."""
    return [mistake for *_, mistake in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]


def drawn(mistakes: Sequence[Mistake], names: class_names.ClassNames) -> np.ndarray:
  """A sheet of mistakes, each over its caption: uint8 `[height, width, 3]`."""
  from PIL import Image  # pylint: disable=g-import-not-at-top,g-multiple-import
  from PIL import ImageDraw  # pylint: disable=g-import-not-at-top,g-multiple-import

  parts = len(mistakes[0].pictures)
  columns = max(1, _COLUMNS // parts)
  width, height = parts * (_TILE + _GAP) + _GAP, _TILE + _LINE + 2 * _GAP
  sheet = Image.new('RGB', (columns * width, -(-len(mistakes) // columns) * height), _BACKGROUND)
  draw = ImageDraw.Draw(sheet)
  for number, mistake in enumerate(mistakes):
    x, y = number % columns * width + _GAP, number // columns * height + _GAP
    for part, picture in enumerate(mistake.pictures):
      sheet.paste(drawing.drawn(picture, names, _TILE), (x + part * (_TILE + _GAP), y))
    draw.text((x, y + _TILE + 2), mistake.words, fill=_TEXT, font=drawing.font())
  return np.asarray(sheet)
