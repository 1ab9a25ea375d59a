"""max_steps of the language models' methods shortens the warm-up with the training: the rate is never 0 throughout."""

import json
import math
import types

import official_ext as ext

# isort: split
from official.common import registry_imports as model_garden_registry_imports  # noqa: F401
from official.modeling import optimization
import pytest
import tensorflow as tf

from official_ext.training.config import parser
import registry_imports  # noqa: F401
from tests import tiers


def parse(experiment, *sets, **flags):
  return parser.parse_configuration(types.SimpleNamespace(experiment=experiment, mode=None, set=list(sets), **flags))


def warm_up(params):
  return params.trainer.optimizer_config.warmup.linear.warmup_steps


METHODS = ('grpo', 'preference', 'reward_model', 'sft')


def test_these_are_all_fine_tuning_methods():
  names = [name for name in parser.experiment_names() if parser.factory_of(name).__module__.startswith('experiments.')]
  tasks = {name: parser.factory_of(name)().task for name in names}
  assert {name for name, task in tasks.items() if isinstance(task, ext.FineTuningConfig)} == set(METHODS)


@pytest.mark.slow
@tiers.parametrize('experiment', METHODS, fast=1)
def test_the_warm_up_keeps_its_share(experiment):
  registered = parse(experiment)
  length, before = registered.trainer.train_steps, warm_up(registered)
  for steps in (1, 2, 3, 5, before, before + 1, length // 2, length, 3 * length):
    params = parse(experiment, f'max_steps={steps}')
    assert warm_up(params) == min(before, math.ceil(before * steps / length), steps - 1)
    rate = optimization.OptimizerFactory(params.trainer.optimizer_config).build_learning_rate()
    rates = [float(rate(tf.constant(step, tf.int64))) for step in range(min(steps, 20))]
    assert all(math.isfinite(value) and value >= 0 for value in rates) and max(rates) > 0
    assert parse(experiment, f'train_steps={steps}').trainer.optimizer_config == registered.trainer.optimizer_config


@tiers.parametrize('experiment', METHODS, fast=1)
def test_a_warm_up_that_is_set_stays(experiment):
  path = 'trainer.optimizer_config.warmup.linear.warmup_steps'
  for sets in (('max_steps=5', 'warmup_steps=3'), (f'{path}=3', 'max_steps=5')):
    assert warm_up(parse(experiment, *sets)) == 3
  assert warm_up(parse(experiment, 'max_steps=5', params_override=f'{path}=4')) == 4


def test_the_warm_up_inside_a_schedule_keeps_its_share_too():
  sets = ('schedule=warmup_stable_decay', 'learning_rate=1.0', 'max_steps=5')
  schedule = parse('sft', *sets).trainer.optimizer_config.learning_rate.warmup_stable_decay
  assert (schedule.total_decay_steps, schedule.warmup_steps) == (5, 0)


def test_the_interval_of_an_exponential_schedule_stays():
  rate = lambda *sets: parse('mobilenet_imagenet', *sets).trainer.optimizer_config.learning_rate.exponential
  before = rate()
  assert rate('max_steps=100000').decay_steps == before.decay_steps < 1000
  assert parse('mobilenet_imagenet', 'max_steps=100000').trainer.train_steps == 100_000
  assert rate('max_steps=100000', 'decay_steps=50').decay_steps == 50
  cosine = parse('digits', 'max_steps=50').trainer.optimizer_config.learning_rate.cosine
  assert cosine.decay_steps == 50


@pytest.mark.slow
@tiers.parametrize('experiment', ['preference', 'reward_model'], fast=['preference'])
def test_a_short_run_learns(experiment, run_train, tmp_path):
  small = ('model.hidden_size=16', 'model.intermediate_size=24', 'model.num_hidden_layers=1', 'model.vocab_size=300')
  sizes = ('train_data.global_batch_size=2', 'train_data.seq_length=64', 'train_data.max_samples=8')
  done = run_train(
    [
      f'--experiment={experiment}',
      '--mode=train',
      f'--model_dir={tmp_path}/run',
      '--set=max_steps=3',
      '--set=summary_interval=1',
      '--set=steps_per_loop=1',
      '--set=xla=false',
      *(f'--set=task.{change}' for change in (*small, *sizes)),
    ]
  )
  assert done.returncode == 0, done.stderr
  lines = (tmp_path / 'run/events.jsonl').read_text().splitlines()
  rates = [event['learning_rate'] for event in map(json.loads, lines) if event['event'] == 'train']
  assert len(rates) == 3 and max(rates) > 0


def test_a_run_without_any_rate_is_an_error(run_train, tmp_path):
  flags = ['--experiment=language_model', '--mode=train', f'--model_dir={tmp_path}/run', '--set=train_steps=1']
  done = run_train(flags)
  assert done.returncode == 2, done.stdout + done.stderr
  assert 'error: trainer.optimizer_config: the learning rate is 0 at each of the steps 0 to 0' in done.stderr
  assert not (tmp_path / 'run').exists()
