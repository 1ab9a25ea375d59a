"""official-ext prepare: printed output, several processes, signals and kills, without TensorFlow."""

import contextlib
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

import official_ext as ext
from official_ext.cli import prepare
from official_ext.data.prepare import engines
from tests.data.prepare import prepared_inputs as inputs

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
  """See `prepared_inputs.command`."""
  return inputs.command(capsys, tmp_path, monkeypatch)


def wait_for_shards(folder, number, process):
  deadline = time.monotonic() + 120
  while len(list(folder.glob('*.array_record.json'))) < number:
    assert process.poll() is None and time.monotonic() < deadline, process.communicate()
    time.sleep(0.01)


def children_of(pid):
  with contextlib.suppress(FileNotFoundError, ProcessLookupError):
    threads = pathlib.Path(f'/proc/{pid}/task').iterdir()
    return [child for thread in threads for child in (thread / 'children').read_text().split()]
  return []


def descendants_of(pid):
  return [each for child in children_of(pid) for each in (child, *descendants_of(child))]


def writers_of(process):
  """The processes of Ray that write shards, below one that has started Ray."""
  found = {}
  for pid in descendants_of(process.pid):
    with contextlib.suppress(OSError):
      found[pid] = pathlib.Path(f'/proc/{pid}/cmdline').read_bytes()
  return [int(pid) for pid, words in found.items() if words.startswith(b'ray::_write_or_tell')]


@pytest.mark.tensorflow
def test_several_processes_write_the_bytes_of_one(run, tmp_path):
  records = [{'n': n, 'text': 'a' * (n % 50)} for n in range(2000)]
  inputs.write_lines(tmp_path / 'a.jsonl', records)
  status, out, err = run('a.jsonl', 'out [1]', '--shard_size=10KB', '--workers=2')
  shards = len(inputs.shard_bytes(tmp_path / 'out [1]'))
  assert (status, err) == (0, '') and shards > 5
  size = sum(map(len, inputs.shard_bytes(tmp_path / 'out [1]').values()))
  progress, *summary = out.splitlines()[-7:]  # A slow machine prints more of the first.
  assert progress.startswith(f'{shards} of {shards} shards, 2000 records, ')
  assert summary == [
    'balance: a.jsonl: 2000 records found, 2000 used',
    f'out [1]: 2000 records, {size} bytes in {shards} shards',
    'To train on them, in the task:',
    '  source = ext.PreparedRows(params.input_path)',
    'and in its configuration, or on the command line:',
    f"  '--set=task.train_data.input_path={tmp_path}/out [1]'",
  ]
  inputs.prepare(tmp_path / 'a.jsonl', tmp_path / 'here', shard_bytes=10_000)
  assert inputs.shard_bytes(tmp_path / 'out [1]') == inputs.shard_bytes(tmp_path / 'here')
  source = ext.PreparedRows(str(tmp_path / 'out [1]'))
  assert source.fetch(range(2000)) == records
  status, out, _ = run('a.jsonl', 'out [1]', '--shard_size=10KB')
  assert status == 0 and f'{shards} of {shards} shards ({shards} existed)' in out
  assert f'bytes in {shards} shards, {shards} of which existed' in out


@pytest.mark.tensorflow
@pytest.mark.parametrize(
  ('words', 'expected'),
  [
    (
      ['a.jsonl'],
      'prepare: the following arguments are required: OUTPUT; `official-ext prepare --help` lists all flags',
    ),
    (['none*.jsonl', 'out'], 'INPUT: none*.jsonl: No such file or directory'),
    (['a.jsonl', 'out', '--shard_size=big'], '--shard_size=big: expected a size such as 5GB, 200MB or 4GiB'),
    (['a.jsonl', 'out', '--packing=wrapped'], '--packing: says how texts become rows of tokens; --tokenizer=FOLDER is'),
    (['a.jsonl', 'out', '--tokenizer=nowhere'], 'nowhere: there is no such folder to read a tokenizer from'),
    (['a.jsonl', 'out', '--ray_address=auto'], '--ray_address: is for --engine=ray'),
    (['a.jsonl', 'gs://bucket/out'], 'gs://bucket/out: shards are written to local or mounted disks'),
    (['gs://bucket/a.jsonl', 'out'], 'gs://bucket/a.jsonl: only files of local or mounted disks are prepared'),
    (['a.jsonl', 'out', '--workers=0'], "prepare: argument --workers: invalid integer of 1 or more value: '0'"),
    (['a.jsonl', 'a.jsonl'], 'is INPUT and OUTPUT at once; name another folder as OUTPUT'),
  ],
)
def test_mistakes_are_one_line(words, expected, run, tmp_path):
  inputs.write_lines(tmp_path / 'a.jsonl', [{'a': 1}])
  status, _, err = run(*words)
  assert status == 2
  assert err.count('\n') == 1 and expected in err and err.startswith('error: ')


def test_without_ray_the_extra_is_named(run, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'ray', None)
  inputs.write_lines(tmp_path / 'a.jsonl', [{'a': 1}])
  status, _, err = run('a.jsonl', 'out', '--engine=ray')
  assert (status, err) == (
    2,
    "error: --engine=ray: needs the package ray: pip install 'official-ext[ray]'\n",
  )


@pytest.mark.tensorflow
def test_one_record_and_one_shard_are_singular(run, tmp_path):
  inputs.write_lines(tmp_path / 'a.jsonl', [{'a': 1}])
  _, out, _ = run('a.jsonl', 'out', '--workers=1')
  assert re.search('^out: 1 record, [0-9]+ bytes in 1 shard$', out, re.MULTILINE)
  assert prepare.counted_noun(2, 'class', 'classes') == '2 classes'


@pytest.mark.tensorflow
def test_a_process_that_is_lost_ends_it_in_a_line(run, tmp_path, monkeypatch):
  inputs.write_lines(tmp_path / 'a.jsonl', [{'n': n} for n in range(500)])
  monkeypatch.setattr(engines.sys, 'executable', '/bin/false')
  status, _, err = run('a.jsonl', 'out', '--workers=1')
  assert status == 1
  assert (
    err.splitlines()[0] == 'error: rows-00000-of-00001.array_record: the process that wrote it has ended with status 1'
  )


def big(folder):
  """An input that takes some seconds, and how it is prepared."""
  path = inputs.write_lines(folder / 'a.jsonl', [{'n': n, 'text': f'{n} ' * 20} for n in range(60_000)])
  return ['a.jsonl', 'out', '--shard_size=300KB', '--workers=2'], path


def test_a_second_one_is_refused_and_a_signal_ends_the_first(tmp_path):
  words, _ = big(tmp_path)
  with inputs.started(tmp_path, *words) as first:
    wait_for_shards(tmp_path / 'out', 2, first)
    first.send_signal(signal.SIGSTOP)  # It would be done before the second has reached the lock.
    with inputs.started(tmp_path, *words) as second:
      assert second.communicate()[1] == (
        f'error: {tmp_path}/out: process {first.pid} on {os.uname().nodename} is preparing it; wait for its end, or '
        'stop it\n'
      )
      assert second.returncode == 4
    first.send_signal(signal.SIGTERM)
    first.send_signal(signal.SIGCONT)
    _, err = first.communicate()
  assert (
    first.returncode == 75 and 'preempted: SIGTERM: ' in err and err.endswith('run the same command again to resume\n')
  )
  assert not list((tmp_path / 'out').glob('*.partial')) and not (tmp_path / 'out/prepared.json').exists()


@pytest.mark.slow
def test_a_killed_one_leaves_no_process_and_resumes_to_the_same_bytes(tmp_path):
  words, path = big(tmp_path)
  with inputs.started(tmp_path, *words) as first:
    wait_for_shards(tmp_path / 'out', 3, first)
    workers = children_of(first.pid)
    first.kill()
  assert len(workers) == 2
  deadline = time.monotonic() + 60
  while any(os.path.exists(f'/proc/{worker}/cwd') for worker in workers):
    assert time.monotonic() < deadline
    time.sleep(0.01)
  with inputs.started(tmp_path, *words) as again:
    out, err = again.communicate()
  assert again.returncode == 0, err
  there = int(out.rpartition('shards, ')[2].partition(' of which')[0])
  inputs.prepare(path, tmp_path / 'undisturbed', shard_bytes=300_000)
  shards = inputs.shard_bytes(tmp_path / 'undisturbed')
  assert inputs.shard_bytes(tmp_path / 'out') == shards and 3 <= there < len(shards)


_needs_ray = pytest.mark.skipif(
  importlib.util.find_spec('ray') is None, reason="no Ray here: pip install 'official-ext[ray]'"
)


@_needs_ray
def test_ray_writes_the_same_bytes_although_a_process_is_killed(tmp_path):
  words, path = big(tmp_path)
  with inputs.started(tmp_path, *words, '--engine=ray') as process:
    wait_for_shards(tmp_path / 'out', 2, process)
    while not (writers := writers_of(process)):
      assert process.poll() is None, process.communicate()
      time.sleep(0.01)
    os.kill(writers[0], signal.SIGKILL)
    _, err = process.communicate()
  assert (process.returncode, err) == (0, '')
  assert_undisturbed(tmp_path, path)


def assert_undisturbed(folder, path):
  """The shards in `out` are those of a preparation that nothing has disturbed, and nothing else has been left."""
  inputs.prepare(path, folder / 'undisturbed', shard_bytes=300_000)
  assert inputs.shard_bytes(folder / 'out') == inputs.shard_bytes(folder / 'undisturbed')
  # The processes were given the file by its name, and the balance names its source as given.
  expected = (folder / 'undisturbed/prepared.json').read_text().replace(str(path), path.name)
  assert (folder / 'out/prepared.json').read_text() == expected
  assert not list((folder / 'out').glob('*.partial'))


def test_a_kill_while_several_processes_make_one_shard_changes_no_byte(tmp_path):
  path = inputs.write_lines(tmp_path / 'a.jsonl', [{'n': n, 'text': f'{n:09d} ' * 100} for n in range(12000)])
  words = ['a.jsonl', 'out', '--workers=2']
  with inputs.started(tmp_path, *words) as process:
    deadline = time.monotonic() + 120
    while not list((tmp_path / 'out').glob('*.part-*.partial')):
      assert process.poll() is None and time.monotonic() < deadline, process.communicate()
      time.sleep(0.01)
    process.kill()
  with inputs.started(tmp_path, *words) as process:
    out, err = process.communicate()
  assert process.returncode == 0 and '1 of 1 shards' in out, err
  inputs.prepare(path, tmp_path / 'undisturbed')
  assert inputs.shard_bytes(tmp_path / 'out') == inputs.shard_bytes(tmp_path / 'undisturbed')
  assert not list((tmp_path / 'out').glob('*.partial'))


@pytest.mark.soak
@pytest.mark.parametrize(('engine', 'step', 'least'), [('local', 4, 3), pytest.param('ray', 6, 2, marks=_needs_ray)])
def test_kills_at_many_moments_change_no_byte(engine, step, least, tmp_path):
  words, path = big(tmp_path)
  words.append(f'--engine={engine}')
  there = lambda: len(list((tmp_path / 'out').glob('*.array_record.json')))
  kills, before = 0, -1
  while there() > before:
    before = there()
    with inputs.started(tmp_path, *words) as process:
      while process.poll() is None and there() < before + step:
        time.sleep(0.003 * (1 + kills % 5))
      kills += process.poll() is None
  with inputs.started(tmp_path, *words) as process:
    process.communicate()
  assert process.returncode == 0 and kills > least
  assert_undisturbed(tmp_path, path)


@pytest.mark.soak
@_needs_ray
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_ends_ray_too_and_the_same_command_resumes(number, tmp_path):
  words, path = big(tmp_path)
  with inputs.started(tmp_path, *words, '--engine=ray') as process:
    wait_for_shards(tmp_path / 'out', 3, process)
    of_ray = descendants_of(process.pid)
    # Ctrl-C reaches all processes of a terminal.
    for pid in (process.pid, *of_ray) if number == signal.SIGINT else (process.pid,):
      with contextlib.suppress(ProcessLookupError):
        os.kill(int(pid), number)
    _, err = process.communicate()
  assert process.returncode == 75 and err.endswith('run the same command again to resume\n')
  assert not list((tmp_path / 'out').glob('*.partial'))
  with inputs.started(tmp_path, *words) as process:  # With another engine.
    process.communicate()
  assert process.returncode == 0
  assert_undisturbed(tmp_path, path)


@pytest.mark.soak
@_needs_ray
@pytest.mark.parametrize('how', ['flag', 'variable'])
def test_a_machine_of_a_cluster_that_is_lost_costs_nothing(how, tmp_path, monkeypatch):
  from ray import cluster_utils

  words, path = big(tmp_path)
  cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={'num_cpus': 0, 'include_dashboard': False})
  try:
    lost, _ = (cluster.add_node(num_cpus=1) for _ in range(2))
    if how == 'flag':
      words.append(f'--ray_address={cluster.address}')
    else:
      monkeypatch.setenv('RAY_ADDRESS', cluster.address)
    with inputs.started(tmp_path, *words, '--engine=ray') as process:
      wait_for_shards(tmp_path / 'out', 3, process)
      cluster.remove_node(lost, allow_graceful=False)
      _, err = process.communicate()
  finally:
    cluster.shutdown()
  assert process.returncode == 0, err
  assert_undisturbed(tmp_path, path)


@pytest.mark.soak
@_needs_ray
def test_a_cluster_that_is_not_there_is_one_line(tmp_path):
  inputs.write_lines(tmp_path / 'a.jsonl', [{'a': 1}])
  with inputs.started(tmp_path, 'a.jsonl', 'out', '--engine=ray', '--ray_address=auto') as process:
    _, err = process.communicate()
  assert process.returncode == 2 and err.startswith('error: --ray_address=auto: ConnectionError: '), err
  assert err.count('\n') == 1


def test_another_version_of_the_library_writes_nothing():
  job = {'name': 'rows-00000-of-00001.array_record'}
  answer = engines._write_or_report(job, '0.0.0', 'elsewhere')
  assert answer['end'] == 'bad_input' and answer['message'].startswith(
    f'{job["name"]}: version {ext.__version__} of this library is to write it, and 0.0.0 began; install the same one '
    f'everywhere (on {os.uname().nodename}; input and output must exist under the same paths as on elsewhere)'
  )


def test_it_needs_no_tensorflow(tmp_path):
  inputs.write_lines(tmp_path / 'a.jsonl', [{'a': 1}])
  code = (
    'import sys; from official_ext.cli import main; status = main.main(["prepare", "a.jsonl", "out"]); '
    'sys.exit(status or "tensorflow" in sys.modules)'
  )
  environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
  subprocess.run([sys.executable, '-c', code], cwd=tmp_path, env=environment, check=True, stdout=subprocess.DEVNULL)
  assert json.loads((tmp_path / 'out/prepared.json').read_text())['report']['examples'] == 1
