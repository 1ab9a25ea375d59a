"""The record of the base below a model's adapters, and the comparison of a base with a record."""

from collections.abc import Iterator
import functools
import hashlib
import json

import numpy as np
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.files import storage
from official_ext.base.run_folder import base_records
from official_ext.language.modeling import families
from official_ext.language.modeling import frozen
from official_ext.language.modeling import quantized_linear
from official_ext.language.modeling import tensor_files
from official_ext.language.modeling.families import family as family_lib

# Fields of the configuration that decide how many weights of which shapes there are.
_SHAPES = tuple(
  """model_type vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads
  head_dim gated_mlp norm_type norm_bias pre_norms post_norms block_type qk_norm qk_norm_over attention_bias
  attention_out_bias mlp_bias position_embedding_type tie_word_embeddings lm_head_bias num_experts
  moe_intermediate_size shared_expert_intermediate_size decoder_sparse_step""".split()
)
_OF_NEW_WEIGHTS = frozenset({'initializer_range'})
_PART = 2**20  # Values that are hashed at once, which bounds the memory that this takes.


def record_of(model: tf_keras.Model, has_digest: bool = True) -> base_records.BaseRecord:
  """The record of a model's base.

  Args:
    model: a `LanguageModel` or a `Decoder`, frozen, with adapters or without.
    has_digest: whether the base's folder is read for its digest.
  """
  origin = None if is_merged(model) else getattr(model, 'origin', None)
  decoder = getattr(model, 'decoder', model)
  packed = [part for part in frozen.parts(model) if isinstance(part, quantized_linear.QuantizedLinear)]
  quantization = _as_json(packed[0].config.as_dict()) if packed else {'method': 'none'}
  config = {name: value for name, value in family_lib.comparable(model.config).items() if name not in _OF_NEW_WEIGHTS}
  return base_records.BaseRecord(
    folder=None if origin is None else origin.folder,
    weights_sha256=digest_of(model) if has_digest else None,
    quantization=quantization,
    frozen_dtype=_frozen_dtype(model),
    compute_dtype=decoder.compute_dtype,
    config=_as_json(config),
  )


def _frozen_dtype(model):
  """The dtype of frozen weights that are not packed. Modules that adapters train whole have another."""
  kept = [part for part in frozen.parts(model) if part.is_frozen and not part.is_packed]
  dtypes = (weight.dtype for part in kept for weight in part.own_weights().values() if weight.dtype.is_floating)
  return tf.as_dtype(next(dtypes, model.variable_dtype)).name


def options(record: base_records.BaseRecord | None, load_in_4bit: bool | None = None) -> json_types.JsonObject:
  """The arguments of `pretrained.load` that keep a base as a record says.

  Args:
    record: of adapters; None for float weights.
    load_in_4bit: whether kernels are kept in 4 bits; overrides the record. None for the recorded one.
  """
  is_recorded = record is not None and (load_in_4bit is None or load_in_4bit == (record.method == 'nf4'))
  if record is not None and is_recorded:
    quantization = quantized_linear.QuantizationConfig(**record.quantization)
    return {
      'quantization': quantization,
      'frozen_dtype': None if record.frozen_dtype == 'float32' else record.frozen_dtype,
    }
  method = 'nf4' if load_in_4bit else 'none'
  return {'quantization': quantized_linear.QuantizationConfig(method=method), 'frozen_dtype': None}


def _as_json(values):
  return json.loads(json.dumps(values))


def is_merged(model: object) -> bool:
  """Whether a model's weights are other than its folder's: adapters or packed weights were merged into them."""
  return any(part.is_merged for part in frozen.parts(model))


def digest_of(model: tf_keras.Model) -> str | None:
  """The digest of the weights that a model was loaded from; None if they are in no folder, or were replaced in it."""
  origin = getattr(model, 'origin', None)
  if origin is None or is_merged(model):
    return None
  try:
    if tensor_files.TensorFiles(origin.folder).stamp() != origin.stamp:
      return None
    return _digest(origin.folder, origin.stamp, model.config.model_type, model.config.tie_word_embeddings)
  except (errors.UserError, *storage.FAILURES):  # The folder was removed meanwhile.
    return None


@functools.lru_cache(maxsize=8)
def _digest(folder: str, stamp: tuple[tuple[str, int, int], ...], model_type: str, is_tied: bool) -> str:
  """The SHA-256 of a folder's weights, in hexadecimal digits. Files with the same stamp are read once.

  It covers the name, the shape and all values of each tensor. Neither shards nor the type in which values are stored
  matter: float32 that are multiples of bfloat16 count as the bfloat16 that they were. If the head is the embedding
  (`is_tied`), a copy of it in the files is left out.
  """
  del stamp  # Distinguishes the entries of the cache.
  family = families.find(model_type, 'model_type')
  left_out = {family_lib.SCORES, *([family_lib.LM_HEAD] if is_tied else [])}
  full_name = lambda name: family_lib.full_name(family, name)
  is_weight = lambda name: full_name(name) not in left_out and not family_lib.is_ignored(family, full_name(name))
  lines = []
  for name, value in tensor_files.TensorFiles(folder).tensors(is_weight):
    lines.append(f'{full_name(name)} {list(value.shape)} {_digest_of_values(value)}\n')
    del value  # Before the next one is read.
  return hashlib.sha256(''.join(sorted(lines)).encode()).hexdigest()


def _digest_of_values(value: np.ndarray) -> str:
  found = hashlib.sha256()
  flat = np.ascontiguousarray(value).reshape(-1)
  if flat.dtype.name == 'bfloat16':
    found.update(flat.view(np.uint8).data)
    return found.hexdigest()
  is_wide = any((bits & 0xFFFF).any() for bits in _float32_bits(flat))
  for bits in _float32_bits(flat):
    found.update((bits if is_wide else (bits >> 16).astype(np.uint16)).view(np.uint8).data)
  return found.hexdigest()


def _float32_bits(flat: np.ndarray) -> Iterator[np.ndarray]:
  """The bits of values as float32, in parts."""
  for start in range(0, flat.size, _PART):
    yield flat[start : start + _PART].astype(np.float32, copy=False).view(np.uint32)


def check(model: tf_keras.Model, record: base_records.BaseRecord, adapter: str) -> None:
  """Refuses a base whose weights have other shapes.

  Args:
    model: the base.
    record: of the base that the adapters were trained on.
    adapter: the folder of the adapters, for messages.

  Raises:
    UserError: with the first field that differs.
  """
  found = _differing_fields(model, record)
  has_learned_positions = model.config.position_embedding_type == 'learned'
  for name in (*_SHAPES, *(['max_position_embeddings'] if has_learned_positions else [])):
    if name in found:
      before, now = found[name]
      raise errors.UserError(
        f'{adapter}: {name}: {before} in the base of the adapters, {now} in this model; load them over '
        f'{record.folder or "the model that they were trained on"}'
      )


def differences(model: object, record: base_records.BaseRecord, adapter: str) -> list[str]:
  """A line for each difference between a model's base and the recorded one that changes logits; [] if they are equal.

  Args:
    model: with the adapters attached.
    record: of the base that the adapters were trained on.
    adapter: their folder, for messages.
  """
  lines = []
  for name, (before, now) in _differing_fields(model, record).items():
    lines.append(f'{adapter}: {name}: {before} in the base of the adapters, {now} in this model')
  here = record_of(model, has_digest=record.weights_sha256 is not None)
  if not record.is_kept_as(here):
    hint = ''
    if (record.method == 'nf4') != (here.method == 'nf4'):
      hint = f'; load_in_4bit={"true" if record.method == "nf4" else "false"} has the former'
    lines.append(f'{adapter}: the adapters were trained on {record.kept}, but are loaded onto {here.kept}{hint}')
  is_known = getattr(model, 'origin', None) is not None or is_merged(model)
  if is_known and record.weights_sha256 not in (None, here.weights_sha256):
    lines.append(
      f'{adapter}: the adapters were trained on {record.folder} with weights of SHA-256 '
      f'{base_records.short(record.weights_sha256)}, but are loaded onto {here.folder or "merged weights"} with '
      f'{base_records.short(here.weights_sha256)}: another base has other logits'
    )
  return lines


def _differing_fields(model, record) -> dict[str, tuple[object, object]]:
  """Field of the configuration -> (its value in the record, its value here), of those that both have."""
  now = _as_json(family_lib.comparable(model.config))
  both = {name: (before, now[name]) for name, before in record.config.items() if name in now}
  return {name: (before, now) for name, (before, now) in both.items() if before != now}
