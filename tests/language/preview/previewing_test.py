"""official-ext preview of text experiments: examples as the model gets them; the first one in the log of a training."""

import json
import os

from official.core import exp_factory
from official.core import task_factory
import pytest

from official_ext.cli import main
from official_ext.language.preview import previewing
from official_ext.training.config import overrides
import registry_imports  # noqa: F401
from tests import tiers
from tests.language.fine_tuning import tiny_models

RECORDS = [{'q': f'What is {n}?', 'a': f'It is {n}.', 'bad': 'No.', 'body': f'Words about {n}.'} for n in range(30)]
TEMPLATED = '<|user|>\nWhat is {n}?<|end|>\n<|assistant|>\n'
COLUMNS = {
  'sft': {'prompt_column': 'q', 'output_column': 'a'},
  'preference': {'prompt_column': 'q', 'chosen_column': 'a', 'rejected_column': 'bad', 'use_chat_template': 'true'},
  'reward_model': {'prompt_column': 'q', 'chosen_column': 'a', 'rejected_column': 'bad', 'use_chat_template': 'true'},
  'grpo': {'prompt_column': 'q', 'output_column': 'a'},
  'language_model': {'text_column': 'body'},
}
# The part of the output that holds a record, with {n} for its number.
EXPECTED = {
  'sft': [TEMPLATED + '⟦It is {n}.<|endoftext|>⟧'],
  'preference': [TEMPLATED + '⟦It is {n}.<|endoftext|>⟧', TEMPLATED + '⟦No.<|endoftext|>⟧'],
  'reward_model': [TEMPLATED + 'It is {n}.<|endoftext|>', TEMPLATED + 'No.<|endoftext|>'],
  'grpo': [TEMPLATED],
  'language_model': ['W⟦ords about {n}.<|endoftext|>⟧'],  # Nothing comes before the first token of a text.
}


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  """A folder with a tiny model, `base`, and `data.jsonl`."""
  folder = tmp_path_factory.mktemp('preview')
  tiny_models.write(folder / 'base')
  (folder / 'data.jsonl').write_text(''.join(json.dumps(record) + '\n' for record in RECORDS))
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('XDG_CACHE_HOME', str(folder / 'cache'))
    yield folder


def flags_of(experiment, place):
  named = 'tokenizer_path' if experiment == 'language_model' else 'model_path'
  values = {**COLUMNS[experiment], 'input_path': place / 'data.jsonl', 'seq_length': 64}
  return [
    f'--set=task.{named}={place / "base"}',
    *(f'--set=task.train_data.{name}={value}' for name, value in values.items()),
  ]


@tiers.parametrize('experiment', EXPECTED, fast=1)
def test_examples_of_an_experiment(experiment, place, capsys):
  page = place / f'{experiment}.html'
  assert main.main(['preview', experiment, *flags_of(experiment, place), '--rows=3', f'--output={page}']) == 0
  out = capsys.readouterr().out
  assert out.startswith(f'{experiment}: 3 train examples\n')
  assert f'tokenizer: {place / "base"}, ' in out and "chat template: the tokenizer's" in out
  assert out.count('\nexample ') == 3 and 'data.jsonl, line ' in out
  for expected in EXPECTED[experiment]:
    shown = expected if '{n}' not in expected else None
    assert any((shown or expected.replace('{n}', str(n))) in out for n in range(30)), out
  assert ('learned tokens: none' in out) == (experiment in ('reward_model', 'grpo'))
  content = page.read_text()
  assert content.count('<h2>') == 3 and ('<i>&lt;|user|&gt;</i>' in content) == (experiment != 'language_model')


def make_task(experiment, place, **changes):
  params = exp_factory.get_exp_config(experiment)
  named = 'tokenizer_path' if experiment == 'language_model' else 'model_path'
  data = {**COLUMNS[experiment], 'input_path': str(place / 'data.jsonl'), 'seq_length': 64, **changes}
  data = {name: True if value == 'true' else value for name, value in data.items()}
  overrides.override(params, {'task': {named: str(place / 'base'), 'train_data': data}})
  return task_factory.get_task(params.task)


@tiers.parametrize('experiment', EXPECTED, fast=1)
def test_the_log_of_a_training_has_the_first_example_of_the_preview(experiment, place, capsys):
  assert main.main(['preview', experiment, *flags_of(experiment, place), '--rows=1']) == 0
  shown = capsys.readouterr().out
  heading, *lines = make_task(experiment, place).example_lines()
  assert f'\nexample 1: {heading.removeprefix("First example: ").partition("; learned between")[0]}\n' in shown
  for line in lines:
    text = line.strip().partition(' learned: ')[2] if ' learned: ' in line else line.strip()
    assert text.partition(' tokens: ')[2].replace('\\n', '\n') in shown or text.replace('\\n', '\n') in shown
  assert 1 <= len(lines) <= 5 and all(len(line) < 800 for line in lines)


def test_the_lines_of_a_log_are_bounded(place, tmp_path):
  long = [{'q': 'word ' * 3000, 'a': 'other ' * 3000}, *({'q': f'{n}', 'a': f'{n}'} for n in range(200))]
  (tmp_path / 'data.jsonl').write_text(''.join(json.dumps(record) + '\n' for record in long))
  os.symlink(place / 'base', tmp_path / 'base')
  lines = make_task('sft', tmp_path, seq_length=4096).example_lines()
  assert len(lines) <= 6 and all(len(line) < 800 for line in lines)
  assert any('characters ...]' in line or 'more texts in the row' in line for line in lines)


@pytest.mark.parametrize(
  ('flags', 'expected'),
  [
    (['--output=a.png'], 'error: --output: a.png: is for texts; expected a name that ends with .txt or .html'),
    (
      ['--set=task.validation_data.input_path=none.jsonl', '--split=validation'],
      'error: task.validation_data.input_path: ',
    ),
    (['--rows=0'], '--rows'),
  ],
)
def test_mistakes_are_one_line(flags, expected, place, capsys):
  assert main.main(['preview', 'sft', *flags_of('sft', place), *flags]) == 2
  err = capsys.readouterr().err
  assert expected in err and err.count('\n') == 1 and 'Traceback' not in err


def test_a_terminal_has_styles_instead_of_marks(place, capsys):
  params = exp_factory.get_exp_config('sft')
  assert previewing.is_for(params) and not previewing.is_for(exp_factory.get_exp_config('digits'))
  task = make_task('sft', place)
  params.task = task.task_config
  previewing.run(params, 'sft', previewing.Options(rows=2, is_terminal=True))
  out = capsys.readouterr().out
  assert '\x1b[32m' in out and '⟦' not in out
