"""Losses by name, with weights, in one configuration.

    losses: {label: {weight: 1}, z_loss: {weight: 1e-4}}

A task has a field of `LossesConfig`, and supplies the inputs of each loss that it can compute:

    loss, logs = weighted_losses.total(
      self.task_config.losses,
      {'label': {'logits': logits, 'labels': labels, 'mask': mask}, 'z_loss': {'logits': logits, 'mask': mask}},
    )

Example:

  >>> config = ext.LossesConfig({'label': {'weight': 1.0}, 'z_loss': {'weight': 0.5}})
  >>> logits, labels = tf.zeros([1, 2, 4]), tf.constant([[0, 3]])
  >>> inputs = {'label': {'logits': logits, 'labels': labels}, 'z_loss': {'logits': logits}}
  >>> loss, logs = ext.weighted_losses.total(config, inputs)
  >>> {name: round(float(value), 3) for name, value in {'total': loss, **logs}.items()}
  {'total': 2.347, 'label': 1.386, 'z_loss': 1.922}
"""

from collections.abc import Collection, Mapping
import dataclasses
from typing import ClassVar

import tensorflow as tf

from official_ext.base import base_config
from official_ext.base import errors
from official_ext.language.modeling import losses


@dataclasses.dataclass
class LossConfig(base_config.Config):
  """A loss without parameters.

  Attributes:
    weight: How much the loss counts; 0 leaves it out. null: 0, or the weight that the method of the task gives it.
  """

  RANGES: ClassVar[Mapping[str, str]] = {'weight': '[0, inf)'}

  weight: float | None = None


@dataclasses.dataclass
class DistillationLossConfig(LossConfig):
  """A teacher's probabilities: see losses.distillation.

  Attributes:
    temperature: By which the logits of both are divided.
  """

  RANGES: ClassVar[Mapping[str, str]] = {'temperature': '(0, inf)'}

  temperature: float = 1.0


@dataclasses.dataclass
class DpoLossConfig(LossConfig):
  """Preferences against a reference: see losses.dpo.

  Attributes:
    beta: How much it costs to leave the reference.
  """

  RANGES: ClassVar[Mapping[str, str]] = {'beta': '(0, inf)'}

  beta: float = 0.1


@dataclasses.dataclass
class IpoLossConfig(LossConfig):
  """Preferences against a reference, with a margin to reach: see losses.ipo.

  Attributes:
    beta: The strength of the regularization; the margin aimed at is 1 / (2 * beta).
  """

  RANGES: ClassVar[Mapping[str, str]] = {'beta': '(0, inf)'}

  beta: float = 0.1


@dataclasses.dataclass
class SimpoLossConfig(LossConfig):
  """Preferences by mean log-probabilities, without a reference: see losses.simpo.

  Attributes:
    beta: The scale of the rewards.
    gamma: The margin between two rewards that is aimed at.
  """

  RANGES: ClassVar[Mapping[str, str]] = {'beta': '(0, inf)', 'gamma': '[0, inf)'}

  beta: float = 2.0
  gamma: float = 1.0


@dataclasses.dataclass
class CpoLossConfig(LossConfig):
  """Preferences by log-probabilities, without a reference: see losses.cpo.

  Attributes:
    beta: The scale of the rewards.
  """

  RANGES: ClassVar[Mapping[str, str]] = {'beta': '(0, inf)'}

  beta: float = 0.1


@dataclasses.dataclass
class KtoLossConfig(LossConfig):
  """Desirable and undesirable answers against a reference: see losses.kto.

  Attributes:
    beta: How much it costs to leave the reference.
    desirable_weight: The weight of desirable answers.
    undesirable_weight: The weight of undesirable answers.
  """

  RANGES: ClassVar[Mapping[str, str]] = {
    'beta': '(0, inf)',
    **dict.fromkeys(('desirable_weight', 'undesirable_weight'), '[0, inf)'),
  }

  beta: float = 0.1
  desirable_weight: float = 1.0
  undesirable_weight: float = 1.0


@dataclasses.dataclass
class OrpoLossConfig(LossConfig):
  """Preferences by the ratio of odds: see losses.orpo.

  Attributes:
    beta: The weight of the odds ratio, added to `label`.
  """

  RANGES: ClassVar[Mapping[str, str]] = {'beta': '(0, inf)'}

  beta: float = 0.1


@dataclasses.dataclass
class GrpoLossConfig(LossConfig):
  """Rewards of sampled completions: see losses.grpo.

  Attributes:
    epsilon_low: How far below 1 a ratio of probabilities counts.
    epsilon_high: How far above 1.
    beta: The weight of the divergence from the reference.
    normalization: The divisor of the sum over tokens: grpo, bnpo, dr_grpo or dapo.
    use_bias_correction_kl: Whether the divergence is multiplied by the ratio of probabilities.
  """

  RANGES: ClassVar[Mapping[str, str]] = {'epsilon_low': '[0, 1]', 'epsilon_high': '[0, inf)', 'beta': '[0, inf)'}
  CHOICES: ClassVar[Mapping[str, tuple[object, ...]]] = {'normalization': tuple(losses.NORMALIZATIONS)}

  epsilon_low: float = 0.2
  epsilon_high: float = 0.2
  beta: float = 0.0
  normalization: str = 'grpo'
  use_bias_correction_kl: bool = True


@dataclasses.dataclass
class LossesConfig(base_config.Config):
  """The losses of losses.py, by name. A task sets the weights that it begins with.

  Attributes:
    label: Cross-entropy with the labels.
    distillation: A teacher's probabilities.
    z_loss: The square of the logarithm of softmax's normalizer.
    dpo: Preferences against a reference.
    ipo: Preferences against a reference, with a margin to reach.
    simpo: Preferences by mean log-probabilities, without a reference.
    cpo: Preferences by log-probabilities, without a reference, with `label`.
    kto: Desirable and undesirable answers against a reference.
    orpo: Preferences by the ratio of odds, with `label`.
    grpo: Rewards of sampled completions.

  Example:

    >>> config = ext.LossesConfig({'label': {'weight': 0.5}})
    >>> config.label.weight
    0.5
  """

  label: LossConfig = dataclasses.field(default_factory=LossConfig)
  distillation: DistillationLossConfig = dataclasses.field(default_factory=DistillationLossConfig)
  z_loss: LossConfig = dataclasses.field(default_factory=LossConfig)
  dpo: DpoLossConfig = dataclasses.field(default_factory=DpoLossConfig)
  ipo: IpoLossConfig = dataclasses.field(default_factory=IpoLossConfig)
  simpo: SimpoLossConfig = dataclasses.field(default_factory=SimpoLossConfig)
  cpo: CpoLossConfig = dataclasses.field(default_factory=CpoLossConfig)
  kto: KtoLossConfig = dataclasses.field(default_factory=KtoLossConfig)
  orpo: OrpoLossConfig = dataclasses.field(default_factory=OrpoLossConfig)
  grpo: GrpoLossConfig = dataclasses.field(default_factory=GrpoLossConfig)


def selected(config: LossesConfig) -> list[str]:
  """The names of the losses with a weight above 0, in the order of the fields; [] if there are none."""
  return [field.name for field in dataclasses.fields(config) if getattr(config, field.name).weight]


def check(config: LossesConfig, computable: Collection[str], path: str = 'task.losses') -> None:
  """Checks that a task can compute the requested losses, and that there is one.

  Args:
    config: the losses.
    computable: the names of the losses that the task can compute.
    path: of `config`.

  Raises:
    UserError: naming the losses that it cannot.
  """
  with errors.Mistakes() as mistakes:
    for name in selected(config):
      with mistakes.noted():
        if name not in computable:
          raise errors.UserError(f'{path}.{name}.weight: this task has {", ".join(sorted(computable))}, and no {name}')
    with mistakes.noted():
      if not selected(config):
        raise errors.UserError(f'{path}: no loss has a weight; this task has {", ".join(sorted(computable))}')


def total(
  config: LossesConfig, inputs: Mapping[str, Mapping[str, object]], path: str = 'task.losses'
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
  """The sum of the losses, times their weights.

  Args:
    config: the losses.
    inputs: of each loss that can be computed the arguments of its function that the configuration does not have.
    path: of `config`.

  Returns:
    The sum, and each loss by its name, without its weight: float32 scalars.

  Raises:
    UserError: a requested loss has no inputs, or none is requested.
  """
  check(config, inputs, path)
  found = {}
  for name in selected(config):
    part = getattr(config, name)
    parameters = {field.name: getattr(part, field.name) for field in dataclasses.fields(part) if field.name != 'weight'}
    found[name] = getattr(losses, name)(**inputs[name], **parameters)
  return tf.add_n([getattr(config, name).weight * value for name, value in found.items()]), found
