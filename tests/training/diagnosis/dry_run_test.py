"""--dry_run: prints the parts, finds errors, leaves nothing."""

import inspect
import pathlib
import re
import tempfile

from official.core import task_factory
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.training.diagnosis import dry_run
from tests import tiers
from tests.training.loop import harness
from tests.training.loop import small_run


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
  """run(task_cls, **trainer) -> the lines printed, as {name: text}. Temporary folders are made in tmp_path."""
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))

  def run(task_cls=small_run.SmallTask, runtime=None, **trainer):
    params = small_run.make_params(runtime, **trainer)
    task = lambda config, logging_dir: task_cls(config, harness.make_data(small_run.NUM_EXAMPLES))
    monkeypatch.setattr(task_factory, 'get_task', task)
    try:
      dry_run.run(params)
    finally:
      # TensorFlow's own files of generated code stay until the process ends, and their compiled form.
      assert not [path for path in tmp_path.iterdir() if path.is_dir() and path.name != '__pycache__']
    return dict(
      line.split(maxsplit=1) if line[:1] != ' ' else ('', line)
      for line in re.sub(r'^(\w+) step ', r'\1_step ', capsys.readouterr().out, flags=re.MULTILINE).splitlines()
    )

  return run


@pytest.mark.slow
def test_it_prints_what_there_is(run):
  lines = run()
  assert list(lines)[-1] == 'mistakes' and lines['mistakes'] == '1 warning'  # Its validation data are training data.
  parameters = harness.NUM_FEATURES * harness.NUM_CLASSES + harness.NUM_CLASSES
  assert lines['task'] == 'SmallTask'
  assert re.match(rf'Functional, {parameters} parameters; weights [\d.e-]+ MiB', lines['model'])
  assert lines['optimizer'] == 'SGD'
  assert lines['step'].startswith('plain')
  assert re.fullmatch(r'training_loss \d\S*; compiled in \d+\.\d s, then \d+\.\d ms', lines['train_step'])
  assert re.fullmatch(r'accuracy \S+, validation_loss \S+, logit_mean \S+', lines['eval_step'])
  assert 'saved and restored, 2 variables equal' in lines['checkpoint']
  assert lines['would'] == 'train 12 steps of 8 examples, evaluate every 6, save every 4'


@pytest.mark.slow
def test_it_runs_on_two_replicas(run):
  assert '2 replicas' in run(runtime={'distribution_strategy': 'mirrored', 'num_virtual_cpus': 2})['devices']


@pytest.mark.slow
@tiers.parametrize('makes_layers', [False, True], fast=1)
def test_names_of_layers_are_those_of_a_run(run, makes_layers):
  """By which patterns find variables; a run builds the task and then one model."""

  class Task(small_run.SmallTask):
    def __init__(self, *args, **kwargs):
      super().__init__(*args, **kwargs)
      if makes_layers:
        tf_keras.layers.Dense(1)

    def build_model(self):
      return tf_keras.Sequential([tf_keras.layers.Dense(harness.NUM_CLASSES, input_shape=[harness.NUM_FEATURES])])

  tf_keras.backend.reset_uids()
  name = 'dense_1' if makes_layers else 'dense'
  config = small_run.make_params().trainer.optimizer_config.as_dict()
  groups = [{'patterns': [f'^{name}/kernel$'], 'learning_rate_scale': 0.5}]
  assert 'error' not in run(Task, optimizer_config={**config, 'parameter_groups': groups})['mistakes']


@pytest.mark.slow
def test_epochs_are_resolved(run):
  assert run(train_steps=0, train_epochs=3)['would'].startswith('train 24 steps of 8 examples')


def test_a_metric_that_is_not_reported(run):
  with pytest.raises(errors.UserError, match='acuracy: did you mean accuracy'):
    run(best_checkpoint_export_subdir='best', best_checkpoint_eval_metric='acuracy')


def test_an_error_of_the_task_is_one_line_and_no_verdict_goes_before_it(run, capsys):

  class Broken(small_run.SmallTask):
    def forward(self, inputs, model, training):
      raise RuntimeError('this forward is broken')

  with pytest.raises(errors.UserError) as info:
    run(Broken)
  line = inspect.getsourcelines(Broken)[1] + 2
  place, name = re.fullmatch(
    r'(\S+): RuntimeError: this forward is broken; the traceback is in (\S+)', str(info.value)
  ).groups()
  assert place == f'tests/training/diagnosis/dry_run_test.py:{line}'
  assert 'in forward' in pathlib.Path(name).read_text()
  out = capsys.readouterr().out
  assert 'none found' not in out and out.splitlines()[-1].split() == ['mistakes', '1', 'error,', '1', 'warning']


def test_a_variable_that_every_step_makes_is_found_before_the_verdict(run, capsys):
  """Eagerly it works: only a trace shows it."""

  class MakesVariables(small_run.SmallTask):
    def forward(self, inputs, model, training):
      loss, logs = super().forward(inputs, model, training)
      return loss + tf.Variable(1.0), logs

  with pytest.raises(errors.UserError, match=r'dry_run_test.py:\d+: ValueError: tf.function only supports singleton'):
    run(MakesVariables)
  assert 'none found' not in capsys.readouterr().out


def test_an_action_that_cannot_be_built_is_found(run):

  class NoActions(small_run.SmallTask):
    def build_actions(self, trainer):
      return [trainer.no_such_part]

  with pytest.raises(errors.UserError, match=r'dry_run_test.py:\d+: AttributeError: .*no_such_part'):
    run(NoActions)


@pytest.mark.slow
def test_a_value_that_the_checkpoint_does_not_hold(run):

  class Untracked(tf_keras.layers.Layer):
    """Its weight hides from tf.train.Checkpoint."""

    def build(self, input_shape):
      weight = self.add_weight(name='hidden', shape=(), initializer='ones')
      self._untracked = weight

    def call(self, inputs):
      return inputs * self._untracked

    def _trackable_children(self, save_type='checkpoint', **kwargs):
      return {}

  class Hiding(small_run.SmallTask):
    def build_model(self):
      inputs = tf_keras.Input((harness.NUM_FEATURES,))
      return tf_keras.Model(inputs, tf_keras.layers.Dense(harness.NUM_CLASSES)(Untracked(name='hiding')(inputs)))

  with pytest.raises(errors.UserError, match='the checkpoint does not hold hiding/hidden:0'):
    run(Hiding)


@pytest.mark.slow
def test_frozen_and_integer_variables_are_compared_too(run):

  class Counting(small_run.SmallTask):
    def build_model(self):
      model = super().build_model()
      model.calls = tf.Variable(3, trainable=False, dtype=tf.int32)
      return model

  assert 'variables equal' in run(Counting)['checkpoint']
