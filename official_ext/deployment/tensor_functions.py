"""The computation of a trained model on tensors, which is converted, and its answers for comparison.

LiteRT and ONNX models of Model Garden's image tasks take float32 images of one size with values from 0 to 255, and
normalize them. A SavedModel keeps the signature of `official_ext.training.trained.serving`.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import numpy as np
from official.vision.ops import preprocess_ops
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.data import bad_examples
from official_ext.deployment import box_matching
from official_ext.deployment import tensor_kinds
from official_ext.training.trained import serving
from official_ext.training.trained import trained_model

_IMAGE = 'inputs'  # Model Garden's name of the tensor with images.
_CHANNELS = (1, 3, 4)
_RANGES = ((0, 1), (-1, 1), (0, 255))
_RESIZING = {
  tensor_kinds.CLASSES: 'crop the center, then resize (bilinear)',
  tensor_kinds.BOXES: 'resize (bilinear) with the same aspect ratio, then pad at the bottom and right',
  tensor_kinds.PIXELS: 'resize (bilinear)',
}


@dataclasses.dataclass(frozen=True)
class TensorFunction:
  """The computation of a model on tensors.

  Attributes:
    module: a tf.Module that holds the variables.
    call: takes the tensors by name, returns a dictionary of tensors.
    specs: the tensors by name. Their first dimension is the batch: None, or 1 if the computation takes no more.
    kind: how outputs are compared, one of `tensor_kinds.KINDS`.
    inputs_of: from a batch of the task's data to arrays by name.
    reference: from a batch to the model's own outputs by name; None: those of `call`.
    preprocessing: facts about the input for export.json.
    signatures: the traced functions of a SavedModel, by name; {} if there are none.
    thresholds: of a detector.
  """

  module: tf.Module
  call: Callable[..., Mapping[str, tf.Tensor]]
  specs: Mapping[str, tf.TensorSpec]
  kind: str
  inputs_of: Callable[[Any], Mapping[str, np.ndarray]]
  reference: Callable[[Any], Mapping[str, tf.Tensor]] | None
  preprocessing: json_types.JsonObject
  signatures: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  thresholds: box_matching.Thresholds = box_matching.UNKNOWN

  def traced(self, examples: Mapping[str, np.ndarray] | None, batch_size: int | None = None) -> Any:
    """Traces the computation for one size of inputs.

    Args:
      examples: inputs `[n, ...]`, whose sizes replace those that `specs` leaves open; None keeps these open.
      batch_size: the size of the batch; None keeps that of `specs`.

    Returns:
      A concrete function of tensors in the order of `specs`.
    """
    specs = []
    for name, spec in self.specs.items():
      known = examples[name].shape[1:] if examples is not None else ()
      shape = spec.shape.as_list() if spec.shape.rank is not None else [None] * (1 + len(known))
      if known:
        shape = [size or found for size, found in zip(shape, (shape[0], *known))]
      shape[0] = batch_size or shape[0]
      specs.append(tf.TensorSpec(shape, spec.dtype, name))
    function = tf.function(lambda *tensors: self.call(**dict(zip(self.specs, tensors))), autograph=False)
    return function.get_concrete_function(*specs)


def of_model(trained: trained_model.TrainedModel) -> TensorFunction:
  """The computation that LiteRT and ONNX models contain."""
  module = serving.image_module(trained, 'tflite')
  if module is None:
    return of_signature(trained)
  kind = _kind_of_images(trained)
  mean, deviation = _normalization(trained)
  height, width, channels = serving.input_size(trained.params)

  def call(inputs):
    return module.serve(preprocess_ops.normalize_image(inputs, offset=mean, scale=deviation))

  def inputs_of(batch):
    return {_IMAGE: _images_of(batch) * deviation + mean}

  # The boxes of a batch are decoded by anchors of one image.
  spec = tf.TensorSpec([1 if kind == tensor_kinds.BOXES else None, height, width, channels], tf.float32, _IMAGE)
  preprocessing = {
    'input': _IMAGE,
    'range': [0, 255],
    'size': [height, width],
    'channels': channels,
    'resize': _RESIZING[kind],
    'normalization': 'in the model',
  }
  return TensorFunction(
    module,
    call,
    {_IMAGE: spec},
    kind,
    inputs_of,
    _references(trained, kind),
    preprocessing,
    thresholds=_thresholds(trained),
  )


def of_signature(trained: trained_model.TrainedModel) -> TensorFunction:
  """The computation of the default signature of a SavedModel."""
  module, signatures = serving.build(trained)
  function = signatures[serving.DEFAULT] if serving.DEFAULT in signatures else next(iter(signatures.values()))
  positional = {spec.name: spec for spec in function.structured_input_signature[0]}
  specs = {**positional, **function.structured_input_signature[1]}
  if serving.image_module(trained) is not None:
    mean, deviation = _normalization(trained)

    def inputs_of(batch):
      pixels = _images_of(batch) * deviation + mean
      return {next(iter(specs)): np.clip(np.rint(pixels), 0, 255).astype(np.uint8)}

    kind = _kind_of_images(trained)
    channels = trained.params.task.model.input_size[-1]
    facts = {
      'input': next(iter(specs)),
      'range': [0, 255],
      'size': None,
      'channels': channels,
      'resize': 'in the model',
    }
    return TensorFunction(module, function, specs, kind, inputs_of, None, facts, signatures, _thresholds(trained))
  kind = _kind_of_outputs(function.structured_outputs)
  return TensorFunction(module, function, specs, kind, lambda batch: _by_name(batch, specs), None, {}, signatures)


def _kind_of_images(trained: trained_model.TrainedModel) -> str:
  names = [cls.__qualname__ for cls in type(trained.params.task).__mro__]
  if 'ImageClassificationTask' in names:
    return tensor_kinds.CLASSES
  return tensor_kinds.PIXELS if 'SemanticSegmentationTask' in names else tensor_kinds.BOXES


def _kind_of_outputs(outputs: Mapping[str, tf.TensorSpec]) -> str:
  for name, spec in outputs.items():
    columns = spec.shape[-1] if spec.shape.rank else None
    if spec.shape.rank == 2 and name in tensor_kinds.CLASS_OUTPUTS and columns != 1:
      return tensor_kinds.CLASSES
    if spec.shape.rank == 4 and name in tensor_kinds.CLASS_OUTPUTS and columns not in (None, 1):
      return tensor_kinds.PIXELS
  return tensor_kinds.VALUES


def _thresholds(trained: trained_model.TrainedModel) -> box_matching.Thresholds:
  """Those of Model Garden's detectors; of other tasks the defaults, with which nothing is borderline."""
  generator = getattr(getattr(trained.params.task, 'model', None), 'detection_generator', None)
  if generator is None or generator.nms_version == 'tflite':
    return box_matching.UNKNOWN
  return box_matching.Thresholds(
    generator.pre_nms_score_threshold, generator.nms_iou_threshold, generator.max_num_detections
  )


def _normalization(trained: trained_model.TrainedModel) -> tuple[np.ndarray, np.ndarray]:
  """(mean, deviation) of each channel, float32 `[channels]`, on a scale of 0 to 255."""
  feature = getattr(trained.params.task.train_data, 'image_feature', None)
  if _kind_of_images(trained) == tensor_kinds.PIXELS and feature is not None:
    return np.array(feature.mean, np.float32), np.array(feature.stddev, np.float32)
  return np.array(preprocess_ops.MEAN_RGB, np.float32), np.array(preprocess_ops.STDDEV_RGB, np.float32)


def _images_of(batch: Any) -> np.ndarray:
  """The images of a batch of Model Garden's tasks, (images, labels): float32 `[n, height, width, channels]`."""
  return tf.cast(batch[0], tf.float32).numpy()


def _references(trained: trained_model.TrainedModel, kind: str) -> Callable[[Any], Mapping[str, tf.Tensor]]:
  """The model's own outputs for a batch of a task on images, past the module that serves it."""
  task, model = trained.task, trained.model

  def of_classes(batch):
    return {'logits': task.inference_step(tf.cast(batch[0], tf.float32), model)}

  def of_pixels(batch):
    outputs = task.inference_step(tf.cast(batch[0], tf.float32), model)
    logits = outputs['logits'] if isinstance(outputs, Mapping) else outputs
    return {'logits': tf.image.resize(tf.cast(logits, tf.float32), serving.input_size(trained.params)[:2])}

  def of_boxes(batch):
    images, labels = batch
    outputs = model(
      tf.cast(images, tf.float32),
      anchor_boxes=labels['anchor_boxes'],
      image_shape=labels['image_info'][:, 1, :],
      training=False,
    )
    boxes = outputs['detection_boxes']
    if getattr(getattr(trained.params.task, 'export_config', None), 'output_normalized_coordinates', False):
      height, width = serving.input_size(trained.params)[:2]
      boxes = tf.clip_by_value(boxes / tf.constant([height, width, height, width], boxes.dtype), 0.0, 1.0)
    return {
      'detection_boxes': boxes,
      'detection_scores': outputs['detection_scores'],
      'detection_classes': outputs['detection_classes'],
    }

  chosen = {tensor_kinds.CLASSES: of_classes, tensor_kinds.PIXELS: of_pixels, tensor_kinds.BOXES: of_boxes}[kind]
  # Eagerly the loops of a non-maximum suppression take minutes.
  return tf.function(chosen, autograph=False)


def _by_name(batch: Any, specs: Mapping[str, tf.TensorSpec]) -> dict[str, np.ndarray]:
  """The entries of a batch that a signature takes.

  An input gets the entry of its name; or the first one whose name ends with it, such as chosen_input_ids; or the only
  one of its shape and dtype.

  Raises:
    UserError: an input has no entry.
  """
  entries = dict(zip(bad_examples.paths(batch), tf.nest.flatten(batch)))
  found = {}
  for name, spec in specs.items():
    fitting = [(path.split('/')[-1], tensor) for path, tensor in entries.items() if _fits(tensor, spec)]
    named = [tensor for path, tensor in fitting if path == name]
    prefixed = [tensor for path, tensor in fitting if path.endswith(f'_{name}')]
    chosen = named or prefixed or ([fitting[0][1]] if len(fitting) == 1 else [])
    if not chosen:
      listed = ', '.join(f'{path} {tensor.dtype.name} {tensor.shape}' for path, tensor in entries.items())
      raise errors.UserError(
        f'{name}: no entry of the data is of this name, shape and dtype ({spec.dtype.name} {spec.shape}); the data '
        f'have {listed}; --examples=0 exports without verification'
      )
    found[name] = tf.cast(chosen[0], spec.dtype).numpy()
  return found


def _fits(tensor: Any, spec: tf.TensorSpec) -> bool:
  if not isinstance(tensor, tf.Tensor) or not spec.shape.is_compatible_with(tensor.shape):
    return False
  return tensor.dtype == spec.dtype or (tensor.dtype.is_integer and spec.dtype.is_integer)


def signature_of(concrete: Any) -> json_types.JsonObject:
  """The `inputs` and `outputs` of a concrete function, each a list of {name, dtype, shape}; null is any size."""
  positional, named = concrete.structured_input_signature
  inputs = {**{spec.name: spec for spec in positional}, **named}
  outputs = concrete.structured_outputs
  found = {'inputs': inputs, 'outputs': outputs if isinstance(outputs, Mapping) else {}}
  return {
    part: [
      {'name': name, 'dtype': spec.dtype.name, 'shape': spec.shape.as_list() if spec.shape.rank is not None else None}
      for name, spec in specs.items()
    ]
    for part, specs in found.items()
  }


def preprocessing_of(function: TensorFunction, inputs: Mapping[str, np.ndarray] | None) -> json_types.JsonObject:
  """The facts about the input image: those of the function, or else those that examples show; {} without an image."""
  if function.preprocessing or inputs is None:
    return function.preprocessing
  for name, array in inputs.items():
    if array.ndim == 4 and array.shape[-1] in _CHANNELS and array.dtype.kind == 'f':
      value_range = _range_of(array)
      size, channels = list(array.shape[1:3]), array.shape[-1]
      return {'input': name, 'range': value_range, 'size': size, 'channels': channels, 'range_from': 'examples'}
  return {}


def _range_of(array: np.ndarray) -> list[int] | None:
  """The narrowest usual range that holds all values; None if none does."""
  least, most = float(array.min(initial=0.0)), float(array.max(initial=0.0))
  return next((list(each) for each in _RANGES if each[0] <= least and most <= each[1]), None)
