"""Signatures of SavedModels that take encoded images, serialized tf.Examples, or texts in place of tensors.

For Model Garden's tasks its modules in `official.vision.serving` and `official.nlp.serving` compute them. For other
tasks on images, a decoder precedes the task's own signature.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any

import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.data import config_fields
from official_ext.data import image_preprocessing
from official_ext.deployment import export_options
from official_ext.deployment import run_examples
from official_ext.deployment import tensor_functions
from official_ext.training.trained import serving
from official_ext.training.trained import trained_model

ENCODED = 'image/encoded'  # The feature of a tf.Example that holds an image.
_BYTES = tf.TensorSpec([None], tf.string, 'inputs')
_EXAMPLES_OF_RANGE = 32


def of_input(trained: trained_model.TrainedModel, kind: str) -> tensor_functions.TensorFunction:
  """The computation of a SavedModel for an input.

  Args:
    trained: the model.
    kind: one of `export_options.INPUTS`.

  Raises:
    UserError: the task cannot take this input; the message has the reason.
  """
  base = tensor_functions.of_signature(trained)
  if kind == export_options.TENSOR:
    return base
  if kind == export_options.TEXT:
    return _of_texts(trained, base)
  if serving.image_module(trained) is not None:
    return _of_model_garden_images(trained, base, kind)
  module = serving.text_module(trained)
  if module is not None and kind == export_options.TF_EXAMPLE:
    return _of_token_examples(trained, base)
  return _of_own_images(trained, base, kind)


# Images.


def _of_model_garden_images(
  trained: trained_model.TrainedModel, base: tensor_functions.TensorFunction, kind: str
) -> tensor_functions.TensorFunction:
  """A signature of a task of Model Garden that takes images as bytes."""
  (spec,) = base.specs.values()
  channels = spec.shape[-1]
  if channels not in (1, 3):
    raise errors.UserError(f'--input={kind}: the model takes {channels} channels; use --input={export_options.TENSOR}')
  as_jpeg = config_fields.of_data(trained.evaluated_data).decode_jpeg_only is not False
  decode = functools.partial(image_preprocessing.decode, channels=channels, as_jpeg=as_jpeg)
  if base.files is not None:
    base = dataclasses.replace(base, files=dataclasses.replace(base.files, as_jpeg=as_jpeg))

  def of_pixels(images):
    return np.stack([image_preprocessing.as_stored(tf.constant(each)) for each in images]) if as_jpeg else images

  return _of_encoded(base, kind, _feature_of(trained), serving.image_module(trained, decode=decode), of_pixels)


def _feature_of(trained: trained_model.TrainedModel) -> str:
  """The feature of the run's tf.Examples with the image."""
  data = config_fields.of_data(trained.evaluated_data)
  return data.image_field_key if data.image_feature is None else data.image_feature.feature_name


def _of_own_images(
  trained: trained_model.TrainedModel, base: tensor_functions.TensorFunction, kind: str
) -> tensor_functions.TensorFunction:
  """The same for a task that takes float images of one size.

  Files become images as `Task.image_preprocessing` states, or else by the defaults of TensorFlow, for a range of values
  that the examples of the run show.
  """
  refusal = f'--input={kind}: {type(trained.task).__name__} takes'
  if len(base.specs) != 1:
    raise errors.UserError(f'{refusal} {", ".join(base.specs)}, not an image; use --input={export_options.TENSOR}')
  ((name, spec),) = base.specs.items()
  known, stated_by = serving.image_preprocessing(trained), tensor_functions.STATED
  if known is None:
    known, stated_by = _assumed(trained, base, refusal), tensor_functions.ASSUMED
  elif not tensor_functions.takes(base.specs, known):
    raise errors.UserError(
      f'{refusal} {name}, {spec.dtype.name} {spec.shape}; its image_preprocessing makes '
      f'({known.size[0]}, {known.size[1]}, {known.channels})'
    )
  prepare = known.__call__

  def serve_images(contents):
    shape = [*known.size, known.channels]
    images = tf.map_fn(prepare, contents, fn_output_signature=tf.TensorSpec(shape, tf.float32))
    return base.call(**{name: images})

  module = tf.Module()
  module.base, module.serve = base.module, serve_images
  files = tensor_functions.FileInput(
    None, known, lambda content: {}, tensor_functions.own_reference(base), is_inside=True, stated_by=stated_by
  )
  facts = {**known.facts(), 'stated_by': stated_by}
  found = dataclasses.replace(base, preprocessing=facts, files=files)
  of_pixels = lambda pixels: np.stack([known.of_pixels(tf.constant(image)).numpy() for image in pixels])
  return _of_encoded(found, kind, ENCODED, module, of_pixels)


def _assumed(
  trained: trained_model.TrainedModel, base: tensor_functions.TensorFunction, refusal: str
) -> image_preprocessing.ImagePreprocessing:
  """The preprocessing that fits the examples of a run, if its task states none."""
  ((name, spec),) = base.specs.items()
  examples = run_examples.read_examples(
    trained, base.inputs_of, lambda batch, inputs: [(inputs, {})], _EXAMPLES_OF_RANGE, calibrates=False
  )
  facts = tensor_functions.preprocessing_of(base, examples.inputs)
  if facts.get('range') is None or facts['channels'] not in (1, 3):
    raise errors.UserError(
      f'{refusal} {name}, {spec.dtype.name} {spec.shape}, not an image in 0..1, -1..1 or 0..255; use '
      f'--input={export_options.TENSOR}'
    )
  return image_preprocessing.ImagePreprocessing(
    tuple(facts['size']), range=tuple(facts['range']), channels=facts['channels']
  )


def _of_encoded(
  base: tensor_functions.TensorFunction,
  kind: str,
  feature: str,
  module: tf.Module,
  of_pixels: Callable[[np.ndarray], np.ndarray],
) -> tensor_functions.TensorFunction:
  """A signature that takes images as bytes.

  Args:
    base: the signature that takes them as a tensor.
    kind: 'image_bytes' or 'tf_example'.
    feature: of a tf.Example that holds the image.
    module: holds the variables; its `serve` takes the bytes of images, `[n]`.
    of_pixels: from uint8 images to the input of `base`.
  """
  (name,) = base.specs
  assert base.files is not None
  least, most = base.files.preprocessing.range

  def serve(inputs):
    if kind == export_options.TF_EXAMPLE:
      inputs = tf.io.parse_example(inputs, {feature: tf.io.FixedLenFeature([], tf.string)})[feature]
    return module.serve(inputs)

  holder = tf.Module()
  holder.module = module
  holder.serve = tf.function(serve, input_signature=[_BYTES], autograph=False)
  concrete = holder.serve.get_concrete_function()

  def images_of(batch):
    values = base.inputs_of(batch)[name].astype(np.float32)
    return np.clip(np.rint((values - least) / (most - least) * 255), 0, 255).astype(np.uint8)

  def encoded(content):
    return _example({feature: [content]}) if kind == export_options.TF_EXAMPLE else content

  return dataclasses.replace(
    base,
    module=holder,
    call=concrete,
    specs={'inputs': _BYTES},
    inputs_of=lambda batch: {
      'inputs': _of_bytes([encoded(tf.io.encode_png(each).numpy()) for each in images_of(batch)])
    },
    reference=lambda batch: base.call(**{name: tf.constant(of_pixels(images_of(batch)))}),
    preprocessing={
      **base.preprocessing,
      'input': 'inputs',
      'encoding': kind,
      'formats': image_preprocessing.FORMATS,
      'decoded_by': tensor_functions.EXPORT,
      'resized_by': tensor_functions.EXPORT,
    },
    signatures={serving.DEFAULT: concrete},
    files=dataclasses.replace(base.files, inputs_of=lambda content: {'inputs': encoded(content)}),
  )


# Texts.


def _of_token_examples(
  trained: trained_model.TrainedModel, base: tensor_functions.TensorFunction
) -> tensor_functions.TensorFunction:
  """A signature that takes the tf.Examples of the run's data, with token ids."""
  data: Any = trained.params.task.train_data
  module: Any = serving.text_module(trained, parse_sequence_length=data.seq_length, use_v2_feature_names=False)
  concrete = module.get_inference_signatures({'serve_examples': serving.DEFAULT})[serving.DEFAULT]
  features = {'input_word_ids': 'input_ids', 'input_mask': 'input_mask', 'input_type_ids': 'segment_ids'}
  (name,) = [spec.name for spec in concrete.structured_input_signature[0]] or list(
    concrete.structured_input_signature[1]
  )

  def inputs_of(batch):
    arrays = base.inputs_of(batch)
    rows = range(len(next(iter(arrays.values()))))
    return {name: _of_bytes([_example({features[each]: arrays[each][row] for each in arrays}) for row in rows])}

  return dataclasses.replace(
    base,
    module=module,
    call=concrete,
    specs={name: tf.TensorSpec([None], tf.string, name)},
    inputs_of=inputs_of,
    reference=lambda batch: base.call(**{each: tf.constant(array) for each, array in base.inputs_of(batch).items()}),
    signatures={serving.DEFAULT: concrete},
  )


def _of_texts(
  trained: trained_model.TrainedModel, base: tensor_functions.TensorFunction
) -> tensor_functions.TensorFunction:
  """A signature that takes texts, one tensor for each of the data's text fields."""
  from official.nlp.data import sentence_prediction_dataloader  # pylint: disable=g-import-not-at-top

  data: Any = trained.params.task.train_data
  known = config_fields.of_data(data)
  refusal = f'--input={export_options.TEXT}: {type(trained.task).__name__}'
  if serving.text_module(trained) is None or set(base.specs) - {'input_word_ids', 'input_mask', 'input_type_ids'}:
    raise errors.UserError(f'{refusal} tokenizes outside of TensorFlow, or takes no text; use --input=tensor')
  vocabulary = known.vocab_file or known.preprocessing_hub_module_url
  fields = list(known.text_fields or ())
  if not vocabulary or not fields:
    raise errors.UserError(
      f'{refusal} was trained on token ids: task.train_data has no vocab_file and text_fields; use '
      f'--input={export_options.TF_EXAMPLE} or --input={export_options.TENSOR}'
    )
  processor = sentence_prediction_dataloader.TextProcessor(
    data.seq_length, data.vocab_file, data.tokenization, data.lower_case, data.preprocessing_hub_module_url
  )

  def serve(*texts):
    found = processor(list(texts))
    return base.call(**{name: tf.cast(found[name], spec.dtype) for name, spec in base.specs.items()})

  module = tf.Module()
  module.base, module.processor = base.module, processor
  specs = {field: tf.TensorSpec([None], tf.string, field) for field in fields}
  module.serve = tf.function(serve, input_signature=list(specs.values()), autograph=False)
  concrete = module.serve.get_concrete_function()

  def no_texts(batch):
    del batch
    raise errors.UserError('the input of the run has token ids, not its texts')

  return dataclasses.replace(
    base,
    module=module,
    call=concrete,
    specs=specs,
    inputs_of=no_texts,
    reference=None,
    signatures={serving.DEFAULT: concrete},
  )


def _of_bytes(values: list[bytes]) -> np.ndarray:
  found = np.empty(len(values), object)
  found[:] = values
  return found


def _example(features: Mapping[str, Any]) -> bytes:
  """A serialized tf.Example of bytes and whole numbers."""

  def feature(values):
    if isinstance(values[0], bytes):
      return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[int(value) for value in values]))

  named = {name: feature(values) for name, values in features.items()}
  return tf.train.Example(features=tf.train.Features(feature=named)).SerializeToString()
