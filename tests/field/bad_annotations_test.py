"""One bad object costs that object, in every format, with its place; --on_bad_example=error names it."""

import json

import pytest

from official_ext.base import errors
from official_ext.vision.conversion import image_set
from official_ext.vision.conversion import input_formats
from tests.vision import drawn

GOOD = [2, 3, 20, 20]


def write_pictures(folder, names=('x', 'y')):
  folder.mkdir(parents=True, exist_ok=True)
  for name in names:
    drawn.image_with((2, 3, 40, 50), 'red').save(folder / f'{name}.png')
  return folder


def write_coco(folder, annotation, images=(), categories=({'id': 1, 'name': 'cat'},)):
  """The annotation is the first of y.png, and a good one is of x.png."""
  write_pictures(folder)
  known = [{'id': number, 'file_name': f'{name}.png'} for number, name in enumerate('xy')]
  annotations = [annotation, {'id': 5, 'image_id': 0, 'category_id': 1, 'bbox': GOOD, 'segmentation': [[2, 3] * 4]}]
  values = {'images': [*known, *images], 'annotations': annotations, 'categories': list(categories)}
  (folder / 'a.json').write_text(json.dumps(values))
  return folder / 'a.json'


def write_voc(folder, content):
  write_pictures(folder)
  box = ''.join(f'<{side}>{value}</{side}>' for side, value in zip(('xmin', 'ymin', 'xmax', 'ymax'), (2, 3, 20, 20)))
  good = f'<object><name>cat</name><bndbox>{box}</bndbox></object>'
  (folder / 'x.xml').write_text(f'<annotation>{good}</annotation>')
  (folder / 'y.xml').write_text(f'<annotation>{content.format(box=box)}{good}</annotation>')
  return folder


def write_yolo(folder, line):
  write_pictures(folder)
  (folder / 'classes.txt').write_text('cat\n')
  (folder / 'x.txt').write_text('0 0.5 0.5 0.2 0.2\n')
  (folder / 'y.txt').write_text(f'0 0.5 0.5 0.2 0.2\n{line}\n')
  return folder


def write_records(folder, each):
  write_pictures(folder)
  good = {'bbox': GOOD, 'category': 'cat'}
  records = [{'file_name': 'x.png', 'objects': [good]}, {'file_name': 'y.png', 'objects': [good, each]}]
  (folder / 'metadata.jsonl').write_text('\n'.join(map(json.dumps, records)))
  return folder


def read(path, target='object_detection', **more):
  return input_formats.read_inputs({'': [str(path)]}, target, image_set.Reading(**more))


OF_Y = {'image_id': 1, 'category_id': 1, 'bbox': GOOD}
CASES = [
  (write_coco, {**OF_Y, 'id': 7, 'bbox': []}, r'a.json, annotations\[0\] \(id 7\)', 'bbox is not 4 finite numbers: []'),
  (write_coco, {**OF_Y, 'bbox': [1, 2, 3]}, r'a.json, annotations\[0\]', 'bbox is not 4 finite numbers: [1, 2, 3]'),
  (write_coco, {**OF_Y, 'bbox': ['a', 2, 3, 4]}, r'annotations\[0\]', "bbox is not 4 finite numbers: ['a', 2, 3, 4]"),
  (write_coco, {**OF_Y, 'bbox': [True, 2, 3, 4]}, r'annotations\[0\]', 'bbox is not 4 finite numbers: [True, 2, 3, 4]'),
  (write_coco, {**OF_Y, 'bbox': 3}, r'annotations\[0\]', 'bbox is not 4 finite numbers: 3'),
  (write_coco, {**OF_Y, 'bbox': None}, r'annotations\[0\]', 'bbox is not 4 finite numbers: None'),
  (write_coco, {**OF_Y, 'image_id': [1]}, r'annotations\[0\]', 'image_id is not an id: [1]'),
  (
    write_coco,
    {**OF_Y, 'image_id': '1'},
    r'annotations\[0\]',
    "annotations of images that are not listed: image_id '1'",
  ),
  (
    write_coco,
    {**OF_Y, 'category_id': None},
    r'annotations\[0\]',
    'annotations of unknown categories: category_id None',
  ),
  (write_coco, {**OF_Y, 'category_id': {}}, r'annotations\[0\]', 'annotations of unknown categories: category_id {}'),
  (write_coco, 3, r'a.json, annotations\[0\]', 'is not an object'),
  (write_voc, '<object><bndbox>{box}</bndbox></object>', 'y.xml, object 0', 'has no name'),
  (
    write_voc,
    '<object><name>dog</name></object>',
    'y.xml, object 0',
    "bndbox is not 4 finite numbers: ['', '', '', '']",
  ),
  (
    write_voc,
    '<object><name>dog</name><bndbox><xmin>nan</xmin>{box}</bndbox></object>',  # The first one counts.
    'y.xml, object 0',
    "bndbox is not 4 finite numbers: ['nan', '3', '20', '20']",
  ),
  (
    write_yolo,
    '0 0.5 0.5 0.2',
    'y.txt, line 2',
    'expected a class number, and x y width height or a polygon: found 0.5',
  ),
  (write_yolo, '0 0.5 0.5 nan 0.2', 'y.txt, line 2', 'expected a class number'),
  (write_yolo, 'cat 0.5 0.5 0.2 0.2', 'y.txt, line 2', 'expected a class number'),
  (write_yolo, '0 40 30 20 20', 'y.txt, line 2', 'expected fractions of width and height'),
  (write_records, {'bbox': [1, 2], 'category': 'cat'}, r'line 2, objects\[1\]', 'bbox is not 4 finite numbers: [1, 2]'),
  (write_records, {'bbox': GOOD, 'category': None}, r'objects\[1\]', 'category is neither a name nor a number: None'),
  (write_records, {'bbox': GOOD, 'category': True}, r'objects\[1\]', 'category is neither a name nor a number: True'),
  (write_records, {'bbox': GOOD, 'category': -1}, r'objects\[1\]', 'annotations of unknown categories: category -1'),
]


@pytest.mark.parametrize(('write', 'given', 'place', 'reason'), CASES)
def test_a_bad_object_costs_that_object(write, given, place, reason, tmp_path):
  path = write(tmp_path / 'in', given)
  found = read(path)
  assert {image.name.removesuffix('.png'): len(image.objects) for image in found.images} == {
    'x': 1,
    'y': 0 if write is write_coco else 1,
  }
  ((where, why),) = found.dropped_objects
  assert why.startswith(reason)
  with pytest.raises(errors.UserError, match=place) as caught:
    read(path, on_bad_example='error')
  assert str(caught.value) == f'{where}: {why}; repair or remove it, or give --on_bad_example=skip'
  assert not any(name in str(caught.value) for name in ('Error', 'could not convert', 'Traceback'))


@pytest.mark.parametrize(
  ('segmentation', 'is_used'),
  [
    ([10, 5, 30, 5, 30, 15, 10, 15], True),  # Some converters write one polygon so.
    ([[10, 5, 30, 5, 30, 15]], True),
    ({'size': [64, 96], 'counts': [100, 50, 64 * 96 - 150]}, True),
    ({'size': [64, 96], 'counts': [100, 50]}, False),
    ({'size': [64], 'counts': 'abc'}, False),
    ([[10, 5], [30, 5], [30, 15]], False),
    ([[[10, 5], [30, 5], [30, 15]]], False),
    ([['a', 5, 30, 5, 30, 15]], False),
    ('mask.png', False),
  ],
)
def test_masks_in_any_form(segmentation, is_used, tmp_path):
  path = write_coco(tmp_path / 'in', {**OF_Y, 'segmentation': segmentation})
  found = read(path, 'instance_segmentation')
  assert [len(image.objects) for image in found.images] == [1, int(is_used)]
  assert [image_set.kind_of(reason) for _, reason in found.dropped_objects] == (
    [] if is_used else ['segmentation is neither polygons nor run lengths']
  )
  assert [len(image.objects) for image in read(path).images] == [1, 1]  # The box is whole.


def test_a_mask_of_another_size_costs_its_object(tmp_path):
  path = write_coco(tmp_path / 'in', {**OF_Y, 'segmentation': {'size': [2, 2], 'counts': [1, 3]}})
  good = {**OF_Y, 'segmentation': [[10, 5, 30, 5, 30, 15]]}
  values = json.loads(path.read_text())
  path.write_text(json.dumps({**values, 'annotations': [*values['annotations'], good]}))
  _, made = drawn.convert(path, tmp_path / 'out', 'instance_segmentation', validation_share=0.0)
  assert made.report['balance'][1]['left_out']['masks of another size than the image'] == 1
  assert made.report['splits']['train']['images'] == 2


@pytest.mark.parametrize(
  ('write', 'given', 'reason'),
  [
    (write_coco, [{'id': 9}], r'images\[2\] \(id 9\): has no file_name'),
    (write_coco, [{'file_name': 'y.png'}], r'images\[2\]: has no id'),
    (write_coco, [3], r'images\[2\]: has no file_name'),
  ],
)
def test_a_bad_entry_of_an_image_costs_that_image(write, given, reason, tmp_path):
  path = write(tmp_path / 'in', OF_Y, images=given)
  found = read(path)
  assert [len(image.objects) for image in found.images] == [1, 1] and len(found.dropped) == 1
  with pytest.raises(errors.UserError, match=reason):
    read(path, on_bad_example='error')


def test_damaged_files_and_rows_cost_their_images(tmp_path):
  folder = write_voc(tmp_path / 'voc', '')
  (folder / 'y.xml').write_text('<annotation>\n<object>')
  found = read(folder)
  assert [image.name for image in found.images] == ['x']
  assert found.dropped == [('y', f'its file is not XML: {folder}/y.xml, line 2')]
  folder = write_yolo(tmp_path / 'yolo', '')
  (folder / 'y.txt').write_bytes(b'\xff\xfe')
  assert [name for name, _ in read(folder).dropped] == ['y.png']
  folder = write_records(tmp_path / 'records', {})
  lines = (folder / 'metadata.jsonl').read_text().splitlines()
  more = {'file_name': 'y.png', 'objects': {'bbox': [GOOD], 'category': []}}
  (folder / 'metadata.jsonl').write_text('\n'.join([lines[0], '{"a":', json.dumps(more), '{"objects": []}']))
  found = read(folder)
  assert [image.name for image in found.images] == ['x.png'] and found.num_images == 4
  assert [image_set.kind_of(reason) for _, reason in found.dropped] == [
    'cannot be read',
    'objects have fields of different lengths',
    'has neither file_name nor an image',
  ]
  folder = write_pictures(tmp_path / 'csv')
  (folder / 'a.csv').write_text('path,label,split\nx.png,cat,train\ny.png,,train\ny.png,cat,trian\n,cat,\n\n')
  found = read(folder / 'a.csv', 'image_classification')
  assert [image.name for image in found.images] == ['x.png'] and found.num_images == 4
  assert [(name.rpartition(', ')[2], image_set.kind_of(reason)) for name, reason in found.dropped] == [
    ('line 3', 'has no path or no label'),
    ('line 4', 'has an unknown split'),
    ('line 5', 'has no path or no label'),
  ]
  with pytest.raises(
    errors.UserError, match='a.csv, line 3: has no path or no label; repair or remove it, or give --on'
  ):
    read(folder / 'a.csv', 'image_classification', on_bad_example='error')


def test_an_input_whose_objects_are_all_bad_is_refused(tmp_path):
  """Its ids or numbers have another meaning: nothing would be learned."""
  path = write_coco(tmp_path / 'in', {**OF_Y, 'image_id': '1'})
  values = json.loads(path.read_text())
  values['annotations'][1]['image_id'] = '0'
  path.write_text(json.dumps(values))
  with pytest.raises(errors.UserError, match=r"image_id '1'; all 2 objects are bad; repair or remove it"):
    read(path)
