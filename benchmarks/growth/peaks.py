"""Memory against batch and accumulation: a process for each point."""

import pathlib
import sys
import tempfile

from benchmarks.growth import curves
from benchmarks.memory import subjects
from benchmarks.peers import process


def peak(variant: str, batch_size: int, subject: str = 'decoder') -> float:
  """MB that the steps take above the process's earlier memory."""
  command = [sys.executable, '-m', 'benchmarks.memory.worker', subject, 'ours', variant, f'--batch_size={batch_size}']
  with tempfile.TemporaryDirectory() as folder:
    started = process.Process(command, pathlib.Path(folder, 'log'))
    try:
      return started.run(1).values['steps'] / 1e6
    finally:
      started.close()


def measure_memory(quick: bool) -> curves.Panels:
  """A decoder of 4 layers."""
  sizes = (4, 8) if quick else (16, 32, 64)
  variants = {
    'one batch': 'plain',
    "remat='block'": 'remat',
    f'{subjects.MICRO_BATCHES} micro-batches': 'accumulation',
  }
  return {
    'MB above what the process had before': {
      name: [(size, peak(variant, size)) for size in sizes] for name, variant in variants.items()
    }
  }
