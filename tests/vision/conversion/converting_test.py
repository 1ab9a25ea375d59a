"""What a conversion promises: splits by name, the same bytes, resumption, a report of every loss."""

import io
import json

import numpy as np
from PIL import Image
from pycocotools import coco
import pytest
import yaml

from official_ext.base import errors
from official_ext.cli import main
from official_ext.data import input_files
from official_ext.vision.conversion import image_set
from tests.vision import drawn


def split_of(folder):
  return {name: split for split in ('train', 'validation', 'test') for name in drawn.examples(folder, split)}


def test_the_split_of_an_image_does_not_depend_on_others(tmp_path):
  drawn.write_class_folders(tmp_path / 'in', 90, '.bmp')
  shares = {'validation_share': 0.2, 'test_share': 0.1}
  drawn.convert(tmp_path / 'in', tmp_path / 'all', 'image_classification', **shares)
  everything = split_of(tmp_path / 'all')
  numbers = [list(everything.values()).count(split) for split in ('train', 'validation', 'test')]
  assert sum(numbers) == 90
  # Three standard deviations of a binomial distribution.
  for number, share in zip(numbers, (0.7, 0.2, 0.1)):
    assert abs(number - 90 * share) < 3 * np.sqrt(90 * share * (1 - share))
  for path in sorted((tmp_path / 'in').glob('*/*'))[::3]:
    path.unlink()
  drawn.convert(tmp_path / 'in', tmp_path / 'some', 'image_classification', **shares)
  some = split_of(tmp_path / 'some')
  assert len(some) == 60 and some == {name: everything[name] for name in some}
  drawn.convert(tmp_path / 'in', tmp_path / 'other', 'image_classification', **shares, seed=1)
  assert split_of(tmp_path / 'other') != some


def test_classes_are_mixed_within_a_split(tmp_path):
  drawn.write_class_folders(tmp_path / 'in', 60, '.bmp')
  drawn.convert(tmp_path / 'in', tmp_path / 'out', 'image_classification')
  labels = [each['image/class/label'][0] for each in drawn.examples(tmp_path / 'out').values()]
  assert set(labels[:10]) == {0, 1, 2}


def test_the_same_bytes_in_any_order_and_finished_shards_are_kept(tmp_path):
  drawn.write_coco(tmp_path / 'in', 20)
  how = {'target': 'instance_segmentation', 'validation_share': 0.3, 'shard_bytes': 9000}
  first, second = tmp_path / 'first', tmp_path / 'second'
  done, _ = drawn.convert(tmp_path / 'in', first, **how)
  assert len(done.plan.shards) > 5
  count = iter(range(10**6))
  with pytest.raises(errors.PreemptedError):
    drawn.convert(
      tmp_path / 'in', second, reverse=True, stopped_by=lambda: 'SIGTERM' * (next(count) > 25) or None, **how
    )
  written = len(list(second.glob('*.tfrecord')))
  assert 0 < written < len(done.plan.shards)
  again, _ = drawn.convert(tmp_path / 'in', second, **how)
  assert again.num_there == written
  found = drawn.files_of(second)
  for name, content in drawn.files_of(first).items():
    assert found[name].replace(b'/second', b'/first') == content, name
  damaged = sorted(second.glob('*.tfrecord'))[2]
  damaged.write_bytes(damaged.read_bytes()[:-1])
  again, _ = drawn.convert(tmp_path / 'in', second, **how)
  assert again.num_there == len(done.plan.shards) - 1 and drawn.files_of(second) == found


def test_another_input_or_setting_is_refused(tmp_path):
  drawn.write_class_folders(tmp_path / 'in')
  drawn.convert(tmp_path / 'in', tmp_path / 'out', 'image_classification')
  with pytest.raises(errors.UserError, match='quality was 100, and is 80 now'):
    drawn.convert(tmp_path / 'in', tmp_path / 'out', 'image_classification', quality=80)
  drawn.image_with((1, 2, 30, 40), 'red').save(tmp_path / 'in' / 'red' / 'new.png')
  with pytest.raises(errors.UserError, match='files of the input was 30, and is 31 now'):
    drawn.convert(tmp_path / 'in', tmp_path / 'out', 'image_classification')
  with pytest.raises(errors.UserError, match='holds TFRecord files for image_classification; set'):
    input_files.read_prepared(str(tmp_path / 'out'))


def test_images_that_cannot_be_used_are_listed_with_the_reason(tmp_path):
  folder = drawn.write_coco(tmp_path / 'in')
  (folder / 'images' / '000.jpg').write_bytes(b'no image')
  (folder / 'images' / '001.jpg').unlink()
  Image.new('RGB', (50, 50)).save(folder / 'images' / '002.jpg')
  done, made = drawn.convert(folder, tmp_path / 'out', 'object_detection', validation_share=0.3)
  assert dict(made.report['dropped_images']) == {
    '000.jpg': 'is not an image that Pillow decodes',
    '001.jpg': f'No such file: {folder}/images/001.jpg',
    '002.jpg': 'was annotated with another size: 96 x 64 pixels, and has 50 x 50',
  }
  assert done.rows == 9 and json.loads((tmp_path / 'out' / 'report.json').read_text()) == made.report
  # The evaluation must not expect what no shard holds.
  found = coco.COCO(str(tmp_path / 'out' / 'annotations_validation.json'))
  assert {image['file_name'] for image in found.dataset['images']} == set(
    drawn.examples(tmp_path / 'out', 'validation')
  )


def test_the_annotations_of_the_evaluation_are_those_of_the_examples(tmp_path):
  drawn.write_coco(tmp_path / 'in')
  drawn.convert(tmp_path / 'in', tmp_path / 'out', 'instance_segmentation', validation_share=0.4)
  found = coco.COCO(str(tmp_path / 'out' / 'annotations_validation.json'))
  assert {each['id']: each['name'] for each in found.dataset['categories']} == {1: 'blue', 2: 'green', 3: 'red'}
  examples = drawn.examples(tmp_path / 'out', 'validation')
  assert len(examples) > 2 and len(found.dataset['annotations']) == len(examples)
  for image in found.dataset['images']:
    each = examples[image['file_name']]
    assert each['image/source_id'] == [str(image['id']).encode()]
    (annotation,) = found.loadAnns(found.getAnnIds([image['id']]))
    box = [each[f'image/object/bbox/{side}'][0] * size for side, size in (('xmin', 96), ('ymin', 64))]
    np.testing.assert_allclose(annotation['bbox'][:2], box, atol=1e-4)
    assert [annotation['category_id']] == each['image/object/class/label']
    mask = Image.open(io.BytesIO(each['image/object/mask'][0]))
    np.testing.assert_array_equal(found.annToMask(annotation), np.asarray(mask))


def test_losses_are_reported(tmp_path):
  extra = [
    {'id': 90, 'image_id': 1000, 'category_id': 10, 'bbox': [90, 1, 30, 20], 'iscrowd': 1},
    {'id': 91, 'image_id': 1001, 'category_id': 10, 'bbox': [5, 5, 0, 20]},
    {'id': 92, 'image_id': 1002, 'category_id': 77, 'bbox': [5, 5, 5, 5]},
    {'id': 93, 'image_id': 5, 'category_id': 10, 'bbox': [5, 5, 5, 5]},
  ]
  folder = drawn.write_coco(tmp_path / 'in', extra=extra)
  _, made = drawn.convert(folder, tmp_path / 'out', 'object_detection', validation_share=0.3)
  assert made.report['changed_objects'] == {
    'annotations of unknown categories': 1,
    'annotations of images that are not listed': 1,
    'boxes clipped to the image': 1,
    'boxes without area': 1,
  }


def test_copies_in_several_splits_and_classes_without_examples_are_reported(tmp_path):
  folder = drawn.write_class_folders(tmp_path / 'train', 6)
  drawn.write_class_folders(tmp_path / 'validation', 6)
  for path in (tmp_path / 'validation' / 'red').iterdir():
    path.unlink()
  (folder / 'red' / '000.png').write_bytes((folder / 'blue' / '000.png').read_bytes())
  _, made = drawn.convert(tmp_path, tmp_path.parent / 'out', 'image_classification')
  assert made.report['classes_without_examples'] == {'train': [], 'validation': ['red']}
  found = made.report['duplicates']
  assert ['train: train/blue/000.png', 'train: train/red/000.png', 'validation: validation/blue/000.png'] in found
  assert len(found) == 4


def test_binary_masks_need_their_values(tmp_path):
  folder = drawn.write_masks(tmp_path / 'in', palette=False)
  for path in (folder / 'masks').iterdir():
    mask = np.asarray(Image.open(path))
    Image.fromarray(np.where(mask, 255, 0).astype(np.uint8)).save(path)
  with pytest.raises(errors.UserError, match='--mask_values: the masks hold 0 and 255 alone'):
    drawn.convert(folder, tmp_path / 'out', 'semantic_segmentation')
  drawn.convert(
    folder, tmp_path / 'out', 'semantic_segmentation', mask_values=(0, 255), labels=['other', 'box'], seed=1
  )
  config = yaml.safe_load((tmp_path / 'out' / 'experiment.yaml').read_text())
  assert config['task']['model']['num_classes'] == 2
  assert (tmp_path / 'out' / 'labels.txt').read_text() == 'other\nbox\n'
  with pytest.raises(errors.UserError, match='--labels: names 2 classes, and a mask holds the number 3'):
    drawn.convert(
      drawn.write_masks(tmp_path / 'more'), tmp_path / 'out2', 'semantic_segmentation', labels=['other', 'box'], seed=1
    )


def test_the_settings_fit_the_images(tmp_path):
  drawn.write_class_folders(tmp_path / 'in', 30)
  drawn.convert(tmp_path / 'in', tmp_path / 'out', 'image_classification', image_format='png', validation_share=0.3)
  config = yaml.safe_load((tmp_path / 'out' / 'experiment.yaml').read_text())
  number = len(drawn.examples(tmp_path / 'out', 'validation'))
  assert config['task']['model'] == {
    'num_classes': 3,
    'norm_activation': {'norm_momentum': 0.9},
    'input_size': [96, 96, 3],
  }
  assert not config['task']['train_data']['decode_jpeg_only']
  batch_size = config['task']['validation_data']['global_batch_size']
  assert (
    (config['trainer']['validation_steps'] - 1) * batch_size
    < number
    <= (config['trainer']['validation_steps'] * batch_size)
  )
  assert config['task']['train_data']['global_batch_size'] <= 30 - number


def test_an_empty_split_is_an_error(tmp_path):
  drawn.write_class_folders(tmp_path / 'in', 3)
  with pytest.raises(errors.UserError, match='--validation_share: 0.01: none of 3 images is for validation'):
    drawn.convert(tmp_path / 'in', tmp_path / 'out', 'image_classification', validation_share=0.01)
  drawn.convert(tmp_path / 'in', tmp_path / 'out', 'image_classification', validation_share=0.0)
  config = yaml.safe_load((tmp_path / 'out' / 'experiment.yaml').read_text())
  assert 'validation_data' not in config['task']
  assert set(image_set.EXPERIMENTS) == set(image_set.TARGETS)


FITTING = {
  'image_classification': 'image_classification resnet_imagenet mobilenet_imagenet vit_imagenet_finetune',
  'object_detection': 'retinanet_mobile_coco retinanet_resnetfpn_coco fasterrcnn_resnetfpn_coco',
  'instance_segmentation': 'maskrcnn_mobilenet_coco maskrcnn_resnetfpn_coco',
  'semantic_segmentation': 'mnv2_deeplabv3_pascal seg_deeplabv3plus_pascal seg_resnetfpn_pascal',
}


@pytest.mark.parametrize('target', FITTING)
def test_the_settings_fit_the_experiments_that_the_guides_name(target, tmp_path, capsys):
  write = {'image_classification': drawn.write_class_folders, 'semantic_segmentation': drawn.write_masks}
  write.get(target, drawn.write_coco)(tmp_path / 'in', 24)
  drawn.convert(tmp_path / 'in', tmp_path / 'out', target, validation_share=0.3)
  for name in FITTING[target].split():
    assert main.main(['describe', name, '--yaml', f'--config_file={tmp_path}/out/experiment.yaml']) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert found['task']['train_data']['input_path'] == f'{tmp_path}/out/train-*.tfrecord'
    assert found['task']['model']['num_classes'] == (3 if target == 'image_classification' else 4)
    assert found['trainer']['optimizer_config']['learning_rate']['type'] == 'cosine'


def test_segmentation_evaluates_more_than_one_batch(tmp_path):
  """Model Garden's task resets its metric after the first one: see `aggregate_logs`."""
  drawn.write_masks(tmp_path / 'in', 24)
  drawn.convert(tmp_path / 'in', tmp_path / 'out', 'semantic_segmentation', validation_share=0.3)
  config = yaml.safe_load((tmp_path / 'out' / 'experiment.yaml').read_text())
  assert config['task']['validation_data']['global_batch_size'] == 1
  assert config['trainer']['validation_steps'] == len(drawn.examples(tmp_path / 'out', 'validation')) > 1
