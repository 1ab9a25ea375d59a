"""The sockets of commands that serve. No TensorFlow."""

from collections.abc import Callable
import errno
import ipaddress
import socket

from official_ext.base import errors

OTHER_PROGRAM = 'another program listens there; choose another port, or 0 for any that is free'


def listen(host: str, port: int, who_listens: Callable[[], str] = lambda: OTHER_PROGRAM) -> socket.socket:
  """A socket that listens at an address.

  Args:
    host: the address.
    port: 0 for any that is free.
    who_listens: the program that has the port already, for the message.

  Raises:
    UserError: the address is not of this machine, or the port is taken.
  """
  try:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
  except (OSError, UnicodeError) as error:
    raise errors.UserError(f'--host={host}: is not an address of this machine: {error}') from None
  listener = socket.socket(family, socket.SOCK_STREAM)
  try:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(128)
  except OSError as error:
    listener.close()
    if error.errno == errno.EADDRINUSE:
      raise errors.UserError(f'--port={port}: {who_listens()}') from None
    raise errors.UserError(f'--host={host} --port={port}: cannot be listened at: {error.strerror}') from None
  return listener


def check_port(port: int) -> None:
  """Refuses a number that is not one of a port."""
  if not 0 <= port <= 65535:
    raise errors.UserError(f'--port={port}: must be 1 to 65535, or 0 for any that is free')


def is_any(host: str) -> bool:
  """Whether an address means all interfaces."""
  try:
    return ipaddress.ip_address(host).is_unspecified
  except ValueError:
    return False


def in_url(host: str) -> str:
  """An address as it stands in a URL."""
  return f'[{host}]' if ':' in host else host
