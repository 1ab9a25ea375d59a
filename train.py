"""The driver, for a checkout and for folders with experiments: `official-ext train` with the modules of this folder."""

import official_ext  # noqa: F401  # First: it selects the Keras that Model Garden is written for.

# isort: split
from official_ext.cli import train

if __name__ == '__main__':
  train.run()
