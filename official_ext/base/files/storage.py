"""Writes files of a run whole or not at all, describes failing storage, and makes checkpoints readable for TensorFlow.

Storage fails in the middle of a run: a disk or a quota is full, a file system turns read-only, a network file system is
gone, a folder is deleted. This module finds the one line that describes it. The caller decides the consequence for the
run.

TensorFlow looks for a checkpoint's index by a pattern before it opens it (`Env::GetMatchingPaths`), and finds none if
the path holds `[` or a backslash. `readable_checkpoint` reads such a folder through a symbolic link, and refuses pipes.
"""

import atexit
import errno
import functools
import os
import re
import shutil
import tempfile
from typing import Any

import tensorflow as tf

from official_ext.base import errors
from official_ext.base.files import local_files
from official_ext.base.files import paths

_GLOB_CHARACTERS = re.compile(r'[\[\\]')


def readable_checkpoint(path: str) -> str:
  """A path by which TensorFlow can read a checkpoint, for as long as this process lives.

  Args:
    path: path of the checkpoint.

  Raises:
    UserError: the checkpoint is missing, on a remote file system.
    UnreadableError: one of its files is not a regular file: see local_files.py.
  """
  if not paths.is_remote(path) and os.path.lexists(f'{path}.index'):
    folder, name = os.path.split(path)
    for file in paths.matching(folder, rf'{re.escape(name)}\.(index|data-.*)'):
      local_files.check_regular(file)
  if not _GLOB_CHARACTERS.search(path):
    return path
  if paths.is_remote(path):
    raise errors.UserError(
      f'{path}: TensorFlow reads no checkpoint from a remote path with [ or a backslash; choose another name'
    )
  folder, name = os.path.split(path)
  return os.path.join(_link_to(os.path.abspath(folder)), name)


def open_checkpoint(path: str) -> Any:
  """TensorFlow's reader of a checkpoint. `tf.train.load_checkpoint` first looks for a folder, and finds one in ram://.

  Args:
    path: path of the checkpoint.

  Raises:
    Exception: it cannot be read; the type depends on the place of the reader's error.
  """
  return tf.compat.v1.train.NewCheckpointReader(readable_checkpoint(path))


@functools.cache
def _link_to(folder: str) -> str:
  place = tempfile.mkdtemp(prefix='checkpoints-')  # Read until the end: variables that are made late are restored late.
  atexit.register(shutil.rmtree, place, ignore_errors=True)
  link = os.path.join(place, 'folder')
  os.symlink(folder, link)
  if _GLOB_CHARACTERS.search(link):
    raise errors.UserError(f'TMPDIR: {place}: temporary files must be in a folder without [ and backslash in its path')
  return link


FAILURES = (OSError, tf.errors.OpError)  # The exceptions of writing a file.
# Errors of the machine; a program cannot cause them.
_OF_STORAGE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.EFBIG)
_REASONS = tuple(os.strerror(number) for number in _OF_STORAGE)
_PATH = re.compile(r'(?:^|\s)(\S*/[^\s;]*);')


def write(path: str, text: str, sync: bool = True) -> None:
  """Writes a text file: see `write_bytes`."""
  write_bytes(path, text.encode(), sync)


def write_bytes(path: str, content: bytes, sync: bool = True) -> None:
  """Writes a file under a temporary name, then renames it. A failed write leaves no files.

  Args:
    path: local, or any that `tf.io.gfile` knows. Its folder is made if it is missing.
    content: its content.
    sync: see `paths.write_atomically`.

  Raises:
    StorageError: it cannot be written, or the disk may not have stored it. The file is the earlier one,
      or the whole new one.
  """
  try:
    try:
      paths.write_atomically(path, content, sync=sync)
    except FileNotFoundError:
      paths.make_folder(os.path.dirname(path))
      paths.write_atomically(path, content, sync=sync)
  except FAILURES as error:
    raise not_written(path, error) from error


def remove_abandoned(folder: str) -> None:
  """Deletes the temporary files of a local folder whose writers, processes of this machine, have died.

  Where none can be deleted, they stay.
  """
  if paths.is_remote(folder):
    return
  machine = re.escape(os.uname().nodename)
  for path in paths.matching(folder, rf'.+\.tmp-{machine}-\d+'):
    if not os.path.exists(f'/proc/{path.rpartition("-")[2]}') and os.path.isfile(path):
      remove(path)


def overwrite(path: str, text: str) -> None:
  """Overwrites a local file in place, if it can: a small one finds room there when the disk is full.

  A process that dies at this moment may leave a mixture of both texts. Trailing blanks may be added to the text.
  """
  try:
    with open(path, 'r+b', buffering=0) as f:
      f.write(text.encode().ljust(os.fstat(f.fileno()).st_size))
  except OSError:  # The write error was reported.
    pass


def remove(path: str) -> None:
  """Deletes a file if it can."""
  try:
    tf.io.gfile.remove(path)
  except FAILURES:
    pass


def not_written(path: str, error: BaseException) -> errors.StorageError:
  """The error of a file that could not be written."""
  if isinstance(error, errors.StorageError):
    return error
  return errors.StorageError(f'{path}: cannot be written: {reason_of(error)}')


def reason_of(error: BaseException) -> str:
  """The storage error in an exception, without the ops, functions and paths that TensorFlow adds."""
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  text = ' '.join(str(error).split())
  known = next((reason for reason in _REASONS if reason in text), None)
  if known is None:
    text = re.sub(r'\{\{.*?\}\}|\[Op:.*', '', text)
    known = text.rpartition('; ')[2].strip()[:200]
  return known or type(error).__name__


def explain(error: BaseException | None) -> errors.StorageError | None:
  """An error with one line about failing storage, if that caused an exception, directly or not; else None."""
  seen = set()
  while error is not None and id(error) not in seen:
    seen.add(id(error))
    if isinstance(error, errors.StorageError):
      return error
    path = _failed_path(error)
    if path is not None:
      return errors.StorageError(f'{path}: {reason_of(error)}')
    error = error.__cause__ or error.__context__
  return None


def _failed_path(error: BaseException) -> str | None:
  """The path at which storage failed, 'a file' if the exception does not say; None if something else went wrong."""
  if isinstance(error, OSError):
    if error.errno not in _OF_STORAGE and not isinstance(error, local_files.UnreadableError):
      return None
    return os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else 'a file'
  if isinstance(error, tf.errors.OpError) and any(reason in str(error) for reason in _REASONS):
    match = _PATH.search(str(error))
    return match[1] if match else 'a file'
  return None
