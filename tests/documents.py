"""The contents of README.md and the pages of docs/: Python code, files to write, commands."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent


def read(path: str) -> str:
  """A page, by its path in the repository."""
  return (ROOT / path).read_text()


def code(text: str) -> list[str]:
  """The blocks of Python."""
  return re.findall(r'^```python\n(.*?)^```', text, re.DOTALL | re.MULTILINE)


def steps(text: str) -> list[tuple[str, str]]:
  """The actions of a reader, from top to bottom.

  Returns:
    (file, its code) for each 'The file `file` becomes:' with a block of Python, and ('', command) for each indented
    line that is a command.
  """
  file = r'The file `([^`]+)` becomes:\n\n```python\n(.*?)^```'
  command = r'    ((?:official-ext|python|tensorboard|pip) [^\n]*)'
  pattern = rf'{file}|^{command}$'
  found = re.finditer(pattern, text, re.DOTALL | re.MULTILINE)
  return [('', match[3]) if match[3] else (match[1], match[2]) for match in found]


def tables(text: str) -> dict[str, list[str]]:
  """The first column of each table, by its heading."""
  rows = re.findall(r'^\|([^|\n]*)\|[^\n]*\n\|[-| ]*\n((?:\|[^\n]*\n)*)', text, re.MULTILINE)
  return {heading.strip(): re.findall(r'^\|\s*([^|\n]*?)\s*\|', body, re.MULTILINE) for heading, body in rows}
