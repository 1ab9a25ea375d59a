"""Conversion of an input of annotated images: reads annotations, plans, and writes the files around the shards.

No TensorFlow.
"""

from collections.abc import Callable, Mapping, Sequence
import csv
import io
import json

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base import yaml_text
from official_ext.data import prepared_folders
from official_ext.data.prepare import planning
from official_ext.data.prepare import settings as settings_lib
from official_ext.vision.conversion import conversion_report
from official_ext.vision.conversion import experiment_settings
from official_ext.vision.conversion import image_plan
from official_ext.vision.conversion import image_set
from official_ext.vision.conversion import input_formats
from official_ext.vision.conversion import pixels
from official_ext.vision.conversion import shard_notes
from official_ext.vision.conversion import targets

_LABEL_MAP = 'label_map.csv'
_SAMPLED_MASKS = 20


class Conversion:
  """A conversion: makes its plan, and implements `prepare.settings.Outputs`."""

  config_name = prepared_folders.CONFIG

  def __init__(
    self,
    inputs: dict[str, list[str]],
    conversion: targets.Conversion,
    settings: settings_lib.Settings,
    reading: input_formats.Reading,
    labels: Sequence[str] = (),
  ):
    """Reads the annotations.

    Args:
      inputs: see `input_formats.read_inputs`.
      conversion: the settings of the conversion.
      settings: of the shards.
      reading: how annotations are read.
      labels: the names of the classes in the order of their numbers; (): those of the input.

    Raises:
      UserError: of the input.
    """
    self._conversion = conversion
    self._settings = settings
    self._images = input_formats.read_inputs(inputs, conversion.target, reading)
    if conversion.target == targets.SEGMENTATION:
      _check_masks(self._images, conversion)
    elif labels:
      _keep_labels(self._images, labels)
    self._labels = list(labels) or self._images.labels
    if conversion.target != targets.SEGMENTATION and not self._labels:
      raise errors.UserError(f'INPUT: no class has an example; expected {input_formats.expected(conversion.target)}')
    self.report: json_types.JsonObject = {}

  def plan(self, check: Callable[[], None]) -> planning.Plan:
    """See `image_plan.make`."""
    return image_plan.make(self._images, self._labels, self._conversion, self._settings, check)

  @property
  def files(self) -> Mapping[str, bytes]:
    """None: names of classes are known when all masks have been read."""
    return {}

  def results(
    self, folder: str, settings: json_types.JsonMapping, notes: Sequence[json_types.JsonMapping]
  ) -> Mapping[str, bytes]:
    """The names of the classes, annotations for the evaluation, a report, and the settings of the experiment.

    Raises:
      UserError: no image of a split can be used.
    """
    target, by_split = settings['target'], shard_notes.by_split(notes)
    for split in (image_set.TRAIN, image_set.VALIDATION):
      if split in by_split and not by_split[split].images:
        name, reason = by_split[split].dropped[0]
        raise errors.UserError(f'{split}: no image can be used; for example {name}: {reason}')
    labels = self._labels
    if target == targets.SEGMENTATION:
      highest = max((number for each in by_split.values() for number in each.classes), default=0)
      labels = labels or [f'class_{number}' for number in range(highest + 1)]
      if highest >= len(labels):
        raise errors.UserError(f'--labels: names {len(labels)} classes, and a mask holds the number {highest}')
    self.report = conversion_report.make(target, self._images, by_split, labels)
    values = experiment_settings.make(target, folder, settings['image_format'], by_split, len(labels))
    numbered = [(0, 'background'), *enumerate(labels, 1)] if target in targets.WITH_BOXES else [*enumerate(labels)]
    found = {
      prepared_folders.LABELS: ''.join(f'{name}\n' for _, name in numbered).encode(),
      prepared_folders.REPORT: (json.dumps(self.report, indent=2, ensure_ascii=False) + '\n').encode(),
      prepared_folders.CONFIG: yaml_text.dump(values).encode(),
    }
    if target in targets.WITH_BOXES:
      text = io.StringIO()
      csv.writer(text, lineterminator='\n').writerows(numbered)
      found[_LABEL_MAP] = text.getvalue().encode()
      for split, each in by_split.items():
        if split != image_set.TRAIN:
          name = experiment_settings.annotations_name(split)
          found[name] = (json.dumps(shard_notes.coco_json(each, labels)) + '\n').encode()
    return found


def _keep_labels(images: image_set.ImageSet, labels: Sequence[str]) -> None:
  """Drops images and objects of other classes."""
  kept = []
  for image in images.images:
    if image.label is not None and image.label not in labels:
      images.dropped.append((image.name, f'its class {image.label} is not in --labels'))
      continue
    objects = tuple(each for each in image.objects if each['category'] in labels)
    images.problems['annotations of unknown categories'] += len(image.objects) - len(objects)
    kept.append(image_set.AnnotatedImage(**{**vars(image), 'objects': objects}))
  images.images = kept
  images.problems = +images.problems


def _check_masks(images: image_set.ImageSet, conversion: targets.Conversion) -> None:
  """Refuses masks of 0 and 255 alone: the class 255 is ignored, so nothing would be learned."""
  if conversion.mask_values:
    return
  seen: set[int] = set()
  for image in images.images[:_SAMPLED_MASKS]:
    try:
      with open(image.mask, 'rb') as f:
        seen.update(value for _, value in pixels.class_numbers(f.read()).getcolors(256))
    except (ValueError, OSError):
      continue  # It is dropped with its reason later.
  if seen and 255 in seen and seen <= {0, 255}:
    raise errors.UserError(
      '--mask_values: the masks hold 0 and 255 alone, and 255 is ignored in training; give --mask_values=0,255 to make '
      '255 the class 1'
    )
