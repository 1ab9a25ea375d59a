"""Small drawn data for each kind of `official-ext new --like`, with a baseline that needs no training of a network."""

from collections.abc import Callable
import dataclasses
import io
import json
import pathlib

import numpy as np
from PIL import Image
from PIL import ImageDraw

from tests.data.prepare import prepared_inputs
from tests.language.text import annotated
from tests.vision import drawn

SHAPES = ('circle', 'cross', 'square', 'triangle')


@dataclasses.dataclass(frozen=True)
class Case:
  """One kind.

  Attributes:
    target: of `official-ext prepare`.
    experiment: Model Garden's.
    metric: of the evaluation.
    expected: the least value of the best evaluation.
    num_examples: for that.
    prepare: writes the input into a folder, and prepares another; takes both and the number of examples.
    baseline: the metric of the baseline; takes the prepared folder.
    flags: of the training.
  """

  target: str
  experiment: str
  metric: str
  expected: float
  num_examples: int
  prepare: Callable[[pathlib.Path, pathlib.Path, int], object]
  baseline: Callable[[pathlib.Path], float]
  flags: tuple[str, ...] = ('--set=xla=false',)


def shape(kind, rng, side=64):
  """An image of a shape of any colour, size and place, on noise of another brightness."""
  background = int(rng.integers(0, 200))
  image = Image.fromarray(rng.integers(background, background + 40, (side, side, 3), dtype=np.uint8))
  colour = tuple(int(value) for value in rng.integers(0, 256, 3))
  size = int(rng.integers(side // 3, side // 2))
  x, y = (int(value) for value in rng.integers(2, side - size - 2, 2))
  draw, box = ImageDraw.Draw(image), [x, y, x + size, y + size]
  if kind == 'circle':
    draw.ellipse(box, colour)
  elif kind == 'square':
    draw.rectangle(box, colour)
  elif kind == 'triangle':
    draw.polygon([x, y + size, x + size, y + size, x + size // 2, y], colour)
  else:
    third = size // 3
    draw.rectangle([x + third, y, x + 2 * third, y + size], colour)
    draw.rectangle([x, y + third, x + size, y + 2 * third], colour)
  return image


def _prepare_shapes(source, folder, number):
  rng = np.random.default_rng(0)
  for index in range(number):
    kind = SHAPES[index % len(SHAPES)]
    (source / kind).mkdir(parents=True, exist_ok=True)
    shape(kind, rng).save(source / kind / f'{index}.png')
  drawn.convert(source, folder, 'image_classification', validation_share=0.25)


def _nearest_neighbour(folder):
  """The accuracy of the nearest neighbour on pixels."""
  from sklearn import neighbors  # pylint: disable=g-import-not-at-top

  parts = {}
  for split in ('train', 'validation'):
    examples = list(drawn.examples(folder, split).values())
    pixels = [np.asarray(Image.open(io.BytesIO(each['image/encoded'][0])), float).ravel() for each in examples]
    parts[split] = pixels, [each['image/class/label'][0] for each in examples]
  return neighbors.KNeighborsClassifier(1).fit(*parts['train']).score(*parts['validation'])


def _prepare_boxes(source, folder, number):
  drawn.write_coco(source, number)
  drawn.convert(source, folder, 'object_detection', validation_share=0.25)


def _constant_boxes(folder):
  """COCO's AP of the mean box of each class, found in every image."""
  from pycocotools import coco  # pylint: disable=g-import-not-at-top
  from pycocotools import cocoeval  # pylint: disable=g-import-not-at-top

  truth = coco.COCO(str(folder / 'annotations_validation.json'))
  boxes: dict[int, list] = {}
  for features in drawn.examples(folder, 'train').values():
    width, height = features['image/width'][0], features['image/height'][0]
    sides = [features[f'image/object/bbox/{side}'] for side in ('xmin', 'ymin', 'xmax', 'ymax')]
    for number, left, top, right, bottom in zip(features['image/object/class/label'], *sides):
      boxes.setdefault(number, []).append([left * width, top * height, (right - left) * width, (bottom - top) * height])
  found = [
    {'image_id': image, 'category_id': number, 'bbox': list(np.mean(each, 0)), 'score': 1.0}
    for image in truth.getImgIds()
    for number, each in boxes.items()
  ]
  evaluation = cocoeval.COCOeval(truth, truth.loadRes(found), 'bbox')
  evaluation.evaluate()
  evaluation.accumulate()
  evaluation.summarize()
  return float(evaluation.stats[0])


def _prepare_masks(source, folder, number):
  drawn.write_masks(source, number)
  drawn.convert(source, folder, 'semantic_segmentation', validation_share=0.25)


def _background(folder):
  """The mean IoU of the background in every pixel: of the other classes it is 0."""
  masks = [
    np.asarray(Image.open(io.BytesIO(features['image/segmentation/class/encoded'][0])))
    for features in drawn.examples(folder, 'validation').values()
  ]
  counts = np.bincount(np.concatenate([mask.ravel() for mask in masks]))
  return counts[0] / counts.sum() / len(counts)


def _prepare_texts(source, folder, number):
  rows = [{'text': text, 'label': label} for text, label in annotated.winners(number)]
  prepared_inputs.write_lines(source / 'texts.jsonl', rows)
  vocabulary = annotated.write_vocabulary(source / 'vocab.txt')
  annotated.convert(
    source / 'texts.jsonl', folder, 'text_classification', vocabulary, seq_length=16, validation_share=0.25
  )


def _bag_of_words(folder):
  """The accuracy of logistic regression on counts of words."""
  from sklearn import linear_model  # pylint: disable=g-import-not-at-top

  size = len((folder / 'vocab.txt').read_text().splitlines())
  parts = {}
  for split in ('train', 'validation'):
    rows = annotated.examples(folder, split)
    counts = [np.bincount(row['input_ids'], minlength=size) for row in rows]
    parts[split] = counts, [row['label_ids'][0] for row in rows]
  return linear_model.LogisticRegression(max_iter=1000).fit(*parts['train']).score(*parts['validation'])


CASES = {
  'image_classifier': Case(
    'image_classification', 'mobilenet_imagenet', 'accuracy', 0.85, 480, _prepare_shapes, _nearest_neighbour
  ),
  'detector': Case('object_detection', 'retinanet_mobile_coco', 'AP', 0.4, 120, _prepare_boxes, _constant_boxes),
  'segmenter': Case(
    'semantic_segmentation', 'mnv2_deeplabv3_pascal', 'mean_iou', 0.6, 120, _prepare_masks, _background
  ),
  'bert_classifier': Case(
    'text_classification', 'bert/sentence_prediction', 'cls_accuracy', 0.95, 480, _prepare_texts, _bag_of_words
  ),
}


def evaluations(model_dir, metric):
  """(values of a metric in the order of the evaluations, seconds of the run)."""
  lines = [json.loads(line) for line in (model_dir / 'events.jsonl').read_text().splitlines()]
  return [line[metric] for line in lines if line['event'] == 'eval'], lines[-1]['time'] - lines[0]['time']
