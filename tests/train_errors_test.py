"""Every mistake of a user ends train.py with one line on stderr, exit status 2, and nothing written."""

import sys

import gin
import pytest
import tf_keras

from official_ext.base import errors
from official_ext.cli import flags as ext_flags
from official_ext.cli import main
from official_ext.cli import train
from tests import tiers

METRIC = ('--set=trainer.best_checkpoint_export_subdir=best', '--set=trainer.best_checkpoint_eval_metric=acuracy')
TWO_REPLICAS = ('--set=runtime.distribution_strategy=mirrored', '--set=runtime.num_virtual_cpus=2')

# The open fields of BERT's registered experiments.
LENGTHS = tuple(f'--set={name}=5' for name in ('train_steps', 'decay_steps', 'warmup_steps'))

# The addition to the command, or the replaced part, and the text after `error: `. {tmp} is the test's
# folder, which holds `file`, `folder/`, `malformed.yaml`, `twice.yaml`, `list.yaml` and `misspelt.yaml`.
BAD = {
  # Types.
  'a word for an integer': (['--set=trainer.train_steps=abc'], "trainer.train_steps: expected int, got 'abc'"),
  'a fraction for an integer': (['--set=trainer.train_steps=1.5'], 'trainer.train_steps: expected int'),
  'yes for a boolean': (['--set=runtime.deterministic=yes'], 'runtime.deterministic: expected bool'),
  'a word for a number': (['--set=learning_rate=fast'], 'trainer.optimizer_config.learning_rate.constant.learning'),
  'a number for a section': (['--params_override=trainer=3'], 'trainer: '),
  'a list for a number': (
    ['--params_override={task: {train_data: {global_batch_size: [3]}}}'],
    'task.train_data.global_batch_size: expected int',
  ),
  # Bytes that are not UTF-8, as Python reads them from the command line.
  'a field that is not UTF-8': (['--set=task.init_checkpoint=/\udcff'], 'task.init_checkpoint: /\\udcff: is not UTF-8'),
  'a folder that is not UTF-8': (['--model_dir={tmp}/\udcff'], '--model_dir: {tmp}/\\udcff: is not UTF-8'),
  'a checkpoint that is not UTF-8': (['--checkpoint={tmp}/\udcff'], '--checkpoint: {tmp}/\\udcff: is not UTF-8'),
  # Names, at every depth.
  'misspelt section': (['--set=trainr.train_steps=5'], 'trainr: no such field; did you mean trainer?'),
  'misspelt field': (
    ['--set=trainer.train_step=5'],
    'trainer.train_step: no such field; did you mean trainer.train_steps?',
  ),
  'misspelt field of the task': (
    ['--params_override=task.train_data.global_batch_sise=8'],
    'task.train_data.global_batch_sise: no such field; did you mean task.train_data.global_batch_size?',
  ),
  'misspelt field five deep': (
    ['--set=trainer.optimizer_config.learning_rate.constant.lerning_rate=0.1'],
    'trainer.optimizer_config.learning_rate.constant.lerning_rate: no such field',
  ),
  'misspelt short name': (['--set=batchsize=5'], 'batchsize: no such field or short name; did you mean batch_size?'),
  'misspelt optimizer': (['--set=optimizer=adamm'], 'trainer.optimizer_config.optimizer.type: '),
  'a field that nothing reads': (['--set=runtime.run_eagerly=true'], 'runtime.run_eagerly: '),
  # Files.
  'missing file': (['--config_file={tmp}/nowhere.yaml'], '--config_file={tmp}/nowhere.yaml: no such file'),
  'folder for a file': (['--config_file={tmp}/folder'], '--config_file={tmp}/folder: '),
  'malformed YAML': (['--config_file={tmp}/malformed.yaml'], '--config_file={tmp}/malformed.yaml: '),
  'a list for a configuration': (['--config_file={tmp}/list.yaml'], '--config_file={tmp}/list.yaml: '),
  'a key twice': (['--config_file={tmp}/twice.yaml'], '--config_file={tmp}/twice.yaml: '),
  'misspelt in a file': (
    ['--config_file={tmp}/misspelt.yaml'],
    'trainer.train_step: no such field; did you mean trainer.train_steps? (in {tmp}/misspelt.yaml)',
  ),
  'a number for files': (
    ['--experiment=bert/sentence_prediction_text', *LENGTHS, '--mode=train', '--set=task.train_data.input_path=5'],
    'task.train_data.input_path: 5: No such',
  ),
  'a pattern without files': (
    ['--experiment=resnet_imagenet', '--mode=train', '--set=task.train_data.input_path={tmp}/*.tfrecord'],
    'task.train_data.input_path: {tmp}/*.tfrecord: no file matches this pattern',
  ),
  'a file system that is not there': (
    ['--model_dir=s3://bucket/run'],
    '--model_dir: s3://bucket/run: TensorFlow has no file system for s3:// here',
  ),
  'a name that is too long': (['--model_dir={tmp}/' + 'x' * 300], "--model_dir: 'xxx"),
  'a folder outside of the run': (
    ['--set=trainer.validation_summary_subdir=../../x'],
    "trainer.validation_summary_subdir: '../../x' is not a plain name",
  ),
  'URLs in the clear': (
    ['--set=trainer.notifications.urls=json://user:PW@host'],
    'trainer.notifications.urls: expected a list of str, got something else',
  ),
  'malformed override': (['--params_override={trainer: '], '--params_override'),
  # Ranges.
  'no steps': (['--set=trainer.train_steps=0'], 'trainer.train_steps: is 0, and mode train_and_eval trains'),
  'negative steps': (['--set=train_steps=-5'], 'trainer.train_steps: expected at least 0, got -5'),
  'no checkpoint interval': (['--set=trainer.checkpoint_interval=0'], 'trainer.checkpoint_interval: '),
  'no loop': (['--set=steps_per_loop=0'], 'trainer.steps_per_loop: expected at least 1, got 0'),
  'no validation interval': (['--set=trainer.validation_interval=0'], 'trainer.validation_interval: '),
  'no examples': (['--set=batch_size=0'], 'task.train_data.global_batch_size: expected at least 1, got 0'),
  'steps and epochs': (['--set=train_steps=5', '--set=train_epochs=2'], 'trainer.train_epochs: set either'),
  'unknown strategy': (['--set=runtime.distribution_strategy=miror'], 'runtime.distribution_strategy: '),
  'loss scale without float16': (['--set=runtime.loss_scale=dynamic'], 'runtime.loss_scale: '),
  'a negative learning rate': (
    ['--set=learning_rate=-1'],
    'trainer.optimizer_config.learning_rate.constant.learning_rate: expected at least 0',
  ),
  'a batch that no memory holds': (
    ['--set=batch_size=4611686018427387904'],
    'task.train_data.global_batch_size: expected at most 2147483647',
  ),
  'more than 64 bits': (
    ['--set=train_steps=999999999999999999999999999999'],
    'trainer.train_steps: 999999999999999999999999999999 does not fit',
  ),
  # Flags.
  'unknown experiment': (
    ['--experiment=digits_mpl'],
    '--experiment=digits_mpl: no such experiment; did you mean digits_mlp',
  ),
  'unknown mode': (['--mode=test'], '--mode=test: '),
  'mode twice': (['--mode=train', '--mode=eval'], '--mode=eval: given twice'),
  'unknown flag': (['--modl_dir=x'], '--modl_dir: no such flag; did you mean --model_dir?'),
  'no flag': (['digits'], 'digits: not a flag'),
  'no value': (['--set=train_steps'], '--set=train_steps: expected --set=NAME=VALUE'),
  'missing registry': (['--registry=no_such.module'], '--registry=no_such.module: cannot be imported'),
  'malformed gin': (['--gin_params=official_ext.Trainer.'], '--gin_file, --gin_params: '),
  'unknown gin parameter': (['--gin_params=official_ext.Trainer.nothing = 1'], '--gin_file, --gin_params: '),
  'missing gin file': (['--gin_file={tmp}/nowhere.gin'], '--gin_file, --gin_params: '),
  # Errors that only the task, the folder or the machine show.
  'metric that no task reports': (METRIC, 'trainer.best_checkpoint_eval_metric: acuracy: did you mean accuracy?'),
  'model_dir under a file': (['--model_dir={tmp}/file/run'], '--model_dir={tmp}/file/run: cannot be written'),
  'model_dir is a file': (['--model_dir={tmp}/file'], '--model_dir={tmp}/file: '),
  'model_dir under /proc': (['--model_dir=/proc/run'], '--model_dir=/proc/run: cannot be written'),
  'nothing to evaluate': (['--mode=eval'], '--mode=eval: there is no checkpoint in {tmp}/run'),
  'no such checkpoint': (['--checkpoint={tmp}/ckpt-7'], '--checkpoint={tmp}/ckpt-7: no such checkpoint'),
  'GPUs that are not there': (['--set=runtime.num_gpus=64'], 'runtime.num_gpus: requested 64, '),
  'a batch that replicas cannot share': ([*TWO_REPLICAS, '--set=batch_size=63'], 'task.train_data.global_batch_size: '),
}

# The same as real processes, as a separate process may behave differently.
BAD_PROCESSES = ['misspelt field', 'unknown mode', 'nothing to evaluate']


def command(arguments, folder):
  """The driver's arguments, `arguments` in place of those of the same name."""
  given = [argument.replace('{tmp}', str(folder)) for argument in arguments]
  names = {argument.partition('=')[0] for argument in given}
  defaults = ['--experiment=digits_mlp', '--mode=train_and_eval', f'--model_dir={folder}/run']
  return [default for default in defaults if default.partition('=')[0] not in names] + given


def fill(folder):
  """Makes the files that the table speaks of."""
  (folder / 'folder').mkdir()
  for name, text in {
    'file': '',
    'malformed.yaml': 'trainer: {train_steps: 5\n',
    'list.yaml': '- trainer\n',
    'twice.yaml': 'trainer: {train_steps: 5, train_steps: 6}\n',
    'misspelt.yaml': 'trainer:\n  train_step: 5\n',
  }.items():
    (folder / name).write_text(text)


def contents(folder):
  return sorted(folder.rglob('*'))


def error_lines(stderr):
  return [line for line in stderr.splitlines() if line.startswith('error: ')]


@pytest.fixture(autouse=True)
def clean_process():
  yield
  gin.clear_config()
  tf_keras.mixed_precision.set_global_policy('float32')


def drive(arguments):
  """Runs `python train.py ARGUMENTS` after its imports; returns the exit status."""
  ext_flags.define_flags()
  try:
    remaining = ext_flags.parse_flags(['train.py', *arguments])
  except SystemExit as end:
    return end.code
  return train.run_main(train.main, remaining)


@pytest.mark.parametrize('name', BAD)
def test_a_mistake_is_one_line(name, tmp_path, capfd):
  arguments, expected = BAD[name]
  fill(tmp_path)
  before = contents(tmp_path)
  status = drive(command(arguments, tmp_path))
  _, err = capfd.readouterr()
  assert status == errors.UserError.exit_status == 2, err
  (line,) = error_lines(err)
  assert line.startswith('error: ' + expected.replace('{tmp}', str(tmp_path)))
  assert 'Traceback' not in err
  assert contents(tmp_path) == before


def test_all_mistakes_are_reported_before_a_model_is_built(tmp_path, capfd):
  # Before: one at a time, and the files after BERT had been built.
  arguments = [
    '--experiment=bert/sentence_prediction',
    '--mode=train_and_eval',
    f'--model_dir={tmp_path}/run',
    *LENGTHS,
    '--set=task.train_data.input_path=nowhere',
    f'--set=task.validation_data.input_path={tmp_path}/*.x',
    '--set=learning_rate=-1',
    '--set=trainer.keep_every=-5',
    '--set=trainer.validation_summary_subdir=/x',
  ]
  assert drive(arguments) == 2
  err = capfd.readouterr().err
  assert [line.split(': ')[1] for line in error_lines(err)] == [
    'trainer.optimizer_config.learning_rate.polynomial.initial_learning_rate',
    'trainer.keep_every',
    'trainer.validation_summary_subdir',
    'task.train_data.input_path',
    'task.validation_data.input_path',
  ]
  assert 'Traceback' not in err and not contents(tmp_path)


def test_a_batch_that_replicas_cannot_share_is_one_line_for_model_gardens_tasks(tmp_path, capfd):
  # Before: 60 lines.
  (tmp_path / 'x.tfrecord').touch()
  arguments = [
    '--experiment=resnet_imagenet',
    '--mode=train_and_eval',
    f'--model_dir={tmp_path}/run',
    *TWO_REPLICAS,
    f'--set=task.train_data.input_path={tmp_path}/x.tfrecord',
    '--set=batch_size=63',
    f'--set=task.validation_data.input_path={tmp_path}/x.tfrecord',
    '--set=eval_batch_size=7',
  ]
  assert drive(arguments) == 2
  err = capfd.readouterr().err
  assert error_lines(err) == [
    'error: task.train_data.global_batch_size: 63 examples cannot be shared by 2 replicas; 62 or 64 can',
    'error: task.validation_data.global_batch_size: 7 examples cannot be shared by 2 replicas; 6 or 8 can',
  ]
  assert 'Traceback' not in err and not (tmp_path / 'run').exists()


@pytest.fixture
def module_that_exits(tmp_path, monkeypatch):
  """The folder of ends.py, which ends the process without a word, as a module."""
  (tmp_path / 'ends.py').write_text('import sys\n\nsys.exit(0)\n')
  monkeypatch.syspath_prepend(str(tmp_path))
  return tmp_path


EXIT = 'module ends ({tmp}/ends.py, line 3) calls sys.exit(0)'


@pytest.mark.parametrize('where', ['registry', 'gin', 'registry_imports', 'entry point'])
def test_a_module_that_ends_the_process_is_an_error_with_its_name(where, module_that_exits, capfd, monkeypatch):
  # Before: status 0, and not a word.
  folder = module_that_exits
  arguments = command({'registry': ['--registry=ends'], 'gin': [f'--gin_file={folder}/x.gin']}.get(where, []), folder)
  (folder / 'x.gin').write_text('import ends\n')
  if where == 'registry_imports':
    (folder / 'registry_imports.py').write_text('import ends\n')
    monkeypatch.delitem(sys.modules, 'registry_imports', raising=False)
  if where == 'entry point':
    # A package, as pip installs it.
    (folder / 'ended-1.0.dist-info').mkdir()
    (folder / 'ended-1.0.dist-info/METADATA').write_text('Metadata-Version: 2.1\nName: ended\nVersion: 1.0\n')
    (folder / 'ended-1.0.dist-info/entry_points.txt').write_text('[official_ext.experiments]\nended = ends\n')
    arguments = [*arguments, '--experiment=of_that_package'][1:]
  status = drive(arguments)
  err = capfd.readouterr().err
  assert status == 2 and 'Traceback' not in err, err
  assert EXIT.format(tmp=folder) in err
  assert len(error_lines(err)) == 1 and not (folder / 'run').exists()
  if where == 'entry point':  # One that is broken does not keep others from being used.
    assert 'warning: the installed package ended: its entry point=ends: cannot be imported: module ends' in err


@pytest.mark.parametrize('where', ['registry', 'registry_imports'])
def test_official_ext_is_not_ended_by_a_module_either(where, module_that_exits, capfd, monkeypatch):
  if where == 'registry_imports':
    (module_that_exits / 'registry_imports.py').write_text('import ends\n')
    monkeypatch.delitem(sys.modules, 'registry_imports', raising=False)
    monkeypatch.chdir(module_that_exits)  # `official-ext` takes that of the folder it is called in.
  assert main.main(['list', *(['--registry=ends'] if where == 'registry' else [])]) == 2
  assert EXIT.format(tmp=module_that_exits) in error_lines(capfd.readouterr().err)[0]


@tiers.parametrize('name', BAD_PROCESSES, fast=1)
def test_a_mistake_ends_the_process(name, tmp_path, run_train):
  arguments, expected = BAD[name]
  process = run_train(command(arguments, tmp_path), cwd=tmp_path)
  assert process.returncode == 2
  (line,) = error_lines(process.stderr)
  assert line.startswith('error: ' + expected.replace('{tmp}', str(tmp_path)))
  assert 'Traceback' not in process.stderr
  assert not contents(tmp_path)
