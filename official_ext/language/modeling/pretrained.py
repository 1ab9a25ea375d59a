"""Reads and writes models in Hugging Face's folders: config.json, weights in safetensors files, the tokenizer's files.

    model = pretrained.load('Llama-3.2-1B')
    logits = model(input_ids)                      # int32 [b, t] -> float32 [b, t, vocab_size]
    pretrained.save(model, 'mine')                 # transformers loads it, too

A folder holds the weights of a family's layers and nothing about code. `check_representable` refuses a subclass,
another layer or a further weight, which would be lost without a message. `probe` and `check_read_back` check that a
written folder computes the same as its model, by the logits of a few tokens.

Example:

  >>> import os, tempfile
  >>> config = ext.DecoderConfig(vocab_size=100, hidden_size=16, intermediate_size=32, num_hidden_layers=1)
  >>> model, folder = ext.LanguageModel(config), tempfile.mkdtemp()
  >>> ext.pretrained.save(model, folder)
  >>> sorted(os.listdir(folder))
  ['config.json', 'model.safetensors']
  >>> ids = tf.constant([[1, 2, 3]])
  >>> bool(tf.reduce_all(ext.pretrained.load(folder)(ids) == model(ids)))
  True
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import os
from typing import Any, NamedTuple

from absl import logging
import numpy as np
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths
from official_ext.base.run_folder import model_folders
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import families
from official_ext.language.modeling import layers
from official_ext.language.modeling import lora
from official_ext.language.modeling import model_weights
from official_ext.language.modeling import quantized_linear
from official_ext.language.modeling import tensor_files
from official_ext.language.modeling.families import family as family_lib
from official_ext.language.modeling.families import rope_fields
from official_ext.language.text import tokenizer as tokenizer_lib

_MODELS = (decoder.LanguageModel, decoder.SequenceClassifier)
_PACKAGE = 'official_ext.language.modeling.'
_HINT = '; `official-ext export` writes a SavedModel of the run, which holds the function of the model'


def check_representable(model: tf_keras.Model, where: str) -> None:
  """Refuses a model that a folder would represent as another one.

  Args:
    model: a `LanguageModel` or a `SequenceClassifier`, with adapters or packed weights or without.
    where: the start of error messages: the folder to write.

  Raises:
    UserError: the model or one of its layers is of a class that is not this library's own, or computes with another
      function than its class has; or a weight lies outside of the decoder and its head. With its name.
  """
  if type(model) not in _MODELS:
    raise errors.UserError(
      f'{where}: the model is a {_name(type(model))}; a Hugging Face folder represents an ext.LanguageModel or an '
      f'ext.SequenceClassifier, not a subclass{_HINT}'
    )
  for path, part in _parts(model):
    if not type(part).__module__.startswith(_PACKAGE):
      raise errors.UserError(
        f'{where}: the model has {path}, a {_name(type(part))}: a Hugging Face folder represents no class but those of '
        f'official_ext.language.modeling{_HINT}'
      )
    if 'call' in vars(part):
      raise errors.UserError(
        f'{where}: `call` of {path} was replaced: a Hugging Face folder represents the {_name(type(part))} alone{_HINT}'
      )
  extra = [variable.name for variable in _variables_elsewhere(model)]
  if extra:
    more = f', and {len(extra) - 1} more' if len(extra) > 1 else ''
    raise errors.UserError(
      f'{where}: the model has the weight {extra[0]}{more}, which lies outside of the decoder and its head: a Hugging '
      f'Face folder has no place for it{_HINT}'
    )


def _name(cls: type) -> str:
  return f'{cls.__module__}.{cls.__qualname__}'


def _parts(model: tf_keras.Model) -> Iterator[tuple[str, Any]]:
  """(name, layer) of the model and of all below it that compute something."""
  yield model.name, model
  for part in model.submodules:
    if not isinstance(part, tf_keras.metrics.Metric):
      yield getattr(part, 'name', ''), part


def _variables_elsewhere(model: tf_keras.Model) -> list[Any]:
  """The variables that are not a weight of a layer of the decoder, or of one whose name another layer has too."""
  known = {id(slot.variable) for slot in model_weights.find_slots(model).values()}
  notes = {
    id(note)
    for holder in (model, *model_weights.layer_parts(model))
    for note in model_weights.frozen_notes(holder).values()
  }
  return [variable for variable in model.variables if id(variable) not in known | notes]


_ROWS, _TOKENS = 2, 16
# How much of the largest logit may differ: the same weights, computed once more in float32, or in fewer bits.
_TOLERANCE, _TOLERANCE_OF_HALF = 1e-4, 5e-2


class Probe(NamedTuple):
  """The outputs of a model for a few tokens.

  Attributes:
    ids: int32 [b, t], drawn at random.
    outputs: logits [b, t, vocab_size] of a language model, scores [b, num_labels] of a classifier; float32.
    policy: the dtype policy of the model.
    num_labels: of a classifier; None of a language model.
  """

  ids: np.ndarray
  outputs: np.ndarray
  policy: Any
  num_labels: int | None


def probe(model: tf_keras.Model, dtype: str) -> Probe:
  """Computes the outputs of a model whose weights are rounded to the dtype in which they were written.

  Args:
    model: a `LanguageModel` or a `SequenceClassifier`. Its weights stay rounded.
    dtype: float32, bfloat16 or float16.
  """
  for variable in model.variables:
    if variable.dtype.is_floating and variable.dtype.name != dtype:
      variable.assign(tf.cast(tf.cast(variable, dtype), variable.dtype))
  length = min(_TOKENS, model.config.max_position_embeddings)
  ids = np.random.default_rng(0).integers(0, model.config.vocab_size, [_ROWS, length]).astype(np.int32)
  num_labels = model.num_labels if isinstance(model, decoder.SequenceClassifier) else None
  return Probe(ids, np.asarray(model(ids), np.float32), model._dtype_policy, num_labels)


def check_read_back(expected: Probe, folder: str) -> None:
  """Compares the outputs of a folder with the outputs of the model that was written.

  Args:
    expected: of the model.
    folder: that was written.

  Raises:
    UserError: they differ by more than rounding.
  """
  if expected.num_labels is None:
    model: Any = load(folder, dtype=expected.policy)
  else:
    model = load_classifier(folder, expected.num_labels, dtype=expected.policy)
  found = np.asarray(model(expected.ids), np.float32)
  is_half = expected.policy.compute_dtype != 'float32'
  largest = np.abs(expected.outputs[np.isfinite(expected.outputs)]).max(initial=0.0)
  bound = (_TOLERANCE_OF_HALF if is_half else _TOLERANCE) * largest
  if not np.allclose(found, expected.outputs, rtol=0, atol=bound, equal_nan=True):
    difference = np.nanmax(np.abs(found - expected.outputs))
    raise errors.UserError(
      f'{folder}: read back, its outputs differ by {difference:.3g} from those of the model, whose largest is '
      f'{largest:.3g}: the model computes something that a Hugging Face folder does not represent; `official-ext '
      'export` writes a SavedModel of the run'
    )


CONFIG_FILE = model_folders.CONFIG_FILE
GENERATION_FILE = 'generation_config.json'
_SPECIAL_IDS = ('bos_token_id', 'eos_token_id', 'pad_token_id')


@dataclasses.dataclass(frozen=True)
class Origin:
  """The files of a folder other than the weights.

  Attributes:
    folder: its path.
    fields: the contents of config.json.
    files: the contents of generation_config.json and the tokenizer's files, as far as they exist, by their names.
    stamp: sizes and times of the files with the weights when they were read: see `tensor_files.TensorFiles.stamp`.
  """

  folder: str
  fields: json_values.JsonMapping
  files: Mapping[str, bytes]
  stamp: tuple[object, ...] = ()


def load(
  folder: str,
  dtype: tf.DType | str | None = None,
  ignore_fields: tuple[str, ...] = (),
  block_class: type[decoder.Block] = decoder.Block,
  quantization: quantized_linear.QuantizationConfig | None = None,
  frozen_dtype: tf.DType | str | None = None,
  vocab_size: int | None = None,
  **changes: object,
) -> decoder.LanguageModel:
  """The model of a folder. It needs the weights once in memory, in their kept form, and a tensor besides.

  Args:
    folder: with config.json and model.safetensors, or model.safetensors.index.json and its shards.
    dtype: a Keras dtype policy: 'float32', 'mixed_bfloat16' (weights float32), 'bfloat16'; None for the global one.
    ignore_fields: fields of config.json that are not known here, and are to be ignored.
    block_class: of the blocks.
    quantization: how the kernels of linear layers are kept: each is packed immediately. The model is frozen
      then: `lora.attach` puts adapters on it.
    frozen_dtype: in which weights are kept that are not packed, such as 'bfloat16'. The model is frozen then.
    vocab_size: enlarges the vocabulary to this size, such as for a tokenizer with more tokens: new rows of the
      embedding and of the head are the mean of the folder's rows. None for the folder's size.
    **changes: fields of `DecoderConfig` that change how the model runs, not its weights: `remat`, `scan_layers`,
      `attention_dropout`, `residual_dropout`, `embedding_dropout`.

  Raises:
    errors.UserError: for a folder that lacks something, an architecture or a field that is not implemented, a tensor
      that is missing, has no place here, another shape or values that are not finite, and for weights in a pickle
      file, which is never opened.
  """
  make = functools.partial(
    decoder.LanguageModel, block_class=block_class, initializer=tf.zeros_initializer, dtype=dtype
  )
  return _load(folder, make, ignore_fields, changes, quantization, frozen_dtype, vocab_size)


def load_classifier(
  folder: str,
  num_labels: int = 1,
  dtype: tf.DType | str | None = None,
  ignore_fields: tuple[str, ...] = (),
  block_class: type[decoder.Block] = decoder.Block,
  **changes: object,
) -> decoder.SequenceClassifier:
  """A model that scores texts, from a folder of one, or of a language model: then its head is new.

  Args:
    folder: see `load`; of transformers' `...ForSequenceClassification`, `...ForCausalLM`, or the bare decoder.
    num_labels: how many scores a text gets; 1 is a reward model.
    dtype: see `load`, as the rest.
    ignore_fields: see `load`.
    block_class: see `load`.
    **changes: see `load`.

  Raises:
    errors.UserError: as `load`; or a folder's head has another number of scores.
  """

  def make(config):
    family_lib.check_classifier(families.FAMILIES[config.model_type], folder)
    return decoder.SequenceClassifier(config, num_labels, block_class, tf.zeros_initializer, dtype)

  return _load(folder, make, ignore_fields, changes)


def num_labels(folder: str) -> int | None:
  """How many scores the classifier of a folder gives a text; None if the folder is another model's.

  Raises:
    errors.UserError: as `load`.
  """
  config, fields = read_config(folder)
  if families.FAMILIES[config.model_type].sequence_classifier not in (fields.get('architectures') or ()):
    return None
  shapes = dict(tensor_files.TensorFiles(folder).shapes())
  return shapes.get(family_lib.SCORES, (1,))[0]  # `load` reports its absence.


def _load(folder, make, ignore_fields, changes, quantization=None, frozen_dtype=None, vocab_size=None):
  config, fields = read_config(folder, ignore_fields)
  if vocab_size is not None and vocab_size < config.vocab_size:
    raise errors.UserError(f'vocab_size: {vocab_size}: {folder} has {config.vocab_size} tokens; name more, or none')
  num_tokens, config.vocab_size = config.vocab_size, vocab_size or config.vocab_size
  for name, value in changes.items():
    if name not in decoder_config.SETTINGS:
      raise errors.UserError(f'{name}: is the value of the training; load changes {decoder_config.SETTINGS}')
    setattr(config, name, value)
  files = tensor_files.TensorFiles(folder)  # Before the weights are made: a folder without any is refused at once.
  stamp = files.stamp()
  with layers.meta_weights():
    model = make(config)
  quantization = quantization or quantized_linear.QuantizationConfig()
  quantized_linear.expect(model, quantization)
  if frozen_dtype is not None:
    model_weights.expect_frozen(model, frozen_dtype)
  _fill(model, files, fields, num_tokens)
  quantized_linear.quantize(model, quantization)
  if quantization.method != 'none' or frozen_dtype is not None:
    model_weights.freeze(model, dtype=frozen_dtype)
  model.origin = model.decoder.origin = Origin(folder, fields, _carried_files(folder), stamp)
  return model


def _carried_files(folder):
  """The files that are copied unchanged from the folder loaded to the folder saved."""
  found = {name: os.path.join(folder, name) for name in (*tokenizer_lib.file_names(folder), GENERATION_FILE)}
  return {name: paths.read(path) for name, path in found.items() if paths.exists(path)}


def settings(config: decoder_config.DecoderConfig) -> dict[str, Any]:
  """The settings of a configuration for running a model, if not the defaults: changes for `load`."""
  default = type(config)()
  values = {name: getattr(config, name) for name in decoder_config.SETTINGS}
  return {name: value for name, value in values.items() if value != getattr(default, name)}


def read_config(
  folder: str, ignore_fields: tuple[str, ...] = ()
) -> tuple[decoder_config.DecoderConfig, dict[str, Any]]:
  """Reads a folder's config.json, without its weights.

  Args:
    folder: of a Hugging Face model.
    ignore_fields: names of unsupported fields that do not lead to an error.

  Returns:
    (the structure of the decoder, the fields of the file).

  Raises:
    UserError: there is no such folder or file, it holds adapters alone, or the model is unsupported.
  """
  path = os.path.join(folder, CONFIG_FILE)
  if not paths.is_folder(folder):
    raise errors.UserError(f'{folder}: no such folder')
  if not paths.exists(path):
    if paths.exists(os.path.join(folder, model_folders.ADAPTER_CONFIG_FILE)):
      raise errors.UserError(f'{folder}: {model_folders.kind_of(folder)}')
    raise errors.UserError(f'{path}: no such file; a folder of Hugging Face has one')
  fields = json_values.read_required_file(path)
  family = families.find(fields.get('model_type'), path)
  return family_lib.read(family, fields, path, ignore_fields), fields


_OF_TOKENS = ('decoder/embed_tokens/embeddings', 'lm_head/kernel', 'lm_head/bias')


def _fill(model, files, fields, num_tokens):
  """Sets every weight, file by file; of `num_tokens` tokens, and further ones if the model has more."""
  family = families.FAMILIES[model.config.model_type]
  places = _places(family, model)
  names = {family_lib.full_name(family, name): name for name in files.names}
  is_language_model = isinstance(model, decoder.LanguageModel)
  of_classifier = family.sequence_classifier in (fields.get('architectures') or ())
  hint = ''
  if is_language_model and of_classifier:
    hint = (
      f'; it is a classifier ({family.sequence_classifier}), which writes no text: see ext.pretrained.load_classifier'
    )
  # A classifier may start with the decoder of a language model.
  is_new = set() if is_language_model or of_classifier else {family_lib.SCORES}
  missing = [name for name in places if name not in names and name not in is_new]
  if missing:
    raise errors.UserError(f'{files.folder}: the tensor {missing[0]} is missing{_and_more(missing)}{hint}')
  is_tied = model.config.tie_word_embeddings
  extra = [full for full in names if full not in places and not family_lib.is_ignored(family, full)]
  heads = (family_lib.LM_HEAD, family_lib.LM_HEAD_BIAS)
  extra = [full for full in extra if full not in heads or (is_language_model and not is_tied)]
  if extra:
    raise errors.UserError(f'{files.folder}: the tensor {names[extra[0]]} has no place here{_and_more(extra)}{hint}')
  for name, shape in files.shapes():
    place = places.get(family_lib.full_name(family, name))
    expected = None if place is None else place.shape
    if place is not None and place.paths[0] in _OF_TOKENS:
      expected = (num_tokens, *place.shape[1:])
    if expected is not None and expected != shape:
      raise errors.UserError(
        f'{files.folder}: the tensor {name} has the shape {shape}; the configuration says {expected}'
      )
  for name, value in files.tensors(lambda name: family_lib.full_name(family, name) in places):
    tensor_files.check_finite(value, f'{files.folder}: the tensor {name}')
    place = places[family_lib.full_name(family, name)]
    if place.shape != value.shape:
      mean = value.astype(np.float32).mean(axis=0, keepdims=True).astype(value.dtype)
      value = np.concatenate([value, np.repeat(mean, place.shape[0] - len(value), axis=0)])
    place.assign(value)
    del value  # Before the next one is read.
  layers.finish_weights(model_weights.layer_parts(model))
  if is_language_model and is_tied and family_lib.LM_HEAD in names:
    _check_tied(model, files, names[family_lib.LM_HEAD])


def _check_tied(model, files, name):
  """A file may hold the head of a tied model once more; another one would be lost."""
  embeddings = model_weights.Slot(model.decoder.embed_tokens.embeddings).numpy()
  for _, value in files.tensors(lambda found: found == name):
    same = value.shape[1:] == embeddings.shape[1:] and len(value) <= len(embeddings)
    if not same or not np.array_equal(value.astype(embeddings.dtype), embeddings[: len(value)]):
      raise errors.UserError(
        f'{files.folder}: the tensor {name} is not the embedding, though {CONFIG_FILE} says tie_word_embeddings; '
        'set it to false there if the head was trained apart'
      )


def _and_more(names):
  return f', and {len(names) - 1} more' if len(names) > 1 else ''


def _places(family, model):
  """Full name -> `model_weights.TensorPlace`, of every weight."""
  slots = model_weights.find_slots(model)
  places = model_weights.find_tensor_places(model.config, slots)
  left = sorted(set(slots) - {path for place in places.values() for path in place.paths})
  if left:
    raise errors.UserError(f'{left[0]}: {family.model_type} has no tensor for this weight{_and_more(left)}')
  return places


def tensors(model: decoder.LanguageModel) -> list[tuple[str, tuple[int, ...], Callable[[], np.ndarray]]]:
  """(name, shape, a function that makes the array) of each tensor of a model's folder, by the names of its family.

  Raises:
    errors.UserError: the family has no tensor for a weight.
  """
  places = _places(families.find(model.config.model_type, 'model_type'), model)
  return [(name, place.shape, place.numpy) for name, place in places.items()]


def save(
  model: decoder.LanguageModel | decoder.SequenceClassifier,
  folder: str,
  dtype: str | None = None,
  max_shard_bytes: int = 5 * 10**9,
  tokenizer: tokenizer_lib.Tokenizer | None = None,
) -> None:
  """Writes a folder that transformers, and `load` or `load_classifier`, read.

  Args:
    model: to be saved, as the family `model.config.model_type`.
    folder: is made if it is missing. Weights that it holds are replaced.
    dtype: of the tensors: 'float32', 'bfloat16' or 'float16'; None for the variables' own.
    max_shard_bytes: no file is larger, unless a single tensor is.
    tokenizer: whose files are written; None for the files of the folder that the model is from. config.json names its
      special tokens, if the model's own does not, and generation_config.json its `declared_stops`.

  Raises:
    errors.UserError: for a model that its family cannot express or a folder not represent (`check_representable`),
      that has adapters or packed weights, or whose weights are not finite; or transformers would make other tokens of
      the tokenizer's files in a folder of this model. The weights in the folder are unchanged.
  """
  _check_plain(model, folder)
  check_representable(model, folder)
  _check_tokenizer(model, folder, tokenizer)
  family = families.find(model.config.model_type, 'model_type')
  origin = model.origin
  dialect = rope_fields.OLD if origin is None else rope_fields.dialect_of(origin.fields)
  fields = {} if origin is None else _carried_fields(family, origin.fields)
  fields.update(family_lib.write(family, model.config, dialect))
  for name in _SPECIAL_IDS if tokenizer is not None else ():
    if fields.get(name) is None and getattr(tokenizer, name) is not None:
      fields[name] = getattr(tokenizer, name)
  if isinstance(model, decoder.SequenceClassifier):
    family_lib.check_classifier(family, folder)
    padding = padding_token(model, tokenizer)
    if tokenizer is not None and padding is not None and tokenizer.eos_token_id == padding:
      logging.warning(
        '%s: pad_token_id: %s ends texts too: transformers scores the last token that is not padding, and this model '
        'the last one; name another pad_token',
        folder,
        tokenizer.eos_token_id,
      )
    fields['architectures'] = [family.sequence_classifier]
    fields.update(_labels(model))
  places = _places(family, model)
  written = dtype or next(iter(places.values())).slots[0].variable.dtype.name
  if written not in ('float32', 'bfloat16', 'float16'):
    raise errors.UserError(f'dtype: {written!r} is not known; known are float32, bfloat16, float16')
  fields['torch_dtype' if dialect == rope_fields.OLD else 'dtype'] = written
  paths.make_folder(folder)
  tensor_files.write(folder, {name: place.numpy for name, place in places.items()}, written, max_shard_bytes)
  for name, content in _files_beside(origin, tokenizer).items():
    path = os.path.join(folder, name)
    paths.make_folder(os.path.dirname(path))
    paths.write_atomically(path, content)
  tensor_files.write_json(os.path.join(folder, CONFIG_FILE), fields)
  if tokenizer is not None:
    write_stops(folder, tokenizer.declared_stops)


def padding_token(model: tf_keras.Model, tokenizer: tokenizer_lib.Tokenizer | None) -> object:
  """The number of the padding token in config.json of a model's folder, as `save` writes it; None for none."""
  declared = None if model.origin is None else model.origin.fields.get('pad_token_id')
  return tokenizer.pad_token_id if declared is None and tokenizer is not None else declared


def write_stops(folder: str, stop_token_ids: Sequence[int]) -> None:
  """Names tokens at which generation stops in a folder's generation_config.json, if the folder does not name them.

  Args:
    folder: of a model or of adapters; its other settings stay.
    stop_token_ids: the numbers of all.
  """
  path = os.path.join(folder, GENERATION_FILE)
  config = json_values.read_file(os.path.join(folder, CONFIG_FILE)) or {}
  fields = json_values.read_required_file(path) if paths.exists(path) else None
  known = (config if fields is None else fields).get('eos_token_id')
  if {*stop_token_ids} <= {*(known if isinstance(known, list) else [known])}:
    return
  if fields is None:
    fields = {name: config[name] for name in _SPECIAL_IDS if config.get(name) is not None}
  tensor_files.write_json(path, {**fields, 'eos_token_id': list(stop_token_ids)})


def _labels(model):
  """The names of a classifier's scores: as in the folder that it is from, if it has as many.

  Transformers knows the number of scores by these alone.
  """
  declared = {} if model.origin is None else {name: model.origin.fields.get(name) for name in ('id2label', 'label2id')}
  if declared and all(isinstance(names, dict) and len(names) == model.num_labels for names in declared.values()):
    return declared
  names = [f'LABEL_{number}' for number in range(model.num_labels)]
  return {
    'id2label': {str(number): name for number, name in enumerate(names)},
    'label2id': dict(zip(names, range(len(names)))),
  }


def _check_plain(model, folder):
  """A file of Hugging Face has no place for adapters with the weights, nor for this form of packed weights."""
  packed = any(isinstance(part, quantized_linear.QuantizedLinear) for part in model_weights.layer_parts(model))
  if lora.adapters(model):
    raise errors.UserError(
      f'{folder}: the model has adapters: merge first (ext.lora.merge), or save the adapters (ext.peft_folders.save)'
    )
  if packed:
    raise errors.UserError(f'{folder}: the weights of the model are packed: unpack first (ext.lora.merge)')


def _check_tokenizer(model, folder, tokenizer):
  """In folders of some families transformers makes a special class of any tokenizer."""
  model_type = model.config.model_type
  if tokenizer is not None and tokenizer.beside(model_type).digest != tokenizer.digest:
    raise errors.UserError(
      f'{folder}: beside a model of type {model_type}, transformers makes other tokens of this tokenizer; train and '
      f'save with tokenizer.beside({model_type!r})'
    )


def _files_beside(origin, tokenizer):
  """Name -> content of the files saved with weights and configuration."""
  files = {} if origin is None else dict(origin.files)
  if tokenizer is None:
    return files
  return {**{name: files[name] for name in files if name == GENERATION_FILE}, **tokenizer.saved_files}


def check_saves(config: decoder_config.DecoderConfig) -> None:
  """Refuses a decoder that `save` would refuse, before it is trained.

  Raises:
    errors.UserError: for a field that the family of `config.model_type` cannot express.
  """
  family_lib.write(families.find(config.model_type, 'model_type'), config)


def _carried_fields(family, fields):
  """The fields of the configuration that are not the decoder's, such as ids of special tokens."""
  handled = {*family_lib.NEUTRAL, *family.neutral, *family.fields, *family.layers.names, *family.others.names}
  handled.update(('dtype', 'torch_dtype'))
  handled.update(() if family.rope is None else family.rope.names)
  return {name: value for name, value in fields.items() if name not in handled}
