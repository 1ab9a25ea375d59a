"""XLA's memory plans for its programs, from the files that `--xla_dump_to=FOLDER --xla_dump_hlo_as_text` makes."""

import dataclasses
import pathlib
import re

_BYTES = {'pred': 1, 's8': 1, 'u8': 1, 'bf16': 2, 'f16': 2, 's16': 2, 'u16': 2, 's32': 4, 'u32': 4, 'f32': 4}
_BYTES |= {'s64': 8, 'u64': 8, 'f64': 8}
_PLAN = '-buffer-assignment.txt'


@dataclasses.dataclass(frozen=True)
class Plan:
  """A program's memory, in bytes.

  Attributes:
    temporary: neither inputs nor results.
    results: of its results.
    in_place: of those of its results that take the place of an input: the input is donated.
  """

  temporary: int
  results: int
  in_place: int


def largest(folder: pathlib.Path) -> Plan | None:
  """The plan of the program that needs most, a training step say; None if there is none."""
  plans = sorted(folder.glob(f'*after_optimizations{_PLAN}'), key=lambda path: path.stat().st_size)
  if not plans:
    return None
  header = pathlib.Path(str(plans[-1]).removesuffix(_PLAN) + '.txt').open().readline()
  return read(plans[-1].read_text(), header)


def read(assignment: str, header: str) -> Plan:
  """The plan from the text of a buffer assignment and the first line of the program's text."""
  temporary = [int(size) for size in re.findall(r'size ([0-9]+), preallocated-temp', assignment)]
  layout = re.search(r'entry_computation_layout=\{(.*?)->(.*?)\}(?:, [a-z_]+=|$)', header)
  shapes = _shapes(layout.group(2)) if layout else []
  alias = re.search(r'input_output_alias=\{ (.*?) \}, [a-z_]+=', header)
  places = {int(place) for place in re.findall(r'\{([0-9]+)\}: \(', alias.group(1))} if alias else set()
  return Plan(sum(temporary), sum(shapes), sum(size for place, size in enumerate(shapes) if place in places))


def _shapes(text: str) -> list[int]:
  """Bytes of each tensor in a tuple of types such as `(f32[2,3]{1,0}, s64[])`."""
  found = []
  for dtype, sizes in re.findall(r'([a-z]+[0-9]*)\[([0-9,]*)\]', text):
    count = 1
    for size in filter(None, sizes.split(',')):
      count *= int(size)
    found.append(count * _BYTES.get(dtype, 4))
  return found
