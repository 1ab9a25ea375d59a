"""Configures the optimizers and schedules that `trainer.optimizer_config` can name: Model Garden's, and this library's.

Their classes are registered with Model Garden's factories, so that its OptimizerFactory builds them from these
configurations for any task. Limits of gradients that an optimizer cannot combine, and learning rates that cannot train,
are refused.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import re
from typing import Any, ClassVar

from official.modeling import optimization
from official.modeling.hyperparams import base_config
from official.modeling.optimization import optimizer_factory
from official.modeling.optimization.configs import optimizer_config
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import model_garden_internals
from official_ext.base import tf_internals
from official_ext.training.optimization import muon
from official_ext.training.optimization import optimizers
from official_ext.training.optimization import schedules


def check_clipping(path: str, config: base_config.Config) -> None:
  """Checks `clipnorm`, `global_clipnorm` and `clipvalue` of an optimizer's configuration; others pass.

  No optimizer of tf_keras takes both norms. New ones (not `legacy`) ignore `clipvalue` if a norm is set.

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


def rate_problem(optimizer: tf_keras.optimizers.Optimizer, first: int, end: int) -> str:
  """Describes the learning rate of updates `first` to `end` - 1 if it cannot train.

  A constant of 0 is not a problem, with or without a warm-up: it is a choice.

  Args:
    optimizer: a tf_keras optimizer, without wrappers around it.
    first: the number of updates before the first one.
    end: the number of updates after the last one.

  Returns:
    A message, if the learning rate is 0 at every step, or is not finite at the first or the last; else ''.
  """
  schedule = tf_internals.learning_rate_or_schedule(optimizer)
  if first >= end or not isinstance(schedule, tf_keras.optimizers.schedules.LearningRateSchedule):
    return ''
  constant = model_garden_internals.constant_after_warmup(schedule)
  if constant == 0:
    return ''
  for step in (first, end - 1):
    rate = float(schedule(tf.constant(step, tf.int64)))
    if not math.isfinite(rate):
      return f'the learning rate is {rate} at step {step}'
  if _first_nonzero(schedule, first, end) < end:
    return ''
  return f'the learning rate is 0 at each of the steps {first} to {end - 1}, so nothing would be learned'


def _first_nonzero(schedule: Any, first: int, end: int) -> int:
  """The first step whose learning rate is not 0, or else `end`."""
  for step in range(first, min(first + 2, end)):  # Nearly all schedules end here, without a trace.
    if float(schedule(tf.constant(step, tf.int64))):
      return step

  @tf.function
  def search():
    is_zero = lambda step: tf.logical_and(step < end, tf.equal(tf.cast(schedule(step), tf.float32), 0.0))
    return tf.while_loop(is_zero, lambda step: step + 1, [tf.constant(first, tf.int64)])[0]

  return int(search())


SCHEDULES = {
  'cyclical': schedules.Cyclical,
  'one_cycle': schedules.OneCycle,
  'warmup_stable_decay': schedules.WarmupStableDecay,
  'cosine_restarts': schedules.CosineRestarts,
}
OPTIMIZERS = {
  'adamw_torch': optimizers.AdamWTorch,
  'lion': tf_keras.optimizers.Lion,
  'muon': muon.Muon,
  'stable_adamw': optimizers.StableAdamW,
}


@dataclasses.dataclass
class CyclicalLrConfig(base_config.Config):
  """A triangular wave between two learning rates: see schedules.Cyclical.

  Attributes:
    name: The name of the schedule.
    initial_learning_rate: The lower bound, at which every cycle begins and ends.
    maximal_learning_rate: The upper bound of the first cycle.
    step_size: The number of steps in half a cycle, from one bound to the other.
    mode: 'triangular'; 'triangular2' halves the height with every cycle; 'exp_range' multiplies it by gamma every step.
    gamma: The factor of 'exp_range'.
    offset: The step at which the first cycle begins.
  """

  CHOICES: ClassVar[Mapping[str, tuple[object, ...]]] = {'mode': schedules.CYCLES}
  RANGES: ClassVar[Mapping[str, str]] = {
    **dict.fromkeys(('initial_learning_rate', 'maximal_learning_rate'), '[0, inf)'),
    **dict.fromkeys(('step_size', 'gamma'), '(0, inf)'),
  }

  name: str = 'Cyclical'
  initial_learning_rate: float | None = None
  maximal_learning_rate: float | None = None
  step_size: int | None = None
  mode: str = 'triangular'
  gamma: float = 1.0
  offset: int = 0


@dataclasses.dataclass
class OneCycleLrConfig(base_config.Config):
  """One rise to a maximum and one fall to almost 0: see schedules.OneCycle.

  Attributes:
    name: The name of the schedule.
    maximal_learning_rate: The peak.
    total_decay_steps: The length of the cycle in steps.
    pct_start: The fraction of the cycle in which the learning rate rises.
    div_factor: The peak divided by the first learning rate.
    final_div_factor: The first learning rate divided by the last.
    anneal_strategy: 'cosine' or 'linear', the shape of both the rise and the fall.
    offset: The step at which the cycle begins.
  """

  CHOICES: ClassVar[Mapping[str, tuple[object, ...]]] = {'anneal_strategy': schedules.ANNEAL_STRATEGIES}
  RANGES: ClassVar[Mapping[str, str]] = {
    'maximal_learning_rate': '[0, inf)',
    'pct_start': '(0, 1)',
    **dict.fromkeys(('total_decay_steps', 'div_factor', 'final_div_factor'), '(0, inf)'),
  }

  name: str = 'OneCycle'
  maximal_learning_rate: float | None = None
  total_decay_steps: int | None = None
  pct_start: float = 0.3
  div_factor: float = 25.0
  final_div_factor: float = 1e4
  anneal_strategy: str = 'cosine'
  offset: int = 0


@dataclasses.dataclass
class WarmupStableDecayLrConfig(base_config.Config):
  """A rise, a constant level, a decay: see schedules.WarmupStableDecay.

  Attributes:
    name: The name of the schedule.
    initial_learning_rate: The level.
    total_decay_steps: The length of all three parts in steps.
    warmup_steps: The length of the first, linear from 0.
    decay_fraction: The length of the last, as a fraction of total_decay_steps.
    decay_shape: 'linear', 'cosine' or 'sqrt' (1 - sqrt).
    alpha: The last learning rate as a fraction of the level.
    offset: The step at which the first part begins.
  """

  CHOICES: ClassVar[Mapping[str, tuple[object, ...]]] = {'decay_shape': schedules.DECAY_SHAPES}
  RANGES: ClassVar[Mapping[str, str]] = {
    'total_decay_steps': '(0, inf)',
    'decay_fraction': '[0, 1]',
    **dict.fromkeys(('initial_learning_rate', 'warmup_steps', 'alpha'), '[0, inf)'),
  }

  name: str = 'WarmupStableDecay'
  initial_learning_rate: float | None = None
  total_decay_steps: int | None = None
  warmup_steps: int = 0
  decay_fraction: float = 0.1
  decay_shape: str = 'linear'
  alpha: float = 0.0
  offset: int = 0


@dataclasses.dataclass
class CosineRestartsLrConfig(base_config.Config):
  """Cosine decay to a minimum, with warm restarts: see schedules.CosineRestarts.

  Attributes:
    name: The name of the schedule.
    initial_learning_rate: The maximum of the first cycle.
    first_decay_steps: The length of the first cycle in steps.
    t_mul: The length of a cycle divided by the previous cycle's.
    m_mul: The height of a cycle above the minimum divided by the previous cycle's.
    alpha: The minimum as a fraction of initial_learning_rate.
    offset: The step at which the first cycle begins.
  """

  RANGES: ClassVar[Mapping[str, str]] = {
    **dict.fromkeys(('first_decay_steps', 't_mul'), '(0, inf)'),
    **dict.fromkeys(('initial_learning_rate', 'm_mul', 'alpha'), '[0, inf)'),
  }

  name: str = 'CosineRestarts'
  initial_learning_rate: float | None = None
  first_decay_steps: int | None = None
  t_mul: float = 2.0
  m_mul: float = 1.0
  alpha: float = 0.0
  offset: int = 0


@dataclasses.dataclass
class LionConfig(optimization.BaseOptimizerConfig):
  """Lion: tf_keras.optimizers.Lion (Chen et al. 2023, https://arxiv.org/abs/2302.06675).

  Attributes:
    name: The name of the optimizer.
    beta_1: The weight of the momentum in the sum whose sign is the update.
    beta_2: The decay of the momentum.
    weight_decay: The decay of the weights, times the learning rate. 0: none.
    jit_compile: Whether to compile the update of each variable with XLA if the step is not compiled.
  """

  name: str = 'Lion'
  beta_1: float = 0.9
  beta_2: float = 0.99
  weight_decay: float = 0.0
  jit_compile: bool = False


@dataclasses.dataclass
class AdamWTorchConfig(optimization.BaseOptimizerConfig):
  """AdamW with PyTorch's epsilon: see optimizers.AdamWTorch.

  Attributes:
    name: The name of the optimizer.
    beta_1: The decay of the first moment.
    beta_2: The decay of the second moment.
    epsilon: Added to the root of the corrected second moment.
    weight_decay: The decay of the weights, times the learning rate. 0: none.
    jit_compile: Whether to compile the update of each variable with XLA if the step is not compiled.
  """

  name: str = 'AdamWTorch'
  beta_1: float = 0.9
  beta_2: float = 0.999
  epsilon: float = 1e-8
  weight_decay: float = 0.0
  jit_compile: bool = False


@dataclasses.dataclass
class MuonConfig(optimization.BaseOptimizerConfig):
  """Muon for matrices, AdamW for everything else: see muon.Muon.

  Attributes:
    name: The name of the optimizer.
    momentum: The decay of the sum of the gradients.
    nesterov: Whether to use Nesterov momentum.
    newton_schulz_steps: The number of Newton-Schulz iterations.
    rms_scale: The root mean square of a full-rank update of a square matrix.
    weight_decay: The decay of the weights, times the learning rate, of all variables. 0: none.
    adamw_patterns: Regular expressions, searched for in the names of variables: matrices that AdamW updates.
    beta_1: AdamW's decay of the first moment.
    beta_2: AdamW's decay of the second moment.
    epsilon: AdamW's, added to the root of the second moment.
    jit_compile: Whether to compile the update of each variable with XLA if the step is not compiled.
  """

  RANGES: ClassVar[Mapping[str, str]] = dict.fromkeys(('newton_schulz_steps', 'rms_scale'), '(0, inf)')

  name: str = 'Muon'
  momentum: float = 0.95
  nesterov: bool = True
  newton_schulz_steps: int = 5
  rms_scale: float = 0.2
  weight_decay: float = 0.0
  adamw_patterns: tuple[str, ...] = muon.ADAMW_PATTERNS
  beta_1: float = 0.9
  beta_2: float = 0.95
  epsilon: float = 1e-8
  jit_compile: bool = False

  def check_values(self, path: str) -> None:
    """See `config.checks.check`."""
    _check_patterns(self.adamw_patterns, f'{path}.adamw_patterns')


@dataclasses.dataclass
class StableAdamWConfig(optimization.BaseOptimizerConfig):
  """AdamW with update clipping, and slots in bfloat16: see optimizers.StableAdamW.

  Attributes:
    name: The name of the optimizer.
    beta_1: The decay of the first moment.
    beta_2: The decay of the second moment.
    epsilon: Added to the root of the second moment.
    weight_decay: The decay of the weights, times the learning rate. 0: none.
    clip_threshold: A variable's update is scaled down if the root mean square of its gradients over their second
      moments is above this. 0: never.
    slot_dtype: 'bfloat16' or 'float32', of both moments.
    slot_rounding: How to round to bfloat16: 'stochastic' (with the same numbers in a resumed run) or 'nearest'.
    jit_compile: Whether to compile the update of each variable with XLA if the step is not compiled.
  """

  CHOICES: ClassVar[Mapping[str, tuple[object, ...]]] = {
    'slot_dtype': optimizers.SLOT_DTYPES,
    'slot_rounding': optimizers.ROUNDINGS,
  }
  RANGES: ClassVar[Mapping[str, str]] = {'clip_threshold': '[0, inf)'}

  name: str = 'StableAdamW'
  beta_1: float = 0.9
  beta_2: float = 0.999
  epsilon: float = 1e-8
  weight_decay: float = 0.0
  clip_threshold: float = 1.0
  slot_dtype: str = 'bfloat16'
  slot_rounding: str = 'stochastic'
  jit_compile: bool = False


@dataclasses.dataclass
class ParameterGroupConfig(base_config.Config):
  """Variables with a learning rate or separate weight decay, or frozen: see groups.py.

  Attributes:
    patterns: Regular expressions, searched for in the names of the trainable variables ('dense/kernel').
    learning_rate_scale: The factor on the learning rate.
    weight_decay: Whether the optimizer's weight decay applies to them.
    frozen: Whether they are not trained.
  """

  RANGES: ClassVar[Mapping[str, str]] = {'learning_rate_scale': '(-inf, inf)'}

  patterns: tuple[str, ...] = ()
  learning_rate_scale: float = 1.0
  weight_decay: bool = True
  frozen: bool = False

  def check_values(self, path: str) -> None:
    """See `config.checks.check`."""
    if not self.patterns:
      raise errors.UserError(f'{path}.patterns: is empty; name the variables of the group')
    _check_patterns(self.patterns, f'{path}.patterns')
    if not self.learning_rate_scale > 0:
      raise errors.UserError(
        f'{path}.learning_rate_scale: expected more than 0, got {self.learning_rate_scale}; set frozen to keep '
        'variables unchanged'
      )
    if self.frozen and (self.learning_rate_scale != 1 or not self.weight_decay):
      raise errors.UserError(f'{path}.frozen: is true, and so learning_rate_scale and weight_decay have no effect')


def _check_patterns(patterns: Sequence[str], path: str) -> None:
  """Raises a UserError for the first pattern that is not a regular expression."""
  for index, pattern in enumerate(patterns):
    try:
      re.compile(pattern)
    except re.error as error:
      raise errors.UserError(f'{path}.{index}: {pattern!r} is not a regular expression: {error}') from error


@dataclasses.dataclass
class LrConfig(optimization.LrConfig):
  """The schedules of the learning rate: Model Garden's, and this library's.

  Attributes:
    cyclical: A triangular wave between two learning rates.
    one_cycle: One rise to a maximum and one fall to almost 0.
    warmup_stable_decay: A rise, a constant level, a decay.
    cosine_restarts: Cosine decay to a minimum, with warm restarts.
  """

  cyclical: CyclicalLrConfig = dataclasses.field(default_factory=CyclicalLrConfig)
  one_cycle: OneCycleLrConfig = dataclasses.field(default_factory=OneCycleLrConfig)
  warmup_stable_decay: WarmupStableDecayLrConfig = dataclasses.field(default_factory=WarmupStableDecayLrConfig)
  cosine_restarts: CosineRestartsLrConfig = dataclasses.field(default_factory=CosineRestartsLrConfig)


@dataclasses.dataclass
class OptimizerConfig(optimization.OptimizerConfig):
  """The optimizers: Model Garden's, and this library's.

  Attributes:
    adamw_torch: AdamW with PyTorch's epsilon.
    lion: The sign of the momentum.
    muon: Orthogonalised momentum for matrices, AdamW for everything else.
    stable_adamw: AdamW with update clipping, and slots in bfloat16.
  """

  adamw_torch: AdamWTorchConfig = dataclasses.field(default_factory=AdamWTorchConfig)
  lion: LionConfig = dataclasses.field(default_factory=LionConfig)
  muon: MuonConfig = dataclasses.field(default_factory=MuonConfig)
  stable_adamw: StableAdamWConfig = dataclasses.field(default_factory=StableAdamWConfig)


@dataclasses.dataclass
class OptimizationConfig(optimization.OptimizationConfig):
  """Optimizer, schedule of the learning rate, warm-up, moving average, parameter groups.

  Attributes:
    optimizer: The optimizer.
    learning_rate: The schedule of the learning rate.
    parameter_groups: Variables with a learning rate or separate weight decay, or frozen. A variable belongs to the
      first group with a pattern that matches it.
    ema_zero_start: Whether the averages of `ema` start at 0, as Model Garden's do, instead of at the first weights. It
      counts when a run begins: a resumed run keeps its averages.

  Example:

    >>> config = ext.OptimizationConfig({
    ...   'optimizer': {'type': 'adamw_torch', 'adamw_torch': {'weight_decay': 0.01}},
    ...   'learning_rate': {'type': 'cosine', 'cosine': {'initial_learning_rate': 1e-3, 'decay_steps': 1000}},
    ... })
    >>> config.optimizer.type, config.learning_rate.get().initial_learning_rate
    ('adamw_torch', 0.001)
  """

  optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
  learning_rate: LrConfig = dataclasses.field(default_factory=LrConfig)
  parameter_groups: tuple[ParameterGroupConfig, ...] = ()
  ema_zero_start: bool = False

  def check_run(self, path: str, params: base_config.Config, mode: str | None) -> None:
    """See `check_run` in checks.py."""
    del params, mode
    name = self.optimizer.type
    # Model Garden's SLIDE and Adafactor: a text is in the place of the class.
    if isinstance(optimizer_factory.SHARED_OPTIMIZERS.get(name), str):
      other = '; use adafactor_keras' if name == 'adafactor' else ''
      raise errors.UserError(
        f'{path}.optimizer.type: Model Garden has {name!r} by name only, without the optimizer{other}'
      )


def _register() -> None:
  for name, optimizer_cls in OPTIMIZERS.items():
    for use_legacy_optimizer in (True, False):  # The keyword chooses between two tables; Model Garden's tasks omit it.
      optimization.register_optimizer_cls(name, optimizer_cls, use_legacy_optimizer)
  taken = optimizer_factory.LR_CLS.keys() & SCHEDULES.keys()
  if taken:
    raise ValueError(f'Model Garden has schedules of these names already: {sorted(taken)}')
  optimizer_factory.LR_CLS.update(SCHEDULES)


_register()
