"""An array that grows at its end: a small one in memory, a large one in a file without a name.

A long run has ten million events, and their columns take more memory than a console may use. The file is mapped, so
that an array is read like any other; `release` takes its pages out of the process's memory again.
"""

import mmap
import os
import tempfile
from typing import Any

import numpy as np

SPILL_BYTES = 1 << 20  # A larger array goes to a file.
_RESERVED = 4  # So many times the needed length is mapped: a file that grows is not mapped anew each time.


class GrowingArray:
  """A one-dimensional array. It is not shared by threads."""

  def __init__(self, dtype: Any, folder: str | None = None):
    """Makes an empty one.

    Args:
      dtype: of its elements.
      folder: where its file would be; None: it always stays in memory.
    """
    self.dtype = np.dtype(dtype)
    self._folder = folder
    self._inside: np.ndarray = np.empty(0, self.dtype)
    self._file: Any = None
    self._map: mmap.mmap | None = None
    self._length = 0

  def __len__(self) -> int:
    return self._length

  @property
  def nbytes(self) -> int:
    """The memory that it holds while nobody reads it."""
    return self._inside.nbytes

  @property
  def is_spilled(self) -> bool:
    """Whether it is in a file."""
    return self._file is not None

  @property
  def array(self) -> np.ndarray:
    """All elements, to be read only."""
    if self._map is None:
      return self._inside[: self._length]
    return np.frombuffer(self._map, self.dtype, self._length)

  def append(self, values: np.ndarray) -> None:
    """Adds elements at the end. If no file can be written, they stay in memory."""
    values = np.ascontiguousarray(values, self.dtype)
    if not len(values):
      return
    size = (self._length + len(values)) * self.dtype.itemsize
    if self._file is None and self._folder is not None and size > SPILL_BYTES:
      self._spill()
    if self._file is not None:
      try:
        self._write(values)
        return
      except OSError:  # A full disk.
        self._stay_inside(self.array.copy())
    self._append_inside(values)

  def release(self) -> None:
    """Takes the pages of its file out of memory."""
    if self._map is not None:
      self._map.madvise(mmap.MADV_DONTNEED)

  def _append_inside(self, values: np.ndarray) -> None:
    length = self._length + len(values)
    if length > len(self._inside):
      grown = np.empty(max(length, len(self._inside) * 5 // 4), self.dtype)
      grown[: self._length] = self._inside[: self._length]
      self._inside = grown
    self._inside[self._length : length] = values
    self._length = length

  def _spill(self) -> None:
    before = self._inside[: self._length]
    try:
      os.makedirs(self._folder or '', exist_ok=True)
      self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)
      self._length = 0
      self._write(before)
      self._inside = np.empty(0, self.dtype)
    except OSError:
      self._stay_inside(before)

  def _stay_inside(self, values: np.ndarray) -> None:
    """Keeps all elements in memory from now on."""
    self._inside, self._length = values, len(values)
    self._file, self._map, self._folder = None, None, None

  def _write(self, values: np.ndarray) -> None:
    """Writes elements behind the others, and maps them. Not through the map: on a full disk that is a signal."""
    content, offset = memoryview(values.data).cast('B'), self._length * self.dtype.itemsize
    end = offset + len(content)
    while len(content):
      written = os.pwrite(self._file.fileno(), content, offset)
      content, offset = content[written:], offset + written
    if end and (self._map is None or end > len(self._map)):
      os.ftruncate(self._file.fileno(), _RESERVED * end)
      self._map = mmap.mmap(
        self._file.fileno(), _RESERVED * end, prot=mmap.PROT_READ
      )  # Arrays may hold the one before.
    self._length += len(values)
