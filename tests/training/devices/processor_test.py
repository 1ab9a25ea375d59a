"""Which CPUs multiply at least as fast outside of XLA, by the kernel's flags and the features switched off."""

import pytest

from official_ext.training.devices import processor

WITH = 'processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 avx512_fp16\nbogomips\t: 4000\n'


@pytest.mark.parametrize(
  'cpuinfo, environment, expected',
  [
    (WITH, {}, True),
    (WITH.replace('avx512_bf16', 'amx_bf16 avx512_bf16 amx_tile'), {}, True),
    (WITH.replace(' avx512_bf16', ''), {}, False),
    ('Features\t: fp asimd bf16\n', {}, False),  # Of an ARM.
    ('', {}, False),
    (WITH, {'TF_ENABLE_ONEDNN_OPTS': '0'}, False),
    (WITH, {'TF_ENABLE_ONEDNN_OPTS': '1'}, True),
    (WITH, {'ONEDNN_MAX_CPU_ISA': 'AVX512_CORE_BF16'}, True),
    (WITH, {'ONEDNN_MAX_CPU_ISA': 'AVX512_CORE_VNNI'}, False),
    (WITH, {'ONEDNN_MAX_CPU_ISA': 'AVX512_CORE_AMX'}, True),
    (WITH, {'DNNL_MAX_CPU_ISA': 'AVX2'}, False),
  ],
)
def test_instructions_for_bfloat16_count_only_where_they_are_there_and_not_switched_off(cpuinfo, environment, expected):
  products = {'bfloat16', 'float32'} if expected else set()
  assert processor.fast_products_of(cpuinfo, environment) == products
