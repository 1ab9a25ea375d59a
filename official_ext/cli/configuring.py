"""From parsed flags to the configuration of a run, and to its task: the driver's work before the run starts."""

from absl import flags
from official.core import task_factory
import tensorflow as tf

from official_ext.base import protocols
from official_ext.cli import flags as ext_flags
from official_ext.training.config import definitions
from official_ext.training.config import parser
from official_ext.training.config import registries
from official_ext.training.devices import distribute
from official_ext.training.devices import workers


def configuration() -> definitions.ExperimentConfig:
  """Imports the modules that register experiments, and returns the checked, locked configuration that the flags
  describe.

  Raises:
    UserError: naming all mistakes that can be found without a model.
  """
  ext_flags.set_verbosity()
  registries.import_experiments(flags.FLAGS.registry, flags.FLAGS.experiment)
  parser.parse_gin(flags.FLAGS.gin_file, flags.FLAGS.gin_params)
  return parser.parse_configuration(flags.FLAGS)


def strategy_and_task(
  params: definitions.ExperimentConfig, model_dir: str
) -> tuple[tf.distribute.Strategy, protocols.Task]:
  """Sets up the devices, and makes the strategy and, inside its scope, the task.

  Raises:
    UserError: the requested devices are missing, or the task refuses its configuration.
  """
  distribute.configure(params.runtime)
  strategy = distribute.get_strategy(params.runtime)
  print(f'Devices: {distribute.describe(strategy, params.runtime)}', flush=True)
  with strategy.scope():
    return strategy, task_factory.get_task(params.task, logging_dir=workers.own_folder(strategy, model_dir))
