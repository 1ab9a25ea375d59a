"""A digest of the weights of a Hugging Face folder, the same for the same weights in other files.

It covers the name, the shape and all values of each tensor. Neither shards nor the type in which values are stored
matter: float32 that are multiples of bfloat16 count as the bfloat16 that they were.
"""

from collections.abc import Iterator
import hashlib

import numpy as np

from official_ext.language.modeling import families
from official_ext.language.modeling import tensor_files
from official_ext.language.modeling.families import family as family_lib

_PART = 2**20  # Values that are hashed at once, which bounds the memory that this takes.


def of_files(files: tensor_files.TensorFiles, model_type: str, is_tied: bool) -> str:
  """The SHA-256 of the weights, in hexadecimal digits.

  Args:
    files: of a language model or a bare decoder.
    model_type: its family.
    is_tied: whether the head is the embedding: a copy of it in the files is left out.
  """
  family = families.find(model_type, 'model_type')
  left_out = {family_lib.SCORES, *([family_lib.LM_HEAD] if is_tied else [])}
  full_name = lambda name: family_lib.full_name(family, name)
  is_weight = lambda name: full_name(name) not in left_out and not family_lib.is_ignored(family, full_name(name))
  lines = []
  for name, value in files.tensors(is_weight):
    lines.append(f'{full_name(name)} {list(value.shape)} {_digest(value)}\n')
    del value  # Before the next one is read.
  return hashlib.sha256(''.join(sorted(lines)).encode()).hexdigest()


def _digest(value: np.ndarray) -> str:
  found = hashlib.sha256()
  flat = np.ascontiguousarray(value).reshape(-1)
  if flat.dtype.name == 'bfloat16':
    found.update(flat.view(np.uint8).data)
    return found.hexdigest()
  is_wide = any((bits & 0xFFFF).any() for bits in _float32_bits(flat))
  for bits in _float32_bits(flat):
    found.update((bits if is_wide else (bits >> 16).astype(np.uint16)).view(np.uint8).data)
  return found.hexdigest()


def _float32_bits(flat: np.ndarray) -> Iterator[np.ndarray]:
  """The bits of values as float32, in parts."""
  for start in range(0, flat.size, _PART):
    yield flat[start : start + _PART].astype(np.float32, copy=False).view(np.uint32)
