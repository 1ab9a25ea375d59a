"""official-ext list, describe, check."""

import official_ext

# isort: split
import argparse
import contextlib
import dataclasses
import errno
import functools
import os
import pathlib
import re
import subprocess
import sys
import types
from unittest import mock

from official.core import exp_factory
from official.modeling.hyperparams import base_config
from official.vision.configs import image_classification
import pytest

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import describe
from official_ext.cli import experiments
from official_ext.cli import flags as ext_flags
from official_ext.cli import main as cli
from official_ext.training.config import overrides
from official_ext.training.config import parser
import registry_imports  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(capsys, *arguments):
  status = cli.main(arguments)
  out, err = capsys.readouterr()
  return status, out, err


def test_the_version_is_that_of_the_package(capsys):
  assert run(capsys, '--version') == (0, f'official_ext {official_ext.__version__}\n', '')
  assert '--version' in run(capsys, '--help')[1]


def test_list_shows_every_experiment_with_what_it_is(capsys):
  status, out, _ = run(capsys, 'list')
  assert status == 0
  lines = out.splitlines()
  assert [line.split()[0] for line in lines] == parser.experiment_names()
  (resnet,) = (line for line in lines if line.startswith('resnet_imagenet '))
  assert 'Image classification on imagenet with resnet.' in resnet
  assert any(line.startswith('digits ') for line in lines)


def test_describe_shows_every_field(capsys):
  status, out, _ = run(capsys, 'describe', 'digits')
  assert status == 0
  assert out.startswith('digits\n')
  lines = out.splitlines()
  where = lines.index('trainer.train_steps: int = 600  [train_steps, max_steps]')
  assert lines[where + 1] == '    number of train steps.'
  where = lines.index('trainer.nonfinite.max_skips: int = 10')
  assert lines[where + 1].startswith('    How many such steps are allowed')
  learning_rate = 'trainer.optimizer_config.learning_rate.cosine.initial_learning_rate'
  assert f'{learning_rate}: float or null = 0.002  [learning_rate]' in lines
  where = lines.index('trainer.optimizer_config.optimizer.type: str or null = adamw_experimental  [optimizer]')
  assert lines[where + 1].startswith('    One of sgd, sgd_experimental, adam, ')
  # Fields that nothing reads, and those not selected.
  assert 'runtime.worker_hosts' not in out and 'optimizer.sgd.' not in out


def test_describe_takes_overrides_and_writes_a_config_file(capsys, tmp_path):
  status, out, _ = run(
    capsys, 'describe', 'resnet_imagenet', '--yaml', '--set=learning_rate=0.1', '--set=schedule=constant'
  )
  assert status == 0
  path = tmp_path / 'params.yaml'
  path.write_text(out)
  flags_obj = types.SimpleNamespace(experiment='resnet_imagenet', config_file=[str(path)])
  params = parser.parse_configuration(flags_obj)
  assert params.trainer.optimizer_config.learning_rate.constant.learning_rate == 0.1
  assert config_text.dump(params.as_dict()) == out


def _is_unread(params, path):
  """Whether a field, or its parent, is one that nothing reads."""
  owner = params
  for name in path.split('.'):
    if name in getattr(type(owner), 'UNREAD_FIELDS', {}):
      return True
    owner = owner[int(name)] if name.isdigit() else getattr(owner, name)
  return False


@pytest.mark.slow
def test_all_experiments_can_be_described():
  for name in parser.experiment_names():
    if not parser.factory_of(name).__module__.startswith(('official.', 'experiments.')):
      continue
    params = parser.parse_configuration(types.SimpleNamespace(experiment=name))
    described = {line.partition(': ')[0] for line in describe.field_lines(params, name)}
    for field in overrides.leaves(params):
      if not _is_unread(params, field.path):
        assert field.path in described, (name, field.path)


def test_check_is_a_dry_run(capsys, monkeypatch):
  calls = []
  monkeypatch.setitem(sys.modules, 'official_ext.training.diagnosis.dry_run', types.SimpleNamespace(run=calls.append))
  assert run(capsys, 'check', 'digits', '--set=batch_size=16')[0] == 0
  (params,) = calls
  assert params.task.train_data.global_batch_size == 16


@pytest.mark.soak
def test_check_runs_the_experiment_once(capsys, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(ROOT))
  status, out, _ = run(capsys, 'check', 'digits_mlp', '--set=batch_size=16', '--set=runtime.enable_xla=false')
  assert status == 0
  names = [re.split('  +', line)[0] for line in out.splitlines()]
  assert names == [
    'devices',
    'task',
    'model',
    'optimizer',
    'step',
    'train step',
    'eval step',
    'checkpoint',
    'would',
    'mistakes',
  ]
  assert 'DigitsMlpTask' in out and 'train 2000 steps of 16 examples' in out
  assert not list(tmp_path.iterdir())


def test_check_finds_what_only_a_run_can_show(capsys):
  status, _, err = run(
    capsys,
    'check',
    'digits_mlp',
    '--set=trainer.best_checkpoint_export_subdir=best',
    '--set=trainer.best_checkpoint_eval_metric=acuracy',
  )
  assert status == 2
  assert err == (
    'error: trainer.best_checkpoint_eval_metric: acuracy: did you mean accuracy? DigitsMlpTask reports accuracy, '
    'validation_loss\n'
  )


BAD = [
  (['lst'], 'lst: no such command; did you mean list? there are train, list, describe, new, check'),
  (['zzz'], 'zzz: no such command; there are train, list'),
  (['describe'], 'the name of an experiment must follow the command; `official-ext list` shows them'),
  (['describe', '--yaml'], 'the name of an experiment must follow the command'),
  (['describe', 'digts'], '--experiment=digts: no such experiment; did you mean digits'),
  (['describe', 'digits', '--set=batch_sise=3'], 'batch_sise: no such field or short name; did you mean batch_size?'),
  (['describe', 'digits', '--yml'], 'describe: --yml: no such flag; did you mean --yaml? '),
  (['describe', 'digits', '--zzz'], '--zzz: no such flag'),
  (['check', 'digits', '--config_file=nowhere.yaml'], '--config_file=nowhere.yaml: no such file'),
  (['check', 'digits_mlp', '--set=trainer.writers=[tensorbord]'], "trainer.writers: no writer 'tensorbord'; "),
  (['check', 'digits_mlp', '--set=trainer.writers=[csv]', '--set=trainer.inspect.every=5'], 'trainer.inspect.every:'),
  (['describe', 'digits_mlp', '--set=hidden=3'], 'hidden: no such field or short name; did you mean task.model.hid'),
  (['list', '--registry=no_such_module'], '--registry=no_such_module: cannot be imported'),
]


@pytest.mark.parametrize('arguments, start', BAD, ids=[' '.join(arguments) for arguments, _ in BAD])
def test_a_mistake_is_one_line_and_status_2(arguments, start, capsys):
  status, out, err = run(capsys, *arguments)
  assert status == errors.UserError.exit_status == 2
  assert err.startswith(f'error: {start}') and err.count('\n') == 1 and not out


@pytest.mark.slow
def test_a_reader_may_stop_early(train_server, tmp_path):
  output, error = tmp_path / 'output', tmp_path / 'error'
  os.mkfifo(output)
  process = train_server().start(['describe', 'digits'], output, error, script=pathlib.Path(cli.__file__))
  with open(output) as reader:
    assert reader.readline() == 'digits\n'
  assert (process.wait(timeout=120), error.read_text()) == (0, '')


def test_help(capsys):
  assert run(capsys)[0] == 2
  for arguments in (['--help'], ['help'], ['describe', '-h']):
    status, out, _ = run(capsys, *arguments)
    assert status == 0 and out.startswith('Usage:')


def test_meanings_come_from_the_docstrings_of_a_class_and_its_bases():
  params = exp_factory.get_exp_config('resnet_imagenet')
  docs = describe.attribute_docs(type(params.task.train_data))
  assert isinstance(params.task.train_data, image_classification.DataConfig)
  assert docs['global_batch_size'] == 'The global batch size across all replicas.'
  # A meaning that takes several lines, with a colon in them.
  assert docs['tf_data_service_address'].endswith('`FLAGS.tf_data_service` flag in the binary.')
  assert 'e.g' not in docs


@dataclasses.dataclass
class CommentedConfig(base_config.Config):
  """Fields with and without comments.

  Attributes:
    documented: The text of the docstring.
  """

  documented: int = 0  # The text of a comment.
  # Several fields.
  first: int = 0
  # What the second one is,
  # in two lines.
  second: int = 0
  # fmt: off
  third: int = 0  # The third,
                  # and how it continues.
  fourth: tuple[int, ...] = (
      1, 2)  # At the end of several lines.
  # fmt: on
  fifth: int = 0  # pylint: disable=invalid-name
  # This is true for now.
  # TODO(someone): Think again
  # about it.
  sixth: int = 0

  # Too far away to be about it.

  seventh: int = 0


def test_meanings_come_from_comments_where_the_docstring_has_none():
  assert describe.attribute_docs(CommentedConfig) == {
    'documented': 'The text of the docstring.',
    'second': 'What the second one is, in two lines.',
    'third': 'The third, and how it continues.',
    'fourth': 'At the end of several lines.',
    'sixth': 'This is true for now.',
  }
  params = exp_factory.get_exp_config('resnet_imagenet')
  assert describe.attribute_docs(type(params.task))['init_checkpoint_modules'] == 'all or backbone'


def test_describe_prints_no_password(capsys):
  uri = '--set=trainer.mlflow.tracking_uri=http://user:PW@host'
  status, out, err = run(capsys, 'describe', 'digits', uri)
  assert status == 0 and 'http://user:***@host' in out and 'PW' not in out + err
  status, out, err = run(capsys, 'describe', 'digits', '--set=http://user:PW@host=5', uri)
  assert status == 2 and 'PW' not in out + err


def test_official_ext_reports_all_mistakes_at_once(capsys):
  status, _, err = run(capsys, 'describe', 'digits', '--set=learning_rate=-1', '--set=nothing=5')
  assert status == 2
  assert [line.split(': ')[:2] for line in err.splitlines()] == [
    ['error', 'nothing'],
    ['error', 'trainer.optimizer_config.learning_rate.cosine.initial_learning_rate'],
  ]


ENDS = [
  (SystemExit(0), 1, r'\S+main_test.py:\d+: ended the run by sys.exit\(0\)'),
  (KeyboardInterrupt(), 1, 'interrupted'),
  (errors.CheckpointError('ckpt-5: cannot be read'), 1, 'ckpt-5: cannot be read'),
  (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), '/a/file'), 1, '/a/file: No space left on device'),
]


@pytest.mark.parametrize('error, status, line', ENDS, ids=[type(error).__name__ for error, _, _ in ENDS])
def test_a_command_ends_as_a_run_does(error, status, line, capsys, monkeypatch):

  def end(params):
    raise error

  monkeypatch.setitem(sys.modules, 'official_ext.training.diagnosis.dry_run', types.SimpleNamespace(run=end))
  returned, _, err = run(capsys, 'check', 'digits')
  assert returned == status and re.fullmatch(f'error: {line}\n', err), err


@pytest.mark.parametrize('command', ['list', 'describe', 'new', 'check', 'export', 'convert', 'generate', 'chat'])
def test_each_command_has_its_own_help(command, capsys):
  for arguments in ([command, '--help'], [command, 'digits', '-h'], ['help', command]):
    status, out, _ = run(capsys, *arguments)
    assert status == 0 and out.startswith(f'Usage: official-ext {command} ')
  _, out, _ = run(capsys, '--help')
  assert f'\n  official-ext {command} ' in out


def _arguments_without_help(parser):
  for action in parser._actions:
    if isinstance(action, argparse._SubParsersAction):
      for command in action.choices.values():
        yield from _arguments_without_help(command)
    elif not action.help:
      yield f'{parser.prog}: {action.dest}'


def test_each_argument_of_each_command_has_a_help(capsys, monkeypatch):
  parsers = []
  format_help = arguments_lib.Parser.format_help
  monkeypatch.setattr(arguments_lib.Parser, 'format_help', lambda self: [parsers.append(self), format_help(self)][1])
  commands = set(cli._COMMANDS) - {'train'}  # Its arguments are absl's flags, which cannot be without a help.
  for command in commands:
    status, out, _ = run(capsys, command, '--help')
    assert status == 0 and all(len(line) <= 120 for line in out.splitlines()), command
  assert {parser.prog.split()[1] for parser in parsers} == commands
  assert [name for parser in parsers for name in _arguments_without_help(parser)] == []


def test_the_help_names_flags_that_exist(capsys):
  out = run(capsys, 'check', '--help')[1]
  assert set(re.findall(r'--(\w+)', out)) <= set(ext_flags._NAMES)
  for page in (out, run(capsys, '--help')[1]):
    assert all(len(line) <= 120 for line in page.splitlines())


REGISTRY = """
import pathlib
from official.core import exp_factory
from experiments.digits_mlp import configs
for name in (pathlib.Path(__file__).parent / 'names.txt').read_text().split():
  exp_factory.register_config_factory(name)(configs.digits_mlp)
"""


PROGRAM = (
  'import sys; from official_ext.cli import main; status = main.main(); '
  'print(status, "tensorflow" in sys.modules, file=sys.stderr)'
)


def process(folder, cache, *arguments):
  """The lines that a separate process prints, and '<status> <whether it has imported TensorFlow>'."""
  environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'XDG_CACHE_HOME': str(cache)}
  done = subprocess.run(
    [sys.executable, '-c', PROGRAM, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True
  )
  return done.stdout.splitlines(), done.stderr.splitlines()[-1]


def test_a_reader_that_is_gone_ends_the_help_without_a_traceback():
  reader, writer = os.pipe()
  os.close(reader)
  command = [sys.executable, '-m', 'official_ext.cli.main', '--help']
  done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
  os.close(writer)
  assert (done.returncode, done.stderr) == (0, b'')


def test_help_does_not_import_tensorflow(tmp_path):
  for arguments in (['--help'], ['check', '--help'], ['export', '--help'], ['data_service', '--help'], ['new', '-h']):
    assert process(tmp_path, tmp_path, *arguments)[1] == '0 False'


@pytest.mark.parametrize('command', ['generate --prompt=a', 'chat --top_k=x', 'convert to --dtype=float8'])
def test_mistakes_in_the_flags_of_a_model_folder_do_not_import_tensorflow(command, tmp_path):
  assert process(tmp_path, tmp_path, *command.split(), 'nowhere')[1] == '2 False'


@pytest.mark.soak
def test_a_second_list_or_describe_does_not_import_tensorflow_and_a_change_is_seen(tmp_path):
  """With a registry that reads a file."""
  folder = tmp_path / 'folder'
  folder.mkdir()
  (folder / 'my_registry.py').write_text(REGISTRY)
  (folder / 'names.txt').write_text('mine')
  (folder / 'registry_imports.py').write_text('')
  command = functools.partial(process, folder, tmp_path / 'cache')
  arguments = ('list', '--registry=my_registry')
  first, summary = command(*arguments)
  names = lambda lines: {line.split()[0] for line in lines if line.strip()}
  assert summary == '0 True' and {'digits_mlp', 'mine'} <= names(first)
  assert command(*arguments) == (first, '0 False')
  (folder / 'names.txt').write_text('mine ours')
  changed, summary = command(*arguments)
  assert summary == '0 True' and names(changed) == names(first) | {'ours'}
  for flags in ([], ['--yaml']):
    first, summary = command('describe', 'ours', '--registry=my_registry', *flags)
    assert summary == '0 True' and first[0] == ('task:' if flags else 'ours'), first[:2]
    assert command('describe', 'ours', '--registry=my_registry', *flags) == (first, '0 False')
  (folder / 'names.txt').write_text('mine')
  assert command('describe', 'ours', '--registry=my_registry')[1] == '2 True'


@contextlib.contextmanager
def new_process():
  """The cache sees a process that has imported nothing, and no folder that other tests write into meanwhile."""
  seen = {name: getattr(sys, name) for name in ('version', 'prefix', 'base_prefix', 'addaudithook')}
  with mock.patch.object(experiments, 'sys', types.SimpleNamespace(**seen, modules={}, path=[])):
    yield


def test_what_was_described_before_is_printed_again_if_no_value_or_file_is_asked_for(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  with new_process():
    for flags in ([], ['--yaml'], ['--set=learning_rate=1.0']):
      experiments.ExperimentCache('describe', ['digits', *flags]).write(['kept'], 'no.such.group')
    for flags in ([], ['--yaml']):
      assert run(capsys, 'describe', 'digits', *flags) == (0, 'kept\n', '')
  for flags in ([], ['--set=learning_rate=1.0']):
    assert run(capsys, 'describe', 'digits', *flags)[1].startswith('digits\n  ')


@pytest.mark.parametrize('path, module', [('x.py', 'x'), ('./my/tasks.py', 'my.tasks'), ('my/tasks', 'my.tasks')])
def test_a_path_for_a_registry_gets_a_suggestion(path, module, capsys):
  status, _, err = run(capsys, 'list', f'--registry={path}')
  assert status == 2
  assert err == (
    f'error: --registry={path}: is a path; a module is named as in an import; did you mean --registry={module}?\n'
  )


@new_process()
def test_a_cache_that_cannot_be_read_or_written_is_no_mistake(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  cache = experiments.ExperimentCache('list', ['a'])
  assert cache.read() is None
  cache.write(['a', 'b'], 'no.such.group')
  assert cache.read() == ['a', 'b'] and experiments.ExperimentCache('list', ['other']).read() is None
  (path,) = (tmp_path / 'official_ext').iterdir()
  for damage in ('', '{}', '[1]', '{"states": [], "lines": 3}'):
    path.write_text(damage)
    assert cache.read() is None
  monkeypatch.setenv('XDG_CACHE_HOME', str(path))  # A file.
  experiments.ExperimentCache('list', []).write(['a'], 'no.such.group')
