"""GRPO with completions of a server: the pushed adapter is the one that samples; staleness, restarts, refusals."""

import json
import os
import threading

import numpy as np
import pytest
import tensorflow as tf

import official_ext as ext
from official_ext.base import errors
from official_ext.training.config import checks
from tests.experiments import grpo_test
from tests.experiments import shrunk_run
from tests.language.fine_tuning import tiny_models
from tests.language.fine_tuning import vllm_stand_in
from tests.training.loop import harness

LENGTH, PROMPT_LENGTH = 5, 24


class Engine:
  """Answers by the project's own model, with the adapter of the folder that a request names."""

  def __init__(self, base):
    self._base = base
    self._model = None
    self._folder = ''
    self._samplers = {}
    self._lock = threading.Lock()

  def _load(self, folder):
    """Reads a folder into the model, which is made once: its programs are compiled once."""
    model = ext.pretrained.load(self._base)
    ext.peft_folders.load(model, folder)
    if self._model is None:
      self._model = model
    weights = lambda of: [value for part in ext.lora.adapters(of) for value in part.own_weights().values()]
    for mine, new in zip(weights(self._model), weights(model), strict=True):
      mine.assign(new)
    self._folder = folder

  def __call__(self, folder, prompts, body):
    with self._lock:
      if folder != self._folder:
        self._load(folder)
      config = ext.GenerationConfig(
        max_new_tokens=body['max_tokens'],
        temperature=body['temperature'],
        stop_token_ids=tuple(body['stop_token_ids']),
      )
      sampler = self._samplers.setdefault(config.temperature, ext.ModelSampler(config))
      return [row for k, prompt in enumerate(prompts) for row in self._rows(sampler, prompt, body, k)]

  def _rows(self, sampler, prompt, body, number):
    padding = [0] * (PROMPT_LENGTH - len(prompt))
    ids, mask = (tf.constant([padding + row]) for row in (prompt, [1] * len(prompt)))
    seed = tf.constant([body['seed'], number], tf.int64)
    found = sampler(self._model, ids, mask, body['n'], seed)
    lengths = tf.reduce_sum(found.mask, axis=1).numpy()
    return [
      (tokens[:length], log_probs[:length])
      for tokens, log_probs, length in zip(found.tokens.numpy().tolist(), found.log_probs.numpy().tolist(), lengths)
    ]


@pytest.fixture(scope='module')
def base(tmp_path_factory):
  folder = tmp_path_factory.mktemp('base')
  (folder / 'prompts.jsonl').write_text('\n'.join(json.dumps({'prompt': f'What is {n}?'}) for n in range(40)))
  tiny_models.write(folder / 'model')
  return folder


@pytest.fixture(scope='module')
def engine(base):
  return Engine(str(base / 'model'))


@pytest.fixture
def stand_in(engine):
  with vllm_stand_in.StandIn(engine) as found:
    yield found


def task_of(base, stand_in, folder, sampler=(), **changes):
  return {
    'model_path': str(base / 'model'),
    'reward_funcs': ['sevens'],
    'num_generations': 3,
    'max_completion_length': LENGTH,
    'sampler': {
      **{'use_vllm': True, 'vllm_server_base_url': stand_in.url, 'vllm_server_timeout': 300.0},
      **{'adapter_dir': str(folder / 'pushed'), **dict(sampler)},
    },
    'train_data': {
      **{'input_path': str(base / 'prompts.jsonl'), 'seq_length': PROMPT_LENGTH, 'global_batch_size': 4},
      'cache_dir': str(base),
    },
    'validation_data': {'seq_length': PROMPT_LENGTH, 'cache_dir': str(base)},
    **changes,
  }


FAST = {'trainer': {'optimizer_config': {'learning_rate': {'constant': {'learning_rate': 0.1}}}}}


@ext.register_reward('odd_tokens')
def odd_tokens(completion_ids):
  return [float(np.mean(np.array(ids) % 2)) for ids in completion_ids]


def make_trainer(base, stand_in, folder, *overrides, replicas='one', **changes):
  params = grpo_test.make_params(
    FAST, {'task': task_of(base, stand_in, folder, reward_funcs=['odd_tokens'], **changes)}, *overrides
  )
  return shrunk_run.make_trainer(params, replicas)


def greedy(task, sampler, trainer, batch, step):
  """Tokens, log-probabilities and mask of the likeliest completions by a sampler that has the present weights."""
  sampler.prepare(trainer.model, PROMPT_LENGTH)
  sampler.take_weights(trainer.model, tf.constant(step, tf.int64))
  found = sampler(trainer.model, batch['input_ids'], batch['segment_ids'], 1, tf.constant([0, 0], tf.int64))
  return [value.numpy() for value in found]


DIFFERENCE = 'sampling/sampling_logp_difference/max'


@pytest.mark.parametrize('replicas', harness.cases(['one'], ['two']))
def test_the_server_samples_with_the_adapter_of_each_step(base, stand_in, tmp_path, replicas):
  trainer = make_trainer(base, stand_in, tmp_path, replicas=replicas)
  task = trainer.task
  batch = next(iter(task.build_inputs(trainer.config.task.train_data)))
  own = ext.ModelSampler(task._sampling(False))
  server = ext.VllmSampler(trainer.config.task.sampler, task._sampling(False), str(tmp_path))
  before = greedy(task, own, trainer, batch, 0)
  for step in range(1, 4):
    logs = harness.train(trainer, 1)
    assert float(logs['reward_std']) > 0
    assert float(logs[DIFFERENCE]) < 1e-4, step  # The weights that the loss has are those that sampled.
  assert len(stand_in.bodies('/v1/load_lora_adapter')) == 3 and len(stand_in.adapters) == 1
  assert len(os.listdir(tmp_path / 'pushed')) == 1
  after = greedy(task, own, trainer, batch, 3)
  assert not np.array_equal(before[0], after[0])
  found = greedy(task, server, trainer, batch, 3)
  np.testing.assert_array_equal(found[0], after[0])
  np.testing.assert_array_equal(found[2], after[2])
  np.testing.assert_allclose(found[1], after[1], atol=1e-5)
  seeds = [body['seed'] for body in stand_in.bodies('/v1/completions')]
  assert len(set(seeds)) == len(seeds) == 3 * 4 + 4


@pytest.mark.slow
def test_stale_weights_are_accounted_for_by_the_ratio(base, stand_in, tmp_path):
  trainer = make_trainer(base, stand_in, tmp_path, sampler={'weight_sync_steps': 2, 'prompts_per_request': 3})
  differences, clipped = [], []
  for _ in range(4):
    logs = harness.train(trainer, 1)
    differences.append(float(logs[DIFFERENCE]))
    clipped.append(float(logs['clip_fraction']))
  # The warm-up begins at 0: the first update changes nothing.
  assert max(differences[0], differences[2]) < 1e-4 < 1e-2 < differences[3]
  assert clipped[0] == clipped[2] == 0 < clipped[3]
  assert len(stand_in.bodies('/v1/load_lora_adapter')) == 2
  assert sorted(len(body['prompt']) for body in stand_in.bodies('/v1/completions')) == [1] * 4 + [3] * 4


@pytest.mark.slow
def test_a_restart_of_the_server_costs_nothing_and_changes_nothing(base, stand_in, tmp_path):
  straight = make_trainer(base, stand_in, tmp_path / 'a')
  harness.train(straight, 3)
  interrupted = make_trainer(base, stand_in, tmp_path / 'b')
  harness.train(interrupted, 1)
  answer = stand_in.answer

  def lose_once(folder, prompts, body):
    stand_in.answer = answer
    stand_in.adapters.clear()
    stand_in.lost = 1
    return answer(folder, prompts, body)

  stand_in.answer = lose_once
  harness.train(interrupted, 2)
  assert len(stand_in.bodies('/v1/load_lora_adapter')) > 6
  for ours, theirs in zip(interrupted.model.trainable_variables, straight.model.trainable_variables, strict=True):
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_a_lost_server_ends_the_run_with_one_line(base, stand_in, tmp_path):
  trainer = make_trainer(base, stand_in, tmp_path)
  harness.train(trainer, 1)
  stand_in.lost = 10**6
  trainer.task.training_sampler._server._timeout = 1.0
  with pytest.raises(errors.WorkerLostError, match=f'{stand_in.url}/v1/.*: no answer for 1 s'):
    trainer.train(tf.constant(1))


def beyond(answer):
  answer['choices'][0]['token_ids'][0] = 304


def unknown(answer):
  for choice in answer['choices']:
    del choice['logprobs']


def too_long(answer):
  answer['choices'][0]['token_ids'] = [7] * (LENGTH + 1)


@pytest.mark.parametrize(
  'change, sampler, message',
  [
    (beyond, {}, 'returns the token 304, and the model has 304; serve the model of task.model_path'),
    (too_long, {}, f'returns {LENGTH + 1} tokens, requested 1 to {LENGTH}'),
    (unknown, {'weight_sync_steps': 2}, 'no log-probabilities, which task.sampler.weight_sync_steps=2 requires'),
  ],
)
def test_completions_of_another_model_are_one_line(base, stand_in, tmp_path, change, sampler, message):
  trainer = make_trainer(base, stand_in, tmp_path, sampler=sampler)
  stand_in.changes = change
  with pytest.raises(errors.UserError, match=message) as raised:
    harness.train(trainer, 1)
  assert '\n' not in str(raised.value)


def test_unknown_log_probabilities_are_no_difference(base, stand_in, tmp_path):
  trainer = make_trainer(base, stand_in, tmp_path)
  stand_in.changes = unknown
  assert float(harness.train(trainer, 1)[DIFFERENCE]) == 0


def test_what_the_server_lacks_is_known_before_the_first_step(base, stand_in, tmp_path):
  stand_in.max_model_len = 24
  with pytest.raises(errors.UserError, match='takes 24 tokens, and .* up to 29; start it with --max-model-len=29'):
    make_trainer(base, stand_in, tmp_path)
  stand_in.max_model_len = None
  abandoned = tmp_path / 'pushed/policy-dead-000007'
  abandoned.mkdir(parents=True)
  stand_in.adapters = {'policy-dead-000007': str(abandoned), 'other': '/somewhere'}
  make_trainer(base, stand_in, tmp_path)
  assert stand_in.adapters == {'other': '/somewhere'} and not abandoned.exists()
  stand_in.lost = 10**6
  with pytest.raises(errors.UserError, match='/v1/models: no answer for 0.5 s'):
    make_trainer(base, stand_in, tmp_path, sampler={'vllm_server_timeout': 0.5})


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'use_lora': False}, 'task.sampler.use_vllm: all weights are trained, and a server takes adapters alone'),
    ({'model_path': ''}, 'task.sampler.use_vllm: all weights are trained|task.model_path: is empty'),
    ({'lora': {'use_dora': True}}, 'task.sampler.use_vllm: vLLM does not read adapters with task.lora.use_dora'),
    ({'lora': {'modules_to_save': ['norm']}}, 'does not read adapters with task.lora.modules_to_save'),
    (
      {'sampler': {'weight_sync_steps': 4}, 'temperature': 0.9},
      'task.sampler.weight_sync_steps: 4: .*; set it to 1, or task.temperature=1.0',
    ),
    ({'sampler': {'vllm_server_base_url': 'localhost:8000'}}, "vllm_server_base_url: expected .*'localhost:8000'"),
    ({'sampler': {'vllm_server_timeout': 0.0}}, 'task.sampler.vllm_server_timeout'),
  ],
)
def test_what_a_server_cannot_do_is_refused(base, stand_in, tmp_path, changes, message):
  sampler = changes.pop('sampler', {})
  params = shrunk_run.make_params('grpo', {'task': task_of(base, stand_in, tmp_path, sampler, **changes)})
  with pytest.raises(errors.UserError, match=message):
    checks.check(params, 'train')
  changes['sampler'] = sampler
