"""Finds operations in a step's HLO that are slow on a GPU, or that keep it waiting. Imports no framework.

It reads HLO before optimisation, as TensorFlow lowers it, so that a check takes a second and no compiler for GPUs.
"""

from collections.abc import Iterator
import math
import re

from benchmarks.gpu import hlo_text

MAX_ROUNDS = 256  # More are a loop over tokens or a vocabulary, not over layers, steps or new tokens.
LARGE_PRODUCT = 2**22  # Multiplications of a product that must be in bfloat16.
LARGE_SORT = 2**20
LARGE_RESULT = 2**16  # Bytes of a result that must alias an argument.
LARGE_CONSTANT = 2**20  # Bytes.
LEAST_WEIGHT = 128  # Both dimensions of a matrix whose cast in a loop counts.
_HOST_CALL = re.compile('callback|host|python', re.IGNORECASE)
_HOST = frozenset(('infeed', 'outfeed', 'send', 'recv'))
_COUNTS_DOWN = -1
_MOVED = frozenset(('reshape', 'bitcast', 'copy', 'transpose'))


def complaints(
  text: str, *, is_bfloat16: bool = True, has_constant_weights: bool = False, num_new_results: int = 0
) -> list[str]:
  """The findings in a module, a line each.

  Args:
    text: HLO as `experimental_get_compiler_ir(stage='hlo')` has it.
    is_bfloat16: whether large products must be bfloat16.
    has_constant_weights: whether no loop of the program writes weights, so that none may be cast inside one.
    num_new_results: how many of the first results belong to no variable, such as gradients.

  Example:

    >>> module = '''HloModule m, entry_computation_layout={(f32[512,512]{1,0})->f32[512,512]{1,0}}
    ...
    ... ENTRY %main (x: f32[512,512]) -> f32[512,512] {
    ...   %x = f32[512,512]{1,0} parameter(0)
    ...   ROOT %y = f32[512,512]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    ... }'''
    >>> complaints(module)[0]
    'dot y: f32[512,512]{1,0} in float32; cast its operands to bfloat16'
  """
  module = hlo_text.parse(text)
  loops = [line for _, line in module.instructions() if line.opcode == 'while']
  inside = {name for loop in loops for name in module.reached(loop.attribute(r'body=%?([\w.\-]+)'))}
  found = []
  for name, lines in module.computations.items():
    by_name = {line.name: line for line in lines}
    for line in lines:
      found += _of_line(module, line, by_name, is_bfloat16)
      if has_constant_weights and name in inside:
        found += _cast_weight(line, by_name)
  return [*found, *_copies(module, num_new_results)]


def _of_line(module, line, by_name, is_bfloat16) -> Iterator[str]:
  results = hlo_text.shapes(line.type)
  place = f'{line.opcode} {line.name}'
  if line.opcode == 'while':
    rounds = _rounds(module, line, by_name)
    if rounds is None:
      yield f'{place}: a loop of unknown length; give it a constant number of rounds'
    elif rounds > MAX_ROUNDS:
      yield f'{place}: {rounds} rounds; replace it by an operation on the whole array'
  if (
    line.opcode == 'dot'
    and is_bfloat16
    and results[0].dtype == 'f32'
    and _multiplications(line, by_name) >= LARGE_PRODUCT
  ):
    operands = [by_name[name].type for name in line.operands if name in by_name]
    if not all(operand.startswith('bf16') for operand in operands):
      yield f'{place}: {line.type} in float32; cast its operands to bfloat16'
  elif line.opcode in _HOST or line.opcode == 'custom-call' and _HOST_CALL.search(line.rest.split('metadata=')[0]):
    yield f'{place}: the host takes part; compute it in the program'
  elif line.opcode == 'sort' and max(shape.count for shape in results) > LARGE_SORT:
    yield f'{place}: sorts {line.type[:60]}; select instead'
  elif line.opcode == 'constant' and sum(shape.nbytes for shape in results) >= LARGE_CONSTANT:
    yield f'{place}: {line.type} in the program; compute it from iota, or hand it in'
  if line.opcode not in ('constant', 'broadcast', 'parameter') and any(
    shape.dtype == 'f64' and shape.count > 1 for shape in results
  ):
    yield f'{place}: {line.type[:60]} in float64; use float32'


def _multiplications(dot, by_name) -> int:
  (left, *_) = hlo_text.shapes(by_name[dot.operands[0]].type)
  contracted = [int(axis) for axis in dot.attribute(r'lhs_contracting_dims=\{([\d,]*)\}').split(',') if axis]
  return hlo_text.shapes(dot.type)[0].count * math.prod(left.dims[axis] for axis in contracted)


def _rounds(module, loop, by_name) -> int | None:
  """The number of rounds of a loop at most; None if XLA does not know it.

  A counter of the loop's state begins with a constant, and each round adds a positive constant. The condition is that
  it is below a constant, or below an element of the state that is one and that no round changes. XLA knows no length of
  loops that count down.
  """
  state = by_name[loop.operands[0]]
  if state.opcode != 'tuple':
    return None
  starts = [_constant(by_name, name) for name in state.operands]
  body = module.computations[loop.attribute(r'body=%?([\w.\-]+)')]
  bounds = []
  for name in module.reached(loop.attribute(r'condition=%?([\w.\-]+)')):
    lines = {line.name: line for line in module.computations[name]}
    for line in lines.values():
      if line.opcode == 'compare':
        bounds.append(_bound(module, line, lines, starts, body))
  known = [bound for bound in bounds if bound is not None]
  return None if _COUNTS_DOWN in known else min(known, default=None)


def _bound(module, line, lines, starts, body) -> int | None:
  """After how many rounds a comparison becomes false; None if it is not one of a counter and a constant.

  `_COUNTS_DOWN` if each round subtracts.
  """
  indices = [_element(lines, name) for name in line.operands]
  counter, limit = indices
  if counter is None:
    return None
  end = _constant(lines, line.operands[1]) if limit is None else starts[limit]
  start, step = starts[counter], _step(module, body, counter)
  if start is None or end is None or not step or (limit is not None and _step(module, body, limit) != 0):
    return None
  if step < 0:
    return _COUNTS_DOWN
  direction = line.attribute(r'direction=(\w+)')
  return max(0, -(-(end - start + (direction == 'LE')) // step)) if direction in ('LT', 'LE') else None


def _origin(lines, name):
  """The instruction of which another is the same value in another shape; None if it is not in these lines."""
  line = lines.get(name)
  while line is not None and line.opcode in _MOVED:
    line = lines.get(line.operands[0])
  return line


def _constant(lines, name) -> int | None:
  line = _origin(lines, name)
  if line is None or line.opcode != 'constant' or not re.match(r'[su]\d+\[\]', line.type):
    return None
  return int(re.match(r'-?\d+', line.rest).group())


def _element(lines, name) -> int | None:
  """The number of the loop's state that an instruction is; None if it is another one."""
  line = _origin(lines, name)
  if line is None or line.opcode != 'get-tuple-element' or lines[line.operands[0]].opcode != 'parameter':
    return None
  return int(line.attribute(r'\), index=(\d+)'))


def _step(module, body, index) -> int | None:
  """By how much each round changes an element of the state; None if it is not a constant.

  A body that only calls another computation is that one.
  """
  lines = {line.name: line for line in body}
  root = next(line for line in body if line.is_root)
  if root.opcode == 'call':
    return _step(module, module.computations[root.called[0]], index)
  if root.opcode != 'tuple':
    return None
  line = _origin(lines, root.operands[index])
  if line is None:
    return None
  if line.opcode == 'get-tuple-element':
    return 0 if _element(lines, line.name) == index else None
  if line.opcode not in ('add', 'subtract'):
    return None
  for counter, step in (line.operands, line.operands[::-1]):
    found = _constant(lines, step)
    if _element(lines, counter) == index and found is not None:
      return found if line.opcode == 'add' else -found
  return None


def _cast_weight(line, by_name) -> Iterator[str]:
  """A matrix of the loop's state that each round casts to bfloat16."""
  result = hlo_text.shapes(line.type)
  if line.opcode != 'convert' or not result or result[0].dtype != 'bf16':
    return
  dims = [size for size in result[0].dims if size != 1]
  source = by_name.get(line.operands[0])
  while source is not None and source.opcode in _MOVED:
    source = by_name.get(source.operands[0])
  if source is None or source.opcode not in ('get-tuple-element', 'parameter'):
    return
  if len(dims) == 2 and min(dims) >= LEAST_WEIGHT and source.type.startswith('f32'):
    yield f'convert {line.name}: {line.type} in a loop: a weight is cast in each round; cast it before the loop'


def _copies(module, num_new) -> Iterator[str]:
  """Large results that alias no argument: a second copy of a weight or a slot."""
  for number, shape in enumerate(module.layout()[1]):
    if number >= num_new and number not in module.aliased and shape.nbytes >= LARGE_RESULT:
      dims = ','.join(map(str, shape.dims))
      yield f'result {number}: {shape.dtype}[{dims}] aliases no argument; assign it to its variable'
