"""train.py and the signals that cluster managers and people send."""

import json
import re
import signal
import time

import pytest

from tests import tiers

TIMEOUT = 120


def flags(folder, *more):
  return ['--experiment=digits_mlp', '--mode=train', f'--model_dir={folder}', '--set=runtime.enable_xla=false', *more]


def wait_for_step(folder, process, event='train'):
  """Waits until events.jsonl has a training loop."""
  path, end = folder / 'events.jsonl', time.monotonic() + TIMEOUT
  while not (path.exists() and f'"event": "{event}"' in path.read_text()):
    assert process.poll() is None, process.stdout.read()
    assert time.monotonic() < end
    time.sleep(0.05)


def test_a_preempted_run_saves_exits_75_and_resumes(start_train, run_train, tmp_path):
  # Stock: the signal ends the process, and unsaved steps are lost.
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


@tiers.parametrize(
  'numbers',
  [
    (signal.SIGHUP, signal.SIGHUP),  # Of a terminal that closes, by its shell and by the kernel.
    (signal.SIGTERM, signal.SIGTERM),  # By `timeout`: to its child and to the group.
    (signal.SIGTERM, signal.SIGHUP, signal.SIGCONT),  # By systemd with SendSIGHUP.
  ],
  ids=lambda numbers: '-'.join(number.name for number in numbers),
  fast=1,
)
def test_one_request_may_come_as_several_signals(numbers, start_train, tmp_path):
  endless = ['--set=steps_per_loop=20', '--set=checkpoint_interval=100000000']
  process = start_train(flags(tmp_path, *endless, '--set=train_steps=100000000'))
  wait_for_step(tmp_path, process)
  for number in numbers:
    process.send_signal(number)
    time.sleep(0.01)
  output, _ = process.communicate(timeout=60)
  assert process.returncode == 75, output
  assert output.count('saving after this training loop') == 1
  record = json.loads((tmp_path / 'run.json').read_text())
  assert record['status'] == 'preempted'
  assert (tmp_path / f'ckpt-{record["step"]}.manifest.json').exists()


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
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


@pytest.mark.slow
def test_an_export_that_is_asked_to_stop_leaves_no_partial_folder(run_train, train_server, tmp_path):
  # Before: the signal was noted, and the export ended.
  assert run_train(flags(tmp_path, '--set=train_steps=2')).returncode == 0
  words = [flag for flag in flags(tmp_path) if not flag.startswith('--mode=')]
  process = train_server().start([*words, '--mode=export'], tmp_path / 'log')
  end = time.monotonic() + TIMEOUT
  while not (tmp_path / 'export').exists():  # It is made right before the partial folder in it.
    assert process.poll() is None and time.monotonic() < end
    time.sleep(0.001)
  process.send_signal(signal.SIGTERM)
  assert process.wait(60) == 1
  assert (tmp_path / 'log').read_text().splitlines()[-1] == 'error: interrupted'
  assert list((tmp_path / 'export').iterdir()) == []
  assert run_train([*words, '--mode=export']).returncode == 0
  assert (tmp_path / 'export/2/saved_model.pb').exists()
