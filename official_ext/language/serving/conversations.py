"""Conversations with a language model: messages, as many as its context holds, and answers."""

from collections.abc import Callable, Mapping, Sequence
import sys

from official_ext.base import errors
from official_ext.base import protocols
from official_ext.base.run_folder import model_folders
from official_ext.language.modeling import decoder
from official_ext.language.serving import generation_settings
from official_ext.language.serving import model_loading
from official_ext.language.serving import writing
from official_ext.language.text import tokenizer as tokenizer_lib

_MAX_NEW_TOKENS = 512  # Unless the context is shorter than twice as much.


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
    length = {'max_new_tokens': max(1, min(_MAX_NEW_TOKENS, self._positions // 2))}
    self._config = generation_settings.config_of(model, tokenizer, {**length, **given})
    self._writer = writing.Writer(model, tokenizer, self._config, by_block=True)
    self._system = [{'role': 'system', 'content': system_prompt}] if system_prompt else []
    self._seed = seed
    self.messages: list[dict[str, str]] = list(self._system)

  def clear(self) -> None:
    """Forgets all messages but that of the system."""
    self.messages = list(self._system)

  def go_on(self, messages: Sequence[dict[str, str]], system_prompt: str = '', seed: int = 0) -> None:
    """Takes up another conversation: `messages` were said, and the next answer's draws have `seed`."""
    self._system = [{'role': 'system', 'content': system_prompt}] if system_prompt else []
    self._seed = seed
    self.messages = [*self._system, *messages]

  def answer(
    self, message: str, out: protocols.TextOutput | None = None, is_stopped: Callable[[], bool] = lambda: False
  ) -> writing.Written:
    """Adds a message of the user's, and writes the answer.

    Args:
      message: of the user.
      out: where to, as its tokens are drawn; None: stdout.
      is_stopped: asked behind each token whether the answer is to end there.

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
    if written.ended_by == writing.FULL:
      print(f'stopped after {written.num_tokens} tokens (--max_new_tokens)', file=sys.stderr)
    elif written.ended_by == writing.INTERRUPTED:
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
    generation_settings.check_tokens(tokens, self._model, self._folders)
    return tokens

  def _tokens(self) -> list[int]:
    text = self._tokenizer.apply_chat_template(self.messages, add_generation_prompt=True)
    return self._tokenizer.encode(text, add_special_tokens=False)
