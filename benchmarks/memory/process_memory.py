"""The kernel's figures of this process (Linux alone)."""

import pathlib

_STATUS = pathlib.Path('/proc/self/status')


def resident() -> int:
  """Bytes that are in memory now: Python, libraries, data."""
  return _field('VmRSS')


def peak() -> int:
  """The most that has been in memory, in bytes, since the start or since `forget_peak`."""
  return _field('VmHWM')


def forget_peak() -> None:
  """Lets the peak begin with the present memory."""
  pathlib.Path('/proc/self/clear_refs').write_text('5')


def _field(name: str) -> int:
  lines = _STATUS.read_text().splitlines()
  return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f'{name}:'))
