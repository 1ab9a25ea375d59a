"""How many records train, evaluate and are dropped is printed; a run that does not evaluate holds none out."""

import json
import re

import numpy as np
import pytest

from official_ext.training.checkpoints import manifests
from tests.language.fine_tuning import tiny_models


@pytest.fixture(scope='module')
def base(tmp_path_factory):
  return tiny_models.write(tmp_path_factory.mktemp('models') / 'base')


@pytest.fixture
def run(base, run_train, tmp_path):
  """run(mode, *fields, folder='run', steps=2) -> the process of a training on 20 records, two of which are not good."""
  lines = [{'prompt': f'What is {n}?', 'completion': f'The number {n}.'} for n in range(20)]
  lines[3], lines[7] = {'prompt': 'No answer'}, {'prompt': 'What is 7? ' * 40, 'completion': 'Cut off.'}
  (tmp_path / 'data.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
  (tmp_path / 'other.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines[:3]))

  def start(mode, *fields, folder='run', steps=2):
    data = ('seq_length=64', 'packing=none', 'global_batch_size=4', 'on_bad_example=skip')
    values = [f'task.{name}.{each}' for name in ('train_data', 'validation_data') for each in data]
    values += [
      f'task.model_path={base}',
      f'task.train_data.input_path={tmp_path / "data.jsonl"}',
      'runtime.enable_xla=false',
    ]
    values += [f'train_steps={steps}', 'checkpoint_interval=2', 'validation_interval=2', *fields]
    flags = ['--experiment=sft', f'--mode={mode}', f'--model_dir={tmp_path / folder}', *(f'--set={v}' for v in values)]
    return run_train(flags, env={'XDG_CACHE_HOME': str(tmp_path / 'cache')})

  return start


def data_lines(process):
  assert process.returncode == 0, process.stdout + process.stderr
  lines = re.findall(r'^((?:Training|Evaluation) data .*)$', process.stdout, re.M)
  return [re.sub(r'; \d+ tokens, (?:\d+ of them to learn, )?in rows that are \d+ % full', '', line) for line in lines]


@pytest.mark.slow
def test_only_a_run_that_evaluates_holds_records_out(run, tmp_path):
  dropped = 'dropped: 1 bad, 1 with nothing to learn'
  train = f'Training data (task.train_data): 18 of 20 records in 18 rows; {dropped}; held out for validation: 0'
  assert data_lines(run('train')) == [f'{train} (task.validation_share)']
  noted = manifests.read(f'{tmp_path}/run/ckpt-2')['data']['train_data'][0]
  assert (noted['num_records'], noted['num_held_out'], noted['num_records_left_out']) == (20, 0, 2)
  # A tenth of 20: every tenth record, which are neither of the two.
  assert data_lines(run('train_and_eval', folder='both')) == [
    f'Training data (task.train_data): 16 of 18 records in 16 rows; {dropped}; held out for validation: 2 '
    '(task.validation_share)',
    'Evaluation data (task.validation_data): 2 of 2 records in 2 rows; dropped: none',
  ]
  assert data_lines(run('eval', 'validation_steps=1', folder='both')) == [
    'Evaluation data (task.validation_data): 2 of 2 records in 2 rows; dropped: none; at most 1 batches of them: '
    'trainer.validation_steps'
  ]


@pytest.mark.slow
def test_a_share_that_is_set_is_held_out_in_any_mode(run):
  assert 'held out for validation: 5 (' in data_lines(run('train', 'task.validation_share=0.25', folder='asked'))[0]


@pytest.mark.slow
def test_records_that_a_run_has_trained_on_are_not_taken_to_evaluate_it(run, tmp_path):
  assert data_lines(run('train'))
  weights = (tmp_path / 'run/ckpt-2.data-00000-of-00001').read_bytes()
  for mode in ('eval', 'continuous_eval', 'train_and_eval', 'train_and_post_eval'):
    refused = run(mode, steps=4)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    message = (
      rf'^error: task\.validation_data\.input_path: is empty, so that .*{tmp_path}/run/ckpt-2 was trained on them'
    )
    assert re.search(message, refused.stderr, re.M), refused.stderr
    assert 'in another --model_dir with --set=task.validation_share=0.1\n' in refused.stderr
  assert (tmp_path / 'run/ckpt-2.data-00000-of-00001').read_bytes() == weights
  other = f'task.validation_data.input_path={tmp_path / "other.jsonl"}'
  assert (
    'Evaluation data (task.validation_data): 3 of 3 records' in data_lines(run('train_and_eval', other, steps=4))[1]
  )


@pytest.mark.slow
def test_a_run_that_resumes_without_evaluations_reports_that_its_data_have_changed(run, tmp_path):
  assert len(data_lines(run('train_and_eval'))) == 2
  process = run('train', steps=4)
  assert 'held out for validation: 0' in data_lines(process)[0]
  assert 'task.train_data: num_held_out: 2 -> 0' in process.stdout
  refused = run('train_and_eval', steps=6)  # It has seen them by now.
  assert refused.returncode == 2 and 'was trained on them' in refused.stderr
  # Another share holds out others than those that were not trained on.
  assert run('train_and_eval', folder='share').returncode == 0
  refused = run('eval', 'task.validation_share=0.4', folder='share')
  assert refused.returncode == 2 and 'was trained on them' in refused.stderr
  assert np.isfinite(json.loads((tmp_path / 'share/run.json').read_text())['step'])
