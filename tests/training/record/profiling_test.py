"""Tests of profiling.py: the trace that TensorBoard reads, and the table."""

import re
import time

import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from official_ext.base import errors
from official_ext.cli import flags as ext_flags
from official_ext.operations.curves import timing
from official_ext.operations.runs import run_folders
from official_ext.training.loop import base_trainer
from official_ext.training.loop import train_lib
from official_ext.training.record import profiling
from tests.training.loop import harness
from tests.training.loop import small_run

WAIT_SECONDS = 0.05


class SlowInputTask(small_run.SmallTask):
  """Every batch takes 50 ms to come."""

  def build_inputs(self, params, input_context=None):
    def wait(x, y):
      seconds = tf.numpy_function(lambda: time.sleep(WAIT_SECONDS) or 0.0, [], tf.float64)
      with tf.control_dependencies([seconds]):
        return tf.identity(x), tf.identity(y)

    return super().build_inputs(params, input_context).map(wait)


def rows_of(text):
  """The table: (first step, last step, {name: seconds})."""
  match = re.search(r'Profile of steps (\d+) to (\d+)', text)
  assert match, text
  return (
    int(match[1]),
    int(match[2]),
    {name.strip(): float(seconds) for name, seconds in re.findall(r'^  (\w[\w ]+?) +([\d.]+) s', text, re.MULTILINE)},
  )


@pytest.mark.slow
def test_a_trace_and_a_table(tmp_path, capsys):
  """Steps 3 to 10 of 12: saves after 4 and 8 and an evaluation after 6 lie between them."""
  small_run.run(tmp_path, task_cls=SlowInputTask, profile_steps=(3, 10))
  first, last, rows = rows_of(capsys.readouterr().out)
  assert (first, last) == (3, 10)
  assert set(rows) == {'compute', 'input wait', 'save', 'evaluation', 'host', 'all'}
  assert sum(seconds for name, seconds in rows.items() if name != 'all') == pytest.approx(rows['all'], abs=1e-3)
  saves = [event['stall_seconds'] for event in small_run.events(tmp_path, 'checkpoint') if event['step'] in (4, 8)]
  assert rows['save'] == pytest.approx(sum(saves), abs=1e-3)
  evaluation = small_run.events(tmp_path, 'eval')[0]
  assert rows['evaluation'] == pytest.approx(evaluation['seconds'], abs=1e-3)
  # Batches are made while other things continue, but not eight in the time of one.
  assert WAIT_SECONDS < rows['input wait'] < rows['all']
  table = timing.read_profile(run_folders.get_run(str(tmp_path.parent), tmp_path.name))
  assert (table['first'], table['last'], table['seconds']) == (3, 10, pytest.approx(rows.pop('all'), abs=1e-4))
  assert table['rows'] == pytest.approx(rows, abs=1e-4)

  paths = list((tmp_path / 'plugins/profile').rglob('*.xplane.pb'))
  assert len(paths) == 1
  space = xplane_pb2.XSpace.FromString(paths[0].read_bytes())
  names = {metadata.name for plane in space.planes for metadata in plane.event_metadata.values()}
  assert 'train' in names and any('MatMul' in name for name in names)


@pytest.mark.slow
def test_whole_programs(tmp_path, capsys):
  """In programs of four steps, 6 to 7 lie in the second. Training ends before step 40, which is not a mistake."""
  params = small_run.make_params(
    runtime={'enable_xla': True},
    steps_per_execution=4,
    steps_per_loop=12,
    validation_interval=12,
    checkpoint_interval=12,
  )
  small_run.run(tmp_path, 'train', params=params, profile_steps=(6, 7))
  first, last, rows = rows_of(capsys.readouterr().out)
  assert (first, last) == (5, 8) and 'evaluation' not in rows
  small_run.run(tmp_path / 'short', 'train', trainer={'train_steps': 4}, profile_steps=(40, 41))
  assert 'No profile: the steps 40 to 41 were not run.' in capsys.readouterr().out


def test_the_profiler_is_handed_in(tmp_path, capsys):
  """A trainer calls the profiler that it was made with. One that takes none, or exists already, is refused first."""

  class Narrow(base_trainer.Trainer):
    def __init__(self, config, task, model, optimizer, train, evaluate, checkpoint_exporter):
      super().__init__(config, task, model, optimizer, train, evaluate, checkpoint_exporter=checkpoint_exporter)

  class NarrowTask(small_run.SmallTask):
    trainer_cls = Narrow

  with pytest.raises(errors.UserError, match='--profile_steps: Narrow takes no argument `profiler`'):
    small_run.run(tmp_path, 'train', task_cls=NarrowTask, profile_steps=(3, 4))
  profiler = profiling.Profiler((2, 3), str(tmp_path / 'own'))
  trainer = harness.make_trainer(small_run.SmallTask, profiler=profiler, enable_xla=False)
  assert trainer.profiler is profiler
  with pytest.raises(errors.UserError, match='RunOptions.profile_steps: a trainer that is handed over'):
    params = small_run.make_params()
    options = train_lib.RunOptions(trainer=trainer, profile_steps=(3, 4))
    train_lib.run_experiment(
      harness.strategy('one'), small_run.make_task(params), 'train', params, str(tmp_path), options=options
    )
  assert not any(tmp_path.iterdir())
  harness.train(trainer, 4)
  assert rows_of(capsys.readouterr().out)[:2] == (2, 3)


@pytest.mark.parametrize('text', ['3', '4,2', '0,2', 'a,b', '1,2,3'])
def test_steps_that_are_none(text, capsys):
  ext_flags.define_flags()
  with pytest.raises(SystemExit):
    ext_flags.parse_flags(['train.py', '--experiment=a', '--mode=train', '--model_dir=/tmp', f'--profile_steps={text}'])
  assert f'error: --profile_steps={text}: expected the first and the last step' in capsys.readouterr().err
