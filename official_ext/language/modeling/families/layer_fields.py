"""How families define the layers with a window: seven ways for `layer_types` and `sliding_window`."""

from collections.abc import Callable, Sequence
import dataclasses

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.language.modeling import decoder_config

_FULL, _SLIDING = decoder_config.FULL, decoder_config.SLIDING


@dataclasses.dataclass(frozen=True)
class LayerFields:
  """One way.

  Attributes:
    names: the fields that are read.
    read: (fields, number of layers) -> (layer types, window).
    write: (layer types, window, the decoder's configuration) -> fields.
  """

  names: tuple[str, ...]
  read: Callable[[json_values.JsonMapping, int], tuple[Sequence[str], int | None]]
  write: Callable[[Sequence[str], int, decoder_config.DecoderConfig], json_values.JsonObject]


def normal(types: Sequence[str], window: int | None) -> tuple[tuple[str, ...], int]:
  """The canonical form: no types and no window if no layer has one."""
  if _SLIDING not in types and all(kind == _FULL for kind in types):
    return (), 0
  return tuple(types), window or 0


def _all_or_none(fields, num_layers):
  """Mistral: a window is every layer's."""
  window = fields.get('sliding_window')
  return ((_SLIDING,) * num_layers if window else ()), window


def _write_all_or_none(types, window, config):
  if types and _FULL in types:
    raise errors.UserError(f'layer_types: {config.model_type} has one type for all layers')
  return {'sliding_window': window or None}


def _from_layer_on(fields, num_layers):
  """Qwen: the layers from max_window_layers on, if use_sliding_window is set."""
  window = fields.get('sliding_window', 4096) if fields.get('use_sliding_window') else None
  first = fields.get('max_window_layers', 28)
  return _listed(fields, lambda number: window is not None and number >= first, num_layers), window


def _write_from_layer_on(types, window, config):
  del config
  return {'use_sliding_window': True, 'sliding_window': window, 'layer_types': list(types)} if types else {}


def _every_other_up_to_layer(fields, num_layers):
  """Qwen2-MoE: the first, the third, ... before max_window_layers, if use_sliding_window is set."""
  window = fields.get('sliding_window', 4096) if fields.get('use_sliding_window') else None
  end = fields.get('max_window_layers', 28)
  return _listed(fields, lambda number: window is not None and number % 2 == 0 and number < end, num_layers), window


def _without_rope(fields, num_layers):
  """SmolLM3: if use_sliding_window is set, the layers that have no rotation."""
  if not fields.get('use_sliding_window') or not fields.get('sliding_window'):
    return (), None
  interval = fields.get('no_rope_layer_interval') or 4
  default = [int((number + 1) % interval != 0) for number in range(num_layers)]
  has_rope = fields.get('no_rope_layers') or default
  return _listed(fields, lambda number: not has_rope[number], num_layers), fields['sliding_window']


def _every_other(fields, num_layers):
  """Gemma 2: the first, the third, ..."""
  return _listed(fields, lambda number: number % 2 == 0, num_layers), fields.get('sliding_window', 4096)


def _all_but_every_nth(fields, num_layers, default=6):
  """Gemma 3: all but the sixth, the twelfth, ..."""
  pattern = fields.get('sliding_window_pattern') or fields.get('_sliding_window_pattern') or default
  return _listed(fields, lambda number: (number + 1) % pattern != 0, num_layers), fields.get('sliding_window', 4096)


def _all_but_every_fourth(fields, num_layers):
  """Command R7B: all but the fourth, the eighth, ..."""
  return _all_but_every_nth(fields, num_layers, default=4)


def _listed(fields, is_sliding, num_layers):
  listed = fields.get('layer_types') or [_SLIDING if is_sliding(number) else _FULL for number in range(num_layers)]
  if len(listed) != num_layers:
    raise errors.UserError(f'layer_types: {len(listed)} types for {num_layers} layers')
  return listed


def _write_listed(types, window, config):
  listed = list(types) or [_FULL] * config.num_hidden_layers
  return {'layer_types': listed, 'sliding_window': window or None}


def _write_nothing(types, window, config):
  del window
  if types:
    raise errors.UserError(f'layer_types: {config.model_type} has no layers with a window')
  return {}


FULL = LayerFields((), lambda fields, num_layers: ((), None), _write_nothing)
ALL_OR_NONE = LayerFields(('sliding_window',), _all_or_none, _write_all_or_none)
FROM_LAYER_ON = LayerFields(
  ('use_sliding_window', 'sliding_window', 'max_window_layers', 'layer_types'), _from_layer_on, _write_from_layer_on
)
EVERY_OTHER_UP_TO_LAYER = LayerFields(FROM_LAYER_ON.names, _every_other_up_to_layer, _write_from_layer_on)
WITHOUT_ROPE = LayerFields(('use_sliding_window', 'sliding_window', 'layer_types'), _without_rope, _write_from_layer_on)
EVERY_OTHER = LayerFields(('layer_types', 'sliding_window'), _every_other, _write_listed)
ALL_BUT_EVERY_NTH = LayerFields(
  ('layer_types', 'sliding_window', 'sliding_window_pattern', '_sliding_window_pattern'),
  _all_but_every_nth,
  _write_listed,
)
THREE_OF_FOUR = LayerFields(ALL_BUT_EVERY_NTH.names, _all_but_every_fourth, _write_listed)
