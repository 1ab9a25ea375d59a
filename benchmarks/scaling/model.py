"""A step on many devices, computed: arithmetic, exchanges, memory. Pure functions; imports no framework.

Rajbhandari et al., ZeRO (2020): memory and communication of sharded weights, gradients and slots. Shoeybi et al.,
Megatron-LM (2019): two all-reduces of activations a block forward, and two backward, under tensor parallelism.
"""

import dataclasses
from typing import Any

from benchmarks.scaling import collectives

REPLICATED, SHARDED = 'replicated', 'sharded'


@dataclasses.dataclass(frozen=True)
class Decoder:
  """Counts of a decoder.

  Attributes:
    layers: blocks.
    width: of the residual stream.
    vocabulary: tokens.
    length: tokens of a row.
    block: parameters of a block.
    others: parameters outside of blocks.
    unmultiplied: of the others, those that take part in no product: embeddings that are looked up alone. In this
      library's trace their gradients are rows, which replicas gather and do not reduce.
  """

  layers: int
  width: int
  vocabulary: int
  length: int
  block: int
  others: int
  unmultiplied: int

  @property
  def parameters(self) -> int:
    return self.layers * self.block + self.others

  @property
  def flops_per_token(self) -> float:
    """Forward and backward: 6 for each weight of a product, and attention (Chowdhery et al., PaLM, 2022)."""
    return 6.0 * (self.parameters - self.unmultiplied) + 12.0 * self.layers * self.width * self.length


def count(config: Any, length: int) -> Decoder:
  """Counts the weights of `official_ext.LanguageModel(config)`, without making it.

  Args:
    config: an `official_ext.DecoderConfig`, or an object with its fields. No experts, post-norms or norms of heads.
    length: tokens of a row.
  """
  width, inner = config.hidden_size, config.intermediate_size
  head = config.head_dim or width // config.num_attention_heads
  queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
  norm = width * (2 if config.norm_type == 'layer_norm' else 1)
  attention = width * (queries + 2 * keys) + queries * width
  attention += (queries + 2 * keys) * config.attention_bias + width * config.attention_out_bias
  into = 2 if config.gated_mlp else 1
  mlp = (into + 1) * width * inner + (into * inner + width) * config.mlp_bias
  embedding = config.vocab_size * width
  positions = config.max_position_embeddings * width if config.position_embedding_type == 'learned' else 0
  return Decoder(
    layers=config.num_hidden_layers,
    width=width,
    vocabulary=config.vocab_size,
    length=length,
    block=attention + mlp + 2 * norm,
    others=embedding * (1 if config.tie_word_embeddings else 2) + positions + norm,
    unmultiplied=positions + (0 if config.tie_word_embeddings else embedding),
  )


@dataclasses.dataclass(frozen=True)
class Machine:
  """Devices and their links.

  Attributes:
    flops: of a device, at best, in a second.
    utilization: share of `flops` that a step has while it computes.
    memory: bytes of a device.
    network: between devices.
  """

  flops: float
  utilization: float
  memory: float
  network: collectives.Network


@dataclasses.dataclass(frozen=True)
class Plan:
  """How a step is split.

  Attributes:
    devices: all of them.
    rows: of the global batch.
    layout: REPLICATED, weights whole wherever a part of the batch is; SHARDED, each of those devices keeps a part of
      weights, gradients and slots (ZeRO's third stage, FSDP).
    tensor: devices that share the products of each layer, neighbours in a node.
    micro_rows: at most so many rows are computed at once by a group of `tensor` devices; the rest is accumulated.
  """

  devices: int
  rows: int
  layout: str = REPLICATED
  tensor: int = 1
  micro_rows: int = 1

  @property
  def groups(self) -> int:
    """Groups of `tensor` devices: into so many parts the batch is cut."""
    return self.devices // self.tensor

  @property
  def micro_steps(self) -> int:
    return -(-self.rows // (self.groups * self.micro_rows))

  def why_not(self, machine: Machine) -> str:
    """Why there is no such step; '' if there is."""
    if self.devices % self.tensor or self.tensor > machine.network.node_size:
      return f'{self.tensor} devices for each layer do not go into {self.devices}, or not into a node'
    if self.rows < self.groups:
      return 'less than a row for each'
    return 'rows do not go into parts' if self.rows % (self.groups * min(self.micro_rows, self.rows)) else ''


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Bytes of a number, or of a parameter.

  Attributes:
    gradient: of an element of a gradient that is reduced: float32, as this library's trace has it.
    gathered: of a weight that is gathered for its product.
    activation: of an element of an activation.
    state: of a parameter where it is kept: weight, gradient and two slots in float32.
  """

  gradient: int = 4
  gathered: int = 2
  activation: int = 2
  state: int = 16


@dataclasses.dataclass(frozen=True)
class Step:
  """Seconds of a step, and bytes of a device.

  Attributes:
    compute: seconds of products.
    exchange: seconds of gradients and, if sharded, of weights: may be hidden behind products.
    activations: seconds of all-reduces of activations, which products wait for.
    memory: bytes.
  """

  compute: float
  exchange: float
  activations: float
  memory: float

  @property
  def least(self) -> float:
    """Seconds if all that can be hidden is."""
    return max(self.compute, self.exchange) + self.activations

  @property
  def most(self) -> float:
    """Seconds if nothing is hidden."""
    return self.compute + self.exchange + self.activations


def reduced_bytes(parameters: int, sizes: Sizes = Sizes()) -> int:
  """The all-reduce traffic of a replica of this library's trainer in a step: gradients, the loss, whether it is bad.

  Args:
    parameters: whose gradients are dense: those of a `Decoder` without `unmultiplied`.
    sizes: of a number.
  """
  return parameters * sizes.gradient + 2 * 4


def activation_bytes(decoder: Decoder, tokens: int, sizes: Sizes = Sizes()) -> int:
  """The sums of tensor parallelism in a step over so many tokens: a tensor behind attention and MLP, each way."""
  return 4 * decoder.layers * tokens * decoder.width * sizes.activation


def state_bytes(decoder: Decoder, plan: Plan, sizes: Sizes = Sizes()) -> float:
  """Weights, gradients and slots on a device; if sharded also two gathered blocks, or the weights outside of blocks.

  That everything is split evenly, norms and biases too, is an assumption: they are small.
  """
  if plan.layout == REPLICATED or plan.groups == 1:
    return decoder.parameters * sizes.state / plan.tensor
  gathered = max(2 * decoder.block, decoder.others) * sizes.gathered / plan.tensor
  return decoder.parameters * sizes.state / plan.devices + gathered


def kept_bytes(decoder: Decoder, plan: Plan, sizes: Sizes = Sizes()) -> float:
  """Activations on a device: the inputs of blocks, one block computed once more, and logits with their gradient.

  34 bytes a token and unit of width: Korthikanti et al., Reducing Activation Recomputation (2022), without scores of
  attention, which are not kept. Tensor parallelism splits 24 of them, and the logits.
  """
  tokens = plan.micro_rows * decoder.length
  inputs = decoder.layers * tokens * decoder.width * sizes.activation
  block = tokens * decoder.width * (10 + 24 / plan.tensor)
  return inputs + block + tokens * decoder.vocabulary * (sizes.activation + 2 * 4) / plan.tensor


def step(decoder: Decoder, plan: Plan, machine: Machine, sizes: Sizes = Sizes()) -> Step:
  """The step of a plan.

  Blocks are computed once more for the gradient, which is a third more arithmetic than `flops_per_token`. Gradients of
  embeddings count as dense ones, with any `Decoder.unmultiplied`.

  Raises:
    ValueError: there is no such step.
  """
  reason = plan.why_not(machine)
  if reason:
    raise ValueError(reason)
  tokens = plan.rows * decoder.length
  compute = 4 / 3 * decoder.flops_per_token * tokens / plan.devices / (machine.flops * machine.utilization)
  network, groups = machine.network, plan.groups
  if plan.layout == REPLICATED:
    exchange = network.all_reduce(reduced_bytes(decoder.parameters, sizes) / plan.tensor, groups, plan.tensor)
  else:  # Block by block; forward, backward, and back with the gradients, for each micro-step.
    exchange = 0.0
    for parameters, times in ((decoder.block, decoder.layers), (decoder.others, 1)):
      part = parameters / plan.tensor
      gather = network.all_gather(part * sizes.gathered, groups, plan.tensor)
      scatter = network.reduce_scatter(part * sizes.gradient, groups, plan.tensor)
      exchange += plan.micro_steps * times * (2 * gather + scatter)
  one = activation_bytes(decoder, plan.micro_rows * decoder.length, sizes) / (4 * decoder.layers)
  # Six: those of the forward pass come again with the blocks.
  waits = 6 * decoder.layers * plan.micro_steps * network.all_reduce(one, plan.tensor)
  return Step(compute, exchange, waits, state_bytes(decoder, plan, sizes) + kept_bytes(decoder, plan, sizes))


def efficiency(decoder: Decoder, plan: Plan, machine: Machine) -> tuple[float, float]:
  """(least, most) share of a step that is products."""
  found = step(decoder, plan, machine)
  return found.compute / found.most, found.compute / found.least
