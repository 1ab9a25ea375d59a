"""How much memory fine-tuning with LoRA on weights in few bits takes: the whole process, beside the weights as float32.

usage: python benchmarks/quantized_memory.py [--layers=36] [--hidden_size=2560] [--intermediate_size=6912]
           [--vocab_size=32000] [--seq_length=128] [--steps=3] [--kept=nf4] [--folder=FOLDER] [train.py's flags ...]

A folder of the family llama with random weights in bfloat16 is made, one file at a time; then
`train.py --experiment=sft` is run as users run it, with adapters on all linear layers of the blocks, scan_layers, and
the rest in bfloat16. The figure is the peak of that process, of Python and TensorFlow too: the kernel's VmHWM
(Linux alone). Lines of the run have before them the peak at their time. With --kept=nf4,int8,none it is run
once for each; with --folder the model is kept there, and found again.

It needs the folder's size on disk (6 GB), and memory for the run, less than a third of the first column.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

_SHARD_BYTES = 10**9
_TEXTS = [f'{a} and {b} are {a + b}, {a} times {b} is {a * b}.' for a in range(40) for b in range(40)]
_HOW: Mapping[str, Sequence[str]] = {
  'nf4': ['--set=load_in_4bit=true'],
  'int8': ['--set=task.quantization.method=int8'],
  'none': [],
}


def shapes(args: argparse.Namespace) -> dict[str, tuple[int, ...]]:
  """Name in Hugging Face's files -> shape, of every tensor."""
  width, inner = args.hidden_size, args.intermediate_size
  found: dict[str, tuple[int, ...]] = {'model.embed_tokens.weight': (args.vocab_size, width)}
  for number in range(args.layers):
    layer = f'model.layers.{number}'
    found.update({f'{layer}.self_attn.{name}_proj.weight': (width, width) for name in 'qkvo'})
    found.update({f'{layer}.mlp.{name}_proj.weight': (inner, width) for name in ('gate', 'up')})
    found[f'{layer}.mlp.down_proj.weight'] = (width, inner)
    found.update({f'{layer}.{name}_layernorm.weight': (width,) for name in ('input', 'post_attention')})
  return {**found, 'model.norm.weight': (width,), 'lm_head.weight': (args.vocab_size, width)}


def config(args: argparse.Namespace, dtype: str) -> dict[str, Any]:
  """The fields of Hugging Face's config.json."""
  return {
    'architectures': ['LlamaForCausalLM'],
    'model_type': 'llama',
    'vocab_size': args.vocab_size,
    'hidden_size': args.hidden_size,
    'intermediate_size': args.intermediate_size,
    'num_hidden_layers': args.layers,
    'num_attention_heads': args.hidden_size // args.head_size,
    'num_key_value_heads': args.hidden_size // args.head_size,
    'max_position_embeddings': 2048,
    'rms_norm_eps': 1e-5,
    'tie_word_embeddings': False,
    'torch_dtype': dtype,
  }


def make_folder(folder: pathlib.Path, args: argparse.Namespace) -> None:
  """A model of Hugging Face with random weights, its tokenizer, and texts to learn."""
  import official_ext  # noqa: F401  Before tensorflow.

  # isort: split
  from official_ext.language.modeling import tensor_files
  from official_ext.language.text import tokenizer_training

  folder.mkdir(parents=True, exist_ok=True)
  tokenizer_training.train(_TEXTS, 400).save(str(folder))
  (folder / 'texts.jsonl').write_text(''.join(json.dumps({'text': text}) + '\n' for text in _TEXTS))
  # Numbers of a block, again and again from another place: those of billions of weights would take minutes to draw.
  block = np.random.default_rng(0).standard_normal(1_500_007, np.float32) * np.float32(0.02)

  def values(number: int, shape: tuple[int, ...]) -> Callable[[], np.ndarray]:
    return lambda: np.ones(shape, np.float32) if len(shape) == 1 else np.resize(np.roll(block, number), shape)

  tensors = {name: values(number, shape) for number, (name, shape) in enumerate(shapes(args).items())}
  tensor_files.write(str(folder), tensors, 'bfloat16', _SHARD_BYTES)
  (folder / 'config.json').write_text(json.dumps(config(args, 'bfloat16')))


def command(folder: pathlib.Path, model_dir: pathlib.Path, kept: str, args: argparse.Namespace) -> list[str]:
  """The command."""
  return [
    sys.executable,
    str(ROOT / 'train.py'),
    '--experiment=sft',
    '--mode=train',
    f'--model_dir={model_dir}',
    f'--set=model_path={folder}',
    f'--set=dataset_path={folder / "texts.jsonl"}',
    *_HOW[kept],
    '--set=task.frozen_dtype=bfloat16',
    '--set=task.model.scan_layers=true',
    f'--set=max_seq_length={args.seq_length}',
    '--set=batch_size=1',
    '--set=grad_accum_steps=1',
    f'--set=max_steps={args.steps}',
    '--set=steps_per_loop=1',
    *args.flags,
  ]


def peak(pid: int) -> int:
  """The most that a process has had in memory, in bytes; 0 if it has ended."""
  try:
    lines = pathlib.Path(f'/proc/{pid}/status').read_text().splitlines()
  except OSError:
    return 0
  return 1024 * next((int(line.split()[1]) for line in lines if line.startswith('VmHWM')), 0)


def run(words: Sequence[str]) -> tuple[int, float]:
  """(the peak of a command's process in bytes, its seconds); prints its lines, each behind the peak until then."""
  start, found = time.perf_counter(), 0
  with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:

    def print_lines():
      for line in process.stdout:
        print(f'{found / 1e6:7,.0f} MB | {line}', end='', flush=True)

    reader = threading.Thread(target=print_lines, daemon=True)
    reader.start()
    while process.poll() is None:  # The kernel keeps the peak itself; only that of the last moment could be missed.
      found = max(found, peak(process.pid))
      time.sleep(0.02)
    reader.join()
  if process.returncode:
    raise SystemExit(f'the run has ended with status {process.returncode}')
  return found, time.perf_counter() - start


def row(kept: str, measured: tuple[int, float], args: argparse.Namespace) -> list[str]:
  """A line of the table."""
  from official_ext.language.modeling import nf4

  sizes = {name: math.prod(shape) for name, shape in shapes(args).items()}
  kernels = sum(size for name, size in sizes.items() if '_proj.' in name)
  total = sum(sizes.values())
  packed = {'nf4': nf4.bytes_of([kernels], 64, True), 'int8': kernels, 'none': 2 * kernels}[kept]
  found, seconds = measured
  held = packed + 2 * (total - kernels)
  cells = [4 * total, 2 * total, held, found]
  return [
    f'{total / 1e6:,.0f} M',
    *(f'{size / 1e6:,.0f}' for size in cells),
    f'{4 * total / found:.2f}',
    f'{seconds:.0f}',
  ]


def main() -> None:
  """Prints the table."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  for name, default in (
    ('layers', 36),
    ('hidden_size', 2560),
    ('head_size', 128),
    ('intermediate_size', 6912),
    ('vocab_size', 32000),
    ('seq_length', 128),
    ('steps', 3),
  ):
    parser.add_argument(f'--{name}', type=int, default=default)
  parser.add_argument('--kept', default='nf4', help='how frozen kernels are kept, of ' + ', '.join(_HOW))
  parser.add_argument('--folder', type=pathlib.Path, help='of the model; default: a temporary one')
  args, args.flags = parser.parse_known_args()
  with tempfile.TemporaryDirectory(prefix='official_ext-memory-') as temporary:
    folder = (args.folder or pathlib.Path(temporary, 'model')).absolute()
    if not (folder / 'config.json').exists():
      make_folder(folder, args)
    rows = []
    for kept in args.kept.split(','):
      rows.append([kept, *row(kept, run(command(folder, pathlib.Path(temporary, kept), kept, args)), args)])
  heads = ['kept', 'weights', 'float32 MB', 'bfloat16 MB', 'kept MB', 'peak MB', 'float32 / peak', 'seconds']
  print()
  for line in [heads, *rows]:
    print('  '.join(cell.rjust(max(len(head), 9)) for cell, head in zip(line, heads)))


if __name__ == '__main__':
  main()
