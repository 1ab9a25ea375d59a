"""Keeps several adapters over one base: switched between calls, or combined with weights.

    model = pretrained.load('Llama-3.2-1B')         # Or ext.load of a run that trained all weights.
    adapters = adapter_sets.AdapterSet(model, {'sql': 'runs/sql/adapter', 'chat': 'runs/chat/adapter'})
    adapters.set_adapter('chat')
    adapters.set_adapter(None)                     # the base alone
    adapter_sets.combine(['runs/sql/adapter', 'runs/chat/adapter'], [0.7, 0.3], 'both')

Names are as in peft's PeftModel: `set_adapter`, `add_weighted_adapter`.

Example:

  >>> import tempfile
  >>> config = ext.DecoderConfig(vocab_size=100, hidden_size=16, intermediate_size=32, num_hidden_layers=1)
  >>> base, folders = tempfile.mkdtemp(), {'sql': tempfile.mkdtemp(), 'chat': tempfile.mkdtemp()}
  >>> ext.pretrained.save(ext.LanguageModel(config), base)
  >>> for folder in folders.values():
  ...   model = ext.pretrained.load(base)
  ...   ext.lora.attach(model, ext.LoraConfig(r=2))
  ...   for adapter in ext.lora.adapters(model):  # In place of training.
  ...     _ = adapter.lora_b.assign(tf.ones(adapter.lora_b.shape))
  ...   ext.peft_folders.save(model, folder)
  >>> model, logits = ext.pretrained.load(base), []
  >>> adapters = ext.adapter_sets.AdapterSet(model, folders)
  >>> for name in (*adapters.names, None):
  ...   adapters.set_adapter(name)
  ...   logits.append(float(model(tf.constant([[1, 2]]))[0, -1, 0]))
  >>> len(set(logits))  # Two adapters, and the base alone.
  3
"""

from collections.abc import Callable, Mapping, Sequence
import math
import os
import re
from typing import Any, NamedTuple

from absl import logging
import numpy as np
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.base.run_folder import model_folders
from official_ext.language.modeling import lora
from official_ext.language.modeling import peft_folders
from official_ext.language.modeling import tensor_files

COMBINATIONS = ('linear', 'cat')

# Module -> (A [r, in], B [out, r], by which their product is multiplied).
_Adapter = dict[str, tuple[np.ndarray, np.ndarray, float]]


class AdapterSet:
  """Adapters of peft's folders over one model, of which one is in use at a time.

  The model has one adapter of the largest rank for each layer that any of them has. Adapters of smaller rank are padded
  with zeros, which changes no result, so that a compiled function keeps its program when adapters are switched.

  Attributes:
    names: of the adapters, in order.
    active: the name of the one in use; None for the base alone.
  """

  def __init__(self, model: tf_keras.Model, folders: Mapping[str, str], warn: Callable[[str], None] = logging.warning):
    """Attaches the adapters, and uses the first one.

    Args:
      model: a `LanguageModel` without adapters, which is frozen; `lora.merge` first, if it has some.
      folders: name -> folder of peft; at least one.
      warn: see `peft_folders.load`.

    Raises:
      UserError: see `peft_folders.load`; or an adapter has DoRA or `modules_to_save`, which cannot be switched.
    """
    self._model = model
    found = {name: _read(paths.expanded(folder)) for name, folder in folders.items()}
    self._values = {name: _filled_up(each.adapter, found.values()) for name, each in found.items()}
    self.names = tuple(found)
    self.active: str | None = None
    for name, each in found.items():
      if each.record is not None:
        peft_folders.check_base(model, each.record, folders[name])
      for tensor in peft_folders.replaced_tensors(model, each.fields, each.others, folders[name]):
        raise errors.UserError(
          f'{folders[name]}: {tensor}: differs from the base, which several adapters share; load it alone, or merge it'
        )
    peft_folders.attach(model, *self._values[self.names[0]], folders[self.names[0]])
    self.active = self.names[0]
    for name, each in found.items():
      for line in () if each.record is None else peft_folders.base_differences(model, each.record, folders[name]):
        warn(line)

  def set_adapter(self, name: str | None) -> None:
    """Uses another adapter from now on.

    Args:
      name: one of `names`; None for the base alone.

    Raises:
      UserError: there is no such adapter.
    """
    if name is not None and name not in self._values:
      raise errors.UserError(f'adapter: {name!r} is not loaded; loaded are {", ".join(self.names)}')
    if name is None:
      for adapter in lora.adapters(self._model):
        adapter.lora_b.assign(tf.zeros_like(adapter.lora_b))
    else:
      peft_folders.assign(self._model, *self._values[name], name)
    self.active = name


def combine(folders: Sequence[str], weights: Sequence[float], target: str, combination_type: str = 'linear') -> None:
  """Writes one adapter of several, as peft's `add_weighted_adapter` computes it.

  With w a weight and s the scaling of an adapter: `cat` adds the products, sum of w s A B, at the sum of the ranks;
  `linear` adds the matrices, (sum of sqrt(|w| s) sign(w) A) (sum of sqrt(|w| s) B), at the common rank.

  Args:
    folders: of peft, at least one.
    weights: one for each.
    target: a folder, which is made if it is missing.
    combination_type: one of `COMBINATIONS`.

  Raises:
    UserError: an adapter cannot be read, has DoRA or `modules_to_save`, or for `linear` another rank.
  """
  if len(weights) != len(folders):
    raise errors.UserError(f'adapter_weights: {len(weights)} for {len(folders)} adapters; expected one for each')
  if combination_type not in COMBINATIONS:
    raise errors.UserError(f'combination_type: {combination_type!r}: expected {" or ".join(COMBINATIONS)}')
  folders = [paths.expanded(folder) for folder in folders]
  found = [_read(folder) for folder in folders]
  combined: _Adapter = {}
  for module in dict.fromkeys(name for each in found for name in each.adapter):
    parts = [(*each.adapter[module], weight) for each, weight in zip(found, weights) if module in each.adapter]
    ranks = {a.shape[0] for a, _, _, _ in parts}
    if combination_type == 'linear' and len(ranks) > 1:
      raise errors.UserError(
        f'combination_type: linear: {module}: has the ranks {", ".join(map(str, sorted(ranks)))}, and linear needs one '
        'of all; set combination_type=cat'
      )
    combined[module] = (_cat if combination_type == 'cat' else _linear)(parts)
  fields, tensors = _as_folder(combined)
  tensors.update(_common_others(found, folders))
  first = found[0].fields
  carried = {name: first.get(name) for name in ('base_model_name_or_path', 'fan_in_fan_out', 'task_type')}
  paths.make_folder(target)
  tensor_files.write_file(
    os.path.join(target, peft_folders.WEIGHTS_FILE), {peft_folders.PREFIX + name: x for name, x in tensors.items()}
  )
  if found[0].record is not None:
    model_folders.write_base(found[0].record, target)
  tensor_files.write_json(
    os.path.join(target, peft_folders.CONFIG_FILE),
    {**fields, **carried, 'bias': 'none', 'inference_mode': True},
  )


def _cat(parts):
  a = np.concatenate([weight * scaling * a for a, _, scaling, weight in parts])
  return a, np.concatenate([b for _, b, _, _ in parts], axis=1), 1.0


def _linear(parts):
  roots = [math.sqrt(abs(weight) * scaling) for _, _, scaling, weight in parts]
  a = sum(root * math.copysign(1, weight) * a for root, (a, _, _, weight) in zip(roots, parts))
  return a, sum(root * b for root, (_, b, _, _) in zip(roots, parts)), 1.0


class _Folder(NamedTuple):
  """The content of a folder: the record of its base, its fields, the adapter, and tensors of its base."""

  record: model_folders.BaseRecord | None
  fields: Mapping[str, Any]
  adapter: _Adapter
  others: Mapping[str, np.ndarray]


def _read(folder: str) -> _Folder:
  """Reads a folder that can be one of several."""
  fields, tensors = peft_folders.read(folder)
  for field in ('use_dora', 'modules_to_save'):
    if fields.get(field):
      raise errors.UserError(f'{folder}: {field}: several adapters over one base have none; load it alone, or merge it')
  others = {name: tensors.pop(name) for name in list(tensors) if not peft_folders.is_adapter(name)}
  adapter: _Adapter = {}
  for module in sorted({key.partition('.lora_')[0] for key in tensors}):
    config = peft_folders.config_of(fields, module, tensors, folder)
    a, b = (tensors[f'{module}.lora_{letter}.weight'] for letter in 'AB')
    adapter[module] = a, b, lora.scaling_of(config)
  return _Folder(model_folders.read_base(folder), fields, adapter, others)


def _common_others(found, folders):
  """The tensors of the base that each folder has, which must be the same in all that have them."""
  common: dict[str, np.ndarray] = {}
  for each, folder in zip(found, folders):
    for name, value in each.others.items():
      if not name.endswith(('.weight', '.bias')) or not np.array_equal(common.setdefault(name, value), value):
        raise errors.UserError(f'{folder}: the tensor {name} is not combined; merge the adapters, each into a model')
  return common


def _filled_up(adapter: _Adapter, others: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """`_as_folder` of an adapter with the modules and ranks of all."""
  filled: _Adapter = {}
  for module in sorted({name for each in others for name in each.adapter}):
    shapes = [(a.shape, b.shape) for a, b, _ in (each.adapter[module] for each in others if module in each.adapter)]
    rank = max(a[0] for a, _ in shapes)
    new_a, new_b = np.zeros((rank, shapes[0][0][1]), np.float32), np.zeros((shapes[0][1][0], rank), np.float32)
    if module in adapter:
      a, b, scaling = adapter[module]
      new_a[: len(a)], new_b[:, : len(a)] = a, scaling * b
    filled[module] = new_a, new_b, 1.0
  return _as_folder(filled)


def _as_folder(adapter: _Adapter) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """The fields and tensors of a folder of peft: `lora_alpha` is the rank, so that products are multiplied by 1."""
  ranks = {module: len(a) for module, (a, _, _) in adapter.items()}
  largest = max(ranks.values())
  others = {re.escape(module): rank for module, rank in ranks.items() if rank != largest}
  fields = {
    'peft_type': 'LORA',
    'r': largest,
    'lora_alpha': largest,
    'rank_pattern': others,
    'alpha_pattern': others,
    'target_modules': sorted(ranks),
  }
  tensors = {}
  for module, (a, b, _) in adapter.items():
    tensors[f'{module}.lora_A.weight'], tensors[f'{module}.lora_B.weight'] = (
      np.ascontiguousarray(x, np.float32) for x in (a, b)
    )
  return fields, tensors
