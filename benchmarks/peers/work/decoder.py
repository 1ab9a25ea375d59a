"""A decoder on rows of random tokens: LayerNorm before each part, learned positions, exact GELU, a separate head."""

import numpy as np

from benchmarks.peers.work import training

VOCABULARY, WIDTH, HEADS, LENGTH, BATCH = 512, 256, 4, 128, 16
EPSILON = 1e-5
_SCALE = 0.02


def decoder(layers: int = 4) -> training.Work:
  """Layers of 256; each step takes all 16 rows, so that losses after as many steps can be compared too.

  Names of weights are those of `official_ext.language.modeling.model_weights`.
  """
  rows = np.random.default_rng(1).integers(0, VOCABULARY, [BATCH, LENGTH + 1]).astype(np.int32)
  weights = training.Weights()

  def norm(name):
    weights.constant(f'{name}/scale', WIDTH, 1.0)
    weights.constant(f'{name}/bias', WIDTH, 0.0)

  weights.normal('decoder/embed_tokens/embeddings', (VOCABULARY, WIDTH), _SCALE)
  weights.normal('decoder/embed_positions/embeddings', (LENGTH, WIDTH), _SCALE)
  for number in range(layers):
    block = f'decoder/blocks/{number}'
    norm(f'{block}/input_layernorm')
    for name in ('q_proj', 'k_proj', 'v_proj', 'o_proj'):
      weights.normal(f'{block}/self_attn/{name}/kernel', (WIDTH, WIDTH), _SCALE)
    norm(f'{block}/pre_feedforward_layernorm')
    for name, before, after in (('up_proj', WIDTH, 4 * WIDTH), ('down_proj', 4 * WIDTH, WIDTH)):
      weights.normal(f'{block}/mlp/{name}/kernel', (before, after), _SCALE)
      weights.constant(f'{block}/mlp/{name}/bias', after, 0.0)
  norm('decoder/norm')
  weights.normal('lm_head/kernel', (WIDTH, VOCABULARY), _SCALE)
  sizes = {'layers': layers, 'width': WIDTH, 'heads': HEADS, 'length': LENGTH, 'vocabulary': VOCABULARY}
  return training.Work(
    'decoder',
    sizes,
    np.ascontiguousarray(rows[:, :-1]),
    np.ascontiguousarray(rows[:, 1:]),
    BATCH,
    weights.drawn,
    counts_accuracy=False,
  )


def flops(layers: int = 4) -> float:
  """Of a step: 6 for each weight of a matrix and token, and the products of attention, forward and backward."""
  tokens = BATCH * LENGTH
  matrices = layers * 12 * WIDTH**2 + WIDTH * VOCABULARY
  return 6.0 * matrices * tokens + 12.0 * layers * LENGTH * WIDTH * tokens
