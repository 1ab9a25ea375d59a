"""Which CPUs multiply at least as fast outside of XLA, by the kernel's flags and the features switched off."""

import pytest

from official_ext.training.devices import device_types

WITH = 'processor\t: 0\nflags\t\t: fpu avx avx2 avx512f avx512_bf16 avx512_fp16\nbogomips\t: 4000\n'
NONE, FLOAT32, BOTH = set(), {'float32'}, {'bfloat16', 'float32'}


@pytest.mark.parametrize(
  'cpuinfo, environment, expected',
  [
    (WITH, {}, BOTH),
    (WITH.replace('avx512_bf16', 'amx_bf16 avx512_bf16 amx_tile'), {}, BOTH),
    (WITH.replace(' avx512_bf16', ''), {}, FLOAT32),
    (WITH.replace(' avx512f avx512_bf16 avx512_fp16', ''), {}, FLOAT32),
    (WITH.replace(' avx2 avx512f avx512_bf16 avx512_fp16', ''), {}, NONE),
    ('Features\t: fp asimd bf16\n', {}, NONE),  # Of an ARM.
    ('', {}, NONE),
    (WITH, {'TF_ENABLE_ONEDNN_OPTS': '0'}, NONE),
    (WITH, {'TF_ENABLE_ONEDNN_OPTS': '1'}, BOTH),
    (WITH, {'ONEDNN_MAX_CPU_ISA': 'AVX512_CORE_BF16'}, BOTH),
    (WITH, {'ONEDNN_MAX_CPU_ISA': 'AVX512_CORE_VNNI'}, FLOAT32),
    (WITH, {'ONEDNN_MAX_CPU_ISA': 'AVX512_CORE_AMX'}, BOTH),
    (WITH, {'DNNL_MAX_CPU_ISA': 'AVX2'}, FLOAT32),
    (WITH, {'ONEDNN_MAX_CPU_ISA': 'avx'}, NONE),
    (WITH, {'ONEDNN_MAX_CPU_ISA': 'SSE41'}, NONE),
  ],
)
def test_instructions_count_only_if_they_are_there_and_not_switched_off(cpuinfo, environment, expected):
  assert device_types.fast_products_of(cpuinfo, environment) == expected
