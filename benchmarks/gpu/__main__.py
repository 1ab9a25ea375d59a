"""Lowers and compiles programs, and compares them with the committed table: see the package.

Exit status 1: a figure is beyond 1.05 times the committed one, with the kernels that grew.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from benchmarks.gpu import roofline

_HERE = pathlib.Path(__file__).parent
TABLE = _HERE / 'programs.json'
NAMES = (
  'gpt2_eager',
  'gpt2_cudnn',
  'gpt2_steps',
  'gpt2_replica',
  'gpt2_replica_update',
  'nf4_lora',
  'moe',
  'scan_layers',
  'evaluation',
  'generate_greedy',
  'generate_sampled',
  'grpo_sampling',
  'resnet50',
  'bert',
  'retinanet',
)  # Of `programs.PROGRAMS`, whose module imports TensorFlow.
MOST_GROWTH = 1.05
# Seconds of the compiler depend on the machine: reported, not compared.
COMPARED = ('kernels', 'gigabytes', 'teraflop', 'milliseconds', 'temporary_gigabytes', 'unknown_loops')
_COLUMNS = {
  'kernels': 'kernels',
  'gigabytes': 'GB',
  'teraflop': 'TFLOP',
  'temporary_gigabytes': 'temporary GB',
  'cudnn_attention': 'calls of cuDNN attention',
  'unknown_loops': 'loops of unknown length',
  'milliseconds': 'roofline ms',
  'compile_seconds': 'compile s',
}


def measure(name: str, folder: pathlib.Path, compiler: str) -> roofline.Roofline:
  """The figures of a program, with its HLO in a folder: each step in a separate process."""
  lowering = [sys.executable, '-m', 'benchmarks.gpu.programs', name, str(folder)]
  _run(lowering, 'lowering')
  made = _run([compiler, str(_HERE / 'compiler.py'), str(folder / f'{name}.pb'), str(folder / name)], 'the compiler')
  memory = json.loads(made.strip().splitlines()[-1])
  found = roofline.of((folder / name / 'optimized.txt').read_text(encoding='utf-8'))
  found.figures_of_compiler.update(
    temporary_gigabytes=round(memory['temporary_bytes'] / 1e9, 2), compile_seconds=memory['compile_seconds']
  )
  return found


def _run(command, what):
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  if done.returncode:
    raise SystemExit(f'{what} failed: {" ".join(command)}\n{done.stderr[-3000:]}')
  return done.stdout


def growth(name: str, before: dict[str, dict[str, float]], found: roofline.Roofline) -> list[str]:
  """A line for each figure that has grown, and for the kinds of kernels that take longer."""
  figures, old = found.figures(), before['figures']
  grown = [
    f'{name}: {field}: {figures[field]:g}, was {old[field]:g}'
    for field in COMPARED
    if figures[field] > MOST_GROWTH * old.get(field, 0) + 1e-9
  ]
  if not grown:
    return []
  kinds = found.by_kind()
  longer = {
    kind: values['milliseconds'] - before['kinds'].get(kind, {'milliseconds': 0})['milliseconds']
    for kind, values in kinds.items()
  }
  ordered = sorted(((more, kind) for kind, more in longer.items() if more > 0), reverse=True)[:5]
  return grown + [f'{name}:   {kind}: {kinds[kind]["starts"]:g} kernels, {more:.2f} ms more' for more, kind in ordered]


def markdown(table: dict[str, dict[str, dict[str, float]]]) -> str:
  """The table of docs and of benchmarks/results/gpu_programs.md."""
  lines = ['| program | ' + ' | '.join(_COLUMNS.values()) + ' |', '|---' * (len(_COLUMNS) + 1) + '|']
  for name, entry in table.items():
    lines.append(f'| {name} | ' + ' | '.join(f'{entry["figures"].get(field, 0):,g}' for field in _COLUMNS) + ' |')
  return '\n'.join(lines)


def main(arguments: list[str] | None = None) -> int:
  """Measures programs; see the module."""
  parser = argparse.ArgumentParser(prog='python -m benchmarks.gpu', description=__doc__)
  parser.add_argument('programs', nargs='*', help='all, if none is named')
  parser.add_argument('--update', action='store_true', help='write the figures into the committed table')
  parser.add_argument('--report', action='store_true', help='print the kinds of kernels and the longest ones')
  parser.add_argument('--folder', help='keep HLO and compiled programs there')
  parser.add_argument(
    '--compiler', default='.venv-gpu-compiler/bin/python', help="the Python with JAX's plugin for CUDA"
  )
  options = parser.parse_args(arguments)
  table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
  complaints = []
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(options.folder or temporary)
    for name in options.programs or NAMES:
      found = measure(name, folder, options.compiler)
      print(f'{name}: {json.dumps(found.figures())}', flush=True)
      if options.report:
        print(roofline.report(found), flush=True)
      if options.update:
        table[name] = {'figures': found.figures(), 'kinds': found.by_kind()}
      elif name in table:
        complaints += growth(name, table[name], found)
      else:
        complaints.append(f'{name}: not in {TABLE.name}; add it by --update')
  if options.update:
    TABLE.write_text(json.dumps(table, indent=1) + '\n')
  print(markdown(table))
  if complaints:
    print(*complaints, sep='\n', file=sys.stderr)
  return int(bool(complaints))


if __name__ == '__main__':
  sys.exit(main())
