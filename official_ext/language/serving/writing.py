"""Writes a model's continuation of a prompt to stdout."""

from collections.abc import Callable
from typing import Any, NamedTuple

from official_ext.base import protocols
from official_ext.language.modeling import decoder
from official_ext.language.modeling import generation
from official_ext.language.modeling import token_sampling
from official_ext.language.text import text_streams
from official_ext.language.text import tokenizer as tokenizer_lib

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


class Writer:
  """Continues prompts."""

  def __init__(
    self,
    model: decoder.LanguageModel,
    tokenizer: tokenizer_lib.Tokenizer,
    config: token_sampling.GenerationConfig,
    by_block: bool = False,
  ):
    """Makes the programs; they are compiled when they are first used; `by_block`: see `generation.Generator`."""
    self._tokenizer = tokenizer
    self._config = config
    self._generator = generation.Generator(model, config, by_block)

  def write(
    self,
    tokens: list[int],
    seed: int,
    out: protocols.TextOutput,
    is_streamed: bool,
    may_interrupt: bool = False,
    is_stopped: Callable[[], bool] = lambda: False,
  ) -> Written:
    """Writes the continuation alone, and a line break behind it.

    Args:
      tokens: the prompt.
      seed: of the draws.
      out: where to.
      is_streamed: whether each token is written immediately. All at once is faster, and the same text.
      may_interrupt: whether Ctrl-C ends the text instead of the program.
      is_stopped: asked behind each token whether the text is to end there.
    """
    stream = text_streams.TextStream(self._tokenizer, tokens)
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
