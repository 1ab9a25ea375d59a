"""Tracing and compiling JAX's step of a decoder, anew at each turn."""

from collections.abc import Mapping
import time

import jax

from benchmarks.peers import protocol
from benchmarks.peers.runners import jax_steps
from benchmarks.peers.work import decoder


def measurement(work: None, layers: int) -> protocol.Measurement:
  """Compilations, one at a time.

  Args:
    work: nothing; it is the decoder of so many layers.
    layers: of it.
  """
  del work
  _compile(1)  # JAX's one-time work is done.

  def run(num_compilations: int) -> Mapping[str, float]:
    assert num_compilations == 1, num_compilations
    return _compile(layers)

  return protocol.Measurement(run)


def _compile(layers: int) -> Mapping[str, float]:
  """The seconds that it took, in all and in parts."""
  jax.clear_caches()
  work = decoder.decoder(layers)
  step, state = jax_steps.training_step(work)
  start = time.perf_counter()
  lowered = jax.jit(step, donate_argnums=0).lower(state, work.check_batch)
  traced = time.perf_counter()
  lowered.compile()
  compiled = time.perf_counter()
  return {'seconds': compiled - start, 'traced_in': traced - start, 'compiled_in': compiled - traced}
