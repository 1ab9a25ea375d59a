"""Imports the modules that register experiments.

In this order: the user's registry_imports, installed packages, the values of --registry. Then, for a name that none of
these has: the experiments that this library ships, and Model Garden's.
"""

from collections.abc import Sequence
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import pathlib
import pkgutil
import re
import sys
import traceback
import types

from official_ext.base import errors
from official_ext.base import model_garden_internals
from official_ext.training.config import parser

ENTRY_POINTS = 'official_ext.experiments'
REGISTRY_IMPORTS = 'registry_imports'
_SHIPPED = 'official_ext.experiments'  # Where the library is installed; a checkout has them as `experiments`.
_INSTALLED = frozenset({'site-packages', 'dist-packages'})
_MAX_SHOWN = 5
_REGISTERED: dict[str, set[str]] = {}  # By the values of --registry: the experiments that their import has added.
_IMPORTED_LAST = ('official.common.registry_imports',)  # It takes seconds.


def import_experiments(names: Sequence[str] | None = None, experiment: str | None = None) -> None:
  """Imports the modules that register experiments: registry_imports, then `import_registries(names)`.

  The modules that registry_imports leaves for last are imported between the two if it may have the experiment, by their
  sources, and after them if no module has it.

  Args:
    names: the values of --registry.
    experiment: the only one needed; None: all are.

  Raises:
    UserError: see `import_own` and `import_registries`; or modules are named, and none registers `experiment`.
  """
  import_own()
  if experiment is None or experiment in model_garden_internals.experiments_in_source():
    import_last()
  import_registries(names)
  if experiment not in parser.experiment_names():
    import_shipped()
  if experiment not in parser.experiment_names():
    import_last()
  check_registered(experiment, names)


def check_registered(experiment: str | None, names: Sequence[str] | None) -> None:
  """Makes sure that an experiment is registered, if modules that should register it were imported.

  Args:
    experiment: its name; None for none.
    names: the modules.

  Raises:
    UserError: it is not, with the experiments that each module registers.
  """
  if not names or not experiment or experiment in parser.experiment_names():
    return
  reasons = []
  for name in dict.fromkeys(names):
    own = _registered_by(name)
    shown = ', '.join(own[:_MAX_SHOWN]) + (', ...' if len(own) > _MAX_SHOWN else '')
    reasons.append(f'--registry={name} was imported, and registers {shown or "no experiment"}')
  if not any(map(_registered_by, names)):
    reasons.append('decorate a function that returns the experiment with @ext.register_experiment(NAME)')
  raise parser.no_such_experiment(experiment, '; '.join(reasons))


def _registered_by(name: str) -> list[str]:
  """The experiments of a module: registered while it was imported, or by it, its parts, or modules that it names."""
  modules = {name, *(each.__name__ for each in vars(sys.modules[name]).values() if isinstance(each, types.ModuleType))}
  own = {
    experiment
    for experiment in parser.experiment_names()
    if (module := getattr(parser.factory_of(experiment), '__module__', '')) in modules or module.startswith(f'{name}.')
  }
  return sorted(own.union(_REGISTERED.get(name, ())))


def import_own() -> None:
  """Imports the user's registry_imports, if one is in the program's folder, the current folder or PYTHONPATH.

  A module of that name in site-packages belongs to another package, and is ignored.

  Raises:
    UserError: it cannot be imported, or registers a name that is taken.
  """
  _search_current_folder()
  spec = importlib.util.find_spec(REGISTRY_IMPORTS)
  if spec is not None and not _INSTALLED & set(pathlib.Path(spec.origin or '').parts):
    import_registry(REGISTRY_IMPORTS, 'import')


def import_shipped() -> None:
  """Imports this library's experiments, except if their name is taken or their file is imported already.

  In a checkout, registry_imports has imported them from `experiments`. One that cannot be imported is skipped with a
  warning on stderr.
  """
  package = importlib.util.find_spec(_SHIPPED)
  for found in pkgutil.iter_modules(package.submodule_search_locations if package else ()):
    name = f'{_SHIPPED}.{found.name}'
    if found.name in parser.experiment_names() or _is_imported(importlib.util.find_spec(name)):
      continue
    _import_or_warn(name, 'the library')


def _is_imported(spec: importlib.machinery.ModuleSpec | None) -> bool:
  """Whether the file of a module is imported, under any name."""
  if spec is None or spec.origin is None:
    return False
  last = spec.name.rpartition('.')[2]
  same_name = [module for name, module in list(sys.modules.items()) if name.rpartition('.')[2] == last]
  origin = os.path.realpath(spec.origin)
  return any(os.path.realpath(vars(module).get('__file__') or '') == origin for module in same_name if module)


def import_last() -> None:
  """Imports the modules that `IMPORTED_LAST` of registry_imports names; Model Garden's if that names none.

  Raises:
    UserError: one cannot be imported, or registers a name that is taken.
  """
  for name in getattr(sys.modules.get(REGISTRY_IMPORTS), 'IMPORTED_LAST', _IMPORTED_LAST):
    import_registry(name, 'import')


def import_registries(names: Sequence[str] | None = None) -> None:
  """Imports the modules that register experiments: entry points of installed packages, then `names`.

  Modules may also be in the current directory.

  Args:
    names: the values of --registry.

  Raises:
    UserError: a module of `names` cannot be imported, or registers a name that is taken. An installed package that
      cannot be imported, or does so, is skipped with a warning on stderr.
  """
  _search_current_folder()
  for entry_point in importlib.metadata.entry_points(group=ENTRY_POINTS):
    package = entry_point.dist.name if entry_point.dist else entry_point.name
    _import_or_warn(entry_point.value.partition(':')[0], f'the installed package {package}: its entry point')
  for name in names or ():
    import_registry(name, '--registry')


def _search_current_folder() -> None:
  if os.getcwd() not in sys.path:
    sys.path.append(os.getcwd())


def _import_or_warn(name: str, source: str) -> None:
  """Imports a module; if it cannot be imported, warns and drops its experiments.

  Modules that it has imported by then stay: another import of them would not register their experiments again.
  """
  before = set(parser.experiment_names())
  try:
    import_registry(name, source)
  except errors.UserError as error:  # The experiment may well be in another module.
    for experiment in set(parser.experiment_names()) - before:
      if getattr(parser.factory_of(experiment), '__module__', None) not in sys.modules:
        model_garden_internals.unregister_config(experiment)
    print(f'warning: {error}', file=sys.stderr)


def import_registry(name: str, source: str) -> None:
  """Imports one module that registers experiments; a UserError names `source`, which required it."""
  if name.endswith('.py') or '/' in name:
    module = re.sub(r'^(\.*/)+|\.py$', '', name).strip('/').replace('/', '.')
    raise errors.UserError(
      f'{source}={name}: is a path; a module is named as in an import; did you mean {source}={module}?'
    )
  before = set(parser.experiment_names())
  try:
    importlib.import_module(name)
  except SystemExit as error:  # It would end this program too, without a message and with any status.
    raise errors.UserError(
      f'{source}={name}: cannot be imported: {errors.origin(error)} calls sys.exit({error.code!r})'
    ) from error
  except Exception as error:  # The module may raise anything.
    reason = ' '.join(str(error).split())
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = '' if 'importlib' in frame.filename else f' ({frame.filename}, line {frame.lineno})'
    raise errors.UserError(f'{source}={name}: cannot be imported: {type(error).__name__}: {reason}{where}') from error
  _REGISTERED.setdefault(name, set()).update(set(parser.experiment_names()) - before)
