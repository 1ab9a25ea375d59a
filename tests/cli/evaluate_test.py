"""official-ext evaluate RUN: the figures are those of the run's own evaluation; files, flags and mistakes."""

import json
import os
import shutil

from PIL import Image
import pytest

import official_ext as ext
from official_ext.base.files import paths
from official_ext.cli import main
from official_ext.operations.imports import tensorboard_files
from official_ext.operations.runs import run_folders
from tests import tiers
from tests.cli import small_data

FEW_STEPS = [
  f'--set=trainer.{name}=2'
  for name in ('train_steps', 'steps_per_loop', 'summary_interval', 'validation_interval', 'checkpoint_interval')
]
PICTURES = {
  'image_classifier': ['calibration', 'confusion_matrix', 'mistakes'],
  'detector': ['mistakes'],
  'segmenter': ['confusion_matrix', 'mistakes'],
  'bert_classifier': ['calibration', 'confusion_matrix'],
}
FIGURES = {'image_classifier': 'accuracy', 'detector': 'AP', 'segmenter': 'mean_iou', 'bert_classifier': 'accuracy'}


def trained(like, folder, run_train, number=24):
  """A run of two steps, on data in `data`."""
  case = small_data.CASES[like]
  case.prepare(folder / 'in', folder / 'data', number)
  assert main.main(['new', 'own', f'--like={like}', '--data=data']) == 0
  command = [f'--experiment={case.experiment}', '--config_file=own.yaml', '--model_dir=runs/own', *FEW_STEPS]
  process = run_train(['--mode=train_and_eval', *command, *case.flags], cwd=folder, timeout=550)
  assert process.returncode == 0, process.stderr[-3000:]


@pytest.mark.slow
@tiers.parametrize('like', ['bert_classifier', 'image_classifier', 'detector', 'segmenter'], fast=1)
def test_the_figures_are_those_of_the_run(like, run_train, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  trained(like, tmp_path, run_train)
  capsys.readouterr()
  assert main.main(['evaluate', 'runs/own']) == 0
  out = capsys.readouterr().out
  folder = tmp_path / 'runs/own/evaluations/validation_data'
  report = json.loads((folder / 'report.json').read_text())
  if like != 'segmenter':  # Model Garden loses an image: see docs/how_to/segmentation.md.
    (value,), _ = small_data.evaluations(tmp_path / 'runs/own', small_data.CASES[like].metric)
    assert report[FIGURES[like]] == pytest.approx(value, abs=1e-5)
  labels = (tmp_path / 'data' / 'labels.txt').read_text().splitlines()
  classes = labels[1:] if like == 'detector' else labels
  assert list(report['classes']) == classes and all(name in out for name in classes)
  assert ('\nBoxes\n' if like == 'detector' else '\nClasses\n') in out
  assert report['weights'] == 'averaged' and report['step'] == 2
  assert sorted(path.stem for path in folder.glob('*.png')) == PICTURES[like]
  page = (folder / 'report.html').read_text()
  assert page.count('data:image/png;base64,') == len(PICTURES[like]) and all(name in page for name in classes)
  assert {image.tag for image in images_of(tmp_path / 'runs/own')} >= set(PICTURES[like])
  for path in folder.glob('*.png'):
    assert min(Image.open(path).size) > 100
  # On the folder itself the same, and again the same.
  assert main.main(['evaluate', 'runs/own', '--on=data', '--name=again']) == 0
  again = json.loads((folder.parent / 'again' / 'report.json').read_text())
  for name in ('data', 'input_path'):
    again.pop(name), report.pop(name)
  assert again == report
  if like != 'bert_classifier':
    check_remote(tmp_path, report)
  check_mistakes(like, tmp_path, capsys)


def check_remote(folder, report):
  """A copy of the run on remote storage has the same figures, in its folder."""
  remote = f'ram:/{folder}/own'
  for name in paths.files_below(str(folder / 'runs/own')):
    paths.make_folder(os.path.dirname(f'{remote}/{name}'))
    paths.write_atomically(f'{remote}/{name}', (folder / 'runs/own' / name).read_bytes())
  assert main.main(['evaluate', remote, '--on=data', '--name=remote']) == 0
  found = json.loads(paths.read(f'{remote}/evaluations/remote/report.json'))
  assert found['run'] == remote and found['checkpoint'].startswith(remote)
  assert {name: found[name] for name in report if name not in ('run', 'checkpoint')} == {
    name: value for name, value in report.items() if name not in ('run', 'checkpoint')
  }


def images_of(path):
  """The images that the console shows of a run."""
  return tensorboard_files.ImageIndex().find(run_folders.Run(str(path), path.name))


def check_mistakes(like, folder, capsys):
  """Flags and folders that cannot be used are refused in one line."""
  other = 'bert_classifier' if like == 'image_classifier' else 'image_classifier'
  small_data.CASES[other].prepare(folder / 'other_in', folder / 'other', 24)
  shutil.copytree(folder / 'data', folder / 'renamed')
  names = (folder / 'data' / 'labels.txt').read_text().splitlines()
  (folder / 'renamed' / 'labels.txt').write_text('\n'.join([*names[:-1], 'unicorn']) + '\n')
  shutil.copytree(folder / 'data', folder / 'more')
  (folder / 'more' / 'labels.txt').write_text('\n'.join([*names, 'unicorn']) + '\n')
  (folder / 'empty').mkdir()
  for words, expected in (
    (['--on=other'], f'--on: other: was prepared for {small_data.CASES[other].target}; the run needs --for='),
    (['--on=renamed'], f'is unicorn, and {names[-1]} in the data of the run; prepare it with --labels='),
    (['--on=more'], f'--on: more: has {len(names) + 1} classes, the model of the run {len(names)}'),
    (['--on=empty'], 'empty: has no prepared.json'),
    (['--on=data', '--split=test'], '--on: data: has no test examples'),
    (['--split=train'], '--split: requires --on=FOLDER'),
    (['--name=../x'], '--name=../x: expected letters, digits'),
    (['--which=7'], 'no checkpoint of step 7'),
  ):
    capsys.readouterr()
    assert main.main(['evaluate', 'runs/own', *words]) == 2, words
    err = capsys.readouterr().err
    assert err.count('error: ') == 1 and expected in err, (words, err)


@pytest.mark.tensorflow
def test_runs_of_other_tasks_are_refused(tmp_path, capsys):
  (tmp_path / 'run').mkdir()
  assert main.main(['evaluate', str(tmp_path / 'run')]) == 2
  assert 'not the folder of a run: it has no params.yaml' in capsys.readouterr().err


OWN_TASK = """
import numpy as np
import official_ext as ext
import tf_keras


@ext.register_task(ext.SupervisedConfig)
class Lines(ext.SupervisedTask):
  def examples(self, is_training):
    x = np.random.default_rng(int(is_training)).normal(size=[40, 2]).astype(np.float32)
    return {'width': x[:, :1], 'height': x[:, 1:]}, 2 * x[:, 0] - x[:, 1]

  def build_model(self):
    inputs = {name: tf_keras.Input((1,), name=name) for name in ('width', 'height')}
    joined = tf_keras.layers.Concatenate()(list(inputs.values()))
    return tf_keras.Model(inputs, tf_keras.layers.Dense(1)(joined))

  def build_loss(self):
    return tf_keras.losses.MeanSquaredError()

  def build_metrics(self, training=True):
    return [tf_keras.metrics.MeanAbsoluteError('mae')]


@ext.register_experiment('lines_of_a_test')
def lines():
  return ext.supervised_experiment(ext.SupervisedConfig(), epochs=2, monitor='mae', learning_rate=0.05)
"""


@pytest.mark.tensorflow
def test_a_custom_task(tmp_path, monkeypatch, capsys):
  (tmp_path / 'lines_of_a_test.py').write_text(OWN_TASK)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.chdir(tmp_path)
  arguments = {'registry': ['lines_of_a_test'], 'train_epochs': 2, 'runtime.enable_xla': False}
  logs = ext.train('lines_of_a_test', 'run', **arguments)
  capsys.readouterr()
  assert main.main(['evaluate', 'run', '--mistakes=2']) == 0
  out = capsys.readouterr().out
  folder = tmp_path / 'run/evaluations/validation_data'
  report = json.loads((folder / 'report.json').read_text())
  assert report['mae'] == pytest.approx(logs['best_mae'], abs=1e-5) and report['examples'] == 40
  assert report['rmse'] == pytest.approx(logs['validation_loss'] ** 0.5, abs=1e-4)
  assert [path.name for path in folder.glob('*.png')] == ['predictions.png']
  table = out.partition('\nMistakes\n')[2].splitlines()
  assert table[0].split() == ['example', 'label', 'predicted', 'error', 'width', 'height'] and table[3] == ''
  label, _, error, width, height = map(float, table[1].split()[1:])
  assert label == pytest.approx(2 * width - height, abs=2e-3) and abs(error) == pytest.approx(
    report['max_error'], rel=1e-3
  )
