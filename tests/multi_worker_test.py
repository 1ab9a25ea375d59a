"""Two real worker processes on this machine, through train.py: killed, lost, continued by one, with the same result."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base.run_folder import run_lock
from official_ext.base.run_folder import run_status
from official_ext.training.checkpoints import manifests
from official_ext.training.writers import system_metrics
from official_ext.training.writers import writers
from tests import train_processes

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS = 200
FLAGS = [
  '--experiment=digits_mlp_with_scalar',
  '--registry=tests.digits_mlp_with_scalar',
  '--mode=train_and_eval',
  f'--set=train_steps={STEPS}',
  '--set=steps_per_loop=20',
  '--set=checkpoint_interval=40',
  '--set=validation_interval=60',
  '--set=trainer.summary_interval=20',
  '--set=runtime.enable_xla=false',  # Which takes longer to compile than these steps to run.
  '--set=eval_batch_size=62',  # 360 validation examples: 5 x 62 + 50, which are 31 and 19 for the two workers.
]


def _environment(**changes):
  return {**os.environ, 'CUDA_VISIBLE_DEVICES': '', 'COLUMNS': '120', **changes}


class Launched:
  """`official-ext launch` of a training in `folder`, with its output so far in `text`."""

  def __init__(self, folder, *flags, num_workers=2, max_restarts=3, grace=60, base=FLAGS):
    self.folder, self.text = folder, ''
    self.process = subprocess.Popen(
      [
        sys.executable,
        '-m',
        'official_ext.cli.launch',
        f'--num_workers={num_workers}',
        f'--max_restarts={max_restarts}',
        f'--grace_seconds={grace}',
        '--',
        *base,
        *flags,
        f'--model_dir={folder}',
      ],
      cwd=ROOT,
      env=_environment(),
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    self._reader = threading.Thread(target=self._read, daemon=True)
    self._reader.start()

  def _read(self):
    for line in self.process.stdout:
      self.text += line

  def wait_for(self, pattern, count=1, timeout=200):
    """Returns when `pattern` has been printed `count` times; fails when the run ends before."""
    deadline = time.monotonic() + timeout
    while len(re.findall(pattern, self.text)) < count:
      assert self.process.poll() is None and time.monotonic() < deadline, f'{pattern!r} x {count}:\n{self.text}'
      time.sleep(0.02)

  def kill(self, *workers, number=signal.SIGKILL):
    """Sends a signal to workers of the current attempt."""
    for worker in workers:
      pid = re.findall(rf'launch: processes .*\[{worker}\] (\d+)', self.text)[-1]
      os.kill(int(pid), number)

  def end(self, timeout=300):
    status = self.process.wait(timeout)
    self._reader.join(20)
    return status


@pytest.fixture
def launched():
  """Launched(...), ended at the end of the test."""
  started = []

  def start(*args, **kwargs):
    started.append(Launched(*args, **kwargs))
    return started[-1]

  yield start
  for each in started:
    if each.process.poll() is None:
      each.process.terminate()  # The launcher passes it on; twice ends the workers at once.
      each.process.terminate()
      try:
        each.process.wait(30)
      except subprocess.TimeoutExpired:
        each.process.kill()


@pytest.fixture(scope='module')
def straight(tmp_path_factory, train_server):
  """The folder of a run of two workers that nothing disturbed, started as `srun -n 2 python train.py` starts it."""
  folder, logs = tmp_path_factory.mktemp('straight'), tmp_path_factory.mktemp('logs')
  statuses, outputs = run_two_workers(train_server(), [*FLAGS, f'--model_dir={folder}'], logs)
  assert statuses == [0, 0], outputs
  assert 'Devices: 2 replicas' in outputs[0] and 'Devices: 2 replicas' in outputs[1]
  return folder


def run_two_workers(server, arguments, logs, job='0'):
  """(exit statuses, outputs) of train.py as SLURM starts it on two workers."""
  processes = []
  for rank in range(2):
    processes.append(server.start(arguments, logs / str(rank), env=train_processes.slurm_variables(rank, job)))
  statuses = [process.wait(timeout=300) for process in processes]
  return statuses, [(logs / str(rank)).read_text() for rank in range(2)]


def tensors(folder, step=STEPS):
  reader = tf.train.load_checkpoint(f'{folder}/ckpt-{step}')
  return {name: np.asarray(reader.get_tensor(name)) for name in reader.get_variable_to_shape_map()}


def assert_same(folder, straight, step=STEPS):
  """The last checkpoint and the evaluations are those of the undisturbed run, bit for bit."""
  expected, found = tensors(straight, step), tensors(folder, step)
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    assert found[name].tobytes() == value.tobytes(), name
  assert evaluations(folder) == evaluations(straight)


def evaluations(folder, name='events.jsonl'):
  """The metrics of each step; a resumed run supersedes earlier ones."""
  events = writers.read_events(f'{folder}/{name}')
  return {
    event['step']: {name: value for name, value in event.items() if name not in ('time', 'seconds', 'epoch')}
    for event in events
    if event['event'] == 'eval'
  }


def assert_written_by_one(folder, straight):
  """The folder holds the files of an undisturbed run: none of another worker's, nothing half-written."""

  def names(root):
    paths = {str(path.relative_to(root)) for path in pathlib.Path(root).rglob('*') if path.is_file()}
    # Samples of the machine are written every 15 s: a run that ends sooner has none.
    return {path for path in paths if 'tfevents' not in path and path != system_metrics.FILE}

  assert names(folder) == names(straight)
  events = writers.read_events(f'{folder}/events.jsonl')
  assert [event['step'] for event in events if event['event'] == 'finished'] == [STEPS]
  assert run_status.read(str(folder))['status'] == 'finished'


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_the_result_is_bit_identical(launched, straight, tmp_path):
  # Stock: workers but the first save into a new temporary folder; on restart they are at step 0, and all die in a
  # collective.
  run = launched(tmp_path)
  run.wait_for(r'\[0\] checkpoint 40/')
  lease = json.loads((tmp_path / run_lock.NAME).read_text())  # The chief's, who alone takes the folder.
  assert re.search(rf'launch: processes \[0\] {lease["pid"]}, ', run.text)
  run.kill(1)
  assert run.end() == 0, run.text
  assert 'launch: worker 1 was killed by SIGKILL; waiting for the others to stop' in run.text
  assert re.search(r'^\[0\] error: worker 1 \(127.0.0.1:\d+\) was lost: .* Start all workers again', run.text, re.M)
  assert 'launch: worker 0 stopped with status 75' in run.text and 'launch: restart 1 of 3' in run.text
  assert_same(tmp_path, straight)
  assert_written_by_one(tmp_path, straight)


@pytest.mark.slow
@pytest.mark.parametrize('replicas', [1, pytest.param(2, marks=pytest.mark.soak)])
def test_another_number_of_replicas_resumes_with_the_same_batches(straight, run_train, tmp_path, replicas):
  # Until step 80 with two workers, from there with one process: of one replica, or of two.
  flags = [] if replicas == 1 else ['--set=runtime.num_virtual_cpus=2']
  for path in [*straight.glob('ckpt-80.*'), straight / 'events.jsonl']:
    shutil.copy(path, tmp_path)
  assert manifests.read(f'{tmp_path}/ckpt-80')['num_replicas'] == 2
  process = run_train([*FLAGS, *flags, f'--model_dir={tmp_path}'])
  assert process.returncode == 0, process.stderr
  assert ('Replicas: 1, 2 before.' in process.stdout) == (replicas == 1), process.stdout
  expected, found = tensors(straight), tensors(tmp_path)
  for key, value in expected.items():
    if value.dtype.kind == 'f':
      np.testing.assert_allclose(found[key], value, rtol=2e-3, atol=2e-5, err_msg=key)


def test_evaluation_over_workers_is_exact(straight, run_train, tmp_path):
  # One process evaluates the checkpoint that two workers have evaluated together.
  for path in straight.glob(f'ckpt-{STEPS}.*'):
    shutil.copy(path, tmp_path)
  process = run_train([*FLAGS[:2], '--mode=eval', f'--model_dir={tmp_path}'])
  assert process.returncode == 0, process.stderr
  alone, together = evaluations(tmp_path, 'events.eval.jsonl')[STEPS], evaluations(straight)[STEPS]
  assert alone.keys() == together.keys() and alone['accuracy'] == together['accuracy']
  assert alone['rows'] == together['rows'] == 360  # Each once, by the task's own `aggregate_logs`.
  for name in ('validation_loss', 'confidence', 'confidence_of_rows', 'least_confidence'):
    np.testing.assert_allclose(alone[name], together[name], rtol=1e-5, err_msg=name)


SHORT = [
  'train_steps=16',
  'steps_per_loop=4',
  'checkpoint_interval=8',
  'validation_interval=4',
  'runtime.enable_xla=false',
  'trainer.max_to_keep=2',
  'trainer.writers=[]',
  'trainer.optimizer_config.ema={average_decay: 0.9}',
]


def run_short(server, folder, job, *settings):
  logs = folder.with_name(f'logs_{job}')
  logs.mkdir()
  flags = [*FLAGS[:3], *(f'--set={setting}' for setting in settings), f'--model_dir={folder}']
  return run_two_workers(server, flags, logs, job)


@pytest.mark.soak
def test_two_workers_with_a_moving_average_save_it_once(train_server, tmp_path):
  # Stock: both write ema_checkpoints/average_weights-N, and one of them dies of NotFoundError.
  run = tmp_path / 'run'
  statuses, outputs = run_short(train_server(), run, '1', *SHORT)
  assert statuses == [0, 0], outputs
  averages = manifests.complete_paths(f'{run}/ema_checkpoints', 'average_weights')
  assert [manifests.step_of(path) for path in averages] == [12, 16]
  for path in [*averages, *manifests.complete_paths(f'{run}/best', 'best_ckpt')]:
    assert manifests.find_damage(path) is None
  assert not [path for path in run.rglob('*') if '_temp' in path.name or 'tmp' in path.name]


@pytest.mark.soak
def test_an_evaluation_of_workers_that_fails_again_and_again_costs_no_checkpoint(train_server, tmp_path):
  settings = [setting.replace('validation_interval=4', 'validation_interval=8') for setting in SHORT]
  run = tmp_path / 'run'
  for attempt in range(2):
    statuses, outputs = run_short(train_server(), run, f'{10 + attempt}', *settings, 'task.evaluation_fails=true')
    assert statuses == [1, 1], outputs
    assert manifests.read(f'{run}/ckpt-8')['evaluation_pending'] is True
  statuses, outputs = run_short(train_server(), run, '12', *settings)
  assert statuses == [0, 0], outputs
  straight = tmp_path / 'straight'
  statuses, outputs = run_short(train_server(), straight, '13', *settings)
  assert statuses == [0, 0], outputs
  expected, found = tensors(straight, 16), tensors(run, 16)
  assert all(found[name].tobytes() == value.tobytes() for name, value in expected.items())
  assert evaluations(run) == evaluations(straight)


# Longer ones: any worker, at any time.


@pytest.mark.soak
@pytest.mark.parametrize('workers', [(0,), (1,), (0, 1)])
@pytest.mark.parametrize(
  ('pattern', 'delay'),
  [
    (r'\[0\] Devices', 0.0),  # While the model is built.
    (r'\[0\] start', 1.0),  # While the step is compiled, or before.
    (r'\[0\] train 60/', 0.1),  # In an evaluation.
    (r'\[0\] eval 60/', 0.0),
    (r'\[0\] checkpoint 80/', 0.0),  # While it is written.
    (r'\[0\] checkpoint 200/', 0.0),  # At the end.
  ],
)
def test_killed_at_a_chosen_moment(launched, straight, tmp_path, workers, pattern, delay):
  run = launched(tmp_path)
  run.wait_for(pattern)
  time.sleep(delay)
  try:
    run.kill(*workers)
  except ProcessLookupError:
    pass  # It has finished before.
  assert run.end() == 0, run.text
  assert_same(tmp_path, straight)
  assert_written_by_one(tmp_path, straight)


@pytest.mark.soak
@pytest.mark.parametrize('seed', range(5))
def test_killed_again_and_again_at_random(launched, straight, tmp_path, seed):
  random = np.random.default_rng(seed)
  run = launched(tmp_path, max_restarts=8)
  for attempt in range(1, 6):
    while len(re.findall('launch: processes', run.text)) < attempt and run.process.poll() is None:
      time.sleep(0.02)
    if run.process.poll() is not None:  # It had finished when it was killed.
      break
    began = len(run.text)
    while '[0] start' not in run.text[began:] and run.process.poll() is None:
      time.sleep(0.02)
    time.sleep(random.uniform(0, 6))
    try:
      run.kill(*[(0,), (1,), (0, 1)][random.integers(3)])
    except ProcessLookupError:
      break
  assert run.end(600) == 0 and attempt > 1, run.text
  assert_same(tmp_path, straight)
  assert_written_by_one(tmp_path, straight)


@pytest.mark.soak
def test_a_second_training_of_several_workers_is_refused_on_all_of_them(launched, tmp_path):
  base = [flag.replace(f'train_steps={STEPS}', 'train_steps=100000000') for flag in FLAGS]
  first = launched(tmp_path, base=base)
  first.wait_for(r'\[0\] checkpoint 40/')
  second = launched(tmp_path, base=base)
  assert second.end() == 4, second.text
  refusal = '--model_dir=.* trains in this folder'
  assert re.search(rf'^\[0\] error: {refusal}', second.text, re.M)
  assert re.search(rf'^\[1\] error: worker 0 .* has stopped: StateError: {refusal}', second.text, re.M)
  assert 'Traceback' not in second.text and first.process.poll() is None


@pytest.mark.soak
def test_one_worker_that_is_asked_to_stop_stops_all(launched, straight, tmp_path):
  run = launched(tmp_path)
  run.wait_for(r'\[0\] train 40/')
  run.kill(1, number=signal.SIGTERM)
  assert run.end() == 0, run.text
  for worker in range(2):
    assert f'launch: worker {worker} stopped with status 75' in run.text
  assert '[0] preempted: another worker was asked' in run.text
  assert_same(tmp_path, straight)


@pytest.mark.soak
def test_a_launcher_that_is_asked_to_stop_saves_and_resumes_later(launched, straight, tmp_path):
  run = launched(tmp_path)
  run.wait_for(r'\[0\] train 60/')
  run.process.terminate()
  assert run.end() == 75, run.text
  assert run_status.read(str(tmp_path))['status'] == 'preempted' and 'restart' not in run.text
  run = launched(tmp_path)
  assert run.end() == 0, run.text
  assert_same(tmp_path, straight)


@pytest.mark.soak
@pytest.mark.parametrize('worker', [0, 1])
def test_a_worker_that_hangs_counts_as_lost(launched, straight, tmp_path, worker):
  run = launched(tmp_path, '--set=runtime.worker_timeout_seconds=10')
  run.wait_for(r'\[0\] train 40/')
  run.kill(worker, number=signal.SIGSTOP)
  began = time.monotonic()
  run.wait_for(rf'launch: worker {1 - worker} stopped with status 75', timeout=120)
  assert run.end() == 0, run.text
  assert 'error: ' in run.text and 'launch: restart 1 of 3' in run.text
  assert time.monotonic() - began < 240
  assert_same(tmp_path, straight)


@pytest.mark.soak
@pytest.mark.parametrize('worker', [0, 1])
def test_a_suspended_worker_is_killed_where_the_others_hang_before_they_count_it_as_lost(
  launched, straight, tmp_path, worker
):
  flags = ['--set=runtime.hang_seconds=15', '--set=runtime.worker_timeout_seconds=300']
  run = launched(tmp_path, *flags, grace=5)
  run.wait_for(r'\[0\] train 40/')
  run.kill(worker, number=signal.SIGSTOP)
  assert run.end() == 0, run.text
  assert f'launch: worker {1 - worker} stopped with status 75' in run.text
  assert f'launch: worker {worker} is suspended, 5 s after another has ended, and killed' in run.text
  assert 'launch: restart 1 of 3' in run.text and 'restart 2' not in run.text
  hung = tmp_path / f'hung.worker-{1 - worker}.txt'
  assert 'runtime.hang_seconds' in hung.read_text()
  hung.unlink()
  assert_same(tmp_path, straight)
  assert_written_by_one(tmp_path, straight)


@pytest.mark.soak
def test_workers_that_wait_for_one_that_hangs_all_report_where_and_are_started_again(
  launched, straight, tmp_path, monkeypatch
):
  monkeypatch.setenv('HANG_ONCE', str(tmp_path / 'has_hung'))
  run = launched(tmp_path / 'run', '--set=runtime.hang_seconds=10')
  assert run.end() == 0, run.text
  assert 'launch: restart 1 of 3' in run.text and 'restart 2' not in run.text
  for worker in range(2):
    assert f'launch: worker {worker} stopped with status 75' in run.text
    assert f'[{worker}] hung: no progress for ' in run.text
    stacks = (tmp_path / 'run' / f'hung.worker-{worker}.txt').read_text()
    assert ('in pass_on' in stacks) == (worker == 1)
    (tmp_path / 'run' / f'hung.worker-{worker}.txt').unlink()
  assert (tmp_path / 'run' / 'events.jsonl').read_text().count('"event": "hung"') == 1  # Superseded later.
  assert_same(tmp_path / 'run', straight)
  assert_written_by_one(tmp_path / 'run', straight)


@pytest.mark.soak
@pytest.mark.parametrize('worker', [0, 1])
def test_a_worker_in_which_a_native_function_keeps_pythons_lock_is_killed_when_the_others_have_reported(
  launched, straight, tmp_path, monkeypatch, worker
):
  monkeypatch.setenv('HANG_ONCE', str(tmp_path / 'has_hung'))
  monkeypatch.setenv('HANG_WORKER', str(worker))
  monkeypatch.setenv('HANG_WITH_LOCK', '1')
  flags = ['--set=runtime.hang_seconds=10', '--set=runtime.worker_timeout_seconds=300']
  run = launched(tmp_path / 'run', *flags, grace=5)
  assert run.end() == 0, run.text
  assert f'launch: worker {1 - worker} stopped with status 75' in run.text
  assert f'launch: worker {worker} sends no heartbeat; its threads:' in run.text
  assert re.search(rf'^\[{worker}\]   File ".*", line \d+ in pass_on$', run.text, re.M), run.text
  assert f'launch: worker {worker} was killed by SIGKILL' in run.text
  assert 'launch: restart 1 of 3' in run.text and 'restart 2' not in run.text
  (tmp_path / 'run' / f'hung.worker-{1 - worker}.txt').unlink()
  assert_same(tmp_path / 'run', straight)
  assert_written_by_one(tmp_path / 'run', straight)


def _train_events(folder):
  """{step: the last event of that step}, of a training."""
  events = writers.read_events(f'{folder}/events.jsonl')
  return {event['step']: event for event in events if event['event'] == 'train'}


@pytest.mark.soak
def test_one_two_four_and_two_workers_do_what_one_does(launched, tmp_path):
  steps_per_part, workers = 8, (1, 2, 4, 2)
  steps = steps_per_part * len(workers)
  base = [
    *FLAGS[:3],
    '--set=steps_per_loop=1',
    '--set=summary_interval=1',
    f'--set=checkpoint_interval={steps_per_part}',
    '--set=validation_interval=1000',
    '--set=runtime.enable_xla=false',
    '--set=task.logs_batches=true',
    # No division by the root of small squares, as Adam's, which would make a rounding as large as an update.
    '--set=optimizer=sgd',
    '--set=learning_rate=0.01',
  ]
  straight = launched(tmp_path / 'straight', f'--set=train_steps={steps}', num_workers=1, base=base)
  assert straight.end() == 0, straight.text
  for part, num_workers in enumerate(workers, 1):
    # The third part is killed on its way from its checkpoint to one step before the end, or right after that.
    train_steps = steps - 1 if part == 3 else part * steps_per_part
    run = launched(tmp_path / 'elastic', f'--set=train_steps={train_steps}', num_workers=num_workers, base=base)
    if part == 3:
      # Written after the line is printed.
      manifest = tmp_path / 'elastic' / f'ckpt-{part * steps_per_part}.manifest.json'
      while run.process.poll() is None and not manifest.exists():
        time.sleep(0.02)
      assert manifest.exists(), run.text
      run.process.kill()
      for worker in range(num_workers):
        with contextlib.suppress(ProcessLookupError):
          run.kill(worker)
      run.end()
    else:
      assert run.end() == 0, run.text
    assert f'Devices: {num_workers} replica' in run.text
    if part > 1:
      assert f'Replicas: {num_workers}, {workers[part - 2]} before.' in run.text
  expected, found = _train_events(straight.folder), _train_events(tmp_path / 'elastic')
  assert list(found) == list(expected) == list(range(1, steps + 1))
  batches = [event['batch'] for event in expected.values()]
  assert [event['batch'] for event in found.values()] == batches and len(set(batches)) == steps
  # Each step rounds its loss, gradient and update in another order, by some eps: four a step, 2e-5 in all. Found: 2e-7.
  tolerance = 4 * steps * np.finfo(np.float32).eps
  for step, event in expected.items():
    np.testing.assert_allclose(found[step]['training_loss'], event['training_loss'], rtol=tolerance, err_msg=str(step))
  values = tensors(straight.folder, steps)
  for name, value in tensors(tmp_path / 'elastic', steps).items():
    if value.dtype.kind == 'f':
      atol = tolerance * np.abs(values[name]).max(initial=0)
      np.testing.assert_allclose(value, values[name], rtol=0, atol=atol, err_msg=name)


@pytest.mark.soak
def test_workers_roll_back_together_and_the_result_does_not_depend_on_kills(launched, run_train, tmp_path):
  # One example of 1,437 is NaN, on one of the two workers: about every 22nd step.
  flags = [
    '--set=task.bad_example=700',
    '--set=trainer.nonfinite.max_skips=1',
    '--set=trainer.nonfinite.then=rollback',
    '--set=trainer.nonfinite.max_rollbacks=20',
  ]
  base = [re.sub('(steps_per_loop|checkpoint_interval|summary_interval)=.*', r'\1=10', flag) for flag in FLAGS]

  def rollbacks(folder):
    return [
      (event['step'], event['from_step'], event['data_offset'])
      for event in writers.read_events(f'{folder}/events.jsonl')
      if event['event'] == 'rollback'
    ]

  undisturbed = launched(tmp_path / 'undisturbed', *flags, base=base)
  assert undisturbed.end() == 0, undisturbed.text
  assert len(rollbacks(undisturbed.folder)) >= 2
  run = launched(tmp_path / 'killed', *flags, base=base)
  run.wait_for(r'\[0\] rollback ')
  run.kill(1)
  assert run.end() == 0, run.text
  assert 'launch: restart 1 of 3' in run.text
  assert_same(run.folder, undisturbed.folder)
  assert rollbacks(run.folder)[-1] == rollbacks(undisturbed.folder)[-1]
  process = run_train([*base, *flags, '--set=runtime.num_virtual_cpus=2', f'--model_dir={tmp_path}/virtual'])
  assert process.returncode == 0, process.stderr
  assert rollbacks(tmp_path / 'virtual') == rollbacks(undisturbed.folder)
