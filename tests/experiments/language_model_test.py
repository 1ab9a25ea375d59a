"""The experiment language_model: bits per byte of the whole text, learning, precision, replicas, and resuming."""

import json
import math

import numpy as np
import pytest
import tensorflow as tf

import official_ext as ext
from official_ext.base import errors
from official_ext.training.config import checks
from tests import train_processes
from tests.experiments import shrunk_run
from tests.soak import comparison
from tests.training.loop import harness

VOCAB_SIZE, SEQ_LENGTH = 300, 24
_DATA = {'seq_length': SEQ_LENGTH, 'global_batch_size': 4, 'max_samples': 3}
SMALL = {
  'task': {
    'model': {
      'vocab_size': VOCAB_SIZE,
      'hidden_size': 16,
      'intermediate_size': 24,
      'num_hidden_layers': 1,
      'num_attention_heads': 2,
      'num_key_value_heads': 1,
    },
    'train_data': _DATA,
    'validation_data': _DATA,
  }
}


def make_params(*overrides, **options):
  return shrunk_run.make_params('language_model', SMALL, *overrides, **options)


@pytest.mark.slow
def test_bits_per_byte_are_those_of_the_whole_text():
  """Every token but the first of a text, in the rows that it is cut into; tokens and bytes counted by themselves."""
  trainer = shrunk_run.make_trainer(make_params(), evaluate=True)
  logs = harness.evaluate(trainer)
  tokenizer = ext.python_topics.tokenizer(VOCAB_SIZE)
  texts = [document['text'] for document in ext.python_topics.documents('validation')[:3]]
  ids = [[*tokenizer.encode(text), tokenizer.eos_token_id] for text in texts]
  stream = [(token, number) for number, text in enumerate(ids) for token in text]
  parts = []  # Of texts, in the rows that the stream is cut into.
  for start in range(0, len(stream) - 1, SEQ_LENGTH - 1):
    row = stream[start : start + SEQ_LENGTH]
    for number in sorted({number for _, number in row}):
      parts.append([token for token, its in row if its == number])
  filled = np.array([part + [0] * (SEQ_LENGTH - len(part)) for part in parts])  # Behind: nothing sees it.
  logits = trainer.model(tf.constant(filled, tf.int32)).numpy()[:, :-1].astype(np.float64)
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  is_learned = np.arange(1, SEQ_LENGTH) < np.array([[len(part)] for part in parts])
  count = is_learned.sum()
  assert count == sum(map(len, ids)) - len(ids)
  total = -(np.take_along_axis(log_p, filled[:, 1:, np.newaxis], -1)[..., 0] * is_learned).sum()
  right = ((logits.argmax(-1) == filled[:, 1:]) & is_learned).sum()
  num_bytes = sum(len(text.encode()) for text in texts)
  expected = total / count / math.log(2) * len(stream) / num_bytes
  assert logs['bits_per_byte'] == pytest.approx(expected, rel=1e-4)
  assert logs['mean_token_accuracy'] == pytest.approx(right / count, abs=1e-6)
  assert logs['validation_loss'] == pytest.approx(total / count, rel=0.02)  # Means of batches of the same size but one.


@pytest.mark.slow
def test_it_learns_and_another_program_gets_its_logits():
  faster = {
    'trainer': {
      'optimizer_config': {
        'warmup': {'type': None},
        'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.01}},
      }
    },
    'task': {'losses': {'z_loss': {'weight': 1e-4}}},
  }
  trainer = shrunk_run.make_trainer(make_params(faster))
  first, last = harness.train(trainer, 1), harness.train(trainer, 40)
  assert first['training_loss'] == pytest.approx(math.log(VOCAB_SIZE), rel=0.02)
  assert last['bits_per_byte'] < 0.8 * first['bits_per_byte']
  assert last['training_loss'] == pytest.approx(last['label'] + 1e-4 * last['z_loss'], rel=1e-4)
  ids = tf.constant([[5, 6, 7, 8]])
  served = trainer.task.serving_function(trainer.model)(ids)['logits']
  np.testing.assert_allclose(served, trainer.model(ids), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('replicas, enable_xla', shrunk_run.CONTINUATIONS)
def test_a_restored_run_resumes_bit_for_bit(replicas, enable_xla, tmp_path):
  dropping = {'task': {'model': {'residual_dropout': 0.2}}}
  params = make_params(dropping, enable_xla=enable_xla)
  shrunk_run.assert_resumes_bit_for_bit(params, tmp_path, replicas)


@pytest.mark.soak
def test_two_replicas_and_accumulation_learn_what_one_does():
  """Rows of 24 tokens, all of them full: means over tokens of the same number."""
  results = []
  for replicas, batch_size, accumulation in (('one', 8, 1), ('two', 4, 2)):
    sgd = {
      'trainer': {
        'optimizer_config': {
          'optimizer': {'type': 'sgd', 'sgd': {'momentum': 0.0}},
          'warmup': {'type': None},
          'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.5}},
        }
      },
      'task': {'train_data': {'global_batch_size': batch_size, 'packing': 'best_fit', 'seq_length': 4}},
    }
    params = make_params(sgd, gradient_accumulation_steps=accumulation)
    trainer = shrunk_run.make_trainer(params, replicas)
    logs = harness.train(trainer, 2)
    results.append([logs['training_loss'], *harness.weights_of(trainer)])
  harness.assert_close(results[1], results[0], rtol=1e-4, atol=1e-6)


@pytest.mark.soak
def test_a_run_in_half_precision_with_moving_averages_on_two_replicas_resumes_after_a_stop(run_train, tmp_path):
  flags = [
    '--experiment=language_model',
    '--mode=train_and_eval',
    f'--params_override={json.dumps(SMALL)}',
    '--set=precision=bfloat16',
    '--set=trainer.optimizer_config.ema.average_decay=0.9',
    '--set=runtime.num_virtual_cpus=2',
    '--set=grad_accum_steps=2',
    *(f'--set=trainer.{name}=2' for name in ('steps_per_loop', 'validation_interval', 'checkpoint_interval')),
  ]
  for folder, steps in (('straight', 4), ('resumed', 2), ('resumed', 4)):
    arguments = [*flags, f'--model_dir={tmp_path / folder}', f'--set=train_steps={steps}']
    done = run_train(arguments, timeout=600, env=train_processes.UNOPTIMISED)
    assert done.returncode == 0, done.stderr
  straight, resumed = (comparison.tensors(tmp_path / folder / 'ckpt-4') for folder in ('straight', 'resumed'))
  assert straight.keys() == resumed.keys() and any('average' in name for name in straight)
  for name, value in straight.items():
    np.testing.assert_array_equal(value, resumed[name], err_msg=name)
  model = ext.load(str(tmp_path / 'resumed'))
  assert np.isfinite(model(tf.constant([[1, 2, 3]]))).all()


@pytest.mark.soak
def test_check_finds_no_mistake():
  assert ext.find_mistakes(make_params()) == []


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'losses': {'dpo': {'weight': 1.0}}}, 'task.losses.dpo.weight: this task has label, z_loss, and no dpo'),
    ({'losses': {'label': {'weight': 0.0}}}, 'task.losses: no loss has a weight'),
    ({'train_data': {'input_path': 'a.jsonl'}}, 'task.tokenizer_path: needed with task.train_data.input_path'),
    ({'model': {'hidden_act': 'swish'}}, "task.model.hidden_act: .*'swish'"),
    ({'model': {'num_key_value_heads': 3}}, 'task.model.num_key_value_heads: 3 does not divide 2 heads'),
  ],
)
def test_a_mistake_is_named_by_its_field(changes, message):
  with pytest.raises(errors.UserError, match=f'^{message}'):
    checks.check_values(make_params({'task': changes}))


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path):
  ext.python_topics.tokenizer(VOCAB_SIZE).save(str(tmp_path))
  changes = {'task': {'tokenizer_path': str(tmp_path), 'model': {'vocab_size': VOCAB_SIZE - 1}}}
  with pytest.raises(
    errors.UserError, match='task.tokenizer_path: the tokenizer of .* has 300 tokens, .* has room for 299'
  ):
    shrunk_run.make_task(make_params(changes)).build_model()
