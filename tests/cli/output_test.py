"""Output that closes while a process continues."""

import os
import pathlib
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Writes until nobody reads any more, and then some; its result is in its exit status.
_CODE = """
import logging, os, sys, time
from official_ext.cli import output
output.outlive_readers()
print('first')
logging.warning('a warning')
assert not sys.stdout.isatty() and sys.stdout.fileno() == 1
os.read(0, 1)  # Until the reader has gone.
for _ in range(3):
  print('\\N{HORIZONTAL ELLIPSIS}' * 100_000, flush=True)
  logging.warning('a warning')
  print('to stderr', file=sys.stderr)
sys.stdout.flush()
sys.exit(17)
"""


def _start(**kwargs):
  # -c does not import TensorFlow: official_ext/__init__.py only sets an environment variable.
  return subprocess.Popen([sys.executable, '-c', _CODE], cwd=ROOT, stdin=subprocess.PIPE, text=True, **kwargs)


def test_a_reader_of_stdout_may_go():
  process = _start(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  assert process.stdout.readline() == 'first\n'
  process.stdout.close()
  process.stdout = None
  _, err = process.communicate('x', timeout=60)
  assert process.returncode == 17
  lines = err.splitlines()
  assert lines.count('stdout cannot be written any more (Broken pipe); the run continues') == 1
  assert lines.count('to stderr') == 3 and 'Traceback' not in err and len(lines) == 1 + 3 + 4


def test_all_readers_may_go():
  process = _start(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
  while process.stdout.readline() != 'first\n':
    pass
  process.stdout.close()
  process.stdout = None
  process.communicate('x', timeout=60)
  assert process.returncode == 17


def test_a_full_disk_and_no_output_at_all():
  for redirection in ('>/dev/full', '>&-', '2>&-', '>&- 2>&-'):
    process = subprocess.run(
      ['sh', '-c', f'"$0" -c "$1" {redirection}', sys.executable, _CODE],
      cwd=ROOT,
      input='x',
      text=True,
      capture_output=True,
      timeout=60,
      check=False,
    )
    assert process.returncode == 17, (redirection, process.stderr)


def test_what_ascii_cannot_encode_is_written_all_the_same():
  process = _start(stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, 'PYTHONIOENCODING': 'ascii'})
  out, _ = process.communicate('x', timeout=60)
  assert process.returncode == 17
  assert out.splitlines()[1] == '\\u2026' * 100_000


# The effect of opened files and logs if standard streams are closed.
_CLOSED = """
import os, sys, tempfile
from absl import logging
from official_ext.cli import output
output.outlive_readers()
with tempfile.TemporaryFile() as file:
  assert file.fileno() > 2, 'its lines would be mixed with what is printed'
  logging.error('a line'), print('a line'), print('a line', file=sys.stderr), os.write(2, b'of C++')
  file.seek(0)
  assert not file.read()
logging.flush()
sys.exit(17)
"""


def test_a_run_that_has_finished_reports_it_whatever_streams_are_closed():
  # Before: status 1 after `2>&-`.
  for redirection in ('2>&-', '>&-', '<&-', '>&- 2>&-', '>&- 2>&- <&-'):
    process = subprocess.run(
      ['sh', '-c', f'"$0" -c "$1" {redirection}', sys.executable, _CLOSED],
      cwd=ROOT,
      text=True,
      capture_output=True,
      timeout=60,
      check=False,
    )
    assert process.returncode == 17, (redirection, process.stderr)


def test_what_is_printed_and_logged_has_no_password():
  code = """
    import logging, sys
    from absl import app, logging as absl_logging
    from official_ext.cli import output

    def main(_):
      print('see', 'http://u:PW@h')
      sys.stderr.write('http://u:PW@h')
      absl_logging.warning('at %s', 'http://u:PW@h')
      logging.getLogger('of.others').warning('at %s', 'http://u:PW@h')
      try:
        raise ValueError('http://u:PW@h')
      except ValueError:
        absl_logging.exception('failed')
      raise ValueError('http://u:PW@h')

    output.outlive_readers()
    app.run(main)
  """
  process = subprocess.run(
    [sys.executable, '-c', textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
  )
  output = process.stdout + process.stderr
  assert process.returncode == 1 and output.count('http://u:***@h') >= 6, output
  lines = [line for line in output.splitlines() if 'PW' in line]
  assert not [line for line in lines if not line.startswith('    ')], output  # Tracebacks show the lines above.
