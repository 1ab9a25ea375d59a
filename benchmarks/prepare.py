"""How much `official-ext prepare` writes in a second: python -m benchmarks.prepare [--megabytes=200] [--images=4000]

usage: on a machine that does nothing else, python -m benchmarks.prepare [--workers=1,2] [--rounds=3] [--folder=FOLDER]
python -m benchmarks.prepare --beside_datasets [--megabytes=100] [--workers=2] [--rounds=3]

It makes texts of 2 to 10 kB from Python's language reference, and smooth pictures of 256 x 256 as JPEG, and prepares
them: texts unchanged; texts as rows of 1,024 tokens, packed in two ways, by a tokenizer of 8,000 tokens; images. Each
by so many processes, from the start of the command to its end; the table has the fastest of some rounds. Then the same
command again, which compares checksums alone. Input is in the page cache: the disk's own speed is not measured.

With --beside_datasets: tokens of a generated corpus as rows of 1,024, wrapped, beside Hugging Face's `datasets` with
the same tokenizer, documents and number of processes, in turns; see prepare_corpus.py and prepare_peer.py. Both append
the end of a sequence to each document, and the numbers of tokens must be equal. `datasets` drops the last row of each
batch, and here the last row of each shard is padded.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from PIL import Image
import pyarrow

from benchmarks import prepare_corpus
from benchmarks.peers import machine
from official_ext.language.text import python_topics
from official_ext.language.text import tokenizer_training

_PACKED = ('--tokenizer=tokenizer', '--seq_length=1024')
_CASES = {
  'texts, unchanged': ('texts.jsonl',),
  'texts, tokens, best_fit': ('texts.jsonl', *_PACKED, '--packing=best_fit'),
  'texts, tokens, wrapped': ('texts.jsonl', *_PACKED, '--packing=wrapped'),
  'images': ('images',),
}
_ROOT = pathlib.Path(__file__).resolve().parent.parent


def make_input(folder: pathlib.Path, megabytes: float, num_images: int, vocab_size: int = 8000) -> None:
  """Writes texts.jsonl, images/ and tokenizer/ into a folder."""
  rng = np.random.default_rng(0)
  topics = [document['text'] for document in python_topics.documents('train')]
  tokenizer_training.train(topics, vocab_size).save(str(folder / 'tokenizer'))
  whole = '\n\n'.join(topics)
  written = 0
  with open(folder / 'texts.jsonl', 'w', encoding='utf-8') as f:
    while written < megabytes * 1e6:
      start = int(rng.integers(len(whole) - 10_000))
      written += f.write(json.dumps({'text': whole[start : start + int(rng.integers(2_000, 10_000))]}) + '\n')
  for number in range(num_images):
    place = folder / 'images' / f'class{number % 10}'
    place.mkdir(parents=True, exist_ok=True)
    coarse = Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8))
    coarse.resize((256, 256), Image.Resampling.BICUBIC).save(place / f'{number}.jpeg', quality=90)


def size_of(path: pathlib.Path) -> int:
  """In bytes, of a file or of all files of a folder."""
  files = [path] if path.is_file() else [each for each in path.rglob('*') if each.is_file()]
  return sum(each.stat().st_size for each in files)


def prepare(folder: pathlib.Path, words: tuple[str, ...], workers: int, fresh: bool) -> tuple[float, str]:
  """(seconds, output) of a preparation into `out`; `fresh`: into an empty folder."""
  if fresh:
    shutil.rmtree(folder / 'out', ignore_errors=True)
  command = [sys.executable, '-m', 'official_ext.cli.main', 'prepare', words[0], 'out', *words[1:]]
  environment = {**os.environ, 'PYTHONPATH': str(_ROOT)}
  start = time.perf_counter()
  done = subprocess.run(
    [*command, f'--workers={workers}', '--shard_size=16MB'],
    cwd=folder,
    env=environment,
    check=True,
    stdout=subprocess.PIPE,
    text=True,
  )
  return time.perf_counter() - start, done.stdout


def row(folder: pathlib.Path, name: str, workers: int, seconds: float, printed: str) -> str:
  """A line of the table."""
  speed = size_of(folder / _CASES[name][0]) / 1e6 / seconds
  examples = json.loads((folder / 'out/prepared.json').read_text())['report']['examples']
  tokens = re.search(r'^(\d+) tokens', printed, re.MULTILINE)
  per_second = f'{int(tokens[1]) / seconds:,.0f}' if tokens else ''
  return f'| {name} | {workers} | {seconds:.1f} | {speed:.1f} | {examples / seconds:,.0f} | {per_second} |'


def measure(folder: pathlib.Path, workers: list[int], rounds: int) -> None:
  """Prints the lines of the table."""
  for name, words in _CASES.items():
    for number in workers:
      seconds, printed = min(prepare(folder, words, number, fresh=True) for _ in range(rounds))
      print(row(folder, name, number, seconds, printed), flush=True)
    seconds, _ = min(prepare(folder, words, workers[-1], fresh=False) for _ in range(rounds))
    print(f'| {name}, again | {workers[-1]} | {seconds:.1f} | | | |', flush=True)


def beside_datasets(folder: pathlib.Path, megabytes: float, workers: int, rounds: int) -> None:
  """Prints a table of this library and `datasets` on the same corpus, and the medians of the rounds' ratios.

  Raises:
    SystemExit: the numbers of tokens differ.
  """
  prepare_corpus.write(folder / 'texts.jsonl', megabytes)
  tokenizer_training.train([*prepare_corpus.texts(10, seed=1)], 32_000).save(str(folder / 'tokenizer'))
  print('\n| | processes | s | processor s | MB/s | tokens | on disk, MB |\n|---|---|---|---|---|---|---|', flush=True)
  seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in _COMMANDS}
  for _ in range(rounds):
    counts = set()
    for name, words in _COMMANDS.items():
      shutil.rmtree(folder / 'out', ignore_errors=True)
      took, used = _timed(folder, [sys.executable, *words, f'--workers={workers}'])
      seconds[name].append((took, used))
      num_tokens, rows = _written(folder / 'out')
      counts.add(num_tokens)
      speed, size = size_of(folder / 'texts.jsonl') / 1e6 / took, size_of(rows) / 1e6
      print(f'| {name} | {workers} | {took:.1f} | {used:.1f} | {speed:.1f} | {num_tokens} | {size:.0f} |', flush=True)
    if len(counts) > 1:
      raise SystemExit(f'error: the numbers of tokens differ: {sorted(counts)}')
  ours, *peers = _COMMANDS
  print()
  for peer in peers:
    ratios = [[b / a for a, b in zip(mine, other)] for mine, other in zip(seconds[ours], seconds[peer])]
    wall, processor = (statistics.median(of_rounds) for of_rounds in zip(*ratios))
    print(f'{peer} takes {wall:.2f} times the time, {processor:.2f} times the processor time')


_WRAPPED = ('--tokenizer=tokenizer', '--seq_length=1024', '--packing=wrapped')
_PEER = (str(_ROOT / 'benchmarks/prepare_peer.py'), 'texts.jsonl', 'tokenizer', 'out')
_COMMANDS = {
  'official-ext prepare': ('-m', 'official_ext.cli.main', 'prepare', 'texts.jsonl', 'out', *_WRAPPED),
  'datasets, group_texts': (*_PEER, '--packing=group_texts'),
  "datasets, TRL's packing": (*_PEER, '--packing=trl'),
}


def _timed(folder: pathlib.Path, command: list[str]) -> tuple[float, float]:
  """(seconds, seconds of processors) of a command with all its processes."""
  used = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
  start, start_used = time.perf_counter(), used()
  environment = {**os.environ, 'PYTHONPATH': str(_ROOT)}
  subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE)
  return time.perf_counter() - start, used() - start_used


def _written(out: pathlib.Path) -> tuple[int, pathlib.Path]:
  """(the number of tokens before packing, the folder of the rows)."""
  if (out / 'prepared.json').exists():
    return json.loads((out / 'prepared.json').read_text())['report']['tokens'], out
  found = 0
  for path in out.glob('cache/tokenized*.arrow'):
    with pyarrow.memory_map(str(path)) as file:
      found += sum(len(batch['input_ids'].flatten()) for batch in pyarrow.ipc.open_stream(file))
  return found, out / 'rows'


def main() -> None:
  """Prints a table."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--megabytes', type=float, help='default: 200; beside `datasets` 100')
  parser.add_argument('--beside_datasets', action='store_true', help='tokens beside those of `datasets`')
  parser.add_argument('--images', type=int, default=4000)
  parser.add_argument('--workers', help='default: 1,2; beside `datasets` 2')
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument('--folder', help='where files are made, and removed again (default: a temporary one)')
  known = parser.parse_args()
  print('\n'.join(machine.describe()))
  with tempfile.TemporaryDirectory(dir=known.folder) as place:
    folder = pathlib.Path(place)
    if known.beside_datasets:
      beside_datasets(folder, known.megabytes or 100, int(known.workers or 2), known.rounds)
      return
    make_input(folder, known.megabytes or 200, known.images)
    print('\n| | processes | s | MB/s of input | examples/s | tokens/s |\n|---|---|---|---|---|---|', flush=True)
    measure(folder, [int(number) for number in (known.workers or '1,2').split(',')], known.rounds)


if __name__ == '__main__':
  main()
