"""Refuses limits of gradients that an optimizer cannot combine."""

from official.modeling.hyperparams import base_config
from official.modeling.optimization import optimizer_factory
from official.modeling.optimization.configs import optimizer_config
import tf_keras

from official_ext.base import errors


def check(path: str, config: base_config.Config) -> None:
  """Checks `clipnorm`, `global_clipnorm` and `clipvalue` of an optimizer's configuration; others pass.

  No optimizer of tf_keras takes both norms. New ones (not `legacy`) ignore `clipvalue` beside a norm.

  Args:
    path: the dotted path of the configuration, which ends in the name of the optimizer.
    config: any configuration.

  Raises:
    UserError: names both fields, and the one to set to null.
  """
  if not isinstance(config, optimizer_config.BaseOptimizerConfig):
    return
  if config.clipnorm is not None and config.global_clipnorm is not None:
    _refuse(path, config, 'clipnorm', 'global_clipnorm', 'no optimizer takes both')
  cls = optimizer_factory.LEGACY_OPTIMIZERS_CLS.get(path.rpartition('.')[2])
  is_legacy = isinstance(cls, type) and issubclass(cls, tf_keras.optimizers.legacy.Optimizer)
  for norm in ('clipnorm', 'global_clipnorm'):
    if config.clipvalue and vars(config)[norm] and not is_legacy:
      _refuse(path, config, 'clipvalue', norm, 'this optimizer would ignore clipvalue')


def _refuse(path: str, config: base_config.Config, name: str, other: str, reason: str) -> None:
  value, default = vars(config)[other], vars(type(config)()).get(other)
  origin = ', by default' if value == default else ''
  raise errors.UserError(
    f'{path}.{name}: is set beside {other} ({value}{origin}), and {reason}; set {path}.{other}=null'
  )
