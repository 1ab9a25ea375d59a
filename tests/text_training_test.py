"""train.py on conversations from a file: trained, resumed bit for bit, and cuts are reported."""

import json

import numpy as np
import pytest

import official_ext as ext
from tests.soak import comparison

TASK = '''
"""A table of which token follows which, learned from conversations."""

import dataclasses

import official_ext as ext
import tensorflow as tf, tf_keras


@dataclasses.dataclass
class PairsConfig(ext.TaskConfig):
  """Where the tokenizer is, and data."""

  model_path: str = ''
  train_data: ext.TextDataConfig = dataclasses.field(
    default_factory=lambda: ext.TextDataConfig(global_batch_size=4, is_training=True, seq_length=32, packing='best_fit')
  )
  validation_data: ext.TextDataConfig = dataclasses.field(
    default_factory=lambda: ext.TextDataConfig(global_batch_size=4, is_training=False, seq_length=32, packing='wrapped')
  )


@ext.register_task(PairsConfig)
class Pairs(ext.Task):
  """Logits of the next token from the last one alone."""

  def build_model(self):
    size = len(ext.Tokenizer.load(self.config.model_path))
    ids = tf_keras.Input((None,), dtype=tf.int32)
    return tf_keras.Model(ids, tf_keras.layers.Embedding(size, size)(ids))

  def build_inputs(self, params, input_context=None):
    source = ext.text_source(params, ext.Tokenizer.load(self.config.model_path))
    return ext.build_dataset(source, params, input_context)

  def forward(self, inputs, model, training):
    logits, labels = model(inputs['input_ids'], training=training)[:, :-1], inputs['labels'][:, 1:]
    weights = tf.cast(labels >= 0, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), logits)
    return tf.reduce_sum(losses * weights) / tf.maximum(tf.reduce_sum(weights), 1.0), {}


@ext.register_experiment('pairs')
def pairs():
  """A loss of 3.3 after 20 steps."""
  trainer = ext.TrainerConfig(
    train_steps=20, steps_per_loop=5, summary_interval=5, checkpoint_interval=5, validation_interval=10,
    optimizer_config=ext.OptimizationConfig({
      'optimizer': {'type': 'adamw_experimental'},
      'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.1}},
    }),
  )
  return ext.ExperimentConfig(task=PairsConfig(), trainer=trainer)
'''
CHAT = '{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}'


@pytest.fixture
def command(tmp_path):
  """The arguments of train.py but for the run's folder, and where data and task are."""
  (tmp_path / 'pairs_task.py').write_text(TASK)
  tokenizer = ext.train_tokenizer(['hello there'], 262, ['<|user|>', '<|assistant|>', '<|end|>'], CHAT, folder=tmp_path)
  tokenizer.save(str(tmp_path / 'model'))
  with open(tmp_path / 'a, [chat].jsonl', 'w') as f:
    for n in range(50):
      answer = 'a long answer that no row has the room to hold' if n == 7 else f'{n + 1}'
      turns = [{'role': 'user', 'content': f'{n} + 1?'}, {'role': 'assistant', 'content': answer}]
      f.write(json.dumps({'messages': turns}) + '\n')
  arguments = ['--experiment=pairs', '--registry=pairs_task', '--mode=train_and_eval', '--set=task.model_path=model']
  return [
    *arguments,
    *(f'--set=task.{data}.input_path=["a, [chat].jsonl"]' for data in ('train_data', 'validation_data')),
  ]


@pytest.mark.soak  # tests/experiments/sft_test.py has a kill on text among the quick ones.
def test_a_run_on_text_resumes_bit_for_bit_and_reports_cuts(command, tmp_path, run_train):
  env = {'PYTHONPATH': str(tmp_path), 'XDG_CACHE_HOME': str(tmp_path / 'cache')}
  for folder, steps in (('straight', 20), ('resumed', 10), ('resumed', 20)):
    done = run_train([*command, f'--model_dir={folder}', f'--set=train_steps={steps}'], cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    # <|user|>7 + 1?<|end|><|assistant|> and the answer of 46 letters, at most a token each.
    (warning,) = [line for line in done.stderr.splitlines() if 'texts were cut' in line]
    assert 'task.train_data.seq_length: 1 texts were cut, and ' in warning
  straight, resumed = (comparison.tensors(tmp_path / folder / 'ckpt-20') for folder in ('straight', 'resumed'))
  assert straight.keys() == resumed.keys()
  for name, value in straight.items():
    np.testing.assert_array_equal(value, resumed[name], err_msg=name)
  events = [json.loads(line) for line in (tmp_path / 'straight' / 'events.jsonl').read_text().splitlines()]
  losses = [event['training_loss'] for event in events if event['event'] == 'train']
  assert losses[-1] < losses[0] - 1
  assert sum(event['event'] == 'eval' for event in events) == 2
  manifest = json.loads((tmp_path / 'straight' / 'ckpt-20.manifest.json').read_text())
  identities = {name: found for name, (found,) in manifest['data'].items()}
  wrapped, packed = identities['validation_data'], identities['train_data']  # Nothing is cut in the former.
  assert wrapped['num_tokens'] == packed['num_tokens'] + packed['num_tokens_cut'] > packed['num_tokens']
  assert len(list((tmp_path / 'cache' / 'official_ext' / 'tokens').iterdir())) == 2
