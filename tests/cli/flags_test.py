"""The command line: one line for every mistake, status 2."""

import json
import os
import pathlib
import subprocess
import sys

from absl import flags
from official.core import exp_factory
import pytest

from official_ext.base import errors
from official_ext.base import model_garden_internals
from official_ext.cli import flags as ext_flags
from official_ext.training.config import parser
from official_ext.training.config import registries

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = ['--experiment=digits', '--mode=train', '--model_dir=/nowhere']


@pytest.fixture(autouse=True)
def defined_flags():
  ext_flags.define_flags()
  yield
  ext_flags.parse(['train.py'])


def test_values_arrive():
  assert ext_flags.parse_flags(
    ['train.py', *COMMAND, '--set=a=1', '--set', 'b=2', '--config_file=x', '--config_file=y', '--registry=m']
  ) == ['train.py']
  values = flags.FLAGS
  assert (values.experiment, values.mode, values.model_dir) == ('digits', 'train', '/nowhere')
  assert values['set'].value == ['a=1', 'b=2']
  assert (values.config_file, values.registry, values.dry_run, values.checkpoint) == (['x', 'y'], ['m'], False, None)


def test_each_command_line_starts_afresh():
  ext_flags.parse_flags(['train.py', *COMMAND, '--set=a=1', '--tpu=x'])
  ext_flags.parse_flags(['train.py', *COMMAND])
  assert flags.FLAGS['set'].value is None and flags.FLAGS.tpu is None


@pytest.mark.parametrize('mode', ext_flags.MODES)
def test_modes(mode):
  ext_flags.parse_flags(['train.py', '--experiment=digits', f'--mode={mode}', '--model_dir=/nowhere'])
  assert flags.FLAGS.mode == mode


def test_a_dry_run_needs_neither_mode_nor_folder():
  ext_flags.parse_flags(['train.py', '--experiment=digits', '--dry_run'])
  assert flags.FLAGS.dry_run


BAD = [
  (['--mode=train', '--model_dir=d'], '--experiment: must be given'),
  (
    ['--experiment=digits', '--model_dir=d'],
    '--mode: must be given: one of train, eval, train_and_eval, continuous_eval, train_and_post_eval',
  ),
  (['--experiment=digits', '--mode=train'], '--model_dir: must be given'),
  (['--experiment=', '--mode=train', '--model_dir=d'], '--experiment: must be given'),
  (
    ['--experiment=digits', '--mode=test', '--model_dir=d'],
    '--mode=test: value should be one of <train|eval|train_and_eval|continuous_eval|train_and_post_eval|export>',
  ),
  # Model Garden's flag parser accepts these, and does not implement them.
  ([*COMMAND, '--mode=train_and_validate'], '--mode=train_and_validate: '),
  (['--mode=continuous_train_and_eval', '--experiment=digits'], '--mode=continuous_train_and_eval: value should be'),
  ([*COMMAND, '--expriment=x'], '--expriment: no such flag; did you mean --experiment?'),
  ([*COMMAND, '--learning_rate=0.1'], '--learning_rate: no such flag; fields are set by --set=learning_rate=VALUE'),
  ([*COMMAND, '--zzz=x'], '--zzz: no such flag; --help lists the flags'),
  ([*COMMAND, '--experiment=digits'], '--experiment=digits: given twice, digits before'),
  ([*COMMAND, '--model_dir=e'], '--model_dir=e: given twice, /nowhere before'),
  ([*COMMAND, '--params_override=a=1', '--params_override=b=1'], '--params_override=b=1: given twice, a=1 before'),
  ([*COMMAND, '--dry_run', '--nodry_run'], '--dry_run=false: given twice'),
  ([*COMMAND, '--dry_run=maybe'], '--dry_run=maybe: '),
  ([*COMMAND, '--params_override'], 'Missing value for flag --params_override'),
  ([*COMMAND, 'trainer.train_steps=5'], 'trainer.train_steps=5: not a flag; flags are written --NAME=VALUE'),
  ([*COMMAND, '--tfhub_handle=x'], '--tfhub_handle: nothing reads this flag'),
  ([*COMMAND, '--dry_run', '--debug'], '--debug: not together with --dry_run'),
  ([*COMMAND, '--debug_step=3'], '--debug_step: only --debug reads it'),
  ([*COMMAND, '--branch'], '--branch: needs --checkpoint and a --mode that trains'),
  (['--experiment=digits', '--model_dir=d', '--mode=eval', '--branch', '--checkpoint=c'], '--branch: needs'),
  ([*COMMAND, '--profile_steps=2,4', '--debug'], '--profile_steps: needs a --mode that trains'),
  (['--experiment=digits', '--model_dir=d', '--mode=eval', '--profile_steps=2,4'], '--profile_steps: needs a --mode'),
]


@pytest.mark.parametrize('arguments, start', BAD, ids=[' '.join(arguments)[-60:] for arguments, _ in BAD])
def test_a_mistake_is_one_line_and_status_2(arguments, start, capsys):
  with pytest.raises(SystemExit) as info:
    ext_flags.parse_flags(['train.py', *arguments])
  assert info.value.code == 2
  out, err = capsys.readouterr()
  assert err.startswith(f'error: {start}') and err.endswith('\n') and err.count('\n') == 1 and not out


def test_registries_are_imported_from_the_current_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', list(sys.path))
  (tmp_path / 'flags_test_registry.py').write_text('LOADED = True\n')
  registries.import_registries(['flags_test_registry'])
  assert sys.modules.pop('flags_test_registry').LOADED


_REGISTERING = 'import official_ext as ext\n@ext.register_experiment({!r})\ndef experiment():\n  return None\n'
_OTHER = 'flags_test/other'


@pytest.mark.parametrize(
  ('code', 'message'),
  [
    ('', 'flags_test_a was imported, and registers no experiment; decorate a function that .*@ext.register_experiment'),
    (_REGISTERING.format(_OTHER), f'flags_test_a was imported, and registers {_OTHER}; `official-ext list` shows all$'),
    ('import flags_test_b', f'flags_test_a was imported, and registers {_OTHER}; `official-ext list` shows all$'),
  ],
)
def test_a_registry_without_the_experiment_is_named_with_those_that_it_registers(code, message, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', [*sys.path, str(tmp_path)])
  monkeypatch.setattr(registries, '_REGISTERED', {})
  (tmp_path / 'flags_test_a.py').write_text(code)
  (tmp_path / 'flags_test_b.py').write_text(_REGISTERING.format(_OTHER))
  try:
    for _ in range(2):  # Imported before, as in a process that serves several commands.
      with pytest.raises(
        errors.UserError, match=f'--experiment=flags_test: no such experiment; .*--registry={message}'
      ):
        registries.import_experiments(['flags_test_a'], 'flags_test')
      registries._REGISTERED.clear()
    if code:
      registries.import_experiments(['flags_test_a'], _OTHER)
  finally:
    # The other experiments stay: their modules, imported here, will not register them again.
    model_garden_internals.registered_configs().pop(_OTHER.partition('/')[0], None)
    for name in ('flags_test_a', 'flags_test_b'):
      sys.modules.pop(name, None)


@pytest.mark.parametrize(
  'code, reason',
  [
    (None, "ModuleNotFoundError: No module named 'flags_test_broken'"),
    ('import flags_test_no_such_module', "ModuleNotFoundError: No module named 'flags_test_no_such_module'"),
    ('def f(:', 'SyntaxError: '),
    (
      'from official.core import exp_factory as factory\n'
      'for _ in range(2):\n'
      '  factory.register_config_factory("flags_test")(int)\n',
      "KeyError: 'Function or class flags_test registered multiple times.'",
    ),
  ],
)
def test_a_registry_that_cannot_be_imported(code, reason, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', list(sys.path))
  monkeypatch.setattr(exp_factory, '_REGISTERED_CONFIGS', {})
  if code is not None:
    (tmp_path / 'flags_test_broken.py').write_text(code)
  with pytest.raises(errors.UserError) as info:
    registries.import_registries(['flags_test_broken'])
  assert str(info.value).startswith(f'--registry=flags_test_broken: cannot be imported: {reason}')
  assert '\n' not in str(info.value)


def install(folder, name, code):
  """An installed package with the entry point, as pip leaves it."""
  (folder / f'{name}.py').write_text(code)
  info = folder / f'{name}-1.0.dist-info'
  info.mkdir()
  (info / 'METADATA').write_text(f'Metadata-Version: 2.1\nName: {name.replace("_", "-")}\nVersion: 1.0\n')
  (info / 'entry_points.txt').write_text(f'[official_ext.experiments]\nplugin = {name}\n')


def test_entry_points_register_experiments(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, 'path', [str(tmp_path), *sys.path])
  install(tmp_path, 'flags_test_plugin', 'LOADED = True\n')
  registries.import_registries()
  assert sys.modules.pop('flags_test_plugin').LOADED


def test_a_broken_package_is_named_and_left_out(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(sys, 'path', [str(tmp_path), *sys.path])
  install(
    tmp_path,
    'flags_test_broken_plugin',
    'from official.core import exp_factory\nimport flags_test_part\n'
    'def half():\n  pass\n'
    'exp_factory.register_config_factory("flags_test_half")(half)\nraise RuntimeError("two\\nlines")\n',
  )
  (tmp_path / 'flags_test_part.py').write_text(
    'from official.core import exp_factory\n'
    'def whole():\n  pass\n'
    'exp_factory.register_config_factory("flags_test/whole")(whole)\n'
  )
  install(tmp_path, 'flags_test_sound_plugin', 'LOADED = True\n')
  registries.import_registries()
  assert sys.modules.pop('flags_test_sound_plugin').LOADED
  assert 'flags_test_half' not in exp_factory._REGISTERED_CONFIGS
  assert 'flags_test/whole' in parser.experiment_names()  # Python has its module, and would not run it again.
  assert capsys.readouterr().err == (
    'warning: the installed package flags-test-broken-plugin: its entry point=flags_test_broken_plugin: cannot be '
    f'imported: RuntimeError: two lines ({tmp_path}/flags_test_broken_plugin.py, line 6)\n'
  )


PROGRAM = """
import json, sys
from official_ext.base import model_garden_internals as internals
from official_ext.training.config import parser, registries
registries.import_experiments(experiment='digits_mlp')
lacks = [name for name in ('official.vision', 'official.nlp.tasks') if name in sys.modules]
before, in_source = set(parser.experiment_names()), internals.experiments_in_source()
registries.import_experiments(experiment='resnet_imagenet')
added = set(parser.experiment_names()) - before
print(json.dumps([lacks, 'digits_mlp' in before, sorted(added ^ in_source)]))
"""


@pytest.mark.slow
def test_an_experiment_of_ours_imports_none_of_model_gardens_and_one_of_theirs_does():
  """The names that Model Garden registers are those in its sources."""
  environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
  done = subprocess.run([sys.executable, '-c', PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert json.loads(done.stdout.splitlines()[-1]) == [[], True, []]
