"""GGUF files, which llama.cpp and programs around it read: weights, metadata and tokenizer in one file.

gguf_files.write(model, 'model.gguf', tokenizer, 'q8_0')

Names and layout are those of llama.cpp's convert_hf_to_gguf.py (https://github.com/ggml-org/llama.cpp); the package
`gguf` writes the file.
"""

from collections.abc import Callable, Iterator
import dataclasses
import os
from typing import Any

import numpy as np

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.data import extras
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import gguf_vocabulary
from official_ext.language.modeling import pretrained
from official_ext.language.modeling import rope
from official_ext.language.modeling import tensor_files
from official_ext.language.text import tokenizer as tokenizer_lib

_SUFFIXES = ('.weight', '.bias')
# dtype -> the names of the type of matrices, and of the file's type, in the package. Vectors are always F32.
_TYPES = {
  'float32': ('F32', 'ALL_F32'),
  'float16': ('F16', 'MOSTLY_F16'),
  'bfloat16': ('BF16', 'MOSTLY_BF16'),
  'q8_0': ('Q8_0', 'MOSTLY_Q8_0'),
}
_CAPS = ('attn_logit_softcapping', 'final_logit_softcapping')


@dataclasses.dataclass(frozen=True)
class _Architecture:
  """The models that llama.cpp computes under one name.

  Attributes:
    name: in llama.cpp.
    hidden_act: of all of them.
    is_permuted: whether it rotates dimension 2i of a head together with 2i + 1, so that queries and keys are permuted.
    has_biases: whether all linear layers may have one; queries, keys and values of Qwen2 always have.
    is_tied: whether the embedding is always the head.
    alternates: whether the first, third, ... layer has the window, as Gemma 2 has them.
  """

  name: str
  hidden_act: str = 'silu'
  is_permuted: bool = False
  has_biases: bool = False
  is_tied: bool = False
  alternates: bool = False


_LLAMA = _Architecture('llama', is_permuted=True, has_biases=True)
_GEMMA = _Architecture('gemma', 'gelu_pytorch_tanh', is_tied=True)
_FAMILIES = {
  'llama': _LLAMA,
  'mistral': _LLAMA,
  'qwen2': _Architecture('qwen2'),
  'qwen3': _Architecture('qwen3'),
  'gemma': _GEMMA,
  'gemma2': dataclasses.replace(_GEMMA, name='gemma2', alternates=True),
}


def check(config: decoder_config.DecoderConfig, where: str) -> None:
  """Refuses a decoder that llama.cpp does not compute, or its family cannot express.

  Args:
    config: of the model.
    where: the start of messages, such as the folder.

  Raises:
    UserError: with the field.
  """
  if config.position_embedding_type == 'alibi':  # The converter of llama.cpp would write rotations without a word.
    raise errors.UserError(
      f'{where}: position_embedding_type: alibi: llama.cpp computes {config.model_type} with rotations alone; convert '
      'without --to=gguf'
    )
  known = _FAMILIES.get(config.model_type)
  if known is None:
    raise errors.UserError(
      f'{where}: model_type: {config.model_type} is not written as GGUF, {", ".join(_FAMILIES)} are; convert without '
      '--to=gguf, and with convert_hf_to_gguf.py of llama.cpp'
    )
  scaling = config.rope_parameters
  layers = decoder_config.layer_types(config)
  alternating = tuple(
    decoder_config.FULL if number % 2 else decoder_config.SLIDING for number in range(config.num_hidden_layers)
  )
  has_biases = config.attention_out_bias or config.mlp_bias or (config.attention_bias and config.model_type != 'qwen2')
  for field, is_wrong, wanted in (
    ('hidden_act', config.hidden_act != known.hidden_act, known.hidden_act),
    ('attention_bias', has_biases and not known.has_biases, 'False'),
    ('tie_word_embeddings', known.is_tied and not config.tie_word_embeddings, 'True'),
    ('layer_types', known.alternates and layers != alternating, 'a window in every other layer'),
    ('query_pre_attn_scalar', _has_other_scale(config), 'the size of a head'),
    # It divides by them.
    *((cap, known.alternates and getattr(config, cap) <= 0, 'a cap above 0') for cap in _CAPS),
  ):
    if is_wrong:
      value = getattr(config, field)
      raise errors.UserError(f'{where}: {field}: {value!r}: llama.cpp computes {known.name} with {wanted} alone')
  kinds = ('default', 'linear', 'llama3') if known is _LLAMA else ('default', 'linear')
  if scaling.rope_type not in kinds:
    raise errors.UserError(
      f'{where}: rope_parameters.rope_type: {scaling.rope_type} is not written as GGUF, {", ".join(kinds)} are'
    )
  try:
    pretrained.check_saves(config)
  except errors.UserError as error:
    raise errors.UserErrors([f'{where}: {line}' for line in errors.lines_of(error)]) from error


def _has_other_scale(config):
  """Whether scores are scaled otherwise than in llama.cpp: by heads, and in Gemma 2 27B by hidden_size / heads."""
  size = decoder_config.head_dim(config)
  if config.model_type == 'gemma2' and config.num_hidden_layers == 46:
    size = config.hidden_size // config.num_attention_heads
  return not np.isclose(decoder_config.attention_multiplier(config), size**-0.5, rtol=1e-6)


def context_length(config: decoder_config.DecoderConfig) -> int:
  """The longest context that the file states: the window, if llama.cpp has none and the model has."""
  has_window = decoder_config.SLIDING in decoder_config.layer_types(config)
  if has_window and not _FAMILIES[config.model_type].alternates:
    return min(config.max_position_embeddings, config.sliding_window)
  return config.max_position_embeddings


def write(
  model: decoder.LanguageModel, path: str, tokenizer: tokenizer_lib.Tokenizer, dtype: str = 'float16', name: str = ''
) -> None:
  """Writes a file, completely or not at all. It needs the memory of one tensor beside the model.

  Args:
    model: a plain `LanguageModel`, without adapters and packed weights.
    path: of the file, on a local disk.
    tokenizer: of the model.
    dtype: of matrices, one of `_TYPES`. Q8_0 has 8 bits a weight, and a scale for each 32; a matrix with rows of
      another multiple is float16 then. Vectors are float32.
    name: that programs show; '' for the file's name.

  Raises:
    UserError: the package is missing; llama.cpp does not compute the decoder or the tokenizer; a weight is not finite.
  """
  library: Any = extras.load('gguf', 'a GGUF file', 'gguf')
  check(model.config, path)
  known = _FAMILIES[model.config.model_type]
  type_name, file_type = _TYPES[dtype]
  partial = os.path.join(os.path.dirname(path), f'.{os.path.basename(path)}.partial')
  writer = library.GGUFWriter(partial, known.name)
  writer.add_type('model')
  writer.add_name(name or os.path.basename(path).removesuffix('.gguf'))
  writer.add_file_type(library.LlamaFileType[file_type])
  writer.add_quantization_version(library.GGML_QUANT_VERSION)
  _add_structure(writer, library, model.config)
  gguf_vocabulary.add(writer, library, tokenizer, model.config.vocab_size, path)
  tensors = list(_tensors(library, model, library.GGMLQuantizationType[type_name]))
  for tensor_name, shape, kind, _ in tensors:
    block, size = library.GGML_QUANT_SIZES[kind]
    num_bytes = int(np.prod(shape)) // block * size
    writer.add_tensor_info(tensor_name, shape, np.dtype(np.float32), num_bytes, raw_dtype=kind)
  try:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor_name, _, kind, value in tensors:
      array = np.ascontiguousarray(value(), np.float32)
      tensor_files.check_finite(array, f'{path}: the tensor {tensor_name}')
      packed = library.quants.quantize(array, kind)
      if packed.dtype == np.float16:
        tensor_files.check_finite(packed, f'{path}: in float16, the tensor {tensor_name}')
      writer.write_tensor_data(packed)
    writer.close()
    os.replace(partial, path)
  finally:
    if os.path.exists(partial):
      os.remove(partial)
  paths.sync_to_disk(os.path.dirname(path) or '.')


def _add_structure(writer: Any, library: Any, config: decoder_config.DecoderConfig) -> None:
  """The metadata of the decoder."""
  size, scaling = decoder_config.head_dim(config), config.rope_parameters
  writer.add_vocab_size(config.vocab_size)
  writer.add_context_length(context_length(config))
  writer.add_embedding_length(config.hidden_size)
  writer.add_block_count(config.num_hidden_layers)
  writer.add_feed_forward_length(config.intermediate_size)
  writer.add_head_count(config.num_attention_heads)
  writer.add_head_count_kv(config.num_key_value_heads)
  writer.add_key_length(size)
  writer.add_value_length(size)
  writer.add_layer_norm_rms_eps(config.norm_eps)
  writer.add_rope_dimension_count(size)
  writer.add_rope_freq_base(scaling.rope_theta)
  if scaling.rope_type == 'linear':
    writer.add_rope_scaling_type(library.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(scaling.factor)
  if _FAMILIES[config.model_type].alternates:
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)


def _tensors(library, model, kind) -> Iterator[tuple[str, tuple[int, ...], Any, Callable[[], np.ndarray]]]:
  """(name in the file, shape, type, a function that makes the array) of every tensor."""
  config = model.config
  known, types = _FAMILIES[config.model_type], library.GGMLQuantizationType
  architectures = {name: architecture for architecture, name in library.MODEL_ARCH_NAMES.items()}
  names = library.get_tensor_name_map(architectures[known.name], config.num_hidden_layers)
  if config.rope_parameters.rope_type == 'llama3':
    original = config.rope_parameters.original_max_position_embeddings or config.max_position_embeddings
    factors = rope.frequency_factors(config.rope_parameters, decoder_config.head_dim(config), original)
    yield 'rope_freqs.weight', factors.shape, types.F32, lambda: factors
  for theirs, shape, value in pretrained.tensors(model):
    name = names.get_name(theirs, try_suffixes=_SUFFIXES)
    assert name is not None, theirs
    chosen = types.F32 if len(shape) == 1 else kind
    if shape[-1] % library.GGML_QUANT_SIZES[chosen][0]:
      chosen = types.F16
    yield name, shape, chosen, _laid_out(config, known, theirs, value)


def _laid_out(config, known, theirs, value):
  """A function that makes an array as llama.cpp has it."""
  if config.norm_offset and theirs.endswith('norm.weight'):
    return lambda: np.asarray(value(), np.float32) + config.norm_offset
  for name, heads in (('q_proj', config.num_attention_heads), ('k_proj', config.num_key_value_heads)):
    if known.is_permuted and f'.{name}.' in theirs:
      return lambda: interleaved(value(), heads)
  return value


def interleaved(value: np.ndarray, num_heads: int) -> np.ndarray:
  """Outputs [heads * head_dim, ...] in which dimension i of a head and i + head_dim / 2 stand side by side."""
  parts = value.reshape(num_heads, 2, value.shape[0] // num_heads // 2, *value.shape[1:])
  return np.swapaxes(parts, 1, 2).reshape(value.shape)
