"""The output on a terminal: one line for each mistake, and nothing that is not news."""

import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf

from official_ext.base import tf_internals
from official_ext.language.modeling import pretrained
from tests import tiers
from tests.language.fine_tuning import tiny_models

ROOT = pathlib.Path(__file__).resolve().parents[1]
MLP = ['--experiment=digits_mlp', '--mode=train', '--set=train_steps=2']
SFT = ['--experiment=sft', '--mode=train', '--set=max_steps=2', '--set=xla=false', '--set=batch_size=4']

# A task that ends with GeneratorExit, which is not an Exception, at one of several places.
TASK = """
  import dataclasses
  import official_ext as ext
  import tensorflow as tf
  import tf_keras

  @dataclasses.dataclass
  class ExitConfig(ext.TaskConfig):
    where: str = ''
    train_data: ext.InMemoryDataConfig = dataclasses.field(
      default_factory=lambda: ext.InMemoryDataConfig(is_training=True, global_batch_size=4))
    validation_data: ext.InMemoryDataConfig = dataclasses.field(
      default_factory=lambda: ext.InMemoryDataConfig(is_training=False, global_batch_size=4))

  @ext.register_task(ExitConfig)
  class ExitTask(ext.Task):
    def build_model(self):
      self._exit('model')
      return tf_keras.Sequential([tf_keras.Input([3]), tf_keras.layers.Dense(1)])

    def build_inputs(self, params, input_context=None):
      self._exit('inputs')

      def examples():
        for _ in range(100):
          yield [1.0, 2.0, 3.0]
        self._exit('generator')

      return tf.data.Dataset.from_generator(examples, output_signature=tf.TensorSpec([3])).batch(4)

    def forward(self, inputs, model, training):
      self._exit('forward')
      return tf.reduce_mean(model(inputs) ** 2), {}

    def _exit(self, place):
      if self.task_config.where == place:
        raise GeneratorExit(place)

  @ext.register_experiment('exits')
  def exits():
    return ext.ExperimentConfig(task=ExitConfig(), trainer=ext.TrainerConfig(
      train_steps=90, optimizer_config=ext.OptimizationConfig({'optimizer': {'type': 'sgd'}, 'learning_rate': {
        'type': 'constant', 'constant': {'learning_rate': 0.1}}})))
"""


def _lines(path, records):
  path.write_text(''.join(json.dumps(record) + '\n' for record in records))
  return path


def _error(done, status=2):
  """The one line that a failed process has on stderr, except for warnings that are news."""
  lines = [line for line in done.stderr.splitlines() if not line.startswith('warning: ')]
  assert done.returncode == status and len(lines) == 1 and lines[0].startswith('error: '), done.stderr
  return lines[0]


@pytest.fixture(scope='module')
def base(tmp_path_factory):
  return tiny_models.write(tmp_path_factory.mktemp('base') / 'model')


# The libraries of 2.21 log while they are loaded, before a level can be set.
_QUIET_IMPORT = pytest.mark.skipif(not tf.__version__.startswith('2.20.'), reason='TensorFlow logs its import')


@_QUIET_IMPORT
def test_a_run_has_nothing_on_stderr_and_one_line_for_each_thing_on_stdout(run_train, tmp_path):
  """In a separate interpreter, with XLA, whose first program TensorFlow's C++ code would report."""
  done = run_train([*MLP, f'--model_dir={tmp_path}/run'], fresh=True)
  assert done.returncode == 0 and done.stderr == ''
  kinds = ['Devices:', 'Training', 'start', 'Model:', 'compiled', 'train', 'checkpoint', 'finished']
  assert [line.split()[0] for line in done.stdout.splitlines()] == kinds


@pytest.mark.slow
@_QUIET_IMPORT
def test_commands_that_import_model_garden_neither():
  """Whose vision tasks import tensorflow_hub, and that pkg_resources."""
  code = 'import official_ext; import tensorflow_hub; import official.vision'
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True, cwd=ROOT)
  assert done.stderr == '' and done.stdout == ''


def test_the_level_of_abseil_can_be_set():
  assert tf_internals.hide_remarks()


@pytest.mark.slow
def test_gpus_that_tensorflow_cannot_use_are_reported(run_train, tmp_path):
  assert not tf.config.list_physical_devices('GPU')
  for variable, is_reported in (('0', True), ('-1', False)):
    done = run_train(
      [*MLP, '--set=xla=false', f'--model_dir={tmp_path}/run{variable}'], env={'CUDA_VISIBLE_DEVICES': variable}
    )
    assert (
      done.returncode == 0 and ('warning: GPUs: 1 visible, and TensorFlow can use none; ' in done.stderr) == is_reported
    )


@pytest.mark.slow
@pytest.mark.parametrize('program', ['train', 'official-ext'])
def test_a_deleted_current_directory_is_one_line(tmp_path, program):
  gone = tmp_path / 'gone'
  gone.mkdir()
  main = [str(ROOT / 'train.py'), *MLP, f'--model_dir={tmp_path}/run']
  if program == 'official-ext':
    main = ['-c', 'import sys; from official_ext.cli import main; sys.exit(main.main())', 'check', 'digits_mlp']
  script = f'cd {gone} && rmdir {gone} && exec "$@"'
  environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
  done = subprocess.run(
    ['sh', '-c', script, 'sh', sys.executable, *main], env=environment, capture_output=True, text=True, check=False
  )
  assert _error(done) == 'error: current directory: it was deleted; change to one that exists'
  assert not (tmp_path / 'run').exists()


@tiers.parametrize('where', ['model', 'inputs', 'generator', 'forward'], fast=1)
def test_generator_exit_in_a_task_is_one_line(run_train, tmp_path, where):
  (tmp_path / 'exiting.py').write_text(textwrap.dedent(TASK))
  flags = ['--registry=exiting', '--experiment=exits', '--mode=train', f'--set=task.where={where}', '--set=xla=false']
  done = run_train([*flags, f'--model_dir={tmp_path}/run'], cwd=tmp_path)
  error = _error(done, 1)
  assert 'GeneratorExit' in error and re.search(r'the traceback is in \S+\.txt$', error)
  assert f'GeneratorExit: {where}' in pathlib.Path(error.rpartition(' ')[2]).read_text()
  record = tmp_path / 'run/run.json'
  assert not record.exists() or json.loads(record.read_text())['status'] == 'failed'


@pytest.mark.parametrize('scheme', ['https', 'http', 'hf'])
def test_data_that_must_be_downloaded_first(run_train, base, tmp_path, scheme):
  path = f'{scheme}://huggingface.co/datasets/x/data.jsonl'
  done = run_train([*SFT, f'--set=model_path={base}', f'--set=dataset_path={path}', f'--model_dir={tmp_path}/run'])
  assert _error(done) == (
    f'error: task.train_data.input_path: {path}: files are read from local paths and gs://, and not from {scheme}://; '
    'download it first'
  )


def test_unknown_roles_are_named(run_train, base, tmp_path):
  turns = [{'role': 'human', 'content': 'What?'}, {'role': 'gpt', 'content': 'That.'}]
  data = _lines(tmp_path / 'data.jsonl', [{'messages': turns}] * 20)
  flags = [*SFT, f'--set=model_path={base}', f'--set=dataset_path={data}', f'--model_dir={tmp_path}/run']
  assert _error(run_train(flags)).startswith(
    f'error: task.train_data: {data}, line 1: there is no turn of the assistant to learn from; the roles are human, '
    'gpt, and those known are system, user, assistant, tool: rename them in the data; '
  )
  data = _lines(data, [{'messages': [{'from': 'human', 'value': 'What?'}]}] * 20)
  assert 'which are dictionaries with role and content; these have from, value; ' in _error(run_train(flags))


@pytest.mark.slow
def test_a_tokenizer_without_an_end_of_text(run_train, base, tmp_path):
  folder = tmp_path / 'model'
  folder.mkdir()
  for file in pathlib.Path(base).iterdir():
    (folder / file.name).write_bytes(file.read_bytes())
  config = json.loads((folder / 'tokenizer_config.json').read_text())
  del config['eos_token']
  (folder / 'tokenizer_config.json').write_text(json.dumps(config))
  (folder / 'special_tokens_map.json').unlink(missing_ok=True)
  data = _lines(tmp_path / 'data.jsonl', [{'text': f'It returns {number}.'} for number in range(20)])
  flags = [*SFT, f'--set=model_path={folder}', f'--set=dataset_path={data}', f'--model_dir={tmp_path}/run']
  assert _error(run_train(flags)) == (
    'error: task.train_data.append_eos: the tokenizer has no eos_token to end texts with, so that the model would '
    'never stop; name one in tokenizer_config.json, or set append_eos to false'
  )
  both = [f'--set=task.{name}.append_eos=false' for name in ('train_data', 'validation_data')]
  done = run_train([*flags, *both])
  assert done.returncode == 0, done.stderr


@pytest.mark.parametrize('method', ['gptq', 'awq'])
def test_a_quantized_folder_is_refused_with_what_helps(base, tmp_path, method):
  for file in pathlib.Path(base).iterdir():
    (tmp_path / file.name).write_bytes(file.read_bytes())
  config = json.loads((tmp_path / 'config.json').read_text())
  config['quantization_config'] = {'quant_method': method, 'bits': 4}
  (tmp_path / 'config.json').write_text(json.dumps(config))
  with pytest.raises(ValueError) as raised:
    pretrained.load(str(tmp_path))
  assert str(raised.value) == (
    f'{tmp_path}/config.json: quantization_config: the weights are quantized ({method}), and only those in float32, '
    'float16 and bfloat16 are read; take the model from before its quantization (load_in_4bit=true quantizes it here)'
  )


@pytest.mark.slow
def test_grpo_with_rewards_in_python_starts_without_warnings_of_autograph(run_train, base, tmp_path):
  """Its evaluation is traced before its data are read, so that AutoGraph would convert their reader."""
  (tmp_path / 'rewarding.py').write_text(
    'import official_ext as ext\n\n@ext.register_reward("short")\ndef short(completions, **kwargs):\n'
    '  return [-float(len(each)) for each in completions]\n'
  )
  data = _lines(tmp_path / 'data.jsonl', [{'prompt': f'What is {number}? '} for number in range(20)])
  values = dict(model_path=base, dataset_path=data, max_completion_length=4, max_steps=1, batch_size=2, xla='false')
  flags = ['--experiment=grpo', '--mode=train_and_eval', '--registry=rewarding', '--set=task.reward_funcs=[short]']
  flags += [f'--set={name}={value}' for name, value in values.items()]
  done = run_train([*flags, f'--model_dir={tmp_path}/run'], cwd=tmp_path)
  assert done.returncode == 0 and 'AutoGraph' not in done.stderr, done.stderr


def test_a_script_has_no_batch_size_of_zero(run_train, tmp_path):
  script = ROOT / 'experiments/script/template.py'
  flags = ['--experiment=script', '--mode=train', f'--set=script={script}', '--set=max_steps=1']
  done = run_train([*flags, f'--model_dir={tmp_path}/run'])
  assert done.returncode == 0 and 'start 0/1  mode train  seed 0\n' in done.stdout, done.stdout + done.stderr
  assert '"effective_batch_size"' not in (tmp_path / 'run/events.jsonl').read_text()


@pytest.mark.slow
def test_a_checkpoint_that_does_not_fit_is_one_line_in_a_check_too(tmp_path):
  """TensorFlow would add a warning for each of its values when its objects are deleted."""
  values = {f'v{number}': tf.Variable(1.0) for number in range(50)}
  tf.train.Checkpoint(model=tf.train.Checkpoint(**values), backbone=tf.train.Checkpoint(**values)).write(
    f'{tmp_path}/other'
  )
  (tmp_path / 'data').write_bytes(b'no records\n' * 100)
  values = {
    'task.init_checkpoint': tmp_path / 'other',
    'task.model.input_size': '[32,32,3]',
    'task.model.backbone.resnet.model_id': 18,
    'task.train_data.input_path': tmp_path / 'data',
    'task.validation_data.input_path': tmp_path / 'data',
    'runtime.enable_xla': 'false',
  }
  flags = [f'--set={name}={value}' for name, value in values.items()]
  done = subprocess.run(
    [sys.executable, '-m', 'official_ext.cli.main', 'check', 'resnet_imagenet', *flags],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  hint = 'task.init_checkpoint_modules=backbone loads the backbone alone'
  assert _error(done).startswith(f'error: task.init_checkpoint: {tmp_path}/other: does not fit the model; {hint}: ')
