"""How configurations define rotations: `rope_theta` and `rope_scaling` (OLD), or `rope_parameters` (transformers 5;
NEW).

transformers 5 reads both, transformers 4 only the old one, without a word about the other: so a new model is written in
the old dialect, and a loaded one in its own.
"""

from collections.abc import Mapping
import dataclasses

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import position_encodings

OLD, NEW = 'rope_scaling', 'rope_parameters'
_ALIASES = {'su': 'longrope'}
_ANY_KIND = ('rope_type', 'type', 'rope_theta', 'partial_rotary_factor', 'original_max_position_embeddings')


def dialect_of(fields: Mapping[str, object]) -> str:
  """Which one a configuration is written in."""
  return NEW if fields.get(NEW) else OLD


@dataclasses.dataclass(frozen=True)
class RopeFields:
  """The rotations of a family.

  Attributes:
    theta: the base of a configuration without one.
    local_theta: the same for layers with a window, in families that give them separate rotations; 0 in others.
    may_be_partial: whether a part of a head may stay without rotation.
    partial: partial_rotary_factor of a configuration without it.
    kinds: the rotations that it may have; empty for all.
    original: original_max_position_embeddings of a configuration without it next to the rotation, in families that
      read it nowhere else; 0 in others.
    default: the rotations of a configuration without any.
    scales_queries: whether a rotation may have llama_4_scaling_beta.
  """

  theta: float = 10000.0
  local_theta: float = 0.0
  may_be_partial: bool = False
  partial: float = 1.0
  kinds: tuple[str, ...] = ()
  original: int = 0
  default: json_values.JsonMapping = dataclasses.field(default_factory=dict)
  scales_queries: bool = False

  @property
  def names(self) -> tuple[str, ...]:
    """The fields that are read."""
    names = ('rope_theta', OLD, NEW, 'original_max_position_embeddings', 'partial_rotary_factor')
    return (*names, 'rope_local_base_freq') if self.local_theta else names

  def read(self, fields: json_values.JsonMapping) -> json_values.JsonObject:
    """Fields of `DecoderConfig`, from either dialect."""
    declared = dict(fields.get(NEW) or {})
    theta = fields.get('rope_theta') or self.theta
    if not self.local_theta:
      declared = dict(fields.get(OLD) or declared or self.default)
      return {'rope_parameters': self._parameters(declared, theta, fields)}
    wide = {**(declared.get(decoder_config.FULL) or {}), **(fields.get(OLD) or {})}
    local = declared.get(decoder_config.SLIDING) or {}
    others = sorted(set(declared) - {decoder_config.FULL, decoder_config.SLIDING})
    if others:
      raise errors.UserError(f'{NEW}.{others[0]}: this family has {decoder_config.FULL} and {decoder_config.SLIDING}')
    local_theta = fields.get('rope_local_base_freq') or self.local_theta
    return {
      'rope_parameters': self._parameters(wide, theta, fields),
      'sliding_rope_parameters': self._parameters(local, local_theta, {}),
    }

  def _parameters(self, declared, theta, fields):
    """`RopeParameters` of one dictionary."""
    kind = declared.get('rope_type') or declared.get('type') or 'default'
    kind = _ALIASES.get(kind, kind)
    parameters = position_encodings.RopeParameters(
      rope_type=kind, rope_theta=float(declared.get('rope_theta') or theta)
    )
    if self.kinds and kind not in self.kinds:
      raise errors.UserError(f'{NEW}.rope_type: {kind!r}: in this family only {", ".join(self.kinds)} are implemented')
    position_encodings.check_rope(position_encodings.RopeParameters(rope_type=kind, **_anything_needed(kind)))
    used = position_encodings.USED_FIELDS[kind]
    for name, value in declared.items():
      if value is None or name in _ANY_KIND or (self.scales_queries and name == 'max_position_embeddings'):
        continue
      if self.scales_queries and name == 'llama_4_scaling_beta':
        parameters.llama_4_scaling_beta = value
        continue
      if name not in used:
        raise errors.UserError(f'{NEW}.{name}: {value!r}: rope_type {kind!r} has no such field here')
      setattr(parameters, name, tuple(map(float, value)) if isinstance(value, list) else value)
    if 'original_max_position_embeddings' in used:
      name = 'original_max_position_embeddings'
      parameters.original_max_position_embeddings = fields.get(name) or self.original or declared.get(name) or 0
    partial = declared.get('partial_rotary_factor') or fields.get('partial_rotary_factor') or self.partial
    if partial != 1 and not self.may_be_partial:
      raise errors.UserError(f'partial_rotary_factor: {partial!r}: in this family only 1.0 is implemented')
    parameters.partial_rotary_factor = float(partial)
    return parameters

  def write(self, config: decoder_config.DecoderConfig, dialect: str) -> json_values.JsonObject:
    """The fields of a dialect."""
    wide = _declared_fields(config.rope_parameters)
    if self.partial != 1:
      wide['partial_rotary_factor'] = config.rope_parameters.partial_rotary_factor
    if self.original:
      original = wide.pop('original_max_position_embeddings', self.original)
      fields = {NEW: wide} if dialect == NEW else _in_old_dialect(wide)
      return {**fields, 'original_max_position_embeddings': original}
    if not self.local_theta:
      if config.sliding_rope_parameters is not None:
        raise errors.UserError(f'sliding_rope_parameters: {config.model_type} rotates all layers alike')
      return {NEW: wide} if dialect == NEW else _in_old_dialect(wide)
    local = _declared_fields(config.sliding_rope_parameters or config.rope_parameters)
    if dialect == NEW or local['rope_type'] != 'default':  # The old one has no place for it.
      return {NEW: {decoder_config.FULL: wide, decoder_config.SLIDING: local}}
    return {**_in_old_dialect(wide), 'rope_local_base_freq': local['rope_theta']}


def _anything_needed(kind):
  """Values with which a check of the kind alone passes."""
  return dict(factor=1.0, low_freq_factor=1.0, high_freq_factor=1.0, short_factor=(1.0,), long_factor=(1.0,))


def _declared_fields(parameters):
  declared = {'rope_type': parameters.rope_type, 'rope_theta': parameters.rope_theta}
  for name in position_encodings.USED_FIELDS[parameters.rope_type]:
    value = getattr(parameters, name)
    if value is not None and not (name == 'original_max_position_embeddings' and not value):
      declared[name] = list(value) if isinstance(value, (list, tuple)) else value
  if declared.get('truncate'):
    del declared['truncate']
  if parameters.llama_4_scaling_beta:
    declared['llama_4_scaling_beta'] = parameters.llama_4_scaling_beta
  if parameters.partial_rotary_factor != 1:
    declared['partial_rotary_factor'] = parameters.partial_rotary_factor
  return declared


def _in_old_dialect(declared):
  scaling = {name: value for name, value in declared.items() if name not in ('rope_theta', 'partial_rotary_factor')}
  fields = {'rope_theta': declared['rope_theta']}
  if declared['rope_type'] != 'default':
    fields[OLD] = scaling
  if 'partial_rotary_factor' in declared:
    fields['partial_rotary_factor'] = declared['partial_rotary_factor']
  return fields
