"""The model of the state after a power cut, derived by hand; the log of calls; and a short form of `make powercut`."""

import dataclasses
import os
import random
import textwrap

import pytest

from tests import tiers
from tests.powercut import crash_states
from tests.powercut import file_system
from tests.powercut import folder_scenarios
from tests.powercut import folders
from tests.powercut import recording
from tests.powercut import replay
from tests.powercut import strace_log
from tests.powercut import training_scenarios
from tests.powercut import trial


def possible(model):
  """All states that are tried, as sets of (path, content)."""
  rng = random.Random(0)
  return {frozenset(make().items()) for _ in range(30) for _, make in crash_states.states(model, rng)}


def state(**contents):
  return frozenset((name, content) for name, content in contents.items())


# The model.


def test_only_what_was_synced_is_certain():
  model = file_system.FileSystem()
  node = model.create('a')
  model.write(node, 0, b'text')
  assert model.tree() == {'a': b'text'} and model.after_power_cut() == {}
  model.sync(node)  # Its content, and not its name.
  assert model.after_power_cut() == {} and possible(model) == {state(), state(a=b'text')}
  model.sync(file_system.ROOT)
  assert possible(model) == {state(a=b'text')}


def test_a_name_without_the_content():
  model = file_system.FileSystem()
  node = model.create('a')
  model.sync(file_system.ROOT)
  model.write(node, 0, b'abcd')
  # Nothing, all, half; four zeros; two zeros and the second half.
  assert possible(model) == {state(a=each) for each in (b'', b'abcd', b'ab', b'\0\0\0\0', b'\0\0cd')}
  model.sync(node)
  model.write(node, 4, b'ef')
  # The second of its two blocks of three bytes is new: the whole, here.
  assert possible(model) == {state(a=b'abcd' + end) for end in (b'', b'ef', b'e', b'\0\0')}


def test_a_file_that_is_renamed_over_another_is_one_of_both():
  model = file_system.FileSystem()
  model.sync_all()
  for name, content in (('a', b'old'), ('a.tmp', b'new')):
    node = model.create(name)
    model.write(node, 0, content)
    model.sync(node)
  model.sync(file_system.ROOT)
  model.rename('a.tmp', 'a')
  assert possible(model) == {state(**{'a': b'old', 'a.tmp': b'new'}), state(a=b'new')}
  model.sync(file_system.ROOT)
  assert possible(model) == {state(a=b'new')}


def test_a_removal_may_come_before_the_rename_and_after_it():
  """Files that a program deletes before it has synced a name may be gone, and the name not there."""
  model = file_system.FileSystem()
  for name in ('old', 'new.tmp'):
    model.sync(model.create(name))
  model.sync(file_system.ROOT)
  model.rename('new.tmp', 'new')
  model.remove('old')
  assert possible(model) == {
    state(**{'old': b'', 'new.tmp': b''}),
    state(old=b'', new=b''),
    state(**{'new.tmp': b''}),
    state(new=b''),
  }


def test_names_in_a_folder_are_certain_when_it_and_all_above_it_are_synced():
  model = file_system.FileSystem()
  folder = model.make_folder('a')
  model.create('a/b')
  model.sync(folder)
  assert model.after_power_cut() == {}
  model.sync(file_system.ROOT)
  assert model.after_power_cut() == {'a': None, 'a/b': b''}


def test_what_one_folder_keeps_takes_along_what_came_before_in_the_other():
  model = file_system.FileSystem()
  first, second = model.make_folder('first'), model.make_folder('second')
  model.sync(file_system.ROOT)
  model.create('first/a')
  model.create('first/b')
  model.rename('first/a', 'second/a')
  model.sync(second)  # A rename is kept whole: `first` cannot hold the name that it had before.
  assert model.after_power_cut() == {'first': None, 'second': None, 'second/a': b''}
  assert possible(model) == {
    frozenset({('first', None), ('second', None), ('second/a', b''), *more}) for more in ((), (('first/b', b''),))
  }
  model.sync(first)
  assert len(possible(model)) == 1


def test_folders_exchange_their_names():
  model = file_system.FileSystem()
  for name in 'ab':
    model.make_folder(name)
    model.create(f'{name}/of {name}')
  model.sync_all()
  model.exchange('a', 'b')
  before, after = ({'a': None, f'a/of {x}': b'', 'b': None, f'b/of {y}': b''} for x, y in ('ab', 'ba'))
  assert possible(model) == {frozenset(before.items()), frozenset(after.items())}


# The log.


def hexadecimal(text):
  return ''.join(f'\\x{byte:02x}' for byte in text.encode())


def test_a_log_of_two_threads_is_replayed():
  """One thread is interrupted in a write; the descriptor of the other is shared; a child appends to its own."""
  at, path = hexadecimal('/disk'), lambda name: f'<{hexadecimal("/disk/" + name)}>'
  log = '\n'.join(
    [
      f'7  openat(AT_FDCWD<{at}>, "{hexadecimal("a [1]")}", O_WRONLY|O_CREAT, 0666) = 3{path("a [1]")}',
      '7  clone3({flags=CLONE_VM|CLONE_FILES, stack=0x7f}, 88 <unfinished ...>',
      f'8  write(3{path("a [1]")}, "{hexadecimal("one, ")}", 5 <unfinished ...>',
      '7  <... clone3 resumed>) = 8',
      f'7  openat(AT_FDCWD<{at}>, "{hexadecimal("/disk/log")}", O_WRONLY|O_CREAT|O_APPEND, 0666) = 4{path("log")}',
      '8  <... write resumed>) = 5',
      f'7  write(3{path("a [1]")}, "{hexadecimal("two")}", 3) = 3',
      '7  vfork() = 9',
      f'7  close(4{path("log")}) = 0',
      f'9  writev(4{path("log")}, [{{iov_base="{hexadecimal("x")}", iov_len=1}}, {{iov_base="{hexadecimal("yz")}", '
      'iov_len=2}], 2) = 3',
      f'7  rename("{hexadecimal("/disk/a [1]")}", "{hexadecimal("/disk/b")}") = 0',
      f'7  unlink("{hexadecimal("/disk/none")}") = -1 ENOENT (No such file or directory)',
      f'7  fsync(3{path("b")}) = 0',
      f'7  write(1<{hexadecimal("/elsewhere")}>, "{hexadecimal("text")}", 4) = 4',
      '9  +++ exited with 0 +++',
    ]
  )
  repeated = replay.Replay('/disk', file_system.FileSystem())
  applied = list(repeated.run(strace_log.read(log)))
  assert repeated.model.tree() == {'b': b'one, two', 'log': b'xyz'}
  assert applied == [
    'create a [1]',
    'create log',
    'write 5 bytes: a [1]',
    'write 3 bytes: a [1]',
    'write 3 bytes: log',
    'rename a [1] to b',
    'fsync b',
  ]
  assert repeated.model.kept_content(repeated.model.find('b')) == b'one, two'


def test_a_number_that_another_thread_is_given_while_it_is_closed():
  at = lambda name: f'<{hexadecimal("/disk/" + name)}>'
  opened = lambda name: f'openat(AT_FDCWD<{hexadecimal("/disk")}>, "{hexadecimal(name)}", O_RDWR|O_CREAT, 0666)'
  log = '\n'.join(
    [
      '7  clone3({flags=CLONE_VM|CLONE_FILES, stack=0x7f}, 88) = 8',
      f'7  {opened("first")} = 3{at("first")}',
      f'7  close(3{at("first")} <unfinished ...>',
      f'8  {opened("second")} = 3{at("second")}',
      '7  <... close resumed>) = 0',
      f'8  write(3{at("second")}, "{hexadecimal("text")}", 4) = 4',
    ]
  )
  repeated = replay.Replay('/disk', file_system.FileSystem())
  assert list(repeated.run(strace_log.read(log))) == ['create first', 'create second', 'write 4 bytes: second']


def test_what_the_model_cannot_follow_is_an_error():
  at = hexadecimal('/disk')
  replayed = lambda line: list(replay.Replay('/disk', file_system.FileSystem()).run(strace_log.read(line)))
  with pytest.raises(strace_log.RecordingError, match='not in the model'):
    replayed(f'7  openat(AT_FDCWD<{at}>, "{hexadecimal("a")}", O_RDONLY) = 3<{hexadecimal("/disk/a")}>')
  with pytest.raises(strace_log.RecordingError, match='opened by nobody'):
    replayed(f'7  write(3<{hexadecimal("/disk/a")}>, "{hexadecimal("a")}", 1) = 1')
  with pytest.raises(strace_log.RecordingError, match='across the border'):
    replayed(f'7  rename("{hexadecimal("/tmp/a")}", "{hexadecimal("/disk/a")}") = 0')


def test_a_folder_takes_one_state_after_the_other(tmp_path):
  holder = folders.Folder(tmp_path / 'disk')
  for tree in ({'a': b'1', 'b': None, 'b/c': b'2'}, {'a': None, 'a/c': b'2', 'b': b''}, {}):
    holder.hold(tree)
    assert folders.read(holder.path) == tree
    (holder.path / 'left').write_text('by whoever has looked')


# The short form.


@pytest.fixture(scope='module')
def recorder(tmp_path_factory):
  reason = recording.why_not()
  if reason:
    pytest.skip(reason)
  made = recording.Recorder(tmp_path_factory.mktemp('recorder'))
  yield made
  made.close()


def test_the_replayed_calls_of_a_program_lead_to_its_files(tmp_path):
  """Shells, children, threads, copies, folders that are moved: the model ends with the disk's contents."""
  reason = recording.why_not()
  if reason:
    pytest.skip(reason)
  disk = tmp_path / 'disk'
  disk.mkdir()
  program = """
    import os, shutil, subprocess, sys, threading
    disk = sys.argv[1]
    os.makedirs(f'{disk}/a b/ü')
    with open(f'{disk}/a b/ü/1', 'wb') as file:
      file.write(bytes(range(256)) * 50)
    shutil.copyfile(f'{disk}/a b/ü/1', f'{disk}/2')
    subprocess.run(['sh', '-c', 'echo one >> "$0/3"; (echo two; echo three) >> "$0/3"', disk], check=True)
    with open(f'{disk}/2', 'r+b') as file:
      file.seek(-10, os.SEEK_END)
      file.truncate()
      file.seek(3)
      file.write(b'in the middle')
    thread = threading.Thread(target=lambda: open(f'{disk}/4', 'w').write('of a thread'))
    thread.start()
    thread.join()
    os.rename(f'{disk}/a b', f'{disk}/c')
    os.link(f'{disk}/4', f'{disk}/5')
    os.remove(f'{disk}/4')
    shutil.copytree(f'{disk}/c', f'{disk}/d')
    shutil.rmtree(f'{disk}/c')
  """
  (tmp_path / 'program.py').write_text(textwrap.dedent(program))
  python = os.path.realpath(os.sys.executable)
  calls = recording.record_command([python, str(tmp_path / 'program.py'), str(disk)], tmp_path / 'log', tmp_path)
  repeated = replay.Replay(str(disk), file_system.FileSystem())
  assert len(list(repeated.run(calls))) > 15
  assert repeated.model.tree() == folders.read(disk)
  assert {'2', '3', '5', 'd/ü/1'} <= set(repeated.model.tree())


@tiers.parametrize(
  ('scenario', 'states'),
  [
    pytest.param(training_scenarios.SHORT, 40, id='a few states'),
    *(pytest.param(each, 400, id=each.name) for each in (folder_scenarios.WholeFolder(), training_scenarios.SHORT)),
  ],
  fast=1,
)
def test_no_state_loses_what_was_synced(scenario, states, recorder, tmp_path):
  row = trial.Trial(scenario, tmp_path.resolve(), trial.Limits(states=states, restores=0, seed=0)).run(
    recorder, recorder.server
  )
  assert not row.failures
  assert row.distinct > 50


@pytest.mark.slow
def test_a_program_that_does_not_sync_is_found(recorder, tmp_path):
  @dataclasses.dataclass(frozen=True)
  class Unsynced(folder_scenarios.WholeFolder):
    def prepare(self, disk, server):
      super().prepare(disk, server)
      script = disk.parent / 'write.py'
      without = 'from official_ext.base.files import paths\npaths.sync_to_disk = paths.sync_tree = lambda path: None\n'
      script.write_text(without + script.read_text())

  row = trial.Trial(Unsynced(), tmp_path.resolve(), trial.Limits(restores=0)).run(recorder, recorder.server)
  assert any('the folder is not whole' in line for line in row.failures)
  assert any('only (-1,) is certain to be kept' in line for line in row.failures)
