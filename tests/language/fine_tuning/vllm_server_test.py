"""The client of vLLM's server: its requests, what it survives, and one line for what it does not."""

import json
import threading
import time

import pytest

from official_ext.base import errors
from official_ext.language.fine_tuning import vllm_server
from official_ext.language.modeling import token_sampling
from tests.language.fine_tuning import vllm_stand_in

DRAWING = token_sampling.GenerationConfig(max_new_tokens=3, temperature=0.7, top_p=0.9, stop_token_ids=(5, 6))


def counted(folder, prompts, body):
  """Token k of a completion of the prompt p is the sum of p plus k; the seed decides the length."""
  del folder
  length = lambda k: 1 + (body['seed'] + k) % body['max_tokens']
  rows = [[sum(prompt) + k + t for t in range(length(k))] for prompt in prompts for k in range(body['n'])]
  return [(row, [-0.5 * token for token in row]) for row in rows]


@pytest.fixture
def stand_in():
  with vllm_stand_in.StandIn(counted) as found:
    yield found


def complete(stand_in, timeout=5.0, prompts=((1, 2), (10,)), model='base'):
  return vllm_server.Server(stand_in.url, timeout).complete(model, prompts, 2, DRAWING, seed=3)


def test_a_request_states_how_to_draw_and_its_completions_come_in_order(stand_in):
  found = complete(stand_in)
  assert [completion.tokens for completion in found] == [[3], [4, 5], [10], [11, 12]]
  assert found[1].log_probs == [-2.0, -2.5]
  (body,) = stand_in.bodies('/v1/completions')
  assert body == {
    **{'model': 'base', 'prompt': [[1, 2], [10]], 'n': 2, 'max_tokens': 3, 'seed': 3, 'logprobs': 0},
    **{'temperature': 0.7, 'top_p': 0.9, 'top_k': -1, 'min_p': 0.0, 'repetition_penalty': 1.0},
    **{'stop_token_ids': [5, 6], 'ignore_eos': True, 'return_token_ids': True},
  }


def test_a_lost_connection_is_retried_with_the_same_request(stand_in):
  expected = complete(stand_in)
  stand_in.lost, stand_in.unavailable = 1, 1
  assert complete(stand_in) == expected
  bodies = stand_in.bodies('/v1/completions')
  assert len(bodies) == 4 and all(body == bodies[0] for body in bodies)


def test_a_server_that_is_started_again_within_the_timeout_is_waited_for():
  with vllm_stand_in.StandIn(counted) as first:
    expected = complete(first)
  later = []
  start = threading.Timer(0.6, lambda: later.append(vllm_stand_in.StandIn(counted, port=first.port)))
  start.start()
  assert complete(first, timeout=20.0) == expected
  start.join()
  with later[0]:
    pass


def test_a_server_that_is_not_there_is_one_line_after_the_timeout(stand_in):
  stand_in.__exit__()
  started = time.monotonic()
  with pytest.raises(
    errors.WorkerLostError, match=rf'{stand_in.url}/v1/completions: no answer for 1 s \(Conn.*start the'
  ) as raised:
    complete(stand_in, timeout=1.0)
  assert time.monotonic() - started < 3 and '\n' not in str(raised.value) and raised.value.exit_status == 75


def test_a_server_that_hangs_is_one_line(stand_in):
  stand_in.delay = 3.0
  with pytest.raises(errors.WorkerLostError, match='no answer for 0.5 s .TimeoutError: .*vllm_server_timeout'):
    complete(stand_in, timeout=0.5)


def test_adapters_are_loaded_and_unloaded(stand_in, tmp_path):
  (tmp_path / 'adapter_config.json').write_text('{}')
  server = vllm_server.Server(f'{stand_in.url}/v1/', 5.0)
  server.load_adapter('a', str(tmp_path))
  server.load_adapter('a', str(tmp_path))  # As a retry of a request that was answered.
  assert stand_in.adapters == {'a': str(tmp_path)}
  assert [card['id'] for card in server.models()] == ['base', 'a']
  server.unload_adapter('a')
  server.unload_adapter('a')
  assert not stand_in.adapters
  with pytest.raises(errors.UserError, match='cannot load /none: HTTP 404: No adapter.*server_adapter_dir'):
    server.load_adapter('b', '/none')
  stand_in.may_load = False
  with pytest.raises(
    errors.UserError, match='HTTP 404: Not Found; start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True'
  ):
    server.load_adapter('c', str(tmp_path))


def without(name):
  def change(answer):
    for choice in answer['choices']:
      del choice[name]

  return change


@pytest.mark.parametrize(
  'change, message',
  [
    (without('token_ids'), 'returns no token ids .return_token_ids.; update vLLM'),
    (lambda answer: answer['choices'].pop(), 'requested 4 completions, got 3'),
    (lambda answer: answer.pop('choices'), 'requested 4 completions, got no; is it vLLM'),
  ],
)
def test_an_answer_without_something_is_one_line(stand_in, change, message):
  stand_in.changes = change
  with pytest.raises(errors.UserError, match=message):
    complete(stand_in)


def test_log_probabilities_may_be_missing(stand_in):
  stand_in.changes = without('logprobs')
  assert [completion.log_probs for completion in complete(stand_in)] == [None] * 4


def test_an_error_of_the_server_is_one_line_with_its_status(stand_in):
  with pytest.raises(vllm_server.RefusedError, match='completions: HTTP 404: The model `x` does not exist.') as raised:
    complete(stand_in, model='x')
  assert raised.value.status == 404
  stand_in.respond = lambda path, body: (401, {'error': 'Unauthorized'})
  with pytest.raises(errors.UserError, match='Unauthorized; set VLLM_API_KEY'):
    complete(stand_in)
  stand_in.respond = lambda path, body: (200, '<html>')
  with pytest.raises(errors.UserError, match='answers with invalid JSON; is it a server of vLLM?'):
    complete(stand_in)
  stand_in.respond = lambda path, body: (200, json.dumps({'data': []}))
  with pytest.raises(errors.UserError, match='/v1/models lists no models'):
    vllm_server.Server(stand_in.url, 5.0).models()
