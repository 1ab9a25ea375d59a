"""The facts about its run in the manifest of every checkpoint, and how another run differs from them."""

from collections.abc import Callable, Mapping
import dataclasses
import json
from typing import Any

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.data import data_identity as identity
from official_ext.training.checkpoints import manifests


@dataclasses.dataclass(frozen=True)
class RunNotes:
  """The facts that are noted.

  Attributes:
    optimizer_config: the configuration of the optimizer, as JSON values.
    data_identity: the identity of the data, by the name of the input: see data/data_identity.py.
    code_identity: `code`, the digests of modules and files by name, and `versions`, those of packages.
    describe_code_changes: a function of such entries before and now; returns a line, '' if nothing has changed.
  """

  optimizer_config: Any = None
  data_identity: json_types.JsonMapping = dataclasses.field(default_factory=dict)
  code_identity: Mapping[str, object] = dataclasses.field(default_factory=dict)
  describe_code_changes: Callable[[json_types.JsonMapping, json_types.JsonMapping], str] = lambda before, now: ''

  def entries(self) -> json_types.JsonObject:
    """The entries for a manifest."""
    return {'optimizer_config': self.optimizer_config, 'data': self.data_identity, **self.code_identity}

  def differ_in_constants(self, path: str) -> bool:
    """Whether the constants of the optimizer differ from those of the run that has saved a checkpoint."""
    saved = manifests.entries(path).get('optimizer_config')
    return saved is not None and _constants(saved) != _constants(self.optimizer_config)

  def report_other_data(self, path: str) -> None:
    """Prints how the data differ from those of the run that has saved a checkpoint, a line for each difference."""
    before = manifests.entries(path).get('data') or {}
    lines = [
      line
      for name in self.data_identity
      if name in before
      for line in identity.differences(f'task.{name}', before[name], self.data_identity[name])
    ]
    if lines:
      print(f'{path}: other data than before:', flush=True)
      for line in lines:
        print(f'  {line}', flush=True)

  def check_held_out(self, path: str) -> None:
    """Makes sure that a checkpoint was not trained on records that are held out to evaluate it.

    Raises:
      UserError: it was, or may have been: other records were held out of the same ones, or none.
    """
    trained = {
      each['divided']: each['held_out']
      for each in (manifests.entries(path).get('data') or {}).get('train_data', ())
      if 'divided' in each
    }
    for each in self.data_identity.get('validation_data', ()):
      if trained.get(each.get('divided'), each.get('held_out')) != each.get('held_out'):
        raise errors.UserError(
          f'task.validation_data.input_path: is empty, so that records of task.train_data evaluate, and {path} was '
          'trained on them (--mode=train holds none out, unless task.validation_share is set); name other records, or '
          'start a new run in another --model_dir with --set=task.validation_share=0.1'
        )

  def report_other_code(self, path: str) -> bool:
    """Prints one line with the modules, files and packages that differ from those of the run that has saved a
    checkpoint; returns whether any do."""
    changes = self.describe_code_changes(manifests.entries(path), self.code_identity)
    if changes:
      print(f'{path}: other code than before: {changes}', flush=True)
    return bool(changes)


def _constants(optimizer_config: object) -> object:
  """The fields that an optimizer's constants come from; groups of variables have none."""
  config = json.loads(json.dumps(optimizer_config))
  return {k: v for k, v in config.items() if k != 'parameter_groups'} if isinstance(config, dict) else config
