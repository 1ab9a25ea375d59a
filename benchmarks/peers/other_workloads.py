"""The workloads around a training: input, start, checkpoints, generation, adapters."""

from typing import Any

from benchmarks.peers import entries
from benchmarks.peers.work import digits
from benchmarks.peers.work import generation

Peer = entries.Peer


def _input(name: str, runner: str, data: str, goal: float | None = None, **settings: Any) -> Peer:
  limits = {'data_wait': 0.02} if settings.get('kind') == 'ours' and runner == 'input_training' else {}
  return Peer(name, runner, {'data': data, **settings}, entries.GARDEN, goal=goal, limits=limits)


def _reading(name: str, data: str, title: str) -> entries.Workload:
  return entries.Workload(
    'e',
    name,
    title,
    'examples',
    lambda: None,
    _input('ours', 'input_reading', data, kind='ours'),
    (_input('input_reader', 'input_reading', data, goal=1.5, kind='input_reader'),),
  )


def _training(name: str, data: str, title: str) -> entries.Workload:
  return entries.Workload(
    'e',
    name,
    title,
    'steps',
    lambda: None,
    _input('ours', 'input_training', data, kind='ours'),
    (
      _input('ours_one_batch', 'input_training', data, kind='one_batch'),
      _input('stock', 'input_training', data, kind='input_reader'),
    ),
    turn_seconds=2.0,
  )


IMAGES = _reading(
  'images', 'images', 'JPEGs of 96x128 from shards: decoded, cropped, flipped, resized to 64x64, batches of 64'
)
TEXTS = _reading('texts', 'texts', 'packed rows of 128 tokens with their segments and positions, batches of 16')
IMAGES_TRAINING = _training(
  'images_training', 'images', 'three convolutions on these images: how long a step waits for them'
)
TEXTS_TRAINING = _training(
  'texts_training', 'texts', 'the decoder of (c) on these rows: how long a step waits for them'
)


def _start(name: str, kind: str, packages: tuple[str, ...] = entries.GARDEN, goal: float | None = None) -> Peer:
  return Peer(name, 'start', {'kind': kind}, packages, goal=goal)


START = entries.Workload(
  'f',
  'start',
  'from the command to the first finished step of the perceptron, in a new process',
  'starts',
  lambda: None,
  _start('ours', 'ours'),
  (
    _start('stock', 'stock', goal=1.0),
    _start('bare', 'bare', entries.TENSORFLOW, goal=0.87),
    _start('ours_in_parts', 'parts'),
    _start('ours_second_start', 'second'),
    _start('import_tensorflow', 'import', entries.TENSORFLOW),
  ),
  inverse_unit='start',
  most=1,
  rounds=4,
)


def _save(name: str, kind: str, goal: float | None = None) -> Peer:
  return Peer(name, 'checkpoint', {'kind': kind}, entries.GARDEN, goal=goal)


CHECKPOINT = entries.Workload(
  'g',
  'checkpoint',
  'what a save of 100 million parameters with two slots each stops the loop for',
  'saves',
  digits.hundred_million,
  _save('ours', 'asynchronous'),
  (_save('ours_synchronous', 'synchronous', goal=20.0), _save('stock', 'stock')),
  inverse_unit='save',
  most=1,
)


def _generation(name: str, description: str, **sizes: Any) -> entries.Workload:
  packages = ('torch', 'transformers', *entries.TENSORFLOW)
  return entries.Workload(
    'i',
    name,
    f'continuing {description}, with a cache: decoder of 4 layers of 256, family llama',
    'tokens',
    lambda: generation.Continuations(**sizes),
    Peer('ours', 'generation'),
    (Peer('transformers', 'generation_transformers', packages=packages, goal=3.0),),
    other_rounds=5,
  )


GENERATION = _generation('generation', '4 prompts of 16 tokens by 96, greedily')
GENERATION_BATCH = _generation('generation_batch', '32 prompts of 16 tokens by 96, greedily', batch=32)
GENERATION_PROMPT = _generation('generation_prompt', '4 prompts of 1,000 tokens by 96, greedily', prompt_tokens=1000)
GENERATION_DRAWN = _generation(
  'generation_drawn',
  '4 prompts of 16 tokens by 96, drawn at temperature 0.8 with top_k 50 and top_p 0.9',
  temperature=0.8,
  top_k=50,
  top_p=0.9,
)

ADAPTERS = entries.Workload(
  'j',
  'adapters',
  'LoRA of rank 8 on all linear layers over weights in NF4: decoder of 8 layers of 512, 4 rows of 128 tokens',
  'steps',
  lambda: None,
  Peer('ours', 'adapters', packages=entries.GARDEN),
  (
    Peer(
      'peft', 'adapters_peft', packages=('torch', 'transformers', 'peft', 'bitsandbytes', *entries.TENSORFLOW), goal=1.2
    ),
  ),
  inverse_unit='step',
  turn_seconds=2.0,
  other_rounds=5,
  same_batches=True,
)
