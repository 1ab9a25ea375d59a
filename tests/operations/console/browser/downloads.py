"""Files that a page saves."""

import pathlib
from typing import Any


def save(page: Any, name: str, folder: pathlib.Path) -> pathlib.Path:
  """Clicks the button of this name, and returns the path of the file that it saves, in a folder."""
  with page.expect_download() as download:
    page.get_by_role('button', name=name, exact=True).click()
  path = folder / download.value.suggested_filename
  download.value.save_as(path)
  return path
