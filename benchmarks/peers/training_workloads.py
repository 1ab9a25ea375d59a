"""The workloads that train a network, or evaluate it, and those who do that."""

from typing import Any

from benchmarks.peers import entries
from benchmarks.peers.work import decoder
from benchmarks.peers.work import digits

Peer = entries.Peer


def _ours(
  steps_per_loop: int, name: str = 'ours', goal: float | None = None, beside: str = '', **settings: Any
) -> Peer:
  settings = {'steps_per_loop': steps_per_loop, **settings}
  return Peer(name, 'ours', settings, entries.GARDEN, goal=goal, beside=beside)


def _stock(steps_per_loop: int, name: str = 'stock', goal: float | None = None, **settings: Any) -> Peer:
  return Peer(name, 'stock', {'steps_per_loop': steps_per_loop, **settings}, entries.GARDEN, goal=goal)


def _fit(name: str, goal: float | None = None, **settings: Any) -> Peer:
  return Peer(name, 'keras_fit', {'keras_module': 'tf_keras', **settings}, goal=goal)


def _keras(backend: str, goal: float | None = None, **settings: Any) -> Peer:
  packages = ('keras', 'tensorflow', *(('jax',) if backend == 'jax' else ()))
  variables = {'KERAS_BACKEND': backend}
  settings = {'keras_module': 'keras', **settings}
  return Peer(f'keras3_{backend}', 'keras_fit', settings, packages, 'peers', variables, goal)


def _bare(name: str, goal: float | None = None, **settings: Any) -> Peer:
  return Peer(name, 'bare_tf', settings, goal=goal)


def _torch(name: str = 'torch', goal: float | None = None, beside: str = '', **settings: Any) -> Peer:
  return Peer(name, 'pytorch', settings, ('torch',), environment='torch', goal=goal, beside=beside)


def _jax(name: str, goal: float | None = None, **settings: Any) -> Peer:
  return Peer(name, 'jax_steps', settings, ('jax', 'optax'), 'peers', {'JAX_PLATFORMS': 'cpu'}, goal)


def _torches(goal: float | None = None, beside_bfloat16: str = '') -> tuple[Peer, ...]:
  return (
    _torch('torch', goal),
    _torch('torch_compile', goal, compiled=True),
    _torch('torch_bf16', goal, beside_bfloat16, bfloat16=True),
    _torch('torch_compile_bf16', goal, beside_bfloat16, compiled=True, bfloat16=True),
  )


DIGITS_MLP = entries.Workload(
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
    _bare('bare_xla_100_steps', goal=0.97, jit_compile=True, steps_per_program=100),
    *_torches(),
    _jax('jax_step'),
    _jax('jax_scan', goal=0.9, steps_per_program=100),
    Peer('numpy', 'numpy_by_hand', packages=('numpy',)),
  ),
)

DIGITS_CONV = entries.Workload(
  'b',
  'digits_conv',
  'two convolutions and two dense layers with dropout on 8x8 images, batches of 64',
  'steps',
  digits.convolutional,
  _ours(50),
  (
    _stock(50, goal=1.0),
    _fit('tf_keras_fit', jit_compile=False),
    _fit('tf_keras_fit_50_steps', goal=1.05, jit_compile=False, steps_per_execution=50),
    _keras('tensorflow', steps_per_execution=50, jit_compile=False),
    _keras('jax', steps_per_execution=50),
    _bare('bare_graph', goal=0.95, jit_compile=False),
    _bare('bare_xla', jit_compile=True),
    _torch(goal=1 / 1.3),
    _torch('torch_compile', compiled=True),
    _torch('torch_bf16', bfloat16=True),
    _jax('jax_step'),
  ),
)


def _decoder_title(layers: int) -> str:
  return (
    f'decoder of {layers} layers of 256, 16 rows of 128 tokens, vocabulary 512, '
    f'{decoder.flops(layers) / 1e9:.1f} GFLOP a step'
  )


def _by_hand(name: str, guarded: bool, goal: float) -> Peer:
  return Peer(name, 'ours_by_hand', {'steps_per_loop': 10, 'guarded': guarded}, entries.GARDEN, goal=goal)


DECODER = entries.Workload(
  'c',
  'decoder',
  _decoder_title(4),
  'steps',
  decoder.decoder,
  _ours(10),
  (
    _ours(10, 'ours_bf16', mixed_precision_dtype='bfloat16'),
    _ours(10, 'ours_graph', enable_xla=False),
    _ours(10, 'ours_graph_bf16', enable_xla=False, mixed_precision_dtype='bfloat16'),
    _ours(10, 'ours_1_step', steps_per_execution=1),
    _by_hand('by_hand_guarded', guarded=True, goal=0.99),
    _by_hand('by_hand', guarded=False, goal=0.95),
    _stock(10),
    _fit('tf_keras_fit', jit_compile=False),
    _fit('tf_keras_fit_xla', jit_compile=True),
    _keras('tensorflow', jit_compile=False),
    _keras('jax', goal=2.0),
    _bare('bare_graph', jit_compile=False),
    _bare('bare_xla', jit_compile=True),
    _bare('bare_graph_bf16', jit_compile=False, bfloat16=True),
    *_torches(goal=1.05, beside_bfloat16='ours_bf16'),
    _jax('jax_step', goal=2.0),
    _jax('jax_step_bf16', bfloat16=True),
  ),
  entries.Final(('ours', 'ours_bf16'), ('torch', 'torch_compile', 'torch_bf16', 'torch_compile_bf16'), goal=1.0),
  inverse_unit='step',
  turn_seconds=2.0,
  same_batches=True,
)

_SCAN, _REMAT = {'scan_layers': True}, {'remat': 'block'}

DEEP_DECODER = entries.Workload(
  'd',
  'decoder_24_layers',
  f'{_decoder_title(24)}: layers unrolled, in a scan, recomputed',
  'steps',
  lambda: decoder.decoder(24),
  _ours(2),
  (
    _ours(2, 'ours_scan', model_options=_SCAN),
    _ours(2, 'ours_unrolled', goal=0.95, beside='ours_scan'),
    _ours(2, 'ours_remat', model_options=_REMAT),
    _ours(2, 'ours_scan_remat', model_options={**_SCAN, **_REMAT}),
    _torch(),
    _jax('jax_step'),
  ),
  inverse_unit='step',
  turn_seconds=2.0,
  rounds=3,
  same_batches=True,
)


def _compilation(name: str, layers: int, goal: float | None = None, **model_options: Any) -> Peer:
  settings = {'layers': layers, 'model_options': model_options}
  return Peer(name, 'compilation', settings, entries.GARDEN, goal=goal)


COMPILATION = entries.Workload(
  'd',
  'compilation',
  'tracing and compiling the step of that decoder, at 24 layers unless a name says otherwise; ours is a scan',
  'compilations',
  lambda: None,
  _compilation('ours', 24, **_SCAN),
  (
    _compilation('ours_12_layers', 12, goal=1 / 1.1, **_SCAN),
    _compilation('unrolled_12_layers', 12),
    _compilation('unrolled', 24),
    _compilation('remat', 24, **_REMAT),
    _compilation('scan_remat', 24, **_SCAN, **_REMAT),
    Peer('jax', 'compilation_jax', {'layers': 24}, ('jax', 'optax'), 'peers', {'JAX_PLATFORMS': 'cpu'}),
  ),
  inverse_unit='compilation',
  most=1,
  rounds=2,
  other_rounds=1,
  warms_up=False,
  same_work=False,
)

REPLICAS = entries.Workload(
  'h',
  'two_replicas',
  'the perceptron on two virtual CPUs, on which Model Garden cannot use XLA: what the split step costs',
  'steps',
  digits.perceptron,
  _ours(500, num_replicas=2),
  (_stock(500, num_replicas=2, goal=1.2), _ours(500, 'ours_one_replica')),
)

EVALUATION = entries.Workload(
  'k',
  'evaluation',
  'evaluation of the convolutional network on 11,392 images in batches of 128, with its accuracy',
  'examples',
  digits.evaluated,
  _ours(50, phase='evaluate'),
  (
    _stock(50, phase='evaluate'),
    _fit('tf_keras_evaluate', goal=1.1, jit_compile=False, phase='evaluate'),
    _bare('bare_graph', jit_compile=False, phase='evaluate'),
    _bare('bare_xla', jit_compile=True, phase='evaluate'),
    _torch(goal=0.9, phase='evaluate'),
  ),
)
