"""train.py as a user runs it: real processes, every mode, and their files."""

import json
import pathlib
import re
import textwrap
import time

import pytest
from tensorboard.backend.event_processing import event_accumulator
import tensorflow as tf
import yaml

from official_ext.training.writers import tensorboard
from tests import train_processes

LOOP, CHECKPOINT, VALIDATION, STEPS = 7, 10, 15, 33
INTERVALS = [
  f'--set=steps_per_loop={LOOP}',
  f'--set=checkpoint_interval={CHECKPOINT}',
  f'--set=validation_interval={VALIDATION}',
  f'--set=train_steps={STEPS}',
  '--set=trainer.summary_interval=1000',
  '--set=trainer.steps_per_execution=3',
]  # Loops of 7 are two programs and a step.
WITHOUT_XLA = '--set=runtime.enable_xla=false'  # Compiling takes longer than these runs.
METRICS = {'accuracy', 'validation_loss'}
TRAIN_FIELDS = {
  'time',
  'event',
  'step',
  'training_loss',
  'accuracy',
  'learning_rate',
  'grad_norm',
  'percent',
  'epoch',
  'optimizer_iterations',
  'model_global_step',
}
PACE_FIELDS = {'steps_per_second', 'examples_per_second', 'data_wait', 'eta_seconds'}
TIMEOUT = 240


def flags(folder, mode, *more, experiment='digits_mlp'):
  return [f'--experiment={experiment}', f'--mode={mode}', f'--model_dir={folder}', *more]


def read_events(folder, name='events.jsonl'):
  return [json.loads(line) for line in (pathlib.Path(folder) / name).read_text().splitlines()]


def read_json(path):
  return json.loads(pathlib.Path(path).read_text())


def steps_of(events, kind):
  return [event['step'] for event in events if event['event'] == kind]


def final_metrics(stdout):
  """The numbers of the line that closes a run."""
  lines = [line for line in stdout.splitlines() if line.startswith('Final metrics:')]
  assert lines == stdout.splitlines()[-1:]
  return {name: float(value) for name, value in re.findall(r'(\S+) (\S+)(?:  |$)', lines[0].partition(':')[2].strip())}


def read_scalars(folder):
  """{tag: {step: value}} as TensorBoard reads it."""
  accumulator = event_accumulator.EventAccumulator(str(folder), size_guidance={event_accumulator.TENSORS: 0})
  accumulator.Reload()
  return {
    tag: {event.step: float(tf.make_ndarray(event.tensor_proto)) for event in accumulator.Tensors(tag)}
    for tag in accumulator.Tags()['tensors']
  }


def wait_for(condition, process, seconds=TIMEOUT):
  """Waits until `condition()` while `process` lives."""
  end = time.monotonic() + seconds
  while not condition():
    assert process.poll() is None, process.stdout.read()
    assert time.monotonic() < end, 'it takes too long'
    time.sleep(0.1)


# One run, looked at from all sides.


def check_events(events):
  """Loops end on the multiples of all intervals; at a boundary the order is train, evaluate, save."""
  assert [(event['event'], event['step']) for event in events if event['event'] in ('train', 'eval', 'checkpoint')] == [
    ('train', 7),
    ('train', 10),
    ('checkpoint', 10),
    ('train', 14),
    ('train', 15),
    ('eval', 15),
    ('train', 20),
    ('checkpoint', 20),
    ('train', 21),
    ('train', 28),
    ('train', 30),
    ('eval', 30),
    ('checkpoint', 30),
    ('train', 33),
    ('eval', 33),
    ('checkpoint', 33),
  ]
  assert events[0]['event'] == 'start' and (events[0]['mode'], events[0]['seed']) == ('train_and_eval', 0)
  assert events[0]['effective_batch_size'] == 64
  (compiled,) = (event for event in events if event['event'] == 'compiled')
  assert (compiled['step_shape'], compiled['jit_compile']) == ('fused', True) and compiled['seconds'] > 0
  assert events[-1]['event'] == 'finished' and events[-1]['step'] == STEPS
  times = [event['time'] for event in events]
  assert times == sorted(times) and abs(times[-1] - time.time()) < TIMEOUT
  train = [event for event in events if event['event'] == 'train']
  for event in train:
    assert set(event) >= TRAIN_FIELDS
    assert event['model_global_step'] == event['optimizer_iterations'] == event['step']
    assert event['percent'] == pytest.approx(100 * event['step'] / STEPS)
    assert event['epoch'] == pytest.approx(event['step'] * 64 / 1437)
    assert event['learning_rate'] == pytest.approx(1e-3)
    assert set(event) >= PACE_FIELDS
    assert event['examples_per_second'] == pytest.approx(64 * event['steps_per_second'])
    assert 0 <= event['data_wait'] <= 1
    assert event['eta_seconds'] > 0  # An evaluation and a save follow the last step too.
  assert train[-1]['training_loss'] < train[0]['training_loss']
  for event in events:
    if event['event'] == 'eval':
      assert set(event) == METRICS | {'time', 'event', 'step', 'seconds', 'epoch'}


def check_files(folder, events):
  """params.yaml, run.json, the gin configuration, checkpoints, TensorBoard's files."""
  params = yaml.safe_load((folder / 'params.yaml').read_text())
  assert params['trainer']['train_steps'] == STEPS and params['runtime']['seed'] == 0
  assert not list(folder.glob('params.*.yaml'))
  record = read_json(folder / 'run.json')
  assert (record['status'], record['step'], record['error']) == ('finished', STEPS, None)
  assert record['versions']['tensorflow'] == tf.__version__ and '--mode=train_and_eval' in record['command']
  assert (record['step_shape'], record['seed']) == ('fused', 0) and 'CPU:0' in record['devices']
  assert record['step_shape_reason'] and record['finished'] >= record['started']
  assert {path.name for path in folder.glob('ckpt-*.index')} == {f'ckpt-{step}.index' for step in (10, 20, 30, 33)}
  for event in events:
    if event['event'] == 'checkpoint':
      assert pathlib.Path(event['checkpoint']) == folder / f'ckpt-{event["step"]}'
  check_summaries(folder, events)


def check_summaries(folder, events):
  """TensorBoard shows the events."""
  for kind, subfolder in (('train', 'train'), ('eval', 'validation')):
    scalars = read_scalars(folder / subfolder)
    recorded = [event for event in events if event['event'] == kind]
    names = {name for event in recorded for name in event} - {'time', 'event', 'step'}
    assert {tensorboard.tag_of(name, names) for name in names} == set(scalars)
    for name in names:
      values = scalars[tensorboard.tag_of(name, names)]
      expected = {event['step']: event[name] for event in recorded if name in event}
      if (kind, name) == ('eval', 'seconds'):  # An evaluator beside the run writes there too, and takes its own time.
        assert set(values) >= set(expected) and min(values.values()) > 0
        continue
      assert {step: values[step] for step in expected} == pytest.approx(expected, rel=1e-6)


def check_gin(folder, mode):
  text = (folder / f'operative_config.{mode}.gin').read_text()
  assert 'official_ext.Trainer.max_silent_recompilations = 7' in text


def check_progress(stdout, events):
  """A line for each event, which says how far, how fast and how long, and the metrics."""
  lines = stdout.splitlines()
  assert re.fullmatch(r'Devices: 1 replica on CPU:0, OneDeviceStrategy, float32', lines[0])
  shown = [re.match(rf'(\w+) (\d+)/{STEPS}\b', line) for line in lines]
  recorded = [(event['event'], event['step']) for event in events]
  assert [(match[1], int(match[2])) for match in shown if match] == recorded
  for line in lines:
    if line.startswith('train '):
      assert re.match(
        r'train \d+/33 \d+% [\d.e+]+ steps/s eta \d+:\d\d:\d\d  accuracy \S+  training_loss \S+  learning_rate 0.001',
        line,
      ), line


def test_a_run_beside_its_evaluator_and_what_follows(run_train, start_train, tmp_path):
  folder = tmp_path / 'run'
  bind = '--gin_params=official_ext.Trainer.max_silent_recompilations = 7'
  evaluator = start_train(flags(folder, 'continuous_eval', bind))
  process = run_train(
    flags(folder, 'train_and_eval', *INTERVALS, bind), timeout=TIMEOUT, env=train_processes.UNOPTIMISED
  )
  assert process.returncode == 0, process.stderr
  output, _ = evaluator.communicate(timeout=TIMEOUT)  # Training has finished: no signal is needed.
  assert evaluator.returncode == 0, output

  events = read_events(folder)
  check_events(events)
  check_files(folder, events)
  check_gin(folder, 'train_and_eval')
  check_gin(folder, 'continuous_eval')
  check_progress(process.stdout, events)
  last = events[-3]
  assert final_metrics(process.stdout) == pytest.approx({name: last[name] for name in METRICS}, rel=1e-3)

  evaluations = read_events(folder, 'events.continuous_eval.jsonl')
  assert steps_of(evaluations, 'eval') == [10, 20, 30, STEPS]  # Each checkpoint once, in order.
  evaluated = {event['step']: event for event in evaluations if event['event'] == 'eval'}
  for event in events:
    if event['event'] == 'eval' and event['step'] in evaluated:
      assert {name: evaluated[event['step']][name] for name in METRICS} == pytest.approx(
        {name: event[name] for name in METRICS}, rel=1e-5
      )
  record = read_json(folder / 'run.continuous_eval.json')
  assert (record['status'], record['mode']) == ('finished', 'continuous_eval')
  assert f'eval step {STEPS}  accuracy' in output

  # One checkpoint by itself.
  process = run_train(flags(folder, 'eval', f'--checkpoint={folder}/ckpt-10'), timeout=TIMEOUT)
  assert process.returncode == 0, process.stderr
  expected = {name: evaluated[10][name] for name in METRICS}
  assert final_metrics(process.stdout) == pytest.approx(expected, rel=1e-3)
  (event,) = (event for event in read_events(folder, 'events.eval.jsonl') if event['event'] == 'eval')
  assert {name: event[name] for name in METRICS} == pytest.approx(expected, rel=1e-5) and event['step'] == 10

  # The same command again: nothing to train, and the metrics all the same.
  process = run_train(flags(folder, 'train_and_eval', *INTERVALS), timeout=TIMEOUT)
  assert process.returncode == 0, process.stderr
  assert final_metrics(process.stdout) == pytest.approx({name: last[name] for name in METRICS}, rel=1e-3)
  assert f'finished before, at step {STEPS}: nothing to do' in process.stdout
  assert read_events(folder) == events  # Nothing is reported twice.
  assert not list(folder.glob('params.*.yaml')) and read_json(folder / 'run.json')['attempt'] == 2


@pytest.mark.slow
def test_an_evaluator_ends_when_its_trainer_was_killed(run_train, start_train, tmp_path):
  # Stock: waits for ever.
  folder = tmp_path / 'run'
  endless = [WITHOUT_XLA, '--set=steps_per_loop=20', '--set=checkpoint_interval=100', '--set=trainer.max_to_keep=3']
  # The evaluator first: it waits for a training that has not begun.
  evaluator = start_train(flags(folder, 'continuous_eval', WITHOUT_XLA))
  trainer = start_train(flags(folder, 'train', *endless, '--set=train_steps=100000000'))
  assert trainer.stdout.readline().startswith('Devices: ')
  trainer.stdout.close()  # As `| head -1` does: the run continues.
  trainer.stdout = None
  evaluations = folder / 'events.continuous_eval.jsonl'
  wait_for(lambda: evaluations.exists() and '"eval"' in evaluations.read_text(), evaluator)
  assert trainer.poll() is None
  trainer.kill()
  trainer.wait()
  output, _ = evaluator.communicate(timeout=60)
  assert evaluator.returncode == 0, output
  record = read_json(folder / 'run.json')
  assert (record['status'], record['finished']) == ('running', None)  # All that a killed process can say.
  steps = steps_of(read_events(folder, evaluations.name), 'eval')
  assert steps == sorted(set(steps)) and all(step % 100 == 0 for step in steps)
  newest = max(int(re.fullmatch(r'ckpt-(\d+)\.manifest\.json', path.name)[1]) for path in folder.glob('ckpt-*.json'))
  assert steps[-1] == newest

  # On from there with other parameters: a little further, counted in epochs.
  epochs = (newest + 30) * 64 / 1437
  process = run_train(
    flags(folder, 'train_and_post_eval', *endless, f'--set=train_epochs={epochs}', '--set=learning_rate=1e-4'),
    timeout=TIMEOUT,
  )
  assert process.returncode == 0, process.stderr
  events = read_events(folder)
  events = events[max(i for i, event in enumerate(events) if event['event'] == 'start') :]
  end = newest + 30
  assert [(event['event'], event['step']) for event in events if event['event'] != 'compiled'] == [
    ('start', 0),
    ('restored', newest),
    ('train', newest + 20),
    ('train', end),
    ('checkpoint', end),
    ('eval', end),
    ('finished', end),
  ]
  # If the parameters and the checkpoint differ, the parameters count.
  assert all(event['learning_rate'] == pytest.approx(1e-4) for event in events if event['event'] == 'train')
  assert set(final_metrics(process.stdout)) == METRICS
  # The difference is printed, and the earlier value is kept.
  shown = process.stdout.splitlines()
  where = next(i for i, line in enumerate(shown) if 'other parameters than before' in line)
  assert shown[where].endswith(f'{folder}/params.1.yaml:')
  assert set(shown[where + 1 : where + 3]) == {
    '  trainer.optimizer_config.learning_rate.constant.learning_rate: 0.001 -> 0.0001',
    f'  trainer.train_steps: 100000000 -> {end}',
  }
  before, after = (yaml.safe_load((folder / name).read_text())['trainer'] for name in ('params.1.yaml', 'params.yaml'))
  assert (before['train_steps'], after['train_steps']) == (100000000, end)


@pytest.mark.slow
@pytest.mark.parametrize(
  'dtype, strategy',
  [
    ('bfloat16', ['--set=runtime.distribution_strategy=mirrored', '--set=runtime.num_virtual_cpus=2']),
    pytest.param('float16', ['--set=runtime.loss_scale=dynamic'], marks=pytest.mark.soak),
  ],
)
def test_mixed_precision_and_replicas(dtype, strategy, run_train, tmp_path):
  precision = f'--set=runtime.mixed_precision_dtype={dtype}'
  process = run_train(
    flags(
      tmp_path,
      'train_and_eval',
      '--set=train_steps=40',
      '--set=steps_per_loop=20',
      '--set=validation_interval=40',
      '--set=checkpoint_interval=40',
      WITHOUT_XLA,
      precision,
      *strategy,
    ),
    timeout=TIMEOUT,
  )
  assert process.returncode == 0, process.stderr
  replicas = (
    '2 replicas on CPU:0, CPU:1, MirroredStrategy' if dtype == 'bfloat16' else ('1 replica on CPU:0, OneDeviceStrategy')
  )
  assert process.stdout.splitlines()[0] == f'Devices: {replicas}, mixed_{dtype}'
  assert final_metrics(process.stdout)['accuracy'] > 0.7  # Ten classes.
  assert read_json(tmp_path / 'run.json')['devices'] == f'{replicas}, mixed_{dtype}'
  reader = tf.train.load_checkpoint(str(tmp_path / 'ckpt-40'))
  kernel = next(name for name in reader.get_variable_to_dtype_map() if name.startswith('model/') and 'kernel' in name)
  assert reader.get_variable_to_dtype_map()[kernel] == tf.float32  # Weights stay in full precision.


def test_dry_run_leaves_nothing_behind(run_train, tmp_path):
  process = run_train(
    ['--experiment=digits_mlp', '--dry_run', f'--model_dir={tmp_path}/run', '--set=train_epochs=3'],
    cwd=tmp_path,
    env={'TMPDIR': str(tmp_path), **train_processes.UNOPTIMISED},
    timeout=TIMEOUT,
  )
  assert process.returncode == 0, process.stderr
  lines = dict(re.findall(r'^(\S+(?: step)?)  +(.*)$', process.stdout, re.MULTILINE))
  parameters = 64 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10
  assert lines['model'].startswith(f'Functional, {parameters:,} parameters; weights {parameters * 4 / 2**20:.3g} MiB')
  assert re.search(r'compiled in [\d.]+ s, then [\d.]+ ms', lines['train step'])
  assert 'accuracy' in lines['eval step'] and 'restored' in lines['checkpoint']
  assert lines['would'].startswith(f'train {-(-3 * 1437 // 64)} steps of 64 examples')
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_debug_runs_one_step_and_leaves_nothing_behind(run_train, tmp_path):
  process = run_train(['--experiment=digits_mlp', '--debug', '--debug_step=3'], cwd=tmp_path, timeout=TIMEOUT)
  assert process.returncode == 0, process.stderr
  assert re.search(r'^step +3 ', process.stdout, re.MULTILINE), process.stdout
  assert re.search(r'^loss +\d', process.stdout, re.MULTILINE), process.stdout
  assert not list(tmp_path.iterdir())


FAILING = """
    import dataclasses

    from experiments.digits_mlp import configs, task
    from official.core import exp_factory, task_factory
    from official_ext.training.config import definitions as config_definitions

    @dataclasses.dataclass
    class FailingConfig(configs.DigitsMlpTaskConfig):
      pass

    @task_factory.register_task_cls(FailingConfig)
    class Failing(task.DigitsMlpTask):

      def validation_step(self, inputs, model, metrics=None):
        raise RuntimeError('the disk of the moon is full')

    @exp_factory.register_config_factory('failing')
    def failing():
      return config_definitions.ExperimentConfig(task=FailingConfig(), trainer=configs.digits_mlp().trainer)
"""


def test_a_run_that_fails_leaves_its_record(run_train, tmp_path):
  (tmp_path / 'my_tasks.py').write_text(textwrap.dedent(FAILING))
  process = run_train(
    flags(
      'run',
      'train_and_eval',
      '--registry=my_tasks',
      '--set=train_steps=20',
      '--set=steps_per_loop=5',
      '--set=validation_interval=10',
      '--set=trainer.checkpoint_interval=5',
      WITHOUT_XLA,
      experiment='failing',
    ),
    cwd=tmp_path,
    timeout=TIMEOUT,
  )
  assert process.returncode == 1
  folder = tmp_path / 'run'
  (line,) = [line for line in process.stderr.splitlines() if line.startswith('error: ')]
  assert re.fullmatch(
    r'error: \S*my_tasks.py:\d+: RuntimeError: the disk of the moon is full; '
    r'the traceback is in run/traceback.txt',
    line,
  )
  assert 'Traceback' not in process.stderr and 'Traceback' in (folder / 'traceback.txt').read_text()
  record = read_json(folder / 'run.json')
  assert (record['status'], record['stage'], record['step']) == ('failed', 'eval', 10)
  assert 'the disk of the moon is full' in record['error'] and record['finished']
  assert (folder / 'operative_config.train_and_eval.gin').read_text()
  events = read_events(folder)
  assert steps_of(events, 'train') == [5, 10] and steps_of(events, 'checkpoint') == [5, 10]
  assert events[-1]['event'] == 'failed' and 'the disk of the moon is full' in events[-1]['error']
  # The saved checkpoint can be resumed from.
  assert (folder / 'ckpt-10.index').exists()
