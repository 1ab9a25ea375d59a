"""Reads a long file of events in a separate process, so that the console's pages stay fast meanwhile.

    python -m official_ext.operations.curves.column_filler FOLDER FILE NAME...

It writes the columns of FILE with the values of the names into the cache FOLDER, where ColumnStore finds them.
"""

import os
import subprocess
import sys

from official_ext.base import processes
from official_ext.operations.curves import column_store

_NICE = 5


def run(folder: str, path: str, names: list[str]) -> bool:
  """Starts that process and waits for it; returns whether it has succeeded. It ends with this process."""
  words = [sys.executable, '-m', 'official_ext.operations.curves.column_filler', folder, path, *names]
  try:
    done = subprocess.run(
      words,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
      preexec_fn=processes.end_with_parent,
      check=False,
    )
  except (OSError, ValueError):  # A name with a NUL.
    return False
  return done.returncode == 0


def main() -> None:
  """Fills the cache, at a lower priority than the pages."""
  os.nice(_NICE)
  folder, path, *names = sys.argv[1:]
  store = column_store.ColumnStore(folder)
  columns = store.columns(path)
  for name in names:
    columns.metric(name)
  store.trim()


if __name__ == '__main__':
  main()
