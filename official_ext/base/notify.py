"""Messages to people (mail, chat, phone) about runs: receivers, text and sending, through apprise."""

from collections.abc import Iterable, Sequence
import dataclasses
import logging
import os
import socket
from typing import Any

from official_ext.base import errors
from official_ext.base import package_imports
from official_ext.base import safe_text

_ENVIRONMENT = 'env:'
# The kinds of events that apprise shows as good, or bad.
_GOOD = ('finished',)
_BAD = ('failed', 'hung', 'diverged')


@dataclasses.dataclass(frozen=True)
class Message:
  """A message.

  Attributes:
    kind: the name of an event, or the status of a job; decides how the message looks.
    title: the event, in a line.
    body: more about it.
  """

  kind: str
  title: str
  body: str


def compose(kind: str, who: str, what: str, lines: Iterable[str]) -> Message:
  """The message that something has happened to a run or job of this host, without passwords and control characters."""
  title = safe_text.printable(f'{who} on {socket.gethostname()}: {what}')
  body = '\n'.join(map(safe_text.printable, lines)) or title
  return Message(kind, safe_text.mask(title), safe_text.mask(body))


def read_and_check(references: Sequence[str], field: str) -> list[str]:
  """The URLs of references; see `read_urls`.

  Raises:
    UserError: see `read_urls`; or apprise does not know a URL.
  """
  found: list[str] = []
  for reference in references:
    urls = read_urls([reference], field)
    make_receivers(urls, f'{field}: {reference}')
    found += urls
  return found


def read_urls(references: Sequence[str], field: str) -> list[str]:
  """The URLs of references. They hold secrets, which are masked from now on.

  Args:
    references: each `env:NAME`, the name of an environment variable with one URL, or several separated by blanks.
    field: the start of messages.

  Raises:
    UserError: a reference is invalid or empty.
  """
  package_imports.require('apprise', 'notifications', field.rpartition('.urls')[0] or field)
  urls: list[str] = []
  for reference in map(str, references):
    if reference.startswith(_ENVIRONMENT):
      name = reference[len(_ENVIRONMENT) :]
      found = os.environ.get(name, '').split()
      missing = f'the environment variable {name} is not set'
    else:  # The value may hold a password, so the message does not repeat it.
      raise errors.UserError(
        f'{field}: expected env:NAME, the name of an environment variable that holds the URL: a URL may hold a '
        'password, and configurations are written to files'
      )
    if not found:
      raise errors.UserError(f'{field}: {reference}: {missing}')
    for url in found:
      safe_text.add_secret(url)
    urls += found
  return urls


def make_receivers(urls: Sequence[str], where: str) -> list[Any]:
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


def send(receiver: Any, message: Message) -> bool:
  """Sends a message to a receiver that `make_receivers` has made. Returns whether the receiver has accepted it."""
  import apprise  # pylint: disable=g-import-not-at-top

  types = {**dict.fromkeys(_GOOD, apprise.NotifyType.SUCCESS), **dict.fromkeys(_BAD, apprise.NotifyType.FAILURE)}
  kind = types.get(message.kind, apprise.NotifyType.INFO)
  return bool(receiver.notify(notify_type=kind, title=message.title, body=message.body))
