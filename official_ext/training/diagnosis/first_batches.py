"""The first batches of an experiment's input, for previews and the log of a start."""

from collections.abc import Iterable, Iterator
import contextlib
from typing import Any

from official_ext.base import errors
from official_ext.data import bad_examples
from official_ext.data import input_faults
from official_ext.training.loop import required_fields

SPLITS = {'train': 'train_data', 'validation': 'validation_data'}


def data_of(task_config: Any, split: str) -> tuple[Any, str]:
  """The data configuration of a split, and its dotted path.

  Raises:
    UserError: it is not set, or names no file that exists.
  """
  path = f'task.{SPLITS[split]}'
  data = getattr(task_config, SPLITS[split], None)
  if data is None:
    raise errors.UserError(f'{path}: is not set; there are no examples to show')
  missing = input_faults.unmatched(data)
  if missing is not None:
    raise errors.UserError(f'{path}.input_path: {missing}: No such file or directory')
  return data, path


@contextlib.contextmanager
def opened(task: Any, data: Any, path: str) -> Iterator[tuple[Iterable[Any], bad_examples.ExampleLog]]:
  """A context with the batches of an input, and the log that describes its examples by their position.

  Args:
    task: builds the input.
    data: its configuration.
    path: the dotted path of `data`, for messages.

  Raises:
    UserError: the input is damaged.
  """
  log = bad_examples.ExampleLog()
  with input_faults.explained(path, data, task.build_inputs):
    with required_fields.named(task.task_config, type(task).__name__), bad_examples.logged_in(log):
      dataset = task.build_inputs(data)
    yield dataset, log
