"""Rows of tokens as text: nothing is lost or doubled, special tokens are visible, learned tokens are marked."""

import numpy as np
import pytest

from official_ext.language.text import example_texts
from official_ext.language.text import token_rows
from tests.language.text import text_fixtures

cache, tokenizer = text_fixtures.cache, text_fixtures.tokenizer


def rows_of(tokenizer, texts, size, **options):
  """A batch of one row with all texts, each of (text, first learned token, end)."""
  tokens, learned, parts = [], [], []
  for text, start, end in texts:
    ids = tokenizer.encode(text, add_special_tokens=False)
    parts.append((len(tokens), len(tokens) + len(ids)))
    tokens += ids
    learned += [start <= number < end for number in range(len(ids))]
  arrays = np.array(tokens, np.int32), np.array(learned, np.uint8)
  (row,) = token_rows.lay_out(*arrays, [parts], size, tokenizer.fill_token_id, **options)
  return {name: values[np.newaxis] for name, values in row.items()}


@pytest.mark.parametrize('fills_left', [False, True])
def test_texts_of_a_row_are_apart_and_marked(tokenizer, fills_left):
  first, second = '<|im_start|>user\nhot\n<|im_end|>cold<|im_end|>', 'naïve 語 words'
  count = len(tokenizer.encode(first, add_special_tokens=False))
  answer = len(tokenizer.encode('cold<|im_end|>', add_special_tokens=False))
  batch = rows_of(tokenizer, [(first, count - answer, count), (second, 0, 0)], 96, fills_left=fills_left)
  (example,) = example_texts.examples_of_batch(batch, tokenizer)
  assert [example_texts.marked_plain(text.runs) for text in example.texts] == [
    '<|im_start|>user\nhot\n<|im_end|>⟦cold<|im_end|>⟧',
    second,
  ]
  assert (example.num_places, example.num_learned, example.texts[0].num_tokens) == (96, answer, count)
  assert [run.is_special for run in example.texts[0].runs] == [True, False, True, False, True]
  assert example_texts.marked_line(example.texts[0].runs, 1000).count('\\n') == 2
  assert '[... ' in example_texts.marked_line(example.texts[0].runs, 20)
  (unmarked,) = example_texts.examples_of_batch(batch, tokenizer, marks_learned=False)
  assert unmarked.num_learned == 0 and example_texts.marked_plain(unmarked.texts[0].runs) == first


def test_a_character_of_several_tokens_is_written_once_wherever_the_mark_begins(tokenizer):
  text = 'a語b🙂c'
  count = len(tokenizer.encode(text, add_special_tokens=False))
  assert count > len(text)  # Characters of several tokens.
  for start in range(1, count):
    (example,) = example_texts.examples_of_batch(rows_of(tokenizer, [(text, start, count)], 32), tokenizer)
    shown = example_texts.marked_plain(example.texts[0].runs)
    assert shown.replace('⟦', '').replace('⟧', '') == text and shown.endswith('⟧')


def test_control_characters_do_not_reach_a_terminal_or_a_page(tokenizer):
  text = 'x\x1b[31m<b>&'
  (example,) = example_texts.examples_of_batch(rows_of(tokenizer, [(text, 1, 99)], 32), tokenizer)
  runs = example.texts[0].runs
  assert '\x1b[31m' not in example_texts.marked_for_terminal(runs) and '\\x1b[31m' in example_texts.marked_plain(runs)
  page = example_texts.marked_page('title', ['line'], [('heading', example)])
  assert '&lt;b&gt;&amp;' in page and '<b>' not in page and '<mark>' in page


def test_answers_of_a_pair_have_names(tokenizer):
  one, other = (rows_of(tokenizer, [(text, 2, 99)], 16) for text in ('good one', 'bad'))
  batch = {f'{name}_{key}': row[key] for name, row in (('chosen', one), ('rejected', other)) for key in row}
  (example,) = example_texts.examples_of_batch(batch, tokenizer)
  assert [text.name for text in example.texts] == ['chosen', 'rejected'] and example.num_places == 32
  assert not example_texts.has_texts({'image': np.zeros(3)}) and not example_texts.has_texts(np.zeros(3))
