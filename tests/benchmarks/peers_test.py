"""benchmarks/peers: processes that take turns, ratios of each round, and that the work is the same."""

import dataclasses
import math
import sys

import numpy as np
import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers import catalogue
from benchmarks.peers import checks
from benchmarks.peers import conductor
from benchmarks.peers import entries
from benchmarks.peers import environments
from benchmarks.peers import machine
from benchmarks.peers import process
from benchmarks.peers import quick
from benchmarks.peers import report
from benchmarks.peers import results
from benchmarks.peers import rounds
from benchmarks.peers.runners import numpy_by_hand
from benchmarks.peers.work import decoder
from benchmarks.peers.work import digits

NUMPY = [sys.executable, '-m', 'benchmarks.peers.worker', 'digits_mlp', 'numpy', '--cores=1']


def turn(rate, **values):
  return process.Turn(10, 10 / rate, 0.0, values, '', 2**30)


@pytest.fixture
def worker(tmp_path):
  started = process.Process(NUMPY, tmp_path / 'log')
  yield started
  started.close()


def test_a_process_describes_itself_and_then_answers_requests(worker):
  work = digits.perceptron()
  assert worker.ready['parameters'] == 64 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10 == work.num_parameters
  network = numpy_by_hand.Perceptron(work)
  assert worker.ready['first_loss'] == pytest.approx(network.loss(*work.check_batch), rel=1e-5)
  batches = work.batches()
  for amount in (1, 2):  # It resumes from there.
    losses = [network.step(*next(batches)) for _ in range(amount)]
    done = worker.run(amount)
    assert done.amount == amount and done.seconds > 0 and done.work_seconds >= 0
    assert done.values['loss'] == pytest.approx(losses[-1], rel=1e-4)
    assert worker.loss() == pytest.approx(network.loss(*work.check_batch), rel=1e-4)
  assert done.peak_bytes > 10 * 2**20


def test_a_process_that_ends_states_why(tmp_path):
  with pytest.raises(process.PeerError, match='has ended: .*no such peer'):
    process.Process([sys.executable, '-c', 'raise SystemExit("no such peer")'], tmp_path / 'log')
  with pytest.raises(process.PeerError, match='was silent for 0 s'):
    process.Process([sys.executable, '-c', 'import time; time.sleep(60)'], tmp_path / 'log', seconds_allowed=0.2)


def test_what_libraries_print_is_no_answer(tmp_path):
  code = (
    'import os, sys\n'
    'from benchmarks.peers import protocol\n'
    'def run(amount):\n'
    '  print("a library says hello"); os.system("echo so does its child")\n'
    '  return {"loss": amount / 2, "seconds": 4.0}\n'
    'with protocol.answers() as stream:\n'
    '  protocol.serve(protocol.Measurement(run), sys.stdin, stream, {})\n'
  )
  started = process.Process([sys.executable, '-c', code], tmp_path / 'log')
  done = started.run(8)
  started.close()
  assert (done.rate, done.values) == (2.0, {'loss': 4.0})  # 8 in the 4 seconds that it has measured itself.
  assert sorted((tmp_path / 'log').read_text().splitlines()) == ['a library says hello', 'so does its child']


def test_the_ratio_is_that_of_each_round():
  # Ours is twice as fast in two rounds and three times in one; a ratio of medians would be 40 / 10.
  duel = rounds.Duel([turn(20), turn(60), turn(40)], [turn(10), turn(20), turn(20)])
  assert (duel.ratio.median, duel.ratio.low, duel.ratio.high) == pytest.approx((2, 2, 3))


class Clockwork:
  """Takes a hundredth of a second for each."""

  def __init__(self, multiple):
    self.ready, self.amounts = {'multiple': multiple}, []

  def run(self, amount):
    self.amounts.append(amount)
    return process.Turn(amount, amount / 100, amount / 100, {}, '', 0)


@pytest.mark.parametrize(
  ('multiple', 'seconds', 'most', 'found'), [(1, 1.5, 0, 150), (7, 1.5, 0, 147), (500, 1.5, 0, 500), (1, 1.5, 1, 1)]
)
def test_a_turn_has_as_much_as_fits_the_time(multiple, seconds, most, found):
  runner = Clockwork(multiple)
  assert rounds.fitting_amount(runner, seconds, most) == found
  assert set(np.mod(runner.amounts, multiple)) <= {0}
  assert bool(runner.amounts) == (most != multiple)  # A start or a save is not tried out: there is nothing to choose.


def test_both_take_turns():
  order = []

  class Noted(Clockwork):
    def run(self, amount):
      order.append((self.ready['multiple'], amount))
      return super().run(amount)

  duel = rounds.duel(Noted(1), Noted(2), (3, 4), num_rounds=3, pause=0)
  assert order == [(1, 3), (2, 4)] * 3 and len(duel.ours) == len(duel.theirs) == 3


def test_other_work_is_reported():
  same = {'parameters': 10, 'first_loss': 2.0, 'is_reduced': False}
  assert checks.differences(same, same) == []
  assert checks.differences(same, {**same, 'parameters': 12}) == ['12 parameters, ours 10']
  assert checks.differences(same, {**same, 'first_loss': 2.01}) == ['first loss 2.01, ours 2']
  assert checks.differences(same, {**same, 'first_loss': 2.01, 'is_reduced': True}) == []
  assert checks.differences(same, {**same, 'first_loss': math.nan}) == ['first loss nan, ours 2']
  assert checks.differences(same, {'parameters': None, 'first_loss': None}) == []


def test_a_peer_whose_updates_differ_is_reported():
  """Losses after as many steps on the same batches test optimizer, decay and clipping: here, of the rate."""
  work = digits.dense((3, 4, 2), np.eye(3, dtype=np.float32)[[0, 1, 2, 0]], np.array([0, 1, 1, 0], np.int32))
  after = []
  for rate in (1e-2, 5e-2):
    network = numpy_by_hand.Perceptron(dataclasses.replace(work, learning_rate=rate))
    for _ in range(10):
      network.step(work.inputs, work.labels)
    after.append(network.loss(work.inputs, work.labels))
  assert checks.differences_after(10, after[0], after[0] * 1.01, is_reduced=False) == []
  assert checks.differences_after(10, *after, is_reduced=False) == [
    f'loss after 10 steps {after[1]:.5g}, ours {after[0]:.5g}'
  ]
  assert checks.differences_after(10, after[0], math.nan, is_reduced=True)


def test_a_peer_without_some_gradients_is_reported():
  """After few steps its loss is still close to ours, but has not fallen as far."""
  work = digits.dense((3, 4, 2), np.eye(3, dtype=np.float32)[[0, 1, 2, 0]], np.array([0, 1, 1, 0], np.int32))

  def losses(rate=1e-2, frozen=0) -> checks.Losses:
    network = numpy_by_hand.Perceptron(dataclasses.replace(work, learning_rate=rate))
    first = network.loss(work.inputs, work.labels)
    for _ in range(2):
      kept = [weight.copy() for weight in network.weights[:frozen]]
      network.step(work.inputs, work.labels)
      for weight, value in zip(network.weights, kept):
        weight[...] = value
    return first, network.loss(work.inputs, work.labels)

  ours = losses()
  rounded = (ours[0], ours[1] * (1 + 1e-4))
  assert checks.differences_of_falls(2, ours, rounded, is_reduced=False) == []
  for theirs in (losses(rate=5e-2), losses(frozen=2)):  # The second has no gradient of the first layer.
    message = f'loss {theirs[0]:.5g} to {theirs[1]:.5g} in 2 steps, ours {ours[0]:.5g} to {ours[1]:.5g}'
    assert checks.differences_of_falls(2, ours, theirs, is_reduced=False) == [message]
  assert checks.differences_of_falls(2, ours, (ours[0], math.nan), is_reduced=True)


@pytest.mark.parametrize(
  ('vendor', 'family', 'flags', 'kind'),
  [
    ('AuthenticAMD', 25, 'fpu avx2 avx512f avx512_bf16', 'avx512_bf16_zen4'),
    ('AuthenticAMD', 26, 'fpu avx2 avx512f avx512_bf16', 'avx512_bf16'),
    ('AuthenticAMD', 25, 'fpu avx2', 'avx2'),  # Zen 3.
    ('GenuineIntel', 6, 'avx512f avx2 avx512_bf16 amx_bf16', 'amx_bf16'),
    ('GenuineIntel', 6, 'fpu sse2', 'other'),
  ],
)
def test_the_kind_of_a_processor(vendor, family, flags, kind, tmp_path, monkeypatch):
  cpuinfo = tmp_path / 'cpuinfo'
  monkeypatch.setattr(machine, '_CPUINFO', str(cpuinfo))
  cpuinfo.write_text(f'vendor_id : {vendor}\ncpu family : {family}\nmodel : 17\nmodel name : A CPU\nflags : {flags}\n')
  assert machine.kind() == kind
  assert machine.describe()[0].startswith(f'A CPU, family {family} model 17, ')
  cpuinfo.write_text('Processor : an ARM\n')
  assert (machine.kind(), machine.describe()[0].count('family')) == ('other', 0)


def test_a_peer_that_is_missing_is_named_with_what_to_do(tmp_path):
  nowhere = environments.Environment(tmp_path / 'python', 'pip install')
  assert nowhere.missing(('jax', 'optax')) == 'missing: pip install jax optax'
  here = environments.ENVIRONMENTS['project']
  assert here.missing(('numpy', 'no-such-package')).endswith('constraints.txt no-such-package')
  assert here.missing(('numpy',)) == ''
  peer = catalogue.workload('digits_mlp').peer('jax_scan')
  table = report.cells(catalogue.workload('digits_mlp'), [report.Row(peer, remarks=('missing: pip install jax',))])
  assert table[1][0] == 'jax_scan' and table[1][-1] == 'missing: pip install jax'


def test_the_table_shows_speeds_and_whether_they_meet_the_goals():
  workload = catalogue.workload('digits_mlp')
  first = process.Turn(10, 3.0, 3.0, {}, '', 0)
  rows = [
    report.Row(workload.peer('stock'), rounds.Duel([turn(90), turn(95)], [turn(50), turn(50)]), (), first, first),
    report.Row(workload.peer('jax_scan'), rounds.Duel([turn(80)], [turn(100)])),  # The goal is 0.9.
  ]
  head, ours, stock, scan = report.cells(workload, rows)
  column = lambda row, name: row[head.index(name)]
  assert column(ours, 'speed') == '90 steps/s'  # The median of 90, 95 and 80.
  assert (column(stock, 'ratio'), column(scan, 'ratio')) == ('1.85', '0.80')
  assert column(stock, 'compiles in') == '2.8 s'  # 3 for 10 that take a fifth of a second later.
  assert report.goals(workload, rows) == [
    ('ours to stock', '>= 1.80', '1.85 (1.80 to 1.90)', 'met'),
    ('ours to jax_scan', '>= 0.90', '0.80 (0.80 to 0.80)', 'not met'),
  ]
  lines = report.as_markdown([head, ours, stock]).splitlines()
  assert len(lines) == 4 and len({line.count('|') for line in lines}) == 1


def test_a_goal_may_be_a_limit_or_lie_within_the_spread_or_stay_unmeasured():
  peer = entries.Peer('stock', 'stock', goal=1.0)
  ours = entries.Peer('ours', 'ours', limits={'data_wait': 0.02})
  workload = dataclasses.replace(catalogue.workload('images'), ours=ours, peers=(peer,))
  turns = [turn(9, data_wait=0.01), turn(12, data_wait=0.03), turn(11, data_wait=0.015)]
  assert report.goals(workload, [report.Row(peer, rounds.Duel(turns, [turn(10)] * 3))]) == [
    ('ours to stock', '>= 1.00', '1.10 (0.90 to 1.20)', 'met, within the spread'),
    ('ours: data_wait', '<= 0.02', '0.015 (0.030 to 0.010)', 'met, within the spread'),
  ]
  assert [goal[-1] for goal in report.goals(workload, [report.Row(peer, remarks=('failed',))])] == ['not measured'] * 2


def _section(name, rate, head='then'):
  workload = catalogue.workload(name)
  peer = next(peer for peer in workload.peers if peer.goal)
  return results.section(workload, [report.Row(peer, rounds.Duel([turn(rate)], [turn(10)]))], [head])


def test_a_workload_that_is_measured_again_leaves_the_other_tables(tmp_path):
  path, tables = tmp_path / 'RESULTS.md', tmp_path / 'results/avx2.md'
  for name, rate in (('two_replicas', 10), ('digits_mlp', 20)):
    results.write(path, 'avx2', _section(name, rate))
  tables.write_text(tables.read_text() + '\n## (z) gone: is no workload any more\n\n- long ago\n')
  before = tables.read_text()
  assert before.index('## (a) digits_mlp') < before.index('## (h) two_replicas')
  assert '[avx2](results/avx2.md): 1 of 2 goals are met' in path.read_text()
  now = '2026-11-28 05:00, 0.8 minutes; A CPU, limited to avx2, 2 cores, 24 GiB; avx2'
  results.write(path, 'avx2', _section('two_replicas', 30, now))
  after = tables.read_text()
  assert after.count('## (h) two_replicas') == after.count(f'- {now}') == after.count('- then') == 1
  assert before[before.index('## (a)') : before.index('## (h)')] in after  # To the letter.
  assert '(z)' not in after and '| ours to stock | >= 1.20 | 3.00 (3.00 to 3.00) | met |' in after
  others = tmp_path / 'results/h100.md'  # Of another benchmark.
  others.write_text('# H100\n\n## (a) rows\n')
  results.write(path, 'amx_bf16', _section('two_replicas', 10))  # Another kind of processor has its own tables.
  assert tables.read_text() == after
  goals = path.read_text()
  assert '[avx2](results/avx2.md): 2 of 2 goals are met (A CPU, limited to avx2)\n' in goals
  assert 'amx_bf16.md): 0 of 1 goals are met\n' in goals
  assert '| workload | goal | wanted | amx_bf16 | avx2 |' in goals
  row = '| (h) two_replicas | ours to stock | >= 1.20 | 1.00 (1.00 to 1.00), not met | 3.00 (3.00 to 3.00), met |'
  assert row in goals
  assert sorted(tmp_path.rglob('*.md')) == [path, tmp_path / 'results/amx_bf16.md', tables, others]


def test_ratios_are_read_back_and_one_is_slower_if_its_whole_range_lies_below(tmp_path):
  path = tmp_path / 'RESULTS.md'
  workload = catalogue.workload('two_replicas')
  stock = workload.peer('stock')
  duel = rounds.Duel([turn(10), turn(12), turn(14)], [turn(10)] * 3)
  results.write(path, 'avx2', results.section(workload, [report.Row(stock, duel)], ['then']))
  recorded = results.ratios(path, 'avx2')
  assert recorded == {('two_replicas', 'stock'): rounds.Spread(1.2, 1.0, 1.4)} and results.ratios(path, 'other') == {}
  before = recorded['two_replicas', 'stock']
  verdicts = [quick.compared(before, rounds.Spread(high, 0.5, high)) for high in (0.99, 1.01)]
  assert verdicts == [quick.SLOWER, ''] and quick.compared(before, rounds.Spread(2, 1.41, 2)) == quick.FASTER
  for name, peers in quick.CHOSEN.items():  # All of them exist.
    assert [catalogue.workload(name).peer(peer).name for peer in peers] == list(peers)


def test_each_workload_is_named_once_and_each_peer_once_in_it():
  names = [workload.name for workload in catalogue.WORKLOADS]
  assert len(set(names)) == len(names) and {workload.letter for workload in catalogue.WORKLOADS} == set('abcdefghijkl')
  assert [workload.name for workload in catalogue.workloads('d')] == ['decoder_24_layers', 'compilation']
  for workload in catalogue.WORKLOADS:
    peers = [peer.name for peer in (workload.ours, *workload.peers)]
    assert len(set(peers)) == len(peers), workload.name
    for peer in (workload.ours, *workload.peers):
      assert (process.ROOT / f'benchmarks/peers/runners/{peer.runner}.py').exists(), peer.runner
      assert peer.environment in environments.ENVIRONMENTS
      assert not peer.beside or workload.peer(peer.beside)
    for name in (*workload.final.ours, *workload.final.theirs) if workload.final else ():
      assert workload.peer(name)


def test_the_digits_are_those_of_scikit_learn():
  from sklearn import datasets

  work, wanted = digits.perceptron(), datasets.load_digits()
  assert np.array_equal(work.inputs * 16, wanted.data[:1437]) and np.array_equal(work.labels, wanted.target[:1437])


def test_the_decoder_has_the_work_that_is_stated():
  work = decoder.decoder()
  assert list(work.weights)[-1] == 'lm_head/kernel' and len(set(work.weights)) == 2 + 4 * 12 + 3
  assert decoder.flops() == pytest.approx(43.5e9, rel=1e-3)
  assert work.labels[0, 0] == work.inputs[0, 1]


def test_gradients_by_hand_are_those_of_differences():
  """AdamW's first step goes against the sign of each gradient: along it, the loss falls as the differences say."""
  work = digits.dense((3, 4, 2), np.eye(3, dtype=np.float32)[[0, 1, 2, 0]], np.array([0, 1, 1, 0], np.int32))
  network = numpy_by_hand.Perceptron(work)
  before = [weight.astype(np.float64) for weight in network.weights]
  reference = numpy_by_hand.Perceptron(work)
  reference.weights = [weight.copy() for weight in before]
  signs = []
  for weight in reference.weights:
    for index in np.ndindex(weight.shape):
      value = weight[index]
      losses = []
      for change in (1e-6, -1e-6):
        weight[index] = value + change
        losses.append(reference.loss(work.inputs, work.labels))
      weight[index] = value
      signs.append(np.sign(losses[0] - losses[1]) if abs(losses[0] - losses[1]) > 1e-10 else 0)
  network.step(work.inputs, work.labels)
  decay = work.learning_rate * work.weight_decay
  moved = np.concatenate([(w - old * (1 - decay)).ravel() for w, old in zip(network.weights, before)])
  assert np.abs(signs).sum() > 10
  assert moved == pytest.approx(-work.learning_rate * np.array(signs), abs=3e-6)


@pytest.fixture
def small(monkeypatch, tmp_path):
  """A workload of NumPy alone: ours is a perceptron, and so are its peers."""
  workload = catalogue.workload('digits_mlp')
  numpy = workload.peer('numpy')
  broken = dataclasses.replace(numpy, name='broken', settings={'no': 'such setting'})
  small = dataclasses.replace(workload, ours=numpy, peers=(broken, workload.peer('jax_scan'), numpy))
  monkeypatch.setattr(catalogue, 'WORKLOADS', (small,))
  nowhere = environments.Environment(tmp_path / 'nowhere', 'pip install')
  monkeypatch.setattr(environments, 'ENVIRONMENTS', {**environments.ENVIRONMENTS, 'peers': nowhere})
  return small


@pytest.mark.slow
def test_a_peer_that_is_missing_or_fails_is_named_and_the_others_continue(small, capsys, tmp_path):
  path = tmp_path / 'RESULTS.md'
  assert command.main(['a', '--rounds=2', '--seconds=0.01', '--cores=1', f'--results={path}']) == 1  # One has failed.
  printed, written = capsys.readouterr().out, next((tmp_path / 'results').iterdir()).read_text()
  for text in (printed, written):
    assert 'missing: pip install jax optax' in text and '(a) digits_mlp' in text
    assert 'failed: PeerError: has ended: KeyError' in text
  rows = {line.split('|')[1].strip(): line for line in written.splitlines() if line.startswith('|')}
  assert ' steps/s ' in rows['numpy']
  assert '| numpy to jax_scan | >= 0.90 |  | not measured |' in written
  assert '| (a) digits_mlp | numpy to jax_scan | >= 0.90 | not measured |' in path.read_text()


def test_rounds_are_many_where_there_is_a_goal(small):
  assert small.rounds_of(small.peer('jax_scan')) == small.rounds > small.other_rounds
  assert small.rounds_of(small.peer('numpy')) == small.other_rounds
  assert small.rounds_of(entries.Peer('x', 'ours', limits={'data_wait': 1.0})) == small.rounds


@pytest.mark.slow
def test_the_fastest_of_both_sides_meet_at_the_end(small, tmp_path):
  workload = dataclasses.replace(small, final=entries.Final(('numpy',), ('broken', 'numpy'), goal=0.5))
  rows = conductor.Conductor(tmp_path, conductor.Settings(1, 0.01, 1)).measure(workload)
  assert [row.peer.name for row in rows] == ['broken', 'jax_scan', 'numpy', 'numpy, the fastest']
  assert (rows[-1].peer.goal, rows[-1].peer.beside) == (0.5, 'numpy') and rows[-1].duel


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'tolerance'),
  # PEFT's is the loss of the last step, not the mean of both.
  [('sft', 1e-4), ('dpo', 1e-4), ('sft_bf16', 1e-2), ('dpo_bf16', 1e-2), ('adapters', 0.2)],
)
def test_fine_tuning_has_the_losses_of_trl_and_peft(name, tolerance, tmp_path):
  (row,) = conductor.Conductor(tmp_path, conductor.Settings(1, 0.01)).measure(catalogue.workload(name))
  assert row.duel and not row.remarks  # The same number of weights, the same losses before and after the first loop.
  assert row.first.amount == row.first_of_ours.amount
  assert row.first.values['loss'] == pytest.approx(row.first_of_ours.values['loss'], abs=tolerance)


def test_ours_is_started_again_if_it_has_ended_but_not_if_it_cannot_start():
  starts = []

  class Running:
    is_alive = True

    def close(self):
      self.is_alive = False

  def start():
    starts.append(conductor._Started(None, Running(), None, None))
    if len(starts) > 2:
      raise process.PeerError('no memory')
    return starts[-1]

  ours = conductor._OnDemand(start)
  assert ours.started() is ours.started() is starts[0]
  starts[0].running.is_alive = False
  assert ours.started() is starts[1]
  ours.close()
  assert not starts[1].running.is_alive
  for _ in range(2):
    with pytest.raises(process.PeerError, match='no memory'):
      ours.started()
  assert len(starts) == 3


def test_a_workload_that_is_not_there_is_refused_with_those_that_are():
  with pytest.raises(SystemExit, match='error: x: no such workload; there are a digits_mlp, b digits_conv'):
    command.main(['x'])


def test_a_part_of_a_table_replaces_no_table(tmp_path):
  with pytest.raises(SystemExit, match='error: --results: a table of some --peers would replace the whole one'):
    command.main(['a', '--peers=stock', f'--results={tmp_path / "RESULTS.md"}'])
