"""A training that no starter has detached keeps its output in run.log: real processes."""

import re
import time

import pytest

from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_processes

FLAGS = ['--experiment=digits_mlp', '--mode=train_and_eval', '--set=checkpoint_interval=10']
LOOPS = ['--set=steps_per_loop=10', '--set=validation_interval=10', '--set=xla=false']


def test_run_log_has_the_output_of_both_attempts_also_of_one_that_was_killed(start_train, run_train, tmp_path):
  log = tmp_path / 'run.log'
  flags = [*FLAGS, *LOOPS, f'--model_dir={tmp_path}']
  process = start_train([*flags, '--set=train_steps=1000000'])
  deadline = time.monotonic() + 100
  while not (log.exists() and 'checkpoint 30/' in log.read_text()):
    assert time.monotonic() < deadline
    time.sleep(0.02)
  process.kill()
  process.communicate()
  before = log.read_text()
  assert before.endswith('\n')
  done = run_train([*flags, '--set=train_steps=20', '--set=task.no_such=1'])
  assert done.returncode == 2 and log.read_text() == before  # Nothing begins.
  run = run_folders.Run(str(tmp_path), 'run')
  step = int(re.findall(r'^checkpoint (\d+)/', before, re.MULTILINE)[-1])
  done = run_train([*flags, f'--set=train_steps={step + 100}'])
  assert done.returncode == 0, done.stderr
  header, *added = log.read_text().removeprefix(before).splitlines()
  assert '] attempt 2: ' in header and f'--set=train_steps={step + 100}' in header
  # Two streams of one process: the lines of each are in order.
  printed = done.stdout.splitlines()
  assert [line for line in added if line in printed] == printed
  assert set(added) - set(printed) <= set(done.stderr.splitlines())
  assert run_processes.log_tail(run, 1) == [printed[-1]] and printed[-1].startswith('Final metrics:')


def test_the_error_that_ends_a_run_is_its_last_line(run_train, tmp_path):
  flags = ['--set=learning_rate=1e30', '--set=trainer.nonfinite.max_rollbacks=0', *LOOPS]
  done = run_train([*FLAGS, *flags, f'--model_dir={tmp_path}', '--set=train_steps=50'])
  assert done.returncode == 3, done.stdout + done.stderr
  assert (tmp_path / 'run.log').read_text().splitlines()[-1] == done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_ext_train_keeps_it_too(start_script, tmp_path):
  code = f"""
    import sys
    import official_ext as ext
    before = sys.stdout
    ext.train('digits_mlp', {str(tmp_path)!r}, train_steps=20, **{{'runtime.enable_xla': False}})
    assert sys.stdout is before
    print('afterwards')
  """
  process = start_script(code).finish()
  assert process.returncode == 0, process.stderr
  lines = (tmp_path / 'run.log').read_text().splitlines()
  assert [*lines[1:], 'afterwards'] == process.stdout.splitlines()
