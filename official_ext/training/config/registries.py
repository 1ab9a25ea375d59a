"""Imports the modules that register experiments: registry_imports, installed packages, and those that a user names."""

from collections.abc import Sequence
import copy
import importlib
import importlib.metadata
import os
import re
import sys
import traceback

from official_ext.base import errors
from official_ext.base import model_garden_internals
from official_ext.training.config import parser

ENTRY_POINTS = 'official_ext.experiments'
REGISTRY_IMPORTS = 'registry_imports'


def import_experiments(names: Sequence[str] | None = None, experiment: str | None = None) -> None:
  """Imports the modules that register experiments: registry_imports, then `import_registries(names)`.

  The modules that registry_imports leaves for last are imported between the two if it may have the experiment, by their
  sources, and after them if nobody has it.

  Args:
    names: the values of --registry.
    experiment: the only one needed; None: all are.

  Raises:
    UserError: see `import_registries`.
  """
  import_registry(REGISTRY_IMPORTS, 'import')
  if experiment is None or experiment in model_garden_internals.experiments_in_source():
    import_last()
  import_registries(names)
  if experiment not in parser.experiment_names():
    import_last()


def import_last() -> None:
  """Imports the modules that `IMPORTED_LAST` of registry_imports names, those that take long, if there are any.

  Raises:
    UserError: one cannot be imported, or registers a name that is taken.
  """
  for name in getattr(sys.modules.get(REGISTRY_IMPORTS), 'IMPORTED_LAST', ()):
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
  if os.getcwd() not in sys.path:
    sys.path.append(os.getcwd())
  for entry_point in importlib.metadata.entry_points(group=ENTRY_POINTS):
    package = entry_point.dist.name if entry_point.dist else entry_point.name
    before = copy.deepcopy(model_garden_internals.registered_configs())
    try:
      import_registry(entry_point.value.partition(':')[0], f'the installed package {package}: its entry point')
    except errors.UserError as error:  # The experiment may well be in another package.
      model_garden_internals.replace_registered_configs(before)
      print(f'warning: {error}', file=sys.stderr)
  for name in names or ():
    import_registry(name, '--registry')


def import_registry(name: str, source: str) -> None:
  """Imports one module that registers experiments; a UserError names `source`, which required it."""
  if name.endswith('.py') or '/' in name:
    module = re.sub(r'^(\.*/)+|\.py$', '', name).strip('/').replace('/', '.')
    raise errors.UserError(
      f'{source}={name}: is a path; a module is named as in an import; did you mean {source}={module}?'
    )
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
