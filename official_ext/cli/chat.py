"""official-ext chat: a conversation with a model on the terminal, or with lines that are piped in."""

from collections.abc import Callable, Mapping, Sequence
import io
import sys
from typing import TYPE_CHECKING

from official_ext.base import errors
from official_ext.base import protocols
from official_ext.base.run_folder import model_folders
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import generate
from official_ext.cli import generation_flags
from official_ext.cli import language_models

if TYPE_CHECKING:
  from official_ext.cli import writing
  from official_ext.language.modeling import decoder
  from official_ext.language.text import tokenizer as tokenizer_lib

_MAX_NEW_TOKENS = 512  # Unless the context is shorter than twice as much.
_HELP = 'A line is a message. /clear begins anew, Ctrl-C stops an answer, /exit or Ctrl-D ends.'
_EXIT, _CLEAR = '/exit', '/clear'


def _parser() -> arguments_lib.Parser:
  found = arguments_lib.Parser(
    'official-ext chat',
    'Answers messages, which are lines of stdin, by the chat template of FOLDER. /clear starts a new conversation, '
    'Ctrl-C stops an answer, /exit or Ctrl-D ends. If the context is full, the oldest messages are dropped.',
  )
  language_models.add_model_arguments(found)
  generation_flags.add(found, 'the most tokens of an answer; default: 512, or half the context')
  found.add_argument('--system_prompt', default='', metavar='TEXT', help='the first message, of the system')
  return found


def run(arguments: list[str]) -> None:
  """Runs `official-ext chat ARGUMENTS`: answers are all that is on stdout.

  Raises:
    UserError: with the flag, file or field. On a terminal a message that has no answer ends nothing.
  """
  known = _parser().parse_args(arguments)
  language_models.check_unicode(known.system_prompt, '--system_prompt')
  folders = model_folders.find(known.folder, known.base_model)
  tokenizer = language_models.load_tokenizer(folders, known.chat_template_path)
  tokenizer.chat_template()  # Before the weights are loaded.
  given = generation_flags.given(known)
  model = language_models.load(folders, known.dtype, known.load_in_4bit)
  conversation = Conversation(model, tokenizer, folders, given, known.system_prompt, known.seed)
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
        conversation.answer(message)
      except errors.UserError as error:
        if not is_interactive:
          raise
        print(f'error: {error}', file=sys.stderr)


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


class Conversation:
  """Messages so far, and how they are answered."""

  def __init__(
    self,
    model: 'decoder.LanguageModel',
    tokenizer: 'tokenizer_lib.Tokenizer',
    folders: model_folders.ModelFolders,
    given: Mapping[str, object],
    system_prompt: str = '',
    seed: int = 0,
  ):
    """Begins one.

    Args:
      model: a `LanguageModel`.
      tokenizer: its `Tokenizer`, with a chat template.
      folders: where both are from, for messages.
      given: the values of `GenerationConfig`'s fields that were set.
      system_prompt: the first message's; '' for none.
      seed: of the first answer's draws; the next one has the next seed.
    """
    from official_ext.cli import writing  # pylint: disable=g-import-not-at-top  # TensorFlow.

    self._model, self._tokenizer, self._folders = model, tokenizer, folders
    self._positions = model.config.max_position_embeddings
    length = {'max_new_tokens': max(1, min(_MAX_NEW_TOKENS, self._positions // 2))}
    self._config = generation_flags.config_of(model, tokenizer, {**length, **given})
    self._writer = writing.Writer(model, tokenizer, self._config)
    self._interrupted = writing.INTERRUPTED
    self._full = writing.FULL
    self._system = [{'role': 'system', 'content': system_prompt}] if system_prompt else []
    self._seed = seed
    self.messages: list[dict[str, str]] = list(self._system)

  def clear(self) -> None:
    """Forgets all messages but that of the system."""
    self.messages = list(self._system)

  def go_on(self, messages: Sequence[dict[str, str]], system_prompt: str = '', seed: int = 0) -> None:
    """Takes up another conversation: `messages` were said, and the next answer's draws have `seed`."""
    self._system = [{'role': 'system', 'content': system_prompt}] if system_prompt else []
    self._seed = seed
    self.messages = [*self._system, *messages]

  def answer(
    self, message: str, out: protocols.TextOutput | None = None, is_stopped: Callable[[], bool] = lambda: False
  ) -> 'writing.Written':
    """Adds a message of the user's, and writes the answer.

    Args:
      message: of the user.
      out: where to, as its tokens are drawn; None: stdout.
      is_stopped: asked behind each token whether the answer is to end there.

    Returns:
      The text written.

    Raises:
      UserError: the message is not valid UTF-8, the template refuses it, or it is too long by itself. It is forgotten.
    """
    language_models.check_unicode(message, 'the message')
    before = list(self.messages)
    try:
      self.messages.append({'role': 'user', 'content': message})
      tokens = self._fitting()
    except errors.UserError:
      self.messages = before
      raise
    written = self._writer.write(tokens, self._seed, out or sys.stdout, True, out is None, is_stopped)
    if written.ended_by == self._full:
      print(f'stopped after {written.num_tokens} tokens (--max_new_tokens)', file=sys.stderr)
    elif written.ended_by == self._interrupted:
      print('stopped; the answer so far is kept', file=sys.stderr)
    self._seed += 1
    self.messages.append({'role': 'assistant', 'content': written.text})
    return written

  def _fitting(self) -> list[int]:
    """The tokens of the messages, without the oldest if all with an answer are more than the context."""
    first = len(self._system)
    tokens = self._tokens()
    dropped = 0
    while len(tokens) + self._config.max_new_tokens > self._positions:
      last = len(self.messages) - 1
      if first == last:
        raise errors.UserError(
          f'the message: {len(tokens)} tokens and {self._config.max_new_tokens} of an answer (--max_new_tokens) are '
          f'more than the {self._positions} positions of the model (max_position_embeddings)'
        )
      end = next(n for n in range(first + 1, last + 1) if self.messages[n]['role'] == 'user')
      dropped += end - first
      del self.messages[first:end]
      tokens = self._tokens()
    if dropped:
      print(
        f'the context of {self._positions} tokens is full: the {dropped} oldest messages are forgotten', file=sys.stderr
      )
    generate.check_tokens(tokens, self._model, self._folders)
    return tokens

  def _tokens(self) -> list[int]:
    text = self._tokenizer.apply_chat_template(self.messages, add_generation_prompt=True)
    return self._tokenizer.encode(text, add_special_tokens=False)
