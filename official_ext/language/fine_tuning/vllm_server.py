"""A client of vLLM's OpenAI-compatible server: completions of token ids, and adapters that come and go.

https://docs.vllm.ai/en/latest/features/lora/ and vllm/entrypoints/openai/completion/protocol.py describe the protocol.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import http.client
import json
import os
import time
from typing import Any
import urllib.error
import urllib.request

from absl import logging

from official_ext.base import errors
from official_ext.language.modeling import token_sampling

FIELD = 'task.sampler.vllm_server_base_url'
_UNAVAILABLE = (502, 503, 504)  # A proxy, or a server that is starting or ending.
_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)  # Seconds between attempts; the last one repeats.


@dataclasses.dataclass(frozen=True)
class Completion:
  """A sampled completion.

  Attributes:
    tokens: their ids, the one that ends it among them.
    log_probs: of each token, at temperature 1 and without filters; None if the server returns none.
  """

  tokens: list[int]
  log_probs: list[float] | None


class RefusedError(errors.UserError):
  """The server answers with an error.

  Attributes:
    status: the HTTP status.
    reason: the server's message, one line.
  """

  def __init__(self, message: str, status: int, reason: str):
    super().__init__(message)
    self.status = status
    self.reason = reason


class Server:
  """One server. Calls may come from several threads.

  A lost connection is retried with the same request, seed included, for `timeout` seconds: a server that is restarted
  in that time costs nothing but the time. The environment's HTTP proxies are not used. The key of a server with
  --api-key is read from VLLM_API_KEY.
  """

  def __init__(self, url: str, timeout: float):
    """Connects to nothing yet.

    Args:
      url: the address, such as http://localhost:8000.
      timeout: seconds that a request may take, and that a lost server is waited for.
    """
    self.url = url.rstrip('/').removesuffix('/v1')
    self._timeout = timeout
    self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

  def models(self) -> list[dict[str, Any]]:
    """The base model and the adapters that the server has: `id`, `root`, `parent`, `max_model_len`.

    Raises:
      UserError: the answer is not that of an OpenAI-compatible server.
      WorkerLostError: the server cannot be reached.
    """
    found = self._json('/v1/models')
    if not isinstance(found, dict) or not isinstance(found.get('data'), list) or not found['data']:
      raise errors.UserError(f'{FIELD}: {self.url}/v1/models lists no models; is it a server of vLLM?')
    return [card for card in found['data'] if isinstance(card, dict)]

  def load_adapter(self, name: str, folder: str) -> None:
    """Has the server load an adapter.

    Args:
      name: a new one: vLLM's prefix cache knows adapters by their names.
      folder: of peft, as the server sees it.

    Raises:
      UserError: it is not loaded, with the server's reason.
      WorkerLostError: the server is lost.
    """
    try:
      self._request('/v1/load_lora_adapter', {'lora_name': name, 'lora_path': folder})
    except RefusedError as error:
      if 'already been loaded' in error.reason:  # The answer to an earlier attempt was lost.
        return
      raise errors.UserError(f'{FIELD}: {self.url} cannot load {folder}: {_advice(error)}') from error

  def unload_adapter(self, name: str) -> None:
    """Has the server drop an adapter. One that it does not have any more is not missed."""
    try:
      self._request('/v1/unload_lora_adapter', {'lora_name': name})
    except RefusedError as error:
      logging.info('%s: the adapter %s was not unloaded: %s', self.url, name, error.reason)

  def complete(
    self,
    model: str,
    prompts: Sequence[Sequence[int]],
    count: int,
    config: token_sampling.GenerationConfig,
    seed: int,
  ) -> list[Completion]:
    """Completions of prompts, those of a prompt beside each other.

    Args:
      model: the name of an adapter or of the base model.
      prompts: their token ids, without padding.
      count: completions of each.
      config: how to draw.
      seed: of the request; completion k of each prompt is drawn with seed + k.

    Raises:
      RefusedError: the server answers with an error; status 404: it does not have the model.
      UserError: the answer lacks something.
      WorkerLostError: the server is lost.
    """
    body = {
      'model': model,
      'prompt': [list(prompt) for prompt in prompts],
      'n': count,
      'max_tokens': config.max_new_tokens,
      # All of them: the server takes what is missing from the generation_config.json of its model.
      'temperature': config.temperature,
      'top_p': config.top_p,
      'top_k': config.top_k or -1,
      'min_p': config.min_p,
      'repetition_penalty': config.repetition_penalty,
      'stop_token_ids': list(config.stop_token_ids),
      'ignore_eos': True,  # It ends with the tokens above alone.
      'logprobs': 0,  # Of the drawn tokens alone.
      'return_token_ids': True,
      'seed': seed,
    }
    return self._completions(self._json('/v1/completions', body), len(prompts) * count)

  def _completions(self, answer: Any, expected: int) -> list[Completion]:
    choices = answer.get('choices') if isinstance(answer, dict) else None
    if not isinstance(choices, list) or len(choices) != expected:
      count = len(choices) if isinstance(choices, list) else 'no'
      raise errors.UserError(f'{FIELD}: {self.url}: requested {expected} completions, got {count}; is it vLLM?')
    completions: list[Completion] = []
    for choice in sorted(choices, key=lambda choice: choice['index']):
      tokens, log_probs = choice.get('token_ids'), (choice.get('logprobs') or {}).get('token_logprobs')
      if not isinstance(tokens, list):
        raise errors.UserError(
          f'{FIELD}: {self.url} returns no token ids (return_token_ids); update vLLM to 0.10.2 or later'
        )
      is_known = isinstance(log_probs, list) and len(log_probs) == len(tokens) and None not in log_probs
      completions.append(Completion(tokens, log_probs if is_known else None))
    return completions

  # Requests.

  def _json(self, path: str, body: Mapping[str, object] | None = None) -> Any:
    answer = self._request(path, body)
    try:
      return json.loads(answer)
    except ValueError as error:
      raise errors.UserError(f'{FIELD}: {self.url}{path} answers with invalid JSON; is it a server of vLLM?') from error

  def _request(self, path: str, body: Mapping[str, object] | None = None) -> bytes:
    """The answer to a request: POST with a body, else GET."""
    data = None if body is None else json.dumps(body).encode()
    headers = {'Content-Type': 'application/json'}
    if key := os.environ.get('VLLM_API_KEY'):
      headers['Authorization'] = f'Bearer {key}'
    request = urllib.request.Request(f'{self.url}{path}', data, headers)
    deadline, attempt = time.monotonic() + self._timeout, 0
    while True:
      try:
        with self._opener.open(request, timeout=self._timeout) as answer:
          return bytes(answer.read())
      except urllib.error.HTTPError as error:
        if error.code not in _UNAVAILABLE:
          raise self._refusal(path, error) from error
        lost: Exception = error
      except (OSError, http.client.HTTPException) as error:
        lost = error
      self._wait(path, lost, deadline, attempt)
      attempt += 1

  def _wait(self, path: str, lost: Exception, deadline: float, attempt: int) -> None:
    """Waits before another attempt.

    Raises:
      WorkerLostError: the timeout has passed.
    """
    reason = getattr(lost, 'reason', None) or lost
    pause = _PAUSES[min(attempt, len(_PAUSES) - 1)]
    if time.monotonic() + pause >= deadline:
      raise errors.WorkerLostError(
        f'{FIELD}: {self.url}{path}: no answer for {self._timeout:g} s ({type(reason).__name__}: {reason}); start the '
        'server, or raise task.sampler.vllm_server_timeout'
      ) from lost
    if not attempt:
      logging.warning('%s%s: %s; retrying for %g s', self.url, path, reason, self._timeout)
    time.sleep(pause)

  def _refusal(self, path: str, error: urllib.error.HTTPError) -> RefusedError:
    reason = _message(error.read()) or error.reason
    if error.code == 401:
      return RefusedError(f'{FIELD}: {self.url}: {reason}; set VLLM_API_KEY to its --api-key', error.code, reason)
    return RefusedError(f'{FIELD}: {self.url}{path}: HTTP {error.code}: {reason}', error.code, reason)


def _message(answer: bytes) -> str:
  """The message of an error, one line: {"error": {"message": ...}}, in older versions {"message": ...}."""
  text = answer.decode(errors='replace')
  try:
    found = json.loads(text)
    found = found.get('error', found)
    text = str(found.get('message') or found.get('detail') or text) if isinstance(found, dict) else str(found)
  except (ValueError, AttributeError):
    pass
  return ' '.join(text.split())[:500]


def _advice(error: RefusedError) -> str:
  if error.reason in ('Not Found', 'Method Not Allowed'):  # The route is missing.
    return (
      f'HTTP {error.status}: {error.reason}; start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment, '
      'and with --enable-lora'
    )
  return (
    f'HTTP {error.status}: {error.reason}; it needs --enable-lora, --max-lora-rank of at least task.lora.r, the same '
    'base model, and to see that folder (task.sampler.server_adapter_dir)'
  )
