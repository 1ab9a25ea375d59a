"""official-ext runs tag, archive, delete, restore: notes, and deletion. No TensorFlow."""

import argparse
from collections.abc import Sequence
import os
from typing import Any

from official_ext.base import errors
from official_ext.cli import run_arguments
from official_ext.cli import run_tables
from official_ext.operations.runs import notes
from official_ext.operations.runs import run_folder
from official_ext.operations.runs import trash


def _tag(options: argparse.Namespace) -> None:
  _, runs = run_arguments.runs_of(options)
  values: list[dict[str, object]] = []

  def change(one: run_folder.Run) -> None:
    found = notes.read(one)
    if options.tag or options.untag or options.note is not None:
      found = notes.change(one, run_arguments.words(options.tag), run_arguments.words(options.untag), options.note)
    if options.json:
      values.append({'name': one.name, 'tags': found.tags, 'note': found.note})
    else:
      print(
        run_tables.harmless(
          f'{one.name}: {", ".join(found.tags) or "no tags"}' + (f'; {found.note}' * bool(found.note))
        )
      )

  try:
    run_arguments.each(runs, change)
  finally:
    run_arguments.print_json_of(values)


def _archive(options: argparse.Namespace) -> None:
  _, runs = run_arguments.runs_of(options)

  def archive(one: run_folder.Run) -> None:
    trash.archive(one)
    run_arguments.tell(
      one.name, 'is archived, and stays where it is; `official-ext runs restore` brings it back into the list'
    )

  run_arguments.each(runs, archive)


def _delete(options: argparse.Namespace) -> None:
  if options.forever:
    _delete_forever(run_arguments.root_of(options), options.runs)
    return
  root, runs = run_arguments.runs_of(options)

  def delete(one: run_folder.Run) -> None:
    trash.delete(root, one)
    run_arguments.tell(one.name, 'is in the trash; `official-ext runs restore` brings it back')

  run_arguments.each(runs, delete)


def _delete_forever(root: str, names: Sequence[str]) -> None:
  if not names:
    raise errors.UserError('--forever: name runs in the trash; `official-ext runs list --trash` shows it')

  def delete(name: str) -> None:
    each = trash.find_deleted(root, name)
    trash.delete_forever(each)
    run_arguments.tell(each.name, 'is deleted, and cannot be brought back')

  run_arguments.each(names, delete)


def _restore(options: argparse.Namespace) -> None:
  root = run_arguments.root_of(options)
  if not options.runs or (options.name and len(options.runs) > 1):
    raise errors.UserError('runs restore: name the run; `official-ext runs list --trash` and `--archived` show them')

  def restore(name: str) -> None:
    one = run_folder.find_run(root, name)
    if one is not None and os.path.exists(one.file(trash.ARCHIVED)):
      if options.name:
        raise errors.UserError(f'--name={options.name}: {one.name} is archived, and keeps its name')
      trash.unarchive(one)
    else:
      one = trash.restore(root, trash.find_deleted(root, name), options.name)
    run_arguments.tell(one.name, 'is in the list again')

  run_arguments.each(options.runs, restore)


def add_commands(commands: Any) -> None:
  """Adds these commands to `official-ext runs`."""
  add = run_arguments.add_command
  found = add(commands, 'tag', _tag, 'change the tags and the note of runs, and print them', as_json=True)
  found.add_argument('--tag', action='append', default=[], metavar='A,B', help='tags to add')
  found.add_argument('--untag', action='append', default=[], metavar='A,B', help='tags to remove')
  found.add_argument('--note', metavar='TEXT', help='the note')
  add(commands, 'archive', _archive, 'take runs out of the list')
  found = add(commands, 'delete', _delete, 'move runs to the trash')
  found.add_argument('--forever', action='store_true', help='delete runs of the trash')
  found = add(commands, 'restore', _restore, 'restore archived or deleted runs')
  found.add_argument('--name', metavar='NEW', help='a new name')
