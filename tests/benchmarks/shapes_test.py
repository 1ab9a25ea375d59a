"""benchmarks/shapes: records and their table."""

from benchmarks.shapes import records


def test_the_table_has_a_column_for_each_execution_and_says_what_the_rule_loses():
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
