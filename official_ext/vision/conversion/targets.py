"""The targets of a conversion: the tasks of Model Garden's vision experiments. No TensorFlow."""

import dataclasses
from typing import Any

from official_ext.base import json_types

CLASSIFICATION = 'image_classification'
DETECTION = 'object_detection'
INSTANCES = 'instance_segmentation'
SEGMENTATION = 'semantic_segmentation'
TARGETS = (CLASSIFICATION, DETECTION, INSTANCES, SEGMENTATION)
WITH_BOXES = (DETECTION, INSTANCES)

EXPERIMENTS = {
  CLASSIFICATION: 'mobilenet_imagenet',
  DETECTION: 'retinanet_mobile_coco',
  INSTANCES: 'maskrcnn_mobilenet_coco',
  SEGMENTATION: 'mnv2_deeplabv3_pascal',
}
IGNORED = 255  # The class number that Model Garden's losses and metrics ignore.


@dataclasses.dataclass(frozen=True)
class Conversion:
  """The settings of a conversion.

  Attributes:
    target: one of `TARGETS`.
    validation_share: the share of images for validation, if the input does not name splits.
    test_share: the same for test.
    seed: of the splits and of the order.
    image_format: 'jpeg' or 'png'.
    quality: of JPEG, 1 to 100.
    coordinates: whether boxes and masks refer to the image as 'shown', after the rotation in its EXIF data, or as
      'stored'; 'auto' decides by the size that the annotations state.
    mask_values: the values of pixels in masks that are the classes 0, 1, ...; (): values are class numbers.
  """

  target: str
  validation_share: float = 0.1
  test_share: float = 0.0
  seed: int = 0
  image_format: str = 'jpeg'
  quality: int = 95
  coordinates: str = 'auto'
  mask_values: tuple[int, ...] = ()

  def values(self) -> json_types.JsonObject:
    """The settings as JSON values."""
    return {**vars(self), 'mask_values': list(self.mask_values)}

  @classmethod
  def of(cls, values: json_types.JsonMapping) -> 'Conversion':
    """The settings of JSON values, which may hold others."""
    found: dict[str, Any] = {field.name: values[field.name] for field in dataclasses.fields(cls)}
    return cls(**{**found, 'mask_values': tuple(found['mask_values'])})
