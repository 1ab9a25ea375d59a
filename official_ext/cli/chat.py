"""official-ext chat: a conversation with a model on the terminal, or with lines that are piped in."""

import io
import sys
from typing import TYPE_CHECKING

from official_ext.base import errors
from official_ext.base.run_folder import model_folders
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import generation_flags
from official_ext.cli import language_models
from official_ext.language.serving import model_loading

if TYPE_CHECKING:
  from official_ext.language.modeling import adapter_sets

_HELP = 'A line is a message. /clear begins anew, Ctrl-C stops an answer, /exit or Ctrl-D ends.'
_EXIT, _CLEAR, _ADAPTER = '/exit', '/clear', '/adapter'


def _parser() -> arguments_lib.Parser:
  found = arguments_lib.Parser(
    'official-ext chat',
    'Answers messages, which are lines of stdin, by the chat template of FOLDER. /clear starts a new conversation, '
    'Ctrl-C stops an answer, /exit or Ctrl-D ends. If the context is full, the oldest messages are dropped.',
  )
  language_models.add_model_arguments(found)
  several = (
    'a folder of peft with adapters for FOLDER; the line /adapter NAME takes another one, /adapter none the base'
  )
  language_models.add_adapters(found, several)
  generation_flags.add(found, 'the most tokens of an answer; default: 512, or half the context')
  found.add_argument('--system_prompt', default='', metavar='TEXT', help='the first message, of the system')
  return found


def run(arguments: list[str]) -> None:
  """Runs `official-ext chat ARGUMENTS`: answers are all that is on stdout.

  Raises:
    UserError: with the flag, file or field. On a terminal a message that has no answer ends nothing.
  """
  known = _parser().parse_args(arguments)
  model_loading.check_unicode(known.system_prompt, '--system_prompt')
  folders = model_folders.find(known.folder, known.base_model)
  tokenizer = model_loading.load_tokenizer(folders, known.chat_template_path)
  tokenizer.chat_template()  # Before the weights are loaded.
  given = generation_flags.given(known)
  named = language_models.named_adapters(known.adapter)
  model, adapters = model_loading.load_with_adapters(folders, named, known.dtype, known.load_in_4bit)
  from official_ext.language.serving import conversations  # pylint: disable=g-import-not-at-top  # TensorFlow.

  conversation = conversations.Conversation(model, tokenizer, folders, given, known.system_prompt, known.seed)
  is_interactive = sys.stdin.isatty()
  if isinstance(sys.stdin, io.TextIOWrapper):
    sys.stdin.reconfigure(errors='surrogateescape')  # A wrong byte is a matter of its message.
  if is_interactive:
    print(_HELP, file=sys.stderr)
  while True:
    message = _read(is_interactive)
    if message is None or message == _EXIT:
      return
    if message == _CLEAR:
      conversation.clear()
    elif message:
      try:
        if adapters is not None and message.split()[0] == _ADAPTER:
          _switch(adapters, message.removeprefix(_ADAPTER).strip())
        else:
          conversation.answer(message)
      except errors.UserError as error:
        if not is_interactive:
          raise
        print(f'error: {error}', file=sys.stderr)


def _switch(adapters: 'adapter_sets.AdapterSet', name: str) -> None:
  """Takes another adapter, and reports which is in use."""
  if name:
    adapters.set_adapter(None if name == 'none' else name)
  print(f'adapter: {adapters.active or "none"} (of {", ".join(adapters.names)})', file=sys.stderr)


def _read(is_interactive: bool) -> str | None:
  """A line; None at the end."""
  if not is_interactive:
    line = sys.stdin.readline()
    return line.strip() if line else None
  try:
    if sys.stdout.isatty():
      _edit_lines()
      return input('> ').strip()
    print('> ', end='', file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return line.strip() if line else None
  except EOFError:
    print(file=sys.stderr)
    return None
  except KeyboardInterrupt:
    print('\n/exit or Ctrl-D ends', file=sys.stderr)
    return ''


def _edit_lines() -> None:
  """Lets `input` know the arrow keys, if this Python can."""
  try:
    import readline  # noqa: F401  # pylint: disable=g-import-not-at-top,unused-import
  except ImportError:
    pass
