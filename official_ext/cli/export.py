"""official-ext export: the model of a run as a SavedModel, or, with --to, its values in a tracker."""

import os

from official_ext.cli import arguments as arguments_lib
from official_ext.training.devices import preemption


def _parser() -> arguments_lib.Parser:
  found = arguments_lib.Parser(
    'official-ext export',
    'Writes the model of a run as a SavedModel, and prints its signature. docs/use_a_model.md explains '
    'the inputs and outputs; official_ext.load does the same in Python.\n\n'
    'export RUN --to=mlflow|wandb|csv fills in a tracker from the files of the run instead: see `runs export`.',
  )
  found.add_argument('model_dir', metavar='RUN', help='the folder of the run')
  found.add_argument('--output_dir', metavar='DIR', help='a folder that does not exist yet; default: RUN/export/STEP')
  arguments_lib.add_run_arguments(found)
  return found


def run(arguments: list[str]) -> None:
  """Runs `official-ext export ARGUMENTS`."""
  if any(argument == '--to' or argument.startswith('--to=') for argument in arguments):
    from official_ext.cli import runs  # pylint: disable=g-import-not-at-top

    runs.run(['export', *arguments])
    return
  known = _parser().parse_args(arguments)
  from official_ext.cli import flags  # pylint: disable=g-import-not-at-top  # TensorFlow, as the next.

  flags.define_for_command()
  with preemption.interrupting():
    from official_ext.cli import trained_runs  # pylint: disable=g-import-not-at-top

    model_dir = os.path.expanduser(known.model_dir)
    params = trained_runs.read_params(model_dir, known.experiment, known.registry)
    trained_runs.export_run(params, model_dir, known.which, known.ema == 'true', known.output_dir)
