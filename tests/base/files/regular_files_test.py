"""Only regular files are read, and no more of them than the reader says."""

import io
import os
import threading

import pytest

from official_ext.base.files import local_files
from official_ext.base.files import paths
from tests import irregular_files


@pytest.mark.parametrize('kind', irregular_files.KINDS)
def test_nothing_else_is_read_or_waited_for(tmp_path, kind):
  path = f'{tmp_path}/file'
  irregular_files.put(kind, path)
  expected = IsADirectoryError if kind == 'folder' else local_files.UnreadableError
  for read in (
    local_files.open_to_read,
    local_files.check_regular,
    paths.read,
    paths.open_to_read,
    local_files.is_locked,
  ):
    with irregular_files.seconds(10), pytest.raises(expected) as raised:
      read(path)
    assert raised.value.filename == path


def test_a_pipe_is_not_opened_for_writing_either(tmp_path):
  os.mkfifo(tmp_path / 'run.log')
  with irregular_files.seconds(10), pytest.raises(local_files.UnreadableError):
    local_files.open_descriptor(f'{tmp_path}/run.log', os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def test_a_link_to_a_regular_file_is_read_and_later_reads_may_wait(tmp_path):
  (tmp_path / 'file').write_bytes(b'content')
  os.symlink('file', tmp_path / 'link')
  assert paths.read(f'{tmp_path}/link', 7) == b'content'
  with local_files.open_to_read(f'{tmp_path}/link') as file:
    assert os.get_blocking(file.fileno()) and not os.get_inheritable(file.fileno())


def test_a_pipe_that_the_user_names_is_read():
  reading, writing = os.pipe()
  os.write(writing, b'a: 1')
  os.close(writing)
  assert paths.read(f'/dev/fd/{reading}', 100, pipes=True) == b'a: 1'
  os.close(reading)


@pytest.mark.tensorflow
@pytest.mark.parametrize('root', ['', 'ram://'])
def test_a_larger_file_is_refused_by_its_size(tmp_path, root):
  path = f'{root}{tmp_path}/file'
  paths.make_folder(os.path.dirname(path))
  paths.write_atomically(path, b'x' * 11)
  assert paths.read(path, 11) == b'x' * 11
  with pytest.raises(local_files.UnreadableError, match='is larger than 10 bytes'):
    paths.read(path, 10)


def test_a_file_of_two_gigabytes_takes_no_memory(tmp_path):
  with open(tmp_path / 'file', 'wb') as file:
    file.truncate(2 << 30)
  with irregular_files.seconds(10), pytest.raises(local_files.UnreadableError, match='is larger than 16 MB'):
    paths.read(f'{tmp_path}/file', local_files.MAX_RECORD)


def test_a_file_that_grows_while_it_is_read_does_not_last_forever(tmp_path):
  path, over = tmp_path / 'file', threading.Event()
  path.write_bytes(b'x')

  def grow():
    with open(path, 'ab', buffering=0) as file:
      while not over.is_set() and file.tell() < 1 << 28:
        file.write(bytes(1 << 16))

  thread = threading.Thread(target=grow)
  thread.start()
  try:
    with irregular_files.seconds(30), pytest.raises(local_files.UnreadableError):
      while True:
        paths.read(str(path), 1 << 24)
  finally:
    over.set()
    thread.join()


@pytest.mark.parametrize(
  'content, expected',
  [
    (b'', []),
    (b'a\nb', [b'a\n', b'b']),
    (b'abcd\nb\n', [b'abcd\n', b'b\n']),  # With its newline as long as is allowed.
    (b'abcde\nb\n', [b'\n', b'b\n']),
    (b'abcdefghij\nb\n', [b'\n', b'b\n']),  # Twice as long: the newline comes alone.
    (b'a\nabcdefghijkl', [b'a\n', b'\n']),
  ],
)
def test_a_long_line_counts_as_empty(content, expected):
  assert list(local_files.read_lines(io.BytesIO(content), 5)) == expected
