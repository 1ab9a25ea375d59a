"""Copies of remote runs, which are kept current: ram:// stands for gs://, and knows no times."""

import json
import os
import time

import pytest

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.operations.curves import column_store
from official_ext.operations.curves import curves
from official_ext.operations.runs import remote_runs
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_index
from tests.operations.runs import folders
from tests.operations.runs.folders import event


@pytest.fixture
def root(tmp_path):
  return f'ram:/{tmp_path}'


def _write(path, content=b''):
  paths.make_folder(os.path.dirname(path))
  paths.write_atomically(path, content)


def _lines(*events):
  return ''.join(json.dumps(each) + '\n' for each in events).encode()


@pytest.mark.tensorflow
def test_a_copy_has_texts_and_the_sizes_of_the_rest(root):
  _write(f'{root}/a/params.yaml', b'a: 1')
  _write(f'{root}/a/best/best_ckpt-1.data-00000-of-00001', bytes(1 << 16))
  _write(f'{root}/a/train/events.out.tfevents.1', b'records')
  _write(f'{root}/.trash/x/params.yaml')
  mirror = remote_runs.Mirror(root)
  mirror.refresh()
  assert sorted(paths.files_below(mirror.path)) == [
    'a/best/best_ckpt-1.data-00000-of-00001',
    'a/params.yaml',
    'a/train/events.out.tfevents.1',
  ]
  read = lambda mirror, name: paths.read(os.path.join(mirror.path, name))
  assert read(mirror, 'a/params.yaml') == b'a: 1' and read(mirror, 'a/train/events.out.tfevents.1') == bytes(7)
  assert paths.size(os.path.join(mirror.path, 'a/best/best_ckpt-1.data-00000-of-00001')) == 1 << 16
  with_images = remote_runs.Mirror(root, has_images=True)
  with_images.refresh()
  assert read(with_images, 'a/train/events.out.tfevents.1') == b'records'


@pytest.mark.tensorflow
def test_a_list_copies_the_end_of_the_events_alone(root, monkeypatch):
  monkeypatch.setattr(remote_runs, '_TAIL', 300)
  events = [event('train', step, training_loss=1.0 / step) for step in range(1, 100)]
  _write(f'{root}/a/events.jsonl', _lines(*events))
  _write(f'{root}/a/run.json', json.dumps(folders.record(identity=folders.ended_process())).encode())
  _write(f'{root}/a/ckpt-1.index')
  mirror = remote_runs.Mirror(root, only_summaries=True)
  for more in ([], [event('train', 100, training_loss=0.25)], [event('eval', 100, accuracy=0.5)]):
    events += more
    _write(f'{root}/a/events.jsonl', _lines(*events))
    mirror.refresh()
    (summary,) = run_index.RunIndex(mirror.path, mirror.cache, mirror.root).summaries()
    assert (summary.path, summary.step) == (f'{root}/a', events[-1]['step'])
  assert summary.train == {'training_loss': 0.25} and summary.evaluation == {'accuracy': 0.5}
  assert sorted(paths.files_below(mirror.path)) == ['a/events.jsonl', 'a/run.json']
  copy = os.path.join(mirror.path, 'a/events.jsonl')
  assert paths.size(copy) == len(_lines(*events)) and paths.read(copy).startswith(bytes(100))


@pytest.mark.tensorflow
def test_events_that_grow_are_added_and_others_begin_a_file(root):
  events = [event('train', step, training_loss=float(step)) for step in range(1, 2000)]
  _write(f'{root}/a/events.jsonl', _lines(*events[:1000]))
  _write(f'{root}/a/params.yaml')
  mirror = remote_runs.Mirror(root)
  mirror.refresh()
  store = column_store.ColumnStore(mirror.cache)
  copy = os.path.join(mirror.path, 'a/events.jsonl')
  run = run_folders.Run(os.path.join(mirror.path, 'a'), 'a')
  inode = os.stat(copy).st_ino

  def steps():
    (curve,) = [each for each in curves.all_values(store, run) if each.name == 'train/training_loss']
    return list(curve.steps)

  assert steps() == list(range(1, 1001))
  _write(f'{root}/a/events.jsonl', _lines(*events))
  mirror.refresh()
  assert os.stat(copy).st_ino == inode and steps() == list(range(1, 2000))
  _write(f'{root}/a/events.jsonl', _lines(*(each | {'time': 1.0} for each in events)))  # Another run, of a longer file.
  mirror.refresh()
  assert os.stat(copy).st_ino != inode and paths.read(copy) == paths.read(f'{root}/a/events.jsonl')


@pytest.mark.tensorflow
def test_files_that_change_or_go_change_or_go(root):
  _write(f'{root}/a/run.json', b'{"a": 1}')
  _write(f'{root}/a/params.yaml')
  mirror = remote_runs.Mirror(root)
  mirror.refresh()
  _write(f'{root}/a/run.json', b'{"a": 2}')  # Of the same size.
  paths.remove(f'{root}/a/params.yaml')
  mirror.refresh()
  assert list(paths.files_below(mirror.path)) == ['a/run.json']
  assert paths.read(os.path.join(mirror.path, 'a/run.json')) == b'{"a": 2}'


@pytest.mark.tensorflow
def test_a_failure_leaves_the_copy_and_is_reported_once(root, monkeypatch):
  _write(f'{root}/a/run.json', b'{}')
  mirror, reports = remote_runs.Mirror(root), []
  mirror.refresh()
  monkeypatch.setattr(paths, 'entries', lambda folder: (_ for _ in ()).throw(OSError(5, 'is gone', folder)))
  mirror.keep_current(0.01, reports.append)
  deadline = time.monotonic() + 10
  while not reports and time.monotonic() < deadline:
    time.sleep(0.01)
  time.sleep(0.1)
  assert reports == [f'{root}: cannot be read: is gone; the shown runs are those of before']
  assert list(paths.files_below(mirror.path)) == ['a/run.json']
  monkeypatch.undo()
  _write(f'{root}/b/run.json', b'{}')
  while len(list(paths.files_below(mirror.path))) < 2 and time.monotonic() < deadline:
    time.sleep(0.01)
  assert sorted(paths.files_below(mirror.path)) == ['a/run.json', 'b/run.json']


@pytest.mark.tensorflow
def test_changes_are_written_back(root):
  _write(f'{root}/a/run.json', b'{}')
  run = remote_runs.copied(f'{root}/a')
  assert (run.name, run.place) == ('a', f'{root}/a')
  for content in (b'{"tags": []}', None):
    if content is None:
      os.remove(run.file('notes.json'))
    else:
      paths.write_atomically(run.file('notes.json'), content)
    remote_runs.push(run, 'notes.json')
    assert paths.exists(f'{root}/a/notes.json') == (content is not None)
  with pytest.raises(errors.UserError, match='no run; name the folder that has its run.json'):
    remote_runs.copied(f'{root}/none')


def test_a_local_run_is_not_written_back(tmp_path):
  run = folders.make(tmp_path, 'a')
  before = {path.name: path.read_bytes() for path in (tmp_path / 'a').iterdir()}
  remote_runs.push(run, 'notes.json')  # It has none, and one on remote storage would be deleted.
  assert run.place == run.path and {path.name: path.read_bytes() for path in (tmp_path / 'a').iterdir()} == before
