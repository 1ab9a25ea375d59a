"""Bytes, operations and times of kernels, against sums by hand."""

import pytest

from benchmarks.gpu import __main__ as table
from benchmarks.gpu import hlo_text
from benchmarks.gpu import roofline

HEAD = 'HloModule step, entry_computation_layout={(f32[8]{0})->f32[8]{0}}\n\n'


def of(text):
  return roofline.of(HEAD + text)


def test_a_product():
  found = of("""ENTRY %main (a: bf16[64,256], b: bf16[256,128]) -> bf16[64,128] {
  %a = bf16[64,256]{1,0} parameter(0)
  %b = bf16[256,128]{1,0} parameter(1)
  ROOT %c = bf16[64,128]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
""")
  (kernel,) = found.kernels
  assert kernel.nbytes == 2 * (64 * 256 + 256 * 128 + 64 * 128)
  assert kernel.flops == 2 * 64 * 256 * 128
  assert kernel.seconds == pytest.approx(2e-6 + kernel.nbytes / 3.0e12)


def test_a_slice_counts_its_part():
  """The sum of squares of the second half of a vector, which is sliced inside the kernel or by a separate one."""
  found = of("""%fused (p: f32[8000]) -> f32[] {
  %p = f32[8000]{0} parameter(0)
  %half = f32[4000]{0} slice(%p), slice={[4000:8000]}
  %squares = f32[4000]{0} multiply(%half, %half)
  %zero = f32[] constant(0)
  ROOT %sum = f32[] reduce(%squares, %zero), dimensions={0}, to_apply=%add
}

ENTRY %main (p: f32[8000]) -> (f32[], f32[4000]) {
  %p = f32[8000]{0} parameter(0)
  %norm = f32[] fusion(%p), kind=kInput, calls=%fused
  %half = f32[4000]{0} slice(%p), slice={[4000:8000]}
  ROOT %results = (f32[], f32[4000]{0}) tuple(%norm, %half)
}
""")
  assert [kernel.nbytes for kernel in found.kernels] == [4 * 4000 + 4, 2 * 4 * 4000]


def test_a_loop_counts_its_rounds():
  """Of the stack, each round reads the row that it slices, and writes it."""
  body = """%fused (p: f32[8,1000], i: s32[]) -> f32[1,1000] {
  %p = f32[8,1000]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %row = f32[1,1000]{1,0} dynamic-slice(%p, %i, %zero), dynamic_slice_sizes={1,1000}
}

%body (state: (s32[], f32[8,1000])) -> (s32[], f32[8,1000]) {
  %state = (s32[], f32[8,1000]{1,0}) parameter(0)
  %row = f32[1,1000]{1,0} fusion(%state#1, %state#0), kind=kLoop, calls=%fused
  %i = s32[] get-tuple-element(%state), index=0
  %stack = f32[8,1000]{1,0} get-tuple-element(%state), index=1
  ROOT %next = (s32[], f32[8,1000]{1,0}) tuple(%i, %stack)
}

%condition (state: (s32[], f32[8,1000])) -> pred[] {
  %state = (s32[], f32[8,1000]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %n = s32[] constant(8)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (x: (s32[], f32[8,1000])) -> (s32[], f32[8,1000]) {
  %x = (s32[], f32[8,1000]{1,0}) parameter(0)
  ROOT %loop = (s32[], f32[8,1000]{1,0}) while(%x), condition=%condition, body=%body"""
  known = of(body + ', backend_config={"known_trip_count":{"n":"8"}}\n}\n')
  (kernel,) = known.kernels
  assert kernel.starts == 8 and kernel.nbytes == 4000 + 4000 + 4  # The row, twice, and the number of the round.
  assert known.figures()['unknown_loops'] == 0
  unknown = of(body + '\n}\n')
  assert unknown.unknown_loops == ['loop'] and unknown.kernels[0].starts == 1


def test_an_update_in_place_writes_its_part():
  (kernel,) = of("""%fused (p: bf16[4,512,64], row: bf16[4,1,64], i: s32[]) -> bf16[4,512,64] {
  %p = bf16[4,512,64]{2,1,0} parameter(0)
  %row = bf16[4,1,64]{2,1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %new = bf16[4,512,64]{2,1,0} dynamic-update-slice(%p, %row, %i, %i, %i)
}

ENTRY %main (p: bf16[4,512,64], row: bf16[4,1,64], i: s32[]) -> bf16[4,512,64] {
  %p = bf16[4,512,64]{2,1,0} parameter(0)
  %row = bf16[4,1,64]{2,1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %new = bf16[4,512,64]{2,1,0} fusion(%p, %row, %i), kind=kLoop, calls=%fused
}
""").kernels
  assert kernel.nbytes == 2 * 4 * 64 * 2 + 4  # The row is read and written.


def test_causal_attention_has_half_of_the_products():
  call = (
    'custom-call(%q, %q, %q), custom_call_target="__cudnn$fmhaSoftmax", '
    'backend_config={"cudnn_fmha_backend_config":{"mask_type":"CAUSAL"}}'
  )
  found = of(f"""ENTRY %main (q: bf16[2,4,128,64]) -> (bf16[2,4,128,64], u8[0]) {{
  %q = bf16[2,4,128,64]{{3,2,1,0}} parameter(0)
  ROOT %y = (bf16[2,4,128,64]{{3,2,1,0}}, u8[0]{{0}}) {call}
}}
""")
  assert found.kernels[0].flops == 2 * (2 * 2 * 4 * 128 * 128 * 64) / 2
  assert found.figures()['cudnn_attention'] == 1


def test_operands_with_types_tuples_and_comments():
  line = '  %y = f32[2]{0} fusion(f32[2]{0} %a, (s32[], f32[2]{0}) %state#1, /*index=5*/f32[2]{0} %b.1), kind=kLoop'
  module = hlo_text.parse(HEAD + 'ENTRY %main (a: f32[2]) -> f32[2] {\n' + line + '\n}')
  assert module.computations['main'][0].operands == ['a', 'state#1', 'b.1']
  types = {'state': '(s32[], f32[2]{0})'}
  assert hlo_text.operand_shapes('state#1', types) == [hlo_text.Shape('f32', (2,))]


def test_a_program_that_has_grown_names_its_kernels():
  kernel = roofline.Kernel('dot.1', 'fusion kCustom triton dot', 3e9, 0.0, 1, 'bf16[8]', '')
  before = {'figures': roofline.Roofline([kernel], []).figures(), 'kinds': roofline.Roofline([kernel], []).by_kind()}
  before['figures']['temporary_gigabytes'] = 1.0
  same = roofline.Roofline([kernel], [], {'temporary_gigabytes': 1.04})
  assert table.growth('gpt2', before, same) == []
  copy = roofline.Kernel('copy.7', 'copy', 6e9, 0.0, 1, 'bf16[8]', '')
  grown = table.growth('gpt2', before, roofline.Roofline([kernel, copy], [], {'temporary_gigabytes': 1.0}))
  assert grown[:3] == [
    'gpt2: kernels: 2, was 1',
    'gpt2: gigabytes: 9, was 3',
    'gpt2: milliseconds: 3, was 1',
  ]
  assert grown[-1] == 'gpt2:   copy: 1 kernels, 2.00 ms more'
