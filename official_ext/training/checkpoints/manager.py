"""Saves and restores checkpoints: verified, asynchronously, and without ever losing the last one.

`Restoring` restores one checkpoint, with variables that the first steps after it make. `Retention` deletes old ones.
`CheckpointManager` chooses between checkpoints, saves, and rolls back.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import os
import shutil
import tempfile
import threading
import time
import zlib

from absl import logging
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import tf_internals
from official_ext.base.files import paths as paths_lib
from official_ext.base.files import storage
from official_ext.training.checkpoints import contents as contents_lib
from official_ext.training.checkpoints import exported_weights
from official_ext.training.checkpoints import listing
from official_ext.training.checkpoints import manifests
from official_ext.training.devices import workers as workers_lib

# The parts that an evaluation does not need.
_OF_TRAINING = ('optimizer', 'step_state')


class Restoring:
  """Restores, and compares the objects with the checkpoint: before it is read, or as soon as all variables exist."""

  def __init__(self, checkpoint: tf.train.Checkpoint, trains: bool, create_variables: Callable[[], bool]):
    """Initializes it; restores nothing.

    Args:
      checkpoint: the object to restore.
      trains: whether the process trains; another one does not need the optimizer.
      create_variables: builds a model that is built by its first call; False: it cannot.
    """
    self._checkpoint = checkpoint
    self._without = () if trains else _OF_TRAINING
    self._reads_optimizer = trains
    self._create_variables = create_variables
    self._unproven: str | None = None  # A checkpoint that variables which do not exist yet may need.

  def restore(self, path: str) -> None:
    """Restores one checkpoint.

    Raises:
      UserError: its variables, or their shapes, differ from those here.
    """
    contents = contents_lib.Contents(path)
    match, self._unproven = contents.match(self._checkpoint, self._without), None
    if match.may_fit_later and not self._is_built():
      all_made = self._create_variables()
      match = contents.match(self._checkpoint, self._without)
      self._unproven = path if match.may_fit_later and not all_made else None
    if self._unproven is None:
      match.check(path)
      if self._reads_optimizer:
        contents_lib.check_slot_owners(path, self._checkpoint, match)
    children = dict(tf.train.TrackableView.children(self._checkpoint))
    readable = tf.train.Checkpoint(**{name: child for name, child in children.items() if name not in self._without})
    # Missing values were named above; the others are for variables that are made later.
    readable.read(storage.readable_checkpoint(path)).expect_partial()
    exported_weights.put_back_weights(self._checkpoint, path, contents, optimizer_is_read=self._reads_optimizer)

  @contextlib.contextmanager
  def completing(self) -> Iterator[None]:
    """A context for steps that may make variables. At its end, an earlier restore must be complete.

    Raises:
      UserError: the variables of the restored checkpoint, or their shapes, differ from those that exist now.
    """
    path = self._unproven
    try:
      yield
    except ValueError as error:
      if path is None or isinstance(error, errors.UserError):
        raise
      # TensorFlow gives a variable that is made after the restore its shape in the file.
      raise errors.UserError(
        f'{path}: not a checkpoint of this model, or the first step has another error: '
        f'{" ".join(str(error).split())[:300]}'
      ) from error
    if path is not None:
      self._unproven = None
      contents_lib.Contents(path).match(self._checkpoint, self._without).check(path)

  def _is_built(self) -> bool:
    """Whether the model is known to make no more variables."""
    model = getattr(self._checkpoint, 'model', None)
    if not isinstance(model, tf_keras.layers.Layer):
      return model is None
    layers = [module for module in model.submodules if isinstance(module, tf_keras.layers.Layer)]
    return model.built and all(layer.built for layer in layers)


def check_same_as_chief(path: str, workers: workers_lib.Workers) -> None:
  """Makes sure that all workers restore the same checkpoint.

  Args:
    path: of the checkpoint that this worker restores.
    workers: all that train together. All of them must call.

  Raises:
    CheckpointError: the chief restores another one.
  """
  here = [os.path.basename(path), manifests.fingerprint(path)]
  name, fingerprint = workers.from_chief('restored checkpoint', lambda: here)
  if [name, fingerprint] == here:
    return
  what = f'worker 0 restores {name}' if name != here[0] else 'it is not the one that worker 0 restores'
  if not paths_lib.exists(f'{path}.index'):
    what = 'worker 0 restores this checkpoint, and it is not here'
  raise errors.CheckpointError(f'{path}: {what}. All workers need the same model_dir, on a file system that they share')


class Retention:
  """Deletes checkpoints that need not be kept. The one just saved counts even if that fails."""

  def __init__(self, directory: str, max_to_keep: int | None = None, keep_every: int = 0):
    """Initializes it; deletes nothing.

    Args:
      directory: the run's folder.
      max_to_keep: how many of the newest checkpoints are kept; None keeps all.
      keep_every: checkpoints at multiples of this step are kept too; 0 for none.
    """
    self._directory = directory
    self._max_to_keep = max_to_keep
    self._keep_every = keep_every
    self._logged: set[str] = set()

  def tidy(self, saved: str) -> None:
    """Names the checkpoints that are kept in the file named `checkpoint`, and deletes the others.

    Args:
      saved: path of the one that was just saved: it stays, even if others have higher numbers.
    """
    there = manifests.complete_paths(self._directory)
    outdated = [path for path in self._beyond_number(there) if path != saved]
    try:
      manifests.write_state_file(self._directory, saved, [path for path in there if path not in outdated])
    except errors.StorageError as error:
      self._log_once(str(error))
    try:
      for path in outdated:
        manifests.remove(path)
    except storage.FAILURES as error:
      reason = storage.reason_of(error)
      self._log_once(f'{self._directory}: checkpoints that are not to be kept cannot be deleted: {reason}')

  def _beyond_number(self, paths: Sequence[str]) -> list[str]:
    """Those of some checkpoints that are neither among the newest nor at a multiple of `keep_every`."""
    if self._max_to_keep is None:
      return []
    older = paths[: -self._max_to_keep]
    return [path for path in older if not (self._keep_every and manifests.step_of(path) % self._keep_every == 0)]

  def _log_once(self, what: str) -> None:
    if what not in self._logged:
      self._logged.add(what)
      logging.error('%s', what)


_MAX_ATTEMPTS = 10  # How often an evaluation tries to restore a checkpoint before a simultaneous training deletes that.


class CheckpointManager:
  """Saves `ckpt-STEP` with a manifest, and restores the newest that verifies.

  It has the attributes and methods of `tf.train.CheckpointManager` that Model Garden uses, but does not derive from it:
  that class trusts the file named `checkpoint`, which a crash leaves empty. Here, manifests count.

  Saving may be asynchronous: `save` copies the values and returns; a thread writes them, then the manifest, and only
  then deletes old checkpoints. Every method that reads waits for a save in flight.

  Attributes:
    checkpoint: the `tf.train.Checkpoint` that is saved and restored.
    directory: the folder.
    checkpoint_interval: steps between checkpoints; None if only callers know.
    rollbacks: the rollbacks of the run in the folder.
    restoring: restores checkpoints; `completing()` is a context for the steps that may build a model: a
      restore must be complete after them.
  """

  def __init__(
    self,
    checkpoint: tf.train.Checkpoint,
    directory: str,
    *,
    max_to_keep: int | None = None,
    keep_every: int = 0,
    step_counter: tf.Variable | None = None,
    checkpoint_interval: int | None = None,
    init_fn: Callable[[], object] | None = None,
    asynchronous: bool = False,
    trains: bool = True,
    is_chief: bool = True,
    workers: workers_lib.Workers | None = None,
    notes: contents_lib.RunNotes | None = None,
    create_variables: Callable[[], bool] | None = None,
  ):
    """Initializes the manager; reads nothing yet.

    Args:
      checkpoint: the object to save and restore.
      directory: the folder, on a file system that all workers see.
      max_to_keep: how many of the newest checkpoints are kept; None keeps all.
      keep_every: checkpoints at multiples of this step are kept too; 0 for none.
      step_counter: the step variable.
      checkpoint_interval: steps between checkpoints, for `save` and for callers.
      init_fn: called if there is nothing to restore.
      asynchronous: whether to write while training continues.
      trains: whether this process trains. Another one renames no files, and does not need the optimizer.
      is_chief: whether its files count. Other workers write to a folder that is deleted.
      workers: all that train together, and restore the checkpoint that the chief chooses; None: this process alone.
      notes: the facts about the run for every manifest. A restore prints how the data differ from those in it.
      create_variables: the trainer's, which builds a model that is built by its first call; False: it cannot.
    """
    self.checkpoint = contents_lib.rebuilt(checkpoint)
    self.directory = directory
    self.checkpoint_interval = checkpoint_interval
    self.rollbacks = listing.Rollbacks(directory)
    self.restoring = Restoring(self.checkpoint, trains, create_variables or (lambda: False))
    self._step_counter = step_counter
    self._init_fn = init_fn
    self._trains, self._is_chief, self._workers = trains, is_chief, workers or workers_lib.Workers()
    self._asynchronous = asynchronous
    self._notes = notes or contents_lib.RunNotes()
    self._retention = Retention(directory, max_to_keep, keep_every)
    self._held: int | None = None
    self._last = ''
    self._reported_code = False
    self._extra: dict = {}
    self._error: BaseException | None = None
    self._lock = threading.Lock()

  @property
  def checkpoints(self) -> list[str]:
    """The paths of the checkpoints with a manifest, oldest first."""
    return manifests.complete_paths(self.directory)

  @property
  def latest_checkpoint(self) -> str | None:
    """The path of the newest one; None if there is none."""
    paths = self.checkpoints
    return paths[-1] if paths else None

  def holds(self, step: int) -> bool:
    """Whether the last checkpoint that this process has saved here, or restored from here, is that of `step`."""
    return self._held == step

  @property
  def has_failed(self) -> bool:
    """Whether the save in flight is known to have failed, so that `sync` will raise. Does not wait."""
    return self._error is not None or tf_internals.async_save_error(self.checkpoint) is not None

  # Saving.

  def save(self, checkpoint_number=None, check_interval=True, options=None, **extra: object) -> str | None:
    """Saves `ckpt-<checkpoint_number>`.

    Args:
      checkpoint_number: the step; None reads the step counter.
      check_interval: whether to save only at multiples of `checkpoint_interval`.
      options: ignored: an argument of `tf.train.CheckpointManager`.
      **extra: further entries of the manifest.

    Returns:
      The path at which the files are or will be; None if nothing had to be saved.

    Raises:
      DivergedError: a weight is not finite.
      CheckpointError: this save, or the one before it, could not be written.
      ValueError: nothing says which step this is.
    """
    del options
    step = self._step_now() if checkpoint_number is None else int(checkpoint_number)
    if check_interval and self.checkpoint_interval and step % self.checkpoint_interval:
      return None
    self.sync()
    self._check_finite(step)
    path = os.path.join(self.directory if self._is_chief else tempfile.mkdtemp(), f'ckpt-{step}')
    self._last = path
    self._extra = {
      'step': step,
      'time': time.time(),
      'num_rollbacks': len(self.rollbacks),
      **self._notes.entries(),
      **exported_weights.manifest_entries(self.checkpoint),
      **extra,
    }
    write_options = tf.train.CheckpointOptions(
      experimental_enable_async_checkpoint=self._asynchronous,
      experimental_write_callbacks=[self._written],
    )
    try:
      if self._is_chief:
        manifests.begin(path)
      self.checkpoint.write(path, options=write_options)
    except storage.FAILURES as error:
      raise self._save_error(error) from error
    if not self._asynchronous:
      self._raise_error()
    self._held = step
    return path

  def _step_now(self) -> int:
    if self._step_counter is None:
      raise ValueError('CheckpointManager: neither a checkpoint_number nor a step_counter says which step this is.')
    return int(self._step_counter.numpy())

  def _written(self, path: str) -> None:
    """Called when all files of a checkpoint are on disk, by the thread that wrote them."""
    try:
      if not self._is_chief:
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)
        return
      manifests.write(path, **self._extra)
      self._retention.tidy(path)
    except Exception as error:  # That is for the thread that trains.
      with self._lock:
        self._error = error

  @property
  def _weights(self) -> Sequence[tf.Variable]:
    return tf_internals.variables_of(getattr(self.checkpoint, 'model', None))

  def weights_sum(self) -> int:
    """A checksum of the model's weights as they are now: CRC-32 of all their values. Call it on all workers."""
    total = 0
    for variable in self._weights:
      value = variable.numpy()
      total = zlib.crc32(repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes(), total)
    return total

  def _check_finite(self, step: int) -> None:
    for variable in self._weights:
      if variable.dtype.is_floating and not bool(tf.reduce_all(tf.math.is_finite(tf.cast(variable, tf.float32)))):
        raise errors.DivergedError(f'step {step} is not saved: the weight {variable.name} is not finite')

  def sync(self) -> bool:
    """Waits for a save in flight.

    Returns:
      Whether a save has succeeded since the last call.

    Raises:
      CheckpointError: it could not be written.
    """
    try:
      self.checkpoint.sync()
      tf_internals.raise_async_save_error(self.checkpoint)
    except storage.FAILURES as error:
      raise self._save_error(error) from error
    self._raise_error()
    last, self._last = self._last, ''
    return bool(last)

  def _raise_error(self):
    with self._lock:
      error, self._error = self._error, None
    if error is not None:
      raise self._save_error(error) from error

  def _save_error(self, error: BaseException) -> errors.CheckpointError:
    """Makes the error of the last save, and deletes its remains, because a full disk must not become fuller."""
    path, self._held = self._last, None
    if self._is_chief:
      manifests.remove_partial(path)
    else:
      shutil.rmtree(os.path.dirname(path), ignore_errors=True)
    self._last, newest = '', self.latest_checkpoint
    which = f'the newest checkpoint is {os.path.basename(newest)}' if newest else 'there is no checkpoint before it'
    failure = errors.CheckpointError(f'{path}: could not be saved: {storage.reason_of(error)}; {which}')
    failure.path = path
    return failure

  # Restoring.

  def restore_or_initialize(self) -> str | None:
    """Restores the newest checkpoint that verifies; sets aside those that do not, and logs that.

    A training then finishes deletions that a kill or a power loss has interrupted.

    Returns:
      Its path; None if the folder has no checkpoint, and `init_fn` was called.

    Raises:
      CheckpointError: there are checkpoints, but none of them can be read.
      UserError: the checkpoint and the model differ.
    """
    self.sync()
    for attempt in range(_MAX_ATTEMPTS):
      name = self._workers.from_chief('checkpoint', self._choose)
      if name is None:
        if self._init_fn is not None:
          self._init_fn()
        return None
      path = os.path.join(self.directory, name)
      gone = self._restore_unless_gone(path, is_last=attempt == _MAX_ATTEMPTS - 1)
      if not self._workers.any('checkpoint gone', gone):
        if self._trains and self._is_chief and path in self.checkpoints:  # Not in a folder of another program.
          self._retention.tidy(path)
        return path
    return None

  def _restore_unless_gone(self, path: str, is_last: bool) -> bool:
    """Restores a checkpoint. Returns whether the training beside this process has deleted it meanwhile."""
    try:
      self.restore(path)
      return False
    except Exception as error:  # The type depends on the place of the reader's error.
      if self._trains or is_last or not self._is_gone(path):
        raise
      logging.warning('%s was deleted while it was being restored (%s): the next newest is taken.', path, error)
      return True

  def _is_gone(self, path: str) -> bool:
    """Whether a checkpoint has been deleted: its manifest, which is deleted first, is missing, and others exist."""
    return not paths_lib.exists(path + manifests.SUFFIX) and bool(self.checkpoints)

  def _choose(self) -> str | None:
    """The name of the newest checkpoint that verifies; None if there are no checkpoints."""
    if self._trains and self._is_chief:
      self._remove_unfinished()
      self._delete_rolled_back()
    for _ in range(_MAX_ATTEMPTS):
      with_manifest = [path for path in self.checkpoints if not self._is_rolled_back(path)]
      without = listing.of_another_program(self.directory, with_manifest)
      for path in reversed([*with_manifest, *without]):
        damage = manifests.find_unreadable(path)
        if damage is None:
          if with_manifest and path in without:
            self._report_other_program(path, with_manifest[-1])
          return os.path.basename(path)
        if self._trains or not self._is_gone(path):
          self._report_damage(path, damage)
      # A training beside this process deletes replaced checkpoints: look for newer ones.
      if self._trains or not set(self.checkpoints) - set(with_manifest):
        break
    broken = paths_lib.matching(self.directory, r'ckpt-.*\.broken.*')
    if with_manifest or without or broken:
      raise errors.CheckpointError(
        f'{self.directory}: no checkpoint in it can be read. To start again from step 0, move its ckpt-* files away'
      )
    return None

  def _report_other_program(self, path: str, newest: str) -> None:
    if self._is_chief and not manifests.has_manifest(path):  # A training beside this process may have ended its save.
      logging.warning(
        '%s has no manifest: another program saved it after %s. It is newer, and is restored.',
        path,
        os.path.basename(newest),
      )

  def _remove_unfinished(self) -> None:
    """Deletes the leftovers of a save or a deletion after a kill or a power loss, and reports it."""
    for path in manifests.remove_unfinished(self.directory):
      newest = os.path.basename(self.latest_checkpoint or '')
      rest = f'the newest checkpoint is {newest}' if newest else 'there is no other checkpoint'
      logging.warning('%s: its save or deletion was interrupted, and its remains are deleted; %s.', path, rest)

  # Rolling back.

  def roll_back(
    self, bad_steps: Sequence[int], data_offset: Callable[[int], int], skipped_updates: int = 0
  ) -> str | None:
    """Restores the newest checkpoint from before the trouble that has just ended, and deletes the later ones.

    It is older than the last bad step, and has no bad step between itself and the checkpoint before it, or before
    itself if it is the first. If there is no such checkpoint, the oldest one is restored.

    Args:
      bad_steps: the numbers of the bad steps (first step: 1), in order.
      data_offset: a function from the step of the checkpoint to the `data_offset` of the steps after it.
      skipped_updates: how many updates were skipped since the last rollback.

    Returns:
      The checkpoint's path; None if no checkpoint can be read, and nothing was done.

    Raises:
      CheckpointError: the disk fails. The present state of the run must not be saved.
    """
    self.sync()
    from_step = self._step_now()
    name = self._workers.from_chief('checkpoint to roll back to', lambda: self._choose_before(bad_steps))
    if name is None:
      return None
    path = os.path.join(self.directory, name)
    step = manifests.step_of(path)
    rollback = listing.Rollback(from_step, step, data_offset(step), skipped_updates)
    try:
      self.rollbacks.add(rollback, write=self._is_chief)
      if self._is_chief:
        self._delete_rolled_back()
      self.restore(path)
    except (errors.StorageError, *storage.FAILURES) as error:
      raise errors.CheckpointError(f'{path}: the run cannot go back to it: {error}') from error
    return path

  def _choose_before(self, bad_steps: Sequence[int]) -> str | None:
    sound = [path for path in self.checkpoints if manifests.find_damage(path) is None]
    steps = [-1, *map(manifests.step_of, sound)]
    for path, before, step in reversed(list(zip(sound, steps, steps[1:]))):
      if step < bad_steps[-1] and not any(before < bad <= step for bad in bad_steps):
        return os.path.basename(path)
    return os.path.basename(sound[0]) if sound else None

  def _is_rolled_back(self, path: str) -> bool:
    return listing.is_rolled_back(path, self.rollbacks)

  def _delete_rolled_back(self) -> None:
    for path in self.checkpoints:
      if self._is_rolled_back(path):
        manifests.remove(path)

  def restore(self, path: str) -> None:
    """Restores one checkpoint, all of it.

    Raises:
      UserError: its variables, or their shapes, differ from those here.
      CheckpointError: it is not the one that the chief restores.
    """
    self.sync()
    check_same_as_chief(path, self._workers)
    self._notes.check_held_out(path)
    self.restoring.restore(path)
    is_here = os.path.normpath(os.path.dirname(path)) == os.path.normpath(self.directory)
    self._held = manifests.step_of(path) if is_here else None
    if self._trains and self._is_chief:
      self._notes.report_other_data(path)
    if self._is_chief and not self._reported_code:
      self._reported_code = self._notes.report_other_code(path)

  def continuation(self, path: str) -> json_values.JsonObject:
    """The arguments of the trainer's `checkpoint_restored`, to continue from a checkpoint."""
    step = manifests.step_of(path)
    return {
      'keep_hyperparameters': self._notes.differ_in_constants(path),
      'data_offset': self.rollbacks.data_offset(step),
      'forget_skips': self.rollbacks.is_new_at(step, listing.num_rollbacks(path)),
    }

  def evaluation_is_pending(self, path: str) -> bool:
    """Whether the run was stopped before the evaluation of this checkpoint's step."""
    return bool(manifests.entries(path).get('evaluation_pending'))

  def num_replicas(self, path: str) -> int | None:
    """The number of replicas of the run that saved this checkpoint; None if it does not say."""
    return manifests.entries(path).get('num_replicas')

  def _report_damage(self, path: str, damage: str) -> None:
    if self._trains and self._is_chief:
      logging.error('%s is damaged: %s. It is set aside as %s.', path, damage, manifests.set_aside(path))
    else:
      logging.error('%s is damaged: %s. It is skipped.', path, damage)
