"""Builds the signatures of a trained model, for a SavedModel that needs none of this code.

The default signature is the first of: the task's `serving_function`; Model Garden's own module for serving its task
(which prepares images too); a Keras model on its inputs. Signatures take tensors by name and return a dictionary of
tensors.
"""

from collections.abc import Callable, Mapping
import functools
import importlib
import re
from typing import Any

from official.vision.ops import preprocess_ops
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import protocols
from official_ext.base import tf_internals
from official_ext.data import bad_examples
from official_ext.data import config_fields
from official_ext.data import image_preprocessing as image_preprocessing_lib
from official_ext.training.tasks import base_task
from official_ext.training.trained import trained_model

DEFAULT = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY

_CLASSIFICATION, _DETECTION, _SEGMENTATION = (
  'image_classification.ClassificationModule',
  'detection.DetectionModule',
  'semantic_segmentation.SegmentationModule',
)
# Model Garden's configurations of tasks for images, and the classes that serve them.
_OF_IMAGES = {
  'image_classification.ImageClassificationTask': _CLASSIFICATION,
  'retinanet.RetinaNetTask': _DETECTION,
  'maskrcnn.MaskRCNNTask': _DETECTION,
  'semantic_segmentation.SemanticSegmentationTask': _SEGMENTATION,
}


def build(trained: trained_model.TrainedModel) -> tuple[tf.Module, dict[str, Any]]:
  """Builds a module that holds the model, and its signatures, which are concrete functions."""
  task, model = trained.task, trained.model
  own = task.serving_function(model)
  module = tf.Module()
  if own is None:
    found = _module_of_model_garden(trained)
    if found is not None:
      return found
    own = _function_of_keras_model(task, model)
  functions = dict(own) if isinstance(own, Mapping) else {DEFAULT: own}
  module.model = model
  module.functions = functions
  return module, {name: _concrete(function, task) for name, function in functions.items()}


def _concrete(function: object, task: protocols.Task) -> Any:
  where = f'{type(task).__name__}.serving_function'
  if not hasattr(function, 'get_concrete_function'):
    raise errors.UserError(f'{where}: must return a tf.function with an input_signature, or a dictionary of them')
  try:
    return function.get_concrete_function()
  except errors.UserError:
    raise
  except Exception as error:  # pylint: disable=broad-except  # The user's code may raise anything.
    reason = ' '.join(str(error).split())[:300]
    raise errors.UserError(f'{where}: cannot be traced: {type(error).__name__}: {reason}') from error


def input_size(params: Any) -> list[int]:
  """Height, width and channels of the images that an exported model takes.

  Args:
    params: an experiment of Model Garden's vision tasks. If `task.model.input_size` is open, as in experiments of
      segmentation, the evaluated images have the size: `task.validation_data.output_size`.

  Raises:
    UserError: neither has a size.
  """
  *size, channels = params.task.model.input_size
  if None in size:
    size = list(config_fields.of_data(params.task.validation_data).output_size or ())
    if len(size) != 2:
      raise errors.UserError(
        f'task.model.input_size: {params.task.model.input_size}: has no height and width; set them'
      )
  return [*size, channels]


def image_preprocessing(trained: trained_model.TrainedModel) -> image_preprocessing_lib.ImagePreprocessing | None:
  """The way from an image to the input of the model, as in an evaluation.

  Returns:
    For Model Garden's tasks on images, the preprocessing of `task.validation_data` up to the normalization; for others
    what the task states; None if it states nothing.
  """
  if isinstance(trained.task, base_task.Task):
    return trained.task.image_preprocessing()
  served_by = _served_by(trained)
  if served_by is None:
    return None
  data = trained.evaluated_data
  height, width, channels = input_size(trained.params)
  if channels not in (1, 3):
    return None
  found = functools.partial(
    image_preprocessing_lib.ImagePreprocessing, (height, width), range=(0, 255), channels=channels
  )
  if served_by == _CLASSIFICATION:
    return found(crop=data.center_crop_fraction if data.aug_crop else None, resize=data.tf_resize_method)
  if served_by == _DETECTION:
    return found(padding=tuple(preprocess_ops.MEAN_RGB) if data.parser.keep_aspect_ratio else None)
  padding = tuple(data.image_feature.mean) if data.preserve_aspect_ratio else None
  return found(padding=padding, is_centered=data.centered_crop)


def _served_by(trained: trained_model.TrainedModel) -> str | None:
  """The class that serves one of Model Garden's tasks on images; None for other tasks."""
  kinds = [f'{cls.__module__}.{cls.__qualname__}' for cls in type(trained.params.task).__mro__]
  return next((name for config, name in _OF_IMAGES.items() if f'official.vision.configs.{config}' in kinds), None)


def image_module(
  trained: trained_model.TrainedModel,
  input_type: str = 'image_tensor',
  decode: Callable[[tf.Tensor], tf.Tensor] | None = None,
) -> Any | None:
  """Builds the module with which Model Garden serves one of its tasks on images.

  Its own preprocessing reads `train_data`, and neither the share of a crop nor the method of resizing. Here it is that
  of an evaluation, see `image_preprocessing`.

  Args:
    trained: the model.
    input_type: as in `official.vision.serving`: with 'tflite' the module takes batches of one normalized image.
    decode: from an element of the module's input to the pixels of an image; None: they are the element.

  Returns:
    The module; None for other tasks.
  """
  params: Any = trained.params
  served_by = _served_by(trained)
  if served_by is None:
    return None
  params = params.replace(task=params.task.replace(train_data=trained.evaluated_data))
  file, name = served_by.split('.')
  module_cls: Any = getattr(importlib.import_module(f'official.vision.serving.{file}'), name)
  *size, channels = input_size(params)
  preprocessing: Any = image_preprocessing(trained)

  class Module(module_cls):
    """The module, with the preprocessing of an evaluation."""

    def _build_inputs(self, image):
      image = image if decode is None else decode(image)
      if served_by == _CLASSIFICATION:
        return preprocess_ops.normalize_image(
          preprocessing.of_pixels(image), offset=preprocess_ops.MEAN_RGB, scale=preprocess_ops.STDDEV_RGB
        )
      if served_by == _SEGMENTATION and params.task.train_data.centered_crop:
        feature = params.task.train_data.image_feature
        image = preprocess_ops.normalize_image(tf.cast(image, tf.float32), feature.mean, feature.stddev)
        return preprocess_ops.resize_and_crop_image(image, size, size, centered_crop=True)
      return super()._build_inputs(image)

  return Module(
    params=params,
    batch_size=1 if input_type == 'tflite' else None,
    input_image_size=list(size),
    num_channels=channels,
    input_type=input_type,
    model=trained.model,
  )


def text_module(trained: trained_model.TrainedModel, **values: object) -> Any | None:
  """Builds the module with which Model Garden serves one of its tasks on texts.

  Args:
    trained: the model.
    **values: of the module's `Params`; unknown ones are ignored.

  Returns:
    The module; None for other tasks.
  """
  classes = type(trained.task).__mro__
  if not any(cls.__module__.startswith('official.nlp.tasks.') for cls in classes):
    return None
  modules = importlib.import_module('official.nlp.serving.export_savedmodel').SERVING_MODULES
  module_cls = next((modules[cls] for cls in classes if cls in modules), None)
  if module_cls is None:
    return None
  wanted = {'inputs_only': False, **values}
  fields = {name: value for name, value in wanted.items() if hasattr(module_cls.Params, name)}
  return module_cls(params=module_cls.Params(**fields), model=trained.model)


def _module_of_model_garden(trained: trained_model.TrainedModel) -> tuple[tf.Module, dict[str, Any]] | None:
  """The module with which Model Garden serves one of its tasks; None if it has none."""
  images = image_module(trained)
  if images is not None:
    return images, dict(images.get_inference_signatures({'image_tensor': DEFAULT}))
  texts = text_module(trained)
  return None if texts is None else (texts, dict(texts.get_inference_signatures({'serve': DEFAULT})))


def _function_of_keras_model(task: protocols.Task, model: tf_keras.Model) -> Any:
  """The call of a Keras model on the inputs that it was built for, or first called on."""
  specs, call = _inputs_of(task, model)

  def serve(*tensors):
    outputs = call(dict(zip(specs, tensors)))
    flat, paths = tf.nest.flatten(outputs), list(bad_examples.paths(outputs))
    if not isinstance(outputs, Mapping):
      paths = output_names(task, model, len(flat)) or paths
    names = [_identifier(path) or 'output' for path in paths]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
      remedy = 'rename a key' if isinstance(outputs, Mapping) else 'set output_names in the task'
      raise errors.UserError(
        f'{type(task).__name__}.build_model: several outputs have the name {", ".join(repeated)} in an export; {remedy}'
      )
    return dict(zip(names, flat))

  return tf.function(serve, input_signature=list(specs.values()), autograph=False)


def output_names(task: Any, model: Any, number: int) -> list[str]:
  """The names of the outputs of a Keras model that returns no dictionary.

  They are the task's `output_names`, or else the names of the layers. A layer without a name has a number, which
  depends on the layers that were made before: its output is `output`, or `output_N` of several.

  Args:
    task: the task.
    model: its model.
    number: of its outputs.

  Returns:
    The names; [] if the model has none.

  Raises:
    UserError: the task names another number of outputs, or one twice, or its names are one text.
  """
  declared = getattr(task, 'output_names', ())
  if isinstance(declared, str):
    raise errors.UserError(f'{type(task).__name__}.output_names: is the text {declared!r}; write ({declared!r},)')
  if declared:
    if len(declared) != number or len(set(map(_identifier, declared))) != number:
      model_has = (
        'the model has 1 output; name it once' if number == 1 else f'the model has {number} outputs; name each once'
      )
      raise errors.UserError(f'{type(task).__name__}.output_names: {", ".join(declared)}: {model_has}')
    return list(declared)
  known = list(getattr(model, 'output_names', None) or ())
  if len(known) != number:
    return []
  layers = {layer.name: layer for layer in model.layers}
  return [
    ('output' if number == 1 else f'output_{place}') if _is_numbered(name, layers) else name
    for place, name in enumerate(known)
  ]


def _is_numbered(name: str, layers: Mapping[str, Any]) -> bool:
  """Whether Keras has made the name of an output. If a layer has several, the others have its name and a number."""
  layer = layers.get(name, layers.get(re.sub(r'_\d+$', '', name)))
  return layer is not None and tf_internals.has_numbered_name(layer)


def _inputs_of(
  task: protocols.Task, model: tf_keras.Model
) -> tuple[dict[str, tf.TensorSpec], Callable[[dict[str, Any]], Any]]:
  """(specs by name, a function that calls the model with tensors by these names)."""
  if isinstance(model, tf_keras.Model) and getattr(model, 'inputs', None) and tf_internals.is_functional(model):
    structure = model.input
    specs = [
      tf.TensorSpec(tensor.shape, tensor.dtype, _identifier(tensor.name)) for tensor in tf.nest.flatten(structure)
    ]
    return {spec.name: spec for spec in specs}, lambda tensors: model(
      tf.nest.pack_sequence_as(structure, list(tensors.values())), training=False
    )
  spec = _first_call(task, model)
  if spec is None:
    raise errors.UserError(
      f'{type(task).__name__}.serving_function: nobody calls {type(model).__name__} itself, so the inputs and '
      'outputs of an export are unknown; override it: docs/how_to/export.md'
    )
  args, kwargs = spec
  kwargs = {name: value for name, value in kwargs.items() if name not in ('training', 'mask')}
  structure = (args[0], {name: value for name, value in kwargs.items() if _is_tensor_spec(value)})
  given = {name: value for name, value in kwargs.items() if not _is_tensor_spec(value)}
  names = [re.sub(r'^(0|1)/', '', path) if path != '0' else 'inputs' for path in bad_examples.paths(structure)]
  specs = [
    tf.TensorSpec(each.shape, each.dtype, _identifier(name)) for name, each in zip(names, tf.nest.flatten(structure))
  ]

  def call(tensors):
    inputs, others = tf.nest.pack_sequence_as(structure, list(tensors.values()))
    return model(inputs, training=False, **others, **given)

  return {spec.name: spec for spec in specs}, call


def _first_call(task: protocols.Task, model: tf_keras.Model) -> tuple[Any, Any] | None:
  """(positional, named) arguments of a subclassed model's first call, as specs; None if it was never called."""
  if not isinstance(model, tf_keras.Model):
    return None
  if model.save_spec() is None:
    trained_model.create_variables(task, model)
  return model.save_spec()


def _is_tensor_spec(value: object) -> bool:
  return isinstance(value, tf.TensorSpec)


def _identifier(name: str) -> str:
  """A valid name for a tensor of a signature."""
  return re.sub(r'\W', '_', name)


def describe(function: Any) -> str:
  """One line, such as `pixels: float32 (None, 64) -> logits: float32 (None, 10)`."""

  def listed(specs):
    return ', '.join(f'{name}: {spec.dtype.name} {spec.shape}' for name, spec in sorted(specs.items()))

  inputs, outputs = function.structured_input_signature[1], function.structured_outputs
  positional = {spec.name: spec for spec in function.structured_input_signature[0]}
  return f'{listed({**positional, **inputs})} -> {listed(outputs) if isinstance(outputs, Mapping) else outputs}'
