"""official-ext runs query: its formats, and the commands of its page."""

import csv
import io
import json
import re
import shlex

import pytest

from official_ext.cli import main as cli
from tests import documents
from tests.operations.runs import folders
from tests.operations.runs.folders import event


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for number, rate in enumerate((0.5, 0.25)):
    events = [event('eval', step, accuracy=(step - 10 * number) / 100) for step in (20, 40)]
    folders.make(
      'runs', f'=run|{number}', events, rate=rate, identity=folders.ended_process(), status='finished', step=40
    )


def query(capsys, *arguments):
  cli.main(['runs', 'query', 'runs', *arguments])
  return capsys.readouterr().out


def test_formats(capsys, monkeypatch):
  sql = "SELECT name, step, [1, 2] AS l, 'NaN'::double AS x, NULL AS y FROM runs ORDER BY name"
  head, *lines = query(capsys, sql).splitlines()
  assert head.split() == ['name', 'step', 'l', 'x', 'y'] and lines[0].split() == ['=run|0', '40', '1,2', 'nan', '-']
  assert query(capsys, sql, '--format=markdown').splitlines()[2] == '| =run\\|0 | 40 | 1,2 | nan | - |'
  rows = list(csv.reader(io.StringIO(query(capsys, sql, '--format=csv'))))
  assert rows[1] == ["'=run|0", '40', '1,2', 'nan', '']  # A spreadsheet would compute it.
  found = json.loads(query(capsys, sql, '--format=json'))
  assert found[1] == {'name': '=run|1', 'step': 40, 'l': '1,2', 'x': 'NaN', 'y': None}
  monkeypatch.setattr('sys.stdin', io.StringIO('SELECT count(*) AS n FROM runs'))
  assert json.loads(query(capsys, '-', '--format=json')) == [{'n': 2}]


def test_the_commands_of_the_page(capsys):
  page = documents.read('docs/how_to/query_runs.md')
  commands = [
    shlex.split(text)[1:] for text in re.findall(r'^    (official-ext (?:.|\n(?=      ))*)$', page, re.MULTILINE)
  ]
  assert len(commands) == 2
  for command in commands:
    cli.main(command)
  *_, first, second = capsys.readouterr().out.splitlines()
  assert first == '| =run\\|0 | 0.5 | 0.4 | 40 |' and second == '| =run\\|1 | 0.25 | 0.3 | 40 |'
