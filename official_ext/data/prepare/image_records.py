"""Images in folders, one for each class. No TensorFlow."""

from collections.abc import Sequence
import hashlib
import io
import os

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.data import bad_examples
from official_ext.data import numbered_records

KINDS = ('.bmp', '.gif', '.jpeg', '.jpg', '.png')  # Those that tf.io.decode_image knows.


def is_image(name: str) -> bool:
  """Whether a file is an image, by its name."""
  return os.path.splitext(name)[1].lower() in KINDS


def classes_of(folder: str) -> list[str]:
  """The subfolders that hold an image, sorted; [] if this is not a folder of images."""
  found = []
  for name in paths.names(folder):
    path = os.path.join(folder, name)
    if not name.startswith('.') and os.path.isdir(path):
      with os.scandir(path) as entries:
        if any(is_image(entry.name) for entry in entries):
          found.append(name)
  return found


def files_of(folder: str, classes: Sequence[str]) -> list[tuple[str, int]]:
  """(path below the folder, size in bytes) of each image, sorted by class and name.

  Raises:
    UserError: one cannot be read.
  """
  found = []
  for name in classes:
    try:
      with os.scandir(os.path.join(folder, name)) as entries:
        found += sorted((f'{name}/{entry.name}', entry.stat().st_size) for entry in entries if is_image(entry.name))
    except OSError as error:
      raise errors.UserError(f'{error.filename or folder}: cannot be read: {error.strerror}') from error
  return found


class ImageRecords(numbered_records.Records):
  """Images as records: `image`, the bytes of the file, and `label`, the number of its class."""

  def __init__(self, folder: str, files: Sequence[str], labels: Sequence[str]):
    """Takes paths below a folder, each in that of its class."""
    self._folder = folder
    self._files = files
    self._labels = {name: number for number, name in enumerate(labels)}

  def __len__(self) -> int:
    return len(self._files)

  def read(self, index: int) -> numbered_records.Record:
    """See base class; an image that cannot be decoded to its end is a bad one."""
    from PIL import Image  # pylint: disable=g-import-not-at-top

    try:
      with open(self.place(index), 'rb') as f:
        content = f.read()
      with Image.open(io.BytesIO(content)) as image:
        image.load()
      with Image.open(io.BytesIO(content)) as image:
        image.verify()  # Checksums, and the data behind the pixels.
    except Exception as error:  # Pillow's decoders raise nearly anything.
      told = getattr(error, 'strerror', None) or 'is not an image that can be decoded'
      raise bad_examples.BadExampleError(f'{self.place(index)}: {told}') from error
    return {'image': content, 'label': self._labels[os.path.dirname(self._files[index])]}

  def place(self, index: int) -> str:
    return os.path.join(self._folder, self._files[index])

  @property
  def digest(self) -> str:
    return hashlib.sha256('\0'.join(self._files).encode()).hexdigest()[:32]
