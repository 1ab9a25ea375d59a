"""The process of one measurement: `python -m benchmarks.peers.worker WORKLOAD PEER [--cores=N]`; see protocol.py.

By hand: echo '{"amount": 10}' | python -m benchmarks.peers.worker digits_mlp ours
"""

import argparse
import importlib
from importlib import metadata
import os
import sys

from benchmarks.peers import catalogue
from benchmarks.peers import protocol


def main() -> None:
  """Builds the work as the peer does it, and serves."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('workload')
  parser.add_argument('peer')
  parser.add_argument('--cores', type=int, default=0, help='on which it runs; 0 for all')
  arguments = parser.parse_args()
  if arguments.cores:  # Before the libraries count them.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
  workload = catalogue.workload(arguments.workload)
  peer = workload.peer(arguments.peer)
  os.environ.update(peer.environment_variables)  # Before the libraries are imported.
  with protocol.answers() as stream:
    runner = importlib.import_module(f'benchmarks.peers.runners.{peer.runner}')
    measurement = runner.measurement(workload.work(), **peer.settings)
    versions = {name: metadata.version(name) for name in peer.packages}
    protocol.serve(measurement, sys.stdin, stream, versions)
  sys.stdout.flush()
  os._exit(0)  # Threads of prefetching would hold up the exit, and there is nothing to save.


if __name__ == '__main__':
  main()
