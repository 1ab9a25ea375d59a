"""`runtime.mesh` and `trainer.sharding`: the values and runs that they refuse."""

import pytest

from official_ext.base import errors
from official_ext.training.config import checks
from official_ext.training.config import definitions
from official_ext.training.config import mesh_config
from official_ext.training.config import overrides

RULE = {'pattern': 'kernel', 'axes': ['', 'tensor']}


def make_params(**changes):
  params = definitions.ExperimentConfig()
  overrides.override(params, {'trainer': {'train_steps': 1}, **changes})
  return params


def test_sizes_of_the_axes_that_there_are_and_the_axis_of_batches():
  assert mesh_config.MeshConfig().sizes() == {} and mesh_config.MeshConfig().num_devices() == 0
  mesh = mesh_config.MeshConfig({'tensor': 2, 'fsdp': 3, 'data': 1})
  assert mesh.sizes() == {'data': 1, 'fsdp': 3, 'tensor': 2}
  assert mesh.num_devices() == 6 and mesh.batch_axis() == 'fsdp'
  assert mesh_config.MeshConfig({'tensor': 2}).batch_axis() == ''


def test_data_and_fsdp_above_1_are_one_axis_of_devices():
  mesh = mesh_config.MeshConfig({'tensor': 2, 'fsdp': 3, 'data': 4})
  assert mesh.sizes() == {'fsdp': 12, 'tensor': 2} and mesh.num_devices() == 24 and mesh.batch_axis() == 'fsdp'
  assert mesh_config.describe(mesh.sizes()) == 'fsdp 12 x tensor 2'
  assert [mesh_config.axis_in(mesh.sizes(), axis) for axis in ('data', 'fsdp', 'tensor', '')] == [
    *('fsdp', 'fsdp', 'tensor', ''),
  ]


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'runtime': {'mesh': {'data': -1}}}, 'runtime.mesh.data: expected a number of at least 0|runtime.mesh.data: '),
    ({'trainer': {'sharding': {'parameters': [{'axes': ['']}]}}}, 'trainer.sharding.parameters.0.pattern: is empty'),
    (
      {'trainer': {'sharding': {'parameters': [{'pattern': '(', 'axes': ['']}]}}},
      r"trainer.sharding.parameters.0.pattern: '\(' is not a regular expression",
    ),
    (
      {'trainer': {'sharding': {'activations': [{'pattern': 'a', 'axes': ['tensr']}]}}},
      "trainer.sharding.activations.0.axes.0: 'tensr': did you mean tensor\\? expected",
    ),
    (
      {'trainer': {'sharding': {'parameters': [{'pattern': 'a', 'axes': ['data', 'data']}]}}},
      "trainer.sharding.parameters.0.axes.1: 'data' splits another dimension already",
    ),
  ],
)
def test_values_that_mean_nothing_are_refused(changes, message):
  with pytest.raises(errors.UserError, match=f'^({message})'):
    checks.check_values(make_params(**changes))


@pytest.mark.parametrize(
  'changes, message',
  [
    (
      {'trainer': {'sharding': {'parameters': [RULE]}}},
      'trainer.sharding.parameters.0: there is no mesh; set the size',
    ),
    (
      {'trainer': {'sharding': {'parameters': [RULE]}}, 'runtime': {'mesh': {'data': 2}}},
      "trainer.sharding.parameters.0.axes.1: the mesh has no axis 'tensor', only data; set runtime.mesh.tensor, to 1",
    ),
    ({'runtime': {'mesh': {'data': 2}, 'enable_xla': True}}, 'runtime.enable_xla: True: a mesh .* is not compiled'),
    (
      {'runtime': {'mesh': {'data': 2}, 'distribution_strategy': 'mirrored'}},
      "runtime.distribution_strategy: 'mirrored': a mesh .* is one process; set it to auto or one_device",
    ),
    (
      {'runtime': {'mesh': {'data': 2}, 'mixed_precision_dtype': 'float16'}},
      "runtime.mixed_precision_dtype: 'float16': a mesh .* set it to null or auto or float32 or bfloat16",
    ),
    ({'runtime': {'mesh': {'data': 2}}, 'trainer': {'inspect': {'every': 5}}}, 'trainer.inspect.every: 5: a mesh'),
    (
      {'runtime': {'mesh': {'data': 2}}, 'trainer': {'steps_per_execution': 4}},
      'trainer.steps_per_execution: 4: a mesh',
    ),
  ],
)
def test_what_a_mesh_cannot_run_is_refused(changes, message):
  with pytest.raises(errors.UserError, match=f'(?m)^{message}'):
    checks.check_complete(make_params(**changes), 'train')


def test_without_a_mesh_nothing_is_refused():
  checks.check_complete(make_params(), 'train')
