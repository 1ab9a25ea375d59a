"""The experiment text_classifier: labels, the last token, a start from other weights, learning, and resuming."""

import json
import math

import numpy as np
import pytest
import tensorflow as tf

from experiments.text_classifier import topics
import official_ext as ext
from official_ext.base import errors
from official_ext.training.config import checks
from tests import train_processes
from tests.experiments import shrunk_run
from tests.soak import comparison
from tests.training.loop import harness

VOCAB_SIZE, SEQ_LENGTH = 300, 32
_DATA = {'seq_length': SEQ_LENGTH, 'global_batch_size': 8, 'max_samples': 40}
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
  return shrunk_run.make_params('text_classifier', SMALL, *overrides, **options)


def test_every_paragraph_is_in_one_split_with_one_label():
  train, validation = topics.paragraphs('train'), topics.paragraphs('validation')
  texts = [record['text'] for record in (*train, *validation)]
  assert len(texts) == len(set(texts)) > 1000
  assert len(validation) / len(texts) == pytest.approx(1 / 4, abs=5 * math.sqrt(0.25 * 0.75 / len(texts)))
  assert {record['label'] for record in validation} == set(topics.CLASSES)
  documents = {part['topic']: part['text'] for split in ('train', 'validation') for part in _documents(split)}
  for record in validation[::20]:
    inside = [topic for topic, text in documents.items() if record['text'] in ' '.join(text.split())]
    assert set(inside) & set(topics.CLASSES[record['label']].split())


def _documents(split):
  return ext.python_topics.documents(split)


@pytest.fixture
def reviews(tmp_path):
  """Files of a user's: three texts of different lengths, of two classes; and a tokenizer."""
  texts = [('so good', 'praise'), ('a very bad and long evening', 'blame'), ('good', 'praise')]
  with open(tmp_path / 'reviews.jsonl', 'w') as f:
    f.writelines(json.dumps({'review': text, 'stars': label}) + '\n' for text, label in texts)
  ext.train_tokenizer([text for text, _ in texts], 262, folder=str(tmp_path)).save(str(tmp_path / 'tokenizer'))
  of_data = {
    'input_path': str(tmp_path / 'reviews.jsonl'),
    'prompt_column': 'review',
    'label_column': 'stars',
    'max_samples': -1,
    'global_batch_size': 3,
  }
  paths = {'tokenizer_path': str(tmp_path / 'tokenizer'), 'class_names': ['blame', 'praise']}
  return {'task': {**paths, 'train_data': of_data, 'validation_data': of_data}}


def test_rows_of_files_end_with_their_text_and_what_fills_them_changes_nothing(reviews):
  task = shrunk_run.make_task(make_params(reviews))
  model = task.build_model()
  (batch,) = task.build_inputs(task.config.validation_data)
  assert batch['label'].numpy().tolist() == [1, 0, 1]
  logits = model(batch['input_ids'], segments=batch['segment_ids'])
  loss, logs = task.forward(batch, model, training=False)
  tokenizer = ext.Tokenizer.load(reviews['task']['tokenizer_path'])
  serve = task.serving_function(model)
  log_p = []
  for row, (text, label) in enumerate((('so good', 1), ('a very bad and long evening', 0), ('good', 1))):
    alone = serve(tf.constant([tokenizer.encode(text)]))['logits'][0].numpy()
    np.testing.assert_allclose(logits[row], alone, atol=1e-6)
    log_p.append(alone[label] - np.log(np.exp(alone).sum()))
  assert float(loss) == pytest.approx(-np.mean(log_p), rel=1e-5)
  np.testing.assert_array_equal(logs['accuracy'][1], logits)


def test_a_label_that_is_no_class_is_reported_with_its_line(reviews):
  task = shrunk_run.make_task(make_params(reviews, {'task': {'class_names': ['blame', 'Praise']}}))
  with pytest.raises(Exception, match="line 1.* has 'praise' in the column 'stars'; there are blame, Praise"):
    list(task.build_inputs(task.config.validation_data))


@pytest.mark.soak
def test_it_learns_from_a_start_with_other_weights(reviews, tmp_path):
  """Those of a model of language, whose head is another."""
  config = make_params().task.model
  base = ext.LanguageModel(config)
  tf.train.Checkpoint(model=base).write(str(tmp_path / 'ckpt-1'))
  faster = {
    'trainer': {
      'optimizer_config': {
        'warmup': {'type': None},
        'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.01}},
      }
    },
    'task': {'init_checkpoint': str(tmp_path / 'ckpt-1')},
  }
  trainer = shrunk_run.make_trainer(make_params(reviews, faster), evaluate=True)
  trainer.initialize()
  for name in ('embed_tokens', 'norm'):
    for found, wanted in zip(getattr(trainer.model.decoder, name).weights, getattr(base.decoder, name).weights):
      np.testing.assert_array_equal(found, wanted)
  first, last = harness.train(trainer, 1), harness.train(trainer, 30)
  assert last['training_loss'] < 0.5 * first['training_loss']
  assert harness.evaluate(trainer)['accuracy'] == 1.0


def test_a_model_of_hugging_faces_files_is_begun_with(reviews, tmp_path):
  base = ext.LanguageModel(make_params().task.model)
  ext.pretrained.save(base, str(tmp_path / 'base'))
  reviews['task']['model_path'] = str(tmp_path / 'base')
  decoder = shrunk_run.make_task(make_params(reviews)).build_model().decoder
  np.testing.assert_array_equal(decoder.embed_tokens.weights[0], base.decoder.embed_tokens.weights[0])
  assert decoder.config.residual_dropout == 0.1  # How it is trained is the experiment's.


@pytest.mark.soak
@pytest.mark.parametrize('replicas, enable_xla', shrunk_run.CONTINUATIONS)
def test_a_restored_run_resumes_bit_for_bit(replicas, enable_xla, tmp_path):
  shrunk_run.assert_resumes_bit_for_bit(make_params(enable_xla=enable_xla), tmp_path, replicas)


@pytest.mark.soak
def test_two_replicas_and_accumulation_learn_what_one_does():
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
      'task': {'train_data': {'global_batch_size': batch_size}, 'model': {'residual_dropout': 0.0}},
    }
    trainer = shrunk_run.make_trainer(make_params(sgd, gradient_accumulation_steps=accumulation), replicas)
    logs = harness.train(trainer, 2)
    results.append([logs['training_loss'], *harness.weights_of(trainer)])
  harness.assert_close(results[1], results[0], rtol=1e-4, atol=1e-6)


@pytest.mark.soak
def test_a_run_in_half_precision_with_moving_averages_on_two_replicas_resumes_after_a_stop(run_train, tmp_path):
  flags = [
    '--experiment=text_classifier',
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


@pytest.mark.soak
def test_check_finds_no_mistake():
  assert ext.find_mistakes(make_params()) == []


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'losses': {'z_loss': {'weight': 1.0}}}, 'task.losses.z_loss.weight: this task has label, and no z_loss'),
    ({'class_names': ['a', 'a']}, 'task.class_names: expected two different names or more'),
    ({'train_data': {'input_path': 'a.jsonl'}}, 'task.tokenizer_path: needed with task.train_data.input_path'),
    ({'train_data': {'example_format': 'messages'}}, 'task.train_data.example_format: a classifier reads'),
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


def test_records_that_are_left_out_are_in_the_summary_of_the_source(tmp_path):
  path = tmp_path / 'texts.jsonl'
  label = next(iter(topics.CLASSES))
  good, bad = json.dumps({'text': 'one two three', 'label': label}), json.dumps({'text': None, 'label': label})
  path.write_text(f'{good}\n{bad}\n{good}\n')
  data = {'input_path': str(path), 'max_samples': -1, 'on_bad_example': 'skip', 'global_batch_size': 1}
  task = shrunk_run.make_task(make_params({'task': {'train_data': data}}))
  source = task._source(task.config.train_data)
  assert len(source) == 2 and source.summary() == source._texts.summary() != '2 examples'
