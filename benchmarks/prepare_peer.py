"""The work of `official-ext prepare` by Hugging Face's `datasets`: a process that `benchmarks.prepare` starts.

python benchmarks/prepare_peer.py TEXTS TOKENIZER OUTPUT --packing=group_texts|trl [--workers=2] [--seq_length=1024]

`load_dataset`, `map` with a fast tokenizer, `map` that packs, `save_to_disk`, each by so many processes. Rows are
packed by the function of transformers' run_clm.py, or by TRL's, which computes on Arrow's arrays. The end of a sequence
follows each text, as TRL writes it. There are no masks and no labels.
"""

import argparse
import itertools
import os
import pathlib

import datasets
import transformers


def main() -> None:
  """Tokenizes, packs and saves."""
  parser = argparse.ArgumentParser()
  parser.add_argument('texts')
  parser.add_argument('tokenizer')
  parser.add_argument('output', type=pathlib.Path)
  parser.add_argument('--packing', choices=('group_texts', 'trl'), required=True)
  parser.add_argument('--workers', type=int, default=2)
  parser.add_argument('--seq_length', type=int, default=1024)
  known = parser.parse_args()
  datasets.disable_progress_bars()
  # As for ours: the processes share the cores.
  os.environ['RAYON_NUM_THREADS'] = str(max(1, len(os.sched_getaffinity(0)) // known.workers))
  tokenizer = transformers.AutoTokenizer.from_pretrained(known.tokenizer)
  end, size = tokenizer.eos_token, known.seq_length

  def tokenize(batch):
    return tokenizer([text + end for text in batch['text']], return_attention_mask=False)

  def group_texts(batch):
    ids = list(itertools.chain(*batch['input_ids']))
    total = len(ids) // size * size
    return {'input_ids': [ids[start : start + size] for start in range(0, total, size)]}

  cache = known.output / 'cache'
  data = datasets.load_dataset('json', data_files=known.texts, split='train', cache_dir=str(cache))
  tokenized = data.map(
    tokenize,
    batched=True,
    num_proc=known.workers,
    remove_columns=['text'],
    cache_file_name=str(cache / 'tokenized.arrow'),
  )
  if known.packing == 'trl':
    from trl import data_utils  # pylint: disable=g-import-not-at-top

    rows = data_utils.pack_dataset(tokenized, size, 'wrapped', {'num_proc': known.workers})
  else:
    rows = tokenized.map(group_texts, batched=True, num_proc=known.workers)
  rows.save_to_disk(known.output / 'rows', num_proc=known.workers)


if __name__ == '__main__':
  main()
