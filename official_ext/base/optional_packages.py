"""Packages that some parts need, and the extra of this project that installs each. No TensorFlow."""

import importlib.metadata
import importlib.util

from official_ext.base import errors


def require(package: str, extra: str, who: str) -> None:
  """Makes sure that a package is installed. Does not import it.

  Raises:
    UserError: it is not; the message names the extra that installs it.
  """
  try:
    found = importlib.util.find_spec(package) is not None
  except ValueError:  # sys.modules has None under this name.
    found = False
  if not found:
    raise errors.UserError(f"{who}: needs the package {package}: pip install 'official-ext[{extra}]'")


def version(distribution: str) -> str | None:
  """The installed version of a distribution, by its name; None if it is missing."""
  try:
    return importlib.metadata.version(distribution)
  except importlib.metadata.PackageNotFoundError:
    return None
