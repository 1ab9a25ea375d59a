"""What the CPU of this machine can do."""

from collections.abc import Mapping
import functools
import os
import pathlib

_OFF = ('0', 'false')


@functools.cache
def multiplies_bfloat16() -> bool:
  """Whether TensorFlow's own products of matrices in bfloat16 use this CPU's matrix unit (AMX, through oneDNN)."""
  try:
    text = pathlib.Path('/proc/cpuinfo').read_text(encoding='utf-8', errors='replace')
  except OSError:  # Not Linux.
    return False
  return uses_amx(text, os.environ)


def uses_amx(cpuinfo: str, environment: Mapping[str, str]) -> bool:
  """See `multiplies_bfloat16`.

  Args:
    cpuinfo: the text of /proc/cpuinfo.
    environment: the variables of the process: `TF_ENABLE_ONEDNN_OPTS` and `ONEDNN_MAX_CPU_ISA` may switch AMX off.
  """
  flags = next((line.partition(':')[2].split() for line in cpuinfo.splitlines() if line.startswith('flags')), [])
  if not {'amx_tile', 'amx_bf16'} <= set(flags) or environment.get('TF_ENABLE_ONEDNN_OPTS', '1').lower() in _OFF:
    return False
  # https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
  allowed = environment.get('ONEDNN_MAX_CPU_ISA', environment.get('DNNL_MAX_CPU_ISA', 'DEFAULT')).upper()
  return allowed in ('', 'ALL', 'DEFAULT') or allowed.startswith(('AVX512_CORE_AMX', 'AVX10_1_512_AMX'))
