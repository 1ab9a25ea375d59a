"""Makes the writers of a run, according to the configuration and the mode."""

import os

from absl import logging

from official_ext.training.writers import events_writer
from official_ext.training.writers import named_writers
from official_ext.training.writers import notifications
from official_ext.training.writers import progress
from official_ext.training.writers import tensorboard
from official_ext.training.writers import writer_registry
from official_ext.training.writers import writers as writers_lib


def make_writers(
  run_info: writer_registry.RunInfo, summaries: tensorboard.TensorBoardWriter | None, is_chief: bool
) -> writers_lib.Writer:
  """Makes the writers of a run: events.jsonl, progress, those that the configuration names. Only for the chief.

  A mode that does not train writes `events.{mode}.jsonl`: it may run beside a training in the same folder.
  """
  if not is_chief:
    return writers_lib.Writers([])
  trainer, model_dir = run_info.params.trainer, run_info.model_dir
  name = 'events.jsonl' if run_info.trains else f'events.{run_info.mode}.jsonl'
  writers: list[writers_lib.Writer] = [events_writer.EventsWriter(os.path.join(model_dir, name))]
  writers.append(progress.ProgressWriter(trainer.train_steps if run_info.trains else 0, bar=trainer.progress_bar))
  if summaries is not None:
    writers.append(summaries)
  for name in trainer.writers:
    if name != 'tensorboard':
      try:
        writers.append(named_writers.make(name, run_info))
      except Exception as error:  # pylint: disable=broad-except  # As for one that fails later.
        logging.exception('The writer %s cannot be made; the run continues without it: %s', name, error)
  if trainer.notifications.urls:
    writers.append(notifications.make(trainer.notifications, model_dir))
  return writers_lib.Writers(writers)
