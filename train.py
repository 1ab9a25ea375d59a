"""The driver: flags -> params -> strategy -> task -> run_experiment -> gin."""

import official_ext  # noqa: F401  # First: it selects the Keras that Model Garden is written for.

# isort: split
from absl import app
from absl import flags

from official_ext.base.files import paths
from official_ext.cli import configuring
from official_ext.cli import exit_status
from official_ext.cli import export
from official_ext.cli import flags as ext_flags
from official_ext.cli import output
from official_ext.training.devices import preemption
from official_ext.training.diagnosis import debugging
from official_ext.training.diagnosis import dry_run
from official_ext.training.loop import run_record
from official_ext.training.loop import train_lib
from official_ext.training.writers import progress
from official_ext.training.writers import writers

FLAGS = flags.FLAGS


def main(_) -> None:
  """Runs one experiment in one mode, its --dry_run or --debug; a signal from here on lets it save first."""
  if FLAGS.dry_run or FLAGS.debug or FLAGS.mode == 'export':
    with preemption.interrupting():  # There is nothing to save.
      _run_without_training()
    return
  with preemption.PreemptionWatch() as watch:
    params = configuring.configuration()
    mode, model_dir = FLAGS.mode, paths.absolute(FLAGS.model_dir)  # A task may change the current folder.
    run_record.check_writable(model_dir)
    strategy, task = configuring.strategy_and_task(params, model_dir)
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
  params = configuring.configuration()
  if FLAGS.dry_run:
    dry_run.run(params)
  elif FLAGS.debug:
    debugging.run(params, FLAGS.model_dir, FLAGS.checkpoint, FLAGS.debug_step)
  else:
    model_dir = paths.absolute(FLAGS.model_dir)
    run_record.check_writable(model_dir)
    export.export_run(params, model_dir, FLAGS.checkpoint)


if __name__ == '__main__':
  output.outlive_readers()
  ext_flags.define_flags()
  app.run(lambda argv: exit_status.end_process(exit_status.run_main(main, argv)), flags_parser=ext_flags.parse_flags)
