"""Weights & Biases: the parameters and metrics of a run, in files that `wandb sync` sends, or at once."""

from collections.abc import Mapping
import dataclasses
import os
from typing import Any, ClassVar
import uuid

from official.modeling.hyperparams import base_config
import tensorflow as tf

from official_ext.base import credentials
from official_ext.base import errors
from official_ext.base import optional_packages
from official_ext.base.files import paths
from official_ext.base.files import regular_files
from official_ext.base.files import storage
from official_ext.base.run_folder import event_names
from official_ext.base.run_folder import tracker_logs
from official_ext.base.run_folder import tracker_values
from official_ext.training.writers import background
from official_ext.training.writers import writer_registry
from official_ext.training.writers import writers


@dataclasses.dataclass
class WandbConfig(base_config.Config):
  """The destination of `trainer.writers: [wandb]`.

  Attributes:
    project: The project of Weights & Biases.
    entity: The user or team. Empty: the default one.
    run_name: Empty: the name of the run's folder.
    mode: 'offline' writes files that `wandb sync` sends; 'online' sends at once.
  """

  CHOICES: ClassVar[Mapping[str, tuple[Any, ...]]] = {'mode': ('offline', 'online')}
  project: str = 'official_ext'
  entity: str = ''
  run_name: str = ''
  mode: str = 'offline'

  def check_run(self, path: str, params: Any, mode: str | None) -> None:
    """See `config.checks.check`. A run must not stop in the middle to request a key."""
    if self.mode != 'online' or 'wandb' not in params.trainer.writers or mode is None or 'train' not in mode:
      return
    optional_packages.require('wandb', 'wandb', 'trainer.writers: wandb')
    import wandb  # pylint: disable=g-import-not-at-top

    if not wandb.login(prompt=False):
      raise errors.UserError(
        f'{path}.mode: online, and there is no key for Weights & Biases: run `wandb login`, set WANDB_API_KEY, or set '
        'it to offline'
      )


class WandbWriter(writers.Writer):
  """Logs to one W&B run, which a run that is started again continues.

  Its id is kept in the file wandb_run_id, in the run's folder. Metrics are 'train' values under their names and 'eval'
  values as `validation/<name>`, all of them over `global_step`. If a run rolls back to an earlier step, the steps in
  between are logged again.
  """

  def __init__(
    self,
    model_dir: str,
    params: Mapping[str, Any],
    project: str = 'official_ext',
    entity: str = '',
    run_name: str = '',
    mode: str = 'offline',
  ):
    """Initializes the writer; writes nothing yet.

    Args:
      model_dir: the run's folder, on this machine; files go to the folder wandb in it.
      params: the configuration, nested.
      project: W&B's project.
      entity: W&B's user or team; empty: the default one.
      run_name: empty: the name of `model_dir`.
      mode: 'offline' or 'online'.
    """
    self._folder = model_dir
    self._arguments = (project, entity, run_name or os.path.basename(os.path.abspath(model_dir)), params, mode)
    self._run: Any = None
    self._exit_code = 1  # The exit status of a run that does not end by itself.

  def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """See base class."""
    if self._run is None:
      self._run = tracker_logs.wandb_run(self._id(), self._folder, *self._arguments, resume='allow')
    if event in ('train', 'eval'):
      self._run.log(tracker_values.wandb_row(event, step, writers.flatten(values)))
    elif event == 'early_stopped':
      self._run.summary[event] = str(values.get('reason', ''))
    elif event in event_names.LAST_EVENTS:
      self._exit_code = tracker_values.wandb_exit_code(event)
      if 'error' in values:
        self._run.summary['error'] = str(values['error'])

  def close(self) -> None:
    """See base class."""
    if self._run is not None:
      self._run.finish(exit_code=self._exit_code)

  def _id(self) -> str:
    """The id of this run: the saved one, or a new one."""
    path = os.path.join(self._folder, tracker_values.WANDB_NOTE)
    if tf.io.gfile.exists(path):
      return paths.read(path, regular_files.MAX_RECORD).decode().strip()
    run_id = uuid.uuid4().hex[:12]
    storage.write(path, run_id + '\n')
    return run_id


def make(run: writer_registry.RunInfo) -> writers.Writer:
  """Makes the writer of `trainer.wandb`, if the run trains: an evaluation beside it would take over its W&B run."""
  if not run.trains:
    return writers.Writers([])
  config = run.params.trainer.wandb
  params = credentials.mask_values(run.params.as_dict())
  writer = WandbWriter(run.model_dir, params, config.project, config.entity, config.run_name, config.mode)
  return background.BackgroundWriter(writer)
