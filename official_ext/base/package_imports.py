"""Imports of packages: without garbage collection, deferred until they are used, and optional by an extra.

`without_gc`: TensorFlow's imports make a million objects, which live as long as the process. Python's collector would
search them again and again: a twelfth of a start.

`defer_imports`: TensorFlow and its Keras import pandas, SciPy, h5py, requests and a client for Google's APIs, and Model
Garden imports TensorFlow Datasets: a quarter of the seconds that a start spends on imports. Stand-ins take their place
while TensorFlow and Model Garden's reader are imported. A stand-in imports its package when one of its attributes is
read, or when it is called. An import after that gets the package itself.

`require` and `import_optional`: packages that only some features need. The message of a missing one names the extra of
official-ext that installs it.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import pkgutil
import sys
import types
from typing import Any

from official_ext.base import errors


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
  """A context for imports. If TensorFlow is among them, the collector leaves all present objects alone afterwards."""
  was_enabled, had_tensorflow = gc.isenabled(), 'tensorflow' in sys.modules
  gc.disable()
  try:
    yield
  finally:
    if 'tensorflow' in sys.modules and not had_tensorflow:
      gc.freeze()
    if was_enabled:
      gc.enable()


# A module: the packages, modules and functions that are imported with it, and not needed yet.
_DEFERRED: Mapping[str, Sequence[str]] = {
  'tensorflow': (
    'googleapiclient',
    'googleapiclient.discovery',
    'h5py',
    'oauth2client',
    'oauth2client.client',
    'oauth2client.client.GoogleCredentials',
    'pandas',
    'requests',
    'scipy',
    'scipy.linalg',
    'scipy.ndimage',
    'scipy.sparse',
    'scipy.sparse.issparse',
  ),
  'official.core.input_reader': ('tensorflow_datasets',),
}


class _StandIn(types.ModuleType):
  """Looks like a module that has no attributes yet, or stands for a function or a class of one."""

  def __getattr__(self, name: str) -> Any:
    # A search for the files of modules, as by `inspect`, must find nothing and import nothing.
    if name.startswith('__') and name != '__version__':
      raise AttributeError(f'{self.__name__} is not imported yet: it has no {name!r}')
    return getattr(self._imported(), name)

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    return self._imported()(*args, **kwargs)

  def _imported(self) -> Any:
    _remove_stand_ins(self.__name__.partition('.')[0])
    return pkgutil.resolve_name(self.__name__)


def _remove_stand_ins(package: str) -> None:
  """Lets the import of a package find it, and not a stand-in."""
  for name, module in list(sys.modules.items()):
    if name.partition('.')[0] == package and isinstance(module, _StandIn):
      del sys.modules[name]


@contextlib.contextmanager
def stand_ins(names: Sequence[str]) -> Iterator[None]:
  """A context in which an import of these modules gets a stand-in.

  Args:
    names: packages, and of each after it the modules, functions and classes that are imported by name. A package that
      is imported already, or not installed, has no stand-in.
  """
  packages = dict.fromkeys(name.partition('.')[0] for name in names)
  absent = [name for name in packages if name not in sys.modules and importlib.util.find_spec(name)]
  for name in names:
    parent, _, child = name.rpartition('.')
    if name.partition('.')[0] in absent:
      sys.modules[name] = _StandIn(name)
      if parent:
        setattr(sys.modules[parent], child, sys.modules[name])
  try:
    yield
  finally:
    for name in absent:
      _remove_stand_ins(name)


class _DeferringFinder(importlib.abc.MetaPathFinder):
  """Finds modules where they are, and has them executed among stand-ins."""

  def __init__(self, deferred: Mapping[str, Sequence[str]]):
    self._deferred = dict(deferred)

  def find_spec(
    self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
  ) -> importlib.machinery.ModuleSpec | None:
    """The spec of a module that is not imported yet, if it imports deferrable modules."""
    names = self._deferred.pop(fullname, ())
    spec = importlib.machinery.PathFinder.find_spec(fullname, path, target) if names else None
    if not spec or not spec.loader:
      return None
    execute = spec.loader.exec_module

    def execute_among_stand_ins(module: types.ModuleType) -> None:
      with stand_ins(names):
        execute(module)

    spec.loader.exec_module = execute_among_stand_ins  # type: ignore[method-assign]
    return spec


def defer_imports(deferred: Mapping[str, Sequence[str]] = _DEFERRED) -> None:
  """Defers imports of the modules that will be imported from here on.

  Args:
    deferred: module -> names of the modules to defer while it is imported.
  """
  sys.meta_path.insert(0, _DeferringFinder(deferred))


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
  from importlib import metadata  # pylint: disable=g-import-not-at-top  # It imports email and zipfile.

  try:
    return metadata.version(distribution)
  except metadata.PackageNotFoundError:
    return None


def import_optional(package: str, what: str, extra: str = 'language_models') -> types.ModuleType:
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


def file_of_module(module: object) -> str | None:
  """The file of a module; None for one without a file, and for None."""
  return getattr(module, '__file__', None)
