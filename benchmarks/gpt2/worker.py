"""The process of one measurement: `python -m benchmarks.gpt2.worker LIBRARY --batch_size=N [--tiny]`."""

import argparse
import importlib
import json
import os
import sys

from benchmarks.gpt2 import sizes
from benchmarks.peers import protocol

# Name -> module and its options.
LIBRARIES = {
  'ours': ('ours', {}),
  'ours_cudnn': ('ours', {'attn_implementation': 'cudnn'}),
  'ours_remat': ('ours', {'remat': 'block'}),
  'torch': ('plain_torch', {}),
  'torch_compile': ('plain_torch', {'compiled': True}),
}


def main() -> None:
  """Builds the training, and serves; without a batch size, prints its GPU."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('library', choices=LIBRARIES)
  parser.add_argument('--batch_size', type=int, default=0)
  parser.add_argument('--tiny', action='store_true')
  arguments = parser.parse_args()
  os.environ.update({'TF_CPP_MIN_LOG_LEVEL': '3', 'TF_USE_LEGACY_KERAS': '1'})
  # TensorFlow would take all of the memory, and the other library shares the GPU with it.
  os.environ.setdefault('TF_FORCE_GPU_ALLOW_GROWTH', 'true')
  name, options = LIBRARIES[arguments.library]
  with protocol.answers() as stream:
    module = importlib.import_module(f'benchmarks.gpt2.{name}')
    if not arguments.batch_size:
      stream.write(json.dumps({'ready': dict(zip(('device', 'memory'), module.device()))}) + '\n')
      return
    network = sizes.TINY if arguments.tiny else sizes.GPT2
    protocol.serve(module.measurement(network, arguments.batch_size, **options), sys.stdin, stream, {})
  sys.stdout.flush()
  os._exit(0)


if __name__ == '__main__':
  main()
