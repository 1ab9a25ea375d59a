"""Questions and answers that come with Python, about the functions of its standard library.

    {'prompt': 'What does str.split do?', 'completion': 'Return a list of the substrings in the string, ...'}

The answer is the first sentence of the docstring. They differ a little from one version of Python to the next, and with
them the trained models: the digest of the records, which is part of the identity of the data, distinguishes them.

Example:

  >>> answers = {record['prompt']: record['completion'] for record in ext.python_docstrings.documents('train')}
  >>> answers['What does math.floor do?']
  'Return the floor of x as an Integral.'
"""

from collections.abc import Iterator
import functools
import hashlib
import importlib
import inspect
import re
import sys

from official_ext.data import numbered_records

# Modules that import nothing large, do nothing when they are imported, and are not changed by other libraries.
_MODULES = """argparse array ast asyncio base64 bisect builtins bz2 calendar cmath codecs collections concurrent.futures
  configparser contextlib copy csv dataclasses datetime decimal difflib email.message enum fnmatch fractions
  functools gzip hashlib heapq html http.client inspect io ipaddress itertools json logging lzma math
  mimetypes operator os os.path pathlib pickle pprint queue random re sched secrets select shelve shlex
  shutil signal socket sqlite3 ssl statistics string struct subprocess sys tarfile tempfile textwrap
  threading time timeit tokenize traceback types typing unittest unittest.mock urllib.parse urllib.request
  uuid wave weakref xml.etree.ElementTree zipfile zlib""".split()
_SHORTEST, _LONGEST = 20, 200  # Characters of an answer.
_VALIDATION_PART = 8  # One function in 8.


@functools.cache
def documents(split: str) -> tuple[dict[str, str], ...]:
  """The questions and answers of a split, in the order of the functions' names.

  Args:
    split: 'train' or 'validation'. A function is in the one or the other by its name alone, and no answer is in both.
  """
  assert split in ('train', 'validation'), split
  return tuple(
    {'prompt': f'What does {name} do?', 'completion': answer}
    for name, answer in _answers().items()
    if (_number(name) % _VALIDATION_PART == 0) == (split == 'validation')
  )


@functools.cache
def preference_documents(split: str) -> tuple[dict[str, str], ...]:
  """The same, with another function's description as the worse answer: `{'prompt', 'chosen', 'rejected'}` each."""
  found = documents(split)
  others = sorted(found, key=lambda document: _number(document['completion']))
  after = {first['prompt']: second for first, second in zip(others, [*others[1:], others[0]])}
  return tuple(
    {
      'prompt': document['prompt'],
      'chosen': document['completion'],
      'rejected': after[document['prompt']]['completion'],
    }
    for document in found
  )


@functools.cache
def records(split: str) -> numbered_records.Records:
  """`documents` as records, for `ext.text_source`."""
  return numbered_records.ListRecords(documents(split), f'docstring of the standard library ({split})')


@functools.cache
def preference_records(split: str) -> numbered_records.ListRecords:
  """`preference_documents` as records, for `ext.text_source` with `example_format` 'preference'."""
  return numbered_records.ListRecords(preference_documents(split), f'pair of docstrings ({split})')


@functools.cache
def _answers() -> dict[str, str]:
  """Name of a function -> its description, each answer once, by name."""
  found: dict[str, str] = {}
  for module in _MODULES:
    found.update(_of_module(module))
  answers: dict[str, str] = {}
  taken = set()
  for name in sorted(found):
    if found[name] not in taken:
      taken.add(found[name])
      answers[name] = found[name]
  return answers


def _of_module(module: str) -> Iterator[tuple[str, str]]:
  try:
    holder: object = importlib.import_module(module)
  except ImportError:  # A Python that was built without it.
    return
  prefix = '' if module == 'builtins' else f'{module}.'
  for name, value in _public(holder):
    if inspect.isclass(value):
      if not issubclass(value, BaseException):
        for method, function in _public(value):
          if callable(function):
            yield from _with_answer(f'{prefix}{name}.{method}', function)
    elif callable(value):
      yield from _with_answer(f'{prefix}{name}', value)


def _public(holder: object) -> list[tuple[str, object]]:
  """The objects that a module or a class defines itself under names without an underscore in front."""
  names = vars(holder).get('__all__') or vars(holder)
  return [(name, vars(holder)[name]) for name in sorted(names) if not name.startswith('_') and name in vars(holder)]


def _with_answer(name: str, function: object) -> Iterator[tuple[str, str]]:
  function = getattr(function, '__func__', function)  # Of class methods and static ones.
  package = (getattr(function, '__module__', None) or 'builtins').partition('.')[0]
  # Libraries replace functions: these names are left out, whether they have or not. A run of W&B replaces sys.exit.
  if package not in sys.stdlib_module_names or name.endswith('hook') or name == 'sys.exit':
    return
  text = function.__doc__
  paragraph = ' '.join(inspect.cleandoc(text).partition('\n\n')[0].split()) if isinstance(text, str) else ''
  sentence = re.split(r'(?<=[a-z)\'"`])\. (?=[A-Z])', paragraph)[0].strip()
  is_prose = re.match(r'[A-Z][a-z]+ [a-z(]', sentence) and '->' not in sentence and sentence.isascii()
  if is_prose and _SHORTEST <= len(sentence) <= _LONGEST:
    yield name, sentence if sentence.endswith('.') else f'{sentence}.'


def _number(name: str) -> int:
  return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], 'big')
