"""Fields of the files of a model's folder: used, harmless for a reason, or refused by name."""

import json

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import file_fields
from official_ext.language.modeling import families
from official_ext.language.modeling import generation
from official_ext.language.modeling import peft_folders
from official_ext.language.modeling import pretrained
from official_ext.language.text import tokenizer

pytest.importorskip('transformers', reason="needs the test extra: pip install 'official-ext[test]'")
from tests.language.modeling import checkpoints

FORMATS = [
  generation.FILE_FIELDS,
  peft_folders.FILE_FIELDS,
  tokenizer.CONFIG_FIELDS,
  tokenizer.JSON_FIELDS,
  tokenizer.SPECIAL_FIELDS,
  tokenizer.TOKEN_FIELDS,
  *(family.file_fields() for family in families.FAMILIES.values()),
]


@pytest.mark.parametrize('known', FORMATS, ids=lambda known: known.name)
def test_an_unknown_field_is_reported_in_every_format(known):
  with pytest.raises(errors.UserError, match='^there: a_new_field: 3 '):
    known.check({'a_new_field': 3}, 'there')
  said = []
  known.check({'a_new_field': 3}, 'there', report=said.append)
  assert len(said) == 1 and said[0].startswith('there: a_new_field: 3 ')
  known.check({'a_new_field': 3}, 'there', ignored={'a_new_field'})
  known.check({'a_new_field': None, **{name: values[0] for name, values in known.neutral.items()}}, 'there')
  for name in known.neutral:
    with pytest.raises(errors.UserError, match=f'^there: {name}: '):
      known.check({name: 'other'}, 'there', report=said.append)


@pytest.mark.parametrize('known', FORMATS, ids=lambda known: known.name)
def test_no_field_has_two_meanings(known):
  names = [*known.used, *known.harmless, *known.neutral]
  assert len(names) == len(set(names))


def test_all_fields_of_a_file_are_named_at_once():
  fields = file_fields.FileFields('x.json', {'a'}, {}, {'b': (1,)})
  with pytest.raises(errors.UserErrors) as error:
    fields.check({'a': 1, 'b': 2, 'c': 3}, 'x.json')
  assert [line.split(':')[1] for line in error.value.lines] == [' b', ' c']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('model')
  checkpoints.random_model(checkpoints.config('llama')).save_pretrained(path)
  return path


def tokens_of(folder, count, fields):
  """(transformers' greedy tokens, ours): None for ours if a field is refused by its name."""
  import torch  # pylint: disable=g-import-not-at-top
  import transformers  # pylint: disable=g-import-not-at-top

  (folder / 'generation_config.json').write_text(json.dumps({'eos_token_id': 2, **fields}))
  prompt = [5, 6, 7, 8, 5, 6]
  model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
  length = {} if 'max_new_tokens' in fields else {'max_new_tokens': count}
  with torch.no_grad():
    theirs = model.generate(torch.tensor([prompt]), **length)[0, len(prompt) :].tolist()
  ours = pretrained.load(str(folder))
  try:
    config = generation.config_of(ours, **length)
  except errors.UserError as error:
    name = next(iter(fields))
    assert str(error).startswith(f'{folder}/generation_config.json: {name}: '), error
    return theirs, None
  return theirs, generation.Generator(ours, config, by_block=True)([prompt])[0].tokens


@pytest.mark.slow
def test_fields_of_generation_config_give_transformers_tokens_or_are_refused(folder):
  plain, ours = tokens_of(folder, 5, {})
  assert plain == ours
  for fields in (
    {'max_new_tokens': 3},
    {'eos_token_id': [plain[2], 1]},
    {'repetition_penalty': 1.7},
    {'temperature': 0.3, 'typical_p': 0.5},  # Without do_sample.
    {'num_return_sequences': 1, 'renormalize_logits': True, 'max_length': 30},
  ):
    theirs, ours = tokens_of(folder, 5, fields)
    assert ours == theirs, fields
  for fields in (
    {'suppress_tokens': [plain[0]]},
    {'bad_words_ids': [[plain[0]]]},
    {'no_repeat_ngram_size': 1},
    {'min_new_tokens': 4, 'eos_token_id': plain[0]},
    {'num_beams': 3},
    {'forced_eos_token_id': 0},
  ):
    theirs, ours = tokens_of(folder, 5, fields)
    assert ours is None, fields


def test_a_folder_that_samples_draws_as_transformers_does(folder):
  for fields, expected in (({}, (1.0, 50)), ({'top_k': 0}, (1.0, 0)), ({'temperature': 0.5}, (0.5, 50))):
    (folder / 'generation_config.json').write_text(json.dumps({'do_sample': True, **fields}))
    config = generation.config_of(pretrained.load(str(folder)))
    assert (config.temperature, config.top_k) == expected
  (folder / 'generation_config.json').write_text(json.dumps({'do_sample': True, 'typical_p': 0.5}))
  model = pretrained.load(str(folder))
  with pytest.raises(errors.UserError, match='typical_p: 0.5 may change the next token: only 1.0 is implemented'):
    generation.config_of(model)
  assert generation.config_of(model, ignore_fields=('typical_p',)).top_k == 50


def test_settings_of_config_json_count_without_the_other_file_alone(folder):
  (folder / 'generation_config.json').unlink()
  model = pretrained.load(str(folder))
  model.origin.fields.update(num_beams=4)
  with pytest.raises(errors.UserError, match='config.json: num_beams: 4 '):
    generation.config_of(model)
  (folder / 'generation_config.json').write_text('{"eos_token_id": 7}')
  model = pretrained.load(str(folder))
  model.origin.fields.update(num_beams=4, temperature=0.1, do_sample=True)
  config = generation.config_of(model, defaults={'max_new_tokens': 9})
  assert (config.stop_token_ids, config.temperature, config.max_new_tokens) == ((7,), 0.0, 9)


def test_a_vocabulary_is_enlarged_with_the_mean_of_its_rows(folder, tmp_path):
  ids = tf.constant([[3, 4, 5]])
  small, large = pretrained.load(str(folder)), pretrained.load(str(folder), vocab_size=80)
  size = small.config.vocab_size
  np.testing.assert_allclose(large(ids)[..., :size], small(ids), atol=1e-6)
  np.testing.assert_allclose(large(ids)[..., size], np.mean(small(ids), axis=-1), atol=1e-5)
  pretrained.save(large, str(tmp_path))
  assert json.loads((tmp_path / 'config.json').read_text())['vocab_size'] == 80
  np.testing.assert_array_equal(pretrained.load(str(tmp_path))(ids), large(ids))
  with pytest.raises(errors.UserError, match=f'vocab_size: 9: .* has {size} tokens'):
    pretrained.load(str(folder), vocab_size=9)
