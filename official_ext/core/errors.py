"""What can end a run, and the exit status that tells it."""


class UserError(ValueError):
  """A mistake in the command line, the configuration or the files that it names.

  The message is one line: the dotted path, file or flag, what is wrong with it, what to do. The driver prints it as
  `error: <message>`, without a traceback, and exits with status 2.
  """

  exit_status = 2


class CheckpointError(RuntimeError):
  """A checkpoint could not be saved, or there are some and none can be used.

  Attributes:
    prefix: path of the checkpoint that could not be saved.
  """

  exit_status = 1
  prefix = ''


class StorageError(RuntimeError):
  """A file that a run cannot do without could not be written: the disk is full, or gone. The message names it."""

  exit_status = 1


class WorkerError(RuntimeError):
  """Another worker of the run was lost, or did not come: start all of them again."""

  exit_status = 1


class DivergedError(RuntimeError):
  """Training met more non-finite steps than `trainer.nonfinite` allows."""

  exit_status = 3
  status = 'diverged'


class HungError(RuntimeError):
  """Nothing has moved for `runtime.hang_seconds`: the same command goes on from the newest checkpoint."""

  exit_status = 75
  status = 'hung'


class EvaluationInterruptedError(Exception):
  """An evaluation was left because the run was asked to stop."""


class PreemptedError(Exception):
  """The run was asked to stop, and has saved: the same command goes on from there."""

  exit_status = 75
  status = 'preempted'


class StopTraining(Exception):  # noqa: N818  # Nothing is wrong.
  """Raised by an action: training has reached its goal, saves, and counts as finished. The message says why."""
