"""The targets of a conversion: the tasks of Model Garden's vision experiments. No TensorFlow."""

import dataclasses

from official_ext.data.prepare import splits

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
class Conversion(splits.Conversion):
  """The settings of a conversion: see base class.

  Attributes:
    target: one of `TARGETS`.
    image_format: 'jpeg' or 'png'.
    quality: of JPEG, 1 to 100.
    coordinates: whether boxes and masks refer to the image as 'shown', after the rotation in its EXIF data, or as
      'stored'; 'auto' decides by the size that the annotations state.
    mask_values: the values of pixels in masks that are the classes 0, 1, ...; (): values are class numbers.
  """

  image_format: str = 'jpeg'
  quality: int = 95
  coordinates: str = 'auto'
  mask_values: tuple[int, ...] = ()
