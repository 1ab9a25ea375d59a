"""A balance for each input: found = used + left out, and what is not read, in every format and for every source."""

import contextlib
import json

import numpy as np
import pytest

from official_ext.data import input_files
from official_ext.data import record_report
from official_ext.data import sources
from official_ext.data.prepare import planning
from official_ext.data.prepare import preparing
from tests.data.prepare import prepared_inputs
from tests.vision import drawn


def write_damaged(kind, folder):
  """An input of 12 images with a damaged one, a missing one, a bad object or row, and files of no image."""
  folder.mkdir(parents=True, exist_ok=True)
  found = drawn.boxes(12)
  pictures = folder / {'voc': 'JPEGImages', 'metadata': '.', 'folders': 'red', 'csv': '.'}.get(kind, 'images')
  pictures.mkdir(exist_ok=True)
  for name, box, colour in found:
    drawn.image_with(box, colour).save(pictures / f'{name}.png')
  lines = {name: (box, colour) for name, box, colour in found}
  if kind == 'coco':
    images = [{'id': number, 'file_name': f'{name}.png'} for number, name in enumerate(lines)]
    annotations = [
      {'id': n, 'image_id': n, 'category_id': 1, 'bbox': [2, 3, 20, 20] if n != 2 else [2, 3]} for n in range(12)
    ]
    categories = [{'id': 1, 'name': 'box'}]
    (folder / 'a.json').write_text(json.dumps({'images': images, 'annotations': annotations, 'categories': categories}))
  elif kind == 'voc':
    (folder / 'Annotations').mkdir()
    for name in lines:
      corner = 'x' if name == '002' else '2'
      box = f'<xmin>{corner}</xmin><ymin>2</ymin><xmax>20</xmax><ymax>20</ymax>'
      text = f'<annotation><object><name>box</name><bndbox>{box}</bndbox></object></annotation>'
      (folder / 'Annotations' / f'{name}.xml').write_text(text)
  elif kind == 'yolo':
    (folder / 'labels').mkdir()
    (folder / 'data.yaml').write_text('names: [box]\n')
    for name in lines:
      (folder / 'labels' / f'{name}.txt').write_text('0 0.5 0.5 0.2\n' if name == '002' else '0 0.5 0.5 0.2 0.2\n')
  elif kind == 'metadata':
    records = [
      {'file_name': f'{name}.png', 'objects': {'bbox': [[1, 2, 9, None if name == '002' else 9]], 'category': ['box']}}
      for name in lines
    ]
    (folder / 'metadata.jsonl').write_text('\n'.join(map(json.dumps, records)))
  elif kind == 'csv':
    rows = [f'{name}.png,{"" if name == "002" else "red"}' for name in lines]
    (folder / 'list.csv').write_text('\n'.join(['path,label', *rows]))
  elif kind == 'masks':
    (folder / 'masks').mkdir()
    for name in (*lines, 'more'):
      if name != '002':
        drawn.Image.fromarray(np.ones((64, 96), np.uint8)).save(folder / 'masks' / f'{name}.png')
  (pictures / '000.png').write_bytes(b'no image')
  if kind != 'folders':
    (pictures / '001.png').unlink()
  (folder / 'notes.md').write_text('more')
  return folder / 'list.csv' if kind == 'csv' else folder


@pytest.mark.parametrize('kind', ['coco', 'voc', 'yolo', 'metadata', 'folders', 'csv', 'masks'])
def test_all_that_an_input_has_is_accounted_for(kind, tmp_path):
  target = {'folders': 'image_classification', 'csv': 'image_classification', 'masks': 'semantic_segmentation'}
  folder = write_damaged(kind, tmp_path / 'in')
  done, made = drawn.convert(folder, tmp_path / 'out', target.get(kind, 'object_detection'), validation_share=0.0)
  stored = json.loads((tmp_path / 'out' / 'report.json').read_text())['balance']
  assert stored == made.report['balance'] == done.balance == input_files.balance_of(f'{tmp_path}/out/train-*.tfrecord')
  images, *objects = stored
  # 001 is missing: folders list what is there; others list it. Class folders have no bad object.
  found = {'folders': 12, 'yolo': 11, 'masks': 11}.get(kind, 12)
  lost = {'folders': 1, 'csv': 3, 'yolo': 1, 'masks': 2}.get(kind, 2)
  assert (images['found'], images['used']) == (found, found - lost)
  assert images['used'] == len(drawn_names(tmp_path / 'out'))
  assert sum(images['left_out'].values()) == lost and record_report.UNACCOUNTED not in images['left_out']
  if kind != 'csv':
    assert images['ignored']['.md files'] == 1
  if kind == 'yolo':
    assert images['ignored']['label files without an image'] == 1
  if kind == 'masks':  # Of 001, whose image is missing, and of none.
    assert images['ignored']['masks without an image'] == 2
  if target.get(kind) is None:
    (account,) = objects
    expected = 11 if kind == 'yolo' else 12  # No image, no lines.
    left_out = account['left_out']
    assert left_out.pop('of images that are left out') == (1 if kind == 'yolo' else 2)
    assert list(left_out.values()) == [1] and len(made.report['dropped_objects']) == 1  # The bad one, by its reason.
    assert (account['found'], account['used']) == (expected, expected - (2 if kind == 'yolo' else 3))


def drawn_names(folder):
  return [name for note in folder.glob('note-*.json') for name in json.loads(note.read_text())['details'][0]['images']]


def test_each_input_has_its_own(tmp_path):
  """Also inputs whose last folders have one name, whose images are not taken for each other."""
  for name in ('a', 'b'):
    drawn.write_coco(tmp_path / name / 'data', 6)
  (tmp_path / 'b' / 'data' / 'images' / '003.jpg').unlink()
  (tmp_path / 'b' / 'data' / 'images' / 'more.jpg').write_bytes(b'')
  paths = [str(tmp_path / name / 'data') for name in ('a', 'b')]
  _, made = drawn.convert({'': paths}, tmp_path / 'out', 'object_detection', validation_share=0.0)
  assert [record_report.balance_line(each) for each in made.report['balance']] == [
    f'{paths[0]}: 6 images found, 6 used',
    f'{paths[0]}: 6 objects found, 6 used',
    f'{paths[1]}: 6 images found, 5 used; left out: 1 No such file; not read: 1 images that no annotation names',
    f'{paths[1]}: 6 objects found, 5 used; left out: 1 of images that are left out',
  ]


def test_background_images_and_lost_boxes_are_counted(tmp_path):
  outside = {'id': 90, 'image_id': 1003, 'category_id': 10, 'bbox': [500, 500, 3, 3]}
  folder = drawn.write_coco(tmp_path / 'in', 6, extra=[outside])
  values = json.loads((folder / 'annotations.json').read_text())
  values['annotations'] = [each for each in values['annotations'] if each['id'] not in (0, 1)]
  (folder / 'annotations.json').write_text(json.dumps(values))
  _, made = drawn.convert(folder, tmp_path / 'out', 'object_detection', validation_share=0.0)
  assert made.report['splits']['train']['background_images'] == 2
  assert made.report['balance'][1] == {
    'source': str(folder),
    'unit': 'objects',
    'found': 5,
    'used': 4,
    'left_out': {'boxes outside of the image': 1},
    'ignored': {},
  }


@pytest.mark.parametrize('kind', ['records', 'images'])
def test_records_and_folders_of_classes(kind, tmp_path):
  """Without --for: files of other endings, in deeper folders, and records that cannot be used."""
  folder = tmp_path / 'in'
  if kind == 'records':
    folder.mkdir()
    (folder / 'a.jsonl').write_text('{"n": 1}\nno JSON\n{"n": 2}\n')
  else:
    drawn.write_class_folders(folder, 6)
    (folder / 'red' / 'bad.png').write_bytes(b'no image')
    (folder / 'red' / 'deeper').mkdir()
    drawn.image_with((1, 2, 30, 40), 'red').save(folder / 'red' / 'deeper' / 'a.png')
    drawn.image_with((1, 2, 30, 40), 'red').save(folder / 'red' / 'a.webp')
  (folder / 'notes.md').write_text('more')
  settings = planning.Settings(on_bad_example='skip')
  engine = lambda num_shards: contextlib.nullcontext(prepared_inputs.Here())
  done = preparing.prepare([str(folder)], str(tmp_path / 'out'), settings, engine)
  found, ignored = (3, {}) if kind == 'records' else (7, {'.png files': 1, '.webp files': 1})
  expected = {
    'source': str(folder),
    'unit': kind,
    'found': found,
    'used': found - 1,
    'left_out': {'bad': 1},
    'ignored': {'.md files': 1, **ignored},
  }
  assert done.balance == [expected]
  assert sources.PreparedRows(str(tmp_path / 'out')).balance() == [expected]


def test_sources_have_one():
  class Half(sources.Source):
    def __len__(self):
      return 10

    def fetch(self, indices):
      if any(index % 2 for index in indices):
        raise ValueError('damaged')
      return [{'x': np.float32(index)} for index in indices]

  assert Half().balance()[0]['used'] == 10
  (found,) = sources.cached(Half(), block_size=4, on_bad_example='skip').balance()
  assert (found['found'], found['used'], found['left_out']) == (10, 5, {'cannot be read': 5})


def test_a_difference_is_reported():
  balance = record_report.Balance('a', 'images', found=5, used=2)
  assert balance.line() == 'a: 5 images found, 2 used; left out: 3 unaccounted'
