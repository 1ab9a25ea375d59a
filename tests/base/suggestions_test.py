"""The messages for unknown names."""

from official_ext.base import errors

KNOWN = ('dense', 'dropout', 'normalization')


def test_the_nearest_name_is_suggested():
  assert errors.nearest_names('dnese', KNOWN) == ['dense']
  assert errors.nearest_names('d', KNOWN) == [] and errors.nearest_names(7, KNOWN) == []
  assert errors.nearest_names('dense', ('dense', 'dense_1', 'other'), count=2) == ['dense', 'dense_1']


def test_the_part_of_a_message_has_what_parts_it_from_the_rest():
  assert errors.did_you_mean('dnese', KNOWN, before='; ', show=repr) == "; did you mean 'dense'?"
  assert errors.did_you_mean('dnese', KNOWN, after=' ') == 'did you mean dense? '
  assert errors.did_you_mean('?', KNOWN, before='; ', after=' ') == ''
  assert errors.did_you_mean('?', KNOWN, 'there are three', before='; ') == 'there are three'
