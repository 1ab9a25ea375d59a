"""A run and its folder: odd names, files where folders should be, broken records, another training in it."""

import fnmatch
import os
import re

import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.base.run_folder import run_lock
from official_ext.cli import runs
from official_ext.training.checkpoints import listing
from official_ext.training.checkpoints import manager
from official_ext.training.checkpoints import manifests
from official_ext.training.diagnosis import finite_checks
from tests import irregular_files
from tests import tiers
from tests.training.loop import small_run


def _steps(folder):
  return [manifests.step_of(path) for path in manifests.complete_paths(str(folder))]


def _contents(folder):
  return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob('*')) if path.is_file()}


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  folder = tmp_path_factory.mktemp('trained')
  small_run.run(folder, 'train')
  return folder


@pytest.mark.slow
def test_a_model_dir_with_an_odd_name_is_a_path_and_no_pattern(trained, tmp_path, capsys):
  name = 'r?*\\1[1]'
  assert fnmatch.fnmatch('run11', name.replace('\\', ''))
  os.symlink(trained, tmp_path / 'run11')  # The files that the name would match, were it a pattern.
  before = _contents(trained)
  folder = tmp_path / name
  best = {'best_checkpoint_export_subdir': 'best', 'best_checkpoint_eval_metric': 'accuracy', 'max_to_keep': 1}
  small_run.run(folder, 'train_and_eval', trainer={**best, 'train_steps': 8})
  assert _steps(folder) == [8]
  small_run.run(folder, 'train_and_eval', trainer=best)
  assert [event['step'] for event in small_run.events(folder, 'restored')] == [8] and _steps(folder) == [12]
  _, logs = small_run.run(folder, 'eval', checkpoint=str(folder / 'ckpt-12'))
  assert logs
  runs.run(['show', str(folder)])
  assert re.search(r'  checkpoints +ckpt-12, best/\S+-12\n', capsys.readouterr().out)
  assert _contents(trained) == before


def _from(folder):
  params = small_run.make_params()
  params.task.init_checkpoint = str(folder)
  return params


@pytest.mark.slow
def test_an_empty_state_file_is_no_obstacle(tmp_path):
  """As a crash leaves it: TensorFlow's own manager ends with a ValueError."""
  tmp_path = tmp_path / 'run[1]'
  small_run.run(tmp_path, 'train', trainer={'train_steps': 8})
  (tmp_path / 'checkpoint').write_bytes(b'')
  small_run.run(tmp_path, 'train')
  assert [event['step'] for event in small_run.events(tmp_path, 'restored')] == [8]
  for path in manifests.complete_paths(str(tmp_path)):
    os.remove(path + manifests.SUFFIX)
  (tmp_path / 'checkpoint').write_bytes(b'\xff\xff')  # A folder without manifests, to start from.
  small_run.run(tmp_path / 'warm', 'train', params=_from(tmp_path))  # Which has an odd name too.


@tiers.parametrize('suffix', ['.index', '.data-00000-of-00001', '.manifest.json'], fast=1)
@tiers.parametrize('mode', ['eval', 'train'], fast=1)
def test_a_damaged_checkpoint_that_is_named_is_one_line(trained, tmp_path, suffix, mode):
  for path in manifests.files_of(str(trained / 'ckpt-12')) + [str(trained / 'ckpt-12.manifest.json')]:
    content = (trained / os.path.basename(path)).read_bytes()
    (tmp_path / os.path.basename(path)).write_bytes(content[:-9] if path.endswith(suffix) else content)
  with pytest.raises(errors.UserError, match=r'^--checkpoint=.*ckpt-12: it is damaged: [^\n]*$'):
    small_run.run(tmp_path / 'new', mode, checkpoint=str(tmp_path / 'ckpt-12'))
  with pytest.raises(errors.UserError, match='it is damaged'):
    finite_checks.debug_step(small_run.make_params(), None, str(tmp_path / 'ckpt-12'))
  if suffix != '.manifest.json':  # Nor without a manifest, which another program does not write.
    os.remove(tmp_path / 'ckpt-12.manifest.json')
    with pytest.raises(errors.UserError, match=r'ckpt-12: it is damaged: [^\n]*$'):
      listing.check_available('', mode, str(tmp_path / 'ckpt-12'))
  assert not (tmp_path / 'new').exists()


@pytest.mark.parametrize('name', ['train', 'validation', 'best', 'ema_checkpoints'])
def test_a_file_where_a_run_keeps_a_folder_is_reported(tmp_path, name):
  (tmp_path / name).touch()
  with pytest.raises(errors.UserError, match=rf'--model_dir=.*/{name} is a file, and a run keeps a folder there'):
    small_run.run(tmp_path, trainer={'best_checkpoint_export_subdir': 'best'})
  assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize('mode', ['train', 'train_and_eval'])
def test_the_folder_of_an_imported_run_is_refused(tmp_path, mode):
  record = '{"status": "finished", "imported": {"tracker": "wandb", "source": "/wandb/run-a.wandb", "end": ""}}'
  (tmp_path / 'run.json').write_text(record)
  with pytest.raises(errors.UserError, match=r'^--model_dir=.*: has a run imported from wandb; name another folder$'):
    small_run.run(tmp_path, mode)
  assert os.listdir(tmp_path) == ['run.json'] and (tmp_path / 'run.json').read_text() == record


_NAMES = ['run.json', 'params.yaml', 'events.jsonl', 'rollbacks.json', 'lines.json', 'checkpoint', run_lock.NAME]


@pytest.mark.parametrize('name', [*_NAMES, 'best/history.json', 'best/info.json', 'ema_checkpoints/checkpoint'])
def test_what_is_not_a_file_where_a_run_keeps_one_is_reported(tmp_path, name):
  for kind in irregular_files.KINDS:
    irregular_files.put(kind, f'{tmp_path}/{name}')
    expected = rf'--model_dir=.*/{name} is (a folder|not a regular file|a loop of links), and a run keeps a file there'
    with irregular_files.seconds(30), pytest.raises(errors.UserError, match=expected):
      small_run.run(tmp_path, trainer={'best_checkpoint_export_subdir': 'best'})
    assert os.listdir(tmp_path) == [name.partition('/')[0]]


@tiers.parametrize('content', [b'', b'[1]', b'\xff\xfe', b'{"status": "running", "attempt": "x", "step": {}}'], fast=1)
def test_records_of_wrong_types_are_replaced(tmp_path, content, caplog, capsys):
  for name in ('run.json', 'params.yaml'):
    (tmp_path / name).write_bytes(content)
  small_run.run(tmp_path, 'train')
  assert small_run.record(tmp_path)['status'] == 'finished' and small_run.record(tmp_path)['attempt'] == 1
  assert 'run.json cannot be read, and is replaced' in caplog.text
  assert (tmp_path / 'params.1.yaml').read_bytes() == content
  assert 'other parameters than before' in capsys.readouterr().out


@tiers.parametrize(
  'content',
  [
    b'',
    b'{}',
    b'\xff',
    b'[3]',
    b'[{"from_step": "a", "to_step": 1, "data_offset": 0}]',
    b'[{"from_step": 1}]',
  ],
  fast=2,
)
def test_rollbacks_of_wrong_types_are_an_error_in_one_line(tmp_path, content):
  (tmp_path / 'rollbacks.json').write_bytes(content)
  with pytest.raises(errors.CheckpointError, match=r'rollbacks.json: cannot be read [^\n]*$'):
    small_run.run(tmp_path, 'train')
  assert small_run.record(tmp_path)['status'] == 'failed'


@pytest.mark.slow
def test_another_training_in_the_folder_is_refused_and_an_evaluation_is_not(trained):
  lock = run_lock.RunLock(str(trained), 'train_and_eval')
  lock.acquire()
  try:
    before = _contents(trained)
    with pytest.raises(errors.UserError, match=f'process {os.getpid()} on .* trains in this folder'):
      small_run.run(trained, 'train')
    assert _contents(trained) == before
    small_run.run(trained, 'eval')
    small_run.run(trained, 'continuous_eval')
  finally:
    lock.release()
  small_run.run(trained, 'train')  # And gives it back.
  assert not (trained / run_lock.NAME).exists()


@pytest.mark.slow
@pytest.mark.parametrize('checkpoint', [None, 'ckpt-8'])
def test_a_training_that_begins_and_ends_while_another_waits_for_the_folder_is_seen(
  checkpoint, trained, tmp_path, monkeypatch
):
  # Before: the start was chosen before the folder was held, and two lines of training were mixed.
  folder, waited = tmp_path / 'run', []

  class Slow(run_lock.RunLock):
    def acquire(self, *args):
      if not waited:
        waited.append(True)
        small_run.run(folder, 'train', checkpoint=checkpoint and str(trained / checkpoint), trainer={'train_steps': 10})
        waited.append(_contents(folder))
      super().acquire(*args)

  monkeypatch.setattr(run_lock, 'RunLock', Slow)
  if checkpoint is None:
    with pytest.raises(errors.UserError, match='holds checkpoints of another line of training, the newest ckpt-10'):
      small_run.run(folder, 'train', checkpoint=str(trained / 'ckpt-8'))
    assert _contents(folder) == waited[1]
  else:  # The same command: it resumes from there.
    small_run.run(folder, 'train', checkpoint=str(trained / checkpoint))
    assert [event['step'] for event in small_run.events(folder, 'restored')] == [8, 10]
  assert not (folder / run_lock.NAME).exists()


def test_a_run_that_fails_gives_the_folder_back(tmp_path):
  def fail(logs):
    raise RuntimeError('no good')

  with pytest.raises(RuntimeError):
    small_run.run(tmp_path, 'train', train_actions=[fail])
  assert not (tmp_path / run_lock.NAME).exists()


def test_a_run_whose_folder_another_has_taken_stops_and_writes_no_more(tmp_path):
  left, locks = {}, []

  def take(logs):
    if int(logs['model_global_step']) == 5:
      lease = (tmp_path / run_lock.NAME).read_text()
      (tmp_path / run_lock.NAME).write_text(lease.replace('"token": "', '"token": "another'))
      locks[0]._beat()
      left.update({name: (tmp_path / name).read_bytes() for name in ('run.json', 'checkpoint')})

  class Watched(run_lock.RunLock):
    def acquire(self, *args):
      locks.append(self)
      super().acquire(*args)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(run_lock, 'RunLock', Watched)
    with pytest.raises(errors.LockLostError, match='trains in it now'):
      small_run.run(tmp_path, 'train', train_actions=[take], trainer={'async_checkpointing': False})
  assert {name: (tmp_path / name).read_bytes() for name in left} == left
  assert _steps(tmp_path) == [4] and not small_run.events(tmp_path, 'failed')


class _Racing(manager.CheckpointManager):
  """An evaluation's manager, beside a training that replaces the checkpoint as soon as it has been chosen."""

  def __init__(self, *args, replace, **kwargs):
    super().__init__(*args, **kwargs)
    self.replace = replace

  def restore(self, path):
    self.replace(manifests.step_of(path))
    super().restore(path)

  def _is_rolled_back(self, prefix):  # Asked between the listing and the reading.
    self.replace(manifests.step_of(prefix))
    return super()._is_rolled_back(prefix)


@pytest.mark.parametrize('moments', [2, 3])
def test_an_evaluation_takes_the_next_newest_where_a_training_deletes_the_one_it_chose(tmp_path, moments):
  value, step = tf.Variable(0.0), tf.Variable(0, dtype=tf.int64)
  training = manager.CheckpointManager(tf.train.Checkpoint(v=value), str(tmp_path), max_to_keep=1, step_counter=step)
  left = list(range(moments))

  def save(number):
    value.assign(float(number))
    training.save(number)

  def replace(number):
    if left:
      left.pop()
      save(number + 1)

  save(1)
  restored = tf.Variable(0.0)
  evaluation = _Racing(tf.train.Checkpoint(v=restored), str(tmp_path), step_counter=step, trains=False, replace=replace)
  assert evaluation.restore_or_initialize() == f'{tmp_path}/ckpt-{1 + moments}'
  assert restored.numpy() == 1.0 + moments
  assert not list(tmp_path.glob('*.broken*'))
