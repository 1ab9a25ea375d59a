"""Reads the text of HLO modules: computations, instructions, shapes. Imports no framework."""

from collections.abc import Iterator, Mapping
import dataclasses
import re

SIZES = {
  'pred': 1, 's8': 1, 'u8': 1, 'f8e4m3fn': 1, 'f8e5m2': 1,
  's16': 2, 'u16': 2, 'bf16': 2, 'f16': 2,
  's32': 4, 'u32': 4, 'f32': 4,
  's64': 8, 'u64': 8, 'f64': 8, 'c64': 8,
  's4': 0.5, 'u4': 0.5, 'token': 0,
}  # fmt: skip

_SHAPE = re.compile(r'\b(\w+)\[([\d,]*)\]')
_COMPUTATION = re.compile(r'^(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$')
_INSTRUCTION = re.compile(r'^\s*(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$')
_CALLED = re.compile(r'(?:to_apply|calls|body|condition|true_computation|false_computation)=%?([\w.\-]+)')
_BRANCHES = re.compile(r'branch_computations=\{([^}]*)\}')


@dataclasses.dataclass(frozen=True)
class Shape:
  """An array: its element type, as in `SIZES`, and dimensions."""

  dtype: str
  dims: tuple[int, ...]

  @property
  def count(self) -> int:
    """The number of elements."""
    total = 1
    for size in self.dims:
      total *= size
    return total

  @property
  def nbytes(self) -> float:
    """The bytes of all elements."""
    return SIZES[self.dtype] * self.count


def shapes(text: str) -> list[Shape]:
  """The arrays in a text, such as a tuple.

  Example:

    >>> [shape.nbytes for shape in shapes('(bf16[4,8]{1,0}, s32[])')]
    [64, 4]
  """
  return [
    Shape(dtype, tuple(int(size) for size in dims.split(',') if size))
    for dtype, dims in _SHAPE.findall(text)
    if dtype in SIZES
  ]


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation.

  Attributes:
    name: without %.
    type: its shape as text; of a tuple, the shapes.
    opcode: such as 'dot' or 'fusion'.
    rest: operands and attributes.
    is_root: whether it is the computation's result.
  """

  name: str
  type: str
  opcode: str
  rest: str
  is_root: bool

  @property
  def operands(self) -> list[str]:
    """The names of its operands; `name#2` is an element of a tuple."""
    text = re.sub(r'/\*.*?\*/', '', self.rest)
    depth = 0
    for end, character in enumerate(text):
      depth += (character in '({[') - (character in ')}]')
      if depth < 0:
        text = text[:end]
        break
    named = re.findall(r'%([\w.\-]+(?:#\d+)?)', text)
    return named or [each.split()[-1] for each in text.split(', ') if re.fullmatch(r'(?:.* )?[A-Za-z_][\w.\-]*', each)]

  @property
  def called(self) -> list[str]:
    """The names of the computations that it calls."""
    branches = [name.strip().lstrip('%') for text in _BRANCHES.findall(self.rest) for name in text.split(',')]
    return _CALLED.findall(self.rest) + branches

  def attribute(self, pattern: str) -> str:
    """The first group of a pattern in its attributes; ''."""
    found = re.search(pattern, self.rest)
    return found.group(1) if found else ''


def operand_shapes(name: str, types: Mapping[str, str]) -> list[Shape]:
  """The arrays of an operand, by the types of the instructions of its computation."""
  base, _, element = name.partition('#')
  found = shapes(types.get(base, ''))
  return found[int(element) : int(element) + 1] if element else found


@dataclasses.dataclass(frozen=True)
class Module:
  """A module.

  Attributes:
    head: its first line: aliases and the layout of the entry.
    entry: the name of the entry computation.
    computations: instructions by computation.
  """

  head: str
  entry: str
  computations: dict[str, list[Instruction]]

  @property
  def aliased(self) -> set[int]:
    """The numbers of results that alias a parameter."""
    head = self.head.split('entry_computation_layout')[0]
    return {int(number or 0) for number in re.findall(r'\{(\d*)\}: \(\d+, ', head)}  # A single result has no number.

  def layout(self) -> tuple[list[Shape], list[Shape]]:
    """The shapes of the parameters and of the results."""
    parameters, _, results = self.head.split('entry_computation_layout={', 1)[-1].partition(')->')
    return shapes(parameters), shapes(results)

  def reached(self, name: str) -> set[str]:
    """A computation, and all that it calls."""
    found, waiting = set(), [name]
    while waiting:
      each = waiting.pop()
      if each not in found and each in self.computations:
        found.add(each)
        waiting += [called for line in self.computations[each] for called in line.called]
    return found

  def instructions(self) -> Iterator[tuple[str, Instruction]]:
    """(computation, instruction) of all."""
    for name, lines in self.computations.items():
      for line in lines:
        yield name, line


def parse(text: str) -> Module:
  """Reads a module.

  Example:

    >>> module = parse('''HloModule m, entry_computation_layout={(f32[2]{0})->f32[2]{0}}
    ...
    ... ENTRY %main (x: f32[2]) -> f32[2] {
    ...   %x = f32[2]{0} parameter(0)
    ...   ROOT %y = f32[2]{0} add(%x, %x)
    ... }''')
    >>> [line.opcode for line in module.computations[module.entry]]
    ['parameter', 'add']
  """
  lines = text.splitlines()
  computations: dict[str, list[Instruction]] = {}
  name = entry = ''
  for line in lines:
    begin = _COMPUTATION.match(line)
    if begin and ' = ' not in line.split('{')[0]:
      name = begin.group(2)
      computations[name] = []
      entry = name if begin.group(1) else entry
    elif line.startswith('}'):
      name = ''
    elif name:
      found = _INSTRUCTION.match(line)
      if found:
        computations[name].append(
          Instruction(found.group(2), found.group(3), found.group(4), found.group(5), bool(found.group(1)))
        )
  return Module(lines[0] if lines else '', entry, computations)
