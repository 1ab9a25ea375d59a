"""The arguments of a command of official-ext and their generated help; the arguments of commands on language models."""

import argparse
from collections.abc import Callable, Sequence
import functools
import math
import os
import re
import shutil
from typing import Any, NoReturn

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.cli import train_flags

PROGRAM = 'official-ext'
REPEATED = 'may be repeated'
HELP = ('-h', '--help', '-help', '--helpfull', '--helpshort')
_SIZE = re.compile(r'(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?', re.IGNORECASE)
# The flags of train.py that commands about an experiment pass on: metavar and help.
_EXPERIMENT_FLAGS = {
  'set': ('NAME=VALUE', f'set one field, by dotted path or short name; {REPEATED}, applied last'),
  'config_file': ('FILE', f'YAML or JSON with fields to change; {REPEATED}'),
  'params_override': ('TEXT', 'the same, in place'),
  'registry': ('MODULE', f'a module to import, which registers experiments; {REPEATED}'),
  'gin_file': ('FILE', f'a file of gin bindings; {REPEATED}'),
  'gin_params': ('BINDING', f'a gin binding; {REPEATED}'),
  'tpu': ('NAME', 'the address of a TPU'),
  'tf_data_service': ('ADDRESS', 'the address of a tf.data service'),
}


class HelpPrinted(SystemExit):  # No error.
  """`--help` was given; the help is printed."""


class Parser(argparse.ArgumentParser):
  """A parser that raises its errors; the base class would print several lines, and exit."""

  def __init__(self, prog: str, description: str = '', behind: str = '', takes_flags: bool = False):
    """Makes a parser without arguments.

    Args:
      prog: the program and its command, such as `official-ext queue add`.
      description: the first paragraphs of its help.
      behind: the name of the arguments after `--`, such as `COMMAND`, which become `options.behind`; '' for none.
      takes_flags: whether unknown flags are returned by `parse_known_args` instead of refused.
    """
    formatter = functools.partial(_Formatter, behind=behind)
    super().__init__(prog=prog, description=description, formatter_class=formatter, allow_abbrev=False, add_help=False)
    self.add_argument(*HELP, action='help', help=argparse.SUPPRESS)
    self._behind, self._takes_flags = behind, takes_flags
    self._commands: dict[str, Parser] = {}
    self._default = ''

  @property
  def command(self) -> str:
    """The name of the command, without the program's."""
    return self.prog.removeprefix(f'{PROGRAM} ')

  def add_commands(self, default: str = '') -> Any:
    """Returns argparse's collection of subcommands, to which they are added; `default` runs if none is named."""
    found = self.add_subparsers(dest='command', metavar='COMMAND', title='commands', prog=self.prog)
    self._commands, self._default = found.choices, default
    return found

  def parse_known_args(self, args=None, namespace=None):
    """Overrides the base class: splits at `--`, and refuses unknown commands and flags."""
    words = list(args)
    split = words.index('--') if self._behind and '--' in words else len(words)
    own = self._with_command(words[:split]) if self._commands else words[:split]
    if not self._commands:
      self._check_flags(own)  # Before the base class misses the value that a misspelt flag should have given.
    options, unknown = super().parse_known_args(own, namespace)
    if unknown and not self._takes_flags:
      self.error(f'unrecognized arguments: {" ".join(unknown)}')
    if self._behind:
      options.behind = words[split + 1 :]
    return options, unknown

  def _check_flags(self, words: list[str]) -> None:
    """Refuses unknown flags, all of them, with the nearest known ones."""
    known = [name for name in self._option_string_actions if name not in HELP]
    if self._takes_flags and not any(isinstance(action, _PassedOn) for action in self._actions):
      return  # Flags of an engine, which are looked up elsewhere.
    lines = []
    for word in words[: words.index('--')] if '--' in words else words:
      name = word.partition('=')[0]
      if not re.fullmatch(r'--[A-Za-z]\w*', name) or name in self._option_string_actions:
        continue
      hint = errors.did_you_mean(name, known, after=' ')
      if not self._takes_flags or (hint and not _is_of_train(name)):
        lines.append(f'{self.command}: {name}: no such flag; {hint}`{self.prog} --help` lists all flags')
    if lines:
      raise errors.UserErrors(lines) if len(lines) > 1 else errors.UserError(lines[0])

  def _check_value(self, action: argparse.Action, value: Any) -> None:
    """Overrides the base class: adds the nearest choice."""
    if action.choices is not None and value not in action.choices:
      names = [str(choice) for choice in action.choices]
      hint = errors.did_you_mean(value, names, before='; ')
      raise argparse.ArgumentError(
        action, f'invalid choice: {value!r} (choose from {", ".join(map(repr, names))}){hint}'
      )

  def _with_command(self, words: list[str]) -> list[str]:
    first = words[0] if words else ''
    if first in self._commands or first in HELP:
      return words
    near = errors.nearest_names(first, self._commands, cutoff=0.75) if first.isidentifier() else []
    if self._default and not (near and not os.path.lexists(first)):
      return [self._default, *words]
    what, hint = f'{self.command}: name a command', ''
    if first:
      what = f'{first}: {self.command} has no such command'
      hint = errors.did_you_mean(first, self._commands, after=' ')
    raise errors.UserError(f'{what}; {hint}there are {", ".join(self._commands)}; `{self.prog} --help` lists them')

  def error(self, message: str) -> NoReturn:
    """Overrides the base class: raises a UserError."""
    separator = ' ' if message.endswith('?') else '; '
    raise errors.UserError(f'{self.command}: {message}{separator}`{self.prog} --help` lists all flags')

  def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
    """Overrides the base class, which calls it after the help: `official-ext` must recognize this exit."""
    raise HelpPrinted(status)


def _is_of_train(flag: str) -> bool:
  """Whether train.py has a flag, which absl parses: ours, the negation of one, or absl's own for logs."""
  names = {name for group in train_flags.GROUPS.values() for name in group}
  name = flag.lstrip('-')
  return name in names or name.removeprefix('no') in names or name in train_flags.OF_ABSL


class _Formatter(argparse.HelpFormatter):
  """Writes flags as `--name=VALUE`, on lines of at most 120 characters; indented paragraphs are not filled."""

  def __init__(self, prog: str, behind: str = ''):
    super().__init__(prog, max_help_position=30, width=min(120, shutil.get_terminal_size().columns))
    self._behind = f' -- {behind}' if behind else ''

  def _format_usage(self, usage, actions, groups, prefix):
    del prefix
    return super()._format_usage(usage, actions, groups, 'Usage: ').rstrip('\n') + f'{self._behind}\n\n'

  def _fill_text(self, text, width, indent):
    paragraphs = text.split('\n\n')
    fill = super()._fill_text
    return '\n\n'.join(each if each[:1] == ' ' else fill(each, width, indent) for each in paragraphs)

  def _iter_indented_subactions(self, action):
    yield from getattr(action, '_get_subactions', tuple)()  # The base class miscounts their width if they are indented.

  def _format_action_invocation(self, action):
    if not action.option_strings or action.nargs == 0:
      return super()._format_action_invocation(action)
    return f'{action.option_strings[0]}={action.metavar or "|".join(action.choices or ()) or action.dest.upper()}'


class _PassedOn(argparse.Action):
  """Keeps a flag with its value in `options.flags`, for another parser."""

  def __call__(self, parser, namespace, values, option_string=None):
    namespace.flags = [*(vars(namespace).get('flags') or ()), f'{option_string}={values}']


def add_experiment_flags(parser: Parser, names: Sequence[str] = tuple(_EXPERIMENT_FLAGS)) -> None:
  """Adds the flags of train.py that change an experiment, which are kept in `options.flags`."""
  group = parser.add_argument_group('flags of train.py, which change the experiment first')
  for name in names:
    metavar, text = _EXPERIMENT_FLAGS[name]
    group.add_argument(f'--{name}', action=_PassedOn, dest='flags', default=[], metavar=metavar, help=text)


def add_command(commands: Any, name: str, function: Callable[[Any], Any], text: str, **kwargs: Any) -> Parser:
  """Adds a command to the collection of `Parser.add_commands`.

  Args:
    commands: the collection.
    name: the command's.
    function: becomes `options.function`.
    text: its line in the list of commands, without a capital and a full stop.
    **kwargs: of its parser.
  """
  found = commands.add_parser(name, help=text, description=f'{text[:1].upper()}{text[1:]}.', **kwargs)
  found.set_defaults(function=function)
  return found


def add_registry(parser: argparse._ActionsContainer) -> None:
  """Adds --registry to a command without TensorFlow's flags."""
  metavar, text = _EXPERIMENT_FLAGS['registry']
  parser.add_argument('--registry', action='append', default=[], metavar=metavar, help=text)


def folder(text: str) -> str:
  """The `type` of an argument that names a folder: '' is refused, as it would mean the current one.

  Returns:
    Its path, without `file://`.
  """
  if not text:
    raise argparse.ArgumentTypeError('is empty; name a folder')
  try:
    return paths.local(text)
  except errors.UserError as error:
    raise argparse.ArgumentTypeError(str(error)) from None


def tensorflow_folder(text: str) -> str:
  """The `type` of an argument that names a folder whose files a library in C++ opens: its name must be UTF-8."""
  try:
    found = folder(text)
    paths.check_utf8(found, 'the folder')
  except errors.UserError as error:
    raise argparse.ArgumentTypeError(str(error)) from None
  return found


def size_of(text: str, flag: str) -> int:
  """The number of bytes that a text such as 5GB, 200MB or 4GiB means.

  Args:
    text: the text.
    flag: the flag, for messages.

  Raises:
    UserError: it is not a number of bytes.
  """
  match = _SIZE.fullmatch(text.strip())
  size = float(match[1]) * (1024 if match[3] else 1000) ** ' KMGT'.index(match[2].upper() or ' ') if match else 0
  if size < 1:
    raise errors.UserError(f'{flag}={text}: expected a size such as 5GB, 200MB or 4GiB')
  return int(size)


def at_least(least: int) -> Callable[[str], int]:
  """The `type` of an argument that is an integer from `least` on."""

  def integer(text: str) -> int:
    value = int(text)
    if value < least:
      raise ValueError(text)
    return value

  integer.__name__ = f'integer of {least} or more'
  return integer


def number_from(least: float) -> Callable[[str], float]:
  """The `type` of an argument that is a finite number from `least` on."""

  def number(text: str) -> float:
    value = float(text)
    if not least <= value < math.inf:
      raise argparse.ArgumentTypeError(f'{text}: expected a number from {least:g}')
    return value

  return number


def add_run_arguments(parser: argparse._ActionsContainer) -> None:
  """Adds the arguments that choose the weights of a run, and register its experiment."""
  parser.add_argument(
    '--which',
    metavar='WHICH',
    help='best, latest, the step of a checkpoint, or the path of one; default: best if the run keeps it, else latest',
  )
  parser.add_argument(
    '--ema',
    choices=['true', 'false'],
    default='true',
    help='false: the weights themselves, if the run has kept moving averages of them',
  )
  parser.add_argument('--experiment', metavar='NAME', help='the experiment, if run.json does not name it')
  add_registry(parser)


DTYPES = ('float32', 'bfloat16', 'float16')


def add_model_arguments(parser: Parser) -> None:
  """Adds FOLDER, and how it is loaded."""
  parser.add_argument(
    'folder',
    metavar='FOLDER',
    type=tensorflow_folder,
    help='a Hugging Face folder, or one of peft with adapters, whose adapter_config.json names their base',
  )
  add_base_model(parser)
  parser.add_argument(
    '--dtype', choices=DTYPES[:2], default='float32', help='of weights and arithmetic; default: float32'
  )
  add_load_in_4bit(parser, 'keep kernels in 4 bits (NF4); default: as the adapters were trained')


def add_base_model(parser: Parser) -> None:
  """Adds --base_model."""
  parser.add_argument(
    '--base_model',
    metavar='FOLDER',
    type=tensorflow_folder,
    help='the model of the adapters, if their adapter_config.json does not name it',
  )


def add_adapters(parser: Parser, text: str) -> None:
  """Adds --adapter, which may be repeated."""
  parser.add_argument('--adapter', action='append', default=[], metavar='[NAME=]FOLDER', help=f'{text}; {REPEATED}')


def named_adapters(texts: list[str]) -> dict[str, str]:
  """Name -> folder of the values of --adapter. The default name is the folder's, or the name of a run around it.

  Raises:
    UserError: two have the same name.
  """
  found: dict[str, str] = {}
  for text in texts:
    name, sign, folder = text.partition('=')
    if not sign or '/' in name:
      parts = [part for part in text.split('/') if part not in ('', '.')]
      folder, name = text, parts[-2] if parts[-1:] == ['adapter'] and len(parts) > 1 else parts[-1] if parts else ''
    if not name or not folder:
      raise errors.UserError(f'--adapter={text}: expected [NAME=]FOLDER')
    if name in found:
      raise errors.UserError(f'--adapter={text}: {name} is the name of {found[name]}; write --adapter=NAME={folder}')
    found[name] = paths.expanded(folder)
  return found


def add_load_in_4bit(parser: Parser, text: str) -> None:
  """Adds --load_in_4bit: whether kernels are kept in 4 bits; by default as adapters were trained."""
  parser.add_argument('--load_in_4bit', type=_true_or_false, metavar='true|false', help=text)


def _true_or_false(text: str) -> bool:
  if text not in ('true', 'false'):
    raise argparse.ArgumentTypeError(f'{text}: expected true or false')
  return text == 'true'
