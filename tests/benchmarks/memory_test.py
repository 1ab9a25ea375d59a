"""benchmarks/memory: the figures of the kernel and XLA, the same network in both libraries, and the table."""

import json

import numpy as np
import pytest
import torch

from benchmarks.memory import __main__ as command
from benchmarks.memory import process_memory
from benchmarks.memory import resnet_torch
from benchmarks.memory import subjects
from benchmarks.memory import worker
from benchmarks.memory import xla_plan
from tests import train_processes

_HEADER = (
  'HloModule a_step, is_scheduled=true, input_output_alias={ {0}: (1, {}, may-alias), {2}: (0, {}, may-alias) }, '
  'entry_computation_layout={(f32[2,3]{1,0}, s64[])->(s64[], pred[4]{0}, f32[2,3]{1,0}, bf16[5]{0})}, frontend=1\n'
)
_ASSIGNMENT = """BufferAssignment:
allocation 0: size 24, parameter 0, shape |f32[2,3]| at ShapeIndex {}:
allocation 5: size 1000, preallocated-temp:
allocation 6: size 24, output shape is |f32[2,3]|, maybe-live-out:
"""


def test_the_peak_is_that_since_it_was_forgotten():
  process_memory.forget_peak()
  before = process_memory.peak()
  kept = np.ones(8_000_000)  # 64 MB.
  del kept
  risen = process_memory.peak() - before
  assert 60e6 < risen < 90e6
  process_memory.forget_peak()
  assert process_memory.peak() < before + 30e6 and process_memory.resident() <= process_memory.peak()


def test_what_is_updated_in_place_is_read_from_the_plan(tmp_path):
  plan = xla_plan.read(_ASSIGNMENT, _HEADER)
  assert plan == xla_plan.Plan(temporary=1000, results=8 + 4 + 24 + 10, in_place=8 + 24)
  assert xla_plan.read('', 'HloModule a, entry_computation_layout={()->f32[7]{0}}\n') == xla_plan.Plan(0, 28, 0)
  assert xla_plan.largest(tmp_path) is None
  for name, text in (('module_1.a.cpu', ''), ('module_2.b.cpu', _ASSIGNMENT)):
    (tmp_path / f'{name}_after_optimizations.txt').write_text(_HEADER + 'more\n')
    (tmp_path / f'{name}_after_optimizations-buffer-assignment.txt').write_text(text)
  assert xla_plan.largest(tmp_path) == plan


def test_pytorchs_resnet_is_model_gardens_in_size():
  """By the paper's table: a stem of 7x7x3x64, bottlenecks with projections, 2048 x 1000 at the end; scale and shift."""
  width, total = 64, 7 * 7 * 3 * 64 + 2 * 64
  for filters, blocks, _ in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
    for number in range(blocks):
      total += width * filters + 9 * filters**2 + 4 * filters**2 + 2 * (filters + filters + 4 * filters)
      total += (width * 4 * filters + 2 * 4 * filters) if number == 0 else 0
      width = 4 * filters
  total += 2048 * 1000 + 1000
  network = resnet_torch.resnet50(subjects.NUM_CLASSES)
  assert sum(parameter.numel() for parameter in network.parameters()) == total == 25_557_032


def test_recomputing_changes_no_gradient():
  torch.manual_seed(0)
  block, x = resnet_torch.Bottleneck(8, 4, 2), torch.randn(2, 8, 6, 6)
  gradients = []
  for module in (block, resnet_torch.Recomputed(block)):
    module(x).square().sum().backward()
    gradients.append([parameter.grad.clone() for parameter in block.parameters()])
    block.zero_grad()
  for first, second in zip(*gradients, strict=True):
    torch.testing.assert_close(first, second)


@pytest.mark.slow
@pytest.mark.parametrize('variant', subjects.IN_PYTORCH)
def test_every_way_of_pytorch_makes_the_same_update(variant, tmp_path, monkeypatch):
  subject = subjects.Subject('small', '', 4, subjects.IN_PYTORCH, 1, layers=1)
  updated = {}
  from benchmarks.memory import plain_torch

  build = plain_torch._decoder
  monkeypatch.setattr(plain_torch, '_decoder', lambda *arguments: updated.setdefault('built', build(*arguments)))

  def weights(variant):
    updated.clear()
    made = worker.measurement(subject, 'torch', variant, 4, tmp_path)
    values = made.run(1)
    assert values['steps'] >= 0 and values['seconds_a_step'] > 0 and 'plan_temporary' not in values
    return made.parameters, [parameter.detach().clone() for parameter in updated['built'][0].parameters()]

  count, plain = weights('plain')
  assert count == worker.work_of(subject, 4).num_parameters
  for first, second in zip(plain, weights(variant)[1], strict=True):
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-4)  # Adam divides tiny gradients by themselves.


@pytest.mark.slow
def test_our_way_is_measured_with_its_plan(start_script, tmp_path):
  code = """
import dataclasses, json, pathlib, sys
from benchmarks.memory import subjects, worker
subject = subjects.Subject('small', '', 2, ('xla',), 1, layers=1)
made = worker.measurement(subject, 'ours', 'xla', 2, pathlib.Path(sys.argv[1]))
print(json.dumps({**made.run(1), 'note': made.note(), 'parameters': made.parameters}))
"""
  done = start_script(code, [str(tmp_path)], env=train_processes.dumping_programs(tmp_path)).finish(timeout=300)
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout.splitlines()[-1])
  subject = subjects.Subject('small', '', 2, (), 1, layers=1)
  assert found['parameters'] == worker.work_of(subject, 2).num_parameters
  assert 'fused' in found['note'] and found['plan_temporary'] > 0
  # Weights and both slots are updated in place: the inputs are donated.
  assert found['plan_in_place'] >= 3 * 4 * found['parameters']


def test_batches_of_a_quarter_and_rows_enough():
  assert subjects.split('accumulation', 16) == (4, 4) and subjects.split('remat', 16) == (16, 1)
  work = worker.work_of(subjects.SUBJECTS['decoder'], 40)
  assert work.inputs.shape == (40, 128) and work.batch_size == 40 and (work.inputs[16:32] == work.inputs[:16]).all()
  assert worker.work_of(subjects.SUBJECTS['resnet50'], 8) is None


def test_the_table_and_other_work(monkeypatch, capsys, tmp_path):
  def measure(subject, library, variants, num_rounds):
    assert subject.name == 'decoder' and num_rounds == 2
    values = {'base': 1e9, 'start': 4e8, 'steps': 3e8}
    less = {**values, 'steps': 1.5e8}
    if library == 'ours':
      plan = {'plan_temporary': 2e8, 'plan_results': 9e7, 'plan_in_place': 8e7}
      values, less = {**values, **plan}, {**less, **plan}
    made = {'plain': command.Found(values, 0.2, 0.0, 'fused', 7), 'remat': command.Found(less, 0.25, 1.25, '', 7)}
    yield from {**made, 'scan': command.Found(note='failed: no memory')}.items()

  monkeypatch.setattr(command, 'measure', measure)
  path, figures = tmp_path / 'MEMORY.md', tmp_path / 'memory.json'
  for library in ('torch', 'ours'):  # One at a time: earlier measurements stay.
    command.main(['decoder', '--rounds=2', f'--libraries={library}', f'--results={path}', f'--figures={figures}'])
  text = path.read_text()
  assert '| remat | ours | 400 | 150 | 0.50 | 250 | 1.25 | 200 | 80 of 90 |' in text
  assert '| plain | torch | 400 | 300 | 1.00 | 200 |' in text and 'failed: no memory' in text
  assert 'of plain' in capsys.readouterr().out
  found = {'ours': {'plain': command.Found({'steps': 1}, parameters=7)}}
  with pytest.raises(SystemExit, match='not the same work: 7, 8 parameters'):
    command.check({**found, 'torch': {'plain': command.Found({'steps': 1}, parameters=8)}})
  with pytest.raises(SystemExit):
    command.main(['no_subject'])
  assert 'no_subject: there are decoder,' in capsys.readouterr().err
