"""The common part of the commands of `official-ext runs`: arguments, the named runs, and printed output."""

import argparse
from collections.abc import Callable, Sequence
import json
import math
import os
from typing import Any

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.files import paths
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import remote_runs
from official_ext.cli import run_tables
from official_ext.operations.runs import run_folder


def lines_of(error: Exception) -> list[str]:
  """The lines of an error, each harmless for a terminal and a line indeed."""
  return [run_tables.harmless(line) for line in getattr(error, 'lines', None) or [str(error)]]


def number(least: float, kind: type = float) -> Callable[[str], float]:
  """The `type` of an argument that is a number, and not below another."""

  def number(text: str) -> float:
    value = kind(text)
    if not least <= value < math.inf:
      raise argparse.ArgumentTypeError(f'{text}: expected a number from {least:g}')
    return value

  number.__name__ = 'whole number' if kind is int else 'number'  # In messages.
  return number


def add_command(
  commands: Any,
  name: str,
  function: Callable[[Any], None],
  text: str,
  runs: str = 'RUN',
  as_json: bool = False,
  takes_remote: bool = False,
) -> arguments_lib.Parser:
  """Adds a command with RUNS_DIR, with any number of runs unless `runs` is '', and with --json if it has that.

  Args:
    commands: of `official-ext runs`.
    name: the command's.
    function: the implementation, called with the arguments.
    text: its help.
    runs: the name of the runs in the help.
    as_json: whether it prints JSON too.
    takes_remote: whether it only reads runs, so that copies of remote ones do.
  """
  found = arguments_lib.add_command(commands, name, function, text)
  found.set_defaults(takes_remote=takes_remote)
  found.add_argument('root', metavar='RUNS_DIR', type=arguments_lib.folder, help='the folder of the runs')
  if runs:
    found.add_argument('runs', metavar=runs, nargs='*', type=arguments_lib.folder, help='the path of a run below it')
  if as_json:
    found.add_argument('--json', action='store_true', help='print JSON')
  return found


def runs_of(options: argparse.Namespace, at_least: int = 1) -> tuple[str, list[run_folder.Run]]:
  """The folder with the runs, and those that are named. RUNS_DIR may itself be a run, and the first one.

  Runs on remote file systems are named by their paths, and are copied: see remote_runs.py.
  """
  if options.takes_remote and paths.is_remote(options.root):
    return options.root, _remote_runs([options.root, *options.runs], at_least)
  root, names = root_of(options), list(options.runs)
  if run_folder.is_run(root) and not (names and all(_is_below(root, name) for name in names)):
    names, root = [root, *names], os.path.dirname(os.path.abspath(root))
  found = {run.path: run for run in (run_folder.get_run(root, name) for name in names)}  # Each once.
  if len(found) < at_least:
    raise errors.UserError(f'{root}: name {"a run" if at_least == 1 else "two runs or more"} in this folder')
  return root, list(found.values())


def _remote_runs(folders: Sequence[str], at_least: int) -> list[run_folder.Run]:
  local = [folder for folder in folders if not paths.is_remote(folder)]
  if local:
    raise errors.UserError(f'{local[0]}: is a local folder beside the remote {folders[0]}; copy one of the two')
  if len(folders) < at_least:
    raise errors.UserError(f'{folders[0]}: name two runs or more, each by its path')
  return [remote_runs.copied(folder) for folder in folders]


def root_of(options: argparse.Namespace) -> str:
  """RUNS_DIR, which must exist."""
  root = os.path.expanduser(options.root)
  if paths.is_remote(root):
    raise errors.UserError(
      f'{root}: this command takes local folders; show, compare, config, checkpoints and events take remote runs'
    )
  if not os.path.isdir(root):
    raise errors.UserError(f'{root}: no such folder; name the one that has your runs')
  return root


def _is_below(root: str, name: str) -> bool:
  path = os.path.abspath(os.path.join(root, name))
  return run_folder.is_run(path) and run_folder.paths_below(os.path.abspath(root), path)


def each(runs: Sequence[object], do: Callable[[Any], None]) -> None:
  """Does something with each of some runs, and reports all errors at the end."""
  failures: list[str] = []
  for one in runs:
    try:
      do(one)
    except (errors.UserError, errors.StorageError) as error:
      if len(runs) == 1:
        raise
      failures += lines_of(error)
  if failures:
    raise errors.UserErrors(failures)


def print_lines(lines: Sequence[str]) -> None:
  """Prints each line."""
  for line in lines:
    print(line)


def print_json(values: object) -> None:
  """Prints JSON in which numbers that are not finite are strings."""
  print(json.dumps(json_types.json_values(values), indent=2, allow_nan=False))


def print_json_of(values: Sequence[object]) -> None:
  """Prints one thing for one run, a list for several, nothing for none."""
  if values:
    print_json(values[0] if len(values) == 1 else values)


def words(values: Sequence[str]) -> list[str]:
  """The words of a flag that is given several times, or has several with commas between them."""
  return [word for value in values for word in value.split(',') if word]


def run_of(options: argparse.Namespace) -> run_folder.Run:
  """The one run that is named."""
  _, runs = runs_of(options)
  if len(runs) > 1:
    raise errors.UserError(f'{options.root}: one run at a time, and {len(runs)} are named')
  return runs[0]


def tell(name: str, what: str) -> None:
  """Prints the state of a run, in one line."""
  print(run_tables.harmless(f'{name}: {what}'), flush=True)
