"""The biases of ALiBi are those of transformers' Falcon, rounding included, and the papers' where both are exact."""

import numpy as np
import pytest
import tensorflow as tf

from official_ext.language.modeling import position_encodings

pytest.importorskip('transformers', reason="needs the test extra: pip install 'official-ext[test]'")
import torch
from transformers.models.falcon import modeling_falcon

from tests.language.modeling import checkpoints


def test_biases_are_those_of_transformers_with_their_rounding():
  """Also under XLA, which may leave out casts from float32 to bfloat16 and back."""
  length = 2100  # Positions above 256 are rounded.
  positions = tf.range(length)[tf.newaxis]
  for num_heads in (1, 2, 3, 6, 12, 16, 32, 71, 112, 128):
    mask = torch.ones([1, length], dtype=torch.long)
    expected = modeling_falcon.build_alibi_tensor(mask, num_heads, torch.float32).numpy().reshape(1, num_heads, length)
    np.testing.assert_array_equal(position_encodings.alibi_biases(num_heads, positions), expected)
    compiled = tf.function(position_encodings.alibi_biases, jit_compile=True, autograph=False)
    np.testing.assert_array_equal(compiled(num_heads, positions), expected)
    exact = position_encodings.alibi_slopes(num_heads)[:, np.newaxis] * np.arange(length)
    assert np.abs(expected - exact).max() > 0.01  # The rounding is a part of the function.


def test_slopes_are_those_of_the_paper():
  np.testing.assert_array_equal(position_encodings.alibi_slopes(8), [2.0**-k for k in range(1, 9)])
  np.testing.assert_array_equal(
    position_encodings.alibi_slopes(6), [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]
  )


def test_transformers_adds_them_twice_with_eager(monkeypatch):
  """The reason for comparing Falcon-RW with transformers' default, sdpa."""
  model = checkpoints.random_model(checkpoints.config('falcon_alibi'))
  from_config = checkpoints.transformers.AutoModelForCausalLM.from_config
  eager = from_config(checkpoints.config('falcon_alibi'), attn_implementation='eager').eval()
  eager.load_state_dict(model.state_dict())
  ids = np.random.default_rng(0).integers(3, 67, (2, 21))
  once = checkpoints.logits(model, ids)
  assert np.abs(checkpoints.logits(eager, ids) - once).max() > 1e-3
  own = modeling_falcon.build_alibi_tensor
  monkeypatch.setattr(modeling_falcon, 'build_alibi_tensor', lambda *args, **options: own(*args, **options) / 2)
  np.testing.assert_allclose(checkpoints.logits(eager, ids), once, atol=1e-5)
