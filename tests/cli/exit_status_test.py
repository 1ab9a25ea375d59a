"""How a run ends: the exit status, one line, the gin configuration."""

import official_ext  # noqa: F401  Before tensorflow.

# isort: split
import inspect
import re
import tempfile

from absl import app  # noqa: F401  Defines --pdb_post_mortem.
from absl import flags
from absl import logging
import gin
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.cli import exit_status
from official_ext.cli import flags as ext_flags
from official_ext.cli import train
from official_ext.training.record import run_record


def end_with(error):

  def main(argv):
    assert argv == ['train.py']
    if error is not None:
      raise error

  return train.run_main(main, ['train.py'])


FORESEEN = [
  (errors.UserError('trainer.train_step: no such field'), 2, 'error: trainer.train_step: no such field'),
  (errors.StateError('runs/a: has finished; extend it'), 4, 'error: runs/a: has finished; extend it'),
  (errors.DivergedError('11 updates were skipped'), 3, 'error: 11 updates were skipped'),
  (errors.PreemptedError('SIGTERM: stopped at step 7'), 75, 'preempted: SIGTERM: stopped at step 7'),
  # gin adds to the message of exceptions that pass through a configurable.
  (errors.UserError('first\n  In call to configurable "create_trainer"'), 2, 'error: first'),
  (KeyboardInterrupt(), 1, 'error: interrupted'),
]


@pytest.mark.parametrize('error, status, line', FORESEEN, ids=[line for _, _, line in FORESEEN])
def test_what_is_foreseen_is_one_line(error, status, line, capsys):
  assert end_with(error) == status
  assert capsys.readouterr() == ('', line + '\n')


def test_an_end_without_error(capsys):
  assert end_with(None) == 0
  assert capsys.readouterr() == ('', '')


@pytest.fixture
def run_flags(tmp_path):
  """run_flags(*flags): the command line, with a --model_dir that exists."""
  ext_flags.define_flags()

  def parse(*arguments):
    ext_flags.parse(['train.py', '--mode=train', f'--model_dir={tmp_path}', *arguments])

  yield parse
  verbosity = logging.get_verbosity()
  ext_flags.parse(['train.py'])
  for name in ('verbosity', 'pdb_post_mortem'):
    flags.FLAGS[name].unparse()
  logging.set_verbosity(min(verbosity, logging.WARNING))


def test_anything_else_is_one_line_that_names_the_file_with_the_traceback(run_flags, tmp_path, capsys):
  run_flags()
  assert end_with(RuntimeError('out of luck')) == 1
  path = tmp_path / 'traceback.txt'
  line = f'error: tests/cli/exit_status_test.py:{line_of("raise error")}: RuntimeError: out of luck'
  assert capsys.readouterr() == ('', f'{line}; the traceback is in {path}\n')
  assert path.read_text().count('Traceback (most recent call last)') == 1 and '--verbosity=0' in path.read_text()


@pytest.mark.parametrize(
  'argument, config, name',
  [
    ('--mode=eval', '', 'traceback.eval.txt'),
    ('--mode=train', '{"task": {"type": "worker", "index": 1}}', 'traceback.worker-1.txt'),
  ],
)
def test_processes_in_one_folder_keep_their_own_tracebacks(run_flags, tmp_path, monkeypatch, argument, config, name):
  monkeypatch.setenv('TF_CONFIG', config)
  ext_flags.parse(['train.py', argument, f'--model_dir={tmp_path}'])
  assert end_with(RuntimeError('out of luck')) == 1
  assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_writes_nothing_to_model_dir_leaves_no_traceback_there(run_flags, tmp_path, monkeypatch, capsys):
  folder = tmp_path / 'temporary'
  folder.mkdir()
  monkeypatch.setattr(tempfile, 'tempdir', str(folder))
  run_flags('--debug')
  assert end_with(RuntimeError('out of luck')) == 1
  assert [path.name for path in tmp_path.iterdir()] == ['temporary']
  assert f'the traceback is in {folder}/traceback-' in capsys.readouterr().err


def test_verbosity_asks_for_the_traceback(run_flags, capsys):
  run_flags('--verbosity=0')
  assert end_with(RuntimeError('out of luck')) == 1
  lines = capsys.readouterr().err.splitlines()
  assert lines[0] == 'Traceback (most recent call last):' and lines[-1].startswith('error: ')


def test_the_debugger_is_absls(run_flags):
  run_flags('--pdb_post_mortem')
  with pytest.raises(RuntimeError):  # Which absl.app.run takes.
    end_with(RuntimeError('out of luck'))


def line_of(code):
  (number,) = [number for number, line in enumerate(inspect.getsource(end_with).splitlines()) if line.strip() == code]
  return inspect.getsourcelines(end_with)[1] + number


@pytest.mark.parametrize('code, status', [(5, 5), (True, 1), ('no data', 1)])
def test_a_task_that_exits_keeps_its_status_and_is_named(code, status, capsys):
  assert end_with(SystemExit(code)) == status
  assert re.fullmatch(
    rf'error: \S+exit_status_test.py:\d+: ended the run by sys.exit\({code!r}\)\n', capsys.readouterr().err
  )


def test_a_task_that_ends_the_process_has_not_finished(capsys):
  # Before: status 0, as of a run that has finished.
  for end in (SystemExit(), SystemExit(0)):
    assert end_with(end) == 1
    assert ': ended the run by sys.exit(' in capsys.readouterr().err


@gin.configurable
def dish(salt=1):
  return salt


@pytest.fixture
def one_device():
  dish()  # Called functions are in the operative configuration.
  return tf.distribute.OneDeviceStrategy('CPU:0')


@pytest.mark.parametrize('error', [None, RuntimeError('out of luck'), errors.DivergedError('x'), KeyboardInterrupt()])
def test_the_gin_configuration_is_saved_however_a_run_ends(error, one_device, tmp_path):
  # Stock: saved only after success.
  try:
    with exit_status.saving_gin_config('train', str(tmp_path), one_device):
      if error:
        raise error
  except BaseException as raised:
    assert raised is error
  assert 'dish.salt = 1' in (tmp_path / 'operative_config.train.gin').read_text()


def test_the_gin_configuration_has_no_password(one_device, tmp_path):
  with gin.unlock_config():
    gin.parse_config('dish.salt = "http://user:PW@host"')
  dish()
  with exit_status.saving_gin_config('train', str(tmp_path), one_device):
    pass
  gin.clear_config()
  assert "dish.salt = 'http://user:***@host'" in (tmp_path / 'operative_config.train.gin').read_text()


def test_a_run_that_was_refused_leaves_nothing(one_device, tmp_path):
  with pytest.raises(errors.UserError):
    with exit_status.saving_gin_config('train', str(tmp_path / 'run'), one_device):
      raise errors.UserError('no')
  assert not (tmp_path / 'run').exists()


def test_a_mistake_that_shows_in_the_middle_of_a_run_is_no_refusal(one_device, tmp_path):
  record = run_record.RunRecord(str(tmp_path), 'train', 8, 0, 'CPU:0', True)
  record.update(stage='train', step=1)
  with pytest.raises(errors.UserError):
    with exit_status.saving_gin_config('train', str(tmp_path), one_device):
      raise errors.UserError('record 7 is broken')
  assert 'dish.salt = 1' in (tmp_path / 'operative_config.train.gin').read_text()


def test_what_ended_the_run_is_reported_where_the_folder_cannot_be_written(one_device, tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(RuntimeError, match='out of luck'):
    with exit_status.saving_gin_config('train', str(tmp_path / 'file/run'), one_device):
      raise RuntimeError('out of luck')
