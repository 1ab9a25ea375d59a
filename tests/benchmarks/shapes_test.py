"""benchmarks/shapes: records and their table; the rule's choice beside the measurements."""

import pytest

from benchmarks import all_experiments
from benchmarks.shapes import __main__ as shapes
from benchmarks.shapes import records
from official_ext.training.step import step_plan

MEASURED = records.read(shapes.RECORDS)
# The known loss of the rule. A step of PPO runs alone, as its rollouts need: over the experiments, XLA's program of
# one step takes from 0.7 to 1.5 times the graph's time, and no trait predicts it.
KNOWN = {'reinforcement': 0.25}


def test_every_experiment_was_measured():
  assert set(MEASURED) == set(all_experiments.names()) - set(shapes.OWN_LOOPS)


@pytest.mark.parametrize('name', MEASURED)
def test_the_rule_still_picks_what_was_measured_and_that_was_nearly_the_fastest(name):
  """Within 10 % of the fastest. If it fails for another rule, measure again."""
  record = MEASURED[name]
  plan = step_plan.choose_plan(step_plan.StepTraits(**record['traits']), **record['arguments'])
  assert str(plan).startswith(f'{record["plan"]}:') and records.loss(record) <= KNOWN.get(name, 0.1)


def test_the_table_has_a_column_for_each_execution_and_the_loss_by_the_rule():
  record = {'plan': 'fused', 'milliseconds': {records.RULE: 1.5, 'graph': 3.0, 'xla': 1.0}}
  other = {'plan': 'plain', 'milliseconds': {records.RULE: 2.0, 'xla, 8 steps': 4.0}}
  assert records.loss(record) == 0.5 and records.loss(other) == 0
  header, _, *rows = records.table({'one': record, 'two': other})
  assert header.count('|') == rows[0].count('|') == rows[1].count('|')
  assert rows == ['| one | 1.5 | 3 | 1 |  | 50% | fused |', '| two | 2 |  |  | 4 | 0% | plain |']


def test_records_are_read_as_they_were_written(tmp_path):
  path = tmp_path / 'shapes.json'
  assert records.read(path) == {}
  records.write(path, {'b': {'plan': 'plain'}, 'a': {'plan': 'fused'}})
  assert list(records.read(path)) == ['a', 'b'] and records.read(path)['b'] == {'plan': 'plain'}
