"""Writes texts by a language model: the continuation of a prompt, and the answers of a conversation.

`TextStream` is the text of tokens that come one after the other. A `Conversation` keeps as many messages as the model's
context holds.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import sys
from typing import Any, NamedTuple

import tensorflow as tf

from official_ext.base import errors
from official_ext.base import protocols
from official_ext.base.run_folder import model_folders
from official_ext.language.modeling import decoder
from official_ext.language.modeling import generation
from official_ext.language.serving import model_loading
from official_ext.language.text import tokenizer as tokenizer_lib
from official_ext.training.devices import device_types

_UNFINISHED = '\ufffd'  # The replacement for the bytes of an incomplete character.


class TextStream:
  """The text that each token adds, as soon as its characters are whole.

  How a token is written depends on earlier ones: the first word of a text has no blank in front, and a character may be
  several tokens. So each is decoded after the previous piece's tokens, and the text of these alone is removed.
  """

  def __init__(self, tokenizer: tokenizer_lib.Tokenizer, prompt: Sequence[int] = ()):
    """Begins after a prompt.

    Args:
      tokenizer: of the tokens. Special tokens leave no trace in the text.
      prompt: the tokens before the first one.
    """
    self._tokenizer = tokenizer
    self._tokens = list(prompt)
    self._num_returned = len(self._tokens)  # How many of them are in the returned text.

  def add(self, token: int) -> str:
    """The addition of a token to the text; '' as long as its last character is not whole."""
    self._tokens.append(token)
    added = self._unreturned()
    return '' if added.endswith(_UNFINISHED) else self._commit(added)

  def end(self) -> str:
    """The rest at the end: incomplete characters, as U+FFFD."""
    return self._commit(self._unreturned())

  def _unreturned(self) -> str:
    before, text = self._text(self._tokens[: self._num_returned]), self._text(self._tokens)
    if text.startswith(before):
      return text[len(before) :]
    # Bytes of an incomplete character replace the whole run of bytes before them, which has been returned.
    return self._text(self._tokens[self._num_returned :])

  def _commit(self, added: str) -> str:
    if added:  # It begins with a whole character: the bytes of one that is cut would spoil the next.
      self._tokens = self._tokens[self._num_returned :]
      self._num_returned = len(self._tokens)
    return added

  def _text(self, tokens: Sequence[int]) -> str:
    return self._tokenizer.decode(tokens, skip_special_tokens=True)


STOP_TOKEN, FULL, INTERRUPTED = 'a token that ends the text', 'max_new_tokens', 'Ctrl-C'


class Written(NamedTuple):
  """The text written.

  Attributes:
    text: without the token that ends it.
    num_tokens: with it.
    ended_by: STOP_TOKEN, FULL or INTERRUPTED.
  """

  text: str
  num_tokens: int
  ended_by: str


# A program of 30 layers, 135 M parameters, compiles 12 s longer than one of a block, and saves 30 ms a token.
# For a GPU it compiles 7 s longer, and saves the 16 ms that Python takes to call the blocks of a token.
_FEW_TOKENS = 384
# A conversation has more. On a CPU its first answer shall begin soon. On a GPU the calls of blocks would be nearly all
# of the time. Even the call of one program with all weights and caches takes 5 ms, longer than a token of small models.
# So a program draws 16 tokens, casts weights once and copies caches once: 0.1 s for 7 G parameters, at 3 TB/s.
_GPU_TOKENS = 16
# A prompt's width doubles as a conversation grows, and each width is compiled. Padding costs a GPU little.
_GPU_WIDTH = 512


def _on_gpu() -> bool:
  return device_types.device_type(tf.distribute.get_strategy()) == 'GPU'


def pays_by_block(num_tokens: int | None) -> bool:
  """Whether a text is written block by block; `num_tokens`: of all texts of a process, None for a conversation."""
  return not _on_gpu() if num_tokens is None else num_tokens <= _FEW_TOKENS


class Writer:
  """Continues prompts."""

  def __init__(
    self,
    model: decoder.LanguageModel,
    tokenizer: tokenizer_lib.Tokenizer,
    config: generation.GenerationConfig,
    by_block: bool = False,
  ):
    """Makes the programs; they are compiled when they are first used; `by_block`: see `pays_by_block`."""
    self._tokenizer = tokenizer
    self._config = config
    of_loops = dict(tokens_per_program=_GPU_TOKENS, least_width=_GPU_WIDTH) if _on_gpu() and not by_block else {}
    self._generator = generation.Generator(model, config, by_block, **of_loops)

  def write(
    self,
    tokens: list[int],
    seed: int,
    out: protocols.TextOutput,
    is_streamed: bool,
    may_interrupt: bool = False,
    is_stopped: Callable[[], bool] = lambda: False,
  ) -> Written:
    """Writes the continuation alone, then a line break.

    Args:
      tokens: the prompt.
      seed: of the draws.
      out: where to.
      is_streamed: whether tokens are written when they are drawn. All at once is faster, and the same text.
      may_interrupt: whether Ctrl-C ends the text instead of the program.
      is_stopped: asked after each token whether the text is to end there.
    """
    stream = TextStream(self._tokenizer, tokens)
    stops = self._config.stop_token_ids
    text, count, ended_by = '', 0, FULL

    def put(piece: str) -> str:
      out.write(piece)
      out.flush()
      return text + piece

    try:
      new: Any = self._generator.stream(tokens, seed) if is_streamed else self._generator([tokens], seed)[0].tokens
      for token in new:
        count += 1
        if token in stops:
          ended_by = STOP_TOKEN
        else:
          text = put(stream.add(token))
        if ended_by == FULL and is_stopped():
          ended_by = INTERRUPTED
          break
    except KeyboardInterrupt:
      if not may_interrupt:
        raise
      ended_by = INTERRUPTED
    text = put(stream.end())
    out.write('\n')
    out.flush()
    return Written(text, count, ended_by)


_MAX_NEW_TOKENS = 512  # Unless the folder sets another length, or the context is shorter than twice as much.


class Conversation:
  """Messages so far, and how they are answered."""

  def __init__(
    self,
    model: decoder.LanguageModel,
    tokenizer: tokenizer_lib.Tokenizer,
    folders: model_folders.ModelFolders,
    given: Mapping[str, object],
    system_prompt: str = '',
    seed: int = 0,
  ):
    """Begins one.

    Args:
      model: a `LanguageModel`.
      tokenizer: its `Tokenizer`, with a chat template.
      folders: where both are from, for messages.
      given: the values of `GenerationConfig`'s fields that were set.
      system_prompt: the first message's; '' for none.
      seed: of the first answer's draws; the next one has the next seed.
    """
    self._model, self._tokenizer, self._folders = model, tokenizer, folders
    self._positions = model.config.max_position_embeddings
    config = model_loading.generation_config(model, tokenizer, given, {'max_new_tokens': _MAX_NEW_TOKENS})
    if 'max_new_tokens' not in given:
      config = dataclasses.replace(config, max_new_tokens=max(1, min(config.max_new_tokens, self._positions // 2)))
    self._config = config
    self._writer = Writer(model, tokenizer, self._config, by_block=pays_by_block(None))
    self._system = [{'role': 'system', 'content': system_prompt}] if system_prompt else []
    self._seed = seed
    self.messages: list[dict[str, str]] = list(self._system)

  def clear(self) -> None:
    """Forgets all messages except the system's."""
    self.messages = list(self._system)

  def resume(self, messages: Sequence[dict[str, str]], system_prompt: str = '', seed: int = 0) -> None:
    """Takes up another conversation: `messages` were said, and the next answer's draws have `seed`."""
    self._system = [{'role': 'system', 'content': system_prompt}] if system_prompt else []
    self._seed = seed
    self.messages = [*self._system, *messages]

  def answer(
    self, message: str, out: protocols.TextOutput | None = None, is_stopped: Callable[[], bool] = lambda: False
  ) -> Written:
    """Adds a message of the user's, and writes the answer.

    Args:
      message: of the user.
      out: where to, as its tokens are drawn: one by one on a CPU, 16 on a GPU; None: stdout.
      is_stopped: asked after each token whether the answer is to end there.

    Returns:
      The text written.

    Raises:
      UserError: the message is not valid UTF-8, the template refuses it, or it is too long by itself. It is forgotten.
    """
    model_loading.check_unicode(message, 'the message')
    before = list(self.messages)
    try:
      self.messages.append({'role': 'user', 'content': message})
      tokens = self._fitting()
    except errors.UserError:
      self.messages = before
      raise
    written = self._writer.write(tokens, self._seed, out or sys.stdout, True, out is None, is_stopped)
    if written.ended_by == FULL:
      print(f'stopped after {written.num_tokens} tokens (--max_new_tokens)', file=sys.stderr)
    elif written.ended_by == INTERRUPTED:
      print('stopped; the answer so far is kept', file=sys.stderr)
    self._seed += 1
    self.messages.append({'role': 'assistant', 'content': written.text})
    return written

  def _fitting(self) -> list[int]:
    """The tokens of the messages, without the oldest if all with an answer are more than the context."""
    first = len(self._system)
    tokens = self._tokens()
    dropped = 0
    while len(tokens) + self._config.max_new_tokens > self._positions:
      last = len(self.messages) - 1
      if first == last:
        raise errors.UserError(
          f'the message: {len(tokens)} tokens and {self._config.max_new_tokens} of an answer (--max_new_tokens) are '
          f'more than the {self._positions} positions of the model (max_position_embeddings)'
        )
      end = next(n for n in range(first + 1, last + 1) if self.messages[n]['role'] == 'user')
      dropped += end - first
      del self.messages[first:end]
      tokens = self._tokens()
    if dropped:
      print(
        f'the context of {self._positions} tokens is full: the {dropped} oldest messages are forgotten', file=sys.stderr
      )
    model_loading.check_tokens(tokens, self._model, self._folders)
    return tokens

  def _tokens(self) -> list[int]:
    text = self._tokenizer.apply_chat_template(self.messages, add_generation_prompt=True)
    return self._tokenizer.encode(text, add_special_tokens=False)
