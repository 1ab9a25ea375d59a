"""The driver: flags -> params -> strategy -> task -> run_experiment -> gin.

`official-ext train FLAGS`, `python -m official_ext.cli.train FLAGS` and `python train.py FLAGS` of a checkout run it.
"""

from collections.abc import Callable, Sequence
import functools
import sys

from absl import app
from absl import flags

from official_ext.base import package_imports

with package_imports.without_gc():
  from official_ext.base.files import paths
  from official_ext.cli import exit_status
  from official_ext.cli import export
  from official_ext.cli import flags as ext_flags
  from official_ext.cli import output
  from official_ext.training.devices import cluster
  from official_ext.training.devices import signals
  from official_ext.training.diagnosis import dry_run
  from official_ext.training.diagnosis import finite_checks
  from official_ext.training.loop import train_lib
  from official_ext.training.record import run_record
  from official_ext.training.writers import progress
  from official_ext.training.writers import writers

FLAGS = flags.FLAGS

_HELP = """Usage: official-ext train --experiment=NAME --mode=MODE --model_dir=FOLDER [FLAGS]

Trains, evaluates or exports an experiment."""


def main(_) -> None:
  """Runs one experiment in one mode, its --dry_run or --debug; a signal from here on lets it save first."""
  if FLAGS.dry_run or FLAGS.debug or FLAGS.mode == 'export':
    with signals.interrupting():  # There is nothing to save.
      _run_without_training()
    return
  with signals.PreemptionWatch() as watch:
    params = ext_flags.configuration()
    mode, model_dir = FLAGS.mode, paths.absolute(FLAGS.model_dir)  # A task may change the current folder.
    cluster.check_mode(mode)
    run_record.check_writable(model_dir)
    strategy, task = ext_flags.strategy_and_task(params, model_dir)
    with exit_status.saving_gin_config(mode, model_dir, strategy):
      options = train_lib.RunOptions(
        checkpoint=FLAGS.checkpoint,
        branch=FLAGS.branch,
        watch=watch,
        profile_steps=ext_flags.profile_steps(),
        origin=ext_flags.origin(params),
      )
      _, logs = train_lib.run_experiment(strategy, task, mode, params, model_dir, options=options)
    if logs:
      print('  '.join(['Final metrics:', *progress.format_values(writers.flatten(logs))]), flush=True)


def _run_without_training() -> None:
  params = ext_flags.configuration()
  if FLAGS.dry_run:
    dry_run.run(params)
  elif FLAGS.debug:
    finite_checks.debug_step(params, FLAGS.model_dir, FLAGS.checkpoint, FLAGS.debug_step)
  else:
    model_dir = paths.absolute(FLAGS.model_dir)
    run_record.check_writable(model_dir)
    export.export_run(params, model_dir, FLAGS.checkpoint)


def run_main(main: Callable[[Sequence[str]], object], argv: Sequence[str], ends_process: bool = False) -> int:
  """Runs `main`, and turns its end into an exit status: 0, or the status of `exit_status.report`.

  Args:
    main: the program.
    argv: its arguments.
    ends_process: whether to end the process with that status.

  Returns:
    The exit status.
  """
  status, held = 0, []
  try:
    main(argv)
  except BaseException as error:  # pylint: disable=broad-except  # Anything may be in a task.
    status = exit_status.report(error)
    held.append(error)
  if ends_process:
    exit_status.end_process(status, held)
  return status


def run(arguments: Sequence[str] | None = None) -> None:
  """Runs the driver to the end of the process, whose exit status exit_status.py defines.

  Args:
    arguments: the flags; None: the process's.
  """
  output.outlive_readers()
  ext_flags.define_flags()
  argv = None if arguments is None else [sys.argv[0], *arguments]
  app.run(functools.partial(run_main, main, ends_process=True), argv=argv, flags_parser=ext_flags.parse_flags)


def run_command(arguments: Sequence[str]) -> None:
  """Runs `official-ext train ARGUMENTS`, which finds modules of the current folder first."""
  ext_flags.define_for_command()
  sys.modules['__main__'].__doc__ = _HELP  # absl begins the help with it.
  run(arguments)


if __name__ == '__main__':
  run()
