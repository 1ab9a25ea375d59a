"""Samplers: completions of prompts, by the model in this process or by a server that has its weights.

`vllm_sampler.py` holds the sampler of a server. All samplers keep the contract of `Sampler`.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar, Protocol

import tensorflow as tf

from official_ext.base import base_config
from official_ext.base import errors
from official_ext.language.modeling import generation
from official_ext.language.modeling import token_sampling


@dataclasses.dataclass
class SamplerConfig(base_config.Config):
  """Where completions are sampled in training. The names are those of TRL, if it has the field.

  Attributes:
    use_vllm: Whether a server of vLLM samples, instead of the model in this process. It gets the adapters as folders.
    vllm_server_base_url: The address of the server.
    vllm_server_timeout: Seconds that a request may take, and that a lost server is waited for.
    weight_sync_steps: Updates between two pushes of the adapters; 1: before every sampling. Above 1 the ratio of the
      loss is that to the server's probabilities.
    prompts_per_request: Prompts in a request. Those of one request share its seed, so that their draws are correlated.
    concurrent_requests: Requests at a time, of each replica.
    adapter_dir: The folder for pushed adapters, which the server reads too; empty: `sampler` in the folder of the run.
    server_adapter_dir: The path of that folder on the server's machine; empty: the same.
  """

  RANGES: ClassVar[Mapping[str, str]] = {
    'vllm_server_timeout': '(0, inf)',
    'weight_sync_steps': '[1, inf)',
    'prompts_per_request': '[1, inf)',
    'concurrent_requests': '[1, 1024]',
  }

  use_vllm: bool = False
  vllm_server_base_url: str = 'http://localhost:8000'
  vllm_server_timeout: float = 240.0
  weight_sync_steps: int = 1
  prompts_per_request: int = 1
  concurrent_requests: int = 32
  adapter_dir: str = ''
  server_adapter_dir: str = ''

  @property
  def is_stale(self) -> bool:
    """Whether completions may be those of earlier weights."""
    return self.use_vllm and self.weight_sync_steps > 1

  def check_values(self, path: str) -> None:
    """See `checks.check`."""
    if self.use_vllm and not self.vllm_server_base_url.startswith(('http://', 'https://')):
      raise errors.UserError(
        f'{path}.vllm_server_base_url: expected an address such as http://localhost:8000, '
        f'got {self.vllm_server_base_url!r}'
      )


class Sampler(Protocol):
  """Draws completions of prompts. A `token_sampling.GenerationConfig` has temperature, filters, length and stops."""

  def prepare(self, model: Any, prompt_length: int) -> None:
    """Checks, before training, that completions can be sampled.

    Args:
      model: the policy.
      prompt_length: tokens of the longest prompt.

    Raises:
      UserError: they cannot.
    """

  def take_weights(self, model: Any, step: tf.Tensor) -> tf.Tensor:
    """Takes the present weights, if the sampler has a copy of them. Eagerly or in a graph, in cross-replica context.

    Args:
      model: the policy.
      step: int64 scalar, the updates so far.

    Returns:
      A tensor without meaning: `__call__` must run after it.
    """

  def __call__(
    self, model: Any, prompts: tf.Tensor, mask: tf.Tensor, count: int, seed: tf.Tensor
  ) -> generation.Samples:
    """Completions of prompts. Eagerly or in a graph, in replica context.

    Args:
      model: the policy.
      prompts: int32 [p, t] of static shape, padded on the left.
      mask: int32 [p, t], 0 for padding.
      count: completions of each prompt.
      seed: int64 [2]; the same draws the same.

    Returns:
      p * count rows, those of a prompt beside each other. Log-probabilities are NaN if the sampler does not know them.
    """


class ModelSampler:
  """Samples by the model in this process. Called eagerly, it is compiled once for prompts of one shape."""

  def __init__(self, config: token_sampling.GenerationConfig):
    """Compiles nothing yet.

    Args:
      config: how to draw.
    """
    # The cache of keys and values is made for XLA. Inside of another XLA program this is a part of it.
    self._draw = tf.function(
      lambda model, count, prompts, mask, seed: generation.sample(model, config, prompts, mask, seed, count=count),
      jit_compile=True,
      autograph=False,
    )

  def prepare(self, model: Any, prompt_length: int) -> None:
    """Nothing: see base class."""

  def take_weights(self, model: Any, step: tf.Tensor) -> tf.Tensor:
    """Nothing, since the model itself samples: see base class."""
    del model
    return step

  def __call__(
    self, model: Any, prompts: tf.Tensor, mask: tf.Tensor, count: int, seed: tf.Tensor
  ) -> generation.Samples:
    """See base class."""
    found: generation.Samples = self._draw(model, count, prompts, mask, seed)
    return found
