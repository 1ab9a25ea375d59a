"""official-ext preview: a picture of an experiment's examples."""

from PIL import Image
import pytest

from official_ext.cli import main
from tests import tiers
from tests.vision import drawn

TARGETS = [
  ('image_classification', 'mobilenet_imagenet', drawn.write_class_folders, '96 x 96'),
  ('object_detection', 'retinanet_mobile_coco', drawn.write_coco, '128 x 128'),
  ('instance_segmentation', 'maskrcnn_mobilenet_coco', drawn.write_coco, '128 x 128'),
  ('semantic_segmentation', 'mnv2_deeplabv3_pascal', drawn.write_masks, '96 x 96'),
]


@pytest.mark.tensorflow
@tiers.parametrize('target, experiment, write, size', TARGETS, fast=1)
def test_the_examples_of_a_prepared_folder(target, experiment, write, size, tmp_path, capsys):
  write(tmp_path / 'in', 24)
  drawn.convert(tmp_path / 'in', tmp_path / 'out', target, validation_share=0.3)
  flags = [f'--config_file={tmp_path}/out/experiment.yaml', f'--output={tmp_path}/new/a.png', '--rows=2', '--columns=3']
  assert main.main(['preview', f'--experiment={experiment}', *flags, '--tile=100']) == 0
  lines = capsys.readouterr().out.splitlines()
  labels = (tmp_path / 'out' / 'labels.txt').read_text().splitlines()
  assert lines[-2:] == [
    f'{tmp_path}/new/a.png: 6 train examples of {experiment}, {size} pixels',
    f"pixels: Model Garden's mean and deviation undone; class names: {len(labels)}",
  ]
  assert Image.open(tmp_path / 'new' / 'a.png').width == 3 * 106 + 6
  page = [f'--output={tmp_path}/a.html', '--split=validation', '--rows=1', '--columns=2']
  assert main.main(['preview', experiment, flags[0], *page]) == 0
  text = (tmp_path / 'a.html').read_text()
  assert text.count('<figure>') == 2 and any(f'>{name}' in text for name in labels)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
  ('words', 'expected'),
  [
    (['mobilenet_imagenet', '--output=a.gif'], '--output: a.gif: expected a name that ends with .png or .html'),
    ([], 'the name of an experiment must follow the command'),
    (
      ['mobilenet_imagenet', '--set=task.train_data.input_path=none-*'],
      'task.train_data.input_path: none-*: No such file or directory',
    ),
  ],
)
def test_mistakes_are_one_line(words, expected, tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert main.main(['preview', *words]) == 2
  err = capsys.readouterr().err
  assert expected in err and err.splitlines()[-1].startswith('error: ')
