"""Names the unset fields without which Model Garden cannot build a model, when building fails."""

from collections.abc import Iterator
import contextlib
import linecache
import re
import traceback
from typing import Any

from official.modeling.hyperparams import base_config
from official.modeling.hyperparams import oneof

from official_ext.base import errors
from official_ext.training.devices import failures

_OPEN = ('class_names', 'input_size', 'num_classes')
_READ = re.compile(r'self\.(?:_?task_config|config)((?:\.\w+)+)')


@contextlib.contextmanager
def named(task_config: object, task_name: str) -> Iterator[None]:
  """A context that turns an error of Model Garden's about an unset field into one that names the field.

  Args:
    task_config: `params.task`.
    task_name: of the task's class.

  Raises:
    UserError: instead of that error.
  """
  try:
    yield
  except (AttributeError, TypeError, ValueError) as error:
    if isinstance(error, errors.UserError) or failures.place_of(error) is not None:
      raise
    fields = _read_by(error, task_config) or [path for path, value in _walk(task_config) if _is_open(path, value)]
    if not fields:
      raise
    paths = ', '.join(f'task.{field}' for field in fields)
    verb, them = ('is', 'it') if len(fields) == 1 else ('are', 'them')
    raise errors.UserError(
      f'{paths}: {verb} not set, and {task_name} needs {them} ({failures.message_of(error)})'
    ) from error


def _read_by(error: BaseException, task_config: object) -> list[str]:
  """The fields that are None, and that the failed line reads."""
  values = dict(_walk(task_config))
  for frame in reversed(traceback.extract_tb(error.__traceback__)):
    paths = [path[1:] for path in _READ.findall(linecache.getline(frame.filename, frame.lineno or 0))]
    unset = [path for path in paths if path in values and values[path] is None]
    if unset:
      return unset
  return []


def _walk(config: object, prefix: str = '') -> Iterator[tuple[str, Any]]:
  """(dotted path, value) of all fields; of a OneOfConfig, only those that it selects."""
  for name, value in vars(config).items():
    if name.startswith('_') or (isinstance(config, oneof.OneOfConfig) and name not in ('type', config.type)):
      continue
    yield f'{prefix}{name}', value
    if isinstance(value, base_config.Config):
      yield from _walk(value, f'{prefix}{name}.')


def _is_open(path: str, value: object) -> bool:
  return path.rpartition('.')[2] in _OPEN and (not value or value == -1)
