"""Chat templates: from messages to the text that a model has learned to answer, by a template in Jinja.

A template comes with a model, from its publisher. So it is rendered in a sandbox, sees only plain JSON values, and may
call only the functions named here, the same as in transformers: `raise_exception`, `strftime_now`, the filter `tojson`
without HTML's escapes, `break` and `continue` in loops, and the tag `generation` around the assistant's text.

Two values have two forms in data, of which a template knows one: the arguments of a call are an object or its JSON
text, and a content is a text or a list of parts. Templates see a value that is both, so that none writes Python's form.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import contextvars
import datetime
import functools
import json
import os
from typing import Any

from official_ext.base import errors
from official_ext.base import package_imports

Message = Mapping[str, Any]
Span = tuple[int, int]

REASONING = ('reasoning_content', 'thinking', 'reasoning')  # Names of one thing: the first is the standard one.


def read(file: str, named: str) -> str:
  """The template in a file.

  Args:
    file: its path; `~` is the home folder.
    named: the flag or field that names it, for messages.

  Raises:
    UserError: it cannot be read.
  """
  try:
    with open(os.path.expanduser(file), encoding='utf-8-sig') as f:
      return f.read()
  except (OSError, UnicodeDecodeError) as error:
    reason = (error.strerror if isinstance(error, OSError) else '') or 'is not valid UTF-8'
    raise errors.UserError(f'{named}: {file}: cannot be read: {reason}') from error


class ChatTemplate:
  """A template that turns messages into text."""

  def __init__(self, source: str, where: str):
    """Compiles the template.

    Args:
      source: in Jinja.
      where: the file that it is from, for messages.

    Raises:
      UserError: it is not valid Jinja, or jinja2 is not installed.
    """
    self._jinja2 = package_imports.import_optional('jinja2', 'a chat template')
    self.source = source
    self.writes_date = 'strftime_now' in source
    self._where = where
    try:
      self._template, self.marks_generation = _compiled(source)
    except self._jinja2.TemplateSyntaxError as error:
      raise errors.UserError(f'{where}: line {error.lineno} of the chat template: {error.message}') from error

  def render(
    self,
    messages: Sequence[Message],
    add_generation_prompt: bool = False,
    tools: Sequence[Mapping[str, object]] | None = None,
    **variables: object,
  ) -> str:
    """The text of a conversation.

    Args:
      messages: dictionaries with `role` and `content`, and any other keys of the template. Keys whose value is None
        are as if they were missing.
      add_generation_prompt: whether the text ends with the beginning of an assistant's answer.
      tools: JSON schemas of functions that the assistant may call.
      **variables: others that the template knows, such as `enable_thinking`, and special tokens.

    Raises:
      UserError: the template refuses the messages, or cannot do it.
    """
    return self.render_with_spans(messages, add_generation_prompt, tools, **variables)[0]

  def render_with_spans(
    self,
    messages: Sequence[Message],
    add_generation_prompt: bool = False,
    tools: Sequence[Mapping[str, object]] | None = None,
    **variables: object,
  ) -> tuple[str, list[Span]]:
    """The text, and where in it the template marks the assistant's text: (start, end) in characters."""
    values = {
      **_plain(variables),
      'messages': [_prepared(message, self._where) for message in messages],
      'tools': _plain(tools),
      'documents': _plain(variables.get('documents')),
      'add_generation_prompt': add_generation_prompt,
    }
    try:
      with _tracked() as tracker:
        for part in self._template.generate(values):
          tracker.add(part)
      return tracker.text, tracker.spans
    except errors.UserError:
      raise
    except self._jinja2.TemplateError as error:
      raise errors.UserError(f'{self._where}: the chat template refuses the messages: {_one_line(error)}') from error
    except Exception as error:  # A template is a program: it fails as programs do.
      raise errors.UserError(
        f'{self._where}: the chat template fails on the messages: {type(error).__name__}: {_one_line(error)}'
      ) from error


class _Tracker:
  """The text rendered so far, and the assistant's part of it."""

  def __init__(self) -> None:
    self._parts: list[str] = []
    self._length = 0
    self.spans: list[Span] = []

  def add(self, part: str) -> None:
    self._parts.append(part)
    self._length += len(part)

  def mark(self, rendered: str) -> None:
    """Notes the text about to be added."""
    self.spans.append((self._length, self._length + len(rendered)))

  @property
  def text(self) -> str:
    return ''.join(self._parts)


_TRACKER: contextvars.ContextVar[_Tracker | None] = contextvars.ContextVar('tracker', default=None)


@contextlib.contextmanager
def _tracked() -> Iterator[_Tracker]:
  tracker = _Tracker()
  token = _TRACKER.set(tracker)
  try:
    yield tracker
  finally:
    _TRACKER.reset(token)


@functools.lru_cache(maxsize=64)
def _compiled(source: str) -> tuple[Any, bool]:
  """A template, and whether it has the tag `generation`."""
  nodes = package_imports.import_optional('jinja2', 'a chat template').nodes
  environment = _environment_class()()
  template = environment.from_string(source)
  calls = environment.parse(source).find_all(nodes.CallBlock)
  return template, any(isinstance(call.call.node, nodes.ExtensionAttribute) for call in calls)


@functools.cache
def _environment_class() -> Any:
  """The sandbox. Made when it is first needed: jinja2 is optional."""
  jinja2 = package_imports.import_optional('jinja2', 'a chat template')
  from jinja2 import ext  # pylint: disable=g-import-not-at-top
  from jinja2 import nodes  # pylint: disable=g-import-not-at-top
  from jinja2 import sandbox  # pylint: disable=g-import-not-at-top
  from jinja2 import utils  # pylint: disable=g-import-not-at-top

  class Generation(ext.Extension):
    """The tag `generation`: renders its body, and notes where it is."""

    tags = {'generation'}

    def parse(self, parser):
      line = next(parser.stream).lineno
      body = parser.parse_statements(('name:endgeneration',), drop_needle=True)
      return nodes.CallBlock(self.call_method('_generation'), [], [], body).set_lineno(line)

    def _generation(self, caller):
      rendered = caller()
      tracker = _TRACKER.get()
      if tracker is not None:
        tracker.mark(rendered)
      return rendered

  class Namespace(utils.Namespace):
    """Without attributes that begin with an underscore, by which a template could reach Python's inside."""

    def __init__(*args, **kwargs):  # A template may call an attribute `self`.
      self, args = args[0], args[1:]
      values = dict(*args, **kwargs)
      for name in values:
        Namespace._check(name)
      utils.Namespace.__init__(self, values)

    def __setitem__(self, name, value):
      Namespace._check(name)
      utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name):
      if str(name).startswith('_'):
        raise jinja2.exceptions.SecurityError(f'a namespace of a chat template has no attribute {name!r}')

  class Environment(sandbox.ImmutableSandboxedEnvironment):
    """With transformers' way of taking blanks away."""

    def __init__(self):
      super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols])
      self.filters['tojson'] = _to_json
      self.globals.update(raise_exception=_raise, strftime_now=_strftime_now, namespace=Namespace)

  def _raise(message):
    raise jinja2.exceptions.TemplateError(message)

  return Environment


def _to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
  return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form):
  return datetime.datetime.now().strftime(form)


def present_date() -> str:
  """The day that a template writes as the present one, such as 2026-11-29."""
  return _strftime_now('%Y-%m-%d')


def _prepared(message: object, where: str) -> dict[str, Any]:
  """A message as templates expect it."""
  if not isinstance(message, Mapping):
    raise errors.UserError(f'{where}: a message is not a dictionary with role and content: {str(message)[:100]!r}')
  prepared = _plain({name: value for name, value in message.items() if value is not None})
  if isinstance(prepared.get('content'), list):
    prepared['content'] = _Parts(prepared['content'])
  calls = prepared.get('tool_calls')
  for call in calls if isinstance(calls, list) else ():
    for function in (call, call.get('function')) if isinstance(call, dict) else ():
      if isinstance(function, dict) and 'arguments' in function:
        function['arguments'] = _arguments(function['arguments'])
  reasoning = next((prepared[name] for name in REASONING if prepared.get(name) is not None), None)
  if reasoning is None:
    return prepared
  return {'thinking': reasoning, **prepared, 'reasoning_content': reasoning}


class _Written:
  """A value that is joined with texts as a text."""

  def __add__(self, other: Any) -> Any:
    return str(self) + other if isinstance(other, str) else NotImplemented

  def __radd__(self, other: Any) -> Any:
    return other + str(self) if isinstance(other, str) else NotImplemented


class _Arguments(_Written, dict):
  """The arguments of a call: an object, and where they are written the text that they were, or its JSON."""

  def __init__(self, fields: Mapping[str, Any], text: str):
    super().__init__(fields)
    self._text = text

  def __str__(self):
    return self._text


def _arguments(value: Any) -> Any:
  if isinstance(value, dict):
    return _Arguments(value, _to_json(value))
  try:
    fields = json.loads(value) if isinstance(value, str) else None
  except (ValueError, RecursionError):
    return value
  return _Arguments(fields, value) if isinstance(fields, dict) else value


class _Parts(_Written, list):
  """A content in parts: a list, and where it is written or treated as a text that of all parts."""

  def _texts(self) -> list[str] | None:
    texts = [part.get('text') if isinstance(part, dict) and part.get('type') == 'text' else part for part in self]
    known = [text for text in texts if isinstance(text, str)]
    return known if len(known) == len(texts) else None

  def __str__(self):
    texts = self._texts()
    if texts is None:
      raise TypeError('a content has other parts than texts, and the template has no place for them')
    return ''.join(texts)

  def __contains__(self, item):
    return item in str(self) if isinstance(item, str) and self._texts() is not None else super().__contains__(item)

  def __getattr__(self, name):
    if name.startswith('_') or self._texts() is None:
      raise AttributeError(name)
    return getattr(str(self), name)


def _plain(value: object) -> Any:
  """A copy of JSON values: a template must not reach methods of anything else."""
  if isinstance(value, Mapping):
    return {str(name): _plain(part) for name, part in value.items()}
  if isinstance(value, (list, tuple)):
    return [_plain(part) for part in value]
  if isinstance(value, str):
    return str.__str__(value)
  if value is None or type(value) in (bool, int, float):
    return value
  if hasattr(value, 'item') and getattr(value, 'ndim', None) == 0:  # A number of NumPy's.
    return value.item()
  return f'<{type(value).__name__}>'


def _one_line(error: BaseException) -> str:
  return ' '.join(str(error).split())[:300]
