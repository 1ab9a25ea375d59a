"""GRPO: groups of completions, rewards by name in the graph and on the host, the loss, and resuming."""

import json
import time
import types

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from experiments.grpo import arithmetic
from experiments.grpo import rollouts
from experiments.grpo import scoring
from experiments.grpo import task as grpo_task
from experiments.grpo import trainer as trainer_lib
import official_ext as ext
from official_ext.base import errors
from official_ext.base import registry
from official_ext.data import record_files
from official_ext.language.fine_tuning import rewards as rewards_lib
from official_ext.language.modeling import generation
from official_ext.training.config import checks
from official_ext.training.config import parser
from official_ext.training.loop import train_lib
from tests import train_processes
from tests.experiments import shrunk_run
from tests.language.fine_tuning import tiny_models
from tests.soak import comparison
from tests.training.loop import harness

SEVEN = 7


@ext.register_reward('sevens_in_graph', in_graph=True)
def sevens_in_graph(completion_ids, completion_mask, **features):
  """The part of the four tokens that are a 7."""
  del features
  return tf.reduce_sum(tf.cast((completion_ids == SEVEN) & (completion_mask > 0), tf.float32), axis=1) / 4


@ext.register_reward('sevens')
def sevens(completions):
  return [text.count('7') / 4 for text in completions]


@ext.register_reward('long_prompts')
def long_prompts(prompts, completion_ids, answer, **columns):
  """Gives no reward for sums below 100."""
  assert not columns.keys() - {'completions', 'prompts', 'completion_ids', 'answer'}
  return [None if right.endswith('0') else float(len(ids)) for ids, right in zip(completion_ids, answer, strict=True)]


TINY = {
  'task': {
    'model': {'hidden_size': 16, 'num_hidden_layers': 1, 'num_attention_heads': 2, 'num_key_value_heads': 2},
    'pretraining': {'steps': 1, 'batch_size': 8},
    'num_generations': 4,
    'reward_funcs': ['sevens_in_graph'],
    'train_data': {'global_batch_size': 4},
  }
}
FAST = {'constant': {'learning_rate': 0.02}}


def make_params(*overrides, **options):
  params = shrunk_run.make_params('grpo', TINY, *overrides, **options)
  checks.check(params, 'train')
  return params


def task_changes(**changes):
  return {'task': changes}


# Numbers by hand.


def test_weights_advantages_and_logs_of_a_rollout():
  nan = np.nan
  rollout = {
    'rewards': tf.constant([[1.0, nan], [0.0, 2.0], [1.0, 1.0], [1.0, 1.0]]),
    'completion_mask': tf.constant([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 0]]),
    'is_truncated': tf.constant([True, False, False, False]),
  }
  rewards = rollouts.weighted(rollout['rewards'], (1.0, 0.25))
  np.testing.assert_allclose(rewards, [1.0, 0.5, 1.25, 1.25])  # A missing reward adds nothing.
  logs = {name: float(value) for name, value in rollouts.logs_of(rollout, rewards, ('a', 'b'), 2).items()}
  deviation = 0.5 / np.sqrt(2)  # Of the first group; the second has none.
  expected = {
    'reward': 1.0,
    'reward_std': deviation / 2,
    'frac_reward_zero_std': 0.5,
    'completions/mean_length': 2.0,
    'completions/min_length': 1.0,
    'completions/max_length': 3.0,
    'completions/clipped_ratio': 0.25,
    'rewards/a': 0.75,
    'rewards/b': 4 / 3,
  }
  assert logs == pytest.approx(expected)
  advantages = ext.losses.group_advantages(rewards, 2)
  np.testing.assert_allclose(advantages, np.array([0.25, -0.25, 0, 0]) / (deviation + 1e-4), rtol=1e-5)


def by_hand(rollout, policy, old, reference, config, num_items=None):
  """The loss, token by token."""
  rewards = np.asarray(rollout['rewards'])[:, 0]
  groups = rewards.reshape(-1, config.num_generations)
  deviation = groups.std(axis=1, ddof=1, keepdims=True) + 1e-4
  advantages = ((groups - groups.mean(axis=1, keepdims=True)) / deviation).ravel()
  mask = np.asarray(rollout['completion_mask']) * ~np.asarray(rollout['is_truncated'])[:, None]
  total = 0.0
  for row, column in zip(*np.nonzero(mask)):
    ratio = np.exp(policy[row, column] - old[row, column])
    clipped = np.clip(ratio, 0.8, 1.2)
    difference = reference[row, column] - policy[row, column]
    divergence = (np.exp(difference) - difference - 1) * ratio
    total += -min(ratio * advantages[row], clipped * advantages[row]) + config.losses.grpo.beta * divergence
  return total / num_items


@pytest.fixture(scope='module')
def sampled():
  """A task with everything switched on, its model, a batch of prompts, and a rollout of an older model."""
  params = make_params(
    task_changes(
      num_generations=3,
      train_data={'global_batch_size': 16},
      temperature=0.7,
      mask_truncated_completions=True,
      losses={'grpo': {'beta': 0.3, 'normalization': 'dapo'}},
      model={'initializer_range': 0.3},
    )
  )
  task = shrunk_run.make_task(params)
  tf_keras.utils.set_random_seed(7)
  model = task.build_model()
  batch = next(iter(task.build_inputs(params.task.train_data)))
  seed = tf.constant([3, 5], tf.int64)
  return task, model, batch, task.scored_rollout(model, batch, seed), seed


@pytest.mark.slow
def test_a_samplers_log_probabilities_are_the_losss(sampled):
  task, model, batch, _, seed = sampled
  left = tf.tile(tf.constant([[1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1]]), [4, 1])
  rollout = task.rollout(task.samplers[True], model, {**batch, 'segment_ids': left}, 3, seed)
  mask = rollout['completion_mask'].numpy()
  assert 0 < mask.mean() < 1 and 0 < rollout['is_truncated'].numpy().mean() < 1
  found = rollouts.log_probs(model, rollout, 1.0).numpy()
  np.testing.assert_allclose(found * mask, rollout['sampled_log_probs'], atol=1e-5)
  np.testing.assert_array_equal(rollout['prompt_ids'], np.repeat(batch['input_ids'], 3, axis=0))
  # A completion is cut off if none of its tokens is the end.
  stops = (rollout['completion_ids'].numpy() == task.tokenizer.eos_token_id) & (mask > 0)
  np.testing.assert_array_equal(rollout['is_truncated'], ~stops.any(axis=1))


@pytest.mark.slow
def test_the_loss_of_a_rollout_by_hand(sampled):
  task, model, _, rollout, _ = sampled
  old = rollouts.log_probs(model, rollout, 0.7).numpy()
  for number, variable in enumerate(model.trainable_variables):
    variable.assign_add(0.02 * tf.random.stateless_normal(variable.shape, [1, number]))
  policy = rollouts.log_probs(model, rollout, 0.7).numpy()
  reference = rollouts.log_probs(task.reference(model), rollout, 0.7).numpy()
  assert np.abs(policy - old).max() > 0.2 and np.abs(reference - old).max() < 1e-5
  inputs = {**rollout, 'old_log_probs': tf.constant(old), 'num_items_in_batch': tf.constant(17.0)}
  loss, logs = task.forward(inputs, model, training=True)
  np.testing.assert_allclose(loss, by_hand(rollout, policy, old, reference, task.config, 17.0), rtol=1e-4)
  assert float(logs['kl']) > 0 and 0 < float(logs['clip_fraction']) < 1
  # Without another policy to compare with it is the policy itself: nothing is clipped.
  loss, logs = task.forward({**inputs, 'old_log_probs': tf.constant(policy)}, model, training=True)
  inputs.pop('old_log_probs')
  same, same_logs = task.forward(inputs, model, training=True)
  assert float(loss) == float(same) and float(same_logs['clip_fraction']) == 0 == float(logs['clip_fraction'])


@pytest.mark.slow
def test_a_token_of_padding_is_in_no_value_of_the_step(sampled, monkeypatch):
  """Wherever its log-probability is: the divergence of such a token is infinite."""
  task, model, _, rollout, _ = sampled
  inputs = {**rollout, 'num_items_in_batch': tf.constant(17.0)}
  loss, logs = task.forward(inputs, model, training=True)
  log_probs, is_token = rollouts.log_probs, rollout['completion_mask'] > 0
  assert not tf.reduce_all(is_token)
  far = lambda training: -500.0 if training else 0.0
  monkeypatch.setattr(
    rollouts,
    'log_probs',
    lambda *args, training=False: tf.where(is_token, log_probs(*args, training=training), far(training)),
  )
  far_loss, far_logs = task.forward(inputs, model, training=True)
  assert float(far_loss) == float(loss) and float(far_logs['kl']) == float(logs['kl'])


# Learning.


@pytest.mark.slow
@pytest.mark.parametrize(
  'names, weights, enable_xla',
  [
    (['sevens', 'sevens_in_graph'], [0.5, 0.5], False),
    *(
      pytest.param(*case, marks=pytest.mark.soak)
      for case in ((['sevens_in_graph'], [], True), (['sevens_in_graph'], [], False), (['sevens'], [2.0], 'auto'))
    ),
  ],
)
def test_what_is_rewarded_becomes_more(names, weights, enable_xla, tmp_path):
  """A 7 is one of 14 tokens; rewards in Python and in the graph say the same."""
  params = make_params(
    task_changes(
      reward_funcs=names, reward_weights=weights, validation_data={'global_batch_size': 300}, output_dir=str(tmp_path)
    ),
    enable_xla=enable_xla,
    train_steps=16,
    steps_per_loop=4,
    validation_interval=16,
    checkpoint_interval=16,
    optimizer_config={'learning_rate': FAST},
  )
  logs = shrunk_run.run(tmp_path, params)
  events = [json.loads(line) for line in (tmp_path / 'events.jsonl').read_text().splitlines()]
  trained = [event for event in events if event['event'] == 'train']
  assert trained[0]['reward'] < 0.3 * sum(weights or [1.0]) < 0.5 * sum(weights or [1.0]) < trained[-1]['reward']
  for event in trained:
    values = {event[f'rewards/{name}'] for name in names}
    assert max(values) - min(values) < 1e-6
    assert event['reward'] == pytest.approx(max(values) * sum(weights or [1.0]), rel=1e-5)
  assert float(logs['reward']) == -float(logs['validation_loss'])
  assert float(logs['reward']) > 0.5 * sum(weights or [1.0])
  saved = ext.pretrained.load(str(tmp_path / 'model'))
  assert saved.config.vocab_size == 14 and ext.Tokenizer.load(str(tmp_path / 'model')).decode([7, 12]) == '7<end>'


@pytest.mark.slow
@pytest.mark.parametrize('replicas', harness.cases(['one'], ['two']))
def test_an_evaluation_is_the_reward_of_each_likeliest_answer_once(replicas, monkeypatch):
  """In batches of 374, of which the last one is 252; by hand with all problems at once."""
  changes = task_changes(
    reward_funcs=['exact_tokens', 'exact_answer'],
    validation_data={'global_batch_size': 374},
    model={'initializer_range': 0.5},
  )
  make = lambda: shrunk_run.make_trainer(make_params(changes), replicas, evaluate=True)
  words, records = arithmetic.tokenizer(), arithmetic.records(False)
  config = ext.GenerationConfig(max_new_tokens=4, stop_token_ids=words.stop_token_ids, pad_token_id=13)
  generate = ext.generation.Generator(make().model, config)
  found = generate([words.encode(record['prompt']) for record in records])
  # As no answer of an untaught model is right: its answer to every third problem becomes the right one.
  text = lambda completion: words.decode(completion.tokens, skip_special_tokens=True)
  records = [
    {**record, 'answer': text(completion) if number % 3 == 0 else '99999'}
    for number, (record, completion) in enumerate(zip(records, found))
  ]
  # A padding token that was said leaves no trace in the text, and so is not in the answer's tokens.
  ended = sum(completion.tokens[-1] == words.eos_token_id and 13 not in completion.tokens for completion in found[::3])
  assert 0 < ended < 334
  monkeypatch.setattr(arithmetic, 'records', lambda is_training: records)
  logs = harness.evaluate(make())
  assert float(logs['rewards/exact_answer']) == pytest.approx(0.334, abs=1e-6)
  assert float(logs['rewards/exact_tokens']) == pytest.approx(ended / 1000, abs=1e-6)
  assert float(logs['reward']) == pytest.approx(0.334 + ended / 1000, abs=1e-5)


# Resuming.


BUNDLE = {
  'trainer': {
    'gradient_accumulation_steps': 2,
    'optimizer_config': {'ema': {'average_decay': 0.9}, 'learning_rate': FAST},
  },
  'runtime': {'mixed_precision_dtype': 'bfloat16'},
}


@pytest.fixture
def on_a_folder(tmp_path):
  """Changes: adapters on the model of a folder learn from rewards in Python of its answers to prompts in a file."""
  lines = [json.dumps({'prompt': f'What is {n}?', 'answer': f'{n}0'}) for n in range(40)]
  (tmp_path / 'prompts.jsonl').write_text('\n'.join(lines))
  return {
    'model_path': tiny_models.write(tmp_path / 'base'),
    'output_dir': str(tmp_path),
    'losses': {'grpo': {'beta': 0.1}},
    'num_iterations': 2,
    'reward_funcs': ['sevens', 'long_prompts'],
    'lora': {'r': 2},
    'train_data': {'input_path': str(tmp_path / 'prompts.jsonl'), 'seq_length': 24, 'cache_dir': str(tmp_path)},
    'validation_data': {'seq_length': 24, 'cache_dir': str(tmp_path)},
  }


@pytest.mark.slow
def test_adapters_on_a_folder_resume_bit_for_bit_between_two_updates_with_the_same_completions(on_a_folder, tmp_path):
  params = make_params(task_changes(**on_a_folder))
  held = shrunk_run.assert_resumes_bit_for_bit(params, tmp_path)  # From step 3, the second of two.
  assert any(name.startswith('rollouts/completion_ids') for name in held)
  assert not any('reference' in name for name in held)  # It is the model with the adapters switched off.
  logs = shrunk_run.run(tmp_path / 'run', make_params(task_changes(**on_a_folder), train_steps=2))
  assert 0 <= float(logs['completions/mean_length']) <= 4
  assert (tmp_path / 'adapter/adapter_model.safetensors').exists()


@pytest.mark.soak
@pytest.mark.parametrize(
  'changes, overrides, replicas, enable_xla',
  [
    ({}, {}, 'one', True),
    ({}, {}, 'two', True),
    ({'num_iterations': 2, 'reward_funcs': ['sevens', 'long_prompts']}, {}, 'two', False),
    ({'losses': {'grpo': {'normalization': 'dapo'}}}, BUNDLE, 'one', True),
    ({}, BUNDLE, 'two', True),
  ],
)
def test_a_run_resumes_bit_for_bit(changes, overrides, replicas, enable_xla, tmp_path):
  fast = {'trainer': {'optimizer_config': {'learning_rate': FAST}}}
  with_reference = task_changes(losses={'grpo': {'beta': 0.1}})
  params = make_params(fast, overrides, with_reference, task_changes(**changes), enable_xla=enable_xla)
  held = shrunk_run.assert_resumes_bit_for_bit(params, tmp_path, replicas)
  assert any('reference' in name for name in held)


@pytest.mark.soak
@pytest.mark.parametrize('replicas', [1, 2])
def test_a_run_that_is_killed_ends_as_one_that_is_not(replicas, tmp_path, run_train, start_train):
  command = [
    '--experiment=grpo',
    '--mode=train_and_eval',
    f'--set=runtime.num_virtual_cpus={replicas}',
    '--set=runtime.distribution_strategy=mirrored',
    '--params_override=task.model.hidden_size=16,task.model.num_hidden_layers=1,task.pretraining.steps=20,'
    'task.train_data.global_batch_size=4,trainer.train_steps=40,trainer.checkpoint_interval=5,'
    'trainer.validation_interval=20,trainer.steps_per_loop=5,trainer.summary_interval=5',
    '--set=task.losses.grpo.beta=0.05',
    '--set=task.num_iterations=3',
    '--set=reward_funcs=[ended]',  # Such a model never answers right, but its completions differ in this.
  ]
  options = {'env': train_processes.UNOPTIMISED}
  straight = run_train([*command, f'--model_dir={tmp_path}/straight'], timeout=600, **options)
  assert straight.returncode == 0, straight.stderr
  rewards = [event['reward_std'] for event in comparison.history(tmp_path / 'straight') if event['event'] == 'train']
  assert min(rewards) > 0
  killed = start_train([*command, f'--model_dir={tmp_path}/killed'], **options)
  events = tmp_path / 'killed/events.jsonl'
  deadline = time.monotonic() + 600
  while not (events.exists() and '"step": 15' in events.read_text()):
    assert killed.poll() is None and time.monotonic() < deadline
    time.sleep(0.02)
  killed.kill()
  killed.wait()
  resumed = run_train([*command, f'--model_dir={tmp_path}/killed'], timeout=600, **options)
  assert resumed.returncode == 0, resumed.stderr
  assert comparison.differences(tmp_path / 'killed', tmp_path / 'straight') == []


@pytest.mark.soak
def test_check_finds_no_mistake_but_reports_if_there_is_nothing_to_prefer(capsys):
  seed = {'task': {'train_data': {'seed': 3}}}  # Another test may have had this process teach the base of seed 0.
  assert ext.find_mistakes(make_params(seed)) == []
  (finding,) = ext.find_mistakes(make_params(seed, task_changes(reward_funcs=['exact_tokens'])))
  assert finding.level == 'warning' and finding.what.endswith('so that there is nothing to prefer')
  assert capsys.readouterr().out.count('A base model was taught') == 1


@pytest.mark.slow
@pytest.mark.parametrize('replicas', harness.cases(['two'], ['one']))
def test_a_step_knows_the_tokens_of_its_whole_update_and_its_groups_stay_together(replicas):
  params = make_params(
    task_changes(losses={'grpo': {'normalization': 'dapo'}}, model={'initializer_range': 0.5}),
    gradient_accumulation_steps=2,
  )
  trainer = shrunk_run.make_trainer(params, replicas)
  assert isinstance(trainer, trainer_lib.GrpoTrainer)
  trainer.prepare_training()
  take = tf.function(lambda: trainer.step_inputs.take(trainer.train_iterator), autograph=False)
  parts = trainer.strategy.experimental_local_results
  for _ in range(2):
    micro_batches = take()
    rollouts_of = [
      {name: parts(value)[replica].numpy() for name, value in batch.items()}
      for batch in micro_batches
      for replica in range(trainer.strategy.num_replicas_in_sync)
    ]
    total = sum(rollout['completion_mask'].sum() for rollout in rollouts_of)
    for rollout in rollouts_of:
      assert rollout['num_items_in_batch'] == pytest.approx(total / len(rollouts_of))
      groups = rollout['prompt_ids'].reshape(-1, 4, rollout['prompt_ids'].shape[1])
      np.testing.assert_array_equal(groups, np.repeat(groups[:, :1], 4, axis=1))
    prompts = np.concatenate([rollout['prompt_ids'][::4] for rollout in rollouts_of])
    assert len(np.unique(prompts, axis=0)) == 8 == len(prompts)
    drawn = {rollout['completion_ids'].tobytes() for rollout in rollouts_of}
    assert len(drawn) == len(rollouts_of)


class Sevens:
  """A sampler that is not the model: all tokens are a 7. It keeps count of the weights it was given."""

  def __init__(self, length):
    self.length, self.steps, self.prompt_length = length, [], 0

  def prepare(self, model, prompt_length):
    self.prompt_length = prompt_length

  def take_weights(self, model, step):
    return tf.ensure_shape(tf.numpy_function(lambda step: self.steps.append(int(step)) or step, [step], tf.int64), [])

  def __call__(self, model, prompts, mask, count, seed):
    shape = [count * prompts.shape[0], self.length]
    ones = tf.ones(shape, tf.int32)
    return generation.Samples(SEVEN * ones, tf.fill(shape, np.nan), ones)


@pytest.mark.slow
def test_another_sampler_runs_between_steps_with_the_weights_of_each(monkeypatch):
  params = make_params(task_changes(output_dir=''))
  sampler = Sevens(params.task.max_completion_length)
  monkeypatch.setattr(grpo_task.GrpoTask, 'training_sampler', sampler)
  trainer = shrunk_run.make_trainer(params, 'one')
  assert isinstance(trainer, trainer_lib.GrpoTrainer) and trainer.task.why_between_steps == 'Sevens is not the model'
  assert sampler.prompt_length == params.task.train_data.seq_length
  logs = harness.train(trainer, 3)
  assert logs['reward'] == pytest.approx(sampler.length / 4) and sampler.steps == [0, 1, 2]
  # Unknown log-probabilities are no difference.
  assert logs['sampling/sampling_logp_difference/max'] == 0


# Rewards by name.


def test_rewards_of_answers_and_formats():
  answers = ['<think>a\nb</think>5', 'x<answer> 42 </answer>', '<reasoning>r</reasoning>\n<answer>1</answer>', '7 ']
  assert rewards_lib.exact_answer(answers, answer=['5', 42, '2', ' 7']) == [0.0, 1.0, 0.0, 1.0]
  assert rewards_lib.think_format(answers) == [1.0, 0.0, 0.0, 0.0]
  assert rewards_lib.answer_format(answers) == [0.0, 0.0, 1.0, 0.0]
  as_messages = [[{'role': 'assistant', 'content': text}] for text in answers]
  assert rewards_lib.exact_answer(as_messages, answer=['5', 42, '2', ' 7']) == [0.0, 1.0, 0.0, 1.0]


@pytest.fixture
def prompts(tmp_path):
  """A source of conversations from a file."""
  lines = [{'prompt': [{'role': 'user', 'content': f'{n} + 1?'}], 'answer': f'{n + 1}', 'level': n} for n in range(6)]
  (tmp_path / 'p.jsonl').write_text('\n'.join(map(json.dumps, lines)))
  params = ext.TextDataConfig(
    input_path=str(tmp_path / 'p.jsonl'), example_format='prompt', output_column='answer', seq_length=40
  )
  records = record_files.open_records(params.input_path, '', -1, 'x')
  return ext.text_source(params, tiny_models.make_tokenizer(), records), params


def test_a_function_in_python_is_called_as_trl_does(prompts, monkeypatch):
  source, params = prompts
  calls = []
  monkeypatch.setattr(rewards_lib, 'REWARDS', registry.Registry('reward'))
  ext.register_reward('spy')(lambda **known: calls.append(known) or [None, 2])
  ids = [source.tokenizer.encode(text) for text in ('yes<|endoftext|>', 'no, 3')]
  rows = np.zeros([2, 12], np.int32)
  for row, tokens in zip(rows, ids):
    row[: len(tokens)] = tokens
  mask = (np.arange(12) < [[len(tokens)] for tokens in ids]).astype(np.int32)
  found = scoring.HostRewards(source, params)(ext.rewards.find(['spy'], 'x'), np.array([2, 5]), rows, mask)
  np.testing.assert_array_equal(found, [[np.nan], [2.0]])
  assert calls == [
    {
      'prompts': [[{'role': 'user', 'content': '2 + 1?'}], [{'role': 'user', 'content': '5 + 1?'}]],
      'completions': [[{'role': 'assistant', 'content': text}] for text in ('yes', 'no, 3')],
      'completion_ids': ids,
      'answer': ['3', '6'],
      'level': [2, 5],
    }
  ]
  for returned, message in (([1.0], 'returned 1 numbers for 2 completions'), ('no', 'returned no; expected a list')):
    monkeypatch.setattr(rewards_lib, 'REWARDS', registry.Registry('reward'))
    ext.register_reward('wrong')(lambda returned=returned, **known: returned)
    with pytest.raises(errors.UserError, match=f'the reward wrong: .*{message}'):
      scoring.HostRewards(source, params)(ext.rewards.find(['wrong'], 'x'), np.array([2, 5]), rows, mask)


def test_answers_are_tokens_with_their_end(prompts):
  source, params = prompts
  words = source.tokenizer
  answered = scoring.AnsweredPrompts(source, params.output_column, 3)
  (row,) = answered.fetch([4])
  assert row['answer_ids'].tolist() == [*words.encode('5'), words.eos_token_id, words.fill_token_id]
  (row,) = scoring.AnsweredPrompts(source, 'prompt', 3).fetch([4])
  assert row['answer_ids'].tolist() == [-1] * 3
  with pytest.raises(errors.UserError, match=r"task.train_data.output_column: .* no column 'right'; .*prompt, answer"):
    scoring.check_columns(
      ext.rewards.find(['exact_tokens'], 'x'), source, params.replace(output_column='right', is_training=True)
    )
  with pytest.raises(errors.UserError, match="task.reward_funcs: the reward needy needs 'grade', .* prompt, answer"):
    scoring.check_columns([rewards_lib.Reward('needy', lambda grade: grade, False)], source, params)


def test_a_name_of_a_reward_is_taken_once():
  ext.register_reward('sevens')(sevens)  # The same again, as when a module is imported twice.
  with pytest.raises(
    errors.UserError, match=r"the reward 'sevens' is registered already, by .*grpo_test.sevens \(.*line \d+\), and"
  ):
    ext.register_reward('sevens')(long_prompts)


# Short names.


def parse(*sets):
  return parser.parse_configuration(types.SimpleNamespace(experiment='grpo', set=list(sets)), print_return=False)


def test_short_names_are_deepextensions_and_trls():
  params = parse(
    *('model_path=m', 'dataset_path=d.jsonl', 'lora_rank=3', 'num_generations=2', 'max_input_length=33'),
    *('max_content_length=44', 'max_steps=50', 'batch_size=2', 'grad_accum_steps=5', 'learning_rate=5e-6'),
    *('warmup_steps=4', 'max_grad_norm=0.1', 'prompt_input_column=q', 'prompt_output_column=a', 'epsilon=0.3'),
    *('beta=0.04', 'loss_type=dr_grpo', 'temperature=0.9', 'reward_funcs=[ended]', 'reward_weights=[0.5]'),
  )
  task, optimization = params.task, params.trainer.optimizer_config
  assert (task.lora.r, task.lora.lora_alpha, task.num_generations, task.max_completion_length) == (3, 3.0, 2, 44)
  for data in (task.train_data, task.validation_data):
    assert (data.seq_length, data.prompt_column, data.output_column) == (33, 'q', 'a')
  loss = task.losses.grpo
  assert (loss.beta, loss.epsilon_low, loss.epsilon_high, loss.normalization) == (0.04, 0.3, 0.3, 'dr_grpo')
  assert (task.reward_names, task.reward_weights, task.temperature) == (('ended',), (0.5,), 0.9)
  assert optimization.learning_rate.get().learning_rate == 5e-6 and optimization.warmup.get().warmup_steps == 4
  assert optimization.optimizer.get().global_clipnorm == 0.1 and params.trainer.train_steps == 50
  assert parse('model_path=m', 'dataset_path=d.jsonl').task.reward_names == ('exact_answer', 'answer_format')
  assert parse('model_path=m', 'lora_rank=3', 'lora_alpha=8').task.lora.lora_alpha == 8
  with pytest.raises(errors.UserError, match='max_seq_length: grpo has no such parameter: prompts have max_input_leng'):
    parse('max_seq_length=77')


# Refusals.


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'reward_funcs': ['exact_anser']}, "task.reward_funcs: no reward 'exact_anser'; did you mean exact_answer?"),
    ({'reward_weights': [1.0, 2.0]}, 'task.reward_weights: 2 weights for 1 rewards .exact_tokens.'),
    ({'reward_funcs': ['sevens', 'sevens']}, 'task.reward_funcs: names a reward twice'),
    ({'num_generations': 1}, r'task.num_generations: .*1'),
    ({'temperature': 0.0}, 'task.temperature: '),
    ({'scale_rewards': 'groups'}, 'task.scale_rewards: '),
    ({'train_data': {'input_path': 'p.jsonl'}}, 'task.model_path: is empty; a model learns from rewards if it earns'),
    ({'validation_data': {'example_format': 'text'}}, 'task.validation_data.example_format: text: completions'),
    ({'losses': {'label': {'weight': 1.0}}}, 'task.losses.label.weight: this task has grpo, and no label'),
  ],
)
def test_what_means_nothing_is_refused(changes, message):
  params = shrunk_run.make_params('grpo', task_changes(**changes))
  with pytest.raises(errors.UserError, match=message):
    checks.check(params, 'train')


@pytest.mark.parametrize(
  'changes, options, message',
  [
    (
      {'reward_funcs': ['sevens']},
      {'steps_per_execution': 4},
      'trainer.steps_per_execution: 4: .* sampled between steps .the reward sevens is a function in Python',
    ),
    ({'train_data': {'global_batch_size': 5}}, {}, 'global_batch_size.*5.*2 replicas'),
  ],
)
def test_what_cannot_be_run_is_refused(changes, options, message):
  params = make_params(task_changes(**changes), **options)
  with pytest.raises(errors.UserError, match=message):
    train_lib.build_trainer(
      harness.strategy('two'), shrunk_run.make_task(params, 'two'), params, None, train=True, evaluate=False
    )
