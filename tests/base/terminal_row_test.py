"""The row of a terminal that shows the progress of a command, and the lines of a file."""

import io
import time

import pytest

from official_ext.base import terminal_row


class Terminal(io.StringIO):
  def isatty(self):
    return True


@pytest.fixture
def clock(monkeypatch):
  """clock(seconds) lets time pass."""
  now = [0.0]
  monkeypatch.setenv('TERM', 'xterm')
  monkeypatch.setattr(time, 'monotonic', lambda: now[0])

  def advance(seconds):
    now[0] += seconds

  return advance


def test_a_terminal_has_one_row_and_keeps_the_last_one(clock):
  terminal = Terminal()
  with terminal_row.ProgressRow(terminal) as row:
    for share in ('10 %', '20 %', 'x' * 100):
      row.show(share)
      clock(0.3)
    row.show('40 %')
    row.show('41 %')  # A moment later.
    row.print('warning: a')
    row.show('100 %', is_last=True)
  text = terminal.getvalue()
  assert '10 %' not in text and '41 %' not in text  # At once nothing needs to be shown.
  assert '\r20 %\x1b[K' in text and f'\r{"x" * 79}\x1b[K' in text
  assert text.endswith('\r40 %\x1b[K\r\x1b[Kwarning: a\n100 %\n')


def test_a_file_has_lines_at_growing_intervals(clock):
  file = io.StringIO()
  with terminal_row.ProgressRow(file) as row:
    for second in range(1, 1001):
      clock(1.0)
      row.show(str(second))
    row.stage('not shown')
    row.show('end', is_last=True)
  *seconds, end = file.getvalue().splitlines()
  assert seconds[:3] == ['2', '4', '6'] and end == 'end' and 40 < len(seconds) < 120
  assert int(seconds[-1]) - int(seconds[-2]) > 40


def test_a_stage_shows_its_time_on_a_terminal_and_leaves_nothing(monkeypatch):
  monkeypatch.setenv('TERM', 'xterm')
  terminal = Terminal()
  with terminal_row.ProgressRow(terminal) as row:
    row.stage('1 of 2: loading')
    row.stage('2 of 2: writing')
    deadline = time.monotonic() + 20
    while '2 of 2: writing, 0:00:01' not in terminal.getvalue():
      assert time.monotonic() < deadline
      time.sleep(0.02)
  assert '\r1 of 2: loading, 0:00:00\x1b[K' in terminal.getvalue() and terminal.getvalue().endswith('\r\x1b[K')
