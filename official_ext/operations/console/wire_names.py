"""Names of files that are not UTF-8, as a browser can hold and return them.

Python reads the byte 0xE9 of such a name as the lone surrogate U+DCE9, which no address can contain. On the wire it is
U+10FFE9, a character for private use.
"""

import re

_ESCAPED = re.compile(r'\\\\|\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|\\udc([89a-f][0-9a-f])')
_PRIVATE = {0x10FF00 + byte: 0xDC00 + byte for byte in range(0x80, 0x100)}


def in_json(text: str) -> str:
  """JSON in ASCII with a private character for each byte that is not UTF-8."""
  if '\\udc' not in text:
    return text
  return _ESCAPED.sub(lambda match: match[0] if match[1] is None else rf'\udbff\udf{match[1]}', text)


def read(text: str) -> str:
  """A text of a request, as Python names the file."""
  return text.translate(_PRIVATE)
