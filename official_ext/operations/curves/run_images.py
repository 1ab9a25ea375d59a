"""The images in a run's TensorBoard files, without TensorFlow: where they are, and one of them.

A record of such a file is 8 bytes of length, 4 of its checksum, the data, 4 of their checksum. Numbers are passed over;
a value with an encoded PNG is parsed with TensorBoard's own message.
"""

import dataclasses
import mmap
import os
import re
import struct
import threading
from typing import Any

from official_ext.base import errors
from official_ext.base.files import regular_files
from official_ext.operations.runs import run_folder

_LENGTH = struct.Struct('<Q')
_AROUND = 16
_PNG = b'\x89PNG\r\n\x1a\n'
_FILE = re.compile(r'events\.out\.tfevents\..*', re.DOTALL)
_MAX_RECORD = 64 << 20
_MAX_FILES = 200
_MAX_SHOWN = 5000  # Of a run.
_MAX_KEPT = 200_000  # In memory, of all runs.
_MAX_DEPTH = 3


@dataclasses.dataclass(frozen=True)
class Image:
  """An image in a file of a run.

  Attributes:
    tag: its name.
    folder: of its file, below the run's: `train`, `validation`.
    step: its step.
    file: its file, below the run's folder.
    offset: where its record begins.
    number: which it is among the images of its tag and step.
    width: in pixels.
    height: likewise.
  """

  tag: str
  folder: str
  step: int
  file: str
  offset: int
  number: int
  width: int
  height: int


class ImageIndex:
  """The images of runs. Each part is read once. Threads may share it."""

  def __init__(self) -> None:
    """Reads nothing yet."""
    self._lock = threading.Lock()
    self._files: dict[str, tuple[tuple[int, int], int, list[Image]]] = {}  # Identity, place, results.

  def find(self, run: run_folder.Run) -> list[Image]:
    """The images of a run, by folder, tag, step and number. Of two for the same the later one counts.

    Of many thousands those of some steps are left out, of each tag evenly, and never the last.
    """
    found: dict[tuple[str, str, int, int], Image] = {}
    with self._lock:
      if sum(len(images) for _, _, images in self._files.values()) > _MAX_KEPT:
        self._files.clear()
      for name in files_of(run):
        for image in self._in_file(run, name):
          found[image.folder, image.tag, image.step, image.number] = image
    return _thinned([found[key] for key in sorted(found)])

  def _in_file(self, run: run_folder.Run, name: str) -> list[Image]:
    path = run.file(name)
    try:
      with regular_files.open_to_read(path) as file:
        stat = os.fstat(file.fileno())
        identity = stat.st_dev, stat.st_ino
        known = self._files.get(path)
        place, images = (known[1], known[2]) if known and known[0] == identity and known[1] <= stat.st_size else (0, [])
        if place < stat.st_size:
          with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            place = _look_through(data, place, name, images)
    except (OSError, ValueError):
      return []
    self._files[path] = identity, place, images
    return images


def _thinned(images: list[Image]) -> list[Image]:
  """Images of fewer steps, if they are too many for a page."""
  every = -(-len(images) // _MAX_SHOWN)
  if every <= 1:
    return images
  steps: dict[tuple[str, str], list[int]] = {}
  for image in images:
    own = steps.setdefault((image.folder, image.tag), [])
    if not own or own[-1] != image.step:
      own.append(image.step)
  kept = {key: set(own[::-1][::every]) for key, own in steps.items()}
  return [image for image in images if image.step in kept[image.folder, image.tag]]


def files_of(run: run_folder.Run) -> list[str]:
  """The files of TensorBoard in a run's folder and those below, as paths below it, by name."""
  found = []
  for folder, folders, names in os.walk(run.path):
    below = os.path.relpath(folder, run.path)
    depth = 0 if below == '.' else below.count(os.sep) + 1
    folders[:] = [] if depth >= _MAX_DEPTH else sorted(each for each in folders if not each.startswith('.'))
    places = [(name, os.path.join(folder, name)) for name in names if _FILE.fullmatch(name)]
    names = [name for name, path in places if os.path.isfile(path) and not os.path.islink(path)]
    found += [os.path.join('' if below == '.' else below, name) for name in names]
  return sorted(found)[-_MAX_FILES:]


def read(run: run_folder.Run, file: str, offset: int, number: int) -> bytes:
  """An image as PNG: arguments as in Image.

  Raises:
    UserError: there is none.
  """
  none = errors.UserError(f'{file}: {run.name} has no such image')
  if file not in files_of(run):
    raise none
  try:
    with regular_files.open_to_read(run.file(file)) as source:
      source.seek(offset)
      header = source.read(_LENGTH.size)
      length = _LENGTH.unpack(header)[0] if len(header) == _LENGTH.size else 0
      if not 0 < length <= _MAX_RECORD:
        raise none
      source.seek(4, os.SEEK_CUR)
      data = source.read(length)
  except (OSError, ValueError, OverflowError) as error:
    raise none from error
  images = [png for _, _, pngs in _parsed(data) for png in pngs]
  if not 0 <= number < len(images):
    raise none
  return images[number]


def _look_through(data: Any, place: int, name: str, images: list[Image]) -> int:
  """Adds the images from a place on. Returns the end of the last whole record."""
  while place + _AROUND <= len(data):
    (length,) = _LENGTH.unpack(data[place : place + _LENGTH.size])
    end = place + _AROUND + length
    if end > len(data) or length > _MAX_RECORD:
      break
    begin = place + _LENGTH.size + 4
    if length > len(_PNG) and data.find(_PNG, begin, begin + length) >= 0:
      number = 0
      for tag, step, pngs in _parsed(data[begin : begin + length]):
        for png in pngs:
          width, height = struct.unpack('>II', png[16:24])
          images.append(Image(tag, os.path.dirname(name), step, name, place, number, width, height))
          number += 1
    place = end
  return place


def _parsed(data: bytes) -> list[tuple[str, int, list[bytes]]]:
  """(tag, step, PNGs) of a record; [] if it cannot be read."""
  from tensorboard.compat.proto import event_pb2  # It takes a third of a second, and most runs have no images.

  try:
    event = event_pb2.Event.FromString(data)
  except Exception:  # pylint: disable=broad-except  # Each version of protobuf has another error.
    return []
  found = []
  for value in event.summary.value:
    candidates = [value.image.encoded_image_string] if value.HasField('image') else list(value.tensor.string_val)
    pngs = [each for each in candidates if each.startswith(_PNG) and len(each) >= 24]
    if pngs:
      found.append((value.tag, event.step, pngs))
  return found
