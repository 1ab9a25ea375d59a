"""Records and images that `official-ext prepare` has written, as a source."""

from collections.abc import Callable
import os
from typing import Any

from official_ext.base import errors
from official_ext.data import collators
from official_ext.data import data_identity
from official_ext.data import prepared_folders
from official_ext.data import row_encoding
from official_ext.data import sources


class PreparedRows(sources.ArrayRecordSource):
  """The examples of a folder of `official-ext prepare`: dictionaries of numbers, texts, bytes and lists.

  Those of images are `image`, the bytes of the file, and `label`, its number in `labels`.

  Attributes:
    labels: the names of the classes, by number; [] without classes.
  """

  def __init__(self, input_path: Any, parse: Callable[[dict[str, Any]], collators.Example] | None = None):
    """Opens the folder.

    Args:
      input_path: the folder: `input_path` of a data configuration.
      parse: a function of an example as it was written, which converts it; None: as it was written.

    Raises:
      UserError: there is no such folder, it is not prepared to its end, or it holds rows of tokens.
    """
    found = prepared_folders.find(input_path)
    if found is None:
      found = prepared_folders.read(os.path.expanduser(str(input_path)))
    if found.kind == 'texts':
      raise errors.UserError(
        f'input_path: {found.folder}: holds rows of tokens, which ext.text_source reads; prepare it without --tokenizer'
      )
    decode = row_encoding.decode_example
    self._open(
      [(file, count) for file, count, _, _ in found.files],
      (lambda record: parse(decode(record))) if parse else decode,
    )
    self.labels = found.labels
    self._content = found.content

  def identity(self) -> data_identity.Identity:
    """See base class; the content counts too, by the checksums that were noted."""
    return {**super().identity(), 'content': self._content}
