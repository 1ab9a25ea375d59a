"""The same boxes, from every format, become the same features, and Model Garden's decoders read them."""

import dataclasses
import glob
import json

import numpy as np
from official.vision.dataloaders import classification_input
from official.vision.dataloaders import maskrcnn_input
from official.vision.dataloaders import retinanet_input
from official.vision.dataloaders import segmentation_input
from official.vision.dataloaders import tf_example_decoder
from official.vision.dataloaders import tf_example_label_map_decoder
from PIL import Image
import pyarrow
from pyarrow import parquet
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.vision.conversion import input_formats
from tests.vision import drawn

BOXES = drawn.boxes(12)


def write_images(folder):
  folder.mkdir(parents=True)
  for name, box, colour in BOXES:
    drawn.image_with(box, colour).save(folder / f'{name}.jpg', quality=95)


def write_coco(folder):
  drawn.write_coco(folder)


def write_voc(folder, image_folder='JPEGImages'):
  write_images(folder / image_folder)
  (folder / 'Annotations').mkdir()
  for name, (left, top, right, bottom), colour in BOXES:
    corners = f'<xmin>{left + 1}</xmin><ymin>{top + 1}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax>'
    (folder / 'Annotations' / f'{name}.xml').write_text(
      f'<annotation><filename>{name}.jpg</filename><size><width>96</width><height>64</height><depth>3</depth></size>'
      f'<object><name>{colour}</name><bndbox>{corners}</bndbox></object></annotation>'
    )


def write_yolo(folder):
  write_images(folder / 'images')
  (folder / 'labels').mkdir()
  (folder / 'data.yaml').write_text('names: {0: blue, 1: green, 2: red}\n')
  for name, (left, top, right, bottom), colour in BOXES:
    values = [(left + right) / 2 / 96, (top + bottom) / 2 / 64, (right - left) / 96, (bottom - top) / 64]
    line = ' '.join(map(repr, [drawn.CLASSES.index(colour), *values]))
    (folder / 'labels' / f'{name}.txt').write_text(line + '\n')


def write_metadata(folder):
  write_images(folder)
  lines = []
  for name, (left, top, right, bottom), colour in BOXES:
    objects = {'bbox': [[left, top, right - left, bottom - top]], 'category': [colour]}
    lines.append(json.dumps({'file_name': f'{name}.jpg', 'objects': objects}) + '\n')
  (folder / 'metadata.jsonl').write_text(''.join(lines))


def write_parquet(folder):
  folder.mkdir(parents=True)
  rows = []
  for name, (left, top, right, bottom), colour in BOXES:
    image = drawn.encoded(drawn.image_with((left, top, right, bottom), colour), 'JPEG', quality=95)
    objects = {'bbox': [[left, top, right - left, bottom - top]], 'category': [drawn.CLASSES.index(colour)]}
    rows.append({'image': {'bytes': image, 'path': f'{name}.jpg'}, 'objects': objects})
  label = {'feature': {'names': drawn.CLASSES, '_type': 'ClassLabel'}, '_type': 'Sequence'}
  features = {'info': {'features': {'objects': {'category': label}}}}
  table = pyarrow.Table.from_pylist(rows)
  table = table.replace_schema_metadata({'huggingface': json.dumps(features)})
  parquet.write_table(table, folder / 'train-00000-of-00001.parquet', row_group_size=5)


WRITERS = [write_coco, write_voc, write_yolo, write_metadata, write_parquet]


@pytest.mark.parametrize('write', WRITERS)
def test_boxes_of_every_format_have_the_same_features(write, tmp_path):
  write(tmp_path / 'in')
  _, made = drawn.convert(tmp_path / 'in', tmp_path / 'out', 'object_detection', validation_share=0.25)
  assert (tmp_path / 'out' / 'labels.txt').read_text() == 'background\nblue\ngreen\nred\n'
  assert (tmp_path / 'out' / 'label_map.csv').read_text() == '0,background\n1,blue\n2,green\n3,red\n'
  found = [each for split in ('train', 'validation') for each in drawn.examples(tmp_path / 'out', split).values()]
  by_content = {each['image/encoded'][0]: each for each in found}
  assert len(by_content) == 12
  for _, box, colour in BOXES:
    content = drawn.encoded(drawn.image_with(box, colour), 'JPEG', quality=95)
    each = by_content[content]  # JPEG files are kept.
    left, top, right, bottom = (each[f'image/object/bbox/{side}'][0] for side in ('xmin', 'ymin', 'xmax', 'ymax'))
    np.testing.assert_allclose([left * 96, top * 64, right * 96, bottom * 64], box, atol=1e-4)
    assert each['image/object/class/label'] == [1 + drawn.CLASSES.index(colour)]
    assert each['image/object/class/text'] == [colour.encode()]
    area = (box[2] - box[0]) * (box[3] - box[1])
    assert each['image/object/area'] == pytest.approx([area], rel=1e-5) and each['image/object/is_crowd'] == [0]
    assert (each['image/width'], each['image/height']) == ([96], [64])
  assert not made.report['dropped_images'] and not made.report['changed_objects']


def records_in(folder, split='train'):
  return [record for file in sorted(glob.glob(f'{folder}/{split}-*')) for record in tf.data.TFRecordDataset(file)]


def test_model_gardens_decoders_read_boxes_and_masks(tmp_path):
  write_coco(tmp_path / 'in')
  drawn.convert(tmp_path / 'in', tmp_path / 'out', 'instance_segmentation', validation_share=0.25)
  decoders = [
    tf_example_decoder.TfExampleDecoder(include_mask=True),
    tf_example_label_map_decoder.TfExampleDecoderLabelMap(str(tmp_path / 'out' / 'label_map.csv'), include_mask=True),
  ]
  for decoder in decoders:
    for record in records_in(tmp_path / 'out'):
      found = decoder.decode(record)
      top, left, bottom, right = (found['groundtruth_boxes'][0].numpy() * [64, 96, 64, 96]).round().astype(int)
      mask = found['groundtruth_instance_masks'].numpy()
      assert mask.shape == (1, 64, 96) and set(np.unique(mask)) == {0, 1}
      assert mask[0, top:bottom, left:right].all() and mask.sum() == (bottom - top) * (right - left)
      colour = found['image'].numpy()[top + 4 : bottom - 4, left + 4 : right - 4].mean((0, 1))
      number = int(found['groundtruth_classes'][0])
      np.testing.assert_allclose(colour, drawn.COLOURS[drawn.CLASSES[number - 1]], atol=12)


def test_model_gardens_decoders_read_classes_and_masks_of_classes(tmp_path):
  drawn.write_class_folders(tmp_path / 'classes')
  drawn.convert(tmp_path / 'classes', tmp_path / 'out', 'image_classification')
  assert (tmp_path / 'out' / 'labels.txt').read_text() == 'blue\ngreen\nred\n'
  for record in records_in(tmp_path / 'out'):
    found = classification_input.Decoder().decode(record)
    assert 0 <= int(found['image/class/label']) < 3
    assert tf.image.extract_jpeg_shape(found['image/encoded']).numpy().tolist() == [64, 96, 3]
  drawn.write_masks(tmp_path / 'masks')
  drawn.convert(tmp_path / 'masks', tmp_path / 'out2', 'semantic_segmentation', validation_share=0.3)
  for record in records_in(tmp_path / 'out2'):
    image, labels = segmentation_input.Parser([64, 96], aug_rand_hflip=False).parse_fn(False)(
      segmentation_input.Decoder().decode(record)
    )
    mask = labels['masks'].numpy()[..., 0].astype(int)
    (number,) = set(np.unique(mask)) - {0}
    rows, columns = np.nonzero(mask == number)
    box = tuple(int(value) for value in (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1))
    assert (box, drawn.CLASSES[number - 1]) in {(box, colour) for _, box, colour in BOXES}
    assert image.shape == (64, 96, 3)


def test_a_csv_file_and_its_splits(tmp_path):
  drawn.write_class_folders(tmp_path, 6)
  files = sorted(path.relative_to(tmp_path) for path in tmp_path.glob('*/*.png'))
  rows = [f'{file},{file.parent},{"val" if number < 2 else "train"}' for number, file in enumerate(files)]
  (tmp_path / 'list.csv').write_text('\n'.join(['image_path,Label,split', *rows]))
  drawn.convert(tmp_path / 'list.csv', tmp_path / 'out', 'image_classification')
  assert set(drawn.examples(tmp_path / 'out', 'validation')) == {str(file) for file in files[:2]}
  (tmp_path / 'bare.csv').write_text('\n'.join(row.rpartition(',')[0] for row in rows))
  drawn.convert(tmp_path / 'bare.csv', tmp_path / 'out2', 'image_classification', validation_share=0.4)
  found = {**drawn.examples(tmp_path / 'out2'), **drawn.examples(tmp_path / 'out2', 'validation')}
  assert set(found) == {str(file) for file in files}
  (tmp_path / 'wrong.csv').write_text('image,size\na.png,3\n')
  with pytest.raises(errors.UserError, match='wrong.csv: has no column label; name one of its columns label or class'):
    drawn.convert(tmp_path / 'wrong.csv', tmp_path / 'out3', 'image_classification')


@pytest.mark.parametrize('layout', ['above', 'roboflow', 'coco', 'yolo', 'voc', 'given'])
def test_splits_by_folder(layout, tmp_path):
  folder, target = tmp_path / 'in', 'object_detection'
  if layout == 'above':
    target = 'image_classification'
    drawn.write_class_folders(folder / 'train', 9)
    drawn.write_class_folders(folder / 'valid', 6)
  elif layout in ('roboflow', 'given'):
    for name, number in (('train', 9), ('valid', 6)):
      drawn.write_coco(folder / name, number)
      for image in (folder / name / 'images').iterdir():
        image.rename(folder / name / image.name)
      (folder / name / 'annotations.json').rename(folder / name / '_annotations.coco.json')
  elif layout == 'coco':
    for name, number in (('train', 9), ('val', 6)):
      drawn.write_coco(tmp_path / name, number)
      (folder / 'annotations').mkdir(parents=True, exist_ok=True)
      (tmp_path / name / 'annotations.json').rename(folder / 'annotations' / f'instances_{name}2017.json')
      (tmp_path / name / 'images').rename(folder / f'{name}2017')
  elif layout == 'yolo':
    for name in ('train', 'val'):
      write_yolo(tmp_path / name)
      for part in ('images', 'labels'):
        (folder / part).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / part).rename(folder / part / name)
    for number in range(12):
      if number >= 6:
        (folder / 'images' / 'val' / f'{number:03d}.jpg').unlink()
      if number >= 9:
        (folder / 'images' / 'train' / f'{number:03d}.jpg').unlink()
    (tmp_path / 'train' / 'data.yaml').rename(folder / 'data.yaml')
  elif layout == 'voc':
    write_voc(folder)
    sets = folder / 'ImageSets' / 'Main'
    sets.mkdir(parents=True)
    (sets / 'train.txt').write_text('\n'.join(name for name, _, _ in BOXES[:9]))
    (sets / 'val.txt').write_text('\n'.join(name for name, _, _ in BOXES[9:]))
  inputs = {'': [str(folder)]}
  if layout == 'given':
    inputs = {'': [str(folder / 'train')], 'validation': [str(folder / 'valid')]}
  _, made = drawn.convert(inputs, tmp_path / 'out', target)
  counts = {split: values['images'] for split, values in made.report['splits'].items()}
  assert counts == {'train': 9, 'validation': 3 if layout == 'voc' else 6}


def read(path, target='object_detection'):
  return input_formats.read_inputs({'': [str(path)]}, target, input_formats.Reading())


def test_images_of_pascal_voc_in_no_list_are_dropped_with_a_reason(tmp_path):
  """Names may have blanks; trainval.txt is read without train.txt."""
  write_voc(tmp_path)
  for path in (tmp_path / 'Annotations' / '000.xml', tmp_path / 'JPEGImages' / '000.jpg'):
    path.rename(path.with_stem('a b'))
  sets = tmp_path / 'ImageSets' / 'Main'
  sets.mkdir(parents=True)
  (sets / 'trainval.txt').write_text('a b\n001  1\n002 -1\n003\n')
  (sets / 'test.txt').write_text('003\n004\nnone\n')
  found = read(tmp_path)
  expected = {'001': 'train', '002': 'train', '003': 'test', '004': 'test', 'a b': 'train'}
  assert {image.name: image.split for image in found.images} == expected
  reasons = dict(found.dropped)
  assert 'is in a list of ImageSets/Main and has no XML file: in' in reasons.pop('none')
  assert reasons == dict.fromkeys([name for name, _, _ in BOXES[5:]], 'is in no list of ImageSets/Main')


def test_records_in_folders_of_splits(tmp_path):
  folder = tmp_path / 'in'
  write_metadata(folder)
  lines = [json.loads(line) for line in (folder / 'metadata.jsonl').read_text().splitlines()]
  for number, line in enumerate(lines):
    split = 'train' if number < 6 else 'validation' if number < 10 else 'more'
    (folder / split).mkdir(exist_ok=True)
    (folder / line['file_name']).rename(folder / split / line['file_name'])
    line['file_name'] = f'{split}/{line["file_name"]}'
  (folder / 'metadata.jsonl').write_text('\n'.join(map(json.dumps, lines)))
  found = read(folder)
  assert [image.split for image in found.images] == ['train'] * 6 + ['validation'] * 4
  assert found.dropped == [(f'more/{name}.jpg', 'is in no folder of a split') for name, _, _ in BOXES[10:]]
  for line in lines:
    line['split'] = 'test' if line is lines[0] else 'train'
  (folder / 'metadata.jsonl').write_text('\n'.join(map(json.dumps, lines)))
  assert [image.split for image in read(folder).images] == ['test'] + ['train'] * 11
  (folder / 'metadata.jsonl').write_text(json.dumps({**lines[0], 'split': 'trian'}))
  with pytest.raises(errors.UserError, match="has an unknown split: 'trian', expected train, validation, test"):
    read(folder)


@pytest.mark.parametrize(
  ('header', 'row', 'splits', 'note'),
  [
    ('path,label,set', '{},{},{}', ['train', 'validation'], None),
    ('path,label,Set', '{},{},x{}', ['', ''], 'set'),
    ('path,label,size,split', '{},{},3,{}', ['train', 'validation'], 'size'),
    ('', '{},{},3', ['', ''], 'number 3'),
  ],
)
def test_columns_of_a_csv_file_are_used_or_named(header, row, splits, note, tmp_path):
  drawn.write_class_folders(tmp_path, 2)
  files = sorted(path.relative_to(tmp_path) for path in tmp_path.glob('*/*.png'))
  rows = [row.format(file, file.parent, split) for file, split in zip(files, ('train', 'val'))]
  (tmp_path / 'list.csv').write_text('\n'.join([*([header] if header else []), *rows]))
  found = read(tmp_path / 'list.csv', 'image_classification')
  assert [image.split for image in found.images] == splits
  assert {name: count for name, count in found.ignored.items() if 'column' in name} == (
    {f'CSV column {note}': 2} if note else {}
  )


def test_splits_of_a_csv_file_without_a_header_are_refused(tmp_path):
  (tmp_path / 'list.csv').write_text('a.png,cat,train\nb.png,dog,val\n')
  with pytest.raises(
    errors.UserError, match='the third column has names of splits, and no header; begin with a line pa'
  ):
    read(tmp_path / 'list.csv', 'image_classification')


def test_files_beside_splits_are_named(tmp_path):
  for name in ('train', 'val'):
    drawn.write_coco(tmp_path / name, 3)
    (tmp_path / 'in' / 'annotations').mkdir(parents=True, exist_ok=True)
    (tmp_path / name / 'annotations.json').rename(tmp_path / 'in' / 'annotations' / f'instances_{name}.json')
    (tmp_path / name / 'images').rename(tmp_path / 'in' / name)
  (tmp_path / 'in' / 'annotations' / 'more.json').write_text('{"images": [], "annotations": [], "categories": []}')
  expected = f'{tmp_path}/in/annotations/more.json: its name has no split, as those beside it have: it is not read'
  assert read(tmp_path / 'in').notes == [expected]
  folder = tmp_path / 'classes'
  for name in ('train', 'val', 'more'):
    drawn.write_class_folders(folder / name, 3)
  found = read(folder, 'image_classification')
  assert found.notes == [f'{folder}/more: is in no split beside train, validation: its images, 3, are not read']


@pytest.mark.parametrize(
  ('target', 'expected'),
  [
    ('image_classification', 'expected a folder with a subfolder for each class, or a CSV file'),
    ('object_detection', 'expected COCO JSON, a folder of Pascal VOC or YOLO, or records with the column objects'),
    ('semantic_segmentation', 'expected a folder with the subfolders images and masks'),
  ],
)
def test_other_inputs_are_refused(target, expected, tmp_path):
  (tmp_path / 'in').mkdir()
  Image.new('L', (4, 4)).save(tmp_path / 'in' / 'a.png')
  with pytest.raises(errors.UserError, match=expected):
    drawn.convert(tmp_path / 'in', tmp_path / 'out', target)
  with pytest.raises(errors.UserError, match='No such file or directory'):
    drawn.convert(tmp_path / 'none', tmp_path / 'out', target)


@pytest.mark.parametrize(
  ('file', 'content', 'message'),
  [
    (
      'labels/000.txt',
      '0 0.5 0.5 0.1\n',
      '000.txt, line 1: expected a class number, and x y width height or',
    ),
    ('Annotations/000.xml', '<annotation>', r'for example 000: its file is not XML: .*000.xml, line 1; expected'),
    (
      'a.json',
      '{"images": [{"id": 1}], "annotations": [], "categories": []}',
      r'images\[0\] \(id 1\): has no file_name',
    ),
    (
      'a.json',
      '{"images": {}, "annotations": [], "categories": []}',
      'a.json: is not COCO JSON: images: expected a list',
    ),
  ],
)
def test_damaged_annotations_are_named(file, content, message, tmp_path):
  write_images(tmp_path / 'images')
  (tmp_path / file).parent.mkdir(exist_ok=True)
  (tmp_path / file).write_text(content)
  with pytest.raises(errors.UserError, match=message):
    drawn.convert(tmp_path, tmp_path.parent / 'out', 'object_detection')


def test_boxes_by_corners(tmp_path):
  write_metadata(tmp_path / 'in')
  text = (tmp_path / 'in' / 'metadata.jsonl').read_text()
  lines = [json.loads(line) for line in text.splitlines()]
  for line, (_, box, _) in zip(lines, BOXES):
    line['objects'] = [{'bbox': list(box), 'label': line['objects']['category'][0]}]  # A list of dictionaries.
  (tmp_path / 'in' / 'metadata.jsonl').write_text('\n'.join(map(json.dumps, lines)))
  reading = input_formats.Reading(box_format='xyxy')
  found = input_formats.read_inputs({'': [str(tmp_path / 'in')]}, 'object_detection', reading)
  assert [image.objects[0]['bbox'] for image in found.images] == [list(box) for _, box, _ in BOXES]
  assert dataclasses.asdict(reading) == {
    'images': '',
    'box_format': 'xyxy',
    'on_bad_example': 'skip',
    'with_masks': False,
  }


@pytest.mark.parametrize('name', ['retinanet', 'maskrcnn'])
def test_images_without_objects_train_too(name, tmp_path):
  write_yolo(tmp_path / 'in')
  for number in range(12):
    if number % 2:
      (tmp_path / 'in' / 'labels' / f'{number:03d}.txt').unlink()
  drawn.convert(tmp_path / 'in', tmp_path / 'out', 'object_detection', validation_share=0.0)
  levels = {'min_level': 3, 'max_level': 5, 'num_scales': 1, 'aspect_ratios': [1.0], 'anchor_size': 3}
  module = {'retinanet': retinanet_input, 'maskrcnn': maskrcnn_input}[name]
  parse = module.Parser([64, 96], **levels).parse_fn(True)
  decoder = tf_example_decoder.TfExampleDecoder()
  numbers = []
  for record in records_in(tmp_path / 'out'):
    decoded = decoder.decode(record)
    image, labels = parse(decoded)
    assert np.isfinite(image.numpy()).all()
    scores = labels['cls_targets' if name == 'retinanet' else 'rpn_score_targets']
    positive = sum(int((level.numpy() > 0).sum()) for level in scores.values())
    numbers.append((len(decoded['groundtruth_classes']), positive > 0))
  assert sorted(numbers) == [(0, False)] * 6 + [(1, True)] * 6
