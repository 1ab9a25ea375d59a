"""docs/how_to/manual_optimization.md: its example trains as it says, and resumes bit for bit."""

import importlib.util
import pathlib
import re

from official.core import exp_factory
import pytest
import tensorflow as tf

from tests.experiments import shrunk_run
from tests.training.loop import harness
from tests.training.loop import small_run

TEXT = (pathlib.Path(__file__).resolve().parents[2] / 'docs/how_to/manual_optimization.md').read_text()


@pytest.fixture(scope='module', autouse=True)
def module(tmp_path_factory):
  """The example, imported as a separate module."""
  code = re.findall(r'```python\n(.*?)```', TEXT, re.DOTALL)[0]  # The others: code_of_pages_test.py.
  path = tmp_path_factory.mktemp('docs') / 'ring_gan.py'
  path.write_text(code)
  spec = importlib.util.spec_from_file_location('ring_gan', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.mark.slow
def test_the_example_runs(tmp_path):
  logs = shrunk_run.run(tmp_path, shrunk_run.make_params('ring_gan'))
  assert {'distance', 'roundness'} <= logs.keys()
  assert 'discriminator_loss' in small_run.events(tmp_path, 'train')[-1]


@pytest.mark.soak
def test_the_example_learns_what_it_states(module, tmp_path):
  params = exp_factory.get_exp_config('ring_gan')
  params.task.train_data.seed = 0
  logs = shrunk_run.run(tmp_path, params)
  claim = re.search(r'below ([\d.]+),.* above ([\d.]+)\)', module.ring_gan.__doc__)
  assert logs['distance'] < float(claim.group(1)) and logs['roundness'] > float(claim.group(2))
  # As the table says.
  assert small_run.record(tmp_path)['step_shape'] == 'fused' and small_run.record(tmp_path)['jit_compile']


@pytest.mark.soak
def test_it_resumes_bit_for_bit_on_two_replicas(tmp_path):
  held = shrunk_run.assert_resumes_bit_for_bit(shrunk_run.make_params('ring_gan'), tmp_path, 'two')
  assert held['model/discriminator_optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE'] == 2 * 5


@pytest.mark.soak
def test_two_replicas_learn_what_one_does(module, monkeypatch):
  """From the same batch, where the latent vectors are alike on both."""
  monkeypatch.setattr(module.RingGanTask, 'latents', lambda self, n: tf.ones([n, self.config.latent_size]))
  sgd = {'optimizer': {'type': 'sgd', 'sgd': {'momentum': 0.0}}}
  changes = {'task': {'discriminator_optimizer': sgd, 'n_critic': 1}, 'trainer': {'optimizer_config': sgd}}
  results = []
  for replicas in ('one', 'two'):
    trainer = shrunk_run.make_trainer(shrunk_run.make_params('ring_gan', changes), replicas)
    before = harness.weights_of(trainer)
    harness.train(trainer, 2)
    results.append([after - w for after, w in zip(harness.weights_of(trainer), before)])
  harness.assert_close(results[1], results[0], rtol=1e-3, atol=1e-7)
