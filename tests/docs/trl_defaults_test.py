"""docs/reference/trl_defaults.md: the defaults in it are TRL's and this library's."""

import dataclasses
import re
import types

import pytest
import yaml

from official_ext.training.config import parser
import registry_imports  # noqa: F401
from tests import documents

trl = pytest.importorskip('trl', reason="needs the test extra: pip install 'official-ext[test]'")
PAGE = documents.read('docs/reference/trl_defaults.md')
CLASSES = {'sft': trl.SFTConfig, 'preference': trl.DPOConfig, 'reward_model': trl.RewardConfig, 'grpo': trl.GRPOConfig}


def rows():
  """(experiment, TRL's field, its default, the field here, its default, the reason) of each experiment in each row."""
  for title, body in re.findall(r'^## (.*)\n\n((?:\|.*\n)+)', PAGE, re.MULTILINE):
    header, _, *lines = ([cell.strip().strip('`') for cell in line.split('|')[1:-1]] for line in body.splitlines())
    for line in lines:
      name, default, path, reason = *line[:3], line[-1]
      if title == 'All four':
        for experiment, value in zip(header[3:-1], line[3:-1], strict=True):
          yield experiment, name, default, path, value, reason
      else:
        experiment = title.rpartition(' and ')[2].strip('`')
        assert title == f'{CLASSES[experiment].__name__} and `{experiment}`'
        yield experiment, name, default, path, line[3], reason


ROWS = list(rows())


def value_of(text):
  """The value of a cell; a number is one however it is written."""
  value = '-' if text == '-' else yaml.safe_load(text)
  try:
    return float(value) if not isinstance(value, bool) else value
  except (TypeError, ValueError):
    return value


def default_of(experiment, name):
  field = CLASSES[experiment].__dataclass_fields__[name]
  found = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
  found = getattr(found, 'value', found)  # Of an enumeration.
  return float(found) if type(found) in (int, float) else found


@pytest.fixture(scope='module')
def own():
  parse = lambda name: parser.parse_configuration(types.SimpleNamespace(experiment=name)).as_dict()
  return {experiment: parse(experiment) for experiment in CLASSES}


def test_the_table_has_each_of_trls_fields_once():
  listed = set(re.findall(r'`(\w+)`', PAGE.partition('## Not compared')[2]))
  everything = set()
  for experiment, config_class in CLASSES.items():
    named = [row[1] for row in ROWS if row[0] == experiment]
    fields = {field.name for field in dataclasses.fields(config_class)}
    assert len(named) == len(set(named)) and set(named) <= fields and not listed & set(named)
    assert fields - set(named) <= listed, sorted(fields - set(named) - listed)
    everything |= fields
  assert listed <= everything


def test_the_column_of_trl_is_true():
  for experiment, name, default, *_ in ROWS:
    assert value_of(default) == default_of(experiment, name), (experiment, name)


def test_the_columns_of_this_library_are_true(own):
  for experiment, name, _, path, value, _ in ROWS:
    if path == '-':
      assert value == '-', (experiment, name)
      continue
    found = own[experiment]
    for part in path.split('.'):
      found = found.get(part, '-') if isinstance(found, dict) else '-'
    found = float(found) if type(found) in (int, float) else found
    assert value_of(value) == (list(found) if isinstance(found, tuple) else found), (experiment, name)


def test_each_difference_has_a_reason():
  compared = 0
  for experiment, name, default, _, value, reason in ROWS:
    compared += value_of(value) == value_of(default)
    assert reason or value_of(value) == value_of(default), (experiment, name)
  assert compared > 20


def test_the_version_is_the_tested_one():
  assert f'Values are those of TRL {trl.__version__.rpartition(".")[0]}.' in PAGE
