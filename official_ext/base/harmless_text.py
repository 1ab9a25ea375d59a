"""Text of runs for a terminal: control characters are shown as escapes."""

import unicodedata

# Control characters, those that set the direction of letters or hide among them, separators of lines, surrogates.
_CATEGORIES = ('Cc', 'Cf', 'Zl', 'Zp', 'Cs')


def harmless(text: object, keep: str = '') -> str:
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
