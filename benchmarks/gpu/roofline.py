"""A lower bound of the time of a compiled program: of each kernel, the larger of its bytes and its arithmetic.

The speeds are realistic for an H100: 3.0 of 3.35 TB/s, 600 of 989 TFLOP/s of dense bfloat16 products, and 2
microseconds to start a kernel (Williams et al., 2009: Roofline). The speeds and the way of counting are fixed, so that
figures stay comparable; after a change all rows of the table are computed again.
"""

import collections
from collections.abc import Iterator
import dataclasses
import json
import re

from benchmarks.gpu import hlo_text

BYTES_PER_SECOND = 3.0e12
FLOP_PER_SECOND = 600e12
SECONDS_PER_KERNEL = 2e-6

# They start no kernel.
_FREE = frozenset(
  ('parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast', 'after-all', 'partition-id', 'replica-id')
)
_PARTS = frozenset(('slice', 'dynamic-slice', 'gather'))  # Each reads what it returns of its first operand.
_MARKS = ('dot', 'convolution', 'scatter', 'reduce', 'transpose', 'gather', 'dynamic-update-slice', 'sort')


@dataclasses.dataclass(frozen=True)
class Kernel:
  """A kernel, or a loop whose number of rounds is not known, which counts as one round.

  Attributes:
    name: of the instruction.
    kind: its opcode, the target of a call, or the kind of a fusion with the operations inside.
    nbytes: bytes read and written at one start.
    flops: operations of matrix products at one start.
    starts: how often it starts in the program.
    type: the shape of its result.
    source: the name of TensorFlow's operation; ''.
  """

  name: str
  kind: str
  nbytes: float
  flops: float
  starts: int
  type: str
  source: str

  @property
  def seconds(self) -> float:
    """The lower bound of the time of all starts."""
    return self.starts * (max(self.nbytes / BYTES_PER_SECOND, self.flops / FLOP_PER_SECOND) + SECONDS_PER_KERNEL)


@dataclasses.dataclass(frozen=True)
class Roofline:
  """A program.

  Attributes:
    kernels: in the order of the program.
    unknown_loops: the names of loops whose number of rounds XLA does not know.
    figures_of_compiler: `temporary_gigabytes` and `compile_seconds`, if it was compiled here.
  """

  kernels: list[Kernel]
  unknown_loops: list[str]
  figures_of_compiler: dict[str, float] = dataclasses.field(default_factory=dict)

  def figures(self) -> dict[str, float]:
    """`kernels`, `gigabytes`, `teraflop`, `milliseconds`, `cudnn_attention`, `unknown_loops`, and of the compiler."""
    total = lambda value: sum(value(kernel) for kernel in self.kernels)
    return {
      'kernels': total(lambda kernel: kernel.starts),
      'gigabytes': round(total(lambda kernel: kernel.starts * kernel.nbytes) / 1e9, 2),
      'teraflop': round(total(lambda kernel: kernel.starts * kernel.flops) / 1e12, 3),
      'milliseconds': round(total(lambda kernel: kernel.seconds) * 1e3, 2),
      'cudnn_attention': total(lambda kernel: kernel.starts * kernel.kind.startswith('__cudnn$fmha')),
      'unknown_loops': len(self.unknown_loops),
      **self.figures_of_compiler,
    }

  def by_kind(self) -> dict[str, dict[str, float]]:
    """`starts`, `gigabytes`, `teraflop` and `milliseconds` of each kind, the longest first."""
    found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for kernel in self.kernels:
      found[kernel.kind].update(
        starts=kernel.starts,
        gigabytes=kernel.starts * kernel.nbytes / 1e9,
        teraflop=kernel.starts * kernel.flops / 1e12,
        milliseconds=kernel.seconds * 1e3,
      )
    ordered = sorted(found.items(), key=lambda item: -item[1]['milliseconds'])
    return {kind: {name: round(value, 3) for name, value in values.items()} for kind, values in ordered}


def of(optimized: str) -> Roofline:
  """The roofline of optimised HLO for a GPU."""
  module = hlo_text.parse(optimized)
  unknown: list[str] = []
  return Roofline(list(_kernels(module, module.entry, 1, unknown)), unknown)


def _kernels(module: hlo_text.Module, name: str, times: int, unknown: list[str]) -> Iterator[Kernel]:
  types = {line.name: line.type for line in module.computations[name]}
  for line in module.computations[name]:
    if line.opcode in _FREE or line.opcode.endswith('-done'):
      continue
    if line.opcode == 'while':
      trips = line.attribute(r'known_trip_count"?:\{"?n"?:"?(\d+)')
      if not trips:
        unknown.append(line.name)
      yield from _kernels(module, line.attribute(r'body=%?([\w.\-]+)'), times * int(trips or 1), unknown)
    elif line.opcode in ('call', 'async-start'):
      for called in line.called:
        yield from _kernels(module, called, times, unknown)
    elif line.opcode == 'conditional':  # The longest branch.
      branches = [list(_kernels(module, called, times, unknown)) for called in line.called]
      yield from max(branches, key=lambda kernels: sum(kernel.seconds for kernel in kernels), default=[])
    else:
      yield _kernel(module, line, types, times)


def _kernel(module, line, types, times):
  opcodes = {line.opcode, *(each.opcode for called in line.called for each in module.computations.get(called, []))}
  source = line.attribute(r'op_name="([^"]+)"')
  nbytes, flops = _bytes(module, line, types), _flops(module, line, types)
  return Kernel(line.name, _kind(line, opcodes), nbytes, flops, times, line.type, source)


def _bytes(module, line, types) -> float:
  """Bytes of operands and results. Of an array that is sliced, gathered from or updated in place, the part counts."""
  operands = [_total(hlo_text.operand_shapes(name, types)) for name in line.operands]
  written = _total(hlo_text.shapes(line.type))
  if line.opcode in _PARTS:
    return 2 * written
  if line.opcode == 'dynamic-update-slice':
    return 2 * operands[1]
  if line.opcode != 'fusion':
    return written + sum(operands)
  inside = module.computations[line.called[0]]
  table = {each.name: each.type for each in inside}
  parameters = {int(each.rest.split(')')[0]): each.name for each in inside if each.opcode == 'parameter'}
  read = sum(min(size, _part_read(parameters[number], inside, table)) for number, size in enumerate(operands))
  return read + _part_written(inside, table, written)


def _total(found) -> float:
  return sum(shape.nbytes for shape in found)


def _part_read(name, inside, table) -> float:
  """The bytes that a fusion reads of a parameter; infinite if it may read all of it."""
  total = 0.0
  for user in inside:
    if name not in user.operands:
      continue
    if user.opcode in _PARTS and user.operands[0] == name:
      total += _total(hlo_text.shapes(user.type))
    elif user.opcode in ('bitcast', 'reshape'):
      total += _part_read(user.name, inside, table)
    elif user.opcode != 'dynamic-update-slice' or user.operands[0] != name:
      return float('inf')
  return total


def _part_written(inside, table, written: float) -> float:
  """The bytes that a fusion writes: of an update in place, the bytes of its part."""
  by_name = {each.name: each for each in inside}
  root = next(each for each in inside if each.is_root)
  while root.opcode in ('bitcast', 'reshape') and root.operands[0] in by_name:
    root = by_name[root.operands[0]]
  if root.opcode != 'dynamic-update-slice':
    return written
  return _total(hlo_text.operand_shapes(root.operands[1], table))


def _kind(line, opcodes):
  if line.opcode == 'custom-call':
    return line.attribute(r'custom_call_target="([^"]+)"')
  if line.opcode != 'fusion':
    return line.opcode
  triton = ' triton' if '__triton' in line.rest else ''
  marks = ''.join(f' {mark}' for mark in _MARKS if mark in opcodes)
  return f'fusion {line.attribute(r"kind=(k[A-Za-z]+)")}{triton}{marks}'


def _flops(module, line, types) -> float:
  """Of matrix products, convolutions and cuDNN's attention; other arithmetic is below its bytes."""
  if line.opcode == 'fusion':
    inside = [each for called in line.called for each in module.computations.get(called, [])]
    table = {each.name: each.type for each in inside}
    return sum(_flops(module, each, table) for each in inside)
  operands = [hlo_text.operand_shapes(operand, types) for operand in line.operands]
  result = hlo_text.shapes(line.type)
  if not result or not operands or not operands[0]:
    return 0.0
  if line.opcode == 'dot':
    return 2.0 * result[0].count * _sizes(operands[0][0], line.attribute(r'lhs_contracting_dims=\{([\d,]*)\}'))
  target = line.attribute(r'custom_call_target="([^"]+)"')
  if '__cublas' in target:
    contracted = ','.join(re.findall(r'\d+', line.attribute(r'lhs_contracting_dimensions":\[([^\]]*)\]')))
    return 2.0 * result[0].count * _sizes(operands[0][0], contracted)
  if '__cudnn$fmha' in target:
    return _attention_flops(line, operands)
  if '__cudnn$conv' in target or line.opcode == 'convolution':
    return _convolution_flops(line, operands, result)
  return 0.0


def _sizes(shape, axes: str) -> int:
  total = 1
  for axis in axes.split(','):
    total *= shape.dims[int(axis)] if axis else 1
  return total


def _attention_flops(line, operands) -> float:
  """Two products forward, five backward, with half of the scores if they are causal."""
  batch, heads, length, size = operands[0][0].dims
  products = 5 if 'Backward' in line.attribute(r'custom_call_target="([^"]+)"') else 2
  return products * 2.0 * batch * heads * length**2 * size * (0.5 if '"mask_type":"CAUSAL"' in line.rest else 1.0)


def _convolution_flops(line, operands, result) -> float:
  """2 x the numbers of the output x the numbers of a filter without its output channels.

  Of the gradients, the output and the filter are other operands: the convolution that they belong to counts.
  """
  labels = line.attribute(r'dim_labels=([\w]+_[\w]+->[\w]+)')
  if not labels or len(operands) < 2 or not operands[1]:
    return 0.0
  target = line.attribute(r'custom_call_target="([^"]+)"')
  lhs, rhs, out = operands[0][0], operands[1][0], result[0]
  if target.endswith('convBackwardInput'):  # (gradient of the output, filter) -> gradient of the input.
    output, kernel = lhs, rhs
  elif target.endswith('convBackwardFilter'):  # (input, gradient of the output) -> gradient of the filter.
    output, kernel = rhs, out
  else:
    output, kernel = out, rhs
  features = labels.split('_')[1].split('->')[0].index('o')
  # With groups, the filter has the input channels of one group.
  return 2.0 * output.count * kernel.count / kernel.dims[features]


def report(roofline: Roofline, most: int = 12) -> str:
  """The figures, the kinds and the longest kernels, in lines of text."""
  longest = sorted(roofline.kernels, key=lambda kernel: -kernel.seconds)[:most]
  return '\n'.join(
    [
      json.dumps(roofline.figures()),
      *(
        f'  {kind:<44} n={values["starts"]:6.0f} GB={values["gigabytes"]:9.2f} TFLOP={values["teraflop"]:7.2f} '
        f'ms={values["milliseconds"]:8.2f}'
        for kind, values in roofline.by_kind().items()
      ),
      *(
        f'  {kernel.seconds * 1e3:8.3f} ms x{kernel.starts} {kernel.kind[:36]:<36} {kernel.type[:60]:<60} '
        f'{kernel.source[-70:]}'
        for kernel in longest
      ),
    ]
  )
