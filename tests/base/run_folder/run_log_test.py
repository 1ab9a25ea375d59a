"""The copy of a run's output in run.log: the text of streams in memory, and of processes with redirected output."""

import io
import os
import pathlib
import subprocess
import sys
import threading
import time

from absl import logging
import pytest

from official_ext.base import errors
from official_ext.base.run_folder import run_log

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture
def patched(monkeypatch):
  """patched() -> the text of both streams from then on, in memory. Pytest replaces them before a test, too."""

  def patch():
    stream = io.StringIO()
    monkeypatch.setattr(sys, 'stdout', stream)
    monkeypatch.setattr(sys, 'stderr', stream)
    return stream

  return patch


def lines_of(path):
  return path.read_text().splitlines()


def test_lines_before_and_after_the_beginning_are_kept_below_a_header_with_the_attempt(tmp_path, patched):
  screen = patched()
  for attempt in (1, 2):
    with run_log.copying():
      print('Devices:', attempt)
      print('a warning', file=sys.stderr)
      assert attempt == 2 or not (tmp_path / 'run.log').exists()
      run_log.begin(str(tmp_path), 'train_and_eval', attempt, keeps=True)
      print('in ', end='')
      print('between', file=sys.stderr)
      print('pieces')
      print('no end', end='')
    assert sys.stdout is screen
  found = lines_of(tmp_path / 'run.log')
  assert [found[0].partition('] ')[2].partition(':')[0], found[6].partition('] ')[2].partition(':')[0]] == [
    'attempt 1',
    'attempt 2',
  ]
  assert found[1:6] == ['Devices: 1', 'a warning', 'between', 'in pieces', 'no end']
  assert found[7] == 'Devices: 2' and len(found) == 12
  assert screen.getvalue() == ''.join(
    f'Devices: {attempt}\na warning\nin between\npieces\nno end' for attempt in (1, 2)
  )


def test_an_evaluation_has_a_separate_file_and_a_refused_run_none(tmp_path, patched):
  patched()
  with run_log.copying():
    run_log.begin(str(tmp_path), 'eval', 1, keeps=True)
    print('evaluated')
  with run_log.copying():
    print('refused')
  with run_log.copying():  # A worker that is not the chief.
    run_log.begin(str(tmp_path), 'train', 1, keeps=False)
    print('another worker')
  with run_log.copying():
    run_log.begin('gs://bucket/run', 'train', 1, keeps=True)
    print('remote')
  assert [path.name for path in tmp_path.iterdir()] == ['run.eval.log']
  assert lines_of(tmp_path / 'run.eval.log')[1:] == ['evaluated']


def test_rows_that_are_drawn_again_and_colours_are_left_out(tmp_path, patched):
  screen = patched()
  with run_log.copying():
    run_log.begin(str(tmp_path), 'train', 1, keeps=True)
    for percent in (10, 50, 100):
      sys.stdout.write(f'\r{percent}%|##  |')
    print()
    print('\x1b[31mred\x1b[0m \x1b]0;title\x07and plain\r')
    sys.stdout.write_as('broken\n  in rows\n', 'broken in rows\n')
  assert lines_of(tmp_path / 'run.log')[1:] == ['100%|##  |', 'red and plain', 'broken in rows']
  assert '\x1b[31mred' in screen.getvalue() and 'broken\n  in rows\n' in screen.getvalue()


def test_secrets_are_masked_in_the_file_even_across_pieces(tmp_path, patched, monkeypatch):
  patched()
  monkeypatch.setattr(sys, 'argv', ['train.py', '--set=trainer.mlflow.tracking_uri=http://me:hunter22@host'])
  with run_log.copying():
    run_log.begin(str(tmp_path), 'train', 1, keeps=True)
    sys.stdout.write('to http://me:')
    sys.stdout.write('hunter22@host\n')
  text = (tmp_path / 'run.log').read_text()
  assert 'hunter22' not in text and text.count('http://me:***@host') == 2


def test_logs_and_the_error_that_ends_a_run_are_kept(tmp_path, patched):
  patched()
  for error in (errors.DivergedError('11 updates were skipped'), RuntimeError('broken')):
    with pytest.raises(type(error)), run_log.copying():
      run_log.begin(str(tmp_path), 'train', 1, keeps=True)
      raise error
  assert lines_of(tmp_path / 'run.log')[1::2] == ['error: 11 updates were skipped', 'error: RuntimeError: broken']
  handler = logging.get_absl_handler().python_handler
  before = handler.stream
  handler.stream = sys.stderr
  try:
    with run_log.copying():
      run_log.begin(str(tmp_path), 'train', 1, keeps=True)
      handler.stream.write('a log\n')
    assert handler.stream is sys.stderr
  finally:
    handler.stream = before
  assert lines_of(tmp_path / 'run.log')[-1] == 'a log'


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path, patched):
  screen = patched()
  (tmp_path / 'run.log').mkdir()
  with run_log.copying():
    run_log.begin(str(tmp_path), 'train', 1, keeps=True)
    print('trained')
  assert screen.getvalue() == (
    f'warning: {tmp_path}/run.log: cannot be written: Is a directory; move it away, to keep the output\ntrained\n'
  )


class _Slow(str):
  """A text whose addition to another takes long."""

  def __radd__(self, other):
    time.sleep(0.5)
    return f'{other}{self}'


def test_pieces_of_threads_are_joined_in_their_order():
  lines, stream = [], io.StringIO()
  copied = run_log.CopiedStream(stream, lines.append)
  thread = threading.Thread(target=copied.write, args=(_Slow('first '),))
  thread.start()
  while not stream.getvalue():
    time.sleep(0.001)
  copied.write('second\n')
  thread.join()
  assert (lines, stream.getvalue()) == (['first second'], 'first second\n')


_FORK = """
import os, signal, sys, threading
from official_ext.base.run_folder import run_log
with run_log.copying():
  run_log.begin(sys.argv[1], 'train', 1, keeps=True)
  held, end = threading.Event(), threading.Event()
  def hold():
    with run_log._lock:
      held.set()
      end.wait()
  thread = threading.Thread(target=hold)
  thread.start()
  held.wait()
  child = os.fork()
  if not child:
    signal.alarm(10)
    print('of the child')
    os._exit(0)
  status = os.waitpid(child, 0)[1]
  end.set()
  thread.join()
sys.exit(status != 0)
"""


def test_a_forked_process_prints_although_a_thread_held_the_lock(tmp_path):
  subprocess.run([sys.executable, '-c', _FORK, tmp_path], cwd=ROOT, check=True)
  assert lines_of(tmp_path / 'run.log')[-1] == 'of the child'


_CODE = """
import sys
from official_ext.base.run_folder import run_log
with run_log.copying():
  run_log.begin(sys.argv[1], 'train', 1, keeps=True)
  print('once')
"""
# A launcher, whose worker prints into a pipe and has the launcher print it.
_LAUNCHER = """
import os, subprocess, sys
from official_ext.base import launcher
words = [sys.executable, '-c', sys.argv[2], sys.argv[1]]
done = subprocess.run(words, env={**os.environ, **launcher.worker_environment()}, stdout=subprocess.PIPE, text=True)
print('[0]', done.stdout, end='')
"""


@pytest.mark.parametrize(
  'redirection, code, expected',
  [
    ('>>"$3/run.log" 2>&1', _CODE, ['once']),
    ('2>>"$3/run.log"', _CODE, []),
    ('>"$3/mine.txt"', _CODE, ['once']),
    ('>>"$3/run.log" 2>&1', _LAUNCHER, ['[0] once']),
    ('2>&1 | tee -a "$3/run.log"', _CODE, ['once']),
    ('2>&1 | tee -a "$3/mine.txt"', _CODE, ['once']),
  ],
)
def test_output_that_is_in_the_file_already_is_not_written_twice(tmp_path, redirection, code, expected):
  words = ['sh', '-c', f'"$1" -c "$2" "$3" "$4" {redirection}', 'sh', sys.executable, code, str(tmp_path), _CODE]
  subprocess.run(words, check=True, cwd=ROOT, env={**os.environ, 'PYTHONPATH': str(ROOT)})
  lines = lines_of(tmp_path / 'run.log')
  assert [line for line in lines if 'attempt 1' not in line] == expected
  assert any('attempt 1' in line for line in lines) == ('mine' in redirection)
