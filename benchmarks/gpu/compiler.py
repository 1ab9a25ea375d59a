"""Compiles an HLO proto for an H100 without one. Runs in .venv-gpu-compiler: imports JAX.

    .venv-gpu-compiler/bin/python benchmarks/gpu/compiler.py NAME.pb OUT_DIR

writes OUT_DIR/optimized.txt, the HLO after all passes, and prints one line of JSON: the seconds, and the bytes of
temporary memory. Nothing is timed on a device, so products are Triton's.
"""

import glob
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time


def main(proto: str, folder: str) -> None:
  """Compiles one program."""
  with tempfile.TemporaryDirectory() as dump:
    flags = f'--xla_gpu_autotune_level=0 --xla_dump_to={dump} --xla_dump_hlo_as_text'
    os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {flags}'
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
    from jax.experimental import topologies  # pylint: disable=g-import-not-at-top
    import portable  # pylint: disable=g-import-not-at-top  # Reads the flags.

    target = (pathlib.Path(__file__).parent / 'h100.txtpb').read_text()
    topology = topologies.get_topology_desc('h100', 'cuda', target_config=target, topology='1x1x1')
    start = time.perf_counter()
    executable = portable.compiled(pathlib.Path(proto).read_bytes(), topology.devices[0])
    seconds = time.perf_counter() - start
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    (optimized,) = glob.glob(f'{dump}/*after_optimizations.txt')
    shutil.copy(optimized, pathlib.Path(folder) / 'optimized.txt')
  memory = executable.get_compiled_memory_stats()
  print(json.dumps({'compile_seconds': round(seconds, 1), 'temporary_bytes': memory.temp_size_in_bytes}))


if __name__ == '__main__':
  main(*sys.argv[1:])
