"""A small HTTP server that speaks vLLM's protocol, as far as `vllm_server.Server` uses it."""

from collections.abc import Callable
import contextlib
import http.server
import json
import os
import threading
import time

Answer = Callable[[str, list, dict], list]


class StandIn:
  """A server in threads of this process.

  Attributes:
    answer: (folder of the adapter or '', prompts, body) -> (tokens, log-probabilities) of each completion.
    adapters: name -> folder of the loaded ones; `clear` is what a restart does.
    requests: (path, body) of all requests.
    may_load: whether it was started with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True.
    lost: so many requests end without an answer.
    unavailable: so many requests are answered with 503.
    delay: seconds before an answer.
    changes: is called with an answer to a request for completions, before it is sent.
  """

  def __init__(self, answer: Answer, port: int = 0, max_model_len: int | None = 512):
    self.answer, self.max_model_len = answer, max_model_len
    self.adapters: dict[str, str] = {}
    self.requests: list[tuple[str, dict]] = []
    self.may_load, self.lost, self.unavailable, self.delay = True, 0, 0, 0.0
    self.changes: Callable[[dict], None] = lambda answer: None
    outer = self

    class Handler(http.server.BaseHTTPRequestHandler):
      def log_message(self, *arguments):
        del arguments

      def do_GET(self):
        self._handle({})

      def do_POST(self):
        self._handle(json.loads(self.rfile.read(int(self.headers['Content-Length']))))

      def _handle(self, body):
        outer.requests.append((self.path, body))
        time.sleep(outer.delay)
        if outer.lost > 0:
          outer.lost -= 1
          self.close_connection = True
          return
        status, answer = outer.respond(self.path, body)
        data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_response(status)
        self.send_header('Content-Length', str(len(data)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):  # The client has given up.
          self.wfile.write(data)

    self._server = http.server.ThreadingHTTPServer(('127.0.0.1', port), Handler)
    self.port = self._server.server_port
    self.url = f'http://127.0.0.1:{self.port}'
    threading.Thread(target=lambda: self._server.serve_forever(poll_interval=0.02), daemon=True).start()

  def __enter__(self):
    return self

  def __exit__(self, *error):
    self._server.shutdown()
    self._server.server_close()

  def bodies(self, path):
    """The bodies of the requests for a path."""
    return [body for place, body in self.requests if place == path]

  def respond(self, path, body):
    """(status, answer) of a request: a text, or an object of JSON."""
    if self.unavailable > 0:
      self.unavailable -= 1
      return 503, 'starting'
    if path == '/v1/models':
      base = {'id': 'base', 'root': '/models/base', 'parent': None, 'max_model_len': self.max_model_len}
      return 200, {
        'object': 'list',
        'data': [base, *({'id': name, 'root': root, 'parent': 'base'} for name, root in self.adapters.items())],
      }
    if path.endswith('_lora_adapter') and self.may_load:
      return self._adapter(path, body)
    if path == '/v1/completions':
      return self._completions(body)
    return 404, {'detail': 'Not Found'}

  def _adapter(self, path, body):
    name = body['lora_name']
    if path == '/v1/unload_lora_adapter':
      if self.adapters.pop(name, None) is None:
        return _error(404, f"The lora adapter '{name}' cannot be found.")
      return 200, f"Success: LoRA adapter '{name}' removed successfully."
    if name in self.adapters:
      return _error(400, f"The lora adapter '{name}' has already been loaded.")
    if not os.path.exists(os.path.join(body['lora_path'], 'adapter_config.json')):
      return _error(404, f"No adapter found for '{body['lora_path']}'")
    self.adapters[name] = body['lora_path']
    return 200, f"Success: LoRA adapter '{name}' added successfully."

  def _completions(self, body):
    if body['model'] != 'base' and body['model'] not in self.adapters:
      return _error(404, f'The model `{body["model"]}` does not exist.')
    found = self.answer(self.adapters.get(body['model'], ''), body['prompt'], body)
    choices = [
      {
        'index': number,
        'text': '',
        'finish_reason': 'length' if len(tokens) == body['max_tokens'] else 'stop',
        'token_ids': tokens if body['return_token_ids'] else None,
        'logprobs': {'token_logprobs': log_probs, 'tokens': [f'token_id:{token}' for token in tokens]},
      }
      for number, (tokens, log_probs) in enumerate(found)
    ]
    answer = {'object': 'text_completion', 'model': body['model'], 'choices': choices[::-1]}
    self.changes(answer)
    return 200, answer


def _error(status, message):
  return status, {'error': {'message': message, 'type': 'Error', 'param': None, 'code': status}}
