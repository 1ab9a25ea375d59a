"""official-ext new NAME --like=image_classifier|detector|segmenter|bert_classifier: settings for small data."""

import json
import time
import types

import pytest

from official_ext.base import config_text
from official_ext.cli import main
from official_ext.cli import new_settings
from official_ext.training.config import parser
from official_ext.training.config import registries
from tests.cli import small_data
from tests.soak import comparison


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
  """The current folder."""
  monkeypatch.chdir(tmp_path)


def parsed(experiment, *files):
  """The configuration of an experiment of Model Garden with files."""
  registries.import_last()
  flags = types.SimpleNamespace(experiment=experiment, config_file=[str(file) for file in files])
  return parser.parse_configuration(flags, print_return=False)


@pytest.mark.parametrize('like', new_settings.KINDS)
def test_the_file_fits_its_experiment(like, tmp_path, capsys):
  case = small_data.CASES[like]
  case.prepare(tmp_path / 'in', tmp_path / 'data', 24)
  assert main.main(['new', 'own', f'--like={like}', '--data=data']) == 0
  lines = capsys.readouterr().out.splitlines()
  commands = {line.split()[0]: ' '.join(line.split()[1:]) for line in lines}
  flags = f'--experiment={case.experiment} --config_file=own.yaml'
  expected = {
    'wrote': 'own.yaml',
    'prepare': f'official-ext prepare INPUT {tmp_path}/data --for={case.target}',
    'preview': f'official-ext preview {case.experiment} --config_file=own.yaml',
    'train': f'official-ext train {flags} --mode=train_and_eval --model_dir=runs/own',
    'evaluate': 'official-ext evaluate runs/own',
  }
  if like == 'bert_classifier':
    expected.pop('preview')
  assert commands == expected
  text = (tmp_path / 'own.yaml').read_text()
  labels = (tmp_path / 'data' / 'labels.txt').read_text().splitlines()
  assert f'# Classes: {", ".join(f"{number} {label}" for number, label in enumerate(labels))}\n' in text
  marked = [line.split(':')[0].strip() for line in text.splitlines() if '  # CHANGE: ' in line]
  assert set(marked) == {'init_checkpoint', 'input_path', *(['annotation_file'] if like == 'detector' else [])}
  params = parsed(case.experiment, 'own.yaml')
  values, base = (config_text.load_file(str(tmp_path / name), '') for name in ('own.yaml', 'data/experiment.yaml'))
  assert params.task.train_data.input_path == base['task']['train_data']['input_path']
  assert params.task.model.as_dict()['num_classes'] == base['task']['model']['num_classes']
  assert not params.task.init_checkpoint and params.trainer.optimizer_config.parameter_groups == ()
  rate = params.trainer.optimizer_config.learning_rate
  assert rate.type == 'cosine' and rate.cosine.decay_steps == params.trainer.train_steps == 600
  assert params.trainer.optimizer_config.ema.average_decay == 0.99
  assert params.runtime.deterministic
  if like == 'image_classifier':
    assert params.task.model.backbone.mobilenet.output_stride == 8  # Of 64 pixels.
  assert params.trainer.best_checkpoint_eval_metric == values['trainer']['best_checkpoint_eval_metric'] != ''


def test_a_checkpoint_slows_its_part_down(tmp_path, capsys):
  small_data.CASES['image_classifier'].prepare(tmp_path / 'in', tmp_path / 'data', 24)
  (tmp_path / 'weights').mkdir()
  assert main.main(['new', 'own', '--like=image_classifier', '--data=data', '--init_checkpoint=weights']) == 0
  params = parsed('mobilenet_imagenet', 'own.yaml')
  assert (params.task.init_checkpoint, params.task.init_checkpoint_modules) == (str(tmp_path / 'weights'), 'backbone')
  (group,) = params.trainer.optimizer_config.parameter_groups
  assert (group.patterns, group.learning_rate_scale) == (('^backbone/',), 0.1)
  assert capsys.readouterr().err == ''


def test_the_sizes_of_a_bert_are_those_beside_its_checkpoint(tmp_path):
  small_data.CASES['bert_classifier'].prepare(tmp_path / 'in', tmp_path / 'data', 24)
  (tmp_path / 'bert').mkdir()
  sizes = {'hidden_size': 64, 'num_hidden_layers': 3, 'num_attention_heads': 4, 'intermediate_size': 99}
  (tmp_path / 'bert' / 'bert_config.json').write_text(json.dumps({**sizes, 'vocab_size': 1000}))
  assert main.main(['new', 'own', '--like=bert_classifier', '--data=data', '--init_checkpoint=bert']) == 0
  params = parsed('bert/sentence_prediction', 'own.yaml')
  bert = params.task.model.encoder.bert
  assert (bert.hidden_size, bert.num_layers, bert.num_attention_heads, bert.intermediate_size) == (64, 3, 4, 99)
  assert bert.vocab_size == 1000
  (group,) = params.trainer.optimizer_config.parameter_groups
  assert group.patterns == ('^encoder/',)


@pytest.mark.parametrize(
  ('words', 'expected'),
  [
    (['own', '--like=detector'], '--data: is missing; name a folder that `official-ext prepare'),
    (['own', '--like=detector', '--data=no'], '/no: has no prepared.json; `official-ext prepare` makes'),
    (['own', '--like=detector', '--data=data'], '--data: data: was prepared for image_classification, not for object_'),
    (['there', '--like=image_classifier', '--data=data'], 'there.yaml: exists already; nothing was written'),
    (['a/b', '--like=image_classifier', '--data=data'], 'a/b: cannot be the name of a file of settings'),
    (
      ['own', '--like=image_classifier', '--data=data', '--init_checkpoint=no'],
      '--init_checkpoint: no: no such checkpoint; expected a folder, or DIR/ckpt-100',
    ),
    (['own', '--like=image_classifier', '--data=data', '--package'], '--package: has no meaning for --like=image_'),
    (['own', '--data=data'], '--data: requires --like=image_classifier|detector|segmenter|bert_classifier'),
  ],
)
def test_mistakes_are_one_line_and_write_nothing(words, expected, tmp_path, capsys):
  small_data.CASES['image_classifier'].prepare(tmp_path / 'in', tmp_path / 'data', 24)
  (tmp_path / 'there.yaml').write_text('')
  assert main.main(['new', *words]) == 2
  err = capsys.readouterr().err
  assert err.count('\n') == 1 and err.startswith('error: ') and expected in err
  assert not (tmp_path / 'own.yaml').exists()


def run_to_end(case, run_train, tmp_path, *flags, model_dir='runs/own'):
  """Trains by the written file; returns the process."""
  command = [f'--experiment={case.experiment}', '--config_file=own.yaml', f'--model_dir={model_dir}', *flags]
  return run_train(['--mode=train_and_eval', *command, *case.flags], cwd=tmp_path, timeout=1800, fresh=True)


@pytest.mark.slow
@pytest.mark.parametrize('like', new_settings.KINDS)
def test_small_data_beats_its_baseline(like, run_train, tmp_path):
  """docs/how_to/small_data.md has the figures."""
  case = small_data.CASES[like]
  case.prepare(tmp_path / 'in', tmp_path / 'data', case.num_examples)
  assert main.main(['new', 'own', f'--like={like}', '--data=data']) == 0
  # Of the detector's 600 steps, 240 suffice.
  flags = ['--set=trainer.train_steps=240'] if like == 'detector' else []
  process = run_to_end(case, run_train, tmp_path, *flags)
  assert process.returncode == 0, process.stderr[-3000:]
  values, seconds = small_data.evaluations(tmp_path / 'runs/own', case.metric)
  best = max(values)
  baseline = case.baseline(tmp_path / 'data')
  print(f'{like}: {case.metric} {best:.3f}, baseline {baseline:.3f}, {seconds:.0f} s')
  assert best >= case.expected > baseline + 0.1
  assert main.main(['export', 'runs/own', '--format=onnx', '--output_dir=exported']) == 0
  note = json.loads((tmp_path / 'exported' / 'export.json').read_text())
  assert note['verified'] is True and note['verification']['agreement'] > 0.99, note


@pytest.mark.slow
@pytest.mark.parametrize('like', small_data.CASES)
def test_a_killed_run_ends_bit_identical(like, run_train, start_train, tmp_path):
  case = small_data.CASES[like]
  case.prepare(tmp_path / 'in', tmp_path / 'data', 60)
  assert main.main(['new', 'own', f'--like={like}', '--data=data']) == 0
  steps = 2 if like == 'detector' else 4  # A step of the detector takes seconds.
  flags = [f'--set=trainer.{name}={steps}' for name in ('steps_per_loop', 'summary_interval', 'checkpoint_interval')]
  flags += [f'--set=trainer.train_steps={3 * steps}', f'--set=trainer.validation_interval={steps}']
  straight = run_to_end(case, run_train, tmp_path, *flags, model_dir='runs/straight')
  assert straight.returncode == 0, straight.stderr[-3000:]
  command = [f'--experiment={case.experiment}', '--config_file=own.yaml', '--model_dir=runs/killed', *flags]
  killed = start_train(['--mode=train_and_eval', *command, *case.flags], cwd=tmp_path)
  deadline = time.monotonic() + 1200
  while not (tmp_path / f'runs/killed/ckpt-{steps}.manifest.json').exists():
    assert killed.poll() is None and time.monotonic() < deadline
    time.sleep(0.01)
  killed.kill()  # SIGKILL.
  assert not (tmp_path / f'runs/killed/ckpt-{3 * steps}.index').exists()
  again = run_to_end(case, run_train, tmp_path, *flags, model_dir='runs/killed')
  assert again.returncode == 0, again.stderr[-3000:]
  assert '"event": "restored"' in (tmp_path / 'runs/killed/events.jsonl').read_text()
  assert comparison.differences(tmp_path / 'runs/killed', tmp_path / 'runs/straight') == []
