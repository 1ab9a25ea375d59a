"""Seconds of the exchanges between devices, by their latencies and bandwidths. Pure functions; imports no framework.

Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH (2005): a message of b
bytes costs latency + b / bandwidth, and all devices send and receive at the same time. The cost of the sum itself is
left out.
"""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Link:
  """The links of a device.

  Attributes:
    bandwidth: bytes a second, in each direction.
    latency: seconds of a message.
  """

  bandwidth: float
  latency: float


def reduce_scatter(num_bytes: float, devices: int, link: Link) -> float:
  """Seconds in which each of a ring of devices, with so many bytes, gets its part of the sum."""
  return (devices - 1) * link.latency + num_bytes * (devices - 1) / devices / link.bandwidth


def all_gather(num_bytes: float, devices: int, link: Link) -> float:
  """Seconds in which all of a ring get so many bytes, of which each has its part."""
  return reduce_scatter(num_bytes, devices, link)


def all_reduce(num_bytes: float, devices: int, link: Link) -> float:
  """Seconds until all hold the sum of so many bytes: a ring, or Rabenseifner's halving and doubling if that is sooner.

  Both move 2 (n - 1) / n of the bytes; a ring takes 2 (n - 1) messages one after the other, halving and doubling
  2 log2(n), rounded up here if n is not a power of two.
  """
  messages = min(2 * (devices - 1), 2 * math.ceil(math.log2(devices)))
  return messages * link.latency + sent_by_all_reduce(num_bytes, devices) / link.bandwidth


def sent_by_all_reduce(num_bytes: float, devices: int) -> float:
  """Bytes that each device sends."""
  return 2 * num_bytes * (devices - 1) / devices


@dataclasses.dataclass(frozen=True)
class Network:
  """Nodes of a few devices with fast links, and slower ones between the nodes.

  Attributes:
    node_size: devices of a node.
    inside: of a device to those of its node.
    between: of a device to those of other nodes.
  """

  node_size: int
  inside: Link
  between: Link

  def split(self, devices: int, stride: int = 1) -> tuple[int, int]:
    """(devices of a group that are in one node, nodes that it has) for a group that takes each `stride`-th device."""
    local = max(1, min(devices, self.node_size // stride))
    if devices % local:
      raise ValueError(f'{devices} devices cannot be put on nodes with {local} each')
    return local, devices // local

  def all_reduce(self, num_bytes: float, devices: int, stride: int = 1) -> float:
    """Seconds: a reduce-scatter in the node, an all-reduce of each part between nodes, an all-gather in the node."""
    local, nodes = self.split(devices, stride)
    if nodes == 1:
      return all_reduce(num_bytes, local, self.inside)
    near = reduce_scatter(num_bytes, local, self.inside) + all_gather(num_bytes, local, self.inside)
    return near + all_reduce(num_bytes / local, nodes, self.between)

  def all_gather(self, num_bytes: float, devices: int, stride: int = 1) -> float:
    """Seconds: between nodes each device gathers its share, then the node puts the shares together.

    Between nodes by recursive doubling if the ring's messages take longer.
    """
    local, nodes = self.split(devices, stride)
    messages = min(nodes - 1, math.ceil(math.log2(nodes)))
    far = messages * self.between.latency + num_bytes / local * (nodes - 1) / nodes / self.between.bandwidth
    return far + all_gather(num_bytes, local, self.inside)

  def reduce_scatter(self, num_bytes: float, devices: int, stride: int = 1) -> float:
    """Seconds: the way of `all_gather` back."""
    return self.all_gather(num_bytes, devices, stride)
