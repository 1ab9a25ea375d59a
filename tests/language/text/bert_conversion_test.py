"""Annotated texts: reading, splits, and the files of a conversion, compared with Model Garden's own readers."""

import csv
import json

import pytest

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.data import input_files
from official_ext.language.text import bert_conversion
from official_ext.language.text import bert_targets
from tests.data.prepare import prepared_inputs
from tests.language.text import annotated

CLASSIFICATION, TAGGING, QUESTIONS = bert_targets.TARGETS


def read(path, target, **reading):
  return bert_conversion.read_inputs({'': [str(path)]}, target, bert_conversion.Reading(**reading))


def test_the_formats_of_classified_texts_give_the_same_examples(tmp_path):
  rows = annotated.winners(6)
  with open(tmp_path / 'a.csv', 'w', newline='') as f:
    csv.writer(f).writerows([['id', 'Sentence', 'label'], *[[n, text, label] for n, (text, label) in enumerate(rows)]])
  with open(tmp_path / 'b.tsv', 'w', newline='') as f:
    csv.writer(f, delimiter='\t').writerows([['label', 'text'], *[[label, text] for text, label in rows]])
  prepared_inputs.write_lines(tmp_path / 'c.jsonl', [{'text': text, 'label': label} for text, label in rows])
  expected = [{'text_a': text, 'text_b': None, 'label': label} for text, label in rows]
  for name, fields in (('a.csv', ('Sentence',)), ('b.tsv', ()), ('c.jsonl', ())):
    found = read(tmp_path / name, CLASSIFICATION, text_fields=fields)
    assert [text.values for text in found.texts] == expected and found.dropped == [], name


def test_pairs_of_texts_are_found_by_their_names(tmp_path):
  prepared_inputs.write_lines(tmp_path / 'a.jsonl', [{'premise': 'a b', 'hypothesis': 'c', 'label': 1}])
  (text,) = read(tmp_path / 'a.jsonl', CLASSIFICATION, labels=('no', 'yes')).texts
  assert text.values == {'text_a': 'a b', 'text_b': 'c', 'label': 'yes'}


def test_words_with_tags_in_conll_and_json_lines(tmp_path):
  (tmp_path / 'a.conll').write_text('-DOCSTART- O\n\nAda NNP B-PER\nwrites VBZ O\n\nParis NNP B-LOC\n')
  prepared_inputs.write_lines(
    tmp_path / 'b.jsonl',
    [{'tokens': ['Ada', 'writes'], 'ner_tags': ['B-PER', 'O']}, {'tokens': ['Paris'], 'ner_tags': ['B-LOC']}],
  )
  expected = [{'words': ['Ada', 'writes'], 'tags': ['B-PER', 'O']}, {'words': ['Paris'], 'tags': ['B-LOC']}]
  for name in ('a.conll', 'b.jsonl'):
    assert [text.values for text in read(tmp_path / name, TAGGING).texts] == expected


def test_questions_of_squad_and_of_json_lines(tmp_path):
  questions = annotated.questions(4)
  (tmp_path / 'a.json').write_text(annotated.squad(questions))
  lines = [
    {**each, 'answers': {key: [answer[key] for answer in each['answers']] for key in ('text', 'answer_start')}}
    for each in questions
  ]
  prepared_inputs.write_lines(tmp_path / 'b.jsonl', lines)
  for name in ('a.json', 'b.jsonl'):
    assert [text.values for text in read(tmp_path / name, QUESTIONS).texts] == questions


@pytest.mark.parametrize(
  ('target', 'record', 'reason'),
  [
    (CLASSIFICATION, {'text': ' ', 'label': 'a'}, 'a text is empty'),
    (CLASSIFICATION, {'text': 'a', 'label': None}, 'has no label'),
    (CLASSIFICATION, {'words': 'a', 'label': 'a'}, 'has no column text; it has words, label'),
    (TAGGING, {'tokens': ['a', 'b'], 'tags': ['O']}, '2 words have 1 tags'),
    (TAGGING, {'tokens': 'a b', 'tags': ['O']}, 'words and tags must be lists'),
    (QUESTIONS, {'question': 'a', 'context': 'b c', 'answers': [{'text': 'c', 'answer_start': 1}]}, "'c' is not at"),
    (QUESTIONS, {'question': 'a', 'context': 'b c', 'answers': [{'text': 'c'}]}, 'answers need text and answer_start'),
  ],
)
def test_records_that_cannot_be_used_are_dropped_with_reasons(target, record, reason, tmp_path):
  good = {
    CLASSIFICATION: {'text': 'a', 'label': 'a'},
    TAGGING: {'tokens': ['a'], 'tags': ['O']},
    QUESTIONS: {'question': 'a', 'context': 'b c', 'answers': []},
  }[target]
  prepared_inputs.write_lines(tmp_path / 'a.jsonl', [good, record])
  found = read(tmp_path / 'a.jsonl', target)
  ((place, text),) = found.dropped
  assert len(found.texts) == 1 and reason in text and place.endswith('a.jsonl, line 2')


@pytest.mark.tensorflow
def test_texts_that_are_equal_have_the_same_split(tmp_path):
  rows = annotated.winners(60)
  prepared_inputs.write_lines(tmp_path / 'a.jsonl', [{'text': text, 'label': label} for text, label in [*rows, *rows]])
  vocab_file = annotated.write_vocabulary(tmp_path / 'vocab.txt')
  made = annotated.convert(tmp_path / 'a.jsonl', tmp_path / 'out', CLASSIFICATION, vocab_file, validation_share=0.3)[1]
  across = [places for places in made.report['duplicates'] if len({place.split(': ')[0] for place in places}) > 1]
  assert made.report['duplicates'] and across == []
  shares = [values['examples'] / 120 for values in made.report['splits'].values()]
  assert abs(shares[1] - 0.3) < 0.15


@pytest.mark.tensorflow
def test_files_that_model_gardens_classifier_reads(tmp_path):
  rows = annotated.winners(40)
  prepared_inputs.write_lines(tmp_path / 'a.jsonl', [{'text': text, 'label': label} for text, label in rows])
  vocab_file = annotated.write_vocabulary(tmp_path / 'vocab.txt')
  done, made = annotated.convert(
    tmp_path / 'a.jsonl', tmp_path / 'out', CLASSIFICATION, vocab_file, seq_length=12, validation_share=0.25
  )
  tokens = vocab_file.read_text().splitlines()
  seen = []
  for split, values in made.report['splits'].items():
    for features in annotated.examples(tmp_path / 'out', split):
      words = [tokens[number] for number, kept in zip(features['input_ids'], features['input_mask']) if kept]
      assert (words[0], words[-1]) == ('[CLS]', '[SEP]') and len(features['input_ids']) == 12
      assert features['segment_ids'] == [0] * 12
      seen.append((' '.join(words[1:-1]), done.plan.labels[features['label_ids'][0]]))
    assert values['examples'] == values['rows'] == sum(values['classes'].values())
  assert sorted(seen) == sorted(rows)
  settings = config_text.load_file(str(tmp_path / 'out' / 'experiment.yaml'), '')
  assert settings['task']['model'] == {
    'encoder': {'type': 'bert', 'bert': {'vocab_size': len(tokens)}},
    'num_classes': len(done.plan.labels),
  }
  assert (tmp_path / 'out' / 'labels.txt').read_text().splitlines() == list(done.plan.labels)
  assert done.report.cut_texts == 0


@pytest.mark.tensorflow
def test_longer_texts_are_counted_as_cut(tmp_path):
  prepared_inputs.write_lines(
    tmp_path / 'a.jsonl', [{'text': 'red beats blue', 'label': 'red'}, {'text': 'blue', 'label': 'blue'}]
  )
  vocab_file = annotated.write_vocabulary(tmp_path / 'vocab.txt')
  done, _ = annotated.convert(
    tmp_path / 'a.jsonl', tmp_path / 'out', CLASSIFICATION, vocab_file, seq_length=4, validation_share=0.0
  )
  assert (done.report.cut_texts, done.report.cut_text_tokens) == (1, 1)


@pytest.mark.tensorflow
def test_files_that_model_gardens_tagger_reads(tmp_path):
  prepared_inputs.write_lines(
    tmp_path / 'a.jsonl',
    [{'tokens': ['red', 'beats', 'blue'], 'tags': ['B', 'O', 'B']}, {'tokens': ['green'], 'tags': ['B']}],
  )
  vocab_file = annotated.write_vocabulary(tmp_path / 'vocab.txt')
  done, _ = annotated.convert(
    tmp_path / 'a.jsonl', tmp_path / 'out', TAGGING, vocab_file, seq_length=6, validation_share=0.0
  )
  assert done.plan.labels == ('O', 'B')
  found = sorted(each['label_ids'] for each in annotated.examples(tmp_path / 'out', 'train'))
  assert found == [[-1, 1, -1, -1, -1, -1], [-1, 1, 0, 1, -1, -1]]
  settings = config_text.load_file(str(tmp_path / 'out' / 'experiment.yaml'), '')
  assert settings['task']['class_names'] == ['O', 'B']


@pytest.mark.tensorflow
def test_files_that_model_gardens_question_answering_reads(tmp_path):
  questions = annotated.questions(30)
  (tmp_path / 'a.json').write_text(annotated.squad(questions))
  vocab_file = annotated.write_vocabulary(tmp_path / 'vocab.txt')
  done, made = annotated.convert(
    tmp_path / 'a.json', tmp_path / 'out', QUESTIONS, vocab_file, seq_length=24, query_length=8, validation_share=0.3
  )
  tokens = vocab_file.read_text().splitlines()
  rows = annotated.examples(tmp_path / 'out', 'train')
  assert len(rows) == done.rows == made.report['splits']['train']['examples']
  answers = set()
  for features in rows:
    start, end = features['start_positions'][0], features['end_positions'][0]
    if not features['is_impossible'][0]:
      answers.add(' '.join(tokens[number] for number in features['input_ids'][start : end + 1]))
  assert answers == {answer['text'] for each in questions for answer in each['answers']}
  stored = json.loads((tmp_path / 'out' / 'questions_validation.json').read_text())['data']
  held_out = {paragraph['qas'][0]['id'] for article in stored for paragraph in article['paragraphs']}
  assert len(held_out) == made.report['splits']['validation']['examples'] and held_out < {e['id'] for e in questions}
  settings = config_text.load_file(str(tmp_path / 'out' / 'experiment.yaml'), '')['task']['validation_data']
  assert settings['input_path'] == str(tmp_path / 'out' / 'questions_validation.json')
  assert settings['vocab_file'] == str(tmp_path / 'out' / 'vocab.txt') and settings['version_2_with_negative'] is True


@pytest.mark.tensorflow
def test_an_answer_with_other_blanks_is_kept(tmp_path):
  """Model Garden's reader drops it without a message."""
  questions = annotated.questions(6)
  questions[1] |= {'context': 'red\u00a0beats blue', 'answers': [{'text': 'red\u00a0beats', 'answer_start': 0}]}
  (tmp_path / 'a.json').write_text(annotated.squad(questions))
  vocab_file = annotated.write_vocabulary(tmp_path / 'vocab.txt')
  done, _ = annotated.convert(
    tmp_path / 'a.json', tmp_path / 'out', QUESTIONS, vocab_file, seq_length=24, query_length=8, validation_share=0.0
  )
  assert done.rows == 6


@pytest.mark.tensorflow
def test_a_vocabulary_has_as_many_tokens_as_lines(tmp_path):
  prepared_inputs.write_lines(tmp_path / 'a.jsonl', [{'text': text, 'label': text} for text in ('red', 'blue')])
  vocab_file = annotated.write_vocabulary(tmp_path / 'vocab.txt')
  vocab_file.write_text(vocab_file.read_text() + '\u2028\n\nlast\n', newline='\n')
  _, made = annotated.convert(tmp_path / 'a.jsonl', tmp_path / 'out', CLASSIFICATION, vocab_file, validation_share=0.0)
  settings = config_text.load_file(str(tmp_path / 'out' / 'experiment.yaml'), '')
  assert settings['task']['model']['encoder']['bert']['vocab_size'] == vocab_file.read_text().count('\n')


@pytest.mark.tensorflow
def test_questions_of_one_id_are_numbered_anew(tmp_path):
  """Model Garden's evaluation keeps one prediction for each id."""
  questions = annotated.questions(30)
  for each in questions[::2]:
    each['id'] = 'one'
  (tmp_path / 'a.json').write_text(annotated.squad(questions))
  vocab_file = annotated.write_vocabulary(tmp_path / 'vocab.txt')
  _, made = annotated.convert(
    tmp_path / 'a.json', tmp_path / 'out', QUESTIONS, vocab_file, seq_length=24, query_length=8, validation_share=0.3
  )
  stored = json.loads((tmp_path / 'out' / 'questions_validation.json').read_text())['data']
  ids = [paragraph['qas'][0]['id'] for article in stored for paragraph in article['paragraphs']]
  assert len(set(ids)) == len(ids) == made.report['splits']['validation']['examples'] > 1
  assert '15 questions have the id of another one: all are numbered anew' in list(made.warnings())
  assert made.report['balance'][0]['found'] == made.report['balance'][0]['used'] == 30


@pytest.mark.tensorflow
def test_a_second_start_finds_its_shards_and_the_order_of_processes_does_not_matter(tmp_path):
  rows = annotated.winners(50)
  prepared_inputs.write_lines(tmp_path / 'a.jsonl', [{'text': text, 'label': label} for text, label in rows])
  vocab_file = annotated.write_vocabulary(tmp_path / 'vocab.txt')
  arguments = dict(seq_length=12, shard_bytes=500, validation_share=0.2)
  contents = []
  for name, reverse in (('one', False), ('two', True)):
    annotated.convert(tmp_path / 'a.jsonl', tmp_path / name, CLASSIFICATION, vocab_file, reverse=reverse, **arguments)
    contents.append({path.name: path.read_bytes() for path in (tmp_path / name).glob('*.tfrecord')})
  assert contents[0] == contents[1] and len(contents[0]) > 4
  done, _ = annotated.convert(tmp_path / 'a.jsonl', tmp_path / 'one', CLASSIFICATION, vocab_file, **arguments)
  assert done.num_there == len(contents[0])


@pytest.mark.parametrize(
  ('tokens', 'message'),
  [
    (['[PAD]', '[CLS]', '[SEP]'], r'vocab.txt: lacks \[UNK\]; expected the vocab.txt of a BERT checkpoint'),
    (['a', '[CLS]', '[SEP]', '[UNK]'], r'begins with a; rows are padded by 0, which must be \[PAD\]'),
  ],
)
def test_vocabularies_that_do_not_fit_are_refused(tokens, message, tmp_path):
  prepared_inputs.write_lines(tmp_path / 'a.jsonl', [{'text': 'a', 'label': 'a'}, {'text': 'b', 'label': 'b'}])
  (tmp_path / 'vocab.txt').write_text('\n'.join(tokens))
  with pytest.raises(errors.UserError, match=message):
    annotated.convert(tmp_path / 'a.jsonl', tmp_path / 'out', CLASSIFICATION, tmp_path / 'vocab.txt')


def test_a_class_of_several_lines_is_refused(tmp_path):
  prepared_inputs.write_lines(tmp_path / 'a.jsonl', [{'text': each, 'label': each} for each in ('good\nbad', 'other')])
  vocab_file = annotated.write_vocabulary(tmp_path / 'vocab.txt')
  with pytest.raises(errors.UserError, match=r"the class 'good\\nbad' is not one line, as labels.txt requires"):
    annotated.convert(tmp_path / 'a.jsonl', tmp_path / 'out', CLASSIFICATION, vocab_file)
  input_files.check_labels(['good\u2028bad'])


def test_one_class_and_bad_records_are_refused(tmp_path):
  vocab_file = annotated.write_vocabulary(tmp_path / 'vocab.txt')
  prepared_inputs.write_lines(tmp_path / 'a.jsonl', [{'text': 'a', 'label': 'a'}, {'text': '', 'label': 'b'}])
  with pytest.raises(errors.UserError, match='all texts have the class a; a classifier needs two'):
    annotated.convert(tmp_path / 'a.jsonl', tmp_path / 'out', CLASSIFICATION, vocab_file)
  with pytest.raises(errors.UserError, match='line 2: a text is empty; repair it, or give --on_bad_example=skip'):
    annotated.convert(tmp_path / 'a.jsonl', tmp_path / 'out', CLASSIFICATION, vocab_file, on_bad_example='error')
  with pytest.raises(errors.UserError, match='INPUT: .* holds no files for --for=tagging'):
    (tmp_path / 'empty').mkdir()
    annotated.convert(tmp_path / 'empty', tmp_path / 'out', TAGGING, vocab_file)
