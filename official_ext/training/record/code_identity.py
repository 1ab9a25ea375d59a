"""Identities of code: a digest of each module and file that decides the result of a task, and versions of packages.

Covered are the modules of the task's class and its bases, of its configuration, of the experiment's factory and of
--registry, the files that the task names in `code_files`, all user code that these import, the gin configuration, and
this library as a whole. Other packages are distinguished by their versions. Names hold no folders: code that was moved
is the same.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
import functools
from importlib import machinery
import importlib.metadata
import importlib.util
import inspect
import os
import pathlib
import platform
import sys
import sysconfig
import types
from typing import Any

import gin

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import model_garden_internals
from official_ext.base import package_imports
from official_ext.data import data_identity

Digests = dict[str, str]

_LIBRARY = 'official_ext'
_SHIPPED = 'experiments'  # In the library's package if it is installed, next to it in a checkout: the same code.
_LIBRARY_FOLDER = pathlib.Path(__file__).resolve().parents[2]
_LIBRARIES = frozenset({_LIBRARY, 'official', 'orbit', 'tensorflow', 'tf_keras', 'keras', 'numpy', 'gin', 'absl'})
_INSTALLED = frozenset({'site-packages', 'dist-packages'})
_PACKAGES = (
  'official-ext',
  'tensorflow',
  'tf-keras',
  'tf-models-official',
  'tensorflow-datasets',
  'gin-config',
  'array-record',
  'numpy',
  'tokenizers',
  'jinja2',
)
# One version of TensorFlow is distributed under several names.
_TENSORFLOW = ('tensorflow', 'tensorflow-cpu', 'tensorflow-gpu', 'tensorflow-intel', 'tensorflow-macos', 'tf-nightly')


def versions() -> dict[str, str | None]:
  """The versions of Python and of the packages that decide the result of a run; None for missing ones."""
  found: dict[str, str | None] = {'python': platform.python_version()}
  for package in _PACKAGES:
    of_names = map(package_imports.version, _TENSORFLOW if package == 'tensorflow' else (package,))
    found[package] = next((version for version in of_names if version is not None), None)
  return found


def of_task(task: Any, config_class: type | None = None, origin: json_values.JsonMapping | None = None) -> Digests:
  """The digests of the code of a run, by the names of modules' files and of other files.

  Args:
    task: the task.
    config_class: the class of the experiment's configuration, if known.
    origin: `experiment`, the name of the experiment, and `registry`, the names of the modules of --registry, if known.

  Raises:
    UserError: a file that the task names cannot be read.
  """
  origin = origin or {}
  of_values = (type(task), type(task.task_config), config_class or object)
  classes = [each for cls in of_values for each in cls.__mro__]
  code = [*classes, task.trainer_cls, _factory(origin.get('experiment'))]
  named = [getattr(each, '__module__', '') for each in code] + list(origin.get('registry') or ())
  files: dict[str, bytes] = {}
  scripts: list[pathlib.Path] = []
  for name, value in task.code_files().items():
    if isinstance(value, bytes):
      files[name] = value
    elif isinstance(value, (str, os.PathLike)):
      files[name] = _read(pathlib.Path(value))
      scripts += [pathlib.Path(value)] if name.endswith('.py') else []
    else:
      named.append(value.__name__ if isinstance(value, types.ModuleType) else value.__module__)
  files.update(_sources_without_file(classes))
  modules = _UserModules(named, [path.resolve().parent for path in scripts]).read(scripts)
  files = {**modules, **files}
  bindings = gin.config_str()
  if bindings.strip():
    files['gin configuration'] = bindings.encode()
  return {**{name: data_identity.digest([files[name]]) for name in sorted(files)}, _LIBRARY: _library_digest()}


def differences(before: json_values.JsonMapping, now: json_values.JsonMapping) -> list[str]:
  """The names whose digests or versions differ, each with both values: `my_task.py: 0a1b -> 2c3d`."""
  return [
    f'{name}: {before.get(name) or "none"} -> {now.get(name) or "none"}'
    for name in sorted({*before, *now})
    if before.get(name) != now.get(name)
  ]


def describe_changes(before: json_values.JsonMapping, now: json_values.JsonMapping) -> str:
  """One line about code that has changed since a checkpoint was saved; '' if none has.

  Args:
    before: the entries `code` and `versions` of the manifest or of run.json. Packages without an entry in
      `versions` are not compared.
    now: the same of this process.
  """
  new: Mapping[str, str] = now.get('code') or {}
  old: Mapping[str, str] = new if before.get('code') is None else before['code']
  parts = []
  for name in sorted({*old, *new}):
    if old.get(name) != new.get(name):
      what = f'the library {name}' if name == _LIBRARY else name
      parts.append(what if name in old and name in new else f'{what} ({"new" if name in new else "gone"})')
  if before.get('versions') is not None:
    now_versions = now.get('versions') or {}
    parts += differences(before['versions'], {name: now_versions.get(name) for name in before['versions']})
  return ', '.join(parts)


def _read(path: pathlib.Path) -> bytes:
  try:
    return path.read_bytes()
  except OSError as error:
    raise errors.UserError(f'{path}: cannot be read: {error.strerror}') from error


@functools.cache
def _library_digest() -> str:
  paths = {path.relative_to(_LIBRARY_FOLDER): path for path in sorted(_LIBRARY_FOLDER.rglob('*.py'))}
  parts = [
    part for name, path in paths.items() if name.parts[0] != _SHIPPED for part in (name.as_posix(), path.read_bytes())
  ]
  return data_identity.digest(parts)


def _factory(experiment: str | None) -> Any:
  """The function that makes an experiment's configuration; None if it is not registered."""
  found: Any = model_garden_internals.registered_configs()
  for part in (experiment or '').split('/'):
    found = found.get(part) if isinstance(found, dict) else None
  return None if isinstance(found, dict) else found


def _sources_without_file(classes: Iterable[type]) -> Iterator[tuple[str, bytes]]:
  """The classes that were defined in a notebook or the like, with their sources."""
  for each in classes:
    if each.__module__ == '__main__' and _file_of('__main__') is None:
      try:
        yield f'class {each.__qualname__}', inspect.getsource(each).encode()
      except (OSError, TypeError):
        yield f'class {each.__qualname__}', b''


class _UserModules:
  """User code: the packages that are named, and the modules they import that are not installed packages."""

  def __init__(self, named: Iterable[str], folders: Iterable[pathlib.Path] = ()):
    """Takes the names of modules, and folders in which further ones are looked for."""
    self._named = [name for name in dict.fromkeys(named) if name]
    self._own = {name.partition('.')[0] for name in self._named} - _LIBRARIES
    self._folders = list(folders)

  def read(self, scripts: Iterable[pathlib.Path]) -> dict[str, bytes]:
    """The contents of the files of all modules, and of the imports of scripts, by name."""
    found: dict[str, bytes] = {}
    pending = list(self._named)
    for script in scripts:
      pending += _imported(script.read_bytes(), '', False)
    seen: set[str] = set()
    while pending:
      name = pending.pop()
      path = None if name in seen else self._find(name)
      seen.add(name)
      if path is None:
        continue
      is_package = path.name.startswith('__init__.')
      place = name.removeprefix(f'{_LIBRARY}.').replace('.', '/')
      shown = path.name if name == '__main__' else place + ('/' + path.name if is_package else path.suffix)
      try:
        found[shown] = path.read_bytes()
      except OSError:
        continue
      pending += [name.rpartition('.')[0]] if '.' in name else []
      if path.suffix == '.py':
        pending += _imported(found[shown], name, is_package)
    return found

  def _find(self, name: str) -> pathlib.Path | None:
    """The file of a module of user code; None for other modules and for modules without a file."""
    parts = name.split('.')
    top = parts[0]
    if parts[:2] == [_LIBRARY, _SHIPPED]:
      return _file_of(name)
    if not top or top in _LIBRARIES or top in sys.stdlib_module_names:
      return None
    for folder in self._folders:
      for path in (folder.joinpath(*parts, '__init__.py'), folder.joinpath(*parts).with_suffix('.py')):
        if path.is_file():
          return path
    return _file_of(name) if top in self._own or not _is_installed(top) else None


@functools.cache
def _is_installed(top: str) -> bool:
  """Whether a package belongs to a distribution, editable ones included, or comes with Python, or cannot be found."""
  spec = _spec_of(top)
  places = [spec.origin, *(spec.submodule_search_locations or ())] if spec is not None else []
  paths = [pathlib.Path(place) for place in places if place and os.path.exists(place)]
  standard = {sysconfig.get_paths()[name] for name in ('stdlib', 'platstdlib')}
  if not paths or any(_INSTALLED & set(path.parts) or {str(p) for p in path.parents} & standard for path in paths):
    return True
  return top in _names_in_distributions()


@functools.cache
def _names_in_distributions() -> frozenset[str]:
  return frozenset(importlib.metadata.packages_distributions())


def _file_of(name: str) -> pathlib.Path | None:
  """The file of a module, which is not imported for it; None if it has none."""
  origin = package_imports.file_of_module(sys.modules.get(name))
  if origin is None and name != '__main__':
    spec = _spec_of(name)
    origin = spec.origin if spec is not None and spec.has_location else None
  return pathlib.Path(origin) if origin and os.path.isfile(origin) else None


def _spec_of(name: str) -> Any:
  """The place of a module; its packages are not imported, unlike by `importlib.util.find_spec`."""
  parent, _, own = name.rpartition('.')
  try:
    if not parent:
      return importlib.util.find_spec(name)
    spec = _spec_of(parent)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return machinery.PathFinder.find_spec(name, places) if places and own else None
  except (ImportError, ValueError, AttributeError):  # A module without a specification.
    return None


def _imported(content: bytes, name: str, is_package: bool) -> list[str]:
  """The names of the modules that a file imports anywhere in it, and of the names that it imports from modules."""
  try:
    tree = ast.parse(content)
  except (SyntaxError, ValueError, RecursionError):
    return []
  found = []
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      found += [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      base = node.module or ''
      if node.level:
        parts = name.split('.')
        parents = parts[: len(parts) - node.level + is_package]
        base = '.'.join([*parents, *([node.module] if node.module else [])])
      found += [base, *(f'{base}.{alias.name}' for alias in node.names if alias.name != '*')]
  return found
