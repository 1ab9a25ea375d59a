"""Names, ids and files that join an image with its annotations are checked: the right owner, or none."""

import json

import numpy as np
from PIL import Image
import pytest

from official_ext.base import errors
from official_ext.vision.conversion import image_set
from official_ext.vision.conversion import input_formats
from tests.field import bad_annotations_test as formats
from tests.vision import drawn


def read(*paths, target='object_detection', **more):
  inputs = {'': [str(path) for path in paths], **{split: [str(path)] for split, path in more.items()}}
  return input_formats.read_inputs(inputs, target, image_set.Reading())


def kinds(found):
  return {name: image_set.kind_of(reason) for name, reason in found.dropped}


def write_coco(folder, images, annotations, categories=({'id': 1, 'name': 'cat'},)):
  formats.write_pictures(folder, 'xyz')
  values = {'images': images, 'annotations': annotations, 'categories': list(categories)}
  (folder / 'a.json').write_text(json.dumps(values))
  return folder / 'a.json'


def annotation(image_id, left=2):
  return {'image_id': image_id, 'category_id': 1, 'bbox': [left, 3, 20, 20]}


def test_images_of_one_id_have_no_owner(tmp_path):
  images = [{'id': number, 'file_name': f'{name}.png'} for number, name in ((1, 'x'), (1, 'y'), (2, 'z'))]
  path = write_coco(tmp_path / 'in', images, [annotation(1), annotation(2)])
  found = read(path)
  assert [(image.name, len(image.objects)) for image in found.images] == [('z.png', 1)]
  assert kinds(found) == dict.fromkeys(['x.png', 'y.png'], 'has the id of another image')
  assert [image_set.kind_of(reason) for _, reason in found.dropped_objects] == [
    'annotations of images that have one id'
  ]


def test_images_that_are_listed_twice(tmp_path):
  """Once under one id, once under two: the boxes of such an image are incomplete."""
  images = [{'id': number, 'file_name': f'{name}.png'} for number, name in ((1, 'x'), (1, 'x'), (2, 'y'), (3, 'y'))]
  path = write_coco(tmp_path / 'in', images, [annotation(1), annotation(2), annotation(3, 5)])
  found = read(path)
  assert [(image.name, len(image.objects)) for image in found.images] == [('x.png', 1)]
  assert kinds(found) == {
    'x.png': 'is listed twice; the first one counts',
    'y.png': 'is listed several times with different annotations',
  }


@pytest.mark.parametrize(
  ('categories', 'message'),
  [
    ([{'id': 1, 'name': 'cat'}, {'id': 1, 'name': 'dog'}], r'categories\[1\] \(id 1\): two categories have one id'),
    ([{'id': 1, 'name': 'cat'}, {'id': 2, 'name': 'cat'}], 'a.json: two categories have one name'),
    ([{'id': 1, 'name': ''}], r'categories\[0\] \(id 1\): expected an object with id and name'),
  ],
)
def test_categories_have_one_id_and_name(categories, message, tmp_path):
  path = write_coco(tmp_path / 'in', [{'id': 1, 'file_name': 'x.png'}], [annotation(1)], categories)
  with pytest.raises(errors.UserError, match=message):
    read(path)


def test_a_name_of_two_lines_would_shift_the_numbers_of_others(tmp_path):
  path = write_coco(tmp_path / 'in', [{'id': 1, 'file_name': 'x.png'}], [annotation(1)], [{'id': 1, 'name': 'a\nb'}])
  with pytest.raises(errors.UserError, match=r"the class 'a\\nb' is not one line, as labels.txt requires; rename it"):
    drawn.convert(path, tmp_path / 'out', 'object_detection')


def test_images_in_two_folders(tmp_path):
  path = write_coco(tmp_path / 'in', [{'id': 1, 'file_name': 'x.png'}], [annotation(1)])
  formats.write_pictures(tmp_path / 'in' / 'images')
  with pytest.raises(errors.UserError, match=f'its images are in {path.parent} and in .*images; give --images=FOLDER'):
    read(path)
  (path.parent / 'x.png').unlink()
  assert read(path).images[0].file == f'{path.parent}/images/x.png'


def test_coco_has_several_files_for_a_split(tmp_path):
  """As annotations_trainval2017.zip: keypoints of persons, with the images of instances."""
  folder = tmp_path / 'in'
  for number, split in enumerate(('train', 'val')):
    formats.write_pictures(folder / f'{split}2017', [split])
    images = [{'id': number, 'file_name': f'{split}.png'}]
    values = {'images': images, 'annotations': [annotation(number)], 'categories': [{'id': 1, 'name': 'cat'}]}
    (folder / 'annotations').mkdir(exist_ok=True)
    for kind in ('instances', 'person_keypoints'):
      (folder / 'annotations' / f'{kind}_{split}2017.json').write_text(json.dumps(values))
  found = read(folder)
  assert [(image.name, len(image.objects)) for image in found.images] == [
    ('train/train.png', 1),
    ('validation/val.png', 1),
  ]
  assert not found.dropped and ['instances_train2017.json is read for train' in note for note in found.notes] == [
    True,
    False,
  ]


def masks(folder, images, of_masks):
  (folder / 'images').mkdir(parents=True)
  (folder / 'masks').mkdir()
  for name in images:
    Image.new('RGB', (8, 8)).save(folder / 'images' / name)
  for number, name in enumerate(of_masks):
    Image.fromarray(np.full((8, 8), number, np.uint8)).save(folder / 'masks' / name)
  found = read(folder, target='semantic_segmentation')
  return {image.name: image.mask.rpartition('/')[2] for image in found.images}, found


def test_a_mask_belongs_to_the_image_of_its_whole_name(tmp_path):
  pairs, found = masks(tmp_path / 'a', ['a.png', 'a_mask.png', 'b.png'], ['a.png', 'a_mask.png', 'b_mask.png'])
  assert pairs == {'a.png': 'a.png', 'a_mask.png': 'a_mask.png', 'b.png': 'b_mask.png'} and not found.ignored
  pairs, found = masks(
    tmp_path / 'b', ['a.png', 'b.png', 'b.jpg', 'c.png'], ['a_mask.png', 'a-mask.png', 'b.png', 'c.png']
  )
  assert pairs == {'c.png': 'c.png'}
  assert kinds(found) == {
    'a.png': 'has several masks',
    'b.png': 'has the name of another image, and one mask',
    'b.jpg': 'has the name of another image, and one mask',
  }


def test_labels_of_two_images_of_one_name(tmp_path):
  folder = formats.write_yolo(tmp_path / 'yolo', '')
  Image.new('RGB', (9, 9)).save(folder / 'x.jpg')
  found = read(folder)
  assert [image.name for image in found.images] == ['y.png']
  assert kinds(found) == dict.fromkeys(['x.png', 'x.jpg'], 'has the name of another image, and one label file')


def test_the_image_of_an_xml_file(tmp_path):
  """The image of its name, then of its <filename>; of two images of its name, <filename> decides."""
  folder = formats.write_voc(tmp_path / 'voc', '')
  for name in ('x.jpg', 'y.jpg', 'z.jpg'):
    Image.new('RGB', (9, 9)).save(folder / name)
  text = (folder / 'x.xml').read_text()
  for name, stated in (('x', 'x.jpg'), ('other', 'x.jpg'), ('renamed', 'z.jpg')):
    (folder / f'{name}.xml').write_text(text.replace('<annotation>', f'<annotation><filename>{stated}</filename>'))
  found = read(folder)
  assert {image.name: image.file.rpartition('/')[2] for image in found.images} == {'x': 'x.jpg', 'renamed': 'z.jpg'}
  assert kinds(found) == {'other': 'has no image', 'y': 'has several images'}


def test_columns_and_rows_of_a_csv_file(tmp_path):
  folder = formats.write_pictures(tmp_path / 'in')
  (folder / 'a.csv').write_text('path,label,label\nx.png,cat,dog\n')
  with pytest.raises(errors.UserError, match='a.csv: two columns have the name label; rename one'):
    read(folder / 'a.csv', target='image_classification')
  (folder / 'a.csv').write_text('path,label\nx.png,cat\nx.png,dog\ny.png,cat\n./y.png,cat\n')
  found = read(folder / 'a.csv', target='image_classification')
  assert [(image.name, image.label) for image in found.images] == [('y.png', 'cat')]
  assert kinds(found) == {
    'x.png': 'is listed several times with different annotations',
    './y.png': 'is listed twice; the first one counts',
  }


def test_an_image_of_two_inputs_is_not_trained_on_if_it_validates(tmp_path):
  for name in 'xy':
    formats.write_pictures(tmp_path / 'in' / name, 'ab')
  found = read(tmp_path / 'in', target='image_classification', validation=tmp_path / 'in')
  assert {image.split for image in found.images} == {'validation'} and len(found.images) == 4
  assert set(kinds(found).values()) == {'is listed twice; the first one counts'}
