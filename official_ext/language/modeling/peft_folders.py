"""Reads and writes adapters in the folders of Hugging Face's peft: adapter_config.json, adapter_model.safetensors.

    model = pretrained.load('Llama-3.2-1B')
    peft_folders.load(model, 'adapter')            # and lora.merge(model), or train on
    peft_folders.save(model, 'mine')               # PeftModel.from_pretrained loads it, too

The first part records the base below a model's adapters, and compares a base with a record.

Example:

  >>> import tempfile
  >>> config = ext.DecoderConfig(vocab_size=100, hidden_size=16, intermediate_size=32, num_hidden_layers=1)
  >>> base, adapter = tempfile.mkdtemp(), tempfile.mkdtemp()
  >>> ext.pretrained.save(ext.LanguageModel(config), base)
  >>> model, again = ext.pretrained.load(base), ext.pretrained.load(base)
  >>> ext.lora.attach(model, ext.LoraConfig(r=2))
  >>> ext.peft_folders.save(model, adapter)
  >>> ext.peft_folders.load(again, adapter)
  >>> all(np.array_equal(*pair) for pair in zip(again.trainable_variables, model.trainable_variables, strict=True))
  True
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
import hashlib
import json
import os
import re
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import file_fields
from official_ext.base import json_values
from official_ext.base import package_imports
from official_ext.base.files import paths
from official_ext.base.files import storage
from official_ext.base.run_folder import model_folders
from official_ext.language.modeling import families
from official_ext.language.modeling import layers
from official_ext.language.modeling import lora
from official_ext.language.modeling import model_weights
from official_ext.language.modeling import pretrained
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


def base_record_of(model: tf_keras.Model, has_digest: bool = True) -> model_folders.BaseRecord:
  """The record of a model's base.

  Args:
    model: a `LanguageModel` or a `Decoder`, frozen, with adapters or without.
    has_digest: whether the base's folder is read for its digest.
  """
  origin = None if is_merged(model) else _origin_of(model)
  packed = [part for part in model_weights.layer_parts(model) if isinstance(part, quantized_linear.QuantizedLinear)]
  quantization = _as_json(packed[0].config.as_dict()) if packed else {'method': 'none'}
  config = {name: value for name, value in family_lib.comparable(model.config).items() if name not in _OF_NEW_WEIGHTS}
  return model_folders.BaseRecord(
    folder=None if origin is None else origin.folder,
    weights_sha256=base_digest(model) if has_digest else None,
    quantization=quantization,
    frozen_dtype=_frozen_dtype(model),
    compute_dtype=model_weights.decoder_of(model).compute_dtype,
    config=_as_json(config),
  )


def _origin_of(model):
  """The folder that a model was loaded from; None for none, and for a model of a user's class."""
  return getattr(model, 'origin', None)


def _frozen_dtype(model):
  """The dtype of frozen weights that are not packed. Modules that adapters train whole have another."""
  kept = [part for part in model_weights.layer_parts(model) if part.is_frozen and not part.is_packed]
  dtypes = (weight.dtype for part in kept for weight in part.own_weights().values() if weight.dtype.is_floating)
  return tf.as_dtype(next(dtypes, model.variable_dtype)).name


def base_options(record: model_folders.BaseRecord | None, load_in_4bit: bool | None = None) -> json_values.JsonObject:
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
  return any(part.is_merged for part in model_weights.layer_parts(model))


def base_digest(model: tf_keras.Model) -> str | None:
  """The digest of the weights that a model was loaded from; None if they are in no folder, or were replaced in it."""
  origin = _origin_of(model)
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


def check_base(model: tf_keras.Model, record: model_folders.BaseRecord, adapter: str) -> None:
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


def base_differences(model: object, record: model_folders.BaseRecord, adapter: str) -> list[str]:
  """A line for each difference between a model's base and the recorded one that changes logits; [] if they are equal.

  Args:
    model: with the adapters attached.
    record: of the base that the adapters were trained on.
    adapter: their folder, for messages.
  """
  lines = []
  for name, (before, now) in _differing_fields(model, record).items():
    lines.append(f'{adapter}: {name}: {before} in the base of the adapters, {now} in this model')
  here = base_record_of(model, has_digest=record.weights_sha256 is not None)
  if not record.is_kept_as(here):
    hint = ''
    if (record.method == 'nf4') != (here.method == 'nf4'):
      hint = f'; load_in_4bit={"true" if record.method == "nf4" else "false"} has the former'
    lines.append(f'{adapter}: the adapters were trained on {record.kept}, but are loaded onto {here.kept}{hint}')
  is_known = _origin_of(model) is not None or is_merged(model)
  if is_known and record.weights_sha256 not in (None, here.weights_sha256):
    lines.append(
      f'{adapter}: the adapters were trained on {record.folder} with weights of SHA-256 '
      f'{model_folders.short_digest(record.weights_sha256)}, but are loaded onto {here.folder or "merged weights"} '
      f'with {model_folders.short_digest(here.weights_sha256)}: another base has other logits'
    )
  return lines


def _differing_fields(model, record) -> dict[str, tuple[object, object]]:
  """Field of the configuration -> (its value in the record, its value here), of fields that both have."""
  now = _as_json(family_lib.comparable(model.config))
  both = {name: (before, now[name]) for name, before in record.config.items() if name in now}
  return {name: (before, now) for name, (before, now) in both.items() if before != now}


CONFIG_FILE, WEIGHTS_FILE = model_folders.ADAPTER_CONFIG_FILE, 'adapter_model.safetensors'
PREFIX = 'base_model.model.'
_A, _B, _MAGNITUDE = '.lora_A.weight', '.lora_B.weight', '.lora_magnitude_vector'
_EMBEDDING_A, _EMBEDDING_B, _ROWS = '.lora_embedding_A', '.lora_embedding_B', '.token_adapter.trainable_tokens_delta'
# How peft names a weight of the base, by the wrapper of its module.
_WRAPPED = ('.token_adapter.base_layer', '.base_layer')
FILE_FIELDS = file_fields.FileFields(
  CONFIG_FILE,
  used=frozenset(
    """alpha_pattern bias exclude_modules init_lora_weights layers_pattern layers_to_transform lora_alpha lora_dropout
    modules_to_save peft_type r target_modules trainable_token_indices use_dora use_rslora""".split()
  ),
  harmless=file_fields.because(
    {
      'a note': 'auto_mapping base_model_name_or_path inference_mode peft_version revision task_type',
      'the tensors have it': 'fan_in_fan_out rank_pattern',
      'how adapters began': 'corda_config eva_config loftq_config lora_ga_config',
      'how peft computes': 'megatron_core runtime_config velora_config',
      'of use_qalora, which is refused': 'qalora_group_size',
    }
  ),
  effect='may change the result',
  unknown='not implemented',
  takes_empty=True,  # peft writes each of its fields.
)
# Fields by which some of the modules that `target_modules` names have no adapter.
_EXCEPTIONS = ('exclude_modules', 'layers_pattern', 'layers_to_transform')
_HARMLESS_STARTS = (None, True, False, 'gaussian', 'eva', 'mica', 'orthogonal')  # Others change the base model as well.
_BIASES = ('none', 'all', 'lora_only')

# (name of a linear layer here, its place there), of all that lie in one module there, by their part.
_Module = list[tuple[str, model_weights.ModulePlace]]


def save(model: tf_keras.Model, folder: str) -> None:
  """Writes the adapters of a model.

  Args:
    model: a `LanguageModel` with adapters; or a `Decoder`, whose head is saved by the caller.
    folder: is made if it is missing. base_model.json in it records the base (model_folders.py), which peft ignores.

  Raises:
    UserError: there are no adapters, they are not finite, or not all that was trained; or the model has a class that
      is not this library's own (pretrained.py).
  """
  found = {adapter.name: adapter for adapter in lora.adapters(model)}
  if not found:
    raise errors.UserError(f'{folder}: the model has no adapters to be saved')
  _check_alone(model, folder)
  modules = _modules(model)
  adapted = {name: module for name, module in modules.items() if any(ours in found for ours, _ in module)}
  tensors, ranks, alphas = _collected(model, found, adapted)
  saved = {name: np.asarray(place.numpy(), np.float32) for name, place in model_weights.saved_tensors(model).items()}
  tensors |= {f'{PREFIX}{name}': value for name, value in saved.items()}
  tensors |= {f'{PREFIX}{name}': value for name, value in _changed_base(model, adapted).items()}
  for name, value in tensors.items():
    tensor_files.check_finite(value, f'{folder}: the tensor {name}')
  first = next(iter(found.values())).config
  base = base_record_of(model)
  if base.folder is None:
    logging.warning(
      '%s: the weights below the adapters are in no folder; save those too, by ext.pretrained.save before they'
      ' get adapters',
      folder,
    )
  fields = {
    'peft_type': 'LORA',
    'task_type': 'CAUSAL_LM',
    'base_model_name_or_path': base.folder,
    'r': first.r,
    'lora_alpha': first.lora_alpha,
    'rank_pattern': {name: rank for name, rank in ranks.items() if rank != first.r},
    'alpha_pattern': {name: alpha for name, alpha in alphas.items() if not np.isclose(alpha, first.lora_alpha)},
    'lora_dropout': first.lora_dropout,
    'use_rslora': first.use_rslora,
    'use_dora': first.use_dora,
    'target_modules': _short_names(set(adapted), modules),
    'fan_in_fan_out': not all(module[0][1].is_transposed for module in adapted.values()),
    'modules_to_save': sorted({name.rpartition('.')[0] for name in saved}) or None,
    'bias': 'none',
    'init_lora_weights': True,
    'inference_mode': True,
  }
  paths.make_folder(folder)
  partial = os.path.join(folder, f'.{WEIGHTS_FILE}.partial')
  tensor_files.write_file(partial, tensors)
  paths.move(partial, os.path.join(folder, WEIGHTS_FILE))
  model_folders.write_base(base, folder)
  paths.sync_to_disk(folder)
  tensor_files.write_json(os.path.join(folder, CONFIG_FILE), fields)


def _changed_base(model, adapted):
  """Name of a tensor there -> value, of the weights of the base that the folder of loaded adapters had replaced."""
  places, found = _tensor_places(model), {}
  for name in sorted(vars(model_weights.decoder_of(model)).get(_REPLACED, ())):
    module, _, kind = name.rpartition('.')
    found[f'{module}.base_layer.{kind}' if module in adapted else name] = np.asarray(places[name].numpy(), np.float32)
  return found


def _tensor_places(model):
  return model_weights.find_tensor_places(model.config, model_weights.find_slots(model))


_REPLACED = '_replaced_tensors'  # Of a decoder: the names of the tensors of its base that adapters have replaced.


def _check_alone(model, folder):
  """Refuses a model of which the adapters alone are not all that was trained, or that another class computes."""
  if model_weights.decoder_of(model) is model:  # A decoder, whose head is the caller's.
    return
  pretrained.check_representable(model, folder)
  known = {id(variable) for adapter in lora.adapters(model) for variable in adapter.own_weights().values()}
  known |= {id(variable) for variable in model_weights.saved_weights(model)}
  others = [variable.name for variable in model.trainable_variables if id(variable) not in known]
  if others:
    raise errors.UserError(
      f'{folder}: the model has the trained weight {others[0]} beside its adapters, and a folder of peft has no place '
      'for it: merge first (ext.lora.merge) and save the whole (ext.pretrained.save), or save the adapters of `decoder`'
    )


def _modules(model: tf_keras.Model) -> dict[str, _Module]:
  """Name of a module there -> the linear layers that lie in it."""
  modules: dict[str, _Module] = {}
  for linear in _linears(model).values():
    for place in model_weights.module_places(model.config, linear.name):
      modules.setdefault(place.module, []).append((linear.name, place))
  return {name: sorted(module, key=lambda found: found[1].part) for name, module in modules.items()}


def _linears(model):
  """The linear layers by name; wrapped ones are returned with their adapter."""
  kinds = layers.Linear, quantized_linear.QuantizedLinear, lora.LoraLinear  # Adapters come before their bases.
  found: dict[str, object] = {}
  for part in model_weights.layer_parts(model):
    if isinstance(part, kinds) and (part.name not in found or isinstance(part, lora.LoraLinear)):
      found[part.name] = part
  return found


def _collected(model, found, adapted):
  """The tensors of the modules there that have adapters, and by module the ranks and the values of `lora_alpha`."""
  tensors, ranks, alphas = {}, {}, {}
  for name, module in adapted.items():
    a, b, magnitude = _joined(model, found, module)
    tensors[f'{PREFIX}{name}{_A}'], tensors[f'{PREFIX}{name}{_B}'] = a, b
    if magnitude is not None:
      tensors[f'{PREFIX}{name}{_MAGNITUDE}'] = magnitude
    adapter = next(found[ours] for ours, _ in module if ours in found)
    ranks[name] = len(a)
    alphas[name] = adapter.scaling * (len(a) ** 0.5 if adapter.config.use_rslora else len(a))
  return tensors, ranks, alphas


def _joined(model, found, module):
  """A [r, in], B [out, r] and DoRA's magnitude [out] or None of a module there: of one layer, or of several as one.

  Layers that share A, as after loading one module there, still share it. Others lie side by side.
  """
  linears = _linears(model)
  parts = [
    (_row(found[name].lora_a, place.row).T, _row(found[name].lora_b, place.row).T) if name in found else None
    for name, place in module
  ]
  there = [part for part in parts if part is not None]
  is_shared = len(there) == len(parts) and all(np.array_equal(a, there[0][0]) for a, _ in there)
  a = there[0][0] if is_shared else np.concatenate([a for a, _ in there])
  b = np.zeros([sum(linears[name].output_size for name, _ in module), len(a)], np.float32)
  top = left = 0
  for (name, _), part in zip(module, parts):
    size = linears[name].output_size
    if part is not None:
      b[top : top + size, left : left + len(part[0])] = part[1]
      left += 0 if is_shared else len(part[0])
    top += size
  sizes, num_groups = [linears[name].output_size for name, _ in module], module[0][1].num_groups
  b = np.ascontiguousarray(family_lib.joined(family_lib.parted(b.T, sizes), num_groups).T)
  if all(found[name].lora_magnitude is None for name, _ in module if name in found):
    return np.ascontiguousarray(a), b, None  # Lengths of columns take a kernel in float32.
  magnitudes = [_magnitude(linears[name], place.row) for name, place in module]
  return np.ascontiguousarray(a), b, family_lib.joined(magnitudes, num_groups)


def _magnitude(linear, row):
  """DoRA's magnitudes; of a layer without it the lengths of its columns, which change nothing."""
  if isinstance(linear, lora.LoraLinear) and linear.lora_magnitude is not None:
    return _row(linear.lora_magnitude, row)
  return _row(lora.lengths(linear.matrix()), row)


def _row(values, row):
  return np.asarray(tf.cast(values if row is None else values[row], tf.float32))


def _short_names(adapted: set[str], modules: Mapping[str, _Module]) -> list[str]:
  """The shortest names that are for these modules and no others: q_proj, mlp.c_proj, or a module's whole name."""
  names = set()
  for name in adapted:
    candidates = name.rpartition('.')[2], modules[name][0][1].in_block, name
    of = lambda short: {other for other in modules if other == short or other.endswith(f'.{short}')}
    names.add(next(short for short in candidates if of(short) <= adapted))
  return sorted(names)


def load(
  model: tf_keras.Model,
  folder: str,
  quantization: quantized_linear.QuantizationConfig | None = None,
  frozen_dtype: tf.DType | str | None = None,
  warn: Callable[[str], None] = logging.warning,
) -> None:
  """Attaches the adapters of a folder to a model, which is frozen: see `lora.attach`.

  Args:
    model: a `LanguageModel` without adapters: the base that they were trained on.
    folder: with adapter_config.json and adapter_model.safetensors.
    quantization: how the kernels are kept; None for unchanged.
    frozen_dtype: in which frozen weights are kept that are not quantized.
    warn: gets a line for each difference between this base and the recorded one that changes logits: other weights,
      or weights that are kept otherwise.

  Raises:
    UserError: something is missing, has no place in this model or another shape, is not finite, or the base was of
      another shape; or a field of the configuration that changes the result is not implemented. With its name.
  """
  fields, tensors = read(folder)
  record = model_folders.read_base(folder)
  if record is not None:
    check_base(model, record, folder)
  others = {name: tensors.pop(name) for name in list(tensors) if not is_adapter(name)}
  whole = _saved_names(model, fields, others, folder)
  saved = {name: others.pop(name) for name in list(others) if name.rpartition('.')[0] in whole}
  _drop_copies(saved, others, folder)
  replaced = replaced_tensors(model, fields, others, folder)
  _check_targets(fields, tensors, _modules(model), folder)
  places = _tensor_places(model)
  for name, value in replaced.items():
    places[name].assign(value)
  attach(model, fields, tensors, folder, quantization, frozen_dtype, whole)
  if replaced:
    setattr(model_weights.decoder_of(model), _REPLACED, frozenset(replaced))
  _assign_saved(model, saved, folder)
  for line in () if record is None else base_differences(model, record, folder):
    warn(line)


def is_adapter(name: str) -> bool:
  """Whether a tensor is a part of an adapter on a linear layer."""
  return name.endswith((_A, _B, _MAGNITUDE))


def vocab_size(folder: str) -> int | None:
  """How many tokens the embedding or the head in a folder of peft has; None if it holds none of them whole.

  peft saves both whole if the vocabulary of the base was enlarged: `pretrained.load(base, vocab_size=...)` makes the
  base of these adapters.
  """
  path = os.path.join(folder, WEIGHTS_FILE)
  if not paths.exists(path):
    return None
  wrapped = '|'.join(map(re.escape, _WRAPPED))
  names = rf'(.*\.)?(embed_tokens|wte|word_embeddings|lm_head)({wrapped})?\.weight'
  library = package_imports.import_optional('safetensors', path)
  try:
    with library.safe_open(paths.local_copy(path), framework='np') as opened:
      sizes = [opened.get_slice(name).get_shape()[0] for name in opened.keys() if re.fullmatch(names, name)]
  except Exception:  # Its own exception has no name; `load` reports a damaged file.  # pylint: disable=broad-except
    return None
  return max(sizes, default=None)


def replaced_tensors(
  model: tf_keras.Model, fields: Mapping[str, Any], others: Mapping[str, np.ndarray], folder: str
) -> dict[str, np.ndarray]:
  """The weights of the base that a folder changes, by their names in Hugging Face's folder of the base.

  peft saves such weights in these forms: whole, such as an embedding of more tokens, a head below its adapter, or all
  biases; rows of an embedding (`trainable_token_indices`); an adapter on an embedding.

  Args:
    model: the base.
    fields: see `read`.
    others: the tensors of `read` that are neither adapters on linear layers nor of `modules_to_save`.
    folder: for messages.

  Returns:
    Values that differ from the base's.

  Raises:
    UserError: a tensor has no place in the model, or another shape; or the head is the embedding, and only one of them
      is changed.
  """
  places, found = _tensor_places(model), dict[str, Any]()
  is_tied = bool(model.config.tie_word_embeddings)
  embedding = next(name for name, place in places.items() if place.paths == ('decoder/embed_tokens/embeddings',))
  head = None
  for name in sorted(others, key=lambda name: name.endswith((_ROWS, _EMBEDDING_A, _EMBEDDING_B))):  # Whole ones first.
    value, target = others[name], _target_of(name)
    if target == family_lib.LM_HEAD and is_tied and target not in places:
      head = name, value
      continue
    place = places.get(target)
    if place is None:
      raise errors.UserError(f'{folder}: the tensor {PREFIX}{name} has no place in this model')
    current = np.asarray(found[target] if target in found else place.numpy(), np.float32)
    if name.endswith(_ROWS):
      found[target] = _with_rows(
        current, value, _token_indices(fields, name, target == embedding, folder), folder, name
      )
    elif name.endswith(_EMBEDDING_A):
      if is_tied or fields.get('use_dora'):
        why = 'use_dora' if fields.get('use_dora') else 'the head is the embedding (tie_word_embeddings), and has none'
        raise errors.UserError(f'{folder}: the tensor {PREFIX}{name}: an adapter on an embedding: {why}')
      found[target] = current + _embedding_delta(fields, name, others, current.shape, folder)
    elif not name.endswith(_EMBEDDING_B):
      if place.shape != value.shape:
        raise errors.UserError(_of_other_shape(folder, name, value.shape, place.shape))
      found[target] = value
  kept = {name: np.asarray(places[name].numpy()) for name in {*found, embedding}}
  if head is not None and not _is_same(head[1], found.get(embedding, kept[embedding])):
    raise errors.UserError(
      f'{folder}: the tensor {PREFIX}{head[0]} is not the embedding, which is the head of this model '
      '(tie_word_embeddings)'
    )
  return {name: value for name, value in found.items() if not _is_same(value, kept[name])}


def _is_same(value, kept):
  """Whether a value, rounded as a weight is kept, is that weight."""
  return np.array_equal(value.astype(kept.dtype), kept)


def _target_of(name):
  """The name of the weight in the base's folder that a tensor of peft's belongs to."""
  for end in (_ROWS, _EMBEDDING_A, _EMBEDDING_B):
    if name.endswith(end):
      return f'{name.removesuffix(end)}.weight'
  module, _, kind = name.rpartition('.')
  for wrapper in _WRAPPED:
    module = module.removesuffix(wrapper)
  return f'{module}.{kind}'


def _of_other_shape(folder, name, shape, expected):
  text = f'{folder}: the tensor {PREFIX}{name} has the shape {shape}; this model needs {expected}'
  if shape[1:] == expected[1:] and shape[0] > expected[0]:
    text += f': the vocabulary was enlarged; load the base with vocab_size={shape[0]}'
  return text


def _token_indices(fields, name, is_embedding, folder):
  """The tokens whose rows are in a tensor of trained rows."""
  declared = fields.get('trainable_token_indices')
  if isinstance(declared, Mapping):
    module = name.removesuffix(_ROWS)
    declared = next((tokens for end, tokens in declared.items() if f'.{module}'.endswith(f'.{end}')), None)
  elif not is_embedding:
    declared = None
  if declared is None:
    raise errors.UserError(f'{folder}: the tensor {PREFIX}{name}: trainable_token_indices does not name its tokens')
  return declared


def _with_rows(current, value, tokens, folder, name):
  wrong = [token for token in tokens if not 0 <= token < len(current)]
  if wrong or value.shape != (len(tokens), *current.shape[1:]):
    what = f'token {wrong[0]}' if wrong else f'the shape {value.shape} for {len(tokens)} tokens'
    raise errors.UserError(f'{folder}: the tensor {PREFIX}{name}: {what}; the model has {current.shape}')
  current = current.copy()
  current[list(tokens)] = value
  return current


def _embedding_delta(fields, name, others, shape, folder):
  """The addition of an adapter to an embedding, [vocab_size, hidden_size]."""
  a, b = others[name], others.get(f'{name.removesuffix(_EMBEDDING_A)}{_EMBEDDING_B}')
  if b is None or (a.shape[1], b.shape[0]) != shape:
    what = 'has no second matrix' if b is None else f'is for {a.shape[1]} tokens of size {b.shape[0]}'
    raise errors.UserError(f'{folder}: the tensor {PREFIX}{name}: {what}; this model needs {shape}')
  config = _config(fields, name.removesuffix(_EMBEDDING_A), len(a))
  return lora.scaling_of(config) * (b @ a).T


def read(folder: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """(the fields of adapter_config.json, the tensors by name without peft's prefix) of a folder.

  Raises:
    UserError: something is missing, is not finite, or is not implemented.
  """
  path = os.path.join(folder, CONFIG_FILE)
  if not paths.exists(path):
    raise errors.UserError(f'{path}: no such file; a folder of peft has one')
  fields = json_values.read_required_file(path)
  _refuse_others(fields, path)
  return fields, _read(folder)


def attach(
  model: tf_keras.Model,
  fields: Mapping[str, Any],
  tensors: Mapping[str, np.ndarray],
  folder: str,
  quantization: quantized_linear.QuantizationConfig | None = None,
  frozen_dtype: tf.DType | str | None = None,
  modules_to_save: Sequence[str] = (),
) -> None:
  """Attaches adapters with the values of tensors: `load` without a folder.

  Args:
    model: see `load`, as the other arguments.
    fields: see `read`.
    tensors: see `read`; of adapters alone.
    folder: for messages.
    quantization: see `load`.
    frozen_dtype: see `load`.
    modules_to_save: modules that are trained whole, without their values.
  """
  configs, values = _values_of(model, fields, tensors, folder)
  lora.attach_to(model, configs, quantization, frozen_dtype, modules_to_save)
  _assign(model, values)


def assign(model: tf_keras.Model, fields: Mapping[str, Any], tensors: Mapping[str, np.ndarray], folder: str) -> None:
  """Sets the adapters of a model to other values of the same ranks.

  Args:
    model: with adapters.
    fields: see `read`.
    tensors: see `read`, of exactly the modules that have adapters.
    folder: of both, for messages.
  """
  _assign(model, _values_of(model, fields, tensors, folder)[1])


def _values_of(model, fields, tensors, folder):
  """(name of a layer -> its adapter, (name of a layer, row) -> the values of its variables)."""
  modules = _modules(model)
  configs: dict[str, lora.LoraConfig] = {}
  values: dict[tuple[str, int | None], Any] = {}
  for name in sorted({key.partition('.lora_')[0] for key in tensors}):
    if name not in modules:
      raise errors.UserError(f'{folder}: the tensor {PREFIX}{name}{_A} has no place in this model')
    config = config_of(fields, name, tensors, folder)
    for (ours, place), arrays in zip(modules[name], _split(model, modules[name], name, tensors, config, folder)):
      if configs.setdefault(ours, config) != config:
        raise errors.UserError(
          f'{folder}: {name}: has another rank than other rows of {ours}: load with scan_layers=False'
        )
      values[ours, place.row] = arrays
  _check_rows(modules, configs, values, folder)
  return configs, values


def _assign(model, values):
  """Sets the variables of all adapters."""
  for adapter in lora.adapters(model):
    rows = range(adapter.num_rows) if adapter.num_rows else [None]
    for number, variable in enumerate((adapter.lora_a, adapter.lora_b, adapter.lora_magnitude)):
      if variable is not None:
        arrays = [values[adapter.name, row][number] for row in rows]
        variable.assign(np.stack(arrays) if adapter.num_rows else arrays[0])


def _check_rows(modules, configs, values, folder):
  """Refuses stacked layers of which some rows have an adapter, and others none."""
  for name, module in modules.items():
    lacking = [ours for ours, place in module if ours in configs and (ours, place.row) not in values]
    if lacking:
      raise errors.UserError(
        f'{folder}: {name}: has no adapter, and other rows of {lacking[0]} have one: load with scan_layers=False'
      )


def _saved_names(model, fields, others, folder):
  """The modules that were trained whole."""
  names = {name.rpartition('.')[0] for name in others}
  names = {name for name in names if not name.endswith(('.original_module', '.modules_to_save'))}
  declared = fields.get('modules_to_save') or []
  here = {name.rpartition('.')[0] for name in _tensor_places(model)}
  found = {pattern: {name for name in names if name.endswith(pattern)} for pattern in declared}
  for pattern, matching in found.items():
    # For a classifier peft lists the names of all classes of heads.
    is_here = any(name.endswith(pattern) for name in here)
    if not matching and (is_here or not any(found.values())):
      raise errors.UserError(f'{folder}: modules_to_save: {pattern}: its tensors are missing')
  return sorted(set().union(*found.values()))


def _drop_copies(saved, others, folder):
  """Removes the copies of modules that were trained whole, which peft adds if the vocabulary was enlarged."""
  for name, value in saved.items():
    module, _, kind = name.rpartition('.')
    others.pop(f'{module}.original_module.{kind}', None)  # As it was before the training: peft reads past it.
    copy = others.pop(f'{module}.modules_to_save.{kind}', value)
    if not np.array_equal(copy, value):
      raise errors.UserError(f'{folder}: the tensor {PREFIX}{name}: its copy in modules_to_save has other values')


def _assign_saved(model, saved, folder):
  """Sets the weights of the modules that are in a folder whole."""
  places = model_weights.saved_tensors(model)
  for name in sorted(set(places) ^ set(saved)):
    why = 'is missing' if name in places else 'has no place in this model'
    raise errors.UserError(f'{folder}: the tensor {PREFIX}{name} {why}')
  for name, place in places.items():
    if place.shape != saved[name].shape:
      raise errors.UserError(
        f'{folder}: the tensor {PREFIX}{name} has the shape {saved[name].shape}; this model needs {place.shape}'
      )
    place.assign(saved[name])


def _check_targets(fields, tensors, modules, folder):
  """Refuses a model with modules that `target_modules` names and that have no adapter: it has more layers."""
  names = fields.get('target_modules')
  if not isinstance(names, list) or any(fields.get(name) for name in _EXCEPTIONS):
    return
  for target in names:
    for name in modules:
      if (name == target or name.endswith(f'.{target}')) and f'{name}{_A}' not in tensors:
        raise errors.UserError(
          f'{folder}: {name}: has no adapter, and target_modules ({target!r}) names it: the adapters are for another '
          'model'
        )


def _refuse_others(fields, path):
  """Raises for unsupported fields."""
  if fields.get('peft_type') != 'LORA':
    raise errors.UserError(f'{path}: peft_type: {fields.get("peft_type")!r} is not implemented, LORA is')
  if fields.get('bias', 'none') not in _BIASES:
    raise errors.UserError(f'{path}: bias: {fields["bias"]!r} is not implemented, {", ".join(_BIASES)} are')
  start = fields.get('init_lora_weights')
  if start not in _HARMLESS_STARTS:
    raise errors.UserError(
      f'{path}: init_lora_weights: {start!r} changes the base model too; save the adapter with '
      'path_initial_model_for_weight_conversion'
    )
  FILE_FIELDS.check(fields, path)
  if not isinstance(fields.get('r'), int) or not isinstance(fields.get('lora_alpha'), (int, float)):
    raise errors.UserError(f'{path}: r and lora_alpha: expected numbers')


def _read(folder: str) -> dict[str, np.ndarray]:
  """The tensors by name, without their common prefix."""
  path = os.path.join(folder, WEIGHTS_FILE)
  if not paths.exists(path):
    raise errors.UserError(f'{path}: no such file; save the adapter as safetensors, other files are not opened')
  try:
    with package_imports.import_optional('safetensors', path).safe_open(
      paths.local_copy(path), framework='np'
    ) as opened:
      tensors = {name: np.asarray(opened.get_tensor(name), np.float32) for name in opened.keys()}
  except errors.UserError:
    raise
  except Exception as error:  # Its own exception has no name in numpy's half of the library.
    raise errors.UserError(f'{path}: cannot be read as safetensors: {error}') from error
  for name in tensors:
    if not name.startswith(PREFIX):
      raise errors.UserError(f'{path}: the tensor {name} has no place in this model')
    tensor_files.check_finite(tensors[name], f'{path}: the tensor {name}')
  return {name.removeprefix(PREFIX): value for name, value in tensors.items()}


def config_of(fields: Mapping[str, Any], name: str, tensors: Mapping[str, np.ndarray], folder: str) -> lora.LoraConfig:
  """The adapter of a module there: its rank is its tensors'.

  Args:
    fields: see `read`.
    name: of the module, without peft's prefix.
    tensors: see `read`.
    folder: for messages.
  """
  for suffix in (_A, _B, *([_MAGNITUDE] if fields.get('use_dora') else [])):
    if f'{name}{suffix}' not in tensors:
      raise errors.UserError(f'{folder}: the tensor {PREFIX}{name}{suffix} is missing')
  return _config(fields, name, tensors[f'{name}{_A}'].shape[0])


def _config(fields, name, rank):
  alpha = fields['lora_alpha']
  for pattern, other in (fields.get('alpha_pattern') or {}).items():
    if re.match(rf'(.*\.)?({pattern})$', name):
      alpha = other
      break
  return lora.LoraConfig(
    r=rank,
    lora_alpha=float(alpha),
    lora_dropout=float(fields.get('lora_dropout') or 0),
    use_rslora=bool(fields.get('use_rslora')),
    use_dora=bool(fields.get('use_dora')),
  )


def _split(model, module, name, tensors, config, folder):
  """(A [in, r], B [r, out], magnitude [out] or None) of each layer that lies in a module there."""
  linears = _linears(model)
  sizes = [linears[ours].output_size for ours, _ in module]
  a, b, magnitude = (tensors.get(f'{name}{suffix}') for suffix in (_A, _B, _MAGNITUDE))
  expected = {_A: (config.r, linears[module[0][0]].input_size), _B: (sum(sizes), config.r), _MAGNITUDE: (sum(sizes),)}
  for suffix, value in ((_A, a), (_B, b), (_MAGNITUDE, magnitude)):
    if value is not None and value.shape != expected[suffix]:
      raise errors.UserError(
        f'{folder}: the tensor {PREFIX}{name}{suffix} has the shape {value.shape}; this model needs {expected[suffix]}'
      )
  num_groups = module[0][1].num_groups
  magnitudes = [None] * len(sizes) if magnitude is None else family_lib.parted(magnitude, sizes, num_groups)
  for part, of_part in zip(family_lib.parted(b.T, sizes, num_groups), magnitudes):
    yield a.T, part, of_part
