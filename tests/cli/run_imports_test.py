"""official-ext runs import: the commands of its page, and what the other commands print about imported runs."""

import json
import re
import shlex

import pytest

from official_ext.cli import main as cli
from tests import documents
from tests.operations.imports import sources


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setenv('HOME', str(tmp_path))
  monkeypatch.chdir(tmp_path)


def run(capsys, *arguments):
  assert cli.main(['runs', *arguments]) == 0
  return capsys.readouterr().out


def test_the_commands_of_the_page(tmp_path, capsys):
  sources.write_tensorboard(tmp_path / 'logs/a/train', [(step, {'loss': 1.0 / step}) for step in (1, 2)])
  sources.write_tensorboard(tmp_path / 'logs/a/validation', [(2, {'accuracy': 0.75})])
  page = documents.read('docs/how_to/import_runs.md')
  commands = [shlex.split(line)[1:] for line in re.findall(r'^    (official-ext .*)$', page, re.MULTILINE)]
  assert len(commands) >= 4
  for command in commands:
    assert cli.main(command) == 0, command
  capsys.readouterr()
  assert [(each['name'], each['status']) for each in json.loads(run(capsys, 'list', 'runs', '--json'))] == [
    ('a', 'finished')
  ]


def test_commands_that_read_take_imported_runs(tmp_path, capsys):
  for name, value in (('a', 0.5), ('b', 0.75)):
    sources.write_tensorboard(tmp_path / 'logs' / name, [(1, {'train/loss': 1.0}), (2, {'eval/accuracy': value})])
  assert run(capsys, 'import', 'logs', '--to=runs').splitlines() == [
    'a: imported from TensorBoard, 2 values',
    'b: imported from TensorBoard, 2 values',
  ]
  assert run(capsys, 'import', 'logs', '--to=runs').splitlines()[0] == 'a: unchanged from TensorBoard'
  shown = run(capsys, 'show', 'runs', 'a')
  assert 'status       finished: imported; TensorBoard records no end' in shown
  assert f'imported     from tensorboard: {tmp_path}/logs/a' in shown and 'goodput' not in shown
  table = run(capsys, 'table', 'runs', '--metric=accuracy', '--group=folder')
  assert '0.62 ± 0.18' in table
  assert 'accuracy' in run(capsys, 'compare', 'runs', 'a', 'b')
  assert 'imported' in run(capsys, 'events', 'runs', 'a')
  run(capsys, 'report', 'runs', 'a', 'b')
  assert '<svg' in (tmp_path / 'report.html').read_text()
  run(capsys, 'export', 'runs', 'a', '--to=csv')
  assert 'accuracy' in (tmp_path / 'runs/a/events.csv').read_text()
  sql = "SELECT run, curve, step, value FROM metrics WHERE curve LIKE 'eval/%' ORDER BY run"
  found = json.loads(run(capsys, 'query', 'runs', sql, '--format=json'))
  assert [tuple(each.values()) for each in found] == [('a', 'eval/accuracy', 2, 0.5), ('b', 'eval/accuracy', 2, 0.75)]


def test_mistakes_are_lines(tmp_path, capsys):
  sources.write_tensorboard(tmp_path / 'logs/a', [(1, {'loss': 1.0})])
  (tmp_path / 'logs/b').mkdir()
  (tmp_path / 'logs/c').mkdir()
  (tmp_path / 'logs/b/events.out.tfevents.1').write_bytes(b'no events in it')
  for arguments, message in (
    (('logs', '--to=runs'), 'error: /.*/logs/b/events.out.tfevents.1: damaged at byte 0\n'),
    (('none', '--to=runs'), 'error: /.*/none: no such folder; .*\n'),
    (('gs://bucket/logs', '--to=runs'), 'error: SOURCE=gs://bucket/logs: this command takes local folders; .*\n'),
    (('logs/c', '--to=logs/a/events'), 'error: .*/logs/c: no runs of TensorBoard; .*\n'),
  ):
    assert cli.main(['runs', 'import', *arguments]) == 2
    assert re.fullmatch(message, capsys.readouterr().err)
  assert (tmp_path / 'runs/a/run.json').exists()
  assert cli.main(['runs', 'resume', 'runs', 'a']) == 2
  assert capsys.readouterr().err == (
    'error: a: was imported from tensorboard, and cannot be resumed; train a new run in another folder\n'
  )
