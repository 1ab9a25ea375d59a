"""Tags and a note that people give a run: `notes.json` in its folder."""

from collections.abc import Iterable
import dataclasses
import os

from official_ext.base import errors
from official_ext.base.files import file_lock
from official_ext.operations.runs import json_files
from official_ext.operations.runs import run_folder

FILE = 'notes.json'
_LOCK = 'notes.lock'
_MAX_TAG = 100
_MAX_NOTE = 10_000


@dataclasses.dataclass(frozen=True)
class Notes:
  """People's notes on a run.

  Attributes:
    tags: words, sorted.
    note: a text; '' if there is none.
  """

  tags: tuple[str, ...] = ()
  note: str = ''


def parse(values: dict | None) -> Notes:
  """The notes in the content of a file; invalid parts of it are left out."""
  tags, note = (values or {}).get('tags'), (values or {}).get('note')
  words = {tag for tag in tags if isinstance(tag, str) and tag} if isinstance(tags, list) else set()
  return Notes(tuple(sorted(words)), note if isinstance(note, str) else '')


def read(run: run_folder.Run) -> Notes:
  """The notes of a run; none if it has no file, or none that can be read."""
  return parse(json_files.read(run.file(FILE)))


def change(run: run_folder.Run, add: Iterable[str] = (), remove: Iterable[str] = (), note: str | None = None) -> Notes:
  """Changes the notes of a run. Of several processes at once none loses another's changes.

  Args:
    run: the run.
    add: tags that it gets.
    remove: tags that it loses; a missing one is not an error.
    note: its text from now on; '' for none; None leaves it.

  Raises:
    UserError: a tag is empty, too long, or has a comma or a line break; or the note is too long.
    StorageError: the folder cannot be written.
  """
  for tag in add:
    if not tag.strip() or len(tag) > _MAX_TAG or ',' in tag or not tag.isprintable():
      raise errors.UserError(f'--tag={tag!r}: a tag has 1 to {_MAX_TAG} letters in one line, and no comma')
  if note is not None and len(note) > _MAX_NOTE:
    raise errors.UserError(f'--note: {len(note)} letters; {_MAX_NOTE} are possible')
  try:
    with file_lock.FileLock(run.file(_LOCK)):
      before = read(run)
      tags = (set(before.tags) | {tag.strip() for tag in add}) - set(remove)
      after = Notes(tuple(sorted(tags)), before.note if note is None else note)
      json_files.write(run.file(FILE), {'tags': list(after.tags), 'note': after.note})
  except OSError as error:
    raise errors.StorageError(f'{run.file(FILE)}: cannot be written: {os.strerror(error.errno or 0)}') from error
  return after
