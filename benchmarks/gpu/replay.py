"""Runs a program's HLO by JAX, with the weights donated as TensorFlow does, and times it: one line of JSON.

    python replay.py NAME.pb[.gz] --steps=20 --tokens=32768 --flops=28.03e12

It needs JAX 0.11 with a plugin for the device, and no TensorFlow. Arguments are drawn: integers below --int_max,
matrices with a deviation of 0.02, scalars 1.
"""

import argparse
import gzip
import json
import os
import pathlib
import re
import sys
import time

_TYPES = {
  'pred': 'bool', 's8': 'int8', 'u8': 'uint8', 's32': 'int32', 'u32': 'uint32', 's64': 'int64', 'u64': 'uint64',
  'f16': 'float16', 'bf16': 'bfloat16', 'f32': 'float32', 'f64': 'float64',
}  # fmt: skip


def main() -> None:
  """Compiles, warms up with 3 steps, and takes the times of 3 rounds."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('proto')
  parser.add_argument('--steps', type=int, default=20, help='of a round')
  parser.add_argument('--tokens', type=int, default=0, help='of a step')
  parser.add_argument('--flops', type=float, default=0, help='of a step')
  parser.add_argument('--int_max', type=int, default=50000)
  parser.add_argument('--flags', default='', help='of XLA')
  parser.add_argument('--dump', default='', help='a folder for the optimised HLO')
  options = parser.parse_args()
  dump = f'--xla_dump_to={options.dump} --xla_dump_hlo_as_text' if options.dump else ''
  os.environ['XLA_FLAGS'] = ' '.join((os.environ.get('XLA_FLAGS', ''), options.flags, dump)).strip()
  os.environ.setdefault('XLA_PYTHON_CLIENT_MEM_FRACTION', '0.92')
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  sys.path.insert(0, str(pathlib.Path(__file__).parent))
  import jax  # pylint: disable=g-import-not-at-top  # Reads the flags.
  import portable  # pylint: disable=g-import-not-at-top

  jax.config.update('jax_enable_x64', True)
  device = jax.devices()[0]
  opened = gzip.open if options.proto.endswith('.gz') else open
  with opened(options.proto, 'rb') as file:
    proto = file.read()
  start = time.perf_counter()
  executable = portable.compiled(proto, device, is_present=True)
  compile_seconds = time.perf_counter() - start
  head = executable.hlo_modules()[0].to_string().split('\n', 1)[0]
  parameters, alias = signature(head)
  arguments = [jax.device_put(value, device) for value in values(parameters, options.int_max)]

  def run():
    results = executable.execute(arguments)
    for result, parameter in alias.items():
      arguments[parameter] = results[result]
    return results

  for _ in range(3):
    results = run()
  jax.block_until_ready(results)
  times = []
  for _ in range(3):
    start = time.perf_counter()
    for _ in range(options.steps):
      results = run()
    jax.block_until_ready(results)
    times.append((time.perf_counter() - start) / options.steps)
  seconds = sorted(times)[1]
  print(
    json.dumps(
      {
        'name': os.path.basename(options.proto),
        'flags': options.flags,
        'device': str(device.device_kind),
        'jax': jax.__version__,
        'compile_seconds': round(compile_seconds, 1),
        'milliseconds': [round(1e3 * each, 3) for each in times],
        'tokens_per_second': round(options.tokens / seconds),
        'teraflop_per_second': round(options.flops / seconds / 1e12, 1),
        'temporary_gigabytes': round(executable.get_compiled_memory_stats().temp_size_in_bytes / 1e9, 2),
        'aliased': len(alias),
        'parameters': len(parameters),
      }
    ),
    flush=True,
  )


def signature(head):
  """((dtype, dims) of each parameter, {number of a result: number of the parameter that it aliases})."""
  before, _, layout = head.partition('entry_computation_layout={')
  found = re.findall(rf'\b({"|".join(_TYPES)})\[([\d,]*)\]', layout.split(')->', 1)[0])
  parameters = [(_TYPES[dtype], tuple(int(size) for size in dims.split(',') if size)) for dtype, dims in found]
  return parameters, {int(out or 0): int(number) for out, number in re.findall(r'\{(\d*)\}: \((\d+), ', before)}


def values(parameters, int_max):
  """An array for each parameter. Slots of optimizers are not negative."""
  import ml_dtypes  # pylint: disable=g-import-not-at-top
  import numpy as np  # pylint: disable=g-import-not-at-top

  rng = np.random.default_rng(0)
  for name, dims in parameters:
    dtype = np.dtype(ml_dtypes.bfloat16) if name == 'bfloat16' else np.dtype(name)
    if dtype.kind in 'iu':
      most = min(int_max, np.iinfo(dtype).max) if len(dims) > 1 else 1
      yield rng.integers(0, max(1, most), dims).astype(dtype)
    elif dtype.kind == 'b':
      yield np.zeros(dims, dtype)
    else:
      drawn = 0.02 * rng.standard_normal(dims, np.float32) if len(dims) > 1 else np.ones(dims, np.float32)
      yield np.abs(drawn).astype(dtype)


if __name__ == '__main__':
  main()
