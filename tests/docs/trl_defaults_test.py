"""docs/reference/trl_defaults.md: the defaults in it are TRL's and this library's."""

import dataclasses
import re
import types

import pytest
import yaml

from official_ext.training.config import parser
import registry_imports  # noqa: F401
from tests import documents

pytest.importorskip('trl', reason="needs the test extra: pip install 'official-ext[test]'")
import trl
from trl.experimental import cpo
from trl.experimental import kto

PAGE = documents.read('docs/reference/trl_defaults.md')
CLASSES = {'sft': trl.SFTConfig, 'preference': trl.DPOConfig, 'reward_model': trl.RewardConfig, 'grpo': trl.GRPOConfig}
# `loss_type` of `preference` -> its class, of which the page has what DPOConfig has not, or has otherwise.
METHODS = {'kto': kto.KTOConfig, 'cpo': cpo.CPOConfig}


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
        experiment = title.rpartition('=' if '=' in title else ' and ')[2].strip('`')
        known = METHODS if experiment in METHODS else CLASSES
        of_method = f'preference` with `loss_type={experiment}' if experiment in METHODS else experiment
        assert title == f'{known[experiment].__name__} and `{of_method}`'
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
  return default_in((METHODS if experiment in METHODS else CLASSES)[experiment], name)


def default_in(config_class, name):
  field = config_class.__dataclass_fields__[name]
  found = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
  found = getattr(found, 'value', found)  # Of an enumeration.
  return float(found) if type(found) in (int, float) else found


@pytest.fixture(scope='module')
def own():
  parse = lambda name: parser.parse_configuration(types.SimpleNamespace(experiment=name)).as_dict()
  found = {experiment: parse(experiment) for experiment in CLASSES}
  return found | dict.fromkeys(METHODS, found['preference'])


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


@pytest.mark.parametrize('method', METHODS)
def test_the_tables_of_methods_have_what_dpo_has_not(method):
  listed = set(re.findall(r'`(\w+)`', PAGE.partition('## Not compared')[2]))
  named = [row[1] for row in ROWS if row[0] == method]
  fields = {field.name for field in dataclasses.fields(METHODS[method])}
  of_dpo = {field.name for field in dataclasses.fields(trl.DPOConfig)}
  same = {name for name in fields & of_dpo if default_in(METHODS[method], name) == default_in(trl.DPOConfig, name)}
  assert len(named) == len(set(named)) and set(named) <= fields
  assert fields - same - listed <= set(named), sorted(fields - same - listed - set(named))


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
