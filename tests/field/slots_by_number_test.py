"""Slots that an optimizer keeps by number belong to the same variables after a restore, or are refused."""

import pytest
import tf_keras

from official_ext.base import errors
from official_ext.training.checkpoints import manifests
from tests.training.loop import small_run


class Frozen(small_run.SmallTask):
  """Three layers of one shape, of which some are frozen after their creation."""

  frozen: tuple[str, ...] = ()

  def build_model(self):
    inputs = tf_keras.Input([4])
    x = inputs
    for name in ('first', 'second', 'third'):
      x = tf_keras.layers.Dense(4, name=name)(x)
    model = tf_keras.Model(inputs, tf_keras.layers.Dense(3)(x))
    for name in self.frozen:
      model.get_layer(name).trainable = False
    return model


def run(folder, steps, *frozen, optimizer='adam_experimental'):
  rate = {'type': 'constant', 'constant': {'learning_rate': 0.01}}
  trainer = {'train_steps': steps, 'optimizer_config': {'optimizer': {'type': optimizer}, 'learning_rate': rate}}
  small_run.run(folder, 'train', type('Task', (Frozen,), {'frozen': frozen}), trainer=trainer)


def test_another_frozen_layer_of_the_same_shape_is_refused(tmp_path):
  run(tmp_path, 4, 'first')
  run(tmp_path, 8, 'first')
  with pytest.raises(errors.UserError, match=r'ckpt-8: optimizer has the slots of other variables than are trained'):
    run(tmp_path, 12, 'second')
  noted = manifests.read(str(tmp_path / 'ckpt-8'))['slot_owners']
  assert list(noted) == ['optimizer']


def test_slots_that_are_named_need_no_note(tmp_path):
  run(tmp_path, 4, 'first', optimizer='adam')
  assert 'slot_owners' not in manifests.read(str(tmp_path / 'ckpt-4'))
  with pytest.raises(errors.UserError, match='not a checkpoint of this model: m of model'):
    run(tmp_path, 8, 'second', optimizer='adam')
