"""The computation of a trained model on tensors, which is converted, and its answers for comparison.

LiteRT and ONNX models of Model Garden's image tasks take float32 images of one size with values from 0 to 255, and
normalize them. A SavedModel keeps the signature of `official_ext.training.trained.serving`.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any

import numpy as np
from official.vision.ops import preprocess_ops
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.data import bad_examples
from official_ext.data import config_fields
from official_ext.data import image_preprocessing
from official_ext.deployment import batch_dimension
from official_ext.deployment import comparing
from official_ext.training.trained import serving
from official_ext.training.trained import trained_model

_IMAGE = 'inputs'  # Model Garden's name of the tensor with images.
_CHANNELS = (1, 3, 4)
_RANGES = ((0, 1), (-1, 1), (0, 255))
EXPORT, CALLER = 'export', 'caller'
STATED, ASSUMED = 'task', 'examples'


@dataclasses.dataclass(frozen=True)
class FileInput:
  """The way from image files to an export, for its verification.

  Attributes:
    kind: of the data, see `run_examples.file_batches`.
    preprocessing: from a file to the input of the model.
    inputs_of: from the bytes of a file to the inputs of the export by name, without the dimension of the batch.
    reference: from a batch of the task's data to the model's own outputs by name.
    is_inside: whether the export resizes images; else its caller does, as export.json states.
    stated_by: `STATED` by the task, or `ASSUMED`.
    as_jpeg: whether the export decodes files as `prepare` stores them: as JPEG.
  """

  kind: str | None
  preprocessing: image_preprocessing.ImagePreprocessing
  inputs_of: Callable[[bytes], Mapping[str, Any]]
  reference: Callable[[Any], Mapping[str, tf.Tensor]]
  is_inside: bool
  stated_by: str = STATED
  as_jpeg: bool = False


@dataclasses.dataclass(frozen=True)
class TensorFunction:
  """The computation of a model on tensors.

  Attributes:
    module: a tf.Module that holds the variables.
    call: takes the tensors by name, returns a dictionary of tensors.
    specs: the tensors by name. Their first dimension is the batch: None, or 1 if the computation takes no more.
    kind: how outputs are compared, one of `comparing.KINDS`.
    inputs_of: from a batch of the task's data to arrays by name.
    reference: from a batch to the model's own outputs by name; None: the outputs of `call`.
    preprocessing: facts about the input for export.json.
    signatures: the traced functions of a SavedModel, by name; {} without traced ones.
    thresholds: of a detector.
    files: the way from image files to it; None if it takes no images, or nothing is known of their preprocessing.
  """

  module: tf.Module
  call: Callable[..., Mapping[str, tf.Tensor]]
  specs: Mapping[str, tf.TensorSpec]
  kind: str
  inputs_of: Callable[[Any], Mapping[str, np.ndarray]]
  reference: Callable[[Any], Mapping[str, tf.Tensor]] | None
  preprocessing: json_values.JsonObject
  signatures: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  thresholds: comparing.BoxThresholds = comparing.UNKNOWN
  files: FileInput | None = None

  @property
  def has_rows(self) -> bool:
    """Whether a verification compares a row of each output for each example, or whole outputs of single examples."""
    return self.reference is not None or self.kind == comparing.BOXES

  def traced(self, examples: Mapping[str, np.ndarray] | None, batch_size: int | None = None) -> Any:
    """Traces the computation for one size of inputs.

    Args:
      examples: inputs `[n, ...]`, whose sizes replace the open ones of `specs`; None keeps them open.
      batch_size: the size of the batch; None keeps the size in `specs`.

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
  spec = tf.TensorSpec([1 if kind == comparing.BOXES else None, height, width, channels], tf.float32, _IMAGE)
  preprocessing = serving.image_preprocessing(trained)
  facts: json_values.JsonObject = {
    'input': _IMAGE,
    **(preprocessing.facts() if preprocessing else {}),
    'decoded_by': CALLER,
    'resized_by': CALLER,
    'normalized_by': EXPORT,
  }
  return TensorFunction(
    module,
    call,
    {_IMAGE: spec},
    kind,
    inputs_of,
    references(trained, kind),
    facts,
    thresholds=_thresholds(trained),
    files=_tensors_of_files(kind, preprocessing, _IMAGE, references(trained, kind)),
  )


def _tensors_of_files(
  kind: str | None,
  preprocessing: image_preprocessing.ImagePreprocessing | None,
  name: str,
  reference: Callable[[Any], Mapping[str, tf.Tensor]],
) -> FileInput | None:
  """Files as the input of an export whose caller decodes and resizes them as `preprocessing` states."""
  if preprocessing is None:
    return None
  prepare = _of_content(preprocessing.__call__)
  return FileInput(kind, preprocessing, lambda content: {name: prepare(content).numpy()}, reference, is_inside=False)


def _of_content(function: Callable[[tf.Tensor], tf.Tensor]) -> Any:
  """A function of the bytes of a file as a graph: eagerly it takes a quarter of a second."""
  return tf.function(function, input_signature=[tf.TensorSpec([], tf.string)], autograph=False)


def of_signature(trained: trained_model.TrainedModel) -> TensorFunction:
  """The computation of the default signature of a SavedModel."""
  module, signatures = serving.build(trained)
  function = signatures[serving.DEFAULT] if serving.DEFAULT in signatures else next(iter(signatures.values()))
  positional = {spec.name: spec for spec in function.structured_input_signature[0]}
  specs = {**positional, **function.structured_input_signature[1]}
  preprocessing = serving.image_preprocessing(trained)
  if serving.image_module(trained) is not None:
    mean, deviation = _normalization(trained)
    name = next(iter(specs))

    def inputs_of(batch):
      pixels = _images_of(batch) * deviation + mean
      return {name: np.clip(np.rint(pixels), 0, 255).astype(np.uint8)}

    decode = _of_content(functools.partial(image_preprocessing.decode, channels=specs[name].shape[-1]))
    kind = _kind_of_images(trained)
    facts: json_values.JsonObject = {
      'input': name,
      **(preprocessing.facts() if preprocessing else {}),
      'decoded_by': CALLER,
      'resized_by': EXPORT,
      'normalized_by': EXPORT,
    }
    files = None
    if preprocessing is not None:
      reference = references(trained, kind, in_shown_pixels=True)
      files = FileInput(kind, preprocessing, lambda content: {name: decode(content).numpy()}, reference, is_inside=True)
    return TensorFunction(
      module, function, specs, kind, inputs_of, None, facts, signatures, _thresholds(trained), files
    )
  kind = _kind_of_outputs(function.structured_outputs)
  found = TensorFunction(module, function, specs, kind, lambda batch: _by_name(batch, specs), None, {}, signatures)
  if preprocessing is None or not takes(specs, preprocessing):
    return found
  (name,) = specs
  facts = {'input': name, **preprocessing.facts(), 'decoded_by': CALLER, 'resized_by': CALLER, 'stated_by': STATED}
  files = _tensors_of_files(None, preprocessing, name, own_reference(found))
  return dataclasses.replace(found, preprocessing=facts, files=files)


def takes(specs: Mapping[str, tf.TensorSpec], preprocessing: image_preprocessing.ImagePreprocessing) -> bool:
  """Whether a signature takes the images of a preprocessing, and nothing else."""
  shape = [None, *preprocessing.size, preprocessing.channels]
  return [spec.dtype.is_floating and spec.shape.is_compatible_with(shape) for spec in specs.values()] == [True]


def own_reference(function: TensorFunction) -> Callable[[Any], Mapping[str, tf.Tensor]]:
  """The answers of a computation to the batches of its task."""

  def answers(batch):
    return function.call(**{name: tf.constant(array) for name, array in function.inputs_of(batch).items()})

  return answers


def _kind_of_images(trained: trained_model.TrainedModel) -> str:
  names = [cls.__qualname__ for cls in type(trained.params.task).__mro__]
  if 'ImageClassificationTask' in names:
    return comparing.CLASSES
  return comparing.PIXELS if 'SemanticSegmentationTask' in names else comparing.BOXES


def _kind_of_outputs(outputs: Mapping[str, tf.TensorSpec]) -> str:
  for name, spec in outputs.items():
    columns = spec.shape[-1] if spec.shape.rank else None
    if spec.shape.rank == 2 and name in comparing.CLASS_OUTPUTS and columns != 1:
      return comparing.CLASSES
    if spec.shape.rank == 4 and name in comparing.CLASS_OUTPUTS and columns not in (None, 1):
      return comparing.PIXELS
  return comparing.VALUES


def _thresholds(trained: trained_model.TrainedModel) -> comparing.BoxThresholds:
  """The thresholds of Model Garden's detectors; for other tasks the defaults, with which nothing is borderline."""
  generator = getattr(config_fields.of_task(trained.params.task).model, 'detection_generator', None)
  if generator is None or generator.nms_version == 'tflite':
    return comparing.UNKNOWN
  return comparing.BoxThresholds(
    generator.pre_nms_score_threshold, generator.nms_iou_threshold, generator.max_num_detections
  )


def _normalization(trained: trained_model.TrainedModel) -> tuple[np.ndarray, np.ndarray]:
  """(mean, deviation) of each channel, float32 `[channels]`, on a scale of 0 to 255."""
  feature = config_fields.of_data(trained.params.task.train_data).image_feature
  if _kind_of_images(trained) == comparing.PIXELS and feature is not None:
    return np.array(feature.mean, np.float32), np.array(feature.stddev, np.float32)
  return np.array(preprocess_ops.MEAN_RGB, np.float32), np.array(preprocess_ops.STDDEV_RGB, np.float32)


def _images_of(batch: Any) -> np.ndarray:
  """The images of a batch of Model Garden's tasks, (images, labels): float32 `[n, height, width, channels]`."""
  return tf.cast(batch[0], tf.float32).numpy()


def references(
  trained: trained_model.TrainedModel, kind: str, in_shown_pixels: bool = False
) -> Callable[[Any], Mapping[str, tf.Tensor]]:
  """The model's own outputs for a batch of a task on images, past the module that serves it.

  Args:
    trained: the model.
    kind: of its outputs.
    in_shown_pixels: whether normalized coordinates of boxes refer to the image before it was resized.
  """
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
    if getattr(config_fields.of_task(trained.params.task).export_config, 'output_normalized_coordinates', False):
      height, width = serving.input_size(trained.params)[:2]
      sides = tf.constant([[height, width]], boxes.dtype)
      if in_shown_pixels:  # Times the scale.
        sides = labels['image_info'][:, 0] * labels['image_info'][:, 2]
      boxes = tf.clip_by_value(boxes / tf.tile(sides[:, tf.newaxis], [1, 1, 2]), 0.0, 1.0)
    return {
      'detection_boxes': boxes,
      'detection_scores': outputs['detection_scores'],
      'detection_classes': outputs['detection_classes'],
    }

  chosen = {comparing.CLASSES: of_classes, comparing.PIXELS: of_pixels, comparing.BOXES: of_boxes}[kind]
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


def signature_of(concrete: Any) -> json_values.JsonObject:
  """The `inputs` and `outputs` of a concrete function, each a list of {name, dtype, shape}; null is any size.

  Outputs also have `has_batch` and `is_joinable`: see `batch_dimension.Output`.
  """
  positional, named = concrete.structured_input_signature
  inputs = {**{spec.name: spec for spec in positional}, **named}
  outputs = concrete.structured_outputs if isinstance(concrete.structured_outputs, Mapping) else {}
  relations = batch_dimension.of_outputs(concrete)

  def entry(name, spec):
    return {
      'name': name,
      'dtype': spec.dtype.name,
      'shape': spec.shape.as_list() if spec.shape.rank is not None else None,
    }

  return {
    'inputs': [entry(name, spec) for name, spec in inputs.items()],
    'outputs': [{**entry(name, spec), **dataclasses.asdict(relations[name])} for name, spec in outputs.items()],
  }


def preprocessing_of(function: TensorFunction, inputs: Mapping[str, np.ndarray] | None) -> json_values.JsonObject:
  """The facts about the input image: of the function, or else as examples show; {} without an image."""
  if function.preprocessing or inputs is None:
    return function.preprocessing
  for name, array in inputs.items():
    array = np.asarray(array)
    if array.ndim == 4 and array.shape[-1] in _CHANNELS and array.dtype.kind == 'f':
      value_range = _range_of(array)
      size, channels = list(array.shape[1:3]), array.shape[-1]
      return {'input': name, 'range': value_range, 'size': size, 'channels': channels, 'range_from': 'examples'}
  return {}


def _range_of(array: np.ndarray) -> list[int] | None:
  """The narrowest usual range that holds all values; None if none does."""
  least, most = float(array.min(initial=0.0)), float(array.max(initial=0.0))
  return next((list(each) for each in _RANGES if each[0] <= least and most <= each[1]), None)
