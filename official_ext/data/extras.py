"""Packages that only some data need: they come with an extra of this package."""

import importlib
import types

from official_ext.base import errors


def load(package: str, what: str, extra: str = 'language_models') -> types.ModuleType:
  """Imports a package.

  Args:
    package: its name.
    what: the feature that needs it, for the message.
    extra: which extra of official-ext installs it.

  Raises:
    UserError: it is not installed.
  """
  try:
    return importlib.import_module(package)
  except ImportError as error:
    raise errors.UserError(
      f"{what}: needs the package {package.partition('.')[0]}: pip install 'official-ext[{extra}]'"
    ) from error
