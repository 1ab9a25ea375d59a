"""The experiment sft: a model of a folder learns answers under train.py; short names; its result elsewhere; resumes."""

import json
import pathlib
import signal
import time
import types
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from experiments.sft import task as sft_task
import official_ext as ext
from official_ext.base import errors
from official_ext.cli import describe
from official_ext.training.config import parser
from official_ext.training.step import step_random
import registry_imports  # noqa: F401
from tests.experiments import shrunk_run
from tests.language.fine_tuning import tiny_models
from tests.soak import comparison
from tests.training.loop import harness

UNEQUAL = {
  'task': {
    'model': {
      'vocab_size': 300,
      'hidden_size': 16,
      'intermediate_size': 24,
      'num_hidden_layers': 1,
      'num_attention_heads': 2,
      'num_key_value_heads': 2,
    },
    'train_data': {'global_batch_size': 4, 'seq_length': 64, 'packing': 'none'},
    'validation_data': {'global_batch_size': 4, 'seq_length': 64, 'packing': 'none'},
  },
  'trainer': {
    'gradient_accumulation_steps': 1,
    'optimizer_config': {
      'optimizer': {'type': 'sgd', 'sgd': {'global_clipnorm': None}},
      'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 1.0}},
      'warmup': {'type': 'linear', 'linear': {'warmup_steps': 0}},
    },
  },
}
IDS = np.random.default_rng(0).integers(3, 290, (2, 11)).astype(np.int32)


def write_records(path):
  lines = [json.dumps({'question': f'What is {n} + 1?', 'answer': f'It is {n + 1}.', 'unused': n}) for n in range(40)]
  path.write_text('\n'.join(lines) + '\n')


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  """A folder with `base`, which transformers has written, and `data.jsonl`."""
  pytest.importorskip('transformers', reason="needs the test extra: pip install 'official-ext[test]'")
  from tests.language.modeling import checkpoints

  folder = tmp_path_factory.mktemp('sft')
  config = checkpoints.config('llama', vocab_size=304, num_hidden_layers=1, max_position_embeddings=128)
  checkpoints.random_model(config).save_pretrained(str(folder / 'base'))
  tiny_models.make_tokenizer().save(str(folder / 'base'))
  write_records(folder / 'data.jsonl')
  return folder


def command(place, model_dir, *flags):
  """DeepExtension's parameters, in the words of its users."""
  values = dict(
    model_path=place / 'base',
    dataset_path=place / 'data.jsonl',
    promptInputColumn='question',
    prompt_output_column='answer',
    lora_rank=4,
    max_seq_length=96,
    max_input_length=48,
    max_content_length=48,
    max_samples=30,
    max_steps=12,
    batch_size=4,
    grad_accum_steps=2,
    learning_rate=0.01,
    warmup_steps=2,
    max_grad_norm=0.5,
    xla='false',
    steps_per_loop=3,
    summary_interval=3,
    checkpoint_interval=3,
    validation_interval=6,
  )
  values['promptinputcolumn'] = values.pop('promptInputColumn')
  sets = [f'--set={name}={value}' for name, value in values.items()]
  return ['--experiment=sft', '--mode=train_and_eval', f'--model_dir={model_dir}', *sets, *flags]


@pytest.fixture(scope='module')
def straight(place, run_train):
  """The folder of a run from its first step to its last."""
  completions = ['interval=6', 'num_prompts=2', 'max_new_tokens=8', 'metrics=[exact_match, contains]']
  best = ['eval_metric=completions/contains', 'metric_comp=higher', 'export_subdir=best']
  more = [*(f'task.completions.{text}' for text in completions), *(f'trainer.best_checkpoint_{text}' for text in best)]
  flags = command(place, place / 'straight', *(f'--set={text}' for text in more))
  done = run_train(flags, env={'XDG_CACHE_HOME': str(place / 'cache')})
  assert done.returncode == 0, done.stdout + done.stderr
  assert f'base: float32 weights of {place / "base"}' in done.stdout + done.stderr
  assert '\nFirst example: ' in done.stdout and '⟦It is ' in done.stdout
  return place / 'straight'


def test_it_learns_the_answers_of_a_file(place, straight):
  events = [json.loads(line) for line in (straight / 'events.jsonl').read_text().splitlines()]
  losses = [event['training_loss'] for event in events if event['event'] == 'train']
  assert losses[-1] < losses[0] - 1, losses  # A token is e times as likely as before.
  last = [event for event in events if event['event'] == 'eval'][-1]
  assert last['step'] == 12 and 0 < last['mean_token_accuracy'] <= 1
  assert last['validation_loss'] == pytest.approx(last['label'], rel=1e-5)
  manifest = json.loads((straight / 'ckpt-12.manifest.json').read_text())
  identities = {name: found for name, (found,) in manifest['data'].items()}
  assert identities['train_data']['num_records'] == 27 and identities['validation_data']['num_records'] == 3


def test_it_answers_validation_prompts_meanwhile_and_scores_the_answers(straight):
  events = [json.loads(line) for line in (straight / 'events.jsonl').read_text().splitlines()]
  logs = [event for event in events if event['event'] == 'completions']
  assert [log['step'] for log in logs] == [0, 6, 12]
  assert all(log['prompts'] == logs[0]['prompts'] and len(log['completions']) == 2 for log in logs)
  assert logs[0]['prompts'][0].startswith('<|user|>\nWhat is ') and logs[0]['answers'][0].startswith('It is ')
  evaluations = [event for event in events if event['event'] == 'eval']
  for event in evaluations:
    assert 0 <= event['completions/exact_match'] <= event['completions/contains'] <= 1
    assert event['best_completions/contains'] >= event['completions/contains']
    assert event['perplexity'] == pytest.approx(np.exp(event['token_loss']), rel=1e-5)
  trained = [event for event in events if event['event'] == 'train' and 'tokens_per_second' in event]
  assert trained and all(0 < event['learned_tokens_per_second'] < event['tokens_per_second'] for event in trained)
  assert all('tokens_per_example' not in event for event in events)


def test_peft_loads_its_result_to_the_same_logits(place, straight):
  pytest.importorskip('peft', reason="needs the test extra: pip install 'official-ext[test]'")
  import peft
  import transformers

  from tests.language.modeling import checkpoints

  trained = ext.load(straight, which='latest')  # As the folder: the best by the metric may be another step.
  expected = np.asarray(trained(IDS))
  base = transformers.AutoModelForCausalLM.from_pretrained(str(place / 'base'), attn_implementation='eager')
  before = checkpoints.logits(base, IDS)
  loaded = peft.PeftModel.from_pretrained(base, str(straight / 'adapter')).eval()
  np.testing.assert_allclose(checkpoints.logits(loaded, IDS), expected, atol=1e-5)
  assert np.abs(before - expected).max() > 0.1
  names = [pathlib.Path(path).name for path in (straight / 'adapter').iterdir()]
  assert {'adapter_config.json', 'adapter_model.safetensors', 'tokenizer.json', 'chat_template.jinja'} <= set(names)
  fields = json.loads((straight / 'adapter/adapter_config.json').read_text())
  assert fields['r'] == 4 and fields['lora_alpha'] == 16
  assert fields['target_modules'] == [f'{name}_proj' for name in ('down', 'gate', 'k', 'o', 'q', 'up', 'v')]


@pytest.mark.slow
def test_a_killed_run_resumes_bit_for_bit(place, straight, start_train, run_train):
  flags = command(place, place / 'killed')
  env = {'XDG_CACHE_HOME': str(place / 'cache')}
  process = start_train(flags, env=env)
  deadline = time.monotonic() + 300
  while not (place / 'killed/ckpt-6.manifest.json').exists():
    assert time.monotonic() < deadline and process.poll() is None
    time.sleep(0.01)
  process.send_signal(signal.SIGKILL)
  process.communicate()
  assert not (place / 'killed/adapter').exists()
  done = run_train(flags, env=env)
  assert done.returncode == 0, done.stderr
  assert '"event": "restored"' in (place / 'killed/events.jsonl').read_text()
  wanted, found = (comparison.tensors(folder / 'ckpt-12') for folder in (straight, place / 'killed'))
  assert wanted.keys() == found.keys()
  assert [name for name, value in wanted.items() if not np.array_equal(value, found[name])] == []
  weights = [name for name in wanted if name.startswith('model/') and 'VARIABLE_VALUE' in name]
  assert weights and all('lora_' in name or 'frozen_weights' in name for name in weights)
  files = [(folder / 'adapter/adapter_model.safetensors').read_bytes() for folder in (straight, place / 'killed')]
  assert files[0] == files[1]


# Short names.


def parse(*sets, **flags):
  flags = types.SimpleNamespace(experiment='sft', set=list(sets), **flags)
  return parser.parse_configuration(flags, print_return=False)


def test_short_names_set_what_they_mean():
  task = parse('model_path=m', 'dataset_path=d.jsonl', 'lora_rank=3', 'load_in_4bit=True', 'output_dir=out').task
  assert (task.model_path, task.train_data.input_path, task.lora.r) == ('m', 'd.jsonl', 3)
  assert task.load_in_4bit is True and task.output_dir == 'out' and not task.validation_data.input_path
  params = parse('max_seq_length=77', 'max_input_length=33', 'max_content_length=44', 'max_samples=9')
  for data in (params.task.train_data, params.task.validation_data):
    assert (data.seq_length, data.max_input_length, data.max_content_length) == (77, 33, 44)
  assert params.task.train_data.max_samples == 9
  for names in (('prompt_input_column', 'prompt_output_column'), ('promptinputcolumn', 'promptoutputcolumn')):
    task = parse(f'{names[0]}=q', f'{names[1]}=a').task
    assert {(data.prompt_column, data.output_column) for data in (task.train_data, task.validation_data)} == {
      ('q', 'a')
    }
  params = parse('batch_size=3', 'grad_accum_steps=5', 'learning_rate=2e-5', 'warmup_steps=4', 'max_grad_norm=0.1')
  rates = params.trainer.optimizer_config
  assert (params.task.train_data.global_batch_size, params.trainer.gradient_accumulation_steps) == (3, 5)
  assert rates.learning_rate.cosine.initial_learning_rate == 2e-5 and rates.warmup.linear.warmup_steps == 4
  assert rates.optimizer.adamw_experimental.global_clipnorm == 0.1


def test_the_schedule_is_as_long_as_training_unless_it_is_set_too():
  params = parse('max_steps=50')
  assert params.trainer.train_steps == params.trainer.optimizer_config.learning_rate.cosine.decay_steps == 50
  for other in ('decay_steps=70', 'trainer.optimizer_config.learning_rate.cosine.decay_steps=70'):
    for sets in (('max_steps=50', other), (other, 'max_steps=50')):
      params = parse(*sets)
      assert params.trainer.train_steps == 50
      assert params.trainer.optimizer_config.learning_rate.cosine.decay_steps == 70
  of_file = 'trainer.optimizer_config.learning_rate.cosine.decay_steps=70,task.validation_data.prompt_column=q'
  params = parse('max_steps=50', 'prompt_input_column=p', params_override=of_file)
  assert params.trainer.optimizer_config.learning_rate.cosine.decay_steps == 70
  assert (params.task.train_data.prompt_column, params.task.validation_data.prompt_column) == ('p', 'q')
  params = parse('schedule=constant', 'learning_rate=1e-3', 'max_steps=50')  # A schedule without a length.
  assert params.trainer.train_steps == 50


def test_what_sft_does_not_use_and_text_that_is_no_bool_are_refused():
  with pytest.raises(errors.UserError, match='^num_generations: sft has no such parameter: it learns from the answers'):
    parse('num_generations=4')
  assert parse('load_in_4bit=False').task.load_in_4bit is False
  with pytest.raises(errors.UserError, match=r"^task\.load_in_4bit: expected bool, got 'False' \(str\)"):
    parse('load_in_4bit="False"')
  with pytest.raises(errors.UserError, match='^task.train_data.max_samples: expected -1 for all, or at least 1'):
    parse('max_samples=0')


def test_describe_shows_the_short_names():
  lines = list(describe.field_lines(parse(), 'sft'))
  shown = {line.split(':')[0]: line.rpartition('  [')[2].rstrip(']') for line in lines if line.endswith(']')}
  assert shown['task.model_path'] == 'model_path' and shown['task.lora.r'] == 'lora_rank'
  assert shown['task.train_data.prompt_column'] == shown['task.validation_data.prompt_column']
  assert shown['task.train_data.prompt_column'] == 'prompt_input_column, promptinputcolumn'
  assert 'max_steps' in shown['trainer.train_steps'] and not any('num_generations' in line for line in lines)


# Without any argument.

SMALL = {
  'task': {
    'model': {'vocab_size': 300, 'hidden_size': 16, 'intermediate_size': 24, 'num_hidden_layers': 1},
    'train_data': {'seq_length': 192, 'max_samples': 40},
    'validation_data': {'seq_length': 192, 'max_samples': 10},
  }
}


@pytest.mark.parametrize('replicas, enable_xla', [pytest.param('two', False, marks=pytest.mark.soak)])
def test_a_restored_run_resumes_bit_for_bit(replicas, enable_xla, tmp_path):
  shrunk_run.assert_resumes_bit_for_bit(shrunk_run.make_params('sft', SMALL, enable_xla=enable_xla), tmp_path, replicas)


@pytest.mark.slow
def test_without_arguments_a_new_decoder_learns_docstrings(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  (tmp_path / 'file').touch()
  params = shrunk_run.make_params('sft', SMALL, {'task': {'output_dir': str(tmp_path / 'file/run')}})
  with pytest.raises(errors.UserError, match='^task.output_dir: .*/file/run: cannot be written: .*/file: Not a dir'):
    shrunk_run.run(tmp_path / 'run', params)
  assert not (tmp_path / 'run').exists()
  params = shrunk_run.make_params('sft', SMALL, {'task': {'output_dir': str(tmp_path / 'run')}})
  logs = shrunk_run.run(tmp_path / 'run', params)
  assert np.isfinite(logs['validation_loss'])
  trained = ext.pretrained.load(str(tmp_path / 'run/model'))
  of_checkpoint = ext.load(tmp_path / 'run', 'latest', experiment='sft')
  np.testing.assert_array_equal(trained(IDS), of_checkpoint(IDS))
  tokenizer = ext.Tokenizer.load(str(tmp_path / 'run/model'))
  assert tokenizer.has_chat_template and len(tokenizer) <= 300


@pytest.mark.soak
def test_two_replicas_in_bfloat16_with_averages_and_accumulation_on_4_bits(place, run_train, tmp_path):
  flags = [
    '--set=strategy=mirrored',
    '--set=runtime.num_virtual_cpus=2',
    '--set=precision=bfloat16',
    '--set=load_in_4bit=true',
    '--set=trainer.optimizer_config.ema.average_decay=0.9',
    '--set=task.save_merged=true',
  ]
  for folder, steps in (('straight', 12), ('resumed', 6), ('resumed', 12)):
    arguments = command(place, tmp_path / folder, *flags)
    arguments = [argument.replace('max_steps=12', f'max_steps={steps}') for argument in arguments]
    done = run_train([*arguments, '--set=decay_steps=12'], timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
  wanted, found = (comparison.tensors(tmp_path / folder / 'ckpt-12') for folder in ('straight', 'resumed'))
  assert [name for name, value in wanted.items() if not np.array_equal(value, found[name])] == []
  # The result has the averages.
  model = ext.pretrained.load(str(place / 'base'))
  ext.peft_folders.load(model, str(tmp_path / 'straight/adapter'), ext.QuantizationConfig(method='nf4'))
  averages = {name: value for name, value in wanted.items() if 'average' in name and 'lora_' in name}
  assert len(averages) == len(model.trainable_variables)
  saved = sorted(float(np.abs(variable.numpy()).sum()) for variable in model.trainable_variables)
  np.testing.assert_allclose(saved, sorted(float(np.abs(value).sum()) for value in averages.values()), rtol=1e-6)
  merged = ext.pretrained.load(str(tmp_path / 'straight/model'))
  np.testing.assert_allclose(np.asarray(merged(IDS)), np.asarray(model(IDS)), atol=1e-3)


@pytest.mark.parametrize('model_type', ['llama', 'qwen2', 'qwen3', 'gemma2', 'gpt2'])
def test_a_result_has_the_tokens_of_training_for_autotokenizer(model_type, tmp_path, monkeypatch):
  monkeypatch.setenv('HF_HUB_OFFLINE', '1')
  transformers = pytest.importorskip('transformers', reason="needs the test extra: pip install 'official-ext[test]'")
  fields = {
    'qwen2': {'attention_bias': True},
    'qwen3': {'qk_norm': True},
    'gemma2': {'hidden_act': 'gelu_pytorch_tanh', 'tie_word_embeddings': True},
  }
  folder, texts = tmp_path / model_type, ["I'LL say 1234 naïve Ａ\u0308 things...\n\n  def f(x):\t return 3.14", 'a  b']
  tokenizer = tiny_models.make_tokenizer().beside(model_type)
  folder.mkdir()
  tokenizer.save(str(folder))
  (folder / 'config.json').write_text(json.dumps({'model_type': model_type}))
  theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
  assert [tokenizer.encode(text) for text in texts] == [theirs.encode(text) for text in texts]
  params = shrunk_run.make_params('sft', {'task': {'model': {'model_type': model_type, **fields.get(model_type, {})}}})
  assert shrunk_run.make_task(params).model_type == model_type


def test_a_result_of_another_tokenizer_is_refused_beside_qwen2(tmp_path):
  config = ext.DecoderConfig(
    model_type='qwen2', attention_bias=True, vocab_size=304, hidden_size=8, intermediate_size=8, num_hidden_layers=1
  )
  model, tokenizer = ext.LanguageModel(config), tiny_models.make_tokenizer()
  with pytest.raises(
    errors.UserError, match='beside a model of type qwen2, transformers makes other tokens of this to'
  ):
    ext.pretrained.save(model, str(tmp_path / 'a'), tokenizer=tokenizer)
  assert not (tmp_path / 'a').exists()
  ext.pretrained.save(model, str(tmp_path / 'a'), tokenizer=tokenizer.beside('qwen2'))
  assert ext.Tokenizer.load(str(tmp_path / 'a')).digest == tokenizer.beside('qwen2').digest


class Update(NamedTuple):
  """The result of one update: the change of all weights, the losses that are logged, and the trainer."""

  change: np.ndarray
  loss: float
  token_loss: float
  trainer: object


def update(batch_size, accumulation, replicas='one', token_average='update', clipnorm=None, **trainer):
  """One update of four rows of unequal length, by SGD with a rate of 1."""
  changes = {
    'task': {'token_average': token_average, 'train_data': {'global_batch_size': batch_size}},
    'trainer': {
      'gradient_accumulation_steps': accumulation,
      'optimizer_config': {'optimizer': {'sgd': {'global_clipnorm': clipnorm}}},
    },
  }
  trainer = shrunk_run.make_trainer(shrunk_run.make_params('sft', UNEQUAL, changes, **trainer), replicas)
  before = [np.array(values) for values in harness.weights_of(trainer)]  # Not views of the variables.
  logs = harness.train(trainer, 1)
  change = np.concatenate([(new - old).ravel() for new, old in zip(harness.weights_of(trainer), before)])
  return Update(change, float(logs['training_loss']), float(logs['token_loss']), trainer)


_SPLITS = ((1, 4), (2, 2, 'two'))


def test_all_tokens_of_an_update_count_the_same_in_micro_batches_and_on_replicas():
  """The update of unequal micro-batches is that of one batch; by the mean of their means it is another."""
  expected = update(4, 1)
  assert expected.loss == pytest.approx(expected.token_loss, rel=1e-5)
  for setting in _SPLITS:
    found = update(*setting)
    np.testing.assert_allclose(found.change, expected.change, rtol=1e-4, atol=1e-6)
    assert [found.loss, found.token_loss] == pytest.approx([expected.loss, expected.loss], rel=1e-5)
  of_means = update(1, 4, token_average='micro_batch')
  assert np.abs(of_means.change - expected.change).max() > 1e-3 and abs(of_means.loss - expected.loss) > 1e-3


@pytest.mark.slow
def test_the_norm_of_a_weighted_update_is_clipped_after_the_mean():
  whole = update(4, 1)
  norm = float(np.linalg.norm(whole.change))
  for setting in _SPLITS:
    clipped = update(*setting, clipnorm=norm / 3)
    np.testing.assert_allclose(clipped.change, whole.change / 3, rtol=1e-4, atol=1e-6)


@pytest.fixture
def marred(monkeypatch):
  """Two functions of the numbers of rows, of the four of an update, that mar these for the task from then on."""
  params = shrunk_run.make_params('sft', UNEQUAL)
  (batch,) = shrunk_run.make_task(params).build_inputs(params.task.train_data).take(1)
  rows = batch['input_ids'].numpy()
  plain = sft_task.SftTask.forward, sft_task.SftTask.micro_batch_weight
  unlabeled, infinite = [], []

  def is_one_of(inputs, numbers):
    if not numbers:
      return tf.zeros(tf.shape(inputs['input_ids'])[:1], tf.bool)
    is_equal = inputs['input_ids'][:, tf.newaxis] == rows[numbers][np.newaxis]
    return tf.reduce_any(tf.reduce_all(is_equal, axis=2), axis=1)

  def masked(inputs):
    is_unlabeled = is_one_of(inputs, unlabeled)[:, tf.newaxis]
    return {**inputs, 'labels': tf.where(is_unlabeled, ext.losses.IGNORED_LABEL, inputs['labels'])}

  def forward(self, inputs, model, training):
    loss, logs = plain[0](self, masked(inputs), model, training)
    return loss + tf.where(tf.reduce_any(is_one_of(inputs, infinite)), np.float32('inf'), 0.0), logs

  monkeypatch.setattr(sft_task.SftTask, 'forward', forward)
  monkeypatch.setattr(sft_task.SftTask, 'micro_batch_weight', lambda self, inputs: plain[1](self, masked(inputs)))
  without_labels = lambda *numbers: unlabeled.extend(numbers)
  return types.SimpleNamespace(
    without_labels=without_labels, with_infinite_loss=lambda *numbers: infinite.extend(numbers)
  )


@pytest.mark.slow
def test_a_micro_batch_without_learned_tokens_changes_nothing(marred):
  unmarred = update(4, 1)
  marred.without_labels(1)
  expected = update(4, 1)
  assert np.abs(expected.change - unmarred.change).max() > 1e-3
  for setting in _SPLITS:
    found = update(*setting)
    np.testing.assert_allclose(found.change, expected.change, rtol=1e-4, atol=1e-6)
    assert found.loss == pytest.approx(expected.loss, rel=1e-5) and found.trainer.num_skips == 0


@pytest.mark.slow
@pytest.mark.parametrize('setting', [(4, 1), *_SPLITS])
def test_an_update_without_learned_tokens_is_of_zeros(marred, setting):
  marred.without_labels(0, 1, 2, 3)
  found = update(*setting)
  assert found.loss == 0 and not found.change.any() and found.trainer.num_skips == 0


@pytest.mark.slow
@pytest.mark.parametrize('setting', _SPLITS)
@pytest.mark.parametrize('enable_xla', [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_infinite_loss_of_one_micro_batch_skips_the_weighted_update(marred, setting, enable_xla):
  marred.with_infinite_loss(2)
  found = update(*setting, enable_xla=enable_xla)
  assert not found.change.any() and found.trainer.step_state.last_skips(2) == [1]
  marred.without_labels(2)  # Its weight is 0, and its loss still infinite.
  found = update(*setting, enable_xla=enable_xla)
  assert not found.change.any() and found.trainer.step_state.last_skips(2) == [1]


@pytest.mark.slow
@pytest.mark.parametrize('replicas, enable_xla', shrunk_run.CONTINUATIONS)
def test_a_restored_run_with_noise_and_weighted_micro_batches_resumes_bit_for_bit(replicas, enable_xla, tmp_path):
  changes = {'task': {'neftune_noise_alpha': 5.0}, 'trainer': {'gradient_accumulation_steps': 2}}
  shrunk_run.assert_resumes_bit_for_bit(
    shrunk_run.make_params('sft', SMALL, changes, enable_xla=enable_xla), tmp_path, replicas
  )


def test_neftune_adds_noise_in_training_alone():
  params = shrunk_run.make_params('sft', SMALL, {'task': {'neftune_noise_alpha': 5.0}})
  trainers = [shrunk_run.make_trainer(each) for each in (params, shrunk_run.make_params('sft', SMALL))]
  noisy, plain = (trainer.task for trainer in trainers)
  (batch,) = noisy.build_inputs(params.task.validation_data).take(1)
  evaluated = [float(trainer.task.forward(batch, trainer.model, training=False)[0]) for trainer in trainers]
  assert evaluated[0] == evaluated[1]
  with step_random.step_key(step_random.StepKey(seed=0, step=tf.constant(3, tf.int64))):
    of_noise = float(noisy.forward(batch, trainers[0].model, training=True)[0])
    without = float(plain.forward(batch, trainers[1].model, training=True)[0])
  assert without == evaluated[0] and abs(of_noise - without) > 1e-4
