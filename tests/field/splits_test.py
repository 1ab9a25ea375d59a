"""Splits: declared ones are used, no validation image is trained on, and equal examples on both sides are counted."""

import json

import numpy as np
from PIL import Image
import pytest

from official_ext.base import errors
from official_ext.data.prepare import conversions
from official_ext.vision.conversion import converting
from official_ext.vision.conversion import image_set
from official_ext.vision.conversion import input_formats
from tests.field import bad_annotations_test as formats
from tests.vision import drawn


def read(path, target='object_detection'):
  return input_formats.read_inputs({'': [str(path)]}, target, image_set.Reading())


def splits_of(found):
  return {image.name: image.split for image in found.images}


def write_lists(folder, kind, **lists):
  (folder / 'ImageSets' / kind).mkdir(parents=True)
  for name, lines in lists.items():
    (folder / 'ImageSets' / kind / f'{name}.txt').write_text('\n'.join(lines))


def test_lists_of_pascal_voc(tmp_path):
  """Names with blanks, marks of a class, names with endings, and an image in two lists."""
  folder = formats.write_voc(tmp_path / 'in', '')
  for name in ('a b', 'c'):
    (folder / f'{name}.xml').write_text((folder / 'x.xml').read_text())
    Image.new('RGB', (9, 9)).save(folder / f'{name}.png')
  write_lists(folder, 'Main', train=['a b', 'x  1', 'y', 'no name'], val=['c.png', 'y -1'])
  found = read(folder)
  assert splits_of(found) == {'a b': 'train', 'x': 'train', 'y': 'validation', 'c': 'validation'}
  assert found.problems == {'images of train that are in validation too, and do not count for train': 1}
  assert [(name, image_set.kind_of(reason)) for name, reason in found.dropped] == [
    ('no name', 'is in a list of ImageSets/Main and has no XML file')
  ]


def test_lists_of_masks(tmp_path):
  folder = tmp_path / 'in'
  for name in ('JPEGImages', 'SegmentationClass'):
    (folder / name).mkdir(parents=True)
  for name in ('a b', 'c', 'd', 'without'):
    Image.new('RGB', (9, 9)).save(folder / 'JPEGImages' / f'{name}.jpg')
    if name != 'without':
      Image.fromarray(np.ones((9, 9), np.uint8)).save(folder / 'SegmentationClass' / f'{name}.png')
  write_lists(folder, 'Segmentation', train=['a b', 'c', 'none'], val=['c'])
  found = read(folder, 'semantic_segmentation')
  assert splits_of(found) == {'a b.jpg': 'train', 'c.jpg': 'validation'}
  assert found.problems == {'images of train that are in validation too, and do not count for train': 1}
  assert {name: image_set.kind_of(reason) for name, reason in found.dropped} == {
    'd.jpg': 'is in no list of ImageSets/Segmentation',
    'none': 'is in a list of ImageSets/Segmentation and has no image',
  }
  assert found.ignored == {'images without a mask, in no list': 1} and found.num_images == 4


def test_a_class_of_the_name_train(tmp_path):
  for place in ('train/fast', 'bus', 'car'):
    formats.write_pictures(tmp_path / 'in' / place)
  with pytest.raises(
    errors.UserError, match='in/train: is a split or a class, and .*/bus: is in no split .*; name this'
  ):
    read(tmp_path / 'in', 'image_classification')
  assert read(tmp_path / 'in' / 'train', 'image_classification').labels == ['fast']
  (tmp_path / 'in' / 'train' / 'fast').rename(tmp_path / 'in' / 'fast')
  for path in (tmp_path / 'in' / 'fast').iterdir():
    path.rename(tmp_path / 'in' / 'train' / path.name)
  assert read(tmp_path / 'in', 'image_classification').labels == ['bus', 'car', 'train']


def test_files_and_rows_without_a_split(tmp_path):
  folder = formats.write_pictures(tmp_path / 'in', 'xyz')
  (folder / 'a.csv').write_text('path,label,split\nx.png,cat,train\ny.png,dog,val\nz.png,cat,\n')
  found = read(folder / 'a.csv', 'image_classification')
  assert splits_of(found) == {'x.png': 'train', 'y.png': 'validation', 'z.png': ''}
  assert found.notes == [f'{folder}/a.csv: rows without a split: 1; {conversions.WITHOUT_SPLIT}']
  records = [
    {'file_name': f'{name}.png', 'objects': [{'bbox': [2, 3, 9, 9], 'category': 'a'}], 'split': split}
    for name, split in (('x', 'train'), ('y', 'dev'), ('z', None))
  ]
  (folder / 'metadata.jsonl').write_text('\n'.join(map(json.dumps, records)))
  found = read(folder)
  assert splits_of(found) == {'x.png': 'train', 'y.png': 'validation', 'z.png': ''}
  assert found.notes == [f'{folder}/metadata.jsonl: records without a split: 1; {conversions.WITHOUT_SPLIT}']


def test_a_table_without_a_split_is_not_trained_on(tmp_path):
  pyarrow = pytest.importorskip('pyarrow')
  from pyarrow import parquet  # pylint: disable=g-import-not-at-top

  for number, name in enumerate(('train', 'validation', 'unlabelled')):
    image = drawn.encoded(drawn.image_with((1, 2, 30, 40 + number), 'red'), 'PNG')
    rows = [{'image': {'bytes': image}, 'objects': {'bbox': [[1, 2, 29, 38]], 'category': ['red']}}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f'{name}-00000-of-00001.parquet')
  found = read(tmp_path)
  assert list(splits_of(found).values()) == ['train', 'validation']
  assert found.notes == [
    f'{tmp_path}/unlabelled-00000-of-00001.parquet: its name has no split, as those beside it have: it is not read'
  ]


def test_the_order_of_rows_does_not_matter(tmp_path):
  """Equal images of a table have one split."""
  pyarrow = pytest.importorskip('pyarrow')
  from pyarrow import parquet  # pylint: disable=g-import-not-at-top

  contents = [drawn.encoded(drawn.image_with((1, 2, 30, 20 + number), 'red'), 'PNG') for number in range(30)]
  objects = {'bbox': [[1, 2, 29, 18]], 'category': ['red']}
  validation = []
  for name, order in (('one', contents), ('other', contents[::-1]), ('twice', contents + contents[::3])):
    rows = [{'image': {'bytes': content}, 'objects': objects} for content in order]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f'{name}.parquet')
    drawn.convert(
      tmp_path / f'{name}.parquet', tmp_path / name, 'object_detection', validation_share=0.3, image_format='png'
    )
    report = json.loads((tmp_path / name / 'report.json').read_text())
    assert not [line for line in converting.report_lines(report) if 'in several splits' in line]
    notes = [json.loads(path.read_text()) for path in sorted((tmp_path / name).glob('note-validation*.json'))]
    validation.append({image[1] for note in notes for image in note['details'][0]['images']})
  assert validation[0] == validation[1] == validation[2] and 2 < len(validation[0]) < 18


def test_equal_images_on_both_sides_are_counted(tmp_path):
  """Under other names, in another folder, whose order is another."""
  for number in range(6):
    image = drawn.image_with((1, 2, 30, 40 + number), 'red')
    for split, name in (('train', f'{number}'), ('val', f'{9 - number}')):
      (tmp_path / 'in' / split / 'red').mkdir(parents=True, exist_ok=True)
      if split == 'train' or number < 2:
        image.save(tmp_path / 'in' / split / 'red' / f'{name}.png')
  _, made = drawn.convert(tmp_path / 'in', tmp_path / 'out', 'image_classification')
  (line,) = [line for line in converting.report_lines(made.report) if 'in several splits' in line]
  assert line.startswith('2 images are in several splits, such as train: train/red/')


def test_the_order_of_a_list_does_not_matter():
  """A period of the file, such as every tenth row of one source, is not one of the split."""
  keys = [f'{number:05d}.png' for number in range(2000)]
  divide = lambda names: {
    split: {names[index] for index in found}
    for split, found in conversions.divide(names, [''] * len(names), 0.1, 0.0, 0, 'image').items()
  }
  assert divide(keys) == divide(keys[::-1]) == divide(sorted(keys, key=lambda name: name[::-1]))
  validation = divide(keys)['validation']
  for period in (2, 5, 10):
    for phase in range(period):
      share = np.mean([key in validation for key in keys[phase::period]])
      number = len(keys[phase::period])
      assert abs(share - 0.1) < 4 * np.sqrt(0.1 * 0.9 / number), (period, phase)
