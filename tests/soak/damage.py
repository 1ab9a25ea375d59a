"""The damage of a dying machine to the files of a checkpoint."""

import pathlib
import re
from typing import Any

import numpy as np


def _truncate(path: pathlib.Path, rng: np.random.Generator) -> None:
  with path.open('r+b') as f:
    f.truncate(int(rng.integers(path.stat().st_size)))


def _empty(path: pathlib.Path, rng: np.random.Generator) -> None:
  path.write_bytes(b'')


def _flip_bit(path: pathlib.Path, rng: np.random.Generator) -> None:
  content = bytearray(path.read_bytes())
  content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
  path.write_bytes(content)


def _overwrite(path: pathlib.Path, rng: np.random.Generator) -> None:
  """Zeros from somewhere on, as after a power cut."""
  content = bytearray(path.read_bytes())
  begin = int(rng.integers(len(content)))
  zeros = bytes(len(content) - begin)
  if content[begin:] != zeros:
    path.write_bytes(content[:begin] + zeros)
  else:
    _flip_bit(path, rng)


def _delete(path: pathlib.Path, rng: np.random.Generator) -> None:
  path.unlink()


DAMAGES = (_truncate, _truncate, _flip_bit, _flip_bit, _overwrite, _empty, _delete)
PARTS = ('index', 'data-00000-of-00001', 'manifest.json')


def complete_checkpoints(folder: pathlib.Path) -> list[int]:
  """The steps of the checkpoints with a manifest, oldest first."""
  matches = (re.fullmatch(r'ckpt-(\d+)\.manifest\.json', path.name) for path in folder.glob('ckpt-*'))
  return sorted(int(match[1]) for match in matches if match)


def damage(folder: Any, rng: np.random.Generator) -> str | None:
  """Damages one file of the newest checkpoint, of a folder that has another one.

  Returns:
    The damage, in words; None where there are no two checkpoints, or that file is gone or empty already. No manifest is
    deleted: a checkpoint without one is another program's, which retention does not count.
  """
  folder = pathlib.Path(folder)
  steps = complete_checkpoints(folder)
  if len(steps) < 2:
    return None
  path = folder / f'ckpt-{steps[-1]}.{PARTS[rng.integers(len(PARTS))]}'
  if not path.exists() or not path.stat().st_size:
    return None
  function = DAMAGES[rng.integers(len(DAMAGES))]
  if function is _delete and path.name.endswith('manifest.json'):
    return None
  function(path, rng)
  return f'{function.__name__[1:]} {path.name}'
