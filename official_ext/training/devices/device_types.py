"""The kind of device on which a strategy computes, and the features of this machine's CPU.

Imports no part of Model Garden: models import it.
"""

from collections.abc import Mapping
import functools
import os
import pathlib

import tensorflow as tf


def device_type(strategy: tf.distribute.Strategy) -> str:
  """'CPU', 'GPU' or 'TPU': the devices of the strategy's replicas."""
  if isinstance(strategy, tf.distribute.TPUStrategy):
    return 'TPU'
  if isinstance(
    strategy,
    (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.OneDeviceStrategy),
  ):
    devices = strategy.extended.worker_devices
  else:
    devices = [device.name for device in tf.config.list_logical_devices('GPU')]
  return 'GPU' if any('GPU' in device.upper() for device in devices) else 'CPU'


_BFLOAT16_CAPABILITY = (8, 0)


@functools.cache
def gpu_capability() -> tuple[int, ...]:
  """The least compute capability of the GPUs, such as (9, 0); (0, 0) without one."""
  found = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices('GPU')]
  return min((tuple(details.get('compute_capability', (0, 0))) for details in found), default=(0, 0))


def gpus_multiply_bfloat16() -> bool:
  """Whether there are GPUs, and all of them multiply bfloat16 in their tensor cores."""
  return gpu_capability() >= _BFLOAT16_CAPABILITY


_OFF = ('0', 'false')
# The values of `ONEDNN_MAX_CPU_ISA`, if oneDNN shall be as fast as is assumed here:
# https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
_UNLIMITED = ('', 'ALL', 'DEFAULT')
_WITH_AVX2 = ('AVX2', 'AVX512', 'AVX10')
_WITH_BFLOAT16 = ('AVX512_CORE_BF16', 'AVX512_CORE_FP16', 'AVX512_CORE_AMX', 'AVX10_1_512')


@functools.cache
def fast_products() -> frozenset[str]:
  """The dtypes in which TensorFlow's own matrix products (oneDNN's) are at least as fast here as XLA's."""
  try:
    text = pathlib.Path('/proc/cpuinfo').read_text(encoding='utf-8', errors='replace')
  except OSError:  # Not Linux.
    return frozenset()
  return fast_products_of(text, os.environ)


def fast_products_of(cpuinfo: str, environment: Mapping[str, str]) -> frozenset[str]:
  """See `fast_products`: float32 with AVX2; bfloat16 too if the CPU multiplies it (AVX-512 BF16, and so AMX).

  XLA multiplies bfloat16 as float32. In float32 both are as fast. CPUs without AVX2 were not measured.

  Args:
    cpuinfo: the text of /proc/cpuinfo.
    environment: the variables of the process: `TF_ENABLE_ONEDNN_OPTS` and `ONEDNN_MAX_CPU_ISA` may switch these off.
  """
  flags = next((line.partition(':')[2].split() for line in cpuinfo.splitlines() if line.startswith('flags')), [])
  allowed = environment.get('ONEDNN_MAX_CPU_ISA', environment.get('DNNL_MAX_CPU_ISA', 'DEFAULT')).upper()
  is_off = environment.get('TF_ENABLE_ONEDNN_OPTS', '1').lower() in _OFF
  if is_off or 'avx2' not in flags or not (allowed in _UNLIMITED or allowed.startswith(_WITH_AVX2)):
    return frozenset()
  has_bfloat16 = 'avx512_bf16' in flags and (allowed in _UNLIMITED or allowed.startswith(_WITH_BFLOAT16))
  return frozenset(('bfloat16', 'float32')) if has_bfloat16 else frozenset(('float32',))
