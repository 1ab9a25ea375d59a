"""The training steps, an evaluation and generation have nothing that is slow on a GPU."""

import pytest

from benchmarks.gpu import hlo_checks
from benchmarks.gpu import programs

SLOW = ('gpt2_eager', 'resnet50', 'bert', 'retinanet')


@pytest.mark.parametrize(
  'name', [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in programs.PROGRAMS]
)
def test_a_program_is_clean(name):
  hlo = programs.program(name, programs.SMALL)
  is_sampling = name.startswith(('generate', 'grpo'))
  assert hlo_checks.complaints(hlo.text, has_constant_weights=is_sampling, is_bfloat16=name != 'resnet50') == []
  if 'cudnn' in name:
    assert '__cudnn$fmhaSoftmax' in hlo.text
