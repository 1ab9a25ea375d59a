"""train.py and the signals that cluster managers and people send."""

import json
import re
import signal
import time

import pytest

TIMEOUT = 120


def flags(folder, *more):
  return ['--experiment=digits_mlp', '--mode=train', f'--model_dir={folder}', '--set=runtime.enable_xla=false', *more]


def wait_for_step(folder, process, event='train'):
  """Waits until events.jsonl tells of a training loop."""
  path, end = folder / 'events.jsonl', time.monotonic() + TIMEOUT
  while not (path.exists() and f'"event": "{event}"' in path.read_text()):
    assert process.poll() is None, process.stdout.read()
    assert time.monotonic() < end
    time.sleep(0.05)


def test_defect_10_a_preempted_run_saves_exits_75_and_goes_on(start_train, run_train, tmp_path):
  # Stock: the signal ends the process, and what was not saved is lost.
  """SIGTERM, a grace period, SIGKILL: nothing is left for the last."""
  endless = ['--set=steps_per_loop=20', '--set=checkpoint_interval=100000000']
  process = start_train(flags(tmp_path, *endless, '--set=train_steps=100000000'))
  wait_for_step(tmp_path, process)
  process.send_signal(signal.SIGTERM)
  output, _ = process.communicate(timeout=30)  # The grace period.
  assert process.returncode == 75, output
  step = int(re.search(r'^preempted: SIGTERM: stopped at step (\d+)\. The same command', output, re.MULTILINE)[1])
  record = json.loads((tmp_path / 'run.json').read_text())
  assert (record['status'], record['step']) == ('preempted', step) and record['error'].startswith('PreemptedError')
  assert step % 20 == 0 and (tmp_path / f'ckpt-{step}.manifest.json').exists()
  assert (tmp_path / 'operative_config.train.gin').exists()
  process = run_train(flags(tmp_path, *endless, f'--set=train_steps={step + 20}'), timeout=TIMEOUT)
  assert process.returncode == 0, process.stderr
  assert (tmp_path / f'ckpt-{step + 20}.manifest.json').exists()
  assert [
    json.loads(line)['step'] for line in (tmp_path / 'events.jsonl').read_text().splitlines() if '"restored"' in line
  ] == [step]


@pytest.mark.parametrize('number', [signal.SIGINT])
def test_a_second_signal_ends_even_a_loop_that_does_not(number, start_train, tmp_path):
  process = start_train(
    flags(
      tmp_path,
      '--set=steps_per_loop=100000000',
      '--set=train_steps=100000000',
      '--set=checkpoint_interval=100000000',
      '--set=trainer.summary_interval=100000000',
    )
  )
  wait_for_step(tmp_path, process, 'start')
  time.sleep(5)  # Into the loop, which no Python interrupts.
  process.send_signal(number)
  time.sleep(1)
  assert process.poll() is None
  process.send_signal(number)
  output, _ = process.communicate(timeout=20)
  assert process.returncode == 128 + number, output
  assert f'{number.name}: saving after this training loop' in output
