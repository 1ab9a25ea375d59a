"""official-ext runs import: runs of other trackers as folders of runs. No TensorFlow."""

import argparse
import os
from typing import Any

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import run_tables
from official_ext.operations.imports import tracker_names


def _import(options: argparse.Namespace) -> None:
  from official_ext.operations.imports import run_import  # pylint: disable=g-import-not-at-top  # NumPy.

  for path, flag in ((options.source, 'SOURCE'), (options.to, '--to')):
    if paths.is_remote(path):
      raise errors.UserError(f'{flag}={path}: this command takes local folders; copy the files first')
  source, root = os.path.expanduser(options.source), os.path.expanduser(options.to)
  damage: list[str] = []
  found = run_import.find(source, options.tracker, damage)
  for run in run_import.import_runs(found, root, damage):
    about = '' if run.num_values is None else f', {run.num_values} values'
    print(run_tables.harmless(f'{run.name}: {run.outcome} from {tracker_names.NAMES[run.tracker]}{about}'), flush=True)
    damage += run.damage
  if damage:
    raise errors.UserErrors([run_tables.harmless(line) for line in damage])


def add_commands(commands: Any) -> None:
  """Adds this command to `official-ext runs`."""
  text = f'import runs of {tracker_names.LISTED}: docs/how_to/import_runs.md'
  found = arguments_lib.add_command(commands, 'import', _import, text)
  source = 'the folder of their files'
  found.add_argument('source', metavar='SOURCE', type=arguments_lib.folder, help=source)
  to = 'the folder of runs for them'
  found.add_argument('--to', metavar='RUNS_DIR', type=arguments_lib.folder, required=True, help=to)
  tracker = 'import only those; default: all that are found'
  found.add_argument('--from', dest='tracker', choices=tuple(tracker_names.NAMES), help=tracker)
