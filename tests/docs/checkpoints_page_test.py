"""docs/how_to/checkpoints.md names experiments, backbones and parts that Model Garden has."""

import re

from official.common import registry_imports  # noqa: F401  Model Garden's experiments.
from official.core import exp_factory
from official.vision.modeling.backbones import resnet
from official.vision.modeling.backbones import spinenet
from official.vision.modeling.backbones import spinenet_mobile
from official.vision.modeling.backbones import vit_specs
import pytest
import yaml

from official_ext.training.config import parser
from tests import documents

PAGE = documents.read('docs/how_to/checkpoints.md')
SIZES = {
  'resnet': ('model_id', resnet.RESNET_SPECS),
  'spinenet': ('model_id', spinenet.SCALING_MAP),
  'spinenet_mobile': ('model_id', spinenet_mobile.SCALING_MAP),
  'vit': ('model_name', vit_specs.VIT_SPECS),
}


def cells(line):
  return [cell.strip() for cell in line.strip().strip('|').split('|')]


def rows():
  """Rows of the tables that name an experiment, as dictionaries by the header."""
  found = []
  for table in re.findall(r'(?:^\|.*\n)+', PAGE, re.MULTILINE):
    header, _, *lines = table.splitlines()
    names = [name.strip('`') for name in cells(header)]
    if 'experiment' in names or 'experiments' in names:
      found += [dict(zip(names, cells(line), strict=True)) for line in lines]
  return found


def experiments(row):
  return re.findall(r'`([^`]+)`', row.get('experiment') or row['experiments'])


PUBLISHED = [row for row in rows() if 'experiment' in row]
DEFAULTS = [row for row in rows() if 'task.init_checkpoint' in row]


def modules(row):
  return yaml.safe_load(row.get('init_checkpoint_modules', '`backbone`').strip('`'))


def test_the_page_lists_checkpoints():
  assert len(PUBLISHED) >= 20 and len(DEFAULTS) == 4


@pytest.mark.parametrize('row', PUBLISHED, ids=lambda row: row['model'])
def test_a_published_checkpoint_fits_its_experiment(row):
  (name,) = experiments(row)
  params = exp_factory.get_exp_config(name)
  default = params.task.model.backbone.as_dict()
  words, remark = re.fullmatch(r'`([^`]+)`(?:, (.*))?', row['task.model.backbone']).groups()
  given = yaml.safe_load(words)
  given = {given: {}} if isinstance(given, str) else given
  ((kind, values),) = given.items()
  assert kind == default['type']
  params.task.model.backbone.override({kind: values}, is_strict=True)
  found = params.task.model.backbone.as_dict()
  assert (found == default) == (remark in ('defaults', 'the default'))
  field, known = SIZES.get(kind, ('', {}))
  if field:
    assert found[kind][field] in known
  if 'decoder' in modules(row):
    assert params.task.model.decoder.type != 'identity'


@pytest.mark.parametrize('row', DEFAULTS, ids=lambda row: row['experiments'][:30])
def test_defaults_are_those_of_the_experiments(row):
  path = row['task.init_checkpoint'].strip('`')
  if path == 'the same':
    path = DEFAULTS[DEFAULTS.index(row) - 1]['task.init_checkpoint'].strip('`')
  for name in experiments(row):
    task = exp_factory.get_exp_config(name).task
    assert task.init_checkpoint == path and task.init_checkpoint_modules == modules(row)


@pytest.mark.slow
def test_no_default_is_missing():
  """Of the experiments on images: each `task.init_checkpoint` that Model Garden sets is on the page."""
  named = {name for row in DEFAULTS for name in experiments(row)}
  found = set()
  for name in parser.experiment_names():
    config = exp_factory.get_exp_config(name)
    if type(config.task).__module__.startswith('official.vision.configs') and config.task.init_checkpoint:
      found.add(name)
  assert found == named
