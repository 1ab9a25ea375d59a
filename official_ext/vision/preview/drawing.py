"""Draws pictures with their annotations in a grid, as PNG or HTML. No TensorFlow."""

import base64
from collections.abc import Sequence
import colorsys
import html
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from official_ext.data import class_names

if TYPE_CHECKING:
  from official_ext.vision.preview import batch_pictures

_CAPTION, _MARGIN, _FONT = 34, 6, 12
_BACKGROUND, _TEXT = (255, 255, 255), (30, 30, 30)
_IGNORED = (128, 128, 128)
_STRENGTH = 0.5  # Of masks over their image.


def colour_of(number: int) -> tuple[int, int, int]:
  """The colour of a class; neighbouring numbers have distant hues."""
  hue = (number * 0.61803398875) % 1.0
  red, green, blue = colorsys.hsv_to_rgb(hue, 0.85, 1.0)
  return int(red * 255), int(green * 255), int(blue * 255)


def grid(pictures: Sequence['batch_pictures.Picture'], columns: int, names: class_names.ClassNames, tile: int) -> bytes:
  """A PNG of pictures in rows, each in a square of `tile` pixels over its caption."""
  from PIL import Image  # pylint: disable=g-import-not-at-top,g-multiple-import
  from PIL import ImageDraw  # pylint: disable=g-import-not-at-top,g-multiple-import

  rows = -(-len(pictures) // columns)
  width, height = tile + _MARGIN, tile + _CAPTION + _MARGIN
  sheet = Image.new('RGB', (columns * width + _MARGIN, rows * height + _MARGIN), _BACKGROUND)
  draw = ImageDraw.Draw(sheet)
  for number, picture in enumerate(pictures):
    x, y = _MARGIN + number % columns * width, _MARGIN + number // columns * height
    image = drawn(picture, names, tile)
    sheet.paste(image, (x + (tile - image.width) // 2, y + (tile - image.height) // 2))
    _write_caption(draw, (x, y + tile + 2), caption_of(picture, names), tile)
  return _png(sheet)


def page(pictures: Sequence['batch_pictures.Picture'], names: class_names.ClassNames, tile: int, title: str) -> bytes:
  """An HTML page with all pictures in it."""
  parts = [
    f'<!DOCTYPE html><html><head><meta charset="utf-8"><title>{html.escape(title)}</title><style>',
    'body{font:14px sans-serif;margin:16px}main{display:flex;flex-wrap:wrap;gap:12px}figure{margin:0}',
    f'figcaption{{max-width:{tile}px;padding:4px 0}}b{{font-weight:normal;border-radius:3px;padding:0 4px}}</style>',
    f'</head><body><h1>{html.escape(title)}</h1><main>',
  ]
  for picture in pictures:
    content = base64.b64encode(_png(drawn(picture, names, tile))).decode()
    words = ' '.join(
      f'<b style="background:rgb{colour_of(number)}">{html.escape(text)}</b>'
      for number, text in caption_of(picture, names)
    )
    parts.append(f'<figure><img src="data:image/png;base64,{content}" alt=""><figcaption>{words}</figcaption></figure>')
  return '\n'.join([*parts, '</main></body></html>\n']).encode()


def caption_of(picture: 'batch_pictures.Picture', names: class_names.ClassNames) -> list[tuple[int, str]]:
  """(class number, text) of the classes in a picture: of its labels with their shares, else its objects or pixels."""
  if picture.labels:
    return [(number, names.of(number) + ('' if share == 1 else f' {share:.2f}')) for number, share in picture.labels]
  if picture.class_map is not None:
    numbers = [int(number) for number in np.unique(picture.class_map) if number != picture.ignored]
    return [(number, names.of(number)) for number in numbers]
  counts = {number: list(picture.classes).count(number) for number in sorted(set(picture.classes))}
  return [(number, names.of(number) + (f' x {count}' if count > 1 else '')) for number, count in counts.items()]


def drawn(picture: 'batch_pictures.Picture', names: class_names.ClassNames, tile: int) -> Any:
  """The picture with its annotations, a Pillow image of at most `tile` pixels on each side."""
  from PIL import Image  # pylint: disable=g-import-not-at-top,g-multiple-import
  from PIL import ImageDraw  # pylint: disable=g-import-not-at-top,g-multiple-import

  values = picture.image.astype(np.float64)
  if picture.class_map is not None:
    for number in np.unique(picture.class_map):
      colour = _IGNORED if number == picture.ignored else colour_of(int(number))
      if number or number == picture.ignored:  # Of the background nothing is drawn.
        _tint(values, picture.class_map == number, colour)
  for mask, number in zip(picture.masks, picture.classes):
    _tint(values, mask, colour_of(number))
  height, width = picture.image.shape[:2]
  scale = tile / max(height, width)
  size = (max(1, round(width * scale)), max(1, round(height * scale)))
  how = Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BILINEAR
  image = Image.fromarray(values.astype(np.uint8)).resize(size, how)
  draw = ImageDraw.Draw(image)
  for box, number in zip(picture.boxes, picture.classes):
    top, left, bottom, right = (float(value) * scale for value in box)
    draw.rectangle([left, top, max(left, right - 1), max(top, bottom - 1)], outline=colour_of(number), width=2)
    _write_name(draw, (left, top), names.of(number), colour_of(number), bottom)
  return image


def _tint(values: np.ndarray, where: np.ndarray, colour: tuple[int, int, int]) -> None:
  values[where] = values[where] * (1 - _STRENGTH) + np.array(colour) * _STRENGTH


def font() -> Any:
  """The font of names and captions."""
  from PIL import ImageFont  # pylint: disable=g-import-not-at-top

  return ImageFont.load_default(_FONT)


def _write_name(draw: Any, box: tuple[float, float], name: str, colour: tuple[int, int, int], bottom: float) -> None:
  """Writes the name of a box on its colour: above it, or below it at the upper edge."""
  x, y = box[0] + 3, box[1] - _FONT - 3
  place = (x, y if y >= 0 else bottom + 2)
  left, top, right, below = draw.textbbox(place, name, font=font())
  draw.rectangle([left - 3, top - 2, right + 2, below + 2], fill=colour)
  draw.text(place, name, fill=(0, 0, 0), font=font())


def _write_caption(draw: Any, place: tuple[int, int], words: Sequence[tuple[int, str]], width: int) -> None:
  """Writes at most two lines of class names, each after a square of its colour."""
  x, y = place
  for number, text in words:
    length = int(draw.textlength(text, font=font())) + 18
    if x > place[0] and x + length > place[0] + width:
      x, y = place[0], y + _FONT + 4
    if y > place[1] + _FONT + 4:
      return
    draw.rectangle([x, y + 2, x + 9, y + 11], fill=colour_of(number))
    draw.text((x + 13, y), text, fill=_TEXT, font=font())
    x += length


def _png(image: Any) -> bytes:
  stream = io.BytesIO()
  image.save(stream, 'PNG')
  return stream.getvalue()
