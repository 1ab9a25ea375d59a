"""Text that is safe to print and to store: secrets are masked, and control characters are shown as escapes.

Passwords, tokens and keys are recognised by their place (`user:password@` in a URL), by the name before them (`token=`,
`"api_key": `), by their form (`ghp_...`), or as the value of an environment variable with such a name
(WANDB_API_KEY).
"""

from collections.abc import Callable, Iterator, Mapping
import functools
import logging
import os
import re
import traceback
from typing import Any, TextIO
import unicodedata

MASK = '***'

_MIN_LENGTH = 8  # The least length of a secret in an environment variable: a shorter one may be any word.
_WORDS = (
  r'(?:passwords?|passwd|pwd|passphrase|secrets?|credentials?|apikey|authorization|'
  r'(?:api|access|auth|private|secret|signing|account|storage|subscription)[_-]?key(?:[_-]?id)?|'
  r'(?:access|auth|api|bearer|refresh|session|security|bot|secret|hf|github|gitlab)[_-]?token)'
)
_SECRET_NAME = re.compile(rf'(?:[a-z0-9]+[_.-])*{_WORDS}|token', re.IGNORECASE)
# Names of secrets in a text; `pad_token` and similar are not.
_NAME = rf'(?:(?<![A-Za-z0-9]){_WORDS}|(?<![A-Za-z0-9_-])token)'
_IN_QUERY = rf'(?:[a-z0-9_.-]*{_WORDS}|token|pass|key|code|sig|signature|x-amz-[a-z-]+|x-goog-[a-z-]+)'
_VALUE = r"""[^\s"'&,;{}()\[\]]+"""

_Replacement = tuple['re.Pattern[str]', str]
_REPLACEMENTS: tuple[_Replacement, ...] = tuple(
  (re.compile(pattern, re.IGNORECASE), replacement)
  for pattern, replacement in (
    # The authority of a URL: user:password@ or token@; a password may hold a slash.
    (r"""(://[^\s/:@?#'"]{1,200}:)(?!\d+[/?#])[^\s@'"]{1,500}(?:@[^\s@/'"]{1,200}){0,3}(?=@)""", rf'\g<1>{MASK}'),
    (r"""(://:)[^\s@'"]{1,500}(?=@)""", rf'\g<1>{MASK}'),
    (r"""(://)[^\s/:@?#'"]{1,500}(?=@)""", rf'\g<1>{MASK}'),
    (rf"""([?&]{_IN_QUERY}=){_VALUE}""", rf'\g<1>{MASK}'),
    # name=value; "name": "value"; {name: value}.
    (rf"""({_NAME}=)(["'])(?:(?!\2).)+""", rf'\g<1>\g<2>{MASK}'),
    (rf"""({_NAME}=){_VALUE}""", rf'\g<1>{MASK}'),
    (rf"""({_NAME}["']\s*[:,=]\s*)(["'])(?:(?!\2).)+""", rf'\g<1>\g<2>{MASK}'),
    (rf"""([{{,]\s*[\w.-]*{_NAME}:\s+)(["']?){_VALUE}""", rf'\g<1>\g<2>{MASK}'),
    (r"""\b((?:bearer|basic)\s+)[A-Za-z0-9+/_.=-]{16,}""", rf'\g<1>{MASK}'),
  )
) + tuple(
  (re.compile(pattern), MASK)
  for pattern in (
    r'\b(?:AKIA|ASIA)[0-9A-Z]{16}\b',
    r'\bAIza[0-9A-Za-z_-]{35}',
    r'\bgh[pousr]_[A-Za-z0-9]{20,}',
    r'\bgithub_pat_\w{20,}',
    r'\bglpat-[\w-]{20,}',
    r'\bhf_[A-Za-z0-9]{20,}',
    r'\bsk-[\w-]{20,}',
    r'\bxox[abeoprs]-[\w-]{10,}',
    r'\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+',
    r'-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[A-Za-z0-9+/=\s]*',
  )
)


_added: set[str] = set()


def add_secret(secret: str) -> None:
  """Lets a text be masked wherever it appears from now on."""
  if len(secret) >= _MIN_LENGTH:
    _added.add(secret)


def mask(text: str) -> str:
  """Replaces every secret in a text by MASK. Masking twice changes nothing more."""
  for secret in (*_added, *_of_environment()):
    text = text.replace(secret, MASK)
  for pattern, replacement in _REPLACEMENTS:
    text = pattern.sub(replacement, text)
  return text


def mask_values(values: object) -> Any:
  """Masks every string in nested mappings and sequences, and any value under the name of a secret."""
  if isinstance(values, Mapping):
    return {
      key: MASK if _names_secret(key) and isinstance(value, str) and value else mask_values(value)
      for key, value in values.items()
    }
  if isinstance(values, (list, tuple)):
    masked = [mask_values(value) for value in values]
    return tuple(masked) if isinstance(values, tuple) else masked
  return mask(values) if isinstance(values, str) else values


def is_masked(text: str) -> bool:
  """Whether a text, such as a field of a params.yaml, has a masked part."""
  return text == MASK or f'{MASK}@' in text or f'={MASK}' in text


@functools.lru_cache(maxsize=10_000)
def _names_secret(name: object) -> bool:
  return isinstance(name, str) and _SECRET_NAME.fullmatch(name) is not None


def _of_environment() -> Iterator[str]:
  for name, value in os.environ.items():
    if len(value) >= _MIN_LENGTH and name != 'PWD' and (_names_secret(name) or name.endswith('_TOKEN')):
      yield value


def print_masked(text: str) -> None:
  """Prints a masked line at once. If stdout is closed, it is lost."""
  try:
    print(mask(text), flush=True)
  except OSError:
    pass


class MaskedStream:
  """A text stream that masks passwords written to it, and otherwise behaves as the stream inside it."""

  def __init__(self, stream: TextIO):
    self._stream = stream

  def write(self, text: str) -> int:
    """Writes a masked text; returns the number of characters of `text`."""
    self._stream.write(mask(text))
    return len(text)

  def writelines(self, lines: list[str]) -> None:
    """See `write`."""
    for line in lines:
      self.write(line)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)


class _LogFilter(logging.Filter):
  """Masks the messages and tracebacks of log records."""

  def filter(self, record: logging.LogRecord) -> bool:
    record.msg, record.args = mask(record.getMessage()), None
    if record.exc_info and not record.exc_text:
      record.exc_text = mask(''.join(traceback.format_exception(*record.exc_info)).rstrip())
    return True


_log_filter = _LogFilter()


def mask_logs(handler: logging.Handler) -> None:
  """Masks everything that a log handler writes from now on."""
  add: Callable[[logging.Filter], None] = handler.addFilter
  add(_log_filter)  # logging does not add a filter twice.


# Control characters, characters that set the direction of letters or are invisible, line separators, surrogates.
_CATEGORIES = ('Cc', 'Cf', 'Zl', 'Zp', 'Cs')


def printable(text: object, keep: str = '') -> str:
  r"""A text in one line, with escapes such as `\x1b` for characters that a terminal would obey.

  Args:
    text: anything; its str() is shown.
    keep: characters to leave, such as a tab.
  """
  text = str(text)
  if text.isascii() and text.isprintable():
    return text
  return ''.join(
    letter if letter in keep or unicodedata.category(letter) not in _CATEGORIES else _escape(letter) for letter in text
  )


def _escape(letter: str) -> str:
  number = ord(letter)
  if letter in '\n\t\r':
    return {'\n': '\\n', '\t': '\\t', '\r': '\\r'}[letter]
  return f'\\x{number:02x}' if number < 0x100 else f'\\u{number:04x}' if number < 0x10000 else f'\\U{number:08x}'
