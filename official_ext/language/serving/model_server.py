"""Holds one model in a process that answers for the console: `python -m` runs it.

    python -m official_ext.language.serving.model_server KIND FOLDER [true|false]

KIND is saved_model or language_model. The third argument sets whether the kernels of a language model are kept in 4
bits; the default is how its adapters were trained.

Requests are JSON objects on stdin, one a line, each with an `id`. Answers come on stdout with the same `id`: some with
`text`, the last one with `done` or with `errors`, a list of lines. The first line, before any request, describes the
inputs of the model, or has `errors`.

    {"id": 1, "do": "predict", "signature": ..., "inputs": ...}                see saved_models.py
    {"id": 2, "do": "chat", "messages": [...], "system_prompt": "", "settings": {...}}
    {"id": 3, "do": "generate", "prompt": "...", "settings": {...}}
    {"id": 2, "do": "stop"}                                                     ends an answer after its next token

It ends with its stdin, at any time.
"""

import official_ext  # noqa: F401  # Before tensorflow.
from official_ext.base import json_values

# isort: split
from collections.abc import Callable, Mapping
import contextlib
import json
import os
import queue
import signal
import sys
import threading

from official_ext.base import errors
from official_ext.base import safe_text
from official_ext.base.run_folder import model_folders
from official_ext.language.modeling import generation
from official_ext.language.serving import model_loading
from official_ext.language.serving import writing
from official_ext.training.trained import saved_models

_MOST_WRITERS = 4  # The number of settings whose programs are kept.
# Sends a line to the console.
Send = Callable[[json_values.JsonObject], None]
_SETTINGS = {**model_loading.SETTING_KINDS, 'seed': int}


class _Text:
  """Takes the pieces of a text, and sends each but the line break that ends it."""

  def __init__(self, send: Send):
    self._send = send
    self._held = ''

  def write(self, piece: str) -> None:
    """Sends a piece."""
    if piece == '\n':
      self._held += piece
      piece = self._held[:-1]
      self._held = '\n'
    else:
      piece, self._held = self._held * bool(piece) + piece, self._held * (not piece)
    if piece:
      self._send({'text': piece})

  def flush(self) -> None:
    """Nothing waits but that."""


class _LanguageModel:
  """A language model in memory."""

  def __init__(self, folder: str, load_in_4bit: bool | None = None):
    self._folders = model_folders.find(folder)
    self._tokenizer = model_loading.load_tokenizer(self._folders)
    self._model, base = model_loading.load_with_base(self._folders, load_in_4bit=load_in_4bit)
    self._base = base if self._folders.adapter or load_in_4bit else ''
    self._conversations: dict[str, writing.Conversation] = {}
    self._writers: dict[str, writing.Writer] = {}

  def description(self) -> json_values.JsonObject:
    """The model's properties and default settings, for the console."""
    config = generation.config_of(self._model)
    names = list(model_loading.SETTING_KINDS)
    return {
      'has_chat_template': self._tokenizer.has_chat_template,
      'positions': self._model.config.max_position_embeddings,
      'model_type': self._model.config.model_type,
      'base': self._base,
      'settings': {name: getattr(config, name) for name in names},
    }

  def answer(
    self, request: json_values.JsonMapping, send: Send, is_stopped: Callable[[], bool]
  ) -> json_values.JsonObject:
    """Answers a message, or continues a text."""
    given, seed = _settings(request.get('settings') or {})
    key = json.dumps(given, sort_keys=True)
    if request['do'] == 'chat':
      written, dropped = self._chat(request, key, given, seed, send, is_stopped)
    else:
      written, dropped = self._generate(request, given, seed, send, is_stopped), 0

    ends = {writing.FULL: 'max_new_tokens', writing.INTERRUPTED: 'stopped'}
    return {'tokens': written.num_tokens, 'ended_by': ends.get(written.ended_by, ''), 'forgotten': dropped}

  def _chat(self, request, key, given, seed, send, is_stopped):
    *before, last = _messages(request.get('messages'))
    conversation = self._conversations.pop(key, None)
    if conversation is None:
      conversation = writing.Conversation(self._model, self._tokenizer, self._folders, given)
    self._conversations[key] = conversation
    while len(self._conversations) > _MOST_WRITERS:
      del self._conversations[next(iter(self._conversations))]
    conversation.resume(before, _text(request.get('system_prompt', ''), 'system_prompt'), seed)
    count = len(conversation.messages)
    written = conversation.answer(last['content'], _Text(send), is_stopped)
    return written, count + 2 - len(conversation.messages)

  def _generate(self, request, given, seed, send, is_stopped):
    prompt = _text(request.get('prompt'), 'prompt')
    model_loading.check_unicode(prompt, 'prompt')
    tokens = self._tokenizer.encode(prompt)
    if not tokens:
      raise errors.UserError('prompt: has no tokens')
    model_loading.check_tokens(tokens, self._model, self._folders)
    config = model_loading.generation_config(self._model, self._tokenizer, given)
    config = model_loading.limited_to_context(self._model, config, len(tokens), 'max_new_tokens' in given)
    key = repr(config)
    writer = self._writers.pop(key, None) or writing.Writer(self._model, self._tokenizer, config)
    self._writers[key] = writer
    while len(self._writers) > _MOST_WRITERS:
      del self._writers[next(iter(self._writers))]
    return writer.write(tokens, seed, _Text(send), True, False, is_stopped)


def _settings(values: Mapping[str, object]) -> tuple[json_values.JsonObject, int]:
  """The `GenerationConfig` values that were set, and the seed; errors are reported as for the flags."""

  given: json_values.JsonObject = {}
  with errors.Mistakes() as mistakes:
    for name, value in values.items():
      with mistakes.noted():
        kind = _SETTINGS.get(name)
        if kind is None:
          raise errors.UserError(f'--{name}: there is no such setting')
        if not json_values.is_number(value) or (kind is int and value != int(value)):
          raise errors.UserError(f'--{name}: expected {"a whole number" if kind is int else "a number"}')
        given[name] = kind(value)
  seed = given.pop('seed', 0)
  model_loading.check_settings(given, seed)
  return given, seed


def _messages(values: object) -> list[dict[str, str]]:
  if not isinstance(values, list) or not values:
    raise errors.UserError('messages: expected a list, the last one of the user')
  found = []
  for value in values:
    if not isinstance(value, dict) or value.get('role') not in ('user', 'assistant'):
      raise errors.UserError('messages: expected role user or assistant, and content')
    found.append({'role': value['role'], 'content': _text(value.get('content'), 'messages')})
  if found[-1]['role'] != 'user' or not found[-1]['content'].strip():
    raise errors.UserError('messages: the last one must be of the user, and not empty')
  return found


def _text(value: object, name: str) -> str:
  if not isinstance(value, str):
    raise errors.UserError(f'{name}: expected a text')
  return value


class _Saved:
  """A SavedModel in memory."""

  def __init__(self, folder: str):
    self._model = saved_models.SavedModel(folder)

  def description(self) -> json_values.JsonObject:
    """The arguments."""
    return {'signatures': self._model.signatures(), 'labels': self._model.labels}

  def answer(
    self, request: json_values.JsonMapping, send: Send, is_stopped: Callable[[], bool]
  ) -> json_values.JsonObject:
    """Calls it."""
    del send, is_stopped
    inputs = request.get('inputs')
    if not isinstance(inputs, dict) or not all(isinstance(value, dict) for value in inputs.values()):
      raise errors.UserError('inputs: expected an object for each')
    return {'outputs': self._model.predict(_text(request.get('signature'), 'signature'), inputs)}


class _Server:
  """Reads requests, and answers one after the other."""

  def __init__(self, out: int):
    self._out = out
    self._requests: queue.Queue = queue.Queue()
    self._stopped: set[object] = set()

  def run(self, kind: str, folder: str, load_in_4bit: str = '') -> None:
    """Loads the model, and answers until stdin ends."""
    threading.Thread(target=self._read, daemon=True).start()
    try:
      in_4bit = load_in_4bit == 'true' if load_in_4bit else None
      model: _LanguageModel | _Saved = _LanguageModel(folder, in_4bit) if kind == 'language_model' else _Saved(folder)
      self._send({'kind': kind, **model.description()})
    except Exception as error:  # pylint: disable=broad-except  # Anything may be in a folder.
      self._send({'errors': _lines_of(error)})
      return
    while True:
      self._answer(model, self._requests.get())

  def _answer(self, model: _LanguageModel | _Saved, request: json_values.JsonMapping) -> None:
    number = request.get('id')
    try:
      done = model.answer(request, lambda values: self._send({'id': number, **values}), lambda: number in self._stopped)
      self._send({'id': number, 'done': True, **done})
    except Exception as error:  # pylint: disable=broad-except  # Anything may be in a model.
      self._send({'id': number, 'errors': _lines_of(error)})
    self._stopped.discard(number)

  def _read(self) -> None:
    for line in sys.stdin:
      request = json.loads(line)
      if request.get('do') == 'stop':
        self._stopped.add(request.get('id'))
      else:
        self._requests.put(request)
    os._exit(0)

  def _send(self, values: Mapping[str, object]) -> None:
    content = memoryview(json.dumps(json_values.as_strict(values)).encode() + b'\n')
    while content:
      content = content[os.write(self._out, content) :]


def _lines_of(error: BaseException) -> list[str]:
  if isinstance(error, (errors.UserError, errors.StorageError)):
    return [safe_text.mask(line) for line in errors.lines_of(error)]
  return [safe_text.mask(f'{type(error).__name__}: {" ".join(str(error).split())[:300]}')]


def main(arguments: list[str]) -> None:
  """Serves a model until stdin ends."""
  for number in (signal.SIGINT, signal.SIGHUP):  # Of the terminal in which the console was started.
    signal.signal(number, signal.SIG_IGN)
  out = os.dup(1)
  os.dup2(2, 1)  # TensorFlow's output must not be taken for an answer.
  with contextlib.suppress(BrokenPipeError):
    _Server(out).run(*arguments)


if __name__ == '__main__':
  main(sys.argv[1:])
