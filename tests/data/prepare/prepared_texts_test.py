"""Texts that were prepared: the rows of `ext.text_source`, under the same settings or not at all."""

import json
import os

import numpy as np
import pytest
import yaml

import official_ext as ext
from official_ext.base import errors
from official_ext.data import bad_examples
from official_ext.data import numbered_records
from official_ext.data import step_indexed
from tests import disks
from tests import tiers
from tests.data.prepare import prepared_inputs as inputs
from tests.language.text import text_fixtures

DOCUMENTS = inputs.documents(150)


cache, tokenizer = text_fixtures.cache, text_fixtures.tokenizer


def config(**fields):
  return ext.TextDataConfig(**{'is_training': True, 'global_batch_size': 2, 'seq_length': 48, **fields})


def rows(source):
  return source.fetch(range(len(source)))


def assert_same(found, expected):
  assert len(found) == len(expected)
  for row, other in zip(found, expected):
    assert list(row) == list(other)
    for name in row:
      assert row[name].dtype == np.int32
      np.testing.assert_array_equal(row[name], other[name])


PROMPTS = [{'prompt': f'What is {n}? ', 'completion': f'It is {n}.' * (1 + n % 4)} for n in range(60)]
PREFERENCES = [{'prompt': f'Is {n}? ', 'chosen': 'Yes, it is.', 'rejected': 'No' * (1 + n % 3)} for n in range(30)]


@tiers.parametrize(
  ('records', 'fields'),
  [
    (DOCUMENTS, {'packing': 'none'}),
    (DOCUMENTS, {'packing': 'best_fit'}),
    (DOCUMENTS, {'packing': 'wrapped', 'append_eos': False}),
    (PROMPTS, {'packing': 'best_fit', 'max_content_length': 9}),
    (PROMPTS, {'use_chat_template': True, 'system_prompt': 'Be brief.'}),
    (PREFERENCES, {'example_format': 'preference'}),
  ],
  fast=2,
)
def test_the_rows_of_one_shard_are_those_of_the_texts(records, fields, tokenizer, tmp_path):
  path = inputs.write_lines(tmp_path / 'a.jsonl', records)
  done = inputs.prepare(path, tmp_path / 'out', tokenizer, seq_length=48, **fields)
  params = config(input_path=str(tmp_path / 'out'), **fields)
  source = ext.text_source(params, tokenizer)
  expected = ext.text_source(config(input_path=str(path), **fields), tokenizer)
  assert len(done.plan.shards) == 1 and len(source) == done.rows
  assert_same(rows(source), rows(expected))
  assert vars(source.report) == vars(expected.report)
  assert ext.text_source(params, tokenizer) is source
  assert source.identity() != expected.identity() and source.identity()['tokenizer'] == tokenizer.digest
  assert source.describe(0) == f'row 0 ({tmp_path}/out/rows-00000-of-00001.array_record, record 0)'
  take = lambda found, params: list(step_indexed.build_dataset(found, params).take(20).as_numpy_iterator())
  for batch, other in zip(take(source, params), take(expected, params), strict=True):
    assert all((batch[name] == other[name]).all() for name in other)


@pytest.mark.parametrize('packing', ['best_fit', 'wrapped'])
def test_the_rows_of_several_shards_are_those_of_their_texts(packing, tokenizer, tmp_path):
  path = inputs.write_lines(tmp_path / 'a.jsonl', DOCUMENTS)
  fields = {'packing': packing, 'seq_length': 32}
  done = inputs.prepare(path, tmp_path / 'out', tokenizer, shard_bytes=3000, **fields)
  found, start, expected = rows(ext.text_source(config(input_path=str(tmp_path / 'out'), **fields), tokenizer)), 0, []
  assert len(done.plan.shards) > 2
  for shard in done.plan.shards:
    note = json.loads((tmp_path / 'out' / f'{shard.name}.json').read_text())
    texts = DOCUMENTS[start : start + note['report']['records']]
    start += len(texts)
    expected += rows(ext.text_source(config(**fields), tokenizer, numbered_records.ListRecords(texts)))
  assert start == len(DOCUMENTS)
  assert_same(found, expected)
  learned = sum(int((row['labels'] >= 0).sum()) for row in found)
  whole = ext.text_source(config(**fields), tokenizer, numbered_records.ListRecords(DOCUMENTS))
  if packing == 'wrapped':  # Each token is learned once, but the first of a text.
    assert learned == sum(int((row['labels'] >= 0).sum()) for row in rows(whole))
  assert done.report.tokens == whole.report.tokens and done.report.text_bytes == whole.report.text_bytes


def test_the_configuration_that_is_left_is_the_one_to_train_with(tokenizer, tmp_path):
  path = inputs.write_lines(tmp_path / 'a.jsonl', PROMPTS)
  done = inputs.prepare(path, tmp_path / 'out', tokenizer, seq_length=40, packing='best_fit')
  with open(done.config_path) as f:
    task = yaml.safe_load(f)['task']
  kept = ext.Tokenizer.load(task['tokenizer_path'])
  assert kept.digest == tokenizer.digest
  source = ext.text_source(config(**task['train_data']), kept)
  assert len(source) == done.rows and task['train_data']['example_format'] == 'prompt_output'


def test_other_settings_are_refused_all_at_once(tokenizer, tmp_path):
  path = inputs.write_lines(tmp_path / 'a.jsonl', DOCUMENTS)
  out = tmp_path / 'out'
  inputs.prepare(path, out, tokenizer, seq_length=32, packing='wrapped')
  other = tokenizer.with_chat_template('{{ messages }}')
  with pytest.raises(errors.UserErrors) as error:
    ext.text_source(config(input_path=str(out), max_samples=3, append_eos=False, split='train'), other)
  assert error.value.lines == (
    f'task.train_data.input_path: {out} was prepared with another tokenizer or chat template than the model has; the '
    f'one it was made with is {out}/tokenizer (task.tokenizer_path)',
    f'task.train_data.append_eos: is false, and {out} was prepared with true; set it so, or prepare another folder',
    f'task.train_data.seq_length: is 48, and {out} was prepared with 32; set it so, or prepare another folder',
    f'task.train_data.packing: is none, and {out} was prepared with wrapped; set it so, or prepare another folder',
    'task.train_data.split: has no meaning for rows that were prepared; leave it alone',
    'task.train_data.max_samples: has no meaning for rows that were prepared; leave it alone',
  )
  with pytest.raises(errors.UserError, match='holds rows of tokens, which ext.text_source reads'):
    ext.PreparedRows(str(out))
  with pytest.raises(errors.UserError, match='stands alone; prepare all files into one folder'):
    ext.text_source(config(input_path=[str(out), str(path)]), tokenizer)
  inputs.prepare(path, tmp_path / 'records')
  with pytest.raises(
    errors.UserError, match=r'^task.train_data.input_path: .*/records: holds records; prepare it with'
  ):
    ext.text_source(config(input_path=str(tmp_path / 'records')), tokenizer)
  with pytest.raises(errors.UserError, match='packing was "wrapped", and is "none" now'):
    inputs.prepare(path, out, tokenizer, seq_length=32)


def test_a_bad_first_record_of_a_shard_changes_no_format(tokenizer, tmp_path):
  path = inputs.write_lines(tmp_path / 'a.jsonl', DOCUMENTS)
  lines = path.read_text().splitlines()
  lines[0], lines[60] = 'no', '{"other": 1}'
  path.write_text('\n'.join(lines))
  with pytest.raises(bad_examples.BadExampleError, match='line 1: is invalid JSON'):
    inputs.prepare(path, tmp_path / 'out', tokenizer)
  done = inputs.prepare(path, tmp_path / 'out', tokenizer, shard_bytes=1000, on_bad_example='skip')
  assert len(done.plan.shards) > 2
  assert (done.report.bad_records, done.report.examples) == (2, 148)
  assert done.report.named[0].startswith(f'{path}, line 1: ') and "column 'text' is missing" in done.report.named[1]


@pytest.mark.parametrize(
  ('records', 'fields', 'expected'),
  [
    ([{'txt': 'a'}], {'example_format': 'text'}, "^--text_column: .*line 1 has no column 'text'; did you mean txt"),
    ([{'body': 'a'}], {}, '^--example_format: .*line 1 has the columns body; expected messages, or prompt'),
    (PREFERENCES, {'example_format': 'preference', 'packing': 'wrapped'}, '^--packing: wrapped: rows of the format'),
  ],
)
def test_mistakes_are_named_by_the_flags(records, fields, expected, tokenizer, tmp_path):
  path = inputs.write_lines(tmp_path / 'a.jsonl', records)
  with pytest.raises(errors.UserError, match=expected):
    inputs.prepare(path, tmp_path / 'out', tokenizer, **fields)


def test_an_empty_turn_is_refused_as_in_training(tokenizer, tmp_path):
  turns = [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Yes.'}]
  records = [{'messages': turns}, {'messages': [*turns, turns[0], {'role': 'assistant', 'content': ' '}]}]
  path = inputs.write_lines(tmp_path / 'a.jsonl', records)
  with pytest.raises(errors.UserError, match='message 3, a turn of the assistant, is empty; .*=skip$'):
    inputs.prepare(path, tmp_path / 'out', tokenizer, seq_length=48)
  assert inputs.prepare(path, tmp_path / 'out', tokenizer, seq_length=48, on_bad_example='skip').rows == 1


def test_a_full_disk_while_the_tokenizer_is_written_leaves_a_folder_that_resumes(tokenizer, tmp_path):
  path = inputs.write_lines(tmp_path / 'a.jsonl', DOCUMENTS)
  with disks.small(tmp_path / 'disk') as disk:
    folder = disk.folder / 'out'
    folder.mkdir()
    disk.fill()
    with pytest.raises(errors.StorageError, match=rf'^{folder}/.prepare.lock: cannot be written: No space left'):
      inputs.prepare(path, folder, tokenizer)
    os.truncate(disk.folder / 'filler', os.path.getsize(disk.folder / 'filler') - 3 * 4096)  # The plan and the lock.
    with pytest.raises(errors.StorageError, match=rf'^{folder}/tokenizer/.*json: cannot be written: No space left'):
      inputs.prepare(path, folder, tokenizer)
    disk.free()
    assert inputs.prepare(path, folder, tokenizer).rows


def test_a_kill_in_front_of_the_first_shard_leaves_a_folder_that_resumes(tokenizer, tmp_path):
  path, folder = inputs.write_lines(tmp_path / 'a.jsonl', DOCUMENTS), tmp_path / 'out'
  inputs.prepare(path, folder, tokenizer)
  before = {str(file): file.read_bytes() for file in folder.rglob('*') if file.is_file()}
  (folder / 'tokenizer/tokenizer.json').rename(folder / 'tokenizer/tokenizer.json.other-1.partial')
  inputs.prepare(path, folder, tokenizer)
  assert {str(file): file.read_bytes() for file in folder.rglob('*') if file.is_file()} == before
  (tmp_path / 'begun').mkdir()
  (tmp_path / 'begun/plan.json.other-1.partial').write_text('{')
  inputs.prepare(path, tmp_path / 'begun', tokenizer)
  assert inputs.shard_bytes(tmp_path / 'begun') == inputs.shard_bytes(folder)


def test_a_folder_that_was_moved_gets_its_configuration_by_the_same_command(tokenizer, tmp_path):
  path = inputs.write_lines(tmp_path / 'a.jsonl', DOCUMENTS)
  inputs.prepare(path, tmp_path / 'out', tokenizer, seq_length=32)
  (tmp_path / 'out').rename(tmp_path / 'moved')
  done = inputs.prepare(path, tmp_path / 'moved', tokenizer, seq_length=32)
  assert done.num_there == len(done.plan.shards) == 1
  task = yaml.safe_load((tmp_path / 'moved/train_data.yaml').read_text())['task']
  assert task['tokenizer_path'] == f'{tmp_path}/moved/tokenizer'
  assert task['train_data']['input_path'] == f'{tmp_path}/moved'
