"""official-ext prepare --for=TARGET: its output, its flags, kills, and the command that it prints."""

import os
import pathlib
import shlex
import subprocess
import sys
import time

import pytest

from tests.data.prepare import prepared_inputs
from tests.vision import drawn

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
  """See `prepared_inputs.command`."""
  return prepared_inputs.command(capsys, tmp_path, monkeypatch)


WRITERS = {
  'image_classification': drawn.write_class_folders,
  'object_detection': drawn.write_coco,
  'instance_segmentation': drawn.write_coco,
  'semantic_segmentation': drawn.write_masks,
}


@pytest.mark.tensorflow
def test_the_output_and_the_printed_command(run, tmp_path):
  drawn.write_coco(tmp_path / 'in', 12)
  (tmp_path / 'in' / 'images' / '003.jpg').write_bytes(b'no image')
  status, out, err = run('in', 'my boxes', '--for=object_detection', '--validation_share=0.3', '--workers=1')
  assert (status, err) == (0, '')
  _, *lines = out.splitlines()
  counts = [len(drawn.examples(tmp_path / 'my boxes', split)) for split in ('train', 'validation')]
  size = sum(path.stat().st_size for path in (tmp_path / 'my boxes').glob('*.tfrecord'))
  assert lines == [
    'warning: 003.jpg: dropped: is not an image that Pillow decodes',
    'balance: in: 12 images found, 11 used; left out: 1 is not an image that Pillow decodes',
    'balance: in: 12 objects found, 11 used; left out: 1 of images that are left out',
    f'my boxes: 11 images ({counts[0]} train, {counts[1]} validation), {size} bytes in 2 shards',
    'To train on them:',
    f"  official-ext train --experiment=retinanet_mobile_coco '--config_file={tmp_path}/my boxes/experiment.yaml' "
    "--mode=train_and_eval '--model_dir=runs/my boxes'",
  ]
  status, out, err = run('in', 'my boxes', '--for=object_detection', '--validation_share=0.3')
  assert status == 0 and 'in 2 shards, 2 of which existed' in out


def test_a_share_that_the_input_replaces_is_named(run, tmp_path):
  for split in ('train', 'val'):
    drawn.write_class_folders(tmp_path / 'in' / split, 6)
  flags = ('--for=image_classification', '--validation_share=0.3', '--test_share=0.1', '--workers=1')
  status, out, _ = run('in', 'out', *flags)
  assert status == 0 and '(6 train, 6 validation)' in out
  assert [line for line in out.splitlines() if '_share: ' in line] == [
    'warning: --validation_share: the input names its validation examples: the share is not used',
    'warning: --test_share: the input names its validation examples: the share is not used',
  ]


@pytest.mark.parametrize('target', WRITERS)
@pytest.mark.slow
def test_the_printed_command_trains_and_evaluates(target, run, run_train, tmp_path):
  WRITERS[target](tmp_path / 'in', 24)
  _, out, _ = run('in', 'out', f'--for={target}', '--validation_share=0.3')
  program, command, *flags = shlex.split(out.splitlines()[-1])
  assert (program, command) == ('official-ext', 'train')
  short = 'trainer.train_steps=2,trainer.validation_interval=2,trainer.checkpoint_interval=2,trainer.steps_per_loop=2,'
  short += 'trainer.summary_interval=2'
  done = run_train([*flags, f'--params_override={short}'], cwd=tmp_path, timeout=900)
  assert done.returncode == 0, done.stderr[-3000:]
  assert (tmp_path / 'runs' / 'out' / 'best_ckpt').is_dir()
  metric = {'image_classification': 'accuracy', 'semantic_segmentation': 'mean_iou'}.get(target, 'AP')
  assert f'{metric} ' in done.stdout


@pytest.mark.parametrize(
  ('words', 'expected'),
  [
    (['in', 'out', '--seed=1'], '--seed: needs --for=image_classification|object_detection|instance_segmentation|'),
    (['in', 'out', '--for=boxes'], "argument --for: invalid choice: 'boxes'"),
    (['in', 'out', '--for=image_classification', '--split=train'], '--split: with --for all splits are converted'),
    (['in', 'out', '--for=image_classification', '--tokenizer=a'], '--tokenizer: has no meaning for --for=image_cl'),
    (['in', 'out', '--for=image_classification', '--validation_share=2'], 'expected a number from 0 to below 1'),
    (['in', 'out', '--for=image_classification', '--quality=0'], '0: expected 1 to 100'),
    (['in', 'out', '--for=image_classification', '--mask_values=1,1'], '1,1: expected each number once'),
    (['in', 'out', '--for=image_classification', '--labels=no.txt'], '--labels: no.txt: cannot be read: No such file'),
    (['in', 'out', '--for=object_detection'], 'INPUT: in: holds no images for --for=object_detection; expected COCO'),
    (['in', 'out', '--for=image_classification', '--test_share=0.95'], 'the shares must sum to less than 1'),
    (
      ['in', 'out', '--for=image_classification', '--validation_input=in', '--validation_share=0.2'],
      '--validation_share: --validation_input names the validation examples; give one of them',
    ),
  ],
)
def test_mistakes_are_one_line(words, expected, run, tmp_path):
  drawn.write_class_folders(tmp_path / 'in', 3)
  status, _, err = run(*words)
  assert status == 2
  assert err.count('\n') == 1 and expected in err and err.startswith('error: ')


@pytest.mark.slow
def test_a_killed_one_resumes_to_the_same_bytes(tmp_path):
  drawn.write_class_folders(tmp_path / 'in', 600)
  words = ['in', 'out', '--for=image_classification', '--shard_size=60KB', '--workers=2', '--validation_share=0.2']
  with prepared_inputs.started(tmp_path, *words) as first:
    deadline = time.monotonic() + 60
    while len(list((tmp_path / 'out').glob('note-*.json'))) < 4:
      assert first.poll() is None and time.monotonic() < deadline
      time.sleep(0.002)
    first.kill()
  assert not (tmp_path / 'out' / 'experiment.yaml').exists()
  with prepared_inputs.started(tmp_path, *words) as again:
    out, err = again.communicate()
  assert again.returncode == 0, err
  there = int(out.rpartition('shards, ')[2].partition(' of which')[0])
  with prepared_inputs.started(tmp_path, 'in', 'undisturbed', *words[2:]) as whole:
    whole.communicate()
  expected = drawn.files_of(tmp_path / 'undisturbed')
  found = drawn.files_of(tmp_path / 'out')
  assert 4 <= there < len([name for name in expected if name.endswith('.tfrecord')])
  assert {name: content.replace(b'/out/', b'/undisturbed/') for name, content in found.items()} == expected


def test_it_needs_no_tensorflow(tmp_path):
  drawn.write_coco(tmp_path / 'in')
  code = (
    'import sys; from official_ext.cli import main; status = main.main(["prepare", "in", "out", '
    '"--for=instance_segmentation", "--validation_share=0.3"]); sys.exit(status or "tensorflow" in sys.modules)'
  )
  environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
  subprocess.run([sys.executable, '-c', code], cwd=tmp_path, env=environment, check=True, stdout=subprocess.DEVNULL)
  assert (tmp_path / 'out' / 'prepared.json').exists()
