"""Which fields of a run's configuration are other than the experiment's own, as the code is now."""

from collections.abc import Mapping

from official_ext.base import errors
from official_ext.base import flat_params
from official_ext.base import json_types
from official_ext.base import yaml_text
from official_ext.operations.runs import driver as driver_lib
from official_ext.operations.runs import run_folder

UNSET = '-'  # A value that the experiment lacks.


def of_run(run: run_folder.Run, values: Mapping[str, object], driver: driver_lib.Driver) -> json_types.JsonObject:
  """Dotted path -> the experiment's own value, of each field that has another one in the run; UNSET if it has no such.

  Args:
    run: the run.
    values: its configuration, flat.
    driver: gives the experiment's; it starts a process with TensorFlow if it has none.

  Raises:
    UserError: the run's record does not name its experiment, or that is not registered any more.
    DriverError: there is no answer.
  """
  record = run.record() or {}
  experiment, registry = record.get('experiment'), record.get('registry')
  if not isinstance(experiment, str) or not experiment:
    raise errors.UserError(f'{run.name}: its record does not name its experiment')
  modules = dict.fromkeys([*driver.registry, *(registry if isinstance(registry, list) else [])])
  flags = [f'--experiment={experiment}', '--mode=train', *(f'--registry={module}' for module in modules)]
  # All checks: some fields depend on the data. The folder is not made, and has no checkpoint that would be in the way.
  found = driver.check([*flags, f'--model_dir={run.path}.defaults'], params=True)
  if not found.get('params'):
    lines = [line['text'] for line in found.get('lines', [])]
    raise errors.UserError(f'{run.name}: {lines[0] if lines else "the driver does not return the defaults"}')
  defaults = flat_params.flatten(yaml_text.load(found['params'], run_folder.PARAMS))
  return {
    path: defaults.get(path, UNSET)
    for path, value in values.items()
    if path not in defaults or repr(defaults[path]) != repr(value)
  }
