"""A field of an input is read, without effect, or reported by name; the guide's table is the code's."""

import json
import pathlib

import pytest

from official_ext.base import errors
from official_ext.language.text import bert_conversion
from official_ext.language.text import bert_targets
from official_ext.vision.conversion import converting
from official_ext.vision.conversion import image_set
from official_ext.vision.conversion import input_formats
from tests.field import bad_annotations_test as formats
from tests.vision import drawn

GUIDE = pathlib.Path(__file__).resolve().parents[2] / 'docs/how_to/annotations.md'


def rows_of_guide():
  lines = GUIDE.read_text().partition('| part | read | no effect |')[2].splitlines()[2:]
  for line in lines[: lines.index('')]:
    yield [cell.strip() for cell in line.strip('|').split(' | ')]


def names_in(cell):
  return set(cell.split('`')[1::2])


def test_the_table_of_the_guide():
  found = {part: (names_in(read), names_in(harmless)) for part, read, harmless in rows_of_guide()}
  assert found == {each.name: (set(each.used), set(each.harmless)) for each in input_formats.FIELDS}


def read(path, target='object_detection'):
  return input_formats.read_inputs({'': [str(path)]}, target, image_set.Reading())


OF_Y = {'image_id': 1, 'category_id': 1, 'bbox': [2, 3, 20, 20]}


@pytest.mark.parametrize(
  ('write', 'given', 'expected'),
  [
    (formats.write_coco, {**OF_Y, 'id': 3, 'num_keypoints': 1, 'attributes': {}}, {}),
    (
      formats.write_coco,
      {**OF_Y, 'keypoints': [1, 2, 2], 'score': 0.1},
      {'COCO annotation field keypoints': 1, 'COCO annotation field score': 1},
    ),
    (formats.write_voc, '<object><name>a</name><bndbox>{box}</bndbox><pose>Left</pose></object><folder>a</folder>', {}),
    (
      formats.write_voc,
      '<object><name>a</name><bndbox>{box}</bndbox><deleted>1</deleted></object><quality>3</quality>',
      {'VOC object field deleted': 1, 'VOC annotation field quality': 1},
    ),
    (formats.write_records, {'bbox': [1, 2, 3, 4], 'category': 'a', 'id': 3, 'area': 12}, {}),
    (
      formats.write_records,
      {'bbox': [1, 2, 3, 4], 'category': 'a', 'label': 'b', 'pose': 'left'},
      {'Hugging Face objects field pose': 1, 'Hugging Face objects field label': 1},
    ),
  ],
)
def test_unknown_fields_are_reported_by_name(write, given, expected, tmp_path):
  found = read(write(tmp_path / 'in', given))
  assert {name: count for name, count in found.ignored.items() if 'field' in name} == expected


def test_the_command_prints_them(tmp_path):
  path = formats.write_coco(tmp_path / 'in', {**OF_Y, 'keypoints': [1, 2, 2]})
  values = json.loads(path.read_text())
  values['images'][0]['depth'] = 3
  values['videos'] = [1]
  path.write_text(json.dumps(values))
  _, made = drawn.convert(path, tmp_path / 'out', 'object_detection', validation_share=0.0)
  lines = [line for line in converting.report_lines(made.report) if 'is not read' in line]
  assert lines == [
    f'{path}: COCO file field videos: is not read: 1 value',
    f'{path}: COCO image field depth: is not read: 1 value',
    f'{path}: COCO annotation field keypoints: is not read: 1 value',
  ]


def test_marks_of_objects_are_used(tmp_path):
  """Objects that count as iscrowd, in each format that has a mark, and the area that is stated."""
  marked = {'bbox': [1, 2, 3, 4], 'category': 'a', 'difficult': 1, 'area': 7}
  inputs = {
    'coco': formats.write_coco(tmp_path / 'coco', {**OF_Y, 'ignore': 1}),
    'voc': formats.write_voc(
      tmp_path / 'voc', '<object><name>a</name><bndbox>{box}</bndbox><difficult>1</difficult></object>'
    ),
    'records': formats.write_records(tmp_path / 'records', marked),
  }
  for kind, path in inputs.items():
    found = read(path)
    marks = sorted(each['iscrowd'] for image in found.images for each in image.objects)
    assert marks == ([0, 1] if kind == 'coco' else [0, 0, 1]) and list(found.problems.values()) == [1], kind
  assert read(inputs['records']).images[1].objects[1]['area'] == 7


def test_a_header_of_unknown_columns_is_refused(tmp_path):
  (tmp_path / 'a.csv').write_text('img,species\nx.png,cat\n')
  with pytest.raises(errors.UserError, match='a.csv, line 1: img,species: is neither a header nor an image; name its'):
    read(tmp_path / 'a.csv', 'image_classification')


def test_columns_of_texts(tmp_path):
  (tmp_path / 'in.csv').write_text('id,text,label,weight,split\n1,a b,x,3,train\n2,c d,y,,validation\n')
  found = bert_conversion.read_inputs(
    {'': [str(tmp_path / 'in.csv')]}, bert_targets.CLASSIFICATION, bert_conversion.Reading()
  )
  assert found.ignored == {'text column weight': 1} and found.num_found == len(found.texts) == 2
