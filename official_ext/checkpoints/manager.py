"""Checkpoints that can be trusted: verified, asynchronous, and never the last one lost."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
from typing import Any

from absl import logging
import tensorflow as tf
import tf_keras

from official_ext import errors
from official_ext import tf_internals
from official_ext.checkpoints import averaged_weights
from official_ext.checkpoints import contents as contents_lib
from official_ext.checkpoints import listing
from official_ext.checkpoints import manifests
from official_ext.checkpoints import rollbacks as rollbacks_lib
from official_ext.data import identity
from official_ext.files import paths as paths_lib
from official_ext.files import readable_paths
from official_ext.files import storage
from official_ext.runtime import workers as workers_lib

_MAX_ATTEMPTS = 10  # Of an evaluation, to restore a checkpoint before the training beside it deletes that one.
# What an evaluation has no use for.
_OF_TRAINING = ('optimizer', 'step_state')


class CheckpointManager(tf.train.CheckpointManager):
  """Saves `ckpt-STEP` with a manifest, restores the newest that verifies: see base class.

  Saving is asynchronous if asked for: `save` copies the values and returns; a thread writes them, then the manifest,
  and only then deletes what is not to be kept. Whatever reads waits for a save in flight.
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
    init_fn: Callable[[], Any] | None = None,
    asynchronous: bool = False,
    trains: bool = True,
    is_chief: bool = True,
    workers: workers_lib.Workers | None = None,
    optimizer_config: Any = None,
    data_identity: Any = None,
    create_variables: Callable[[], bool] | None = None,
  ):
    """Makes a manager that has read nothing yet.

    Args:
      checkpoint: what is saved and restored.
      directory: where; on a file system that all workers see.
      max_to_keep: how many of the newest checkpoints are kept; None keeps all.
      keep_every: checkpoints at multiples of this step are kept beside them; 0 for none.
      step_counter: the step variable.
      checkpoint_interval: steps between checkpoints, for whoever asks.
      init_fn: called where there is nothing to restore.
      asynchronous: whether to write while training goes on.
      trains: whether the process that asks is the one that trains. Another renames nothing, and has no use for the
        optimizer's part of a checkpoint.
      is_chief: whether this worker's files are the ones that count. Others take part, in a folder that is thrown away.
      workers: all that train together, by default this process alone. They restore what the chief chooses.
      optimizer_config: what the optimizer was made from, as JSON values; every manifest notes it.
      data_identity: what tells the data, by the name of the input: see data/identity.py. Every manifest notes it, and a
        restore prints how it differs from what the checkpoint was trained on.
      create_variables: the trainer's, which lets a model that is built by its first call be built; False: it cannot.
    """
    self._keep_every = keep_every
    self._num_to_keep = max_to_keep
    self._asynchronous = asynchronous
    self._trains = trains
    self._is_chief = is_chief
    self._optimizer_config = optimizer_config
    self._data_identity = data_identity or {}
    self._create_variables = create_variables or (lambda: False)
    self._unproven: str | None = None  # A checkpoint of which variables that do not exist yet may be in need.
    self._workers = workers or workers_lib.Workers()
    self._held: int | None = None
    self._pending: str | None = None
    self._last = ''
    self._told: set[str] = set()
    self._extra: dict = {}
    self._error: BaseException | None = None
    self._lock = threading.Lock()
    self.rollbacks = rollbacks_lib.Rollbacks(directory)
    super().__init__(
      _rebuilt(checkpoint),
      # The base class trusts the file named `checkpoint`, and a crash leaves that empty. Manifests count here.
      directory=os.path.join(directory, 'no state file here'),
      max_to_keep=None,
      step_counter=step_counter,
      checkpoint_interval=checkpoint_interval,
      init_fn=init_fn,
    )
    self._step_counter = step_counter  # Which the base class keeps only together with an interval.
    self._directory = directory
    self._checkpoint_prefix = os.path.join(directory, 'ckpt')

  @property
  def checkpoints(self) -> list[str]:
    """Paths of the checkpoints with a manifest, oldest first."""
    return manifests.prefixes(self.directory)

  @property
  def latest_checkpoint(self) -> str | None:
    """Path of the newest one; None where there is none."""
    paths = self.checkpoints
    return paths[-1] if paths else None

  def holds(self, step: int) -> bool:
    """Whether the last checkpoint that this process saved here, or restored from here, is that of `step`."""
    return self._held == step

  @property
  def has_failed(self) -> bool:
    """Whether it is known by now that the save in flight has failed: `sync` will raise. Waits for nothing."""
    return self._error is not None or tf_internals.async_save_error(self.checkpoint) is not None

  # Saving.

  def save(self, checkpoint_number=None, check_interval=True, options=None, **extra: Any) -> str | None:
    """Saves `ckpt-<checkpoint_number>`.

    Args:
      checkpoint_number: the step; None reads the step counter.
      check_interval: whether to do nothing off the multiples of `checkpoint_interval`.
      options: taken for the base class's sake; what it sets is set here.
      **extra: further entries of the manifest.

    Returns:
      The path, where the files are or will be; None where nothing was to be saved.

    Raises:
      DivergedError: a weight is not finite.
      CheckpointError: this save, or the one before it, could not be written.
      ValueError: nothing says which step this is.
    """
    del options
    step = self._step_now() if checkpoint_number is None else int(checkpoint_number)
    if check_interval and self._checkpoint_interval and step % self._checkpoint_interval:
      return None
    self.sync()
    self._check_finite(step)
    prefix = os.path.join(self.directory if self._is_chief else tempfile.mkdtemp(), f'ckpt-{step}')
    self._pending = self._last = prefix
    self._extra = {
      'step': step,
      'time': time.time(),
      'num_rollbacks': len(self.rollbacks),
      'optimizer_config': self._optimizer_config,
      'data': self._data_identity,
      **averaged_weights.note(self.checkpoint),
      **extra,
    }
    write_options = tf.train.CheckpointOptions(
      experimental_enable_async_checkpoint=self._asynchronous,
      experimental_write_callbacks=[self._written],
    )
    try:
      self.checkpoint.write(prefix, options=write_options)
    except storage.FAILURES as error:
      raise self._save_error(error) from error
    if not self._asynchronous:
      self._raise_error()
    self._held = step
    return prefix

  def _step_now(self) -> int:
    if self._step_counter is None:
      raise ValueError('CheckpointManager: neither a checkpoint_number nor a step_counter says which step this is.')
    return int(self._step_counter.numpy())

  def _written(self, prefix: str) -> None:
    """Called when all files of a checkpoint are on disk, by the thread that wrote them."""
    try:
      if not self._is_chief:
        shutil.rmtree(os.path.dirname(prefix), ignore_errors=True)
        return
      manifests.write(prefix, **self._extra)
      self._tidy(prefix)
    except Exception as error:  # It belongs to the thread that trains.
      with self._lock:
        self._error = error
    finally:
      self._pending = None

  def _tidy(self, saved: str) -> None:
    """Deletes what is not to be kept any longer. The checkpoint counts whatever becomes of this."""
    try:
      self._prune(saved)
    except storage.FAILURES as error:
      self._tell_once(f'{self.directory}: checkpoints that are not to be kept cannot be deleted', error)
    try:
      tf_internals.update_checkpoint_state(  # For tools that look for the file named `checkpoint`.
        self.directory, model_checkpoint_path=saved, all_model_checkpoint_paths=self.checkpoints
      )
    except storage.FAILURES as error:
      self._tell_once(f'{self.directory}/checkpoint: cannot be written', error)

  def _tell_once(self, what: str, error: BaseException) -> None:
    if what not in self._told:
      self._told.add(what)
      logging.error('%s: %s', what, storage.reason_of(error))

  def _prune(self, saved: str):
    if self._num_to_keep is None:
      return
    for prefix in self.checkpoints[: -self._num_to_keep]:
      # What was just saved stays, whatever is there with a higher number.
      if prefix != saved and not (self._keep_every and manifests.step_of(prefix) % self._keep_every == 0):
        manifests.remove(prefix)

  def _check_finite(self, step: int) -> None:
    for variable in getattr(getattr(self.checkpoint, 'model', None), 'variables', ()):
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
      super().sync()
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
    """The error of the save that was begun last. What it has left is deleted: a full disk is not to be fuller."""
    prefix, self._pending, self._held = self._last, None, None
    if self._is_chief:
      manifests.remove_partial(prefix)
    else:
      shutil.rmtree(os.path.dirname(prefix), ignore_errors=True)
    self._last, newest = '', self.latest_checkpoint
    which = f'the newest checkpoint is {os.path.basename(newest)}' if newest else 'there is no checkpoint before it'
    failure = errors.CheckpointError(f'{prefix}: could not be saved: {storage.reason_of(error)}; {which}')
    failure.path = prefix
    return failure

  # Restoring.

  def restore_or_initialize(self) -> str | None:
    """Restores the newest checkpoint that verifies; sets aside those that do not, and says so.

    Returns:
      Its path; None where the folder holds no checkpoint, and `init_fn` was called.

    Raises:
      CheckpointError: there are checkpoints, and none of them can be read.
      UserError: the checkpoint and the model differ.
    """
    self.sync()
    for attempt in range(_MAX_ATTEMPTS):
      name = self._workers.from_chief('checkpoint', self._choose)
      if name is None:
        if self._init_fn is not None:
          self._init_fn()
        return None
      prefix = os.path.join(self.directory, name)
      gone = self._restore_unless_gone(prefix, is_last=attempt == _MAX_ATTEMPTS - 1)
      if not self._workers.any('checkpoint gone', gone):
        return prefix
    return None

  def _restore_unless_gone(self, prefix: str, is_last: bool) -> bool:
    """Restores a checkpoint. Returns whether the training beside this process has deleted it meanwhile."""
    try:
      self.restore(prefix)
      return False
    except Exception as error:  # TensorFlow raises whatever its reader stumbled over.
      if self._trains or is_last or not self._is_gone(prefix):
        raise
      logging.warning('%s was deleted while it was being restored (%s): the next newest is taken.', prefix, error)
      return True

  def _is_gone(self, prefix: str) -> bool:
    """Whether a checkpoint has been deleted, which begins with its manifest, where there are others."""
    return not tf.io.gfile.exists(prefix + manifests.SUFFIX) and bool(self.checkpoints)

  def _choose(self) -> str | None:
    """The name of the newest checkpoint that verifies; None where there is none to choose from."""
    if self._trains and self._is_chief:
      manifests.remove_unfinished(self.directory)
      self._delete_rolled_back()
    for _ in range(_MAX_ATTEMPTS):
      with_manifest = [prefix for prefix in self.checkpoints if not self._is_rolled_back(prefix)]
      without = [] if with_manifest else list(reversed(manifests.saved_prefixes(self.directory)))
      for prefix in [*reversed(with_manifest), *without]:
        damage = manifests.find_unreadable(prefix)
        if damage is None:
          return os.path.basename(prefix)
        if self._trains or not self._is_gone(prefix):
          self._report_damage(prefix, damage)
      # A training beside this process deletes what it has replaced: what it has saved since is looked for.
      if self._trains or not set(self.checkpoints) - set(with_manifest):
        break
    broken = paths_lib.matching(self.directory, r'ckpt-.*\.broken.*')
    if with_manifest or without or broken:
      raise errors.CheckpointError(
        f'{self.directory}: no checkpoint in it can be read. To start again from step 0, move its ckpt-* files away'
      )
    return None

  # Rolling back.

  def roll_back(
    self, bad_steps: Sequence[int], data_offset: Callable[[int], int], skipped_updates: int = 0
  ) -> str | None:
    """Restores the newest checkpoint from before the trouble that has just ended, and leaves behind what came after it.

    That is one that is older than the last bad step, and before which nothing bad has happened since the checkpoint
    before it, or ever. Where there is none, it is the oldest.

    Args:
      bad_steps: their numbers (first step: 1), in order.
      data_offset: from the step of the checkpoint to how many updates further than its number a step will find its
        batches from there on.
      skipped_updates: how many updates were skipped since the last rollback.

    Returns:
      The checkpoint's path; None where no checkpoint can be read, and nothing was done.

    Raises:
      CheckpointError: a disk that fails. What the run has come to is not to be saved.
    """
    self.sync()
    from_step = self._step_now()
    name = self._workers.from_chief('checkpoint to go back to', lambda: self._choose_before(bad_steps))
    if name is None:
      return None
    prefix = os.path.join(self.directory, name)
    step = manifests.step_of(prefix)
    rollback = rollbacks_lib.Rollback(from_step, step, data_offset(step), skipped_updates)
    try:
      self.rollbacks.add(rollback, write=self._is_chief)
      if self._is_chief:
        self._delete_rolled_back()
      self.restore(prefix)
    except (errors.StorageError, *storage.FAILURES) as error:
      raise errors.CheckpointError(f'{prefix}: the run cannot go back to it: {error}') from error
    return prefix

  def _choose_before(self, bad_steps: Sequence[int]) -> str | None:
    sound = [prefix for prefix in self.checkpoints if manifests.find_damage(prefix) is None]
    steps = [-1, *map(manifests.step_of, sound)]
    for prefix, before, step in reversed(list(zip(sound, steps, steps[1:]))):
      if step < bad_steps[-1] and not any(before < bad <= step for bad in bad_steps):
        return os.path.basename(prefix)
    return os.path.basename(sound[0]) if sound else None

  def _is_rolled_back(self, prefix: str) -> bool:
    return listing.is_rolled_back(prefix, self.rollbacks)

  def _delete_rolled_back(self) -> None:
    for prefix in self.checkpoints:
      if self._is_rolled_back(prefix):
        manifests.remove(prefix)

  def restore(self, prefix: str) -> None:
    """Restores one checkpoint, all of it.

    Raises:
      UserError: it holds other variables than there are here, or others of their shapes.
      CheckpointError: it is not the one that the chief restores.
    """
    self.sync()
    self._check_same_as_chief(prefix)
    contents = contents_lib.Contents(prefix)
    leave_out = () if self._trains else _OF_TRAINING
    match, self._unproven = contents.match(self.checkpoint, leave_out), None
    if match.may_fit_later and not self._is_built():
      all_made = self._create_variables()
      match = contents.match(self.checkpoint, leave_out)
      self._unproven = prefix if match.may_fit_later and not all_made else None
    if self._unproven is None:
      match.check(prefix)
    children = dict(tf.train.TrackableView.children(self.checkpoint))
    readable = tf.train.Checkpoint(**{name: child for name, child in children.items() if name not in leave_out})
    # What is missing was named above; the rest is for variables that are made later.
    readable.read(readable_paths.readable(prefix)).expect_partial()
    averaged_weights.put_back(self.checkpoint, prefix, contents, optimizer_is_read=self._trains)
    is_here = os.path.normpath(os.path.dirname(prefix)) == os.path.normpath(self.directory)
    self._held = manifests.step_of(prefix) if is_here else None
    self._report_data(prefix)

  def _check_same_as_chief(self, prefix: str) -> None:
    here = [os.path.basename(prefix), manifests.fingerprint(prefix)]
    name, fingerprint = self._workers.from_chief('restored checkpoint', lambda: here)
    if [name, fingerprint] == here:
      return
    what = f'worker 0 restores {name}' if name != here[0] else 'it is not the one that worker 0 restores'
    if not tf.io.gfile.exists(f'{prefix}.index'):
      what = 'worker 0 restores this checkpoint, and it is not here'
    raise errors.CheckpointError(
      f'{prefix}: {what}. All workers need the same model_dir, on a file system that they share'
    )

  def _report_data(self, prefix: str) -> None:
    """Prints how the data differ from those that a checkpoint's run had, a line for each difference."""
    before = _read_manifest(prefix).get('data') or {}
    lines = [
      line
      for name in self._data_identity
      if name in before
      for line in identity.differences(f'task.{name}', before[name], self._data_identity[name])
    ]
    if lines and self._trains and self._is_chief:
      print(f'{prefix}: other data than before:', flush=True)
      for line in lines:
        print(f'  {line}', flush=True)

  def continuation(self, prefix: str) -> dict[str, Any]:
    """What the trainer has to know to go on from a checkpoint: the arguments of its `checkpoint_restored`."""
    manifest, step = _read_manifest(prefix), manifests.step_of(prefix)
    saved = manifest.get('optimizer_config')
    return {
      'keep_hyperparameters': saved is not None and _constants(saved) != _constants(self._optimizer_config),
      'data_offset': self.rollbacks.data_offset(step),
      'forget_skips': self.rollbacks.is_new_at(step, manifest.get('num_rollbacks', 0)),
    }

  def evaluation_is_pending(self, prefix: str) -> bool:
    """Whether the run was stopped in front of the evaluation that belongs to this checkpoint's step."""
    return bool(_read_manifest(prefix).get('evaluation_pending'))

  def num_replicas(self, prefix: str) -> int | None:
    """How many replicas the run had that saved this checkpoint; None where it does not say."""
    return _read_manifest(prefix).get('num_replicas')

  def num_rollbacks(self, prefix: str) -> int:
    """How many rollbacks there had been when this checkpoint was saved."""
    return listing.num_rollbacks(prefix)

  def _is_built(self) -> bool:
    """Whether the model is known to make no variables any more."""
    model = getattr(self.checkpoint, 'model', None)
    if not isinstance(model, tf_keras.layers.Layer):
      return model is None
    layers = [module for module in model.submodules if isinstance(module, tf_keras.layers.Layer)]
    return model.built and all(layer.built for layer in layers)

  @contextlib.contextmanager
  def completing(self) -> Iterator[None]:
    """Around steps that may make variables. At its end a restore from before is complete, or an error.

    Raises:
      UserError: the restored checkpoint holds other variables than there are now, or others of their shapes.
    """
    prefix = self._unproven
    try:
      yield
    except ValueError as error:
      if prefix is None or isinstance(error, errors.UserError):
        raise
      # TensorFlow gives a variable that is made after the restore the shape that it has in the file.
      raise errors.UserError(
        f'{prefix}: not a checkpoint of this model, or the first step has an error of its own: '
        f'{" ".join(str(error).split())[:300]}'
      ) from error
    if prefix is not None:
      self._unproven = None
      leave_out = () if self._trains else _OF_TRAINING
      contents_lib.Contents(prefix).match(self.checkpoint, leave_out).check(prefix)

  def _report_damage(self, prefix: str, damage: str) -> None:
    if self._trains and self._is_chief:
      logging.error('%s is damaged: %s. It is set aside as %s.', prefix, damage, manifests.set_aside(prefix))
    else:
      logging.error('%s is damaged: %s. It is left out.', prefix, damage)


def _constants(optimizer_config: Any) -> Any:
  """What an optimizer's constants come from: groups of variables have none."""
  config = json.loads(json.dumps(optimizer_config))
  return {k: v for k, v in config.items() if k != 'parameter_groups'} if isinstance(config, dict) else config


def _read_manifest(prefix: str) -> dict[str, Any]:
  """The entries of a manifest; none where it is missing or damaged."""
  try:
    return manifests.read(prefix)
  except (ValueError, tf.errors.OpError):
    return {}


def _rebuilt(checkpoint: tf.train.Checkpoint) -> tf.train.Checkpoint:
  """The same checkpoint, all of its parts given to the constructor.

  An asynchronous save copies only those: what was attached later would be left out without a word.
  """
  children = dict(tf.train.TrackableView.children(checkpoint))
  children.pop('save_counter', None)
  return tf.train.Checkpoint(**children)


def check_available(model_dir: str, mode: str, checkpoint: str | None) -> None:
  """Refuses to evaluate without a checkpoint.

  Args:
    model_dir: the run's folder.
    mode: the driver's mode.
    checkpoint: path of a checkpoint, or None for the newest in `model_dir`.

  Raises:
    UserError: there is no such checkpoint, or it is damaged.
  """
  if checkpoint is not None:
    if not tf.io.gfile.exists(f'{checkpoint}.index'):
      raise errors.UserError(f'--checkpoint={checkpoint}: no such checkpoint; a path such as {model_dir}/ckpt-100')
    damage = manifests.find_unreadable(checkpoint)
    if damage is not None:
      raise errors.UserError(f'--checkpoint={checkpoint}: it is damaged: {damage}')
  elif mode == 'eval' and not manifests.saved_prefixes(model_dir):
    raise errors.UserError(
      f'--mode=eval: there is no checkpoint in {model_dir}; train first, or name one with --checkpoint'
    )
