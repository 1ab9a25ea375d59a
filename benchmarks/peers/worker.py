"""The process of one measurement: `python -m benchmarks.peers.worker WORKLOAD PEER [--cores=N]`; see protocol.py.

By hand: echo '{"amount": 10}' | python -m benchmarks.peers.worker digits_mlp ours
"""

import argparse
from collections.abc import Mapping
import importlib
from importlib import metadata
import os
import sys

from benchmarks.peers import catalogue
from benchmarks.peers import entries
from benchmarks.peers import protocol

_ON_CPU = ('CUDA_VISIBLE_DEVICES', 'JAX_PLATFORMS')


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
  os.environ.update(_variables(peer))  # Before the libraries are imported.
  with protocol.answers() as stream:
    runner = importlib.import_module(f'benchmarks.peers.runners.{peer.runner}')
    measurement = runner.measurement(workload.work(), **peer.settings)
    versions = {name: metadata.version(name) for name in peer.packages}
    protocol.serve(measurement, sys.stdin, stream, versions)
  sys.stdout.flush()
  os._exit(0)  # Threads of prefetching would hold up the exit, and there is nothing to save.


def _variables(peer: entries.Peer) -> Mapping[str, str]:
  """A peer's; with BENCH_ON_GPU=1 without those that keep it on the processor."""
  if os.environ.get('BENCH_ON_GPU') != '1':
    return peer.environment_variables
  grows = {'TF_FORCE_GPU_ALLOW_GROWTH': 'true'}  # Two processes share the GPU.
  kept = {name: value for name, value in peer.environment_variables.items() if name not in _ON_CPU}
  return {**grows, **kept}


if __name__ == '__main__':
  main()
