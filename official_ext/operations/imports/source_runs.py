"""A run as another tracker has logged it. No TensorFlow."""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import os

from official_ext.base import json_types
from official_ext.operations.imports import logged_values
from official_ext.operations.runs import run_folder


class UnreadableRunError(Exception):
  """Nothing of a run can be read; the message is one line that names its file."""


@dataclasses.dataclass(frozen=True)
class Content:
  """The content of a run.

  Attributes:
    name: for its folder: parts with slashes; any text.
    values: the logged values.
    experiment: the tracker's project; '' if there is none.
    config: its configuration, nested.
    tags: of people.
    note: likewise.
    host: of its process; '' if it is not known.
    started: in seconds since 1970; None: when the first value was logged.
    status: 'finished' or 'failed'.
    error: the cause of its end; '' for success.
    is_end_known: whether the tracker has recorded the end.
    damage: lines about damaged files, whose values before the damage were read.
  """

  name: str
  values: logged_values.LoggedValues
  experiment: str = ''
  config: json_types.JsonMapping = dataclasses.field(default_factory=dict)
  tags: tuple[str, ...] = ()
  note: str = ''
  host: str = ''
  started: float | None = None
  status: str = 'finished'
  error: str = ''
  is_end_known: bool = False
  damage: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class SourceRun:
  """A run that can be read.

  Attributes:
    tracker: a key of `tracker_names.NAMES`.
    source: identifies it: the absolute path of its folder or file, and `#NAME` in a file of several runs.
    stamp: another one if it has changed.
    read: reads it. Raises UnreadableRunError.
  """

  tracker: str
  source: str
  stamp: json_types.Json
  read: Callable[[], Content]


def walk(source: str) -> Iterator[tuple[str, list[str]]]:
  """The folders in a folder, and the names of the files in each. Runs of this library are left out, with their logs.

  Args:
    source: the absolute path of the folder; links in it are not followed.
  """
  for folder, folders, names in os.walk(source):
    if run_folder.EVENTS in names and run_folder.is_run(folder):
      folders.clear()
    else:
      folders.sort()
      yield folder, sorted(names)


def stamp_of(files: Sequence[str]) -> json_types.Json:
  """The names, sizes and times of files."""
  found = []
  for path in files:
    try:
      state = os.stat(path)
    except OSError:  # Deleted meanwhile, or a broken link: reading reports it.
      continue
    found.append([os.path.basename(path), state.st_size, state.st_mtime_ns])
  return found
