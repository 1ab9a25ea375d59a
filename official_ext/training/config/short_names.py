"""Short names: a flat vocabulary for `--set`, such as `learning_rate` for
`trainer.optimizer_config.learning_rate.cosine.initial_learning_rate`.

A pattern is a dotted path in which `*` is the alternative that a OneOfConfig selects, and `*-NAME` for any such
alternative but NAME. A name means the first of its patterns that matches the configuration. It may have
followers: fields that get the same value, unless they are set themselves.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math

from official.modeling.hyperparams import base_config
from official.modeling.hyperparams import oneof

from official_ext.base import errors
from official_ext.training.config import overrides

_OPTIMIZER = 'trainer.optimizer_config.optimizer'
_SCHEDULE = 'trainer.optimizer_config.learning_rate'
_WARMUP = 'trainer.optimizer_config.warmup'
_DECAY_STEPS = (f'{_SCHEDULE}.*.decay_steps', f'{_SCHEDULE}.*.total_decay_steps')
# `decay_steps` of an exponential schedule is the interval of one decay.
_SCHEDULE_LENGTH = (f'{_SCHEDULE}.*-exponential.decay_steps', f'{_SCHEDULE}.*-exponential.total_decay_steps')


@dataclasses.dataclass(frozen=True)
class Meaning:
  """The meaning of a short name.

  Attributes:
    patterns: it is the first of them that matches.
    followers: the same for each field that follows it; one that nothing matches is left out.
    shares: the same for each field that keeps its share of the registered length when the length becomes shorter: see
      `share_of`.
    refusal: why an experiment has no such parameter, though its users may expect it; '' if it has.
  """

  patterns: tuple[str, ...] = ()
  followers: tuple[tuple[str, ...], ...] = ()
  shares: tuple[tuple[str, ...], ...] = ()
  refusal: str = ''


STANDARD: Mapping[str, tuple[str, ...] | Meaning] = {
  'optimizer': (f'{_OPTIMIZER}.type',),
  'schedule': (f'{_SCHEDULE}.type',),
  'warmup': (f'{_WARMUP}.type',),
  # A cycle has both of the last two.
  'learning_rate': (
    f'{_SCHEDULE}.*.learning_rate',
    f'{_SCHEDULE}.*.maximal_learning_rate',
    f'{_SCHEDULE}.*.initial_learning_rate',
  ),
  'decay_steps': (*_DECAY_STEPS, f'{_SCHEDULE}.*.first_decay_steps'),
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
  # Schedules get the length of training; warm-ups keep their share of it.
  'max_steps': Meaning(
    ('trainer.train_steps',),
    followers=(_SCHEDULE_LENGTH,),
    shares=((f'{_WARMUP}.*.warmup_steps',), (f'{_SCHEDULE}.*.warmup_steps',)),
  ),
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


_registered: dict[str, dict[str, Meaning]] = {}


def register(experiment: str, names: Mapping[str, str | Sequence[str] | Meaning]) -> None:
  """Gives an experiment additional short names, before the standard ones.

  Args:
    experiment: the name that the experiment is registered under.
    names: short name -> pattern or patterns, as in the module's docstring, or a `Meaning`.

  Raises:
    ValueError: a short name is registered twice for one experiment, or has a dot.
  """
  own = _registered.setdefault(experiment, {})
  for name, meaning in names.items():
    if name in own or '.' in name:
      reason = 'has a dot' if '.' in name else 'is registered twice'
      raise ValueError(f'{experiment}: the short name {name!r} {reason}')
    own[name] = _as_meaning(meaning)


def _as_meaning(value: str | Sequence[str] | Meaning) -> Meaning:
  if isinstance(value, Meaning):
    return value
  return Meaning((value,) if isinstance(value, str) else tuple(value))


def _meanings(experiment: str | None) -> dict[str, Meaning]:
  """All short names of an experiment, including the ones that it refuses."""
  standard = {name: _as_meaning(meaning) for name, meaning in STANDARD.items()}
  return {**standard, **_registered.get(experiment or '', {})}


def chooses(name: str, experiment: str | None = None) -> bool:
  """Whether a short name chooses among alternatives, without depending on such a choice itself."""
  patterns = _meanings(experiment).get(name, Meaning()).patterns or ('',)
  return all(pattern.endswith('.type') and '*' not in pattern for pattern in patterns)


def vocabulary(params: base_config.Config, experiment: str | None = None) -> dict[str, tuple[str, ...]]:
  """The short names that mean something for a configuration, with the dotted paths they mean: see `resolve`."""
  found = {name: _paths(params, meaning) for name, meaning in _meanings(experiment).items() if not meaning.refusal}
  return {name: paths for name, paths in found.items() if paths}


def resolve(name: str, params: base_config.Config, experiment: str | None = None) -> tuple[str, ...]:
  """The dotted paths of a short name: first its field's, then its followers'.

  Args:
    name: the short name.
    params: the experiment's configuration, after the overrides that choose among alternatives.
    experiment: the name that the experiment is registered under.

  Raises:
    UserError: there is no such name, this configuration has no field for it, or the experiment refuses it.
  """
  known = _meanings(experiment)
  if name not in known:
    usable = vocabulary(params, experiment)
    near = _nearest(name, list(usable)) or _nearest_field(name, params)
    hint = f'did you mean {near}?' if near else f'the short names are {", ".join(usable)}'
    raise errors.UserError(f'{name}: no such field or short name; {hint}')
  if known[name].refusal:
    raise errors.UserError(f'{name}: {experiment} has no such parameter: {known[name].refusal}')
  paths = _paths(params, known[name])
  if not paths:
    raise errors.UserError(f'{name}: this experiment has no such field: {_why_not(params, known[name].patterns)}')
  return paths


def shares(name: str, params: base_config.Config, experiment: str | None = None) -> tuple[str, ...]:
  """The dotted paths of the fields that keep their share of the length that a short name sets: `Meaning.shares`."""
  found = (_first_match(params, patterns) for patterns in _meanings(experiment)[name].shares)
  return tuple(path for path in found if path is not None)


def share_of(steps: int, length: int, registered_length: int) -> int:
  """The steps of a warm-up in a training that is shorter than the registered one.

  The warm-up keeps its share of the length, rounded up, as transformers rounds `warmup_steps` below 1. At least one
  step follows it. A longer training changes nothing.

  Args:
    steps: the warm-up of the registered experiment.
    length: the steps of this training.
    registered_length: the steps of the registered experiment; 0 if it has none.
  """
  share = math.ceil(steps * length / registered_length) if registered_length else steps
  return max(0, min(steps, share, length - 1))


def _paths(params: base_config.Config, meaning: Meaning) -> tuple[str, ...]:
  first = _first_match(params, meaning.patterns)
  if first is None:
    return ()
  followers = [_first_match(params, patterns) for patterns in meaning.followers]
  return first, *(path for path in followers if path is not None)


def _nearest(name: str, candidates: Sequence[str]) -> str:
  """The candidate most similar to a name, else the shortest that contains it as a word; else ''."""
  near = errors.nearest_names(name, candidates, cutoff=0.7)
  holding = [other for other in candidates if name in other.split('_')]
  return near[0] if near else min(holding, key=len, default='')


def _nearest_field(name: str, params: base_config.Config) -> str:
  """The dotted path of the field whose own name is most similar to `name`; '' for none."""
  paths: dict[str, str] = {}
  for field in overrides.leaves(params):
    paths.setdefault(field.name, field.path)
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
    if part.startswith('*'):
      selected = config.type if isinstance(config, oneof.OneOfConfig) else None
      if not selected:
        return path, f'{path}.type is null'
      if part == f'*-{selected}':
        return path, f'{path}.type is {selected}'
      part = selected
    if not isinstance(config, base_config.Config):
      return path, f'{path} is null'
    if part not in vars(config):
      return path, f'{path} has {", ".join(overrides.names(config))}'
    config = vars(config)[part]
    path = f'{path}.{part}' if path else part
  return path, None
