"""Messages to people (mail, chat, phone) about runs: receivers, text and sending, through apprise. No TensorFlow."""

from collections.abc import Iterable, Sequence
import dataclasses
import logging
import os
import socket
import stat
import time
from typing import Any

from official_ext.base import credentials
from official_ext.base import errors
from official_ext.base import harmless_text
from official_ext.base import optional_packages
from official_ext.base.files import regular_files

_ENVIRONMENT = 'env:'
_FILE = 'file:'
# The kinds of events that apprise shows as good, or bad.
_GOOD = ('finished',)
_BAD = ('failed', 'hung', 'killed', 'diverged', 'nan')

TAKEN = 'taken'
REFUSED = 'refused'
NO_ANSWER = 'no_answer'


@dataclasses.dataclass(frozen=True)
class Message:
  """A message.

  Attributes:
    kind: the name of an event, or a kind of alert; decides how the message looks.
    title: the event, in a line.
    body: more about it.
  """

  kind: str
  title: str
  body: str


def compose(kind: str, who: str, what: str, lines: Iterable[str]) -> Message:
  """The message that something has happened to a run or job of this host, without passwords and control characters."""
  title = harmless_text.harmless(f'{who} on {socket.gethostname()}: {what}')
  body = '\n'.join(map(harmless_text.harmless, lines)) or title
  return Message(kind, credentials.mask(title), credentials.mask(body))


def digest(messages: Sequence[Message]) -> Message:
  """One message instead of several: their titles, each with the first line of its body."""
  if len(messages) == 1:
    return messages[0]
  lines = [line for each in messages for line in (each.title, *(f'  {text}' for text in each.body.splitlines()[:1]))]
  return Message('', f'{len(messages)} alerts', '\n'.join(lines))


def read_and_check(references: Sequence[str], field: str, files: bool = False) -> dict[str, str]:
  """The URLs of references, by names that may be shown; see `read_urls`.

  Raises:
    UserError: see `read_urls`; or apprise does not know a URL.
  """
  named: dict[str, str] = {}
  for reference in dict.fromkeys(map(str, references)):
    urls = read_urls([reference], field, files)
    make(urls, f'{field}={reference}' if field.startswith('--') else f'{field}: {reference}')
    named |= {reference if len(urls) == 1 else f'{reference}[{number}]': url for number, url in enumerate(urls)}
  return named


def read_urls(references: Sequence[str], field: str, files: bool = False) -> list[str]:
  """The URLs of references. They hold secrets, which are masked from now on.

  Args:
    references: each `env:NAME`, the name of an environment variable with one URL, or several separated by blanks; or
      `file:PATH`, a file with the same, which nobody else may read.
    field: the start of messages.
    files: whether `file:PATH` is allowed.

  Raises:
    UserError: a reference is invalid or empty.
  """
  optional_packages.require('apprise', 'notifications', field.rpartition('.urls')[0] or field)
  urls: list[str] = []
  for reference in map(str, references):
    if reference.startswith(_ENVIRONMENT):
      name = reference[len(_ENVIRONMENT) :]
      found = os.environ.get(name, '').split()
      missing = f'the environment variable {name} is not set'
    elif files and reference.startswith(_FILE):
      found, missing = _read_file(os.path.expanduser(reference[len(_FILE) :]), f'{field}: {reference}'), 'is empty'
    else:  # The value may hold a password, so the message does not repeat it.
      raise errors.UserError(
        f'{field}: expected env:NAME, the name of an environment variable that holds the URL'
        + (', or file:PATH' if files else '')
        + ': a URL may hold a password, and configurations are written to files'
      )
    if not found:
      raise errors.UserError(f'{field}: {reference}: {missing}')
    for url in found:
      credentials.add_secret(url)
    urls += found
  return urls


def _read_file(path: str, where: str) -> list[str]:
  try:
    with regular_files.open_to_read(path) as file:
      if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
        raise errors.UserError(f'{where}: others may read it; `chmod 600` it')
      return regular_files.read_whole(file, path, 1 << 20).decode().split()
  except (OSError, UnicodeDecodeError) as error:
    raise errors.UserError(f'{where}: cannot be read: {getattr(error, "strerror", None) or error}') from None


def make(urls: Sequence[str], where: str) -> list[Any]:
  """Makes apprise's objects from URLs.

  Args:
    urls: in apprise's notation.
    where: the start of messages.

  Raises:
    UserError: apprise does not know one of them.
  """
  import apprise  # pylint: disable=g-import-not-at-top  # Takes half a second.

  logging.getLogger('apprise').setLevel(logging.CRITICAL + 1)  # It prints URLs.
  receivers = [apprise.Apprise.instantiate(url) for url in urls]
  if None in receivers:
    raise errors.UserError(f'{where}: apprise does not know the URL in it')
  return receivers


def send(receiver: Any, message: Message) -> str:
  """Sends a message to a receiver that `make` has made.

  Returns:
    TAKEN; REFUSED, if the receiver has certainly not taken it; NO_ANSWER, if it has not answered in its time and may
    have.
  """
  import apprise  # pylint: disable=g-import-not-at-top

  types = {**dict.fromkeys(_GOOD, apprise.NotifyType.SUCCESS), **dict.fromkeys(_BAD, apprise.NotifyType.FAILURE)}
  begun = time.monotonic()
  if receiver.notify(
    notify_type=types.get(message.kind, apprise.NotifyType.INFO), title=message.title, body=message.body
  ):
    return TAKEN
  return NO_ANSWER if time.monotonic() - begun >= receiver.socket_read_timeout else REFUSED


def be_patient(receiver: Any, seconds: float) -> None:
  """Lets a receiver take its time to answer, unless its URL says how long it may take."""
  default = type(receiver).socket_read_timeout
  if receiver.socket_read_timeout == default:
    receiver.socket_read_timeout = max(seconds, default)
  # So that a failed connection is not mistaken for a missing answer.
  receiver.socket_connect_timeout = min(10.0, receiver.socket_read_timeout / 2)
