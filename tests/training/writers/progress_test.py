"""Tests for progress: processes whose output is a pipe, and a pseudo-terminal."""

import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import textwrap

import pytest

from official_ext.base.run_folder import run_log
from official_ext.training.writers import progress
from tests import tiers
from tests import train_processes

_CODE = textwrap.dedent("""
  import sys
  from official_ext.training.writers import progress
  writer = progress.ProgressWriter(200, bar=sys.argv[1] == 'bar')
  writer.write('start', 0, {'mode': 'train', 'devices': '1 replica on CPU:0', 'array': [1, 2]})
  for step in (50, 100):
    writer.write('train', step, {
        'training_loss': 2.0 / step, 'accuracy': 0.5, 'learning_rate': 1e-3, 'steps_per_second': 512.34,
        'examples_per_second': 9.0, 'data_wait': 0.1, 'percent': step / 2, 'eta_seconds': 3661.0})
  writer.write('eval', 100, {'validation_loss': float('nan'), 'set': {'accuracy': 0.97531}})
  if sys.argv[2] == 'close':
    writer.close()
""")


@pytest.fixture
def on_terminal(train_server, tmp_path):
  """on_terminal(bar, close='close', columns=120): the code's output on a pseudo-terminal, escape sequences included.

  A forked process ends without Python's exit functions, on which the code relies if it does not close the writer.
  """
  script = tmp_path / 'script.py'
  script.write_text(_CODE)

  def run(bar, close='close', columns=120):
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack('HHHH', 24, columns, 0, 0))
    environment = {'COLUMNS': None, 'LINES': None, 'TERM': 'xterm'}
    if close == 'close':
      process = train_server().start([bar, close], os.ttyname(child), tmp_path / 'stderr', environment, script=script)
    else:
      with open(tmp_path / 'stderr', 'wb') as stderr:
        process = subprocess.Popen(
          [sys.executable, script, bar, close],
          stdout=child,
          stderr=stderr,
          env=train_processes.environment(environment),
        )
    output, status = b'', None
    while status is None:  # Its last output is available when its end is known.
      status = process.poll()
      while select.select([parent], [], [], 0.05)[0]:
        output += os.read(parent, 65536)
    os.close(child)
    os.close(parent)
    assert status == 0, (tmp_path / 'stderr').read_text()
    return output.decode()

  return run


def _screen(output):
  """The rows that a terminal has in the end, above and on its screen: of what is printed, redrawn and erased."""
  rows, column = [''], 0
  for part in re.findall(r'\x1b\[K|[\r\n]|[^\x1b\r\n]+', output):
    if part == '\n':
      rows.append('')
    elif part == '\x1b[K':
      rows[-1] = rows[-1][:column]
    elif part != '\r':
      rows[-1] = rows[-1][:column] + part + rows[-1][column + len(part) :]
    column = 0 if part in '\r\n' else column + len(part) * (part != '\x1b[K')
  assert '\x1b' not in ''.join(rows)
  return rows


LINES = [
  'start 0/200  mode train',
  'train 50/200 25% 512 steps/s eta 1:01:01  training_loss 0.04  accuracy 0.5  learning_rate 0.001',
  'train 100/200 50% 512 steps/s eta 1:01:01  training_loss 0.02  accuracy 0.5  learning_rate 0.001',
  'eval 100/200  validation_loss nan  set/accuracy 0.9753',
]


def test_plain_lines_in_a_pipe(start_script):
  process = start_script(_CODE, ['bar', 'close']).finish()
  assert process.returncode == 0, process.stderr
  assert process.stdout.splitlines() == LINES
  assert '\x1b' not in process.stdout


def test_plain_lines_on_a_terminal_without_the_bar(on_terminal):
  assert on_terminal('lines').splitlines() == LINES


def test_a_terminal_keeps_the_lines_above_the_bar(on_terminal):
  output = on_terminal('bar')
  assert _screen(output) == [*LINES, '']
  bars = re.findall('━[^\r\n\x1b]*', output)
  # Redrawn below each line.
  assert bars[-1] == '━━━━━━━━──────── 100/200 50% 512 steps/s eta 1:01:01'
  assert [bar.split()[1] for bar in bars] == ['50/200', '50/200', '100/200', '100/200', '100/200']


@pytest.mark.parametrize('columns', [50, 100])
def test_values_are_whole_on_a_narrow_terminal(columns, on_terminal):
  output = on_terminal('bar', columns=columns)
  rows = _screen(output)
  assert ' '.join(rows).split() == ' '.join(LINES).split()
  names = [re.sub(r'^ {4}', '', row).split('  ')[0].split()[0] for row in rows if row]
  assert set(names) <= {'start', 'mode', 'train', 'eval', 'training_loss', 'accuracy', 'learning_rate', 'set/accuracy'}
  assert all(len(row) <= columns for row in rows)
  assert all(len(bar) < columns for bar in re.findall('[━─][^\r\n\x1b]*', output))


@tiers.parametrize('close', ['close', 'forget'], fast=1)
def test_no_bar_is_left_in_the_end(close, on_terminal):
  assert _screen(on_terminal('bar', close))[-1] == ''


def test_lines_of_others_stand_above_the_bar_and_a_log_gets_whole_lines(monkeypatch):
  class Terminal(io.StringIO):
    def isatty(self):
      return True

  monkeypatch.setenv('TERM', 'xterm')
  terminal, log = Terminal(), []
  copied = run_log.CopiedStream(terminal, log.append)
  monkeypatch.setattr(sys, 'stdout', copied)
  monkeypatch.setattr(sys, 'stderr', copied)
  writer = progress.ProgressWriter(200, stream=sys.stdout)
  values = {f'metric_number_{number}': 0.5 for number in range(6)}
  writer.write('train', 100, values)
  print('in ', end='')
  print('pieces')
  print('a warning', file=sys.stderr)
  writer.close()
  assert sys.stdout is copied and sys.stderr is copied
  parts = ['train 100/200 50%', *(f'{name} 0.5' for name in values)]
  assert log == ['  '.join(parts), 'in pieces', 'a warning']
  assert len('  '.join(parts[:4])) == 80
  assert _screen(terminal.getvalue()) == ['  '.join(parts[:4]), '    ' + '  '.join(parts[4:]), *log[1:], '']


def test_a_terminal_that_cannot_draw_gets_lines(monkeypatch):
  class Terminal(io.StringIO):
    def isatty(self):
      return True

  monkeypatch.setenv('TERM', 'dumb')
  stream = Terminal()
  progress.ProgressWriter(200, stream=stream).write('eval', 100, {'accuracy': 1.0})
  assert stream.getvalue() == 'eval 100/200  accuracy 1\n'


def test_completions_are_shown_by_the_first_one():
  stream = io.StringIO()
  writer = progress.ProgressWriter(200, stream=stream)
  writer.write(
    'completions', 50, {'prompts': ['x' * 999 + '?', 'b'], 'completions': ['it\nis', 'c'], 'advantages': [1.0, 2.0]}
  )
  writer.write('completions', 60, {'prompts': [], 'completions': []})
  assert stream.getvalue().splitlines() == [
    f"completions 50/200  1 of 2: '...{'x' * 199}?' -> 'it\\nis'",
    'completions 60/200',
  ]


def test_tokens_are_beside_the_rate_of_steps():
  stream = io.StringIO()
  values = {'steps_per_second': 2.0, 'tokens_per_second': 4096.4, 'learned_tokens_per_second': 1000.0}
  for names in (list(values), list(values)[:2]):
    progress.ProgressWriter(200, stream=stream).write('train', 50, {name: values[name] for name in names})
  assert [line.partition('% ')[2] for line in stream.getvalue().splitlines()] == [
    '2 steps/s 4096 tokens/s (1000 learned)',
    '2 steps/s 4096 tokens/s',
  ]


def test_without_training_there_is_no_percent():
  stream = io.StringIO()
  writer = progress.ProgressWriter(0, stream=stream)
  writer.write('eval', 7, {'validation_loss': 1.0})
  writer.close()
  assert stream.getvalue() == 'eval step 7  validation_loss 1\n'


def test_what_is_missing_is_left_out():
  stream = io.StringIO()
  writer = progress.ProgressWriter(8, stream=stream)
  writer.write('train', 2, {'eta_seconds': float('inf')})
  writer.write('train', 4, {'steps_per_second': 1.2345})
  assert stream.getvalue().splitlines() == ['train 2/8 25%', 'train 4/8 50% 1.23 steps/s']


def test_what_is_no_metric_is_printed_in_words():
  stream = io.StringIO()
  writer = progress.ProgressWriter(8, stream=stream)
  writer.write('restored', 2, {'checkpoint': 'run/ckpt-2'})
  for shape, jit_compile, steps in (('plain', False, 1), ('fused', True, 4)):
    writer.write(
      'compiled',
      4,
      {
        'step_shape': shape,
        'jit_compile': jit_compile,
        'steps_per_execution': steps,
        'reason': 'because',
        'seconds': 1.26,
      },
    )
  writer.write('checkpoint', 4, {'checkpoint': 'run/ckpt-4', 'stall_seconds': 0.1})
  assert stream.getvalue().splitlines() == [
    'restored 2/8  run/ckpt-2',
    'compiled 4/8  plain, no XLA: because (1.3 s)',
    'compiled 4/8  fused, XLA, 4 steps a program: because (1.3 s)',
    'checkpoint 4/8  run/ckpt-4',
  ]


def test_the_length_of_training_may_become_known_later():
  stream = io.StringIO()
  writer = progress.ProgressWriter(100, stream=stream)
  writer.write('train', 10, {'loss': 0.5, 'train_steps': 40, 'percent': 25.0})
  writer.write('finished', 40, {})
  assert stream.getvalue() == 'train 10/40 25%  loss 0.5\nfinished 40/40\n'


def test_skipped_updates_that_follow_each_other_share_a_line():
  stream = io.StringIO()
  writer = progress.ProgressWriter(100, stream=stream)
  for step in (3, 4, 9):
    cause = {'cause': 'x is not finite'} if step == 4 else {}
    writer.write('update_skipped', step, {'total': 3, 'first_example': 8 * step, 'num_examples': 8, **cause})
  assert not stream.getvalue()
  writer.write('train', 10, {'loss': 0.5})
  writer.write('update_skipped', 11, {'total': 4, 'first_example': 88, 'num_examples': 8})
  writer.flush()
  writer.write('update_skipped', 12, {'total': 5})
  writer.close()
  assert stream.getvalue().splitlines() == [
    'update_skipped 9/100  steps 3 to 4, 9 (3)  total 3  cause x is not finite',
    'train 10/100 10%  loss 0.5',
    'update_skipped 11/100  total 4  first_example 88  num_examples 8',
    'update_skipped 12/100  total 5',
  ]
