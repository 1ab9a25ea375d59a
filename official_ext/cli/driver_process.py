"""The process that returns the driver's answers: `python -m` runs it. See driver_server.py, which is slow to import.

It prints its stages as JSON objects, one a line: `{"stage": "importing TensorFlow"}`.
"""

import json
import sys


def main() -> None:
  """Imports TensorFlow, and serves until stdin ends."""
  print(json.dumps({'stage': 'importing TensorFlow'}), flush=True)
  from official_ext.cli import driver_server  # pylint: disable=g-import-not-at-top  # After the line above.

  driver_server.main(sys.argv[1:])


if __name__ == '__main__':
  main()
