"""Messages to people (mail, chat, phone) about the start and the end of a run, through apprise."""

from collections.abc import Mapping, Sequence
import dataclasses
import os
from typing import Any, ClassVar

from official.modeling.hyperparams import base_config

from official_ext.base import errors
from official_ext.base import notify
from official_ext.base.run_folder import run_files
from official_ext.training.writers import progress
from official_ext.training.writers import registry
from official_ext.training.writers import writers

_FIELD = 'trainer.notifications.urls'
_MAX_PENDING = 20


@dataclasses.dataclass
class NotificationsConfig(base_config.Config):
  """Messages about a run, through apprise.

  Attributes:
    urls: The receivers: `env:NAME` for the URL in the environment variable NAME, in apprise's notation.
    events: The events to send, by their names in events.jsonl.
    timeout_seconds: How long the end of a run waits for messages that are on their way.
  """

  RANGES: ClassVar[Mapping[str, str]] = {'timeout_seconds': '[0, inf)'}
  SECRET_FIELDS: ClassVar[tuple[str, ...]] = ('urls',)  # A user may write the URLs themselves in this field.

  urls: tuple[str, ...] = ()
  events: tuple[str, ...] = ('start', 'finished', 'failed')
  timeout_seconds: float = 10.0

  def check_values(self, path: str) -> None:
    """See `config.checks.check`."""
    for event in self.events:
      if event not in run_files.EVENTS:
        raise errors.UserError(
          f'{path}.events: {event}: there is no such event; expected any of {", ".join(run_files.EVENTS)}'
        )

  def check_run(self, path: str, params: Any, mode: str | None) -> None:
    """See `config.checks.check`. Checks that messages can be sent, but sends none."""
    del params
    if not self.urls or mode is None:
      return
    notify.read_and_check(self.urls, _FIELD)


class NotificationWriter(writers.Writer):
  """Sends a message for each of the chosen events: the event, the run, and the last metrics.

  Training does not wait for the receivers. The end of the run does, for `timeout_seconds`.
  """

  def __init__(self, urls: Sequence[str], events: Sequence[str], name: str, timeout_seconds: float = 10.0):
    """Initializes the writer; sends nothing yet.

    Args:
      urls: of the receivers, in apprise's notation. They hold secrets, and are never printed.
      events: the events to send.
      name: the name of the run in messages.
      timeout_seconds: how long `close` waits for messages that are on their way.
    """
    self._events = tuple(events)
    self._name = name
    self._last: dict[str, Any] = {}
    self._sender = registry.BackgroundWriter(_Sender(urls), _MAX_PENDING, timeout_seconds)

  def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """See base class."""
    flat = writers.flatten(values)
    if event in ('train', 'eval'):
      self._last.update(flat)
    if event not in self._events:
      return
    shown = {**(self._last if event in run_files.LAST_EVENTS else {}), **flat}
    message = notify.compose(event, self._name, f'{event} at step {step}', progress.format_values(shown))
    self._sender.write(event, step, dataclasses.asdict(message))

  def close(self) -> None:
    """See base class."""
    self._sender.close()


class _Sender(writers.Writer):
  """Sends messages one after the other. A receiver that does not answer delays each by a few seconds."""

  def __init__(self, urls: Sequence[str]):
    self._urls = tuple(urls)

  def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """Sends the fields of a message to all receivers.

    Raises:
      RuntimeError: one of them did not accept it.
    """
    message = notify.Message(**values)
    made = notify.make_receivers(self._urls, _FIELD)
    failed = [type(each).__name__ for each in made if not notify.send(each, message)]
    if failed:
      raise RuntimeError(f'the message {event!r} was not taken by {", ".join(failed)}')


def make(config: NotificationsConfig, model_dir: str) -> NotificationWriter:
  """Makes the writer of `trainer.notifications`, whose checks have passed.

  Args:
    config: a NotificationsConfig.
    model_dir: the run's folder, after which messages call the run.
  """
  name = os.path.basename(os.path.abspath(model_dir))
  return NotificationWriter(notify.read_urls(config.urls, _FIELD), config.events, name, config.timeout_seconds)
