"""All that this library uses of the inside of Model Garden and Orbit, each with the public API that is missing.

What subclasses call and override of their bases is listed in `inherited`. tests/tf_internals_test.py holds
that all of it exists, in the form that is relied upon. See also tf_internals.py.
"""

# pylint: disable=protected-access
from collections.abc import Sequence
from typing import Any

from official.core import exp_factory
from official.modeling.hyperparams import base_config


def registered_configs() -> dict[str, Any]:
  """The experiments by their names, those with a '/' in dictionaries of their own; exp_factory has no list of them."""
  return exp_factory._REGISTERED_CONFIGS


def replace_registered_configs(configs: dict[str, Any]) -> None:
  """Puts other experiments in the place of all; exp_factory can only add one."""
  exp_factory._REGISTERED_CONFIGS = configs


def is_locked(config: base_config.Config) -> bool:
  """Whether a configuration refuses to be changed; in public, only an attempt tells."""
  return config._locked


def set_locked(config: base_config.Config) -> None:
  """Locks a configuration without those inside it; `lock` fails on some of Model Garden's own."""
  config._locked = True


def restrictions_of(config: base_config.Config) -> Sequence[str]:
  """What an experiment requires of its fields; `validate` names no field of what it misses."""
  return config._restrictions


def is_valid_sequence(elements: Sequence[Any]) -> bool:
  """Whether a configuration can hold such a list; in public, only an assignment tells, and names no field."""
  return base_config.Config._isvalidsequence(elements)


def averaged_optimizer(optimizer: Any) -> Any | None:
  """The optimizer inside an ExponentialMovingAverage, which shows it nowhere; None of any other."""
  return getattr(optimizer, '_optimizer', None)


def inherited() -> dict[Any, tuple[str, ...]]:
  """By class, what our subclasses of it call, override or set; an object has the attributes, not always its class."""
  from official.core import base_trainer  # pylint: disable=g-import-not-at-top
  from official.core import train_utils  # pylint: disable=g-import-not-at-top
  from official.modeling.optimization import ema_optimizer  # pylint: disable=g-import-not-at-top
  import orbit  # pylint: disable=g-import-not-at-top  # It imports TensorFlow; the names of experiments need none.

  return {
    orbit.Controller: ('_require',),
    base_trainer.Trainer: ('_is_async', '_checkpoint_exporter', '_validation_loss'),
    train_utils.ExperimentParser: ('_flags_obj',),
    ema_optimizer.ExponentialMovingAverage: ('_optimizer', '_model_weights', '_average_weights'),
  }
