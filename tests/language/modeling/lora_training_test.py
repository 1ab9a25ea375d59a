"""Runs that train adapters: their results, their checkpoints, and their resumption."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import pretrained
from tests.soak import comparison


@pytest.fixture(scope='module')
def bases(tmp_path_factory):
  """Two folders with models of the same form."""
  folders = []
  for seed in range(2):
    config = decoder_config.DecoderConfig(
      vocab_size=31, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_key_value_heads=2
    )
    model = decoder.LanguageModel(config)
    for number, variable in enumerate(model.variables):
      if variable.shape.rank > 1:
        variable.assign(0.1 * tf.random.stateless_normal(variable.shape, [seed, number]))
    folders.append(str(tmp_path_factory.mktemp(f'base{seed}')))
    pretrained.save(model, folders[-1])
  return folders


_TWO = (
  '--set=task.scan_layers=true',
  '--set=runtime.distribution_strategy=mirrored',
  '--set=runtime.num_virtual_cpus=2',
)


@pytest.mark.parametrize(
  'flags',
  [
    pytest.param(_TWO, id='two replicas, stacked layers', marks=pytest.mark.soak),
    pytest.param((), id='one replica', marks=pytest.mark.soak),
  ],
)
def test_a_resumed_run_is_the_straight_one_and_checkpoints_are_small(run_train, bases, tmp_path, flags):
  def train(name, base=bases[0], status=0):
    command = ['--registry=tests.lora_language_model', '--experiment=lora_language_model', '--mode=train']
    command += [f'--model_dir={tmp_path / name}', f'--set=task.model_path={base}', *flags]
    result = run_train(command, timeout=600)
    assert result.returncode == status, result.stdout + result.stderr
    return result

  train('straight')
  shutil.copytree(tmp_path / 'straight', tmp_path / 'resumed')
  for path in (tmp_path / 'resumed').glob('ckpt-12*'):
    path.unlink()
  refused = train('resumed', base=bases[1], status=2)
  assert 'frozen_weights_sha256_' in refused.stderr and refused.stderr.count('error: ') == 1
  train('resumed')
  straight, resumed = (comparison.tensors(tmp_path / name / 'ckpt-12') for name in ('straight', 'resumed'))
  assert sorted(straight) == sorted(resumed)
  different = [name for name, value in straight.items() if not np.array_equal(value, resumed[name])]
  assert different == []
  weights = [name for name in straight if 'VARIABLE_VALUE' in name and name.startswith('model/')]
  assert all('lora_' in name or 'frozen_weights' in name for name in weights) and len(weights) >= 4, weights
  events = [json.loads(line) for line in (tmp_path / 'straight/events.jsonl').read_text().splitlines()]
  losses = [event['training_loss'] for event in events if event['event'] == 'train']
  assert losses[-1] < 0.8 * losses[0], losses
