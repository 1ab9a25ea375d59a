"""data.yaml of YOLO: splits, names and keypoints are those that it states; all that is found is used or counted."""

import os

from PIL import Image
import pytest

from official_ext.base import errors
from official_ext.vision.conversion import converting
from official_ext.vision.conversion import image_set
from official_ext.vision.conversion import input_formats

BOX = '0.5 0.5 0.25 0.5'


def write(folder, texts=(), images=()):
  """Text files by path, and images, each with a label of class 0 unless `texts` has it, or it is None."""
  texts = dict(texts)
  for name in images:
    label = f'{os.path.splitext(name)[0]}.txt'.replace('images/', 'labels/')
    texts.setdefault(label, f'0 {BOX}\n')
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    Image.new('RGB', (8, 8), (len(name), 0, 0)).save(folder / name)
  for name, text in texts.items():
    if text is not None:
      (folder / name).parent.mkdir(parents=True, exist_ok=True)
      (folder / name).write_text(text)
  return folder


def read(*paths, **more):
  inputs = {'': [str(path) for path in paths]} | {split: [str(path)] for split, path in more.items()}
  return input_formats.read_inputs(inputs, 'object_detection', input_formats.Reading())


def in_splits(found, share=0.5):
  """Split -> the base names of its images, as the conversion divides them."""
  divided = converting.in_splits(found, image_set.Conversion('object_detection', validation_share=share))
  return {split: sorted(os.path.basename(image.name) for image in images) for split, images in divided.items()}


def named(split, number=3):
  return [f'{split}{index}.png' for index in range(number)]


TRAIN, VAL, TEST = named('a'), named('b'), named('c')
WANTED = {'train': TRAIN, 'validation': VAL, 'test': TEST}


def folders(place='images/{}'):
  return [
    f'{place.format(split)}/{name}' for split, names in zip(('t', 'v', 'u'), (TRAIN, VAL, TEST)) for name in names
  ]


@pytest.mark.parametrize(
  ('yaml', 'place'),
  [
    ('train: images/t\nval: images/v\ntest: images/u', 'images/{}'),
    ('path: .\ntrain: ./images/t/\nvalidation: images/v\ntest: [images/u]', 'images/{}'),
    ('path: {root}\ntrain: {root}/images/t\nval: images/v\ntest: images/u', 'images/{}'),
    ('train: ../t/images\nval: ../v/images\ntest: ../u/images\nroboflow: {{license: MIT}}', '{}/images'),
    ('path: ../datasets/in\ntrain: images/t\nval: images/v\ntest: images/u\ndownload: x.zip', 'images/{}'),
    ('path: images\ntrain: t\nval: v\ntest: u', 'images/{}'),
  ],
)
def test_splits_are_those_of_data_yaml(yaml, place, tmp_path):
  text = yaml.format(root=tmp_path / 'in') + '\nnames: [p]\n'
  folder = write(tmp_path / 'in', {'data.yaml': text}, folders(place))
  for path in (folder, folder / 'data.yaml'):
    found = read(path)
    assert in_splits(found) == WANTED
    assert len(found.images) == 9 and all(image.objects for image in found.images)
    assert not (found.notes or found.dropped or found.problems)


def test_lists_of_images(tmp_path):
  """Relative to the list, to the data set, or absolute; several lists and folders of a split; no folder of splits."""
  texts = {
    'data.yaml': 'train: [lists/train.txt, more]\nval: lists/val.txt\ntest: test.txt\nnames: [p]\n',
    'lists/train.txt': './../images/a0.png\n\nimages/a1.png\n',
    'lists/val.txt': '../images/b0.png\n/home/me/in/images/b1.png\r\n..\\images\\b2.png\nnotes.md\nimages/none.png\n',
    'test.txt': ''.join(f'./images/{name}\n' for name in TEST),
    'more/a2.txt': f'0 {BOX}',
  }
  images = [f'images/{name}' for name in (*TRAIN[:2], *VAL, *TEST, 'left.png')]
  found = read(write(tmp_path / 'in', texts, [*images, 'more/a2.png']))
  assert in_splits(found) == WANTED
  assert all(image.objects for image in found.images)
  reasons = dict(found.dropped)
  assert 'is in no split of' in reasons.pop('images/left.png')
  assert list(reasons.values()) == [f'No such file: {tmp_path}/in/lists/images/none.png']
  assert [note.partition('lists/val.txt: ')[2] for note in found.notes] == [
    '1 lines are not images by their names, such as notes.md',
    f'1 paths do not exist; images of these names below {tmp_path}/in are read',
  ]


def test_no_image_of_another_split_is_trained_on(tmp_path):
  text = 'train: images\nval: images/v\ntest: images/v\nnames: [p]\n'
  folder = write(tmp_path / 'in', {'data.yaml': text}, [f'images/{name}' for name in TRAIN] + folders()[3:6])
  found = read(folder)
  assert in_splits(found) == {'train': TRAIN, 'validation': VAL}
  assert found.problems == {
    'images of test that are in validation too, and do not count for test': 3,
    'images of train that are in validation too, and do not count for train': 3,
  }
  (folder / 'data.yaml').write_text('train: images\nval: images\nnames: [p]\n')  # As coco128.yaml.
  with pytest.raises(errors.UserError, match='train: names the images of val or test alone; name others, or leave val'):
    read(folder)


def test_without_val_a_share_of_train_is_for_validation(tmp_path):
  folder = write(tmp_path / 'in', {'data.yaml': 'train: images/t\ntest: images/u\nnames: [p]\n'}, folders())
  found = read(folder)
  divided = in_splits(found)
  assert divided['test'] == TEST and sorted(divided['train'] + divided['validation']) == TRAIN
  assert [name for name, _ in found.dropped] == [f'images/v/{name}' for name in VAL]


def test_folders_of_splits_without_data_yaml(tmp_path):
  images = [f'images/{split}/{name}' for split, names in (('train2017', TRAIN), ('val2017', VAL)) for name in names]
  found = read(write(tmp_path / 'in', {}, [*images, 'images/extra/x.png']))
  assert in_splits(found) == {'train': TRAIN, 'validation': VAL}
  assert [(name, 'is in no split' in reason) for name, reason in found.dropped] == [('extra/x.png', True)]
  write(tmp_path / 'in', {}, ['images/val/x.png'])
  with pytest.raises(errors.UserError, match='images: val and val2017 are all for validation; move the images'):
    read(tmp_path / 'in')
  more = write(tmp_path / 'more', {}, ['train/images/a.png', 'valid/images/b.png', 'extra/images/c.png'])
  assert [f'{more}/extra: is in no split beside train, validation: its images, 1, are not read'] == read(more).notes


@pytest.mark.parametrize(
  ('texts', 'labels', 'categories'),
  [
    ({'data.yaml': 'names: {2: dog, 1: cat}\nnc: 2'}, ['cat', 'dog'], ['cat', 'dog']),
    ({'data.yaml': "names: {'0': bird, 1: cat, 2: dog, 7: cow}"}, ['bird', 'cat', 'dog', 'cow'], ['cat', 'dog']),
    ({'data.yaml': 'names: [bird, cat, no]\nnc: 3'}, ['bird', 'cat', 'no'], ['cat', 'no']),
    ({'data.yaml': 'nc: 4'}, [f'class_{number}' for number in range(4)], ['class_1', 'class_2']),
    ({'animals.yml': 'names: [bird, cat, dog]\n', 'other.yaml': 'a: 1'}, ['bird', 'cat', 'dog'], ['cat', 'dog']),
    ({'classes.txt': 'bird\ncat\ndog\n\n'}, ['bird', 'cat', 'dog'], ['cat', 'dog']),
    ({'labels/classes.txt': '\ufeffbird\ncat\ndog'}, ['bird', 'cat', 'dog'], ['cat', 'dog']),
    ({'obj.names': 'bird\ncat\ndog\n'}, ['bird', 'cat', 'dog'], ['cat', 'dog']),
    ({}, ['class_0', 'class_1', 'class_2'], ['class_1', 'class_2']),
  ],
)
def test_names_are_those_of_the_numbers(texts, labels, categories, tmp_path):
  texts = {**texts, 'labels/x.txt': f'1 {BOX}\n2.0 {BOX}\n'}
  found = read(write(tmp_path / 'in', texts, ['images/x.png']))
  assert found.labels == labels
  assert [each['category'] for each in found.images[0].objects] == categories
  assert not (found.notes or found.problems)


def test_names_above_a_folder_of_a_split(tmp_path):
  texts = {'data.yaml': 'train: train/images\nval: valid/images\nnames: [p]\n'}
  write(tmp_path, texts, ['train/images/a.png', 'valid/images/b.png'])
  found = read(tmp_path / 'train', validation=tmp_path / 'valid')
  assert found.labels == ['p'] and [image.split for image in found.images] == ['', 'validation']


def test_keypoints_are_left_out_and_counted(tmp_path):
  points = ' '.join(['0.1 0.2 2'] * 4)  # With a box an even number: it would be a polygon.
  texts = {'data.yaml': 'names: [p]\nkpt_shape: [4, 3]\nflip_idx: [1, 0, 3, 2]\n'}
  texts['labels/x.txt'] = f'0 {BOX} {points}\n0 {BOX}\n'
  folder = write(tmp_path / 'in', texts, ['images/x.png'])
  found = read(folder)
  assert found.images[0].objects == ({'bbox': [0.375, 0.25, 0.625, 0.75], 'category': 'p'},) * 2
  assert found.problems == {'objects whose keypoints are left out': 1}
  (folder / 'labels/x.txt').write_text(f'0 {BOX} 0.1 0.2\n')
  with pytest.raises(errors.UserError, match='x.txt, line 1: expected a class number, .* the 12 numbers of kpt_shape'):
    read(folder)
  write(folder, {'data.yaml': 'names: [p]\n', 'labels/x.txt': f'0 {BOX} {points}\n'})
  with pytest.raises(
    errors.UserError, match='x.txt, line 1: expected fractions .* keypoints require kpt_shape in data.yaml: 2; '
  ):
    read(folder)


def test_labels_and_images_without_each_other_are_counted(tmp_path):
  texts = {'data.yaml': 'names: [p]\n', 'labels/img_0.txt': f'0 {BOX}', 'labels/a1.txt': None, 'labels/README.txt': 'a'}
  images = [f'images/{name}' for name in TRAIN]
  found = read(write(tmp_path / 'in', texts, images))
  assert [len(image.objects) for image in found.images] == [1, 0, 1]
  assert found.problems == {
    'images without a label file: they count as background': 1,
    f'label files without an image, such as {tmp_path}/in/labels/img_0.txt': 1,
  }
  write(tmp_path / 'in', {'data.yaml': 'train: images\nnames: [p]\n'})
  assert read(tmp_path / 'in').problems == found.problems


def test_data_of_darknet(tmp_path):
  """As CVAT writes them: paths begin with `data`, and labels are beside the images."""
  texts = {
    'obj.data': 'classes = 2\ntrain = data/train.txt\nvalid = data/valid.txt\nnames = data/obj.names\nbackup = b/\n',
    'obj.names': 'cat\ndog\n',
    'train.txt': ''.join(f'data/obj_train_data/{name}\n' for name in TRAIN),
    'valid.txt': ''.join(f'data/obj_train_data/{name}\n' for name in VAL),
  }
  texts |= {f'obj_train_data/{name[:-4]}.txt': f'1 {BOX}' for name in (*TRAIN, *VAL)}
  found = read(write(tmp_path / 'in', texts, [f'obj_train_data/{name}' for name in (*TRAIN, *VAL)]))
  assert in_splits(found) == {'train': TRAIN, 'validation': VAL}
  assert found.labels == ['cat', 'dog'] and {image.objects[0]['category'] for image in found.images} == {'dog'}
  assert not (found.notes or found.dropped or found.problems)


def test_what_has_another_place_is_reported(tmp_path):
  text = 'path: /content/data\ntrain: /content/data/images/t\nval: images/v\ntest: images/none\nnames: [p]\n'
  folder = write(tmp_path / 'in', {'data.yaml': text}, folders()[:6])
  found = read(folder)
  assert in_splits(found) == {'train': TRAIN, 'validation': VAL}
  assert found.notes == [
    f'{folder}/data.yaml: path: /content/data: No such directory: its folder is read instead',
    f'{folder}/data.yaml: images/none: No such file or directory: there are no images for test',
    f'{folder}/data.yaml: /content/data/images/t: No such file or directory: {folder}/images/t is read',
  ]


@pytest.mark.parametrize(
  ('yaml', 'message'),
  [
    ('names: [p]\nhyp: 1', 'data.yaml: hyp: is unknown, and not read; remove it'),
    ('names: [p]\nchannels: 4', 'channels: 4: expected 3'),
    ('names: [p]\nnc: 2', 'nc: 2: names has 1 classes; correct one of them'),
    ('names: {1: p, 2: p}', 'names: two classes have one name'),
    ("names: [p, '']", 'names: the class 1 has no name'),
    ('names: data/obj.names', 'names: expected a list of names, or a mapping'),
    ('names: {p: 0}', 'names: expected a list of names, or a mapping'),
    ('nc: x', "nc: expected the number of classes, got 'x'"),
    ('names: [p]\nkpt_shape: [17]', r'kpt_shape: expected \[number of keypoints, 2 or 3\]'),
    ('names: [p]\ntrain: 3', 'train: expected a folder of images, a list of images, or several'),
    ('names: [p]\nval: images', 'train: is missing, and validation is not'),
    ('names: [p]\ntrain: images\nval: images/v\nvalidation: images/w', 'validation images are named twice'),
    ('names: [p]\ntrain: images\nval: images/v', 'data.yaml: images/v: No such file or directory in .*; correct it'),
    ('names: [p]\ntrain: images\nval: empty', 'empty: holds no image for validation'),
    ('names: [p]\npath: 3', 'path: expected a folder, got 3'),
    ('names: {1: p}', 'x.txt, line 2: the class 0 is not among the names of .*data.yaml, which are 1 to 1'),
  ],
)
def test_what_cannot_be_used_is_refused_by_name(yaml, message, tmp_path):
  folder = write(tmp_path / 'in', {'data.yaml': yaml, 'labels/x.txt': f'\n0 {BOX}\n'}, ['images/x.png'])
  (folder / 'empty').mkdir()
  with pytest.raises(errors.UserError, match=message):
    read(folder)


@pytest.mark.parametrize(
  ('texts', 'message'),
  [
    (
      {'data.yaml': 'names: [p]', 'dataset.yaml': 'names: [p]'},
      'several files describe the data: data.yaml, dataset.ya',
    ),
    ({'data.yaml': 'names: [p]', 'classes.txt': 'q'}, 'classes.txt: names other classes than .*data.yaml'),
    ({'classes.txt': 'a\n\nb\n'}, 'classes.txt: the class 1 has no name'),
    ({'obj.data': 'trian = a.txt', 'obj.names': 'p'}, 'obj.data: trian: is unknown, and not read; remove it'),
    (
      {'obj.data': 'classes = 2', 'obj.names': 'p'},
      'obj.data: classes: 2: .*obj.names has 1 names; correct one of them',
    ),
    ({'labels/x.txt': '0 nan 0.5 0.5 0.5'}, 'x.txt, line 1: expected a class number'),
    ({'labels/x.txt': '0.5 0.5 0.5 0.5 0.5'}, 'x.txt, line 1: expected a class number'),
    ({'labels/x.txt': '0 40 30 20 20'}, 'x.txt, line 1: expected fractions of width and height, .*: 40; repair'),
  ],
)
def test_contradictions_and_damage_are_refused(texts, message, tmp_path):
  with pytest.raises(errors.UserError, match=message):
    read(write(tmp_path / 'in', texts, ['images/x.png']))
