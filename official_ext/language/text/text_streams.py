"""The text of tokens that come one after the other."""

from collections.abc import Sequence

from official_ext.language.text import tokenizer as tokenizer_lib

_UNFINISHED = '\ufffd'  # The replacement for the bytes of an incomplete character.


class TextStream:
  """The text that each token adds, as soon as its characters are whole.

  How a token is written depends on those before it: the first word of a text has no blank in front, and a character may
  be several tokens. So each is decoded behind those of the piece before it, and the text of those alone is removed.
  """

  def __init__(self, tokenizer: tokenizer_lib.Tokenizer, prompt: Sequence[int] = ()):
    """Begins behind a prompt.

    Args:
      tokenizer: that of the tokens. Special tokens leave no trace in the text.
      prompt: the tokens before the first one.
    """
    self._tokenizer = tokenizer
    self._tokens = list(prompt)
    self._told = len(self._tokens)  # How many of them are in the returned text.

  def add(self, token: int) -> str:
    """The addition of a token to the text; '' as long as its last character is not whole."""
    self._tokens.append(token)
    added = self._untold()
    return '' if added.endswith(_UNFINISHED) else self._tell(added)

  def end(self) -> str:
    """The rest at the end: incomplete characters, as U+FFFD."""
    return self._tell(self._untold())

  def _untold(self) -> str:
    before = self._text(self._tokens[: self._told])
    return self._text(self._tokens)[len(before) :]

  def _tell(self, added: str) -> str:
    if added:  # It begins with a whole character: bytes of one that is cut would spoil those behind it.
      self._tokens = self._tokens[self._told :]
      self._told = len(self._tokens)
    return added

  def _text(self, tokens: Sequence[int]) -> str:
    return self._tokenizer.decode(tokens, skip_special_tokens=True)
