"""All that this library uses of the private parts of Model Garden, Orbit and gin, each with the reason.

No other module reads gin's private tables. `inherited` lists the members that our subclasses call and override of their
bases. tests/base/tf_internals_test.py checks that all of it exists, in the form that we rely on. See also
tf_internals.py.
"""

from collections.abc import Iterator, Sequence
import contextlib
import functools
import inspect
import pathlib
import re
from typing import Any

from gin import config
from official.core import exp_factory
from official.core import task_factory
from official.modeling.hyperparams import base_config

from official_ext.base import protocols


def unused_bindings(of_classes: bool | None = None) -> list[str]:
  """The bindings that no call has used so far, such as 'Trainer.norm_decay', in the order of their definition.

  A binding without a scope counts as used by a call in any scope. Macros and constants are not listed.

  Args:
    of_classes: True for bindings of classes alone, which are constructed while an experiment is built; False for
      bindings of functions alone, which may be called later; None for both.
  """
  found = []
  for (scope, selector), values in config._CONFIG.items():
    configurable = config._REGISTRY.get_match(selector)
    if configurable is None or configurable.selector in ('gin.macro', 'gin.constant'):
      continue
    if of_classes is not None and of_classes != inspect.isclass(configurable.wrapped):
      continue
    used = set().union(
      *(
        arguments
        for (place, name), arguments in config._OPERATIVE_CONFIG.items()
        if name == selector and (place == scope or not scope or place.startswith(f'{scope}/'))
      )
    )
    prefix = f'{scope}/' if scope else ''
    found += [f'{prefix}{selector.removeprefix("__main__.")}.{name}' for name in values if name not in used]
  return found


def unused_bindings_warning(when: str, of_classes: bool | None = None) -> str:
  """One line about the bindings that no call has used; '' if all are used.

  Args:
    when: the time of the look, such as 'while the experiment was built'.
    of_classes: see `unused_bindings`.
  """
  names = unused_bindings(of_classes)
  if not names:
    return ''
  hint = ''
  if any(name.rpartition('.')[0].endswith('base_trainer.Trainer') for name in names):
    hint = '; the trainer here is official_ext.Trainer'
  return f'--gin_file, --gin_params: no call used {", ".join(names)} {when}{hint}'


_REGISTERS = re.compile(r"^@exp_factory\.register_config_factory\(\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


def registered_configs() -> dict[str, object]:
  """The experiments by name, nested at each '/' of a name; exp_factory has no public list of them."""
  return exp_factory._REGISTERED_CONFIGS


def registered_tasks() -> dict[type, object]:
  """The tasks by the classes of their configurations; task_factory has no public list of them."""
  return task_factory._REGISTERED_TASK_CLS


def unregister_config(name: str) -> None:
  """Removes an experiment; publicly, exp_factory can only add one."""
  *folders, last = name.split('/')
  entry: Any = exp_factory._REGISTERED_CONFIGS
  for folder in folders:
    entry = entry[folder]
  del entry[last]


@functools.cache
def experiments_in_source() -> frozenset[str]:
  """The names of the experiments in Model Garden's own folders, read from its sources: importing them takes seconds."""
  names: set[str] = set()
  for folder in ('nlp/configs', 'vision/configs', 'utils/testing'):
    for path in pathlib.Path(exp_factory.__file__).parents[1].glob(f'{folder}/*.py'):
      if not path.name.endswith('_test.py'):
        names.update(_REGISTERS.findall(path.read_text(encoding='utf-8')))
  return frozenset(names)


def is_locked(config: base_config.Config) -> bool:
  """Whether a configuration refuses changes; publicly, only an attempt shows it."""
  return config._locked


def set_locked(config: base_config.Config) -> None:
  """Locks a configuration, but not those inside it; the public `lock` fails on some of Model Garden's own."""
  config._locked = True


def restrictions_of(config: base_config.Config) -> Sequence[str]:
  """The restrictions on an experiment's fields; the public `validate` does not name the field that violates one."""
  return config._restrictions


def is_valid_sequence(elements: Sequence[object]) -> bool:
  """Whether a configuration can hold such a list; publicly, only an assignment shows it, without the field."""
  return base_config.Config._isvalidsequence(elements)


def remember_annotations() -> None:
  """Lets configurations read the type hints of a class once; they do so for each field that is set, half of their time.

  For a process that makes many configurations: the hints of all existing classes are read now.
  """
  read: Any = functools.cache(base_config.Config._get_annotations.__func__)
  base_config.Config._get_annotations = classmethod(lambda cls: dict(read(cls)))
  pending: list[Any] = [base_config.Config]
  while pending:
    config_class: Any = pending.pop()
    pending += config_class.__subclasses__()
    with contextlib.suppress(Exception):  # An error follows when one is made.
      read(config_class)


@contextlib.contextmanager
def task_configured(task: Any, **values: Any) -> Iterator[None]:
  """A context in which a task's configuration has other values; it is locked, and publicly a task takes no other."""
  before = task._task_config
  task._task_config = before.replace(**values) if values else before
  try:
    yield
  finally:
    task._task_config = before


def averaged_optimizer(optimizer: protocols.Optimizer) -> protocols.Optimizer | None:
  """The optimizer inside an ExponentialMovingAverage, where it is private; None for any other optimizer."""
  return getattr(optimizer, '_optimizer', None)


def inherited() -> dict[type, tuple[str, ...]]:
  """By class, the attributes that our subclasses call, override or set; objects have them, classes do not always."""
  from official.core import base_task  # pylint: disable=g-import-not-at-top
  from official.core import base_trainer  # pylint: disable=g-import-not-at-top
  from official.core import train_utils  # pylint: disable=g-import-not-at-top
  from official.modeling.optimization import ema_optimizer  # pylint: disable=g-import-not-at-top
  from official.vision.serving import detection  # pylint: disable=g-import-not-at-top
  from official.vision.serving import image_classification  # pylint: disable=g-import-not-at-top
  from official.vision.serving import semantic_segmentation  # pylint: disable=g-import-not-at-top
  import orbit  # pylint: disable=g-import-not-at-top  # It imports TensorFlow; the names of experiments need none.

  return {
    orbit.Controller: ('_require',),
    base_task.Task: ('_task_config',),
    base_trainer.Trainer: ('_is_async', '_checkpoint_exporter', '_validation_loss'),
    train_utils.ExperimentParser: ('_flags_obj',),
    detection.DetectionModule: ('_build_inputs',),
    image_classification.ClassificationModule: ('_build_inputs',),
    semantic_segmentation.SegmentationModule: ('_build_inputs',),
    ema_optimizer.ExponentialMovingAverage: ('_optimizer', '_model_weights', '_average_weights'),
  }


def constant_after_warmup(schedule: object) -> float | None:
  """The constant learning rate that a warm-up of Model Garden's rises to; None for any other schedule."""
  rate = getattr(schedule, '_after_warmup_lr_sched', None)
  return None if rate is None or callable(rate) else float(rate)
