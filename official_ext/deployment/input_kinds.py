"""Signatures of SavedModels that take encoded images, serialized tf.Examples, or texts in place of tensors.

For Model Garden's tasks its modules in `official.vision.serving` and `official.nlp.serving` compute them, for other
tasks on images a decoder before the task's own signature.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from official_ext.base import errors
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
  images = serving.image_module(trained, kind)
  if images is not None:
    signatures = images.get_inference_signatures({kind: serving.DEFAULT})
    return _of_images(base, kind, images, signatures[serving.DEFAULT], None)
  module = serving.text_module(trained)
  if module is not None and kind == export_options.TF_EXAMPLE:
    return _of_token_examples(trained, base)
  return _of_own_images(trained, base, kind)


# Images.


def _of_images(
  base: tensor_functions.TensorFunction,
  kind: str,
  module: tf.Module,
  concrete: Any,
  to_input: Callable[[np.ndarray], np.ndarray] | None,
) -> tensor_functions.TensorFunction:
  """A signature that takes images as bytes.

  Args:
    base: the signature that takes them as a tensor.
    kind: 'image_bytes' or 'tf_example'.
    module: holds the function and its variables.
    concrete: the function.
    to_input: from uint8 images to the input of `base`, which is the reference then. None: the function itself is, as
      Model Garden's classification rounds resized images to whole numbers here, and not in a tensor.
  """
  (name,) = base.specs
  least, most = base.preprocessing.get('range') or (0, 255)

  def images_of(batch):
    values = base.inputs_of(batch)[name].astype(np.float32)
    return np.clip(np.rint((values - least) / (most - least) * 255), 0, 255).astype(np.uint8)

  def inputs_of(batch):
    encoded = [tf.io.encode_png(image).numpy() for image in images_of(batch)]
    if kind == export_options.TF_EXAMPLE:
      encoded = [_example({ENCODED: [each]}) for each in encoded]
    return {'inputs': _of_bytes(encoded)}

  def of_tensors(convert):
    return lambda batch: base.call(**{name: tf.constant(convert(images_of(batch)))})

  return dataclasses.replace(
    base,
    module=module,
    call=concrete,
    specs={'inputs': _BYTES},
    inputs_of=inputs_of,
    reference=None if to_input is None else of_tensors(to_input),
    preprocessing={**base.preprocessing, 'input': 'inputs', 'encoding': kind},
    signatures={serving.DEFAULT: concrete},
  )


def _of_own_images(
  trained: trained_model.TrainedModel, base: tensor_functions.TensorFunction, kind: str
) -> tensor_functions.TensorFunction:
  """The same for a task that takes float images of one size: decoded, resized, scaled to the range of its data."""
  refusal = f'--input={kind}: {type(trained.task).__name__} takes'
  if len(base.specs) != 1:
    raise errors.UserError(f'{refusal} {", ".join(base.specs)}, not an image; use --input={export_options.TENSOR}')
  ((name, spec),) = base.specs.items()
  examples = run_examples.read(
    trained, base.inputs_of, lambda batch, inputs: [(inputs, {})], _EXAMPLES_OF_RANGE, calibrates=False
  )
  facts = tensor_functions.preprocessing_of(base, examples.inputs)
  if facts.get('range') is None:
    raise errors.UserError(
      f'{refusal} {name}, {spec.dtype.name} {spec.shape}, not an image in 0..1, -1..1 or 0..255; use '
      f'--input={export_options.TENSOR}'
    )
  least, most = facts['range']

  def scaled(images):
    return tf.cast(images, tf.float32) / 255.0 * (most - least) + least

  def decoded(encoded):
    image = tf.io.decode_image(encoded, channels=facts['channels'], expand_animations=False)
    return scaled(tf.image.resize(tf.cast(image, tf.float32), facts['size'], antialias=True))

  def serve(inputs):
    if kind == export_options.TF_EXAMPLE:
      inputs = tf.io.parse_example(inputs, {ENCODED: tf.io.FixedLenFeature([], tf.string)})[ENCODED]
    images = tf.map_fn(decoded, inputs, fn_output_signature=tf.TensorSpec(spec.shape[1:], tf.float32))
    return base.call(**{name: images})

  module = tf.Module()
  module.base = base.module
  module.serve = tf.function(serve, input_signature=[_BYTES], autograph=False)
  known = dataclasses.replace(base, preprocessing=facts)
  return _of_images(known, kind, module, module.serve.get_concrete_function(), lambda images: scaled(images).numpy())


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
  refusal = f'--input={export_options.TEXT}: {type(trained.task).__name__}'
  if serving.text_module(trained) is None or set(base.specs) - {'input_word_ids', 'input_mask', 'input_type_ids'}:
    raise errors.UserError(f'{refusal} tokenizes outside of TensorFlow, or takes no text; use --input=tensor')
  vocabulary = getattr(data, 'vocab_file', '') or getattr(data, 'preprocessing_hub_module_url', '')
  fields = list(getattr(data, 'text_fields', None) or ())
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
