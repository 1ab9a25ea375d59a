"""Checks points of a sweep as the driver would: python -m official_ext.cli.sweep_check < POINTS

One process imports TensorFlow and the experiments once, for all of them. Standard input is a JSON object: `flags`, the
flags of the driver, and `points`, a list with the further flags of each. The mistakes are printed, one a line.
"""

import official_ext  # noqa: F401  # First: it selects the Keras that Model Garden is written for.
from official_ext.base import json_values
from official_ext.training.config import registries

# isort: split
from collections.abc import Sequence
import json
import sys

from absl import flags as absl_flags

from official_ext.base import errors
from official_ext.cli import flags as ext_flags
from official_ext.training.config import parser

FLAGS = absl_flags.FLAGS


def mistakes_in(flags: Sequence[str], points: Sequence[Sequence[str]]) -> list[str]:
  """The mistakes in the configurations of some points; each once."""
  ext_flags.define_for_command()
  ext_flags.parse(['train.py', *flags])
  registries.import_experiments(FLAGS.registry, FLAGS.experiment)
  if FLAGS.gin_file or FLAGS.gin_params:
    parser.parse_gin(FLAGS.gin_file, FLAGS.gin_params)
  common = list(FLAGS.set or ())
  found: dict[str, None] = {}
  for point in points:
    FLAGS['set'].value = [*common, *(flag.removeprefix('--set=') for flag in point)]
    try:
      parser.parse_configuration(FLAGS, print_return=False)
    except errors.UserError as error:
      found.update(dict.fromkeys(errors.lines_of(error)))
  return list(found)


def main() -> int:
  """Reads points, and prints their errors."""
  request: json_values.JsonObject = json.load(sys.stdin)
  try:
    lines = mistakes_in(request['flags'], request['points'])
  except errors.UserError as error:
    lines = list(errors.lines_of(error))
  for line in lines:
    print(line)
  return errors.UserError.exit_status if lines else 0


if __name__ == '__main__':
  sys.exit(main())
