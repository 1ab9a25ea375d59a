"""The model, tokenizer and records of fine-tuning, for this library and for TRL. Without TensorFlow or PyTorch.

All records are one batch: each step has the same loss and gradient, in any order of the records.
"""

import argparse
import dataclasses
import json
import pathlib

import numpy as np

from benchmarks import quantized_memory

VOCABULARY = 2048
_END, _PADDING = VOCABULARY - 2, VOCABULARY - 1
_FIRST = 0x4E00  # A character, and so a token, for each number.
_SIZES = {'layers': 4, 'hidden_size': 256, 'head_size': 64, 'intermediate_size': 1024, 'vocab_size': VOCABULARY}


@dataclasses.dataclass(frozen=True)
class Tuning:
  """A fine-tuning.

  Attributes:
    method: 'sft', 'dpo' or 'grpo'.
    num_records: of a batch; of grpo these are prompts.
    prompt_tokens: of each prompt.
    answer_tokens: of each answer, its end included.
    num_generations: completions of a prompt; grpo alone.
    lora_rank: of adapters on all linear layers; 0: all weights are trained.
    learning_rate: constant, of AdamW with PyTorch's defaults and without weight decay.
    clip_norm: of gradients.
  """

  method: str
  num_records: int
  prompt_tokens: int
  answer_tokens: int
  num_generations: int = 1
  lora_rank: int = 0
  learning_rate: float = 1e-4
  clip_norm: float = 1.0

  @property
  def length(self) -> int:
    """Tokens of a prompt and its answer."""
    return self.prompt_tokens + self.answer_tokens

  def write(self, folder: pathlib.Path) -> pathlib.Path:
    """Writes the model and its tokenizer into a folder, the same at each call. Returns the file of records."""
    from safetensors import numpy as safetensors  # pylint: disable=g-import-not-at-top

    args, draws = argparse.Namespace(**_SIZES), np.random.default_rng(0)
    values = {
      name: np.ones(shape, np.float32) if len(shape) == 1 else draws.normal(0, 0.02, shape).astype(np.float32)
      for name, shape in quantized_memory.shapes(args).items()
    }
    safetensors.save_file(values, folder / 'model.safetensors', {'format': 'pt'})
    fields = quantized_memory.config(args, 'float32')
    (folder / 'config.json').write_text(json.dumps({**fields, 'eos_token_id': _END, 'pad_token_id': _PADDING}))
    _write_tokenizer(folder)
    records = folder / 'records.jsonl'
    records.write_text(''.join(json.dumps(record) + '\n' for record in self._records()))
    return records

  def _records(self) -> list[dict[str, str]]:
    names = {'sft': ['completion'], 'dpo': ['chosen', 'rejected'], 'grpo': ['answer']}[self.method]
    rows = _drawn(self.num_records, self.prompt_tokens + len(names) * self.answer_tokens)
    found = []
    for row in rows:
      record = {'prompt': _text(row[: self.prompt_tokens])}
      for number, name in enumerate(names):
        start = self.prompt_tokens + number * self.answer_tokens
        record[name] = _text(row[start : start + self.answer_tokens - 1])  # Both libraries add the end.
      found.append(record)
    return found

  def check_rows(self) -> np.ndarray:
    """Token ids whose loss is compared: integers [4, length + 1]."""
    return _drawn(4, self.length + 1)


def reward(completions: list[str]) -> list[float]:
  """The share of a completion's characters that are in the first half of the vocabulary."""
  half = chr(_FIRST + VOCABULARY // 2)
  return [sum(character < half for character in text) / max(1, len(text)) for text in completions]


def _drawn(num_rows: int, length: int) -> np.ndarray:
  return np.random.default_rng(1).integers(0, _END, [num_rows, length]).astype(np.int32)


def _text(ids: np.ndarray) -> str:
  return ''.join(chr(_FIRST + int(number)) for number in ids)


def _write_tokenizer(folder: pathlib.Path) -> None:
  """A token for each character, and one for the end and for padding."""
  import tokenizers  # pylint: disable=g-import-not-at-top

  named = {'eos_token': '<end>', 'pad_token': '<pad>'}
  vocabulary = {chr(_FIRST + number): number for number in range(_END)} | {'<end>': _END, '<pad>': _PADDING}
  tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
  tokenizer.decoder = tokenizers.decoders.Fuse()
  tokenizer.add_special_tokens(list(named.values()))
  tokenizer.save(str(folder / 'tokenizer.json'))
  fields = {'tokenizer_class': 'PreTrainedTokenizerFast', 'clean_up_tokenization_spaces': False, **named}
  (folder / 'tokenizer_config.json').write_text(json.dumps(fields))
