"""The pace of attempts to give the console's token: after a few wrong ones a client has to wait for its turn."""

import asyncio
import collections
import dataclasses
import time

FREE = 3  # Attempts without a wait.
SECONDS = 0.5  # Between further ones.
MAX_WAIT_SECONDS = 5.0
_MAX_CLIENTS = 10_000


@dataclasses.dataclass
class _Client:
  """The attempts of a client since its last right one.

  Attributes:
    count: how many there were.
    next: when the next one is judged, by the monotonic clock.
  """

  count: int = 0
  next: float = 0.0


class TokenAttempts:
  """The attempts of all clients. One loop of asyncio uses it."""

  def __init__(self) -> None:
    self._clients: collections.OrderedDict[str, _Client] = collections.OrderedDict()

  async def has_turn(self, host: str) -> bool:
    """Waits until an attempt of a client may be judged; False if too many others of it wait already."""
    client = self._clients.setdefault(host, _Client())
    self._clients.move_to_end(host)
    if len(self._clients) > _MAX_CLIENTS:
      self._clients.popitem(last=False)
    client.count += 1  # Before it is judged: many may come at once.
    now = time.monotonic()
    turn = max(now, client.next) if client.count > FREE else now
    if turn - now > MAX_WAIT_SECONDS:
      return False
    client.next = turn + SECONDS
    if turn > now:  # A right one is judged without a pause, and forgotten: others at once count as its first.
      await asyncio.sleep(turn - now)
    return True

  def forget(self, host: str) -> None:
    """Takes note of a right attempt."""
    self._clients.pop(host, None)
