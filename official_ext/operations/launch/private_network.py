"""A private network for processes on one machine: a Linux network namespace with only a loopback device."""

import ctypes
import fcntl
import os
import pathlib
import socket
import struct

from official_ext.base import errors

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


def enter(flag: str) -> None:
  """Moves this process, and all that it starts from now on, into a private network.

  They can reach each other at 127.0.0.1, but nothing else; nobody outside can reach them. The process must have only
  one thread.

  Args:
    flag: the flag that requires it, for the error message.

  Raises:
    UserError: this system does not allow it.
  """
  user, group = os.geteuid(), os.getegid()
  try:
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(_CLONE_NEWNET):  # This works for root. Other users need a user namespace.
      if library.unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
      process = pathlib.Path('/proc/self')
      (process / 'setgroups').write_text('deny')
      (process / 'uid_map').write_text(f'{user} {user} 1')
      (process / 'gid_map').write_text(f'{group} {group} 1')
    _start_loopback()
  except (OSError, AttributeError) as error:
    raise errors.UserError(
      f'{flag}: this system gives no network namespace ({getattr(error, "strerror", None) or error}); it needs '
      'Linux that allows unprivileged user namespaces'
    ) from error


def _start_loopback() -> None:
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    request = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack('16sh14x', b'lo', 0))
    flags = struct.unpack('16sh14x', request)[1] | _IFF_UP
    fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack('16sh14x', b'lo', flags))
