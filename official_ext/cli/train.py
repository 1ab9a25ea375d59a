"""The driver: flags -> params -> strategy -> task -> run_experiment -> gin.

`official-ext train FLAGS`, `python -m official_ext.cli.train FLAGS` and `python train.py FLAGS` of a checkout run it.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import os
import signal
import sys
import types
from typing import Any

from absl import app
from absl import flags

from official_ext.base import package_imports

with package_imports.without_gc():
  from official_ext.base import config_text
  from official_ext.base import errors
  from official_ext.base import json_values
  from official_ext.base import tf_internals
  from official_ext.base import tracebacks
  from official_ext.base.files import paths
  from official_ext.base.run_folder import model_folders
  from official_ext.base.run_folder import run_log
  from official_ext.base.run_folder import run_status
  from official_ext.cli import exit_status
  from official_ext.cli import experiments
  from official_ext.cli import export
  from official_ext.cli import flags as ext_flags
  from official_ext.cli import json_output
  from official_ext.cli import output
  from official_ext.cli import train_help
  from official_ext.training.config import definitions
  from official_ext.training.config import parser
  from official_ext.training.config import registries
  from official_ext.training.devices import cluster
  from official_ext.training.devices import distribute
  from official_ext.training.devices import hang_watch
  from official_ext.training.devices import signals
  from official_ext.training.diagnosis import finite_checks
  from official_ext.training.loop import train_lib
  from official_ext.training.record import run_record
  from official_ext.training.writers import progress
  from official_ext.training.writers import writers

FLAGS = flags.FLAGS


def main(_) -> None:
  """Runs one experiment in one mode, its --dry_run or --debug; a signal from here on lets it save first."""
  if FLAGS.dry_run or FLAGS.debug or FLAGS.mode == 'export':
    with signals.interrupting():  # There is nothing to save.
      _run_without_training()
    return
  hang_watch.print_last = json_output.print_hang if FLAGS.json else hang_watch.print_nothing
  with signals.PreemptionWatch() as watch:
    params = ext_flags.configuration()
    mode, model_dir = FLAGS.mode, paths.absolute(FLAGS.model_dir)  # A task may change the current folder.
    cluster.check_mode(mode)
    run_record.check_writable(model_dir)
    options = train_lib.RunOptions(
      checkpoint=FLAGS.checkpoint,
      branch=FLAGS.branch,
      watch=watch,
      profile_steps=ext_flags.profile_steps(),
      origin=ext_flags.origin(params, FLAGS.experiment, FLAGS.registry or ()),
    )
    logs = _run(params, mode, model_dir, options)
    if FLAGS.json:
      json_output.print_document(_document(FLAGS.experiment, mode, model_dir, logs))
    elif logs:
      print('  '.join(['Final metrics:', *progress.format_values(writers.flatten(logs))]), flush=True)


def _document(experiment: str, mode: str, model_dir: str, logs: Mapping[str, Any] | None) -> json_values.JsonObject:
  """The result of a run for a program, without arrays such as images. `step` is None if the run has no record."""
  record = run_status.read(model_dir, mode) or run_status.read(model_dir) or {}
  return {
    'experiment': experiment,
    'mode': mode,
    'model_dir': model_dir,
    'step': record.get('step'),
    'metrics': {
      name: value for name, value in writers.flatten(logs or {}).items() if isinstance(value, (int, float, str))
    },
  }


def _run(
  params: definitions.ExperimentConfig, mode: str, model_dir: str, options: train_lib.RunOptions
) -> Mapping[str, Any]:
  """Sets up the devices, makes the task, and runs it. Returns the logs of the last evaluation."""
  params = distribute.with_precision(params, model_dir)
  strategy, task = ext_flags.strategy_and_task(params, model_dir)
  with exit_status.saving_gin_config(mode, model_dir, strategy):
    return train_lib.run_experiment(strategy, task, mode, params, model_dir, options=options)[1]


def train(
  experiment: str,
  model_dir: str,
  *,
  mode: str = 'train_and_eval',
  checkpoint: str | None = None,
  config_file: Sequence[str] = (),
  registry: Sequence[str] = (),
  **settings: Any,
) -> dict[str, Any]:
  """Trains an experiment in this process, as train.py does: with its seeds, records, checks and exact resume.

  It sets up devices, seeds and the precision of the whole process; a notebook may call it again. An interrupt (Ctrl-C,
  *Stop* of a notebook) lets it save first.

  Args:
    experiment: the name of a registered experiment.
    model_dir: the run's folder. An existing run resumes.
    mode: 'train', 'train_and_eval', 'eval', 'continuous_eval' or 'train_and_post_eval'.
    checkpoint: the path of another checkpoint to start from, or to evaluate.
    config_file: files with fields to change.
    registry: further modules to import, which register experiments.
    **settings: fields to change: short name -> value; dotted paths as `**{'task.model.hidden_sizes': [64]}`.

  Returns:
    The metrics of the last evaluation: name -> number, levels of nested ones joined by `/`; {} if the mode has none.

  Raises:
    UserError: the configuration cannot be run; nothing was written.
    DivergedError: too many updates were not finite.
    PreemptedError: it was interrupted, and has saved.

  Example:

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> logs = ext.train('digits_mlp', folder, train_steps=20, steps_per_loop=20, **{'runtime.enable_xla': False})
    Devices: ...
    finished 20/20
    >>> sorted(logs), sorted(ext.evaluate(folder))[0]
    Devices: ...
    (['accuracy', 'validation_loss'], 'accuracy')
  """
  tracebacks.shorten_uncaught()
  ext_flags.set_verbosity()
  registries.import_experiments(list(registry), experiment)
  model_dir = paths.absolute(model_dir)
  flags_like = types.SimpleNamespace(
    experiment=experiment,
    mode=mode,
    model_dir=model_dir,
    checkpoint=checkpoint,
    config_file=list(config_file),
    set=[f'{name}={config_text.setting_text(value)}' for name, value in settings.items()],
  )
  with run_log.copying(), signals.PreemptionWatch() as watch:
    params = parser.parse_configuration(flags_like)
    cluster.check_mode(mode)
    run_record.check_writable(model_dir)
    origin = ext_flags.origin(params, experiment, registry)
    options = train_lib.RunOptions(checkpoint=checkpoint, watch=watch, origin=origin)
    with tf_internals.layer_names_from_start():  # Of the cells before, none changes a name in the checkpoint.
      return writers.flatten(_run(params, mode, model_dir, options))


def evaluate(model_dir: str, *, checkpoint: str | None = None, registry: Sequence[str] = ()) -> dict[str, Any]:
  """Evaluates a run on its validation data, as `--mode=eval` does: see `ext.train`.

  Args:
    model_dir: the run's folder.
    checkpoint: the path of the checkpoint to evaluate; None: the newest.
    registry: further modules to import, which register experiments.

  Returns:
    The metrics by name.

  Raises:
    UserError: the folder has no run, or no checkpoint.

  Example:

    >>> ext.evaluate('runs/none')
    Traceback (most recent call last):
      ...
    official_ext.base.errors.UserError: ...runs/none: no run with params.yaml and run.json; name the folder of a run
  """
  model_dir = paths.absolute(model_dir)
  run = run_status.read(model_dir)
  params = os.path.join(model_dir, model_folders.RUN_FILE)
  if run is None or not run.get('experiment') or not paths.is_file(params):
    raise errors.UserError(f'{model_dir}: no run with params.yaml and run.json; name the folder of a run')
  modules = [*(run.get('registry') or ()), *registry]
  return train(run['experiment'], model_dir, mode='eval', checkpoint=checkpoint, config_file=[params], registry=modules)


def _run_without_training() -> None:
  params = distribute.with_precision(ext_flags.configuration(), FLAGS.model_dir)
  if FLAGS.dry_run:
    experiments.check(params, FLAGS.experiment, FLAGS.json)
  elif FLAGS.debug:
    finite_checks.debug_step(params, FLAGS.model_dir, FLAGS.checkpoint, FLAGS.debug_step)
  else:
    model_dir = paths.absolute(FLAGS.model_dir)
    run_record.check_writable(model_dir)
    found = export.export_run(params, model_dir, FLAGS.checkpoint)
    if FLAGS.json:
      json_output.print_document(found.as_dict())


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
  with run_log.copying():
    try:
      main(argv)
    except BaseException as error:  # pylint: disable=broad-except  # Anything may be in a task.
      as_json = 'json' in FLAGS and FLAGS['json'].value  # Flags may not be parsed yet.
      status = json_output.report(exit_status.report, error) if as_json else exit_status.report(error)
      held.append(error)
  if ends_process:
    exit_status.end_process(status, held)
  return status


def run(arguments: Sequence[str] | None = None) -> None:
  """Runs the driver to the end of the process, whose exit status exit_status.py defines.

  Args:
    arguments: the flags; None: the process's.
  """
  words = sys.argv[1:] if arguments is None else list(arguments)
  if train_help.is_wanted(words):
    train_help.print_help(os.path.basename(sys.argv[0]) if arguments is None else 'official-ext train')
    return
  if train_help.FULL in words:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # A reader may close the pipe early, as of any command's help.
  output.outlive_readers()
  ext_flags.define_flags()
  argv = None if arguments is None else [sys.argv[0], *arguments]
  if json_output.is_wanted(argv or sys.argv):
    json_output.divert()
  app.run(functools.partial(run_main, main, ends_process=True), argv=argv, flags_parser=ext_flags.parse_flags)


def run_command(arguments: Sequence[str]) -> None:
  """Runs `official-ext train ARGUMENTS`, which finds modules of the current folder first."""
  ext_flags.define_for_command()
  run(arguments)


if __name__ == '__main__':
  run()
