"""Which peers run which workload, with which settings, and what this project wants to reach. Imports no framework."""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

from benchmarks.peers.work import decoder
from benchmarks.peers.work import digits

_TENSORFLOW = ('tensorflow', 'tf_keras')
_GARDEN = (*_TENSORFLOW, 'tf-models-official')


@dataclasses.dataclass(frozen=True)
class Peer:
  """One way to do the work.

  Attributes:
    name: on the command line and in tables.
    runner: the module of runners/.
    settings: of its `measurement`.
    packages: that it needs, whose versions are told.
    environment: a name in `environments.ENVIRONMENTS`.
    environment_variables: set before the framework is imported.
    goal: the ratio of our rate to this peer's that this project wants; None if it has said none.
  """

  name: str
  runner: str
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  packages: tuple[str, ...] = _TENSORFLOW
  environment: str = 'project'
  environment_variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
  goal: float | None = None

  def __post_init__(self):
    defaults = {'TF_CPP_MIN_LOG_LEVEL': '3', 'CUDA_VISIBLE_DEVICES': ''}
    if self.environment == 'project':
      defaults['TF_USE_LEGACY_KERAS'] = '1'
    object.__setattr__(self, 'environment_variables', {**defaults, **self.environment_variables})


@dataclasses.dataclass(frozen=True)
class Workload:
  """Something that all its peers do.

  Attributes:
    letter: its row among the goals.
    name: on the command line.
    title: in tables.
    unit: of which there are so many a second.
    work: makes what is computed.
    ours: this library.
    peers: the others, and ourselves in another way.
    inverse_unit: if set, tables tell milliseconds for one of these instead of a rate.
    turn_seconds: how long a turn is, unless the command says otherwise.
    most: the largest amount of a turn; 0 for no limit.
  """

  letter: str
  name: str
  title: str
  unit: str
  work: Callable[[], Any]
  ours: Peer
  peers: tuple[Peer, ...]
  inverse_unit: str = ''
  turn_seconds: float = 1.5
  most: int = 0

  def peer(self, name: str) -> Peer:
    """The peer, or ours, with this name."""
    return {peer.name: peer for peer in (self.ours, *self.peers)}[name]


def _ours(steps_per_loop: int, name: str = 'ours', **settings: Any) -> Peer:
  return Peer(name, 'ours', {'steps_per_loop': steps_per_loop, **settings}, _GARDEN)


def _stock(steps_per_loop: int, name: str = 'stock', goal: float | None = None, **settings: Any) -> Peer:
  return Peer(name, 'stock', {'steps_per_loop': steps_per_loop, **settings}, _GARDEN, goal=goal)


def _fit(name: str, goal: float | None = None, **settings: Any) -> Peer:
  return Peer(name, 'keras_fit', {'keras_module': 'tf_keras', **settings}, goal=goal)


def _keras(backend: str, goal: float | None = None, **settings: Any) -> Peer:
  packages = ('keras', 'tensorflow', *(('jax',) if backend == 'jax' else ()))
  variables = {'KERAS_BACKEND': backend}
  settings = {'keras_module': 'keras', **settings}
  return Peer(f'keras3_{backend}', 'keras_fit', settings, packages, 'peers', variables, goal)


def _bare(name: str, goal: float | None = None, **settings: Any) -> Peer:
  return Peer(name, 'bare_tf', settings, goal=goal)


def _torch(name: str = 'torch', goal: float | None = None, **settings: Any) -> Peer:
  return Peer(name, 'pytorch', settings, ('torch',), goal=goal)


def _jax(name: str, goal: float | None = None, **settings: Any) -> Peer:
  return Peer(name, 'jax_steps', settings, ('jax', 'optax'), 'peers', {'JAX_PLATFORMS': 'cpu'}, goal)


_FOUR_OF_TORCH = {
  'torch': {},
  'torch_compile': {'compiled': True},
  'torch_bf16': {'bfloat16': True},
  'torch_compile_bf16': {'compiled': True, 'bfloat16': True},
}


def _torches(goal: float | None = None) -> tuple[Peer, ...]:
  return tuple(_torch(name, goal, **settings) for name, settings in _FOUR_OF_TORCH.items())


_DIGITS_MLP = Workload(
  'a',
  'digits_mlp',
  'perceptron 64-256-256-10, batches of 64: what stands around a step',
  'steps',
  digits.perceptron,
  _ours(500),
  (
    _stock(500, goal=1.8),
    _stock(500, 'stock_our_input', pipeline=False),
    _fit('tf_keras_fit'),
    _fit('tf_keras_fit_xla', jit_compile=True),
    _fit('tf_keras_fit_100_steps', jit_compile=True, steps_per_execution=100),
    _keras('tensorflow', steps_per_execution=100),
    _keras('jax', steps_per_execution=100),
    _bare('bare_graph', jit_compile=False),
    _bare('bare_xla', jit_compile=True),
    _bare('bare_xla_100_steps', jit_compile=True, steps_per_program=100),
    *_torches(),
    _jax('jax_step'),
    _jax('jax_scan', goal=0.9, steps_per_program=100),
    Peer('numpy', 'numpy_by_hand', packages=('numpy',)),
  ),
)

_DIGITS_CONV = Workload(
  'b',
  'digits_conv',
  'two convolutions and two dense layers with dropout on 8x8 images, batches of 64',
  'steps',
  digits.convolutional,
  _ours(50),
  (
    _stock(50, goal=1.0),
    _fit('tf_keras_fit', jit_compile=False),
    _fit('tf_keras_fit_50_steps', jit_compile=False, steps_per_execution=50),
    _keras('tensorflow', steps_per_execution=50, jit_compile=False),
    _keras('jax', steps_per_execution=50),
    _bare('bare_graph', jit_compile=False),
    _bare('bare_xla', jit_compile=True),
    _torch(goal=1 / 1.3),
    _torch('torch_compile', compiled=True),
    _jax('jax_step'),
  ),
)


def _decoder_workload(letter: str, name: str, title: str, layers: int, peers: tuple[Peer, ...]) -> Workload:
  return Workload(
    letter,
    name,
    f'decoder of {layers} layers of 256, 16 rows of 128 tokens, vocabulary 512, '
    f'{decoder.flops(layers) / 1e9:.1f} GFLOP a step{title}',
    'steps',
    lambda: decoder.decoder(layers),
    _ours(2 if layers > 4 else 10),
    peers,
    inverse_unit='step',
    turn_seconds=4.0,
  )


_DECODER = _decoder_workload(
  'c',
  'decoder',
  '',
  4,
  (
    _ours(10, 'ours_bf16', mixed_precision_dtype='bfloat16'),
    _ours(10, 'ours_graph', enable_xla=False),
    _ours(10, 'ours_graph_bf16', enable_xla=False, mixed_precision_dtype='bfloat16'),
    _ours(10, 'ours_1_step', steps_per_execution=1),
    _stock(10),
    _fit('tf_keras_fit', jit_compile=False),
    _fit('tf_keras_fit_xla', jit_compile=True),
    _keras('tensorflow', jit_compile=False),
    _keras('jax', goal=2.0),
    _bare('bare_graph', jit_compile=False),
    _bare('bare_xla', jit_compile=True),
    _bare('bare_graph_bf16', jit_compile=False, bfloat16=True),
    *_torches(goal=1.0),
    _jax('jax_step', goal=2.0),
    _jax('jax_step_bf16', bfloat16=True, goal=2.0),
  ),
)

_DEEP = _decoder_workload(
  'd',
  'decoder_24_layers',
  ': layers unrolled, in a scan, recomputed',
  24,
  (
    _ours(2, 'ours_scan', model_options={'scan_layers': True}),
    _ours(2, 'ours_remat', model_options={'remat': 'block'}),
    _ours(2, 'ours_scan_remat', model_options={'scan_layers': True, 'remat': 'block'}),
    _torch(),
    _jax('jax_step'),
  ),
)

_REPLICAS = Workload(
  'h',
  'two_replicas',
  'the perceptron on two virtual CPUs: what the split step costs',
  'steps',
  digits.perceptron,
  _ours(500, num_replicas=2),
  (_stock(500, num_replicas=2, goal=1.5), _ours(500, 'ours_one_replica')),
)

_EVALUATION = Workload(
  'k',
  'evaluation',
  'evaluation of the convolutional network on 11,392 images in batches of 128, with its accuracy',
  'examples',
  digits.evaluated,
  _ours(50, phase='evaluate'),
  (
    _stock(50, phase='evaluate'),
    _fit('tf_keras_evaluate', jit_compile=False, phase='evaluate'),
    _bare('bare_graph', jit_compile=False, phase='evaluate'),
    _bare('bare_xla', jit_compile=True, phase='evaluate'),
    _torch(phase='evaluate'),
  ),
)


def _start(name: str, kind: str, packages: tuple[str, ...] = _GARDEN, goal: float | None = None) -> Peer:
  return Peer(name, 'start', {'kind': kind}, packages, goal=goal)


_START = Workload(
  'f',
  'start',
  'from the command to the first finished step of the perceptron, in a new process',
  'starts',
  lambda: None,
  _start('ours', 'ours'),
  (
    _start('stock', 'stock', goal=1.0),
    _start('bare', 'bare', _TENSORFLOW, goal=1 / 1.15),
    _start('import_tensorflow', 'import', _TENSORFLOW),
  ),
  inverse_unit='start',
  most=1,
)


def _save(name: str, kind: str, goal: float | None = None) -> Peer:
  return Peer(name, 'checkpoint', {'kind': kind}, _GARDEN, goal=goal)


_CHECKPOINT = Workload(
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

_GENERATION = Workload(
  'i',
  'generation',
  'continuing 4 prompts of 16 tokens by 96, greedily, with a cache: decoder of 4 layers of 256, family llama',
  'tokens',
  lambda: None,
  Peer('ours', 'generation', packages=_TENSORFLOW),
  (Peer('transformers', 'generation_transformers', packages=('torch', 'transformers', *_TENSORFLOW)),),
)

_ADAPTERS = Workload(
  'j',
  'adapters',
  'LoRA of rank 8 on all linear layers over weights in NF4: decoder of 8 layers of 512, 4 rows of 128 tokens',
  'steps',
  lambda: None,
  Peer('ours', 'adapters', packages=_GARDEN),
  (Peer('peft', 'adapters_peft', packages=('torch', 'transformers', 'peft', 'bitsandbytes', *_TENSORFLOW)),),
  inverse_unit='step',
)

_IMAGES = Workload(
  'e',
  'images',
  'JPEGs of 96x128 from shards: decoded, cropped, flipped, resized to 64x64, in batches of 64',
  'examples',
  lambda: None,
  Peer('ours', 'images', {'kind': 'ours'}, _GARDEN),
  (Peer('input_reader', 'images', {'kind': 'input_reader'}, _GARDEN, goal=1.5),),
)

WORKLOADS: tuple[Workload, ...] = (
  _DIGITS_MLP,
  _DIGITS_CONV,
  _DECODER,
  _DEEP,
  _IMAGES,
  _START,
  _CHECKPOINT,
  _REPLICAS,
  _GENERATION,
  _ADAPTERS,
  _EVALUATION,
)


def workload(name: str) -> Workload:
  """The workload with this name, or letter.

  Raises:
    KeyError: there is none.
  """
  return {key: workload for workload in WORKLOADS for key in (workload.letter, workload.name)}[name]
