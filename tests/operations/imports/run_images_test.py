"""Tests for the images in a run's TensorBoard files: real files, in TensorBoard's format."""

import pathlib
import struct
import zlib

import pytest
from tensorboard.compat.proto import event_pb2

from official_ext.base import errors
from official_ext.operations.imports import tensorboard_files
from tests.operations.runs import folders


def png(width, height, grey):
  """An encoded image of one grey."""

  def chunk(name, data):
    return struct.pack('>I', len(data)) + name + data + struct.pack('>I', zlib.crc32(name + data))

  header = struct.pack('>IIBBBBB', width, height, 8, 0, 0, 0, 0)
  rows = zlib.compress(b''.join(b'\0' + bytes([grey]) * width for _ in range(height)))
  return b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header) + chunk(b'IDAT', rows) + chunk(b'IEND', b'')


def record(tag, step, images=(), number=None):
  """A record of a file: images as tf.summary.image writes them, or a number."""
  event = event_pb2.Event(step=step, wall_time=1.0)
  value = event.summary.value.add(tag=tag)
  if number is not None:
    value.simple_value = number
  else:
    value.metadata.plugin_data.plugin_name = 'images'
    value.tensor.dtype = 7
    value.tensor.string_val.extend([b'4', b'2', *images])
  data = event.SerializeToString()
  return struct.pack('<Q', len(data)) + bytes(4) + data + bytes(4)


def _write(run, name, content, mode='wb'):
  path = pathlib.Path(run.path, name)
  path.parent.mkdir(exist_ok=True)
  with path.open(mode) as file:
    file.write(content)


def test_images_are_found_as_the_file_grows_and_read(tmp_path):
  run = folders.make(tmp_path, 'run')
  index = tensorboard_files.ImageIndex()
  assert index.find(run) == []
  name = 'validation/events.out.tfevents.1.host.1.0.v2'
  first, second = png(4, 2, 10), png(4, 2, 200)
  _write(
    run, name, record('loss', 1, number=0.5) + record('digits', 1, [first, second]) + record('loss', 2, number=1.0)
  )
  found = index.find(run)
  assert [(each.folder, each.tag, each.step, each.number, each.width, each.height) for each in found] == [
    ('validation', 'digits', 1, 0, 4, 2),
    ('validation', 'digits', 1, 1, 4, 2),
  ]
  assert [tensorboard_files.read_image(run, each.file, each.offset, each.number) for each in found] == [first, second]
  later = record('digits', 2, [second])
  _write(run, name, later[:40], 'ab')  # A record that is being written.
  assert len(index.find(run)) == 2
  _write(run, name, later[40:], 'ab')
  assert [each.step for each in index.find(run)] == [1, 1, 2]
  # Another process wrote the same step again: the later file counts.
  _write(run, 'validation/events.out.tfevents.2.host.2.0.v2', record('digits', 2, [first]))
  last = index.find(run)[-1]
  assert tensorboard_files.read_image(run, last.file, last.offset, last.number) == first


def test_of_very_many_some_steps_are_left_out_and_not_the_last(tmp_path, monkeypatch):
  run = folders.make(tmp_path, 'run')
  image = png(1, 1, 1)
  steps = {'many': range(1, 101), 'few': (3, 100)}
  content = b''.join(record(tag, step, [image, image]) for tag, own in steps.items() for step in own)
  _write(run, 'train/events.out.tfevents.1', content)
  monkeypatch.setattr(tensorboard_files, '_MAX_SHOWN', 51)  # 204 images: every fourth step.
  found = tensorboard_files.ImageIndex().find(run)
  assert [each.step for each in found if each.tag == 'many' and each.number == 1] == list(range(4, 101, 4))
  assert [each.step for each in found if each.tag == 'few' and each.number == 0] == [100]


@pytest.mark.parametrize(
  'content',
  [b'', b'x' * 100, struct.pack('<Q', 1 << 60) + bytes(50), bytes(100), record('a', 1, [b'\x89PNG\r\n\x1a\n'])],
)
def test_damaged_files_have_no_images(tmp_path, content):
  run = folders.make(tmp_path, 'run')
  _write(run, 'train/events.out.tfevents.1', content)
  assert tensorboard_files.ImageIndex().find(run) == []


def test_only_files_of_the_run_are_read(tmp_path):
  run, other = folders.make(tmp_path, 'run'), folders.make(tmp_path, 'other')
  name = 'train/events.out.tfevents.1'
  _write(other, name, record('secret', 1, [png(1, 1, 1)]))
  _write(run, name, record('own', 1, [png(1, 1, 1)]))
  pathlib.Path(run.path, 'train/events.out.tfevents.2').symlink_to(pathlib.Path(other.path, name))
  pathlib.Path(run.path, 'linked').symlink_to(pathlib.Path(other.path, 'train'))
  assert [each.tag for each in tensorboard_files.ImageIndex().find(run)] == ['own']
  for wrong in (f'../other/{name}', 'train/events.out.tfevents.2', f'{other.path}/{name}', 'params.yaml', ''):
    with pytest.raises(errors.UserError, match='no such image'):
      tensorboard_files.read_image(run, wrong, 0, 0)
  for offset, number in ((0, 1), (0, -1), (10**15, 0), (3, 0)):
    with pytest.raises(errors.UserError, match='no such image'):
      tensorboard_files.read_image(run, name, offset, number)
