"""JAX: a step under `jax.jit`, one at a time or many in `jax.lax.scan`; AdamW is Optax's."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.peers import protocol
from benchmarks.peers.work import decoder as decoder_work
from benchmarks.peers.work import training


def measurement(work: training.Work, steps_per_program: int = 1, bfloat16: bool = False) -> protocol.Measurement:
  """Steps.

  Args:
    work: its computation.
    steps_per_program: 1 for a call of a jitted step for each; more for a scan over as many.
    bfloat16: whether the network computes in bfloat16.
  """
  step, first = training_step(work, bfloat16)
  one = jax.jit(step, donate_argnums=0)
  many = jax.jit(lambda state, batches: jax.lax.scan(step, state, batches), donate_argnums=0)
  parameters = sum(weight.size for weight in first[0].values())
  state = [first]  # Donated to each step, and got back.
  batches = work.batches()

  def run(num_steps: int) -> Mapping[str, float]:
    for _ in range(num_steps // steps_per_program):
      if steps_per_program == 1:
        state[0], loss = one(state[0], next(batches))
      else:
        taken = [next(batches) for _ in range(steps_per_program)]
        state[0], losses = many(state[0], tuple(np.stack(parts) for parts in zip(*taken)))
        loss = losses[-1]
    return {'loss': float(loss)}

  check = lambda: float(loss_of(work, bfloat16, state[0][0], *work.check_batch))
  return protocol.Measurement(run, steps_per_program, parameters, check, is_reduced=bfloat16)


def loss_of(
  work: training.Work, bfloat16: bool, weights: Mapping[str, Any], inputs: Any, labels: Any, key: Any = None
) -> Any:
  """The mean cross-entropy of a batch; without a key nothing is dropped."""
  if bfloat16:
    weights = jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), weights)
  logits = _ARCHITECTURES[work.architecture](work.sizes, weights, inputs, key).astype(jnp.float32)
  return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def training_step(work: training.Work, bfloat16: bool = False) -> tuple[Callable[[Any, Any], Any], Any]:
  """(state, batch -> state, loss), and the first state: weights, slots, key."""
  optimizer = optax.chain(
    optax.clip_by_global_norm(work.clip_norm),
    optax.adamw(work.learning_rate, work.beta_1, work.beta_2, work.epsilon, weight_decay=work.weight_decay),
  )

  def step(state, batch):
    weights, slots, key = state
    key, drop = jax.random.split(key)
    loss, gradients = jax.value_and_grad(lambda weights: loss_of(work, bfloat16, weights, *batch, drop))(weights)
    updates, slots = optimizer.update(gradients, slots, weights)
    return (optax.apply_updates(weights, updates), slots, key), loss

  weights = {name: jnp.array(value) for name, value in work.weights.items()}
  return step, (weights, optimizer.init(weights), jax.random.key(0))


def _perceptron(sizes: Mapping[str, Any], weights: Mapping[str, Any], x: Any, key: Any) -> Any:
  del key
  last = len(sizes['widths']) - 2
  for number in range(last + 1):
    x = x @ weights[f'dense_{number}/kernel'] + weights[f'dense_{number}/bias']
    x = x if number == last else jax.nn.relu(x)
  return x


def _convolutional(sizes: Mapping[str, Any], weights: Mapping[str, Any], x: Any, key: Any) -> Any:
  rate = sizes['dropout_rate']

  def drop(x, number):
    if key is None:
      return x
    kept = jax.random.bernoulli(jax.random.fold_in(key, number), 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), 0)

  for number in range(len(sizes['filters'])):
    kernel = weights[f'conv_{number}/kernel']
    x = jax.lax.conv_general_dilated(
      x.astype(kernel.dtype), kernel, (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC')
    )
    x = jax.nn.relu(x + weights[f'conv_{number}/bias'])
  x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID')
  x = drop(x.reshape(len(x), -1), 0)
  x = drop(jax.nn.relu(x @ weights['dense_0/kernel'] + weights['dense_0/bias']), 1)
  return x @ weights['dense_1/kernel'] + weights['dense_1/bias']


def _decoder(sizes: Mapping[str, Any], weights: Mapping[str, Any], ids: Any, key: Any) -> Any:
  del key
  heads, width = sizes['heads'], sizes['width']
  batch, length = ids.shape

  def norm(x, name):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    x = (x - mean) * jax.lax.rsqrt(variance + decoder_work.EPSILON)
    return x * weights[f'{name}/scale'] + weights[f'{name}/bias']

  split = lambda x: x.reshape(batch, length, heads, width // heads)
  x = weights['decoder/embed_tokens/embeddings'][ids] + weights['decoder/embed_positions/embeddings']
  for number in range(sizes['layers']):
    block = f'decoder/blocks/{number}'
    attention, mlp = f'{block}/self_attn', f'{block}/mlp'
    y = norm(x, f'{block}/input_layernorm')
    qkv = jnp.concatenate([weights[f'{attention}/{kind}_proj/kernel'] for kind in 'qkv'], axis=1)
    q, k, v = (split(part) for part in jnp.split(y @ qkv, 3, -1))
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + y.reshape(batch, length, width) @ weights[f'{attention}/o_proj/kernel']
    y = norm(x, f'{block}/pre_feedforward_layernorm') @ weights[f'{mlp}/up_proj/kernel']
    y = jax.nn.gelu(y + weights[f'{mlp}/up_proj/bias'], approximate=False) @ weights[f'{mlp}/down_proj/kernel']
    x = x + y + weights[f'{mlp}/down_proj/bias']
  return norm(x, 'decoder/norm') @ weights['lm_head/kernel']


_ARCHITECTURES = {'mlp': _perceptron, 'conv': _convolutional, 'decoder': _decoder}
