"""Starts lines of training from a checkpoint: `--checkpoint` and `--branch` of a mode that trains.

`lines.json` in the run's folder notes the checkpoint, and is renamed into place when that has been restored. The same
command then resumes from its own newest checkpoint. Another `--checkpoint` is refused unless a branch is requested: the
checkpoints of the previous line move to the folder `line_N`. A branch has happened when the file contains it; the next
start completes a move that was interrupted.

`checkpoint_named` finds the checkpoint that a user's path names, also for `task.init_checkpoint` and `ext.load`.
"""

from collections.abc import Sequence
import dataclasses
import os
import re
from typing import Any

from absl import logging

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths
from official_ext.base.files import storage
from official_ext.training.checkpoints import best as best_lib
from official_ext.training.checkpoints import listing
from official_ext.training.checkpoints import manifests


def checkpoint_named(given: str, source: str) -> str:
  """The path of a checkpoint. A folder means the best in it, if it is one of best checkpoints, or else its newest.

  Args:
    given: the path of a checkpoint, or of a folder.
    source: who names it: the beginning of an error.

  Raises:
    UserError: no checkpoint is found, or the folder has only damaged ones.
  """
  if paths.exists(f'{given}.index'):
    return given
  if not paths.is_folder(given):
    raise errors.UserError(f'{source}: no such checkpoint; a path such as {manifests.folder_of(given)}/ckpt-100')
  step = best_lib.best_step(given)
  best = [path for path in manifests.saved_paths(given) if manifests.step_of(path) == step]
  if best and manifests.find_unreadable(best[0]) is None:
    return best[0]
  try:
    newest = listing.newest(given)
  except errors.CheckpointError as error:
    raise errors.UserError(f'{source}: {error}') from error
  if newest is None:
    undamaged = 'undamaged ' if manifests.complete_paths(given) else ''
    raise errors.UserError(f'{source}: no {undamaged}checkpoint in this folder')
  return newest


_NAME = 'lines.json'
_FILE = re.compile(r'ckpt-(\d+)\.')
# An unfinished save leaves other files, too.
_WHOLE_OR_BROKEN = re.compile(r'ckpt-(\d+)(\.broken)?\.(index|manifest\.json)')


@dataclasses.dataclass(frozen=True)
class Origin:
  """A checkpoint from which a line of training started.

  Attributes:
    checkpoint: its path; below the run's folder, the path from there, so that a copied run starts from its own.
    step: its step.
    fingerprint: of its manifest; None if it has none.
    num_rollbacks: the number of the run's own rollbacks before it was saved.
    line: the number of the line, 0 for the first in a folder.
    is_pending: whether the previous line must still be set aside.
  """

  checkpoint: str
  step: int
  fingerprint: str | None = None
  num_rollbacks: int = 0
  line: int = 0
  is_pending: bool = False


@dataclasses.dataclass(frozen=True)
class Start:
  """The start of a training.

  Attributes:
    checkpoint: the path of the checkpoint to restore; None for the newest in the folder, or none.
    origins: the contents of the file once that is restored; None if it does not change.
    message: for the user; '' if there is nothing to say.
  """

  checkpoint: str | None = None
  origins: list[json_values.JsonObject] | None = None
  message: str = ''


def choose_start(model_dir: str, checkpoint: str | None, branch: bool = False) -> Start:
  """Decides where a training begins. Writes nothing.

  Args:
    model_dir: the run's folder.
    checkpoint: the value of --checkpoint: the path of a checkpoint or a folder, see `checkpoint_named`.
    branch: the value of --branch.

  Raises:
    UserError: there is no such checkpoint, or the folder holds checkpoints of another line of training.
  """
  known = read_origin(model_dir)
  line = [origin for origin in known if origin.line == known[-1].line]
  has_begun = bool(_own_steps(model_dir)) and not (line and line[-1].is_pending)
  if checkpoint is None:
    if not line or has_begun:
      return Start()
    path = _path(model_dir, line[-1])
    if not paths.exists(f'{path}.index'):
      raise errors.UserError(
        f'--model_dir={model_dir}: the training in it starts from {path}, which is not there any more. Put it back, '
        f'name another --checkpoint, or delete {_NAME} to start from step 0'
      )
    return Start(path, _noted(known), f'starting from {path}, as the command before this one said')
  checkpoint = _named(model_dir, checkpoint, () if branch else line)
  name = _name(model_dir, checkpoint)
  same = next((origin for origin in line if _is_same(origin, name, manifests.fingerprint(checkpoint))), None)
  if same is not None:
    if not has_begun:
      return Start(_existing(model_dir, _path(model_dir, same)), _noted(known))
    return Start(
      message=f'this line of training started there, and continues from its newest checkpoint, {_newest(model_dir)}'
    )
  _existing(model_dir, checkpoint)
  if not os.path.dirname(name):
    checkpoint = os.path.join(model_dir, name)
  origin = Origin(name, _step_of(checkpoint), manifests.fingerprint(checkpoint), _num_rollbacks(model_dir, checkpoint))
  if not _own_steps(model_dir):
    number = line[-1].line if line else 0
    before = [other for other in known if other.line != number]
    return Start(checkpoint, _noted([*before, dataclasses.replace(origin, line=number)]))
  if name == _newest(model_dir):  # Another name of the checkpoint that it is at.
    return Start(checkpoint, _noted([*known, dataclasses.replace(origin, line=line[-1].line if line else 0)]))
  if not branch:
    raise errors.UserError(
      f'--checkpoint={checkpoint}: {model_dir} holds checkpoints of another line of training, the newest '
      f'{_newest(model_dir)}. Leave it out to resume from there, take another --model_dir, or add --branch to start a '
      'new line here'
    )
  number = line[-1].line + 1 if line else 1
  return Start(
    checkpoint,
    _noted([*known, dataclasses.replace(origin, line=number, is_pending=True)]),
    f'a new line of training starts there; later checkpoints are kept in '
    f'{os.path.join(model_dir, _folder(number - 1))}',
  )


def begin_line(model_dir: str, start: Start, subfolders: Sequence[str] = ()) -> bool:
  """Notes where a line of training starts. The chief calls it when that checkpoint is restored.

  Args:
    model_dir: the run's folder.
    start: the result of `choose_start`.
    subfolders: further folders of a line's checkpoints, which are set aside with it.

  Returns:
    Whether a previous line was set aside.

  Raises:
    StorageError: it cannot be noted, and nothing has changed.
  """
  if start.origins is None:
    return False
  paths.make_folder(model_dir)
  _write(model_dir, start.origins)
  *before, last = start.origins
  if not last['is_pending']:
    return False
  _set_aside(model_dir, Origin(**last), subfolders)
  _write(model_dir, [*before, {**last, 'is_pending': False}])
  return True


def read_origin(model_dir: str) -> list[Origin]:
  """The starts of the lines of training in a folder, oldest first; [] if the file cannot be read."""
  path = os.path.join(model_dir, _NAME)
  try:
    origins = [_checked(entry) for entry in json_values.load_list_file(path)]
    return [_relative(model_dir, origin) for origin in origins]
  except FileNotFoundError:
    return []
  except (ValueError, TypeError, OSError) as error:
    logging.error(
      '%s is damaged (%s): where the training in this folder started is not known any more.',
      path,
      ' '.join(str(error).split())[:200],
    )
    return []


def _checked(entry: Any) -> Origin:
  """One entry of the file.

  Raises:
    ValueError, TypeError: it is not an entry.
  """
  origin = Origin(**entry)
  for field in ('step', 'num_rollbacks', 'line'):
    if type(getattr(origin, field)) is not int:  # pylint: disable=unidiomatic-typecheck
      raise ValueError(f'{field} is {getattr(origin, field)!r}')
  if not isinstance(origin.checkpoint, str):
    raise ValueError(f'checkpoint is {origin.checkpoint!r}')
  return origin


def _write(model_dir: str, origins: Sequence[dict[str, object]]) -> None:
  storage.write_bytes(os.path.join(model_dir, _NAME), json_values.encode(list(origins)))


def _noted(origins: Sequence[Origin]) -> list[json_values.JsonObject]:
  return [dataclasses.asdict(origin) for origin in origins]


# Names.


def _name(model_dir: str, checkpoint: str) -> str:
  """The name of a checkpoint in the file: the same for all forms of its path, wherever the run's folder is moved.

  It is a path below the run's folder, or else an absolute one.
  """
  if paths.is_remote(checkpoint):
    folder, name = os.path.split(checkpoint)
    return name if folder.rstrip('/') == model_dir.rstrip('/') else checkpoint
  folder, name = os.path.split(os.path.abspath(checkpoint))
  path, root = os.path.join(os.path.realpath(folder), name), os.path.realpath(model_dir)
  is_below = not paths.is_remote(model_dir) and path.startswith(os.path.join(root, ''))
  return os.path.relpath(path, root) if is_below else path


def _relative(model_dir: str, origin: Origin) -> Origin:
  """An origin of an older version, in which paths below the run's folder were absolute, as it is noted now."""
  if not os.path.isabs(origin.checkpoint):
    return origin
  return dataclasses.replace(origin, checkpoint=_name(model_dir, origin.checkpoint))


def _path(model_dir: str, origin: Origin) -> str:
  """The place of a checkpoint: one of the best may have been set aside with the line before."""
  if paths.is_remote(origin.checkpoint) or os.path.isabs(origin.checkpoint):
    return origin.checkpoint
  places = (model_dir, os.path.join(model_dir, _folder(origin.line - 1)))
  found = [os.path.join(place, origin.checkpoint) for place in places]
  return next((path for path in found if paths.exists(f'{path}.index')), found[0])


def _is_same(origin: Origin, name: str, fingerprint: str | None) -> bool:
  return origin.checkpoint == name or (fingerprint is not None and origin.fingerprint == fingerprint)


def _step_of(checkpoint: str) -> int:
  number = checkpoint.rpartition('-')[2]
  return int(number) if number.isdecimal() else 0


def _num_rollbacks(model_dir: str, checkpoint: str) -> int:
  if os.path.dirname(_name(model_dir, checkpoint)):  # Its rollbacks are another run's.
    return 0
  return listing.num_rollbacks(checkpoint)


def _named(model_dir: str, given: str, line: Sequence[Origin]) -> str:
  """The checkpoint that --checkpoint names. A folder means the one in it from which the line has started, if any.

  The same command therefore resumes its run although the folder may have a better or newer checkpoint by then.
  """
  if paths.exists(f'{given}.index') or not paths.is_folder(given):
    return given
  folder = _name(model_dir, given.rstrip('/'))
  starts = [origin for origin in line if os.path.dirname(origin.checkpoint) == folder]
  return _path(model_dir, starts[-1]) if starts else checkpoint_named(given, f'--checkpoint={given}')


def _existing(model_dir: str, checkpoint: str) -> str:
  if not paths.exists(f'{checkpoint}.index'):
    raise errors.UserError(f'--checkpoint={checkpoint}: no such checkpoint; a path such as {model_dir}/ckpt-100')
  return checkpoint


def _own_steps(model_dir: str) -> dict[int, bool]:
  """The steps of the checkpoints in the run's folder, and whether each was set aside as broken."""
  steps: dict[int, bool] = {}
  for match in map(_WHOLE_OR_BROKEN.fullmatch, _listed(model_dir)):
    if match:
      steps[int(match.group(1))] = steps.get(int(match.group(1)), True) and bool(match.group(2))
  return steps


def _listed(folder: str) -> list[str]:
  return paths.names(folder) if paths.is_folder(folder) else []


def _newest(model_dir: str) -> str:
  """The name of the newest checkpoint in the run's folder, which is not empty."""
  steps = _own_steps(model_dir)
  return f'ckpt-{max([step for step, is_broken in steps.items() if not is_broken] or steps)}'


# Branching.


def _folder(line: int) -> str:
  return f'line_{line}'


def _set_aside(model_dir: str, origin: Origin, subfolders: Sequence[str]) -> None:
  """Moves the files of the previous line; may be repeated if it was interrupted."""
  aside = os.path.join(model_dir, _folder(origin.line - 1))
  paths.make_folder(aside)
  is_inside = not os.path.dirname(origin.checkpoint)
  matches = [match for match in map(_FILE.match, _listed(model_dir)) if match]
  names = [match.string for match in matches if not (is_inside and int(match.group(1)) <= origin.step)]
  plain = [name for name in subfolders if name not in ('', '.', '..') and os.path.basename(name) == name]
  for name in [*names, *plain, manifests.STATE_FILE]:
    if paths.exists(os.path.join(model_dir, name)):
      paths.move(os.path.join(model_dir, name), os.path.join(aside, name))
  for folder in (aside, model_dir):  # Before the file says that it is done.
    paths.sync_to_disk(folder)
  listing.Rollbacks(model_dir).keep(origin.num_rollbacks if is_inside else 0, aside)
