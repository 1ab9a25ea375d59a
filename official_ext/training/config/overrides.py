"""Typed overrides: nested values written into a configuration, checked against its dataclasses' type hints."""

import collections.abc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import functools
import types
import typing
from typing import Any, NamedTuple, Union

from official.modeling.hyperparams import base_config
from official.modeling.hyperparams import oneof
from official.modeling.hyperparams import params_dict

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import model_garden_internals

_INT_LIMIT = 1 << 63
_SCALARS = (bool, int, float, str)
_ABC_SEQUENCES = (list, tuple, collections.abc.Sequence, collections.abc.Iterable)
_ABC_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


class Field(NamedTuple):
  """One field of a configuration.

  Attributes:
    path: its dotted path.
    name: the last part of that, which may have dots too.
    value: its value.
    hint: its type hint, Any if the class has none.
    owner: the configuration that it is a field of.
  """

  path: str
  name: str
  value: json_values.Json
  hint: object
  owner: base_config.Config

  def parts(self) -> Iterator[tuple[str, base_config.Config]]:
    """The dotted paths of the configurations that it holds, one or a list of them, and the configurations."""
    if isinstance(self.value, base_config.Config):
      yield self.path, self.value
    elif isinstance(self.value, (list, tuple)):
      for index, element in enumerate(self.value):
        if isinstance(element, base_config.Config):
          yield f'{self.path}.{index}', element

  def is_leaf(self) -> bool:
    """Whether it holds no configuration with fields."""
    return not any(names(part) for _, part in self.parts())


@functools.cache
def class_hints(config_class: object) -> Mapping[str, object]:
  """The type hints of a configuration class's fields, including its bases."""
  return typing.get_type_hints(config_class)


def type_hints(config: params_dict.ParamsDict) -> Mapping[str, object]:
  """The type hints of a configuration's fields, including its class's bases."""
  config_class: object = type(config)
  return class_hints(config_class)


def names(config: params_dict.ParamsDict) -> list[str]:
  """The names of a configuration's fields."""
  return [name for name in vars(config) if name not in config.RESERVED_ATTR]


def is_selected(config: base_config.Config, name: str) -> bool:
  """Whether a field is none of the alternatives that a OneOfConfig's `type` does not select."""
  return not isinstance(config, oneof.OneOfConfig) or name in ('type', config.type)


def unread_fields(config_class: type) -> Mapping[str, str]:
  """The fields of a class that nothing reads, and the reasons: `UNREAD_FIELDS`; {} if the class states none."""
  return getattr(config_class, 'UNREAD_FIELDS', {})


def secret_fields(config_class: type) -> Collection[str]:
  """The fields of a class whose values no message may show: `SECRET_FIELDS`; () if the class states none."""
  return getattr(config_class, 'SECRET_FIELDS', ())


def is_read(config: base_config.Config, name: str) -> bool:
  """Whether something reads a selected field: it is not in UNREAD_FIELDS."""
  return is_selected(config, name) and name not in unread_fields(type(config))


def walk(
  config: base_config.Config,
  path: str = '',
  enters: Callable[[base_config.Config, str], bool] = is_selected,
) -> Iterator[Field]:
  """Yields all fields at all depths, in the order of definition. One that holds configurations comes before their own.

  Args:
    config: where to start.
    path: the dotted path of `config`.
    enters: says of a configuration and the name of a field whether to yield it, and all that is inside it.
  """
  hints = type_hints(config)
  for name in names(config):
    if enters(config, name):
      field = Field(f'{path}.{name}' if path else name, name, vars(config)[name], hints.get(name, Any), config)
      yield field
      for part_path, part in field.parts():
        yield from walk(part, part_path, enters)


def leaves(config: base_config.Config, path: str = '', selected: bool = True) -> Iterator[Field]:
  """Yields the fields of `walk` that hold no configuration with fields.

  Args:
    config: where to start.
    path: the dotted path of `config`.
    selected: whether to skip the alternatives that a OneOfConfig's `type` does not select.
  """
  return filter(Field.is_leaf, walk(config, path, is_selected if selected else lambda *_: True))


def read_leaves(config: base_config.Config) -> Iterator[Field]:
  """Yields the leaves that something reads: neither they nor their parents are in UNREAD_FIELDS."""
  return filter(Field.is_leaf, walk(config, enters=is_read))


def override(config: base_config.Config, values: Mapping[str, object], path: str = '', others: object = None) -> None:
  """Writes nested values into a configuration, in place.

  A mapping is written into the nested configuration of its name; anything else replaces the value, after a conversion
  that loses nothing: an integer for a float, 1e3 for an integer. A list of the same length, or a mapping from indices,
  overrides the elements of a list one by one. A value that equals the present one is not checked.

  Args:
    config: the configuration, not locked.
    values: nested dicts, lists, scalars and `config_text.Literal`, by field.
    path: the dotted path of `config`, for error messages.
    others: the type of fields that the class does not have and that may be added. None: no field may.

  Raises:
    UserError: no such field, a value of another type, a field that nothing reads; of all fields that are wrong.
      `config` then holds the others.
  """
  selected = config.type if isinstance(config, oneof.OneOfConfig) else None
  with errors.Mistakes() as mistakes:
    for name, value in values.items():
      mistakes.check(_override_field, config, name, value, path, others)
    if isinstance(config, oneof.OneOfConfig):
      _check_selection(config, values, path, selected)


def _override_field(config: base_config.Config, name: object, value: object, path: str, others: object) -> None:
  field_path = f'{path}.{name}' if path else str(name)
  if name not in names(config):
    if others is None or name in config.RESERVED_ATTR:
      raise errors.UserError(_no_such_field(config, name, path))
    config.__dict__[str(name)] = _convert(value, others, None, field_path)
    return
  current, hint = vars(config)[name], type_hints(config).get(name, others or Any)
  before = _plain(current)  # A nested configuration is changed in place.
  try:
    new = _convert(value, hint, current, field_path)
  except errors.UserError:
    if name not in secret_fields(type(config)):
      raise
    raise errors.UserError(f'{field_path}: expected {type_name(hint)}, got something else') from None
  unread = unread_fields(type(config))
  if name in unread and not _same(new, current) and _plain(new) != before:
    raise errors.UserError(f'{field_path}: nothing reads this field: {unread[name]}')
  config.__dict__[name] = new


def _plain(value: object) -> Any:
  return value.as_dict() if isinstance(value, params_dict.ParamsDict) else value


def _check_selection(config: oneof.OneOfConfig, values: Mapping[str, object], path: str, before: object) -> None:
  """Refuses an unknown `type`, and puts `before` back for it; refuses values for alternatives that are not selected."""
  alternatives = [name for name in names(config) if name != 'type']
  if config.type is not None and config.type not in alternatives:
    wrong = config.type
    config.__dict__['type'] = before
    raise errors.UserError(f'{path}.type: {config_text.shortened(wrong)} is {not_one_of(wrong, alternatives)}')
  for name in values:
    if name in alternatives and name != config.type:
      raise errors.UserError(f'{path}.{name}: nothing reads this field while {path}.type is {_shown(config.type)}')


def _convert(value: object, hint: object, current: object, path: str) -> Any:
  """Converts `value` to a value for a field of type `hint`, which holds `current` now."""
  if _same(value, current):
    return current
  if isinstance(value, Mapping):
    return _convert_mapping(value, hint, current, path)
  if isinstance(value, (list, tuple)) and not isinstance(value, config_text.Literal):
    return _convert_sequence(value, hint, current, path)
  return _convert_scalar(value, hint, path)


def _convert_scalar(value: object, hint: object, path: str) -> object:
  text = None
  if isinstance(value, config_text.Literal):
    value, text = value
  allowed = members(hint)
  if json_values.is_int(value) and float in allowed and int not in allowed:
    value = json_values.as_float(value)
  if isinstance(value, float) and value.is_integer() and int in allowed and float not in allowed:
    value = int(value)
  is_number = Any in allowed or type(value) in allowed
  if is_number and isinstance(value, int) and not -_INT_LIMIT <= value < _INT_LIMIT:
    raise errors.UserError(f'{path}: {config_text.shortened(value)} does not fit into an integer of 64 bits')
  if is_number:
    return value
  if str in allowed and text is not None and (value is not None or not text):
    return text
  raise errors.UserError(f'{path}: expected {type_name(hint)}, got {_shown(value)}')


def _convert_mapping(value: Mapping[str, object], hint: object, current: object, path: str) -> Any:
  allowed = members(hint)
  dictionaries = [member for member in allowed if _origin(member) in _ABC_MAPPINGS]
  # Dict[str, float] holds floats.
  others = (*typing.get_args(dictionaries[0]), Any, Any)[1] if dictionaries else None
  if isinstance(current, base_config.Config):
    is_empty = type(current) is base_config.Config and not names(current)
    override(current, value, path, Any if others is None and is_empty else others)
    return current
  if isinstance(current, (list, tuple)) and value and all(str(key).isdigit() for key in value):
    return _convert_elements(value, hint, current, path)
  config_classes = [member for member in allowed if _is_config(member)]
  if not (config_classes or dictionaries or Any in allowed):
    raise errors.UserError(f'{path}: expected {type_name(hint)}, got a mapping')
  config_class = config_classes[0] if config_classes else base_config.Config
  try:
    config = config_class()
  except (TypeError, ValueError) as error:
    raise errors.UserError(f'{path}: {config_class.__name__} cannot be made from its defaults: {error}') from error
  override(config, value, path, (others or Any) if config_class is base_config.Config else None)
  return config


def _convert_elements(value: Mapping[str, object], hint: object, current: Sequence[object], path: str) -> Sequence[Any]:
  """Overrides the elements of a list by their indices."""
  elements = [element.as_dict() if isinstance(element, base_config.Config) else element for element in current]
  for key, element in value.items():
    if int(key) >= len(elements):
      raise errors.UserError(f'{path}.{key}: no such element, {path} has {len(elements)}')
    elements[int(key)] = element
  return _convert_sequence(elements, hint, current, path)


def _convert_sequence(value: Sequence[object], hint: object, current: object, path: str) -> Sequence[object]:
  allowed = members(hint)
  sequences = [member for member in allowed if _origin(member) in _ABC_SEQUENCES]
  if not sequences and Any not in allowed:
    raise errors.UserError(f'{path}: expected {type_name(hint)}, got the list {_shown(value)}')
  element_hints = _element_hints(sequences[0] if sequences else list, len(value))
  if len(element_hints) != len(value):
    raise errors.UserError(f'{path}: expected {type_name(hint)}, got {len(value)} values')
  olds: Sequence[object] = current if isinstance(current, (list, tuple)) else ()
  if len(olds) != len(value):
    olds = [None] * len(value)
  elements = [
    _convert(element, element_hint, old, f'{path}.{index}')
    for index, (element, element_hint, old) in enumerate(zip(value, element_hints, olds))
  ]
  if not model_garden_internals.is_valid_sequence(elements):
    raise errors.UserError(f'{path}: a list holds either scalars or mappings, and no lists')
  if isinstance(current, (list, tuple)):
    return type(current)(elements)
  return tuple(elements) if sequences and _origin(sequences[0]) is tuple else elements


def _element_hints(sequence: object, length: int) -> Sequence[object]:
  arguments = typing.get_args(sequence)
  if _origin(sequence) is tuple and arguments and arguments[-1] is not Ellipsis:
    return arguments
  return [arguments[0] if arguments else Any] * length


def _same(value: object, current: object) -> bool:
  """Whether `value` equals the value of a field; a list equals a tuple of the same elements."""
  if isinstance(value, config_text.Literal):
    value = value.value
  if isinstance(value, (list, tuple)) and isinstance(current, (list, tuple)):
    return len(value) == len(current) and all(map(_same, value, current))
  return type(value) is type(current) and not isinstance(value, (dict, params_dict.ParamsDict)) and value == current


def members(hint: object) -> tuple[Any, ...]:
  """The types that a hint allows: a Union's members, or itself; NoneType for null."""
  if typing.get_origin(hint) in (Union, types.UnionType):
    return tuple(member for argument in typing.get_args(hint) for member in members(argument))
  if hint is None:
    return (type(None),)
  return (hint,)


def _origin(hint: object) -> Any:
  return typing.get_origin(hint) or hint


def _is_config(hint: object) -> bool:
  return isinstance(hint, type) and issubclass(hint, params_dict.ParamsDict)


def type_name(hint: object) -> str:
  """A type hint in words: 'int', 'float or null', 'list of str', 'mapping (EMAConfig)'."""
  return ' or '.join(dict.fromkeys(_member_name(member) for member in members(hint)))


def _member_name(member: Any) -> str:
  if member is type(None):
    return 'null'
  if member is Any:
    return 'anything'
  if _is_config(member):
    return 'a mapping' if member is base_config.Config else f'a mapping ({member.__name__})'
  if _origin(member) in _ABC_MAPPINGS:
    return 'a mapping'
  if _origin(member) in _ABC_SEQUENCES:
    arguments = typing.get_args(member)
    if _origin(member) is tuple and arguments and arguments[-1] is not Ellipsis:
      return f'a list of {len(arguments)} values ({", ".join(type_name(argument) for argument in arguments)})'
    return f'a list of {type_name(arguments[0])}' if arguments else 'a list'
  return getattr(member, '__name__', str(member))


def _shown(value: object) -> str:
  """A value as a user would write it, with its type."""
  if value is None:
    return 'null'
  if isinstance(value, bool):
    return 'true' if value else 'false'
  if isinstance(value, (list, tuple)):
    return config_text.shortened(
      [element.value if isinstance(element, config_text.Literal) else element for element in value]
    )
  shown = config_text.shortened(value)
  return f'{shown} ({type(value).__name__})' if isinstance(value, _SCALARS) else shown


def _no_such_field(config: base_config.Config, name: object, path: str) -> str:
  """The message, with the nearest name at the same level or, failing that, below it."""
  field_path = f'{path}.{name}' if path else str(name)
  here = names(config)
  below: dict[str, str] = {}
  for field in leaves(config, path):
    below.setdefault(field.path.rsplit('.', 1)[-1], field.path)
  suggestion: str | None = None
  near = errors.nearest_names(name, here, cutoff=0.7)
  if near:
    suggestion = f'{path}.{near[0]}' if path else near[0]
  else:
    near = errors.nearest_names(name, below, cutoff=0.7)
    suggestion = below[near[0]] if near else None
  if suggestion:
    return f'{field_path}: no such field; did you mean {suggestion}?'
  return f'{field_path}: no such field; {path or "the experiment"} has {_listed(here)}'


def not_one_of(value: str, candidates: Sequence[str]) -> str:
  """The rest of an error message: the candidates, and the nearest of them."""
  return f'not one of {_listed(candidates)}{errors.did_you_mean(value, candidates, before="; ")}'


def _listed(candidates: Sequence[str]) -> str:
  return ', '.join(candidates) if len(candidates) <= 20 else ', '.join(candidates[:20]) + ', ...'
