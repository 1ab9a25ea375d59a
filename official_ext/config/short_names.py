"""Short names: a flat vocabulary for `--set`, such as `learning_rate` for
`trainer.optimizer_config.learning_rate.cosine.initial_learning_rate`.

A pattern is a dotted path in which `*` stands for the alternative that a OneOfConfig selects. A name stands for the
first of its patterns that matches the configuration at hand.
"""

from collections.abc import Mapping, Sequence

from official.modeling.hyperparams import base_config
from official.modeling.hyperparams import oneof

from official_ext import errors
from official_ext import suggestions
from official_ext.config import overrides

_OPTIMIZER = 'trainer.optimizer_config.optimizer'
_SCHEDULE = 'trainer.optimizer_config.learning_rate'
_WARMUP = 'trainer.optimizer_config.warmup'

STANDARD: Mapping[str, tuple[str, ...]] = {
  'optimizer': (f'{_OPTIMIZER}.type',),
  'schedule': (f'{_SCHEDULE}.type',),
  'warmup': (f'{_WARMUP}.type',),
  # A cycle has both of the last two.
  'learning_rate': (
    f'{_SCHEDULE}.*.learning_rate',
    f'{_SCHEDULE}.*.maximal_learning_rate',
    f'{_SCHEDULE}.*.initial_learning_rate',
  ),
  'decay_steps': (f'{_SCHEDULE}.*.decay_steps', f'{_SCHEDULE}.*.total_decay_steps', f'{_SCHEDULE}.*.first_decay_steps'),
  'warmup_steps': (f'{_WARMUP}.*.warmup_steps',),
  # The legacy AdamW has both fields, and clips by the first.
  'max_grad_norm': (f'{_OPTIMIZER}.*.gradient_clip_norm', f'{_OPTIMIZER}.*.global_clipnorm'),
  'weight_decay': (f'{_OPTIMIZER}.*.weight_decay_rate', f'{_OPTIMIZER}.*.weight_decay', 'task.losses.l2_weight_decay'),
  'momentum': (f'{_OPTIMIZER}.*.momentum',),
  'beta_1': (f'{_OPTIMIZER}.*.beta_1',),
  'beta_2': (f'{_OPTIMIZER}.*.beta_2',),
  'ema_decay': ('trainer.optimizer_config.ema.average_decay',),
  'batch_size': ('task.train_data.global_batch_size',),
  'eval_batch_size': ('task.validation_data.global_batch_size',),
  'grad_accum_steps': ('trainer.gradient_accumulation_steps',),
  'train_steps': ('trainer.train_steps',),
  'train_epochs': ('trainer.train_epochs',),
  'steps_per_loop': ('trainer.steps_per_loop',),
  'steps_per_execution': ('trainer.steps_per_execution',),
  'summary_interval': ('trainer.summary_interval',),
  'checkpoint_interval': ('trainer.checkpoint_interval',),
  'max_to_keep': ('trainer.max_to_keep',),
  'validation_interval': ('trainer.validation_interval',),
  'validation_interval_epochs': ('trainer.validation_interval_epochs',),
  'checkpoint_interval_epochs': ('trainer.checkpoint_interval_epochs',),
  'summary_interval_epochs': ('trainer.summary_interval_epochs',),
  'validation_steps': ('trainer.validation_steps',),
  'init_checkpoint': ('task.init_checkpoint',),
  'strategy': ('runtime.distribution_strategy',),
  'num_gpus': ('runtime.num_gpus',),
  'xla': ('runtime.enable_xla',),
  'precision': ('runtime.mixed_precision_dtype',),
  'seed': ('runtime.seed',),
  'deterministic': ('runtime.deterministic',),
}

_registered: dict[str, dict[str, tuple[str, ...]]] = {}


def register(experiment: str, names: Mapping[str, str | Sequence[str]]) -> None:
  """Gives an experiment short names of its own, before the standard ones.

  Args:
    experiment: the name that the experiment is registered under.
    names: short name -> pattern or patterns, as in the module's docstring.

  Raises:
    ValueError: a short name is registered twice for one experiment, or has a dot.
  """
  own = _registered.setdefault(experiment, {})
  for name, patterns in names.items():
    if name in own or '.' in name:
      reason = 'has a dot' if '.' in name else 'is registered twice'
      raise ValueError(f'{experiment}: the short name {name!r} {reason}')
    own[name] = (patterns,) if isinstance(patterns, str) else tuple(patterns)


def patterns_of(experiment: str | None) -> dict[str, tuple[str, ...]]:
  """All short names of an experiment with their patterns."""
  return {**STANDARD, **_registered.get(experiment or '', {})}


def chooses(name: str, experiment: str | None = None) -> bool:
  """Whether a short name chooses among alternatives, without depending on such a choice itself."""
  patterns = patterns_of(experiment).get(name, ('',))
  return all(pattern.endswith('.type') and '*' not in pattern for pattern in patterns)


def vocabulary(params: base_config.Config, experiment: str | None = None) -> dict[str, str]:
  """The short names that mean something for a configuration, with the dotted paths they stand for."""
  found = {name: _first_match(params, patterns) for name, patterns in patterns_of(experiment).items()}
  return {name: path for name, path in found.items() if path is not None}


def resolve(name: str, params: base_config.Config, experiment: str | None = None) -> str:
  """The dotted path that a short name stands for.

  Args:
    name: the short name.
    params: the experiment's configuration, as it is after the overrides that choose among alternatives.
    experiment: the name that the experiment is registered under.

  Raises:
    UserError: there is no such name, or this configuration has no field for it.
  """
  known = patterns_of(experiment)
  if name not in known:
    usable = vocabulary(params, experiment)
    near = _nearest(name, list(usable)) or _nearest_field(name, params)
    hint = f'did you mean {near}?' if near else f'the short names are {", ".join(usable)}'
    raise errors.UserError(f'{name}: no such field or short name; {hint}')
  path = _first_match(params, known[name])
  if path is None:
    raise errors.UserError(f'{name}: this experiment has no such field: {_why_not(params, known[name])}')
  return path


def _nearest(name: str, candidates: Sequence[str]) -> str:
  """The candidate most similar to a name, else the shortest that contains it as a word; '' if there is none."""
  near = suggestions.nearest(name, candidates, cutoff=0.7)
  holding = [other for other in candidates if name in other.split('_')]
  return near[0] if near else min(holding, key=len, default='')


def _nearest_field(name: str, params: base_config.Config) -> str:
  """The dotted path of the field whose own name is most similar to `name`; '' if there is none."""
  paths: dict[str, str] = {}
  for field in overrides.leaves(params):
    paths.setdefault(field.path.rsplit('.', 1)[-1], field.path)
  return paths.get(_nearest(name, list(paths)), '')


def _first_match(params: base_config.Config, patterns: Sequence[str]) -> str | None:
  for pattern in patterns:
    path, missing = _walk(params, pattern)
    if missing is None:
      return path
  return None


def _why_not(params: base_config.Config, patterns: Sequence[str]) -> str:
  reasons = dict.fromkeys(str(_walk(params, pattern)[1]) for pattern in patterns)
  return ', '.join(reasons)


def _walk(params: base_config.Config, pattern: str) -> tuple[str, str | None]:
  """The path of a pattern, and the place at which it ends too early; None if it does not."""
  config, path = params, ''
  for part in pattern.split('.'):
    if part == '*':
      selected = config.type if isinstance(config, oneof.OneOfConfig) else None
      if not selected:
        return path, f'{path}.type is null'
      part = selected
    if not isinstance(config, base_config.Config):
      return path, f'{path} is null'
    if part not in vars(config):
      return path, f'{path} has {", ".join(overrides.names(config))}'
    config = vars(config)[part]
    path = f'{path}.{part}' if path else part
  return path, None
