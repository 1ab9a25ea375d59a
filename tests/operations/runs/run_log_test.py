"""Tests for log and harmless_text."""

import threading
import time

import pytest

from official_ext.base import safe_text
from official_ext.operations.runs import run_processes


@pytest.mark.parametrize(
  'text,expected',
  [
    ('plain Größe 模型 🙂', 'plain Größe 模型 🙂'),
    ('\x1b[31mred\x1b]0;title\x07', '\\x1b[31mred\\x1b]0;title\\x07'),
    ('a\nb\tc\r', 'a\\nb\\tc\\r'),
    ('\u202egnp.exe', '\\u202egnp.exe'),
    ('\x9b31m', '\\x9b31m'),
    ('a\u2028b\udcff', 'a\\u2028b\\udcff'),
    (3, '3'),
  ],
)
def test_nothing_moves_the_cursor_or_hides(text, expected):
  assert safe_text.printable(text) == expected


def test_the_tail_of_a_log_is_read_from_its_end(tmp_path):
  path = tmp_path / 'run.log'
  path.write_bytes(b'x' * (3 << 20) + b'\nold\rnew \x1b[1m\ta\xff\nlast')
  assert run_processes.file_tail(str(path), 2) == ['new \\x1b[1m\ta\ufffd', 'last']
  assert run_processes.file_tail(str(path), 0) == []
  assert run_processes.file_tail(str(tmp_path / 'none'), 5) == []
  path.write_bytes(b'\n\n')
  assert run_processes.file_tail(str(path), 5) == []


def test_following_ends_with_the_run_and_misses_nothing(tmp_path):
  path, over = tmp_path / 'run.log', threading.Event()
  path.write_text('before\n')
  found = []
  reader = threading.Thread(target=lambda: found.extend(run_processes.follow_file(str(path), over.is_set, 0.01)))
  reader.start()
  time.sleep(0.1)
  with open(path, 'a') as file:
    for number in range(100):
      file.write(f'line {number}\n'[:5])
      file.flush()
      file.write(f'line {number}\n'[5:])
    file.write('no end')
  over.set()
  reader.join(30)
  assert found == [*(f'line {number}' for number in range(100)), 'no end']


def test_what_comes_between_the_look_at_the_end_and_the_following_is_not_lost(tmp_path):
  path = tmp_path / 'run.log'
  path.write_text('a\nb\ntorn')
  lines, place, _ = run_processes.lines_since(str(path), None, 1)
  assert lines == ['b']
  with open(path, 'a') as file:
    file.write(' no more\nc\n')
  assert list(run_processes.follow_file(str(path), lambda: True, place=place)) == ['torn no more', 'c']


def test_the_end_of_a_file_may_begin_after_what_was_there(tmp_path):
  path = tmp_path / 'log'
  path.write_text('earlier\n')
  begin = path.stat().st_size
  assert run_processes.file_tail(str(path), 20, begin) == []
  with open(path, 'a') as file:
    file.write('x' * (1 << 20) + '\nlater\nlast\n')
  assert run_processes.file_tail(str(path), 2, begin) == ['later', 'last']
  assert run_processes.file_tail(str(path), 20)[-1] == 'last'
