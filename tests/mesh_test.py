"""Whole runs on meshes: the losses of one device, a run that continues with another mesh, and refusals."""

import json

import numpy as np
import pytest

from official_ext.base import errors
import registry_imports  # noqa: F401
from tests import train_processes
from tests.experiments import gan_test
from tests.experiments import language_model_test
from tests.experiments import shrunk_run
from tests.soak import comparison
from tests.training.loop import harness
from tests.training.loop import small_run

MESHES = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 2)]  # data, tensor
STEPS = 50
SGD = {
  'optimizer_config': {
    'optimizer': {'type': 'sgd_experimental', 'sgd_experimental': {'momentum': 0.9}},
    'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.05}},
    'warmup': {'type': None},
  }
}
DECODER = {
  **language_model_test.SMALL['task'],
  'model': {**language_model_test.SMALL['task']['model'], 'num_key_value_heads': 2, 'num_hidden_layers': 2},
  'train_data': {**language_model_test.SMALL['task']['train_data'], 'global_batch_size': 8},
}
CASES = {
  'digits_mlp': (
    {},
    [
      {'pattern': '^dense/kernel', 'axes': ['', 'tensor']},
      {'pattern': '^dense_1/kernel', 'axes': ['tensor']},
    ],
  ),
  'language_model': (
    DECODER,
    [
      {'pattern': '(q_proj|k_proj|v_proj|gate_proj|up_proj|lm_head)/kernel', 'axes': ['', 'tensor']},
      {'pattern': '(o_proj|down_proj)/kernel', 'axes': ['tensor']},
      {'pattern': 'embed_tokens', 'axes': ['', 'tensor']},
    ],
  ),
}


def flags(experiment, folder, mesh, steps=STEPS, **trainer):
  task, rules = CASES[experiment]
  lengths = {'steps_per_loop': 5, 'summary_interval': 5, 'checkpoint_interval': steps, 'train_steps': steps}
  changes = {'trainer': {**SGD, **lengths, **trainer}, 'task': task, 'runtime': {'enable_xla': False}}
  if mesh:
    changes['runtime'] = {'mesh': dict(zip(('data', 'tensor'), mesh))}
    changes['trainer']['sharding'] = {'parameters': rules}
  return [
    f'--experiment={experiment}',
    '--mode=train',
    f'--model_dir={folder}',
    f'--params_override={json.dumps(changes)}',
  ]


def train(run_train, *arguments, **options):
  done = run_train(flags(*arguments, **options), timeout=900, env=train_processes.UNOPTIMISED)
  assert done.returncode == 0, done.stderr
  losses = [e['training_loss'] for e in comparison.history(arguments[1]) if e['event'] == 'train']
  return np.array(losses)


def refuse(tmp_path, message, run):
  with pytest.raises(errors.UserError, match=f'^{message}'):
    run(tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_a_task_that_updates_by_itself_is_refused_before_the_run_has_a_folder(tmp_path):
  params = shrunk_run.make_params('gan', gan_test.SMALL, {'runtime': {'mesh': {'data': 2}}})
  message = 'runtime.mesh: GanTask calls optimizer.apply_gradients .* a mesh carries tasks that call it once'
  refuse(tmp_path, message, lambda folder: shrunk_run.run(folder, params))


@pytest.mark.parametrize(
  'optimizer, sharding, message',
  [
    ('sgd', {}, 'runtime.mesh: the step writes variables by ResourceApply'),
    ('sgd_experimental', {'parameters': [{'pattern': 'dnse'}]}, r'trainer.sharding.parameters.0.pattern: .*near'),
    ('sgd_experimental', {'activations': [{'pattern': 'dnse'}]}, r'trainer.sharding.activations.0.pattern: .*near'),
  ],
)
def test_a_step_that_cannot_be_split_is_refused_before_the_run_has_a_folder(tmp_path, optimizer, sharding, message):
  config = {**SGD['optimizer_config'], 'optimizer': {'type': optimizer}}
  params = small_run.make_params({'mesh': {'data': 2, 'tensor': 2}}, optimizer_config=config, sharding=sharding)
  refuse(tmp_path, message, lambda folder: small_run.run(folder, params=params))


@pytest.mark.soak
@pytest.mark.parametrize('experiment', CASES)
def test_losses_on_all_meshes_are_those_of_one_device(experiment, run_train, tmp_path):
  expected = train(run_train, experiment, tmp_path / 'alone', None)
  assert len(expected) == STEPS // 5 and expected[-1] < expected[0]
  for mesh in MESHES:
    found = train(run_train, experiment, tmp_path / f'{mesh[0]}x{mesh[1]}', mesh)
    np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=str(mesh))


@pytest.mark.soak
@pytest.mark.parametrize(
  'experiment',
  [
    *('digits', 'distillation_teacher', 'meta_learning', 'multi_task', 'preference', 'reinforcement', 'reward_model'),
    *('sft', 'text_classifier'),
  ],
)
def test_experiments_have_the_losses_of_one_device_on_two(experiment):
  """Unchanged, except Adam's: noise in a gradient of zero is a whole step with it."""
  losses = []
  for mesh in ({}, {'runtime': {'mesh': {'data': 2}}}):
    changes = {'task': {'train_data': {'global_batch_size': 32}}}  # Of meta_learning, 25 tasks.
    params = shrunk_run.make_params(experiment, changes, mesh, **SGD)
    trainer = shrunk_run.make_trainer(params)
    losses.append([harness.train(trainer, 1)['training_loss'] for _ in range(3)])
  np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


@pytest.mark.soak
@pytest.mark.parametrize('experiment', CASES)
def test_a_run_resumes_bit_for_bit_on_its_mesh_and_with_the_same_losses_on_others(experiment, run_train, tmp_path):
  straight = train(run_train, experiment, tmp_path / 'straight', (2, 2), steps=20)
  for name, meshes in (('same', [(2, 2), (2, 2)]), ('others', [(4, 2), (1, 2), None, (2, 1)])):
    for number, mesh in enumerate(meshes):
      steps = 20 * (number + 1) // len(meshes)
      found = train(run_train, experiment, tmp_path / name, mesh, steps=steps)
    np.testing.assert_allclose(found, straight, rtol=1e-5, err_msg=name)
  same, whole = (comparison.tensors(tmp_path / name / 'ckpt-20') for name in ('same', 'straight'))
  assert same.keys() == whole.keys()
  for name, value in whole.items():
    np.testing.assert_array_equal(value, same[name], err_msg=name)
