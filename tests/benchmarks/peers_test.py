"""benchmarks/peers: processes that take turns, ratios of each round, and that the work is the same."""

import dataclasses
import math
import sys

import numpy as np
import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers import catalogue
from benchmarks.peers import checks
from benchmarks.peers import environments
from benchmarks.peers import process
from benchmarks.peers import report
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


def test_a_process_says_what_it_is_and_then_does_what_it_is_asked(worker):
  work = digits.perceptron()
  assert worker.ready['parameters'] == 64 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10 == work.num_parameters
  network = numpy_by_hand.Perceptron(work)
  assert worker.ready['first_loss'] == pytest.approx(network.loss(*work.check_batch), rel=1e-5)
  batches = work.batches()
  for amount in (1, 2):  # It goes on where it was.
    losses = [network.step(*next(batches)) for _ in range(amount)]
    done = worker.run(amount)
    assert done.amount == amount and done.seconds > 0 and done.work_seconds >= 0
    assert done.values['loss'] == pytest.approx(losses[-1], rel=1e-4)
  assert done.peak_bytes > 10 * 2**20


def test_a_process_that_ends_says_why(tmp_path):
  with pytest.raises(process.PeerError, match='has ended: .*no such peer'):
    process.Process([sys.executable, '-c', 'raise SystemExit("no such peer")'], tmp_path / 'log')
  with pytest.raises(process.PeerError, match='has said nothing for 0 s'):
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
  """Takes a hundredth of a second for each; the first turn, which compiles, takes long."""

  def __init__(self, multiple):
    self.ready, self.amounts = {'multiple': multiple}, []

  def run(self, amount):
    self.amounts.append(amount)
    seconds = 30.0 if len(self.amounts) == 1 else amount / 100
    return process.Turn(amount, seconds, seconds, {}, '', 0)


@pytest.mark.parametrize(
  ('multiple', 'seconds', 'most', 'found'), [(1, 1.5, 0, 150), (7, 1.5, 0, 147), (500, 1.5, 0, 500), (1, 1.5, 1, 1)]
)
def test_a_turn_has_as_much_as_fits_the_time(multiple, seconds, most, found):
  runner = Clockwork(multiple)
  assert rounds.fitting_amount(runner, seconds, most) == found
  assert runner.amounts[0] == multiple and set(np.mod(runner.amounts, multiple)) == {0}


def test_both_take_turns():
  order = []

  class Noted(Clockwork):
    def run(self, amount):
      order.append((self.ready['multiple'], amount))
      return super().run(amount)

  duel = rounds.duel(Noted(1), Noted(2), (3, 4), num_rounds=3, pause=0)
  assert order == [(1, 3), (2, 4)] * 3 and len(duel.ours) == len(duel.theirs) == 3


def test_other_work_is_told():
  same = {'parameters': 10, 'first_loss': 2.0, 'is_reduced': False}
  assert checks.differences(same, same) == []
  assert checks.differences(same, {**same, 'parameters': 12}) == ['12 parameters, ours 10']
  assert checks.differences(same, {**same, 'first_loss': 2.01}) == ['first loss 2.01, ours 2']
  assert checks.differences(same, {**same, 'first_loss': 2.01, 'is_reduced': True}) == []
  assert checks.differences(same, {**same, 'first_loss': math.nan}) == ['first loss nan, ours 2']
  assert checks.differences(same, {'parameters': None, 'first_loss': None}) == []


def test_a_peer_that_is_missing_is_named_with_what_to_do(tmp_path):
  nowhere = environments.Environment(tmp_path / 'python', 'pip install')
  assert nowhere.missing(('jax', 'optax')) == 'missing: pip install jax optax'
  here = environments.ENVIRONMENTS['project']
  assert here.missing(('numpy', 'no-such-package')).endswith('constraints.txt no-such-package')
  assert here.missing(('numpy',)) == ''
  peer = catalogue.workload('a').peer('jax_scan')
  table = report.cells(catalogue.workload('a'), [report.Row(peer, remarks=('missing: pip install jax',))])
  assert table[1][0] == 'jax_scan' and table[1][-1] == 'missing: pip install jax'


def test_the_table_says_which_goals_are_met():
  workload = catalogue.workload('a')
  rows = [
    report.Row(workload.peer('stock'), rounds.Duel([turn(90), turn(95)], [turn(50), turn(50)])),  # 1.8 is wanted.
    report.Row(workload.peer('jax_scan'), rounds.Duel([turn(80)], [turn(100)])),  # 0.9 is wanted.
  ]
  head, ours, stock, scan = report.cells(workload, rows)
  column = lambda row, name: row[head.index(name)]
  assert column(ours, 'speed') == '90 steps/s'  # The median of 90, 95 and 80.
  assert (column(stock, 'ratio'), column(stock, 'goal'), stock[6]) == ('1.85', '>= 1.80', 'met')
  assert (column(scan, 'ratio'), column(scan, 'goal'), scan[6]) == ('0.80', '>= 0.90', 'not met')
  lines = report.as_markdown([head, ours, stock]).splitlines()
  assert len(lines) == 4 and len({line.count('|') for line in lines}) == 1


def test_each_workload_is_named_once_and_each_peer_once_in_it():
  names = [name for workload in catalogue.WORKLOADS for name in (workload.name, workload.letter)]
  assert len(set(names)) == len(names) and {workload.letter for workload in catalogue.WORKLOADS} == set('abcdefghijk')
  for workload in catalogue.WORKLOADS:
    peers = [peer.name for peer in (workload.ours, *workload.peers)]
    assert len(set(peers)) == len(peers), workload.name
    for peer in (workload.ours, *workload.peers):
      assert (process.ROOT / f'benchmarks/peers/runners/{peer.runner}.py').exists(), peer.runner
      assert peer.environment in environments.ENVIRONMENTS


def test_the_decoder_has_the_work_that_is_said_of_it():
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


def test_the_command_writes_a_table_in_which_a_missing_peer_is_named(monkeypatch, capsys, tmp_path):
  workload = catalogue.workload('a')
  quick = dataclasses.replace(workload, ours=workload.peer('numpy'), peers=(workload.peer('jax_scan'),))
  monkeypatch.setattr(catalogue, 'WORKLOADS', (quick,))
  nowhere = environments.Environment(tmp_path / 'nowhere', 'pip install')
  monkeypatch.setattr(environments, 'ENVIRONMENTS', {**environments.ENVIRONMENTS, 'peers': nowhere})
  results = tmp_path / 'RESULTS.md'
  assert command.main(['a', '--rounds=1', '--seconds=0.01', f'--results={results}']) == 0
  assert 'missing: pip install jax optax' in capsys.readouterr().out
  assert 'missing: pip install jax optax' in results.read_text() and '## (a) digits_mlp' in results.read_text()


def test_a_workload_that_is_not_there_is_refused_with_those_that_are():
  with pytest.raises(SystemExit, match='error: x: no such workload; there are a digits_mlp, b digits_conv'):
    command.main(['x'])
