"""The GPUs that processes started here may use, by their names in CUDA_VISIBLE_DEVICES. No TensorFlow."""

import os
import pathlib

VARIABLE = 'CUDA_VISIBLE_DEVICES'


def names() -> list[str]:
  """The GPUs that CUDA_VISIBLE_DEVICES names; if it is unset, all of the machine. [] if there are none."""
  visible = os.environ.get(VARIABLE)
  return of_machine() if visible is None else parse(visible)


def of_machine() -> list[str]:
  """The GPUs of the machine, by their numbers."""
  folder = pathlib.Path('/proc/driver/nvidia/gpus')
  return [str(index) for index, _ in enumerate(folder.iterdir())] if folder.is_dir() else []


def parse(text: str) -> list[str]:
  """The names in a value of CUDA_VISIBLE_DEVICES."""
  return [name.strip() for name in text.split(',') if name.strip() and name.strip() != '-1']
