"""Tests of the benchmark of curves: without a browser, and small."""

from benchmarks import console_curves


def test_the_servers_part_is_measured_and_nothing_is_lost(tmp_path):
  console_curves.make(tmp_path / 'runs', 2, 2000)
  found = dict(console_curves.measure_server(str(tmp_path / 'runs'), str(tmp_path / 'cache')))
  assert len(found) == 6 and all(seconds > 0 for seconds in found.values())
  assert console_curves.check_marks(str(tmp_path / 'runs'), str(tmp_path / 'cache')).startswith(
    '1 spike and 1 NaN of 2000'
  )
