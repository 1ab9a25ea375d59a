"""GPT-2 124M in bfloat16 beside PyTorch, in tokens a second and MFU: `python -m benchmarks.gpt2`, part of gpu.sh.

python -m benchmarks.gpt2                          each library at the largest batch that fits the GPU
python -m benchmarks.gpt2 --batch_size=32          at this one
python -m benchmarks.gpt2 --tiny --batch_size=2    two layers of 64 on the CPU: whether it runs at all

The libraries have the GPU one after the other, each in a separate process. MFU is the arithmetic of the network (six
for each weight and token, and the products of attention) over the GPU's peak in bfloat16.
"""

import argparse
from collections.abc import Sequence
import dataclasses
import pathlib
import statistics
import sys
import tempfile

from benchmarks.gpt2 import sizes as sizes_lib
from benchmarks.gpt2 import worker
from benchmarks.peers import environments
from benchmarks.peers import process
from benchmarks.peers import report

GOALS = 'goals: 40 % MFU, 0.95 of torch_compile'


@dataclasses.dataclass(frozen=True)
class Found:
  """The result of a library.

  Attributes:
    name: of the library, or of a way in it.
    batch_size: rows.
    rate: tokens a second, the median of the turns; 0 if it has failed.
    parameters: that are trained.
    note: how, or why not.
  """

  name: str
  batch_size: int = 0
  rate: float = 0.0
  parameters: int = 0
  note: str = ''


def _command(name: str, *flags: str) -> list[str]:
  python = environments.TORCH_PYTHON if name.startswith('torch') else sys.executable
  return [python, '-m', 'benchmarks.gpt2.worker', name, *flags]


def device(folder: pathlib.Path) -> tuple[str, int]:
  """(name, bytes) of the GPU, as PyTorch sees it; ('', 0) without one."""
  asked = process.Process(_command('torch'), folder / 'device.log')
  asked.close()
  return asked.ready['device'], asked.ready['memory']


def measure(
  name: str, batch_sizes: Sequence[int], num_turns: int, tiny: bool, folder: pathlib.Path, seconds_allowed: float
) -> Found:
  """A library at the first of the batches that fits.

  Args:
    name: see `worker.LIBRARIES`.
    batch_sizes: the largest first.
    num_turns: that are timed, each of a loop.
    tiny: whether the small network is trained.
    folder: of the processes' logs.
    seconds_allowed: for the start of a process, and for each of its turns.
  """
  note = 'no batch size is left'
  for batch_size in batch_sizes:
    flags = [f'--batch_size={batch_size}', *(['--tiny'] if tiny else [])]
    started = None
    try:
      started = process.Process(_command(name, *flags), folder / f'{name}.{batch_size}.log', seconds_allowed)
      multiple = started.ready['multiple']
      started.run(multiple)  # Compiles.
      turns = [started.run(multiple) for _ in range(num_turns)]
      rate = statistics.median(turn.rate for turn in turns)
      return Found(name, batch_size, rate, started.ready['parameters'], turns[-1].note)
    except process.PeerError as error:  # Out of memory, as a rule; the log has the rest.
      note = f'failed: {error}'
    finally:
      if started is not None:
        started.close()
  return Found(name, note=note)


def table(found: Sequence[Found], sizes: sizes_lib.Sizes, peak: float) -> list[Sequence[str]]:
  """A row for each library.

  Args:
    found: their results, ours first.
    sizes: of the network.
    peak: FLOP/s of the GPU; 0 if they are not known.
  """
  rows: list[Sequence[str]] = [('library', 'rows', 'tokens/s', 'TFLOP/s', 'MFU', 'ours / it', 'remarks')]
  ours = next((each.rate for each in found if each.name == 'ours'), 0.0)
  for each in found:
    flops = each.rate * sizes.flops_per_token
    rows.append(
      (
        each.name,
        f'{each.batch_size}' if each.rate else '',
        f'{each.rate:,.0f}' if each.rate else '',
        f'{flops / 1e12:,.2f}' if each.rate else '',
        f'{100 * flops / peak:.1f} %' if each.rate and peak else '',
        f'{ours / each.rate:.2f}' if each.rate and ours and each.name != 'ours' else '',
        each.note,
      )
    )
  return rows


def main(arguments: Sequence[str] | None = None) -> int:
  """Prints the table; 1 if this library could not be measured."""
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.gpt2', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--batch_size', type=int, default=0, help='rows; 0 for the largest that fits')
  parser.add_argument('--libraries', default='ours,torch,torch_compile', help=f'of {", ".join(worker.LIBRARIES)}')
  parser.add_argument('--turns', type=int, default=5, help='timed loops of each')
  parser.add_argument('--peak_tflops', type=float, default=0.0, help='of a GPU whose name is not known')
  parser.add_argument('--seconds_allowed', type=float, default=150.0, help='for a start, and for a turn')
  parser.add_argument('--tiny', action='store_true', help='a small network, not a measure of speed')
  options = parser.parse_args(arguments)
  names = options.libraries.split(',')
  if not set(names) <= worker.LIBRARIES.keys():
    parser.error(f'--libraries={options.libraries}: there are {", ".join(worker.LIBRARIES)}')
  folder = pathlib.Path(tempfile.mkdtemp(prefix='gpt2-'))
  sizes = sizes_lib.TINY if options.tiny else sizes_lib.GPT2
  gpu, memory = device(folder)
  if not gpu and not options.batch_size:
    parser.error('--batch_size: there is no GPU that PyTorch sees; give a batch size to run on the CPU')
  batches = [options.batch_size] if options.batch_size else sizes_lib.batch_sizes(memory, sizes)
  found = []
  for name in names:
    found.append(measure(name, batches, options.turns, options.tiny, folder, options.seconds_allowed))
    print(f'  {name:<16}{found[-1].rate:12,.0f} tokens/s  {found[-1].note}', flush=True)
  counts = {each.parameters for each in found if each.rate}
  if counts - {sizes.num_parameters}:
    raise SystemExit(f'not the same work: {sorted(counts)} parameters, and the network has {sizes.num_parameters}')
  peak = 1e12 * options.peak_tflops or sizes_lib.peak_flops(gpu)
  print(f'\nGPT-2 of {sizes.num_parameters / 1e6:.1f} million weights on {gpu or "the CPU"}; {GOALS}')
  print(report.as_text(table(found, sizes, peak)))
  return 0 if next((each.rate for each in found if each.name == 'ours'), 1.0) else 1


if __name__ == '__main__':
  sys.exit(main())
